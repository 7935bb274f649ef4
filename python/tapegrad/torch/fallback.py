"""Ops that PyTorch computes, on the bytes of Tapegrad's tensors."""
import collections

import torch

import tapegrad as tg

from .tensors import given, taken

_counts = collections.Counter()


def report():
    """How often an op had to be computed by PyTorch since reset_report(): {name: calls}, the most frequent first."""
    return dict(_counts.most_common())


def reset_report():
    _counts.clear()


class Operator:
    """An ATen op, called like a function of the table."""

    def __init__(self, target):
        self.target = target

    def __call__(self, out, *args, **named):
        _counts[str(self.target)] += 1
        return _run(self.target, args, named)


def _run(target, args, named):
    with torch.no_grad():
        args, named = torch.utils._pytree.tree_map(given, (args, named))
        return torch.utils._pytree.tree_map_only(torch.Tensor, taken, target(*args, **named))
