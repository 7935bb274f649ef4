"""Reductions over dims, sums along a dim, and softmax."""

import numpy as np

from .. import ops
from ..tensor import tensor
from .dtypes import FLOATS, integers, on_host
from .registry import op


def axes_of(n, x, axes):
    """The dims to reduce: an input in newer versions, an attribute in older ones. If none is given, all dims, or no dim
    with noop_with_empty_axes."""
    given = integers(axes) if axes is not None else getattr(n, 'axes', None)
    if not given:
        return [] if getattr(n, 'noop_with_empty_axes', 0) else list(range(x.ndim))
    return [axis % x.ndim for axis in given]


def _sum(x, dims, keep):
    return ops.sum(x, dims=dims, keepdim=keep)


def _of_floats(reduce):
    """A reduction that is no integer for integers: they are reduced in float64."""
    return lambda x, dims, keep: reduce(x if x.dtype in FLOATS else ops.cast(x, 'f64'), dims, keep)


def _extreme(reduce, of_bools, of_none):
    """The greatest or least element. of_none(dtype) is that of no elements."""

    def run(x, dims, keep):
        if x.dtype == 'bool':
            return of_bools(x, dims=dims, keepdim=keep)
        if not x.size:
            return on_host(lambda a: np.full(a.sum(axis=tuple(dims), keepdims=keep).shape, of_none(a.dtype)), x)
        return reduce(x, dims=dims, keepdim=keep)

    return run


def _least(dtype):
    return -np.inf if dtype.kind == 'f' else np.iinfo(dtype).min


def _greatest(dtype):
    return np.inf if dtype.kind == 'f' else np.iinfo(dtype).max


def _log_sum_exp(x, dims, keep):
    return ops.logsumexp(x, dims=dims, keepdim=keep) if x.size else ops.log(ops.sum(x, dims=dims, keepdim=keep))


REDUCTIONS = {
    'ReduceSum': _sum,
    'ReduceMean': _of_floats(lambda x, dims, keep: ops.mean(x, dims=dims, keepdim=keep)),
    'ReduceMax': _extreme(ops.max, ops.any, _least),
    'ReduceMin': _extreme(ops.min, ops.all, _greatest),
    'ReduceProd': lambda x, dims, keep: ops.prod(x, dims=dims, keepdim=keep),
    'ReduceL1': lambda x, dims, keep: _sum(ops.abs(x), dims, keep),
    'ReduceL2': _of_floats(lambda x, dims, keep: ops.sqrt(_sum(x * x, dims, keep))),
    'ReduceSumSquare': lambda x, dims, keep: _sum(x * x, dims, keep),
    'ReduceLogSum': _of_floats(lambda x, dims, keep: ops.log(_sum(x, dims, keep))),
    'ReduceLogSumExp': _of_floats(_log_sum_exp),
}


def _as(x, y):
    """y in the dtype of x: the library's sums of integers are i64 or u64, but ONNX's have the dtype of the input."""
    return y if y.dtype == x.dtype else ops.cast(y, x.dtype)


def _enter(name, fn):
    @op(name)
    def reduction(n, x, axes=None):
        dims = axes_of(n, x, axes)
        if not dims and getattr(n, 'noop_with_empty_axes', 0):
            return _as(x, fn(x.unsqueeze(0), [0], False))
        return _as(x, fn(x, dims, bool(n.keepdims)))


for _name, _fn in REDUCTIONS.items():
    _enter(_name, _fn)


@op('ArgMax', 'ArgMin')
def arg_extreme(n, x):
    find = ops.argmax if n.op == 'ArgMax' else ops.argmin
    if not getattr(n, 'select_last_index', 0):
        return find(x, n.axis, keepdim=bool(n.keepdims))
    last = find(ops.flip(x, [n.axis]), n.axis, keepdim=bool(n.keepdims))
    return tensor(x.shape[n.axis] - 1, 'i64') - last


@op('CumSum', 'CumProd')
def cumulative(n, x, axis):
    dim = int(axis.item()) % x.ndim
    x = ops.flip(x, [dim]) if n.reverse else x
    if n.exclusive:
        x = ops.slice(ops.pad(x, dim, before=1, value=float(n.op == 'CumProd')), dim, stop=x.shape[dim])
    y = ops.cumsum(x, dim) if n.op == 'CumSum' else ops.cumprod(x, dim)
    y = _as(x, y)
    return ops.flip(y, [dim]) if n.reverse else y


# ---- Softmax ----


def _rows(n, fn, x):
    """fn along the dim axis. Before version 13, all dims from axis on are one."""
    if n.since >= 13:
        return fn(x, n.axis)
    axis = n.axis % x.ndim
    return fn(x.reshape([*x.shape[:axis], -1]), axis).reshape(x.shape)


@op('Softmax')
def softmax(n, x):
    return _rows(n, ops.softmax, x)


@op('LogSoftmax')
def log_softmax(n, x):
    return _rows(n, ops.log_softmax, x)


@op('Hardmax')
def hardmax(n, x):
    def rows(x, dim):
        places = ops.one_hot(ops.argmax(x, dim), classes=x.shape[dim], dtype=x.dtype)
        return ops.permute(places, moved(x.ndim, x.ndim - 1, dim % x.ndim))

    return _rows(n, rows, x)


def moved(ndim, source, to):
    """The order of dims in which one is moved to another place."""
    order = [d for d in range(ndim) if d != source]
    order.insert(to, source)
    return order
