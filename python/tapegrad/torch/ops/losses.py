"""Losses."""

import torch

import tapegrad as tg

from .table import maps, to

aten = torch.ops.aten
_REDUCTIONS = ('none', 'mean', 'sum')


@maps(aten.mse_loss.default)
def mse_loss(out, x, y, reduction=1):
    error = tg.ops.square(tg.ops.sub(to(x, out.dtype), to(y, out.dtype)))
    return (tg.ops.mean, tg.ops.sum)[reduction - 1](error) if reduction else error


def _of_one_shape(*tensors):
    shape = torch.broadcast_shapes(*(x.shape for x in tensors))
    return [x if x.shape == shape else tg.ops.expand(x, shape=shape) for x in tensors]


@maps(aten.huber_loss.default)
def huber_loss(out, x, y, reduction=1, delta=1.0):
    return tg.ops.huber(*_of_one_shape(x, y), delta=delta, reduction=_REDUCTIONS[reduction])


@maps(aten.smooth_l1_loss.default)
def smooth_l1_loss(out, x, y, reduction=1, beta=1.0):
    return tg.ops.smooth_l1(*_of_one_shape(x, y), beta=beta, reduction=_REDUCTIONS[reduction])


@maps(aten.binary_cross_entropy_with_logits.default)
def bce_with_logits(out, x, y, weight=None, pos_weight=None, reduction=1):
    return tg.ops.bce_with_logits(x, y, weight, pos_weight, reduction=_REDUCTIONS[reduction])


@maps(aten.nll_loss_forward.default, results=1)
def nll_loss(out, x, target, weight, reduction, ignore_index):
    return to(tg.ops.nll(x, target, weight, reduction=_REDUCTIONS[reduction], ignore_index=ignore_index), out[0].dtype)
