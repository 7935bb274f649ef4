"""Ops by position: parts that tensors of indices name. Negative indices count from the end."""

import numpy as np

from .. import ops
from ..tensor import tensor
from .dtypes import on_host
from .registry import op


def counted(index, size):
    """Indices from the start, of i64."""
    index = ops.cast(index, 'i64')
    return ops.where(index < 0, index + size, index)


@op('Gather')
def gather(n, x, index):
    dim = n.axis % x.ndim
    rows = ops.index_select(x, counted(index, x.shape[dim]).reshape([-1]), dim=dim)
    return ops.reshape(rows, [*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]])


@op('GatherElements')
def gather_elements(n, x, index):
    return ops.gather(x, counted(index, x.shape[n.axis]), n.axis)


@op('Scatter', 'ScatterElements', reduction=(None, 'none', 'add', 'mul', 'max', 'min'))
def scatter_elements(n, x, index, updates):
    index = counted(index, x.shape[n.axis])
    return scattered(x, index, updates, n.axis, getattr(n, 'reduction', None))


def scattered(x, index, updates, dim, reduction):
    if reduction in (None, 'none'):
        return ops.scatter(x, index, updates, dim)
    if reduction == 'add':
        return ops.scatter_add(x, index, updates, dim)
    combine = {'mul': ops.mul, 'max': ops.maximum, 'min': ops.minimum}[reduction]
    for k in range(index.shape[dim]):  # one layer at a time, in which no place occurs twice
        layer = ops.slice(index, dim, start=k, stop=k + 1)
        old = ops.gather(x, layer, dim)
        x = ops.scatter(x, layer, combine(old, ops.slice(updates, dim, start=k, stop=k + 1)), dim)
    return x


def flat_places(x, index, batch_dims=0):
    """For indices whose last dim names the first dims of x (after the batch): positions of rows of x with these dims as
    one."""
    k = index.shape[-1]
    sizes = x.shape[batch_dims : batch_dims + k]
    steps = [int(np.prod(sizes[i + 1 :])) for i in range(k)]
    place = sum((counted(ops.select(index, -1, i), sizes[i]) * steps[i] for i in range(k)), tensor(0, 'i64'))
    for b in range(batch_dims):
        here = ops.arange(dtype='i64', stop=x.shape[b]) * int(np.prod(x.shape[b + 1 : batch_dims + k]))
        place = place + here.reshape([*[1] * b, -1, *[1] * (place.ndim - b - 1)])
    return place


@op('GatherND')
def gather_nd(n, x, index):
    b, k = getattr(n, 'batch_dims', 0) or 0, index.shape[-1]
    place = flat_places(x, index, b)
    tail = x.shape[b + k :]
    rows = ops.index_select(x.reshape([int(np.prod(x.shape[: b + k])), *tail]), place.reshape([-1]), dim=0)
    return rows.reshape([*index.shape[:-1], *tail])


@op('ScatterND', reduction=(None, 'none', 'add', 'mul', 'max', 'min'))
def scatter_nd(n, x, index, updates):
    k = index.shape[-1]
    tail = int(np.prod(x.shape[k:]))
    rows = x.reshape([int(np.prod(x.shape[:k])), tail])
    place = flat_places(x, index).reshape([-1, 1])
    place = ops.contiguous(ops.expand(place, [place.shape[0], tail]))
    return scattered(rows, place, updates.reshape([place.shape[0], tail]), 0, getattr(n, 'reduction', None)).reshape(
        x.shape
    )


@op('OneHot')
def one_hot(n, index, depth, values):
    depth = int(depth.item())
    axis = n.axis + index.ndim + 1 if n.axis < 0 else n.axis
    index = ops.cast(index, 'i64').unsqueeze(axis)
    classes = ops.arange(dtype='i64', stop=depth).reshape([depth, *[1] * (index.ndim - axis - 1)])
    off, on = ops.select(values, 0, 0), ops.select(values, 0, 1)
    return ops.where(ops.eq(counted(index, depth), classes), on, off)


@op('TopK')
def top_k(n, x, k=None):
    k = int(k.item()) if k is not None else n.k
    values, places = ops.topk(x, k, dim=n.axis, largest=bool(getattr(n, 'largest', 1)))
    return values, places


@op('NonZero')
def non_zero(n, x):
    return on_host(lambda a: np.array(np.nonzero(a)), x, dtype='i64')


@op('Unique')
def unique(n, x):
    """The different elements, or slices along axis, sorted or in the order in which they occur."""
    _, first, back, counts = np.unique(
        x.numpy(), return_index=True, return_inverse=True, return_counts=True, axis=n.axis
    )
    order = np.arange(len(first)) if n.sorted else np.argsort(first)
    rank = np.argsort(order)
    source, axis = (x.reshape([-1]), 0) if n.axis is None else (x, n.axis)
    y = ops.index_select(source, tensor(first[order]), dim=axis)
    return y, tensor(first[order]), tensor(rank[back.reshape(-1)]), tensor(counts[order])


@op('TensorScatter')
def tensor_scatter(n, past, update, start=None):
    """Writes update into a cache along axis, at start of each row of the batch; circular wraps around."""
    axis = n.axis % past.ndim
    count, size = update.shape[axis], past.shape[axis]
    starts = start.numpy() if start is not None else np.zeros(past.shape[0], 'int64')
    places = starts[:, None] + np.arange(count)
    places = places % size if n.mode == 'circular' else places
    index = tensor(places).reshape([past.shape[0], *[1] * (axis - 1), count, *[1] * (past.ndim - axis - 1)])
    return ops.scatter(past, ops.contiguous(ops.expand(index, list(update.shape))), update, axis)


@op('ArrayFeatureExtractor', domain='ai.onnx.ml')
def array_features(n, x, places):
    return ops.index_select(x, ops.cast(places, 'i64').reshape([-1]), dim=x.ndim - 1)


@op('Binarizer', domain='ai.onnx.ml')
def binarizer(n, x):
    return ops.cast(ops.cast(x, 'f64') > n.threshold, x.dtype)
