"""Pools: the greatest, mean or norm of windows."""

import functools
import math

import numpy as np

from .. import ops
from ..tensor import tensor
from .dtypes import FLOATS, integers
from .registry import op
from .shape import padded
from .windows import Windows


@op('MaxPool')
def max_pool(n, x):
    if x.dtype not in FLOATS:  # 8-bit integers, which float32 has exactly
        y = max_pool(n, ops.cast(x, 'f32'))
        return ops.cast(y, x.dtype) if n.n_out == 1 else (ops.cast(y[0], x.dtype), y[1])
    w = Windows(n, x.shape[2:], n.kernel_shape)
    if n.n_out == 1:
        return _pooled(ops.max_pool2d, ops.max_pool3d, w, x, -math.inf)
    y, index = _pooled(ops.max_pool2d_with_indices, ops.max_pool3d_with_indices, w, x, -math.inf)
    return y, _places(n, w, index)


def _pooled(images, volumes, w, x, value, **options):
    """An op for windows over two dims or over three. Pads that the ops cannot make are filled with value."""
    for d, (low, high) in enumerate(w.extra()):
        x = padded(x, 2 + d, low, high, value=value)
    line = len(w.kernel) == 1
    kernel, strides, padding, dilations = (
        ([one] if line else []) + values
        for one, values in ((1, w.kernel), (1, w.strides), (0, w.padding()), (1, w.dilations))
    )
    op = volumes if len(kernel) == 3 else images
    sizes = dict(zip(('d', 'h', 'w')[-len(kernel) :], kernel))
    options.update(stride=strides, padding=padding, ceil_mode=w.ceil and w.simple())
    if any(d > 1 for d in dilations):  # average pools have none
        options['dilation'] = dilations
    found = op(x.unsqueeze(2) if line else x, **sizes, **options)
    if not line:
        return found
    return tuple(y.squeeze(2) for y in found) if isinstance(found, tuple) else found.squeeze(2)


def _places(n, w, index):
    """Positions in the whole of x, of positions in the channels of what is pooled. With storage_order they are counted
    along the first spatial dim first."""
    extra = w.extra()
    sizes = [size + low + high for size, (low, high) in zip(w.sizes, extra)]
    places = [p - low for p, (low, _) in zip(np.unravel_index(index.numpy(), sizes), extra)]
    flat = np.ravel_multi_index(places, w.sizes, 'clip', 'F' if n.storage_order else 'C')
    images = np.arange(flat.shape[0] * flat.shape[1]).reshape([*flat.shape[:2], *[1] * len(w.sizes)])
    return tensor(flat + images * int(np.prod(w.sizes)))


@op('AveragePool')
def average_pool(n, x):
    w = Windows(n, x.shape[2:], n.kernel_shape)
    include, dilated = getattr(n, 'count_include_pad', 0), any(d > 1 for d in w.dilations)
    if w.simple() and not dilated:
        return _pooled(ops.avg_pool2d, ops.avg_pool3d, w, x, 0.0, exclude_padding=not include)

    def counts(d, places):
        low, high = (-w.before[d], w.sizes[d] + w.after[d]) if include else (0, w.sizes[d])
        return (places >= low) & (places < high)

    held = functools.reduce(np.logical_and, w.over(counts)).sum(-1)
    if dilated:
        return ops.sum(w.taken(x, 0.0), dims=[-1]) / tensor(held, x.dtype)
    return _pooled(ops.avg_pool2d, ops.avg_pool3d, w, x, 0.0, divisor=1) / tensor(held, x.dtype)


@op('LpPool')
def lp_pool(n, x):
    w = Windows(n, x.shape[2:], n.kernel_shape)
    return ops.norm(w.taken(x, 0.0), p=float(n.p), dims=[-1])


def _spatial(x):
    return list(range(2, x.ndim))


@op('GlobalAveragePool')
def global_average_pool(n, x):
    return ops.mean(x, dims=_spatial(x), keepdim=True)


@op('GlobalMaxPool')
def global_max_pool(n, x):
    return ops.max(x, dims=_spatial(x), keepdim=True)


@op('GlobalLpPool')
def global_lp_pool(n, x):
    return ops.norm(x, p=float(n.p), dims=_spatial(x), keepdim=True)


@op('MaxUnpool')
def max_unpool(n, x, places, shape=None):
    """Puts the elements where MaxPool has found them, with zeros elsewhere."""
    small = [
        (size - 1) * s - b - a + k
        for size, s, b, a, k in zip(x.shape[2:], n.strides or [1] * len(n.kernel_shape), *_halves(n), n.kernel_shape)
    ]
    y = ops.full(shape=[*x.shape[:2], *small], value=0.0, dtype=x.dtype).reshape([-1])
    y = ops.scatter(y, places.reshape([-1]), x.reshape([-1]), 0).reshape([*x.shape[:2], *small])
    for dim, size in enumerate(integers(shape) if shape is not None else y.shape):
        y = ops.pad(y, dim, after=size - y.shape[dim]) if size > y.shape[dim] else y
    return y


def _halves(n):
    k = len(n.kernel_shape)
    pads = n.pads or [0] * 2 * k
    return pads[:k], pads[k:]
