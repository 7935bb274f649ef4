"""Ops that arrange elements."""

import torch

import tapegrad as tg

from .table import maps, to

aten = torch.ops.aten


@maps(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
)
def reshape(out, x, *_):
    return tg.ops.reshape(x, shape=out.shape)


@maps(aten.permute.default)
def permute(out, x, dims):
    return tg.ops.permute(x, order=dims) if dims else x


@maps(aten.transpose.int)
def transpose(out, x, dim0, dim1):
    return tg.ops.transpose(x, d0=dim0, d1=dim1)


@maps(aten.t.default)
def t(out, x):
    return tg.ops.transpose(x, d0=0, d1=1) if x.ndim == 2 else x


@maps(aten.expand.default)
def expand(out, x, size, implicit=False):
    return x if x.shape == out.shape else tg.ops.expand(x, shape=out.shape)


@maps(aten.slice.Tensor)
def slice_(out, x, dim=0, start=None, end=None, step=1):
    start, stop = _bounds(x.shape[dim], start, end)
    return (
        x
        if (start, stop, step) == (0, x.shape[dim], 1)
        else tg.ops.slice(x, dim=dim, start=start, stop=stop, step=step)
    )


def _bounds(size, start, end):
    """The first element of a slice and the one after its last, both counted from the front."""
    start, stop, _ = slice(start, end).indices(size)
    return start, max(start, stop)


@maps(aten.select.int)
def select(out, x, dim, index):
    return tg.ops.select(x, dim=dim, index=index)


@maps(aten.cat.default)
def cat(out, tensors, dim=0):
    parts = [to(x, out.dtype) for x in tensors if x.shape != (0,) or len(out.shape) == 1]
    return parts[0] if len(parts) == 1 else tg.ops.concat(parts, dim=dim)


@maps(aten.stack.default)
def stack(out, tensors, dim=0):
    return tg.ops.stack([to(x, out.dtype) for x in tensors], dim=dim)


@maps(aten.split.Tensor, aten.split_with_sizes.default)
def split(out, x, sizes, dim=0):
    return tg.ops.split(x, dim=dim, sizes=[part.shape[dim] for part in out])


@maps(aten.unbind.int)
def unbind(out, x, dim=0):
    return tuple(tg.ops.select(x, dim=dim, index=i) for i in range(x.shape[dim]))


@maps(aten.constant_pad_nd.default)
def constant_pad_nd(out, x, pad, value=0):
    for i in range(len(pad) // 2):
        x = _padded(x, x.ndim - 1 - i, pad[2 * i], pad[2 * i + 1], value)
    return x


def _padded(x, dim, before, after, value):
    """x with elements added at both ends of dim, or removed where a number is negative."""
    if min(before, after) < 0:
        x = tg.ops.slice(x, dim=dim, start=max(-before, 0), stop=x.shape[dim] - max(-after, 0))
    if max(before, after) > 0:
        x = tg.ops.pad(x, dim=dim, before=max(before, 0), after=max(after, 0), value=value)
    return x


def _padding(op, packets):
    @maps(*(packet.default for packet in packets))
    def pad(out, x, padding):
        return op(x, pad=padding)


_padding(tg.ops.reflection_pad, (aten.reflection_pad1d, aten.reflection_pad2d, aten.reflection_pad3d))
_padding(tg.ops.replication_pad, (aten.replication_pad1d, aten.replication_pad2d, aten.replication_pad3d))


@maps(aten.flip.default)
def flip(out, x, dims):
    return tg.ops.flip(x, dims=dims)


@maps(aten.roll.default)
def roll(out, x, shifts, dims=()):
    if not dims:
        flat = tg.ops.roll(tg.ops.reshape(x, shape=(-1,)), shift=shifts[0], dim=0)
        return tg.ops.reshape(flat, shape=out.shape)
    for shift, dim in zip(shifts, dims):
        x = tg.ops.roll(x, shift=shift, dim=dim)
    return x


@maps(aten.repeat.default)
def repeat(out, x, repeats):
    x = tg.ops.reshape(x, shape=[1] * (len(repeats) - x.ndim) + list(x.shape))
    for dim, times in enumerate(repeats):
        x = x if times == 1 else tg.ops.repeat(x, dim=dim, times=times)
    return x


@maps(aten.tril.default)
def tril(out, x, diagonal=0):
    return tg.ops.tril(x, k=diagonal)


@maps(aten.triu.default)
def triu(out, x, diagonal=0):
    return tg.ops.triu(x, k=diagonal)


@maps(aten.diagonal.default)
def diagonal(out, x, offset=0, dim1=0, dim2=1):
    return tg.ops.diagonal(x, k=offset, d0=dim1, d1=dim2)


@maps(aten.unfold.default)
def unfold(out, x, dimension, size, step):
    return tg.ops.unfold(x, dim=dimension, size=size, step=step)


@maps(aten.as_strided.default)
def as_strided(out, x, size, stride, offset=None):
    """trace.py has made x the tensor whose elements, in row-major order, are those of PyTorch's storage."""
    return tg.ops.as_strided(x, shape=size, stride=stride, offset=offset or 0)


@maps(aten.slice_scatter.default)
def slice_scatter(out, x, source, dim=0, start=None, end=None, step=1):
    start, stop = _bounds(x.shape[dim], start, end)
    return tg.ops.slice_scatter(x, to(source, out.dtype), dim=dim, start=start, stop=stop, step=step)


@maps(aten.select_scatter.default)
def select_scatter(out, x, source, dim, index):
    return tg.ops.select_scatter(x, to(source, out.dtype), dim=dim, index=index)
