"""Tapegrad: tensors with automatic differentiation on an explicit tape. docs/python.md is the introduction."""
from . import errors, ops
from ._capi import ffi, lib
from .context import Context, Tape, context, evaluation, no_grad, tape
from .derivatives import backward, grad, hvp, jvp, recompute
from .errors import *  # noqa: F403 # one class for each status
from .tensor import Tensor, from_dlpack, full, ones, randn, tensor, uniform, zeros

__version__ = ffi.string(lib.tg_version()).decode()
__all__ = ['Context', 'Tape', 'Tensor', 'backward', 'context', 'errors', 'evaluation', 'ffi', 'from_dlpack', 'full', 'grad', 'hvp',
           'jvp', 'lib', 'no_grad', 'ones', 'ops', 'randn', 'recompute', 'tape', 'tensor', 'uniform', 'zeros', *errors.__all__]
