"""Modules: models as Python classes, layers, and models of the library. docs/python-modules.md is the introduction."""

from . import init
from .gpt import GPT, LM
from .layers import (
    BatchNorm,
    Conv1d,
    Conv2d,
    Dropout,
    Embedding,
    Function,
    GroupNorm,
    LayerNorm,
    Linear,
    RMSNorm,
    Sequential,
)
from .module import Buffer, Module, ModuleList
from .native import Native
from .rnn import GRU, LSTM

__all__ = [
    'BatchNorm',
    'Buffer',
    'Conv1d',
    'Conv2d',
    'Dropout',
    'Embedding',
    'Function',
    'GPT',
    'GRU',
    'GroupNorm',
    'LM',
    'LSTM',
    'LayerNorm',
    'Linear',
    'Module',
    'ModuleList',
    'Native',
    'RMSNorm',
    'Sequential',
    'init',
]
