"""Pools: the greatest, mean or norm of windows."""

import functools
import math

import numpy as np

from .. import ops
from ..tensor import tensor
from .dtypes import FLOATS, integers
from .registry import op
from .windows import Windows


@op('MaxPool')
def max_pool(n, x):
    w = Windows(n, x.shape[2:], n.kernel_shape)
    if (
        n.n_out == 1
        and len(w.kernel) == 2
        and w.symmetric()
        and not getattr(n, 'ceil_mode', 0)
        and x.dtype in FLOATS
        and all(2 * p <= k for p, k in zip(w.before, w.kernel))
    ):
        return ops.max_pool2d(x, h=w.kernel[0], w=w.kernel[1], stride=w.strides, padding=w.before, dilation=w.dilations)
    windows = w.taken(x, -math.inf if x.dtype in FLOATS else 0)
    y = ops.max(windows, dims=[-1])
    return y if n.n_out == 1 else (y, _places(n, w, x, windows))


def _places(n, w, x, windows):
    """Positions of the greatest elements in the whole of x. With storage_order they are counted along the first spatial
    dim first."""
    order = range(len(w.kernel)) if not n.storage_order else reversed(range(len(w.kernel)))
    each, flat = w.over(lambda d, places: places), 0
    for d in order:
        flat = flat * x.shape[2 + d] + each[d]
    best = ops.argmax(windows, -1).numpy()
    found = np.take_along_axis(np.broadcast_to(flat, windows.shape), best[..., None], -1)[..., 0]
    images = np.arange(x.shape[0] * x.shape[1]).reshape([*x.shape[:2], *[1] * len(w.kernel)])
    return tensor(found + images * int(np.prod(x.shape[2:])))


@op('AveragePool')
def average_pool(n, x):
    w = Windows(n, x.shape[2:], n.kernel_shape)
    include = getattr(n, 'count_include_pad', 0)

    def counts(d, places):
        low, high = (-w.before[d], w.sizes[d] + w.after[d]) if include else (0, w.sizes[d])
        return (places >= low) & (places < high)

    held = functools.reduce(np.logical_and, w.over(counts)).sum(-1)
    return ops.sum(w.taken(x, 0.0), dims=[-1]) / tensor(held, x.dtype)


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
