"""Passes tensors between the libraries: both see the same bytes, without a copy."""

import torch
from torch.utils.dlpack import to_dlpack

import tapegrad as tg
from tapegrad.dlpack import export

from .ops.table import DTYPES, MAX_DIMS


def taken(x):
    """A PyTorch tensor as a Tensor on the same bytes; x itself if Tapegrad lacks its dtype, its layout or its
    number of dims."""
    if x.dtype not in DTYPES or x.ndim > MAX_DIMS or x.layout != torch.strided:
        return x
    x = x.detach()
    return tg.from_dlpack(to_dlpack(x.resolve_neg() if x.is_neg() else x))


def given(x):
    """A Tensor as a PyTorch tensor on the same bytes. No gradient flows through it."""
    if not isinstance(x, tg.Tensor):
        return x
    return torch.from_dlpack(export(x.detach() if x.requires_grad else x, (1, 0)))
