"""Ops that read and write elements at indices."""
import math

import torch

import tapegrad as tg

from .pointwise import truth
from .table import maps, number, operand, require, to

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
    if padding_idx < 0 or not weight.requires_grad:
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
    place = _Place(x, indices)
    taken = tg.ops.index_select(place.folded(x), place.flat(), dim=place.first)
    return tg.ops.reshape(taken, shape=out.shape)


@maps(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(out, x, indices, values, accumulate=False):
    if _is_mask(indices) and not accumulate and not values.ndim:
        mask = truth(indices[0])
        mask = tg.ops.reshape(mask, shape=(*mask.shape, *[1] * (x.ndim - mask.ndim)))
        return tg.ops.where(mask, operand(values, out.dtype), x)
    place = _Place(x, indices)
    folded, source, rows = place.folded(x), place.source(to(values, out.dtype)), place.flat()
    rows = tg.ops.reshape(rows, shape=[-1 if i == place.first else 1 for i in range(folded.ndim)])
    rows = tg.ops.contiguous(tg.ops.expand(rows, shape=source.shape))
    op = tg.ops.scatter_add if accumulate else tg.ops.scatter
    return place.unfolded(op(folded, rows, source, dim=place.first))


def _is_mask(indices):
    return len(indices) == 1 and indices[0] is not None and indices[0].dtype == 'bool'


class _Place:
    """Where x[indices] is. The indexed dims become one dim, `first`, and the indices one index along it. They come to the
    front first if they are not adjacent, as in PyTorch."""

    def __init__(self, x, indices):
        dims = [i for i, index in enumerate(indices) if index is not None]
        self.indices = [indices[i] for i in dims]
        require(all(i.dtype in ('i64', 'i32') for i in self.indices), 'an index of bools')
        adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
        others = [i for i in range(x.ndim) if i not in dims]
        self.order = None if adjacent else dims + others
        self.first = dims[0] if adjacent else 0
        self.sizes = [x.shape[i] for i in dims]
        self.shape = [x.shape[i] for i in self.order or range(x.ndim)]

    def folded(self, x):
        x = x if self.order is None else tg.ops.permute(x, order=self.order)
        end = self.first + len(self.sizes)
        return tg.ops.reshape(x, shape=[*self.shape[:self.first], math.prod(self.sizes), *self.shape[end:]])

    def unfolded(self, x):
        x = tg.ops.reshape(x, shape=self.shape)
        if self.order is None:
            return x
        return tg.ops.permute(x, order=[self.order.index(i) for i in range(len(self.order))])

    def flat(self):
        """The index along the folded dim, of one dim."""
        total = None
        for index, size in zip(self.indices, self.sizes):
            index = to(index, 'i64')
            zero = number(0, 'i64')
            index = tg.ops.where(tg.ops.lt(index, zero), tg.ops.add_scalar(index, b=size), index)
            total = index if total is None else tg.ops.add(tg.ops.mul(total, number(size, 'i64')), index)
        return tg.ops.reshape(total, shape=(-1,))

    def source(self, values):
        """The values that index_put writes, with one dim for the index."""
        places = torch.broadcast_shapes(*(i.shape for i in self.indices))
        before, after = self.shape[:self.first], self.shape[self.first + len(self.sizes):]
        values = tg.ops.expand(values, shape=[*before, *places, *after])
        return tg.ops.reshape(values, shape=[*before, math.prod(places), *after])
