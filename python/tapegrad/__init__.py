"""Tapegrad: tensors with automatic differentiation on an explicit tape. docs/python.md is the introduction."""

from . import errors, files, nn, ops, optim
from ._capi import ffi, lib
from .context import Context, Tape, context, evaluation, no_grad, tape
from .custom import custom_op, gradcheck
from .derivatives import backward, grad, hvp, jvp, recompute
from .errors import *  # noqa: F403 # one class for each status
from .files import load, save
from .tensor import Tensor, from_dlpack, full, ones, randn, tensor, uniform, zeros

__version__ = ffi.string(lib.tg_version()).decode()
__all__ = [
    'Context',
    'Tape',
    'Tensor',
    'backward',
    'context',
    'custom_op',
    'errors',
    'evaluation',
    'ffi',
    'files',
    'from_dlpack',
    'full',
    'grad',
    'gradcheck',
    'hvp',
    'jvp',
    'lib',
    'load',
    'nn',
    'no_grad',
    'ones',
    'ops',
    'optim',
    'randn',
    'recompute',
    'save',
    'tape',
    'tensor',
    'uniform',
    'zeros',
    *errors.__all__,
]
