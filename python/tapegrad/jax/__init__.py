"""Tapegrad under JAX: functions of either library in the other. docs/jax.md is the introduction."""

from .foreign import op
from .function import function

__all__ = ['function', 'op']
