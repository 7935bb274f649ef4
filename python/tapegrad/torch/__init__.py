"""Tapegrad under PyTorch: torch.compile(model, backend="tapegrad"), and functions of either library in the other.
docs/pytorch-backend.md is the introduction."""

from torch._dynamo import register_backend

from .backend import backend
from .fallback import report, reset_report
from .foreign import op
from .function import function

register_backend(backend, name='tapegrad')

__all__ = ['backend', 'function', 'op', 'report', 'reset_report']
