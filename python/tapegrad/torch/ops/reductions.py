"""Ops that reduce dims, or that run along one."""

import torch

import tapegrad as tg

from .pointwise import truth
from .table import FLOATS, maps, require, to

aten = torch.ops.aten


def _dims(dim):
    """The dims argument of an op, of a dim, a list of them, or all of them."""
    if isinstance(dim, int):
        return [dim]
    return list(dim) if dim else 'all'


@maps(aten.sum.default)
def sum_all(out, x, dtype=None):
    return tg.ops.sum(x if out.dtype == 'i64' else to(x, out.dtype))


@maps(aten.sum.dim_IntList)
def sum_dims(out, x, dim=None, keepdim=False, dtype=None):
    return tg.ops.sum(x if out.dtype == 'i64' else to(x, out.dtype), dims=_dims(dim), keepdim=keepdim)


@maps(aten.mean.default)
def mean_all(out, x, dtype=None):
    return tg.ops.mean(to(x, out.dtype))


@maps(aten.mean.dim)
def mean_dims(out, x, dim=None, keepdim=False, dtype=None):
    return tg.ops.mean(to(x, out.dtype), dims=_dims(dim), keepdim=keepdim)


@maps(aten.var.correction)
def var(out, x, dim=None, correction=None, keepdim=False):
    return tg.ops.var(x, dims=_dims(dim), correction=_correction(correction), keepdim=keepdim)


@maps(aten.std.correction)
def std(out, x, dim=None, correction=None, keepdim=False):
    return tg.ops.std(x, dims=_dims(dim), correction=_correction(correction), keepdim=keepdim)


@maps(aten.var_mean.correction)
def var_mean(out, x, dim=None, correction=None, keepdim=False):
    return var(out, x, dim, correction, keepdim), tg.ops.mean(x, dims=_dims(dim), keepdim=keepdim)


def _correction(correction):
    correction = 1 if correction is None else correction
    require(correction == int(correction), 'a correction that is no integer')
    return int(correction)


@maps(aten.prod.default)
def prod_all(out, x, dtype=None):
    return tg.ops.prod(to(x, out.dtype))


@maps(aten.prod.dim_int)
def prod(out, x, dim, keepdim=False, dtype=None):
    return tg.ops.prod(to(x, out.dtype), dims=[dim], keepdim=keepdim)


@maps(aten.amax.default)
def amax(out, x, dim=(), keepdim=False):
    return tg.ops.max(x, dims=_dims(dim), keepdim=keepdim)


@maps(aten.amin.default)
def amin(out, x, dim=(), keepdim=False):
    return tg.ops.min(x, dims=_dims(dim), keepdim=keepdim)


@maps(aten.max.default)
def max_all(out, x):
    return tg.ops.max(x)


@maps(aten.min.default)
def min_all(out, x):
    return tg.ops.min(x)


def _extreme(overload, position):
    """The extreme element along a dim and where it is. Its gradient goes to that one place, even if others are
    equal."""

    @maps(overload)
    def extreme(out, x, dim, keepdim=False):
        if not x.ndim:
            return x, tg.ops.full(dtype='i64', shape=(), value=0)
        index = position(x, dim=dim, keepdim=True)
        value = tg.ops.gather(x, index, dim=dim)
        return (value, index) if keepdim else (tg.ops.squeeze(value, dim=dim), tg.ops.squeeze(index, dim=dim))


_extreme(aten.max.dim, tg.ops.argmax)
_extreme(aten.min.dim, tg.ops.argmin)


def _position(overload, op):
    @maps(overload)
    def position(out, x, dim=None, keepdim=False):
        if dim is None:
            return tg.ops.reshape(op(tg.ops.reshape(x, shape=(-1,)), dim=0), shape=out.shape)
        return op(x, dim=dim, keepdim=keepdim)


_position(aten.argmax.default, tg.ops.argmax)
_position(aten.argmin.default, tg.ops.argmin)


def _truth(packet, op):
    @maps(packet.default)
    def over_all(out, x):
        return to(op(truth(x)), out.dtype)  # u8 for u8

    @maps(packet.dim, packet.dims)
    def over_dims(out, x, dim=None, keepdim=False):
        return to(op(truth(x), dims=_dims(dim), keepdim=keepdim), out.dtype)


_truth(aten.any, tg.ops.any)
_truth(aten.all, tg.ops.all)


@maps(aten.logsumexp.default)
def logsumexp(out, x, dim, keepdim=False):
    return tg.ops.logsumexp(to(x, out.dtype), dims=_dims(dim), keepdim=keepdim)


@maps(aten.linalg_vector_norm.default)
def vector_norm(out, x, ord=2, dim=None, keepdim=False, dtype=None):
    return tg.ops.norm(to(x, out.dtype), p=ord, dims=_dims(dim), keepdim=keepdim)


@maps(aten.cumsum.default)
def cumsum(out, x, dim, dtype=None):
    return tg.ops.cumsum(x if out.dtype == 'i64' else to(x, out.dtype), dim=dim) if x.ndim else to(x, out.dtype)


@maps(aten.cumprod.default)
def cumprod(out, x, dim, dtype=None):
    return tg.ops.cumprod(x if out.dtype == 'i64' else to(x, out.dtype), dim=dim) if x.ndim else to(x, out.dtype)


def _running(overload, op):
    @maps(overload)
    def running(out, x, dim):
        return op(x, dim=dim) if x.ndim else (x, tg.ops.full(dtype='i64', shape=(), value=0))


_running(aten.cummax.default, tg.ops.cummax)
_running(aten.cummin.default, tg.ops.cummin)


@maps(aten.sort.default)
def sort(out, x, dim=-1, descending=False):
    return tg.ops.sort(x, dim=dim, descending=descending)


@maps(aten.sort.stable)
def sort_stable(out, x, stable=None, dim=-1, descending=False):
    return tg.ops.sort(x, dim=dim, descending=descending)


@maps(aten.argsort.default, aten.argsort.stable)
def argsort(out, x, dim=-1, descending=False, stable=None):
    return tg.ops.sort(x, dim=dim, descending=descending)[1]


@maps(aten.topk.default)
def topk(out, x, k, dim=-1, largest=True, sorted=True):
    return tg.ops.topk(x, k=k, dim=dim, largest=largest)


@maps(aten.median.dim)
def median(out, x, dim=-1, keepdim=False):
    require(x.dtype in FLOATS, 'the median of integers')
    return tg.ops.median(x, dim=dim, keepdim=keepdim)


@maps(aten._softmax.default)
def softmax(out, x, dim, half_to_float=False):
    return tg.ops.softmax(to(x, out.dtype), dim=dim)


@maps(aten._log_softmax.default)
def log_softmax(out, x, dim, half_to_float=False):
    return tg.ops.log_softmax(to(x, out.dtype), dim=dim)


# ---- Distances between rows ----


@maps(aten._cdist_forward.default)
def cdist(out, a, b, p, compute_mode=None):
    return tg.ops.cdist(a, b, p=p)


@maps(aten._pdist_forward.default)
def pdist(out, x, p=2.0):
    n = x.shape[0]
    later = tg.ops.triu(tg.ops.full(dtype='f32', shape=(n, n), value=1), k=1)
    pairs = tg.ops.nonzero(tg.ops.reshape(later, shape=(-1,)), count=n * (n - 1) // 2)
    distances = tg.ops.reshape(tg.ops.cdist(x, x, p=p), shape=(-1,))
    return tg.ops.index_select(distances, tg.ops.reshape(pairs, shape=(-1,)), dim=0)
