"""Ops that read and write elements at indices."""

import torch

import tapegrad as tg

from .table import FLOATS, maps, number, require, to

aten = torch.ops.aten


@maps(aten.gather.default)
def gather(out, x, dim, index, sparse_grad=False):
    return tg.ops.gather(x, index, dim=dim)


@maps(aten.index_select.default)
def index_select(out, x, dim, index):
    return tg.ops.index_select(x, index, dim=dim)


@maps(aten.embedding.default)
def embedding(out, weight, ids, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    require(not scale_grad_by_freq, 'scale_grad_by_freq')
    rows = tg.ops.embedding(weight, ids)
    if padding_idx < 0:
        return rows
    kept = tg.ops.unsqueeze(tg.ops.ne(ids, number(padding_idx, ids.dtype)), dim=-1)
    return tg.ops.where(kept, rows, tg.ops.detach(rows))  # PyTorch gives the row padding_idx no gradient


@maps(aten.scatter.src)
def scatter(out, x, dim, index, source):
    return tg.ops.scatter(x, index, _corner(source, index), dim=dim)


@maps(aten.scatter.value)
def scatter_value(out, x, dim, index, value):
    source = tg.ops.expand(number(value, out.dtype), shape=index.shape)
    return tg.ops.scatter(x, index, source, dim=dim)


@maps(aten.scatter_add.default)
def scatter_add(out, x, dim, index, source):
    return tg.ops.scatter_add(x, index, _corner(source, index), dim=dim)


_REDUCED = {
    'prod': tg.ops.scatter_prod,
    'mean': tg.ops.scatter_mean,
    'amax': tg.ops.scatter_max,
    'amin': tg.ops.scatter_min,
}


@maps(aten.scatter_reduce.two)
def scatter_reduce(out, x, dim, index, source, reduce, include_self=True):
    require(x.ndim, 'a scatter to a scalar')
    require(reduce != 'mean' or x.dtype in FLOATS, 'a mean of integers')
    source = _corner(source, index)
    if reduce != 'sum':
        return _REDUCED[reduce](x, index, source, dim=dim, include_self=include_self)
    start = x if include_self else scatter_value(out, x, dim, index, 0)
    return tg.ops.scatter_add(start, index, source, dim=dim)


def _corner(source, index):
    """The part of source that has elements of index."""
    for dim, size in enumerate(index.shape):
        if source.shape[dim] != size:
            source = tg.ops.slice(source, dim=dim, start=0, stop=size)
    return source


@maps(aten.index_add.default)
def index_add(out, x, dim, index, source, alpha=1):
    dim %= x.ndim
    source = source if alpha == 1 else tg.ops.scale(source, a=alpha)
    index = tg.ops.reshape(index, shape=[-1 if i == dim else 1 for i in range(x.ndim)])
    return tg.ops.scatter_add(x, tg.ops.contiguous(tg.ops.expand(index, shape=source.shape)), source, dim=dim)


# ---- Indexing by several tensors ----


@maps(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(out, x, indices):
    dims, tensors = _indices(indices)
    return tg.ops.index(x, tensors, dims=dims)


@maps(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(out, x, indices, values, accumulate=False):
    if _is_mask(indices) and not accumulate and not values.ndim:
        mask = indices[0]
        mask = tg.ops.reshape(mask, shape=(*mask.shape, *[1] * (x.ndim - mask.ndim)))
        return tg.ops.where(mask, to(values, out.dtype), x)
    dims, tensors = _indices(indices)
    return tg.ops.index_put(x, to(values, out.dtype), tensors, dims=dims, accumulate=accumulate)


def _indices(indices):
    """The dims that are indexed, and their indices."""
    dims = [i for i, index in enumerate(indices) if index is not None]
    require(all(indices[i].dtype in ('i64', 'i32') for i in dims), 'an index of bools')
    return dims, [indices[i] for i in dims]


def _is_mask(indices):
    return len(indices) == 1 and indices[0] is not None and indices[0].dtype == 'bool'


@maps(aten.masked_scatter.default)
def masked_scatter(out, x, mask, source):
    return tg.ops.masked_scatter(x, mask, to(source, out.dtype))


@maps(aten._embedding_bag.default, aten._embedding_bag_forward_only.default, results=1)
def embedding_bag(
    out,
    weight,
    ids,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
):
    require(not scale_grad_by_freq, 'scale_grad_by_freq')
    require(mode < 2, 'the maxima of bags')
    return tg.ops.embedding_bag(
        weight,
        ids,
        to(offsets, 'i64'),
        per_sample_weights,
        mode=('sum', 'mean')[mode],
        ignore_index=padding_idx,
        include_last_offset=include_last_offset,
    )
