"""Ops that PyTorch computes, on the bytes of Tapegrad's tensors."""

import collections

from .foreign import apply

_counts = collections.Counter()


def report():
    """How often an op had to be computed by PyTorch since reset_report(): {name: calls}, the most frequent first."""
    return dict(_counts.most_common())


def count(name):
    _counts[name] += 1


def reset_report():
    _counts.clear()


class Operator:
    """An ATen op, called like a function of the table."""

    def __init__(self, target):
        self.target = target

    def __call__(self, out, *args, **named):
        count(str(self.target))
        return apply(self.target, args, named)
