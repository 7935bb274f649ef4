"""Ops that move elements: shapes, orders, parts, pads and copies. Shapes and axes are read from their tensors."""

import numpy as np

from .. import ops
from ..tensor import full, tensor
from .dtypes import FLOATS, dtype, integers, on_host
from .registry import op


@op('Constant', value_string=(None,), value_strings=(None,), sparse_value=(None,))
def constant(n):
    if n.value is not None:
        return n.value
    for name in ('value_float', 'value_floats'):
        if getattr(n, name, None) is not None:
            return tensor(getattr(n, name), 'f32')
    return tensor(n.value_int if n.value_int is not None else n.value_ints, 'i64')


@op('ConstantOfShape')
def constant_of_shape(n, shape):
    value = tensor([0.0], 'f32') if n.value is None else n.value
    return ops.contiguous(ops.expand(value.reshape([]), integers(shape)))


@op('Shape')
def shape(n, x):
    sizes = x.shape[n.start or 0 : n.end] if n.since >= 15 else x.shape
    return tensor(np.array(sizes, 'int64'))


@op('Size')
def size(n, x):
    return tensor(x.size, 'i64')


@op('Reshape')
def reshape(n, x, shape=None):
    sizes = integers(shape) if shape is not None else n.shape
    if not getattr(n, 'allowzero', 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    if -1 in sizes and x.size == 0:
        rest = int(np.prod([size for size in sizes if size != -1]))
        sizes = [0 if size == -1 and rest else size for size in sizes]
    return ops.reshape(x, sizes)


@op('Flatten')
def flatten(n, x):
    axis = n.axis + x.ndim if n.axis < 0 else n.axis
    rows = int(np.prod(x.shape[:axis]))
    return ops.reshape(x, [rows, x.size // rows if rows else int(np.prod(x.shape[axis:]))])


@op('Squeeze')
def squeeze(n, x, axes=None):
    axes = integers(axes) if axes is not None else n.axes if n.since < 13 else None
    axes = [i for i, size in enumerate(x.shape) if size == 1] if axes is None else [axis % x.ndim for axis in axes]
    return ops.reshape(x, [size for i, size in enumerate(x.shape) if i not in axes])


@op('Unsqueeze')
def unsqueeze(n, x, axes=None):
    axes = integers(axes) if axes is not None else n.axes
    ndim = x.ndim + len(axes)
    for axis in sorted(axis % ndim for axis in axes):
        x = ops.unsqueeze(x, axis)
    return x


@op('Transpose')
def transpose(n, x):
    return ops.permute(x, n.perm if n.perm is not None else list(range(x.ndim))[::-1])


@op('Expand')
def expand(n, x, shape):
    return ops.expand(x, list(np.broadcast_shapes(x.shape, tuple(integers(shape)))))


@op('Concat')
def concat(n, *xs):
    return ops.concat(list(xs), dim=1 if n.axis is None else n.axis)


@op('Split')
def split(n, x, sizes=None):
    sizes = integers(sizes) if sizes is not None else getattr(n, 'split', None) or equal_parts(x.shape[n.axis], n.n_out)
    return tuple(ops.split(x, sizes=sizes, dim=n.axis))


def equal_parts(size, n):
    """Sizes of n parts; the last one is smaller if it must be."""
    part = -(-size // n)
    return [part] * (n - 1) + [size - part * (n - 1)]


@op('Slice')
def slice_(n, x, starts=None, ends=None, axes=None, steps=None):
    starts, ends, axes = (
        integers(v) if v is not None else getattr(n, name, None)
        for name, v in (('starts', starts), ('ends', ends), ('axes', axes))
    )
    axes = axes or list(range(len(starts)))
    steps = integers(steps) if steps is not None else [1] * len(starts)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps):
        index[axis] = slice(start, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(index)]


@op('Tile')
def tile(n, x, repeats, axis=None):
    if n.since < 6:
        return ops.repeat(x, int(axis.item()), int(repeats.item()))
    for dim, times in enumerate(integers(repeats)):
        x = ops.repeat(x, dim, times) if times else ops.slice(x, dim, stop=0)
    return x


@op('Trilu')
def trilu(n, x, k=None):
    part = ops.triu if n.upper else ops.tril
    k = int(k.item()) if k is not None else 0
    if x.dtype == 'bool':
        return ops.ne(part(ops.cast(x, 'u8'), k=k), full((), 0, dtype='u8'))
    return part(x, k=k) if x.size else x


@op('EyeLike')
def eye_like(n, x):
    return on_host(lambda a: np.eye(*x.shape, k=n.k), x, dtype=dtype(n.dtype) if n.dtype else x.dtype)


@op('Range')
def range_(n, start, limit, delta):
    values = [x.item() for x in (start, limit, delta)]
    count = max(0, int(np.ceil((values[1] - values[0]) / values[2])))
    return tensor(np.arange(count) * values[2] + values[0], start.dtype)


# ---- Pads ----


@op('Pad', mode=('constant', 'reflect', 'edge', 'wrap'))
def pad(n, x, pads=None, value=None, axes=None):
    pads = integers(pads) if pads is not None else n.pads if n.pads is not None else n.paddings
    axes = [a % x.ndim for a in integers(axes)] if axes is not None else list(range(x.ndim))
    number = value.item() if value is not None else getattr(n, 'value', None) or 0.0
    ends = [(0, 0)] * x.ndim
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :]):
        ends[axis] = before, after
    if _has_pad(n.mode, x, ends, number):
        named = {'value': float(number)} if n.mode == 'constant' else {}
        return _PADS[n.mode](x, pad=[p for pair in reversed(ends) for p in pair], **named)
    for axis, (before, after) in enumerate(ends):
        x = padded(x, axis, before, after, n.mode, number)
    return x


_PADS = {
    'constant': ops.constant_pad,
    'reflect': ops.reflection_pad,
    'edge': ops.replication_pad,
    'wrap': ops.circular_pad,
}


def _has_pad(mode, x, ends, number):
    """Whether an op of the library makes these pads. No op pads bools, or with an integer that is no double; in modes
    other than constant, each pad must be at least 0 and less than the size of the dim."""
    if mode == 'constant':
        return x.dtype != 'bool' and (x.dtype in FLOATS or float(number) == number)
    return all(0 <= p < size for pair, size in zip(ends, x.shape) for p in pair)


def padded(x, dim, before, after, mode='constant', value=0.0):
    """x with elements around it along a dim; a negative number removes some."""
    size = x.shape[dim]
    if before < 0 or after < 0:
        x = ops.slice(x, dim, start=max(0, -before), stop=size + min(0, after))
        return padded(x, dim, max(0, before), max(0, after), mode, value)
    if not before and not after:
        return x
    if mode == 'constant':
        if x.dtype == 'bool':
            return ops.ne(
                ops.pad(ops.cast(x, 'u8'), dim, before=before, after=after, value=float(value)), full((), 0, dtype='u8')
            )
        if x.dtype not in FLOATS and float(value) != value:
            parts = [tensor(value, x.dtype).expand(_resized(x, dim, k)) for k in (before, after)]
            return ops.concat([parts[0], x, parts[1]], dim)
        return ops.pad(x, dim, before=before, after=after, value=float(value))
    places = np.pad(np.arange(size), (before, after), mode)  # the modes have NumPy's names
    return ops.index_select(x, tensor(places), dim=dim)


def _resized(x, dim, size):
    return [size if d == dim else n for d, n in enumerate(x.shape)]


# ---- Blocks ----


@op('DepthToSpace')
def depth_to_space(n, x):
    b, c, h, w = x.shape
    s = n.blocksize
    if getattr(n, 'mode', 'DCR') == 'CRD':
        return (
            x.reshape([b, c // (s * s), s, s, h, w])
            .permute([0, 1, 4, 2, 5, 3])
            .reshape([b, c // (s * s), h * s, w * s])
        )
    return x.reshape([b, s, s, c // (s * s), h, w]).permute([0, 3, 4, 1, 5, 2]).reshape([b, c // (s * s), h * s, w * s])


@op('SpaceToDepth')
def space_to_depth(n, x):
    b, c, h, w = x.shape
    s = n.blocksize
    order = [0, 3, 5, 1, 2, 4] if getattr(n, 'mode', None) != 'CRD' else [0, 1, 3, 5, 2, 4]
    return x.reshape([b, c, h // s, s, w // s, s]).permute(order).reshape([b, c * s * s, h // s, w // s])


@op('ReverseSequence')
def reverse_sequence(n, x, lengths):
    """Reverses the first lengths[i] elements along time_axis of row i along batch_axis."""
    places = np.arange(x.shape[n.time_axis])
    rows = np.stack([np.where(places < k, k - 1 - places, places) for k in integers(lengths)])
    rows = rows if n.batch_axis < n.time_axis else rows.T
    index = tensor(rows).reshape([*rows.shape, *[1] * (x.ndim - 2)])
    return ops.gather(x, ops.contiguous(ops.expand(index, list(x.shape))), n.time_axis)


@op('Compress')
def compress(n, x, condition):
    chosen = tensor(np.flatnonzero(condition.numpy()))
    x, axis = (x.reshape([-1]), 0) if n.axis is None else (x, n.axis)
    return ops.index_select(x, chosen, dim=axis)
