"""What each op of core ATen is in terms of Tapegrad's ops: one file for each family of ops."""

from . import convolution, indexing, linear, losses, networks, pointwise, reductions, shapes  # noqa: F401
from .table import TABLE, Out, Unmapped  # noqa: F401
