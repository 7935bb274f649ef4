"""Sequences, which are lists of tensors, and optional values, which are None if empty."""

from .. import ops
from ..tensor import tensor
from .dtypes import integers
from .registry import op


@op('SequenceEmpty')
def empty(n):
    return []


@op('SequenceConstruct')
def construct(n, *xs):
    return list(xs)


@op('SequenceAt')
def at(n, xs, place):
    return xs[int(place.item())]


@op('SequenceInsert')
def insert(n, xs, x, place=None):
    i = len(xs) if place is None else int(place.item())
    return [*xs[:i], x, *xs[i:]]


@op('SequenceErase')
def erase(n, xs, place=None):
    i = (-1 if place is None else int(place.item())) % len(xs)
    return [*xs[:i], *xs[i + 1 :]]


@op('SequenceLength')
def length(n, xs):
    return tensor(len(xs), 'i64')


@op('SplitToSequence')
def split_to_sequence(n, x, sizes=None):
    size = x.shape[n.axis]
    if sizes is None:
        parts = [1] * size
    elif sizes.ndim:
        parts = integers(sizes)
    else:
        k = int(sizes.item())
        parts = [min(k, size - start) for start in range(0, size, k)]
    rows = list(ops.split(x, sizes=parts, dim=n.axis))
    return [ops.squeeze(row, n.axis) for row in rows] if sizes is None and not n.keepdims else rows


@op('ConcatFromSequence')
def concat_from_sequence(n, xs):
    return ops.stack(xs, dim=n.axis) if n.new_axis else ops.concat(xs, dim=n.axis)


@op('SequenceMap', scope=True)
def sequence_map(n, scope, xs, *others):
    """The body for each element; other inputs are sequences as long, or the same for all."""
    rows = []
    for i, x in enumerate(xs):
        values = [x, *(other[i] if isinstance(other, list) else other for other in others)]
        rows.append(n.body.run(dict(zip(n.body.inputs, values)), scope))
    return tuple([row[k] for row in rows] for k in range(n.n_out))


@op('Optional')
def optional(n, x=None):
    return x


@op('OptionalHasElement')
def has_element(n, x=None):
    return tensor(x is not None, 'bool')


@op('OptionalGetElement')
def get_element(n, x):
    return x
