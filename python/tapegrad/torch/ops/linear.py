"""Matrix products."""

import torch

import tapegrad as tg

from .table import maps, number

aten = torch.ops.aten


@maps(aten.mm.default, aten.bmm.default, aten.matmul.default)
def matmul(out, a, b):
    return tg.ops.matmul(a, b)


@maps(aten.addmm.default, aten.baddbmm.default)
def addmm(out, x, a, b, beta=1, alpha=1):
    product = _scaled(tg.ops.matmul(a, b), alpha)
    return product if beta == 0 else tg.ops.add(product, _scaled(x, beta))


def _scaled(x, factor):
    return x if factor == 1 else tg.ops.mul(x, number(factor, x.dtype))


@maps(aten.mv.default)
def mv(out, a, x):
    return tg.ops.squeeze(tg.ops.matmul(a, tg.ops.unsqueeze(x, dim=1)), dim=1)


@maps(aten.dot.default)
def dot(out, a, b):
    return tg.ops.dot(a, b)


@maps(aten.linear.default)
def linear(out, x, w, b=None):
    return tg.ops.linear(x, w, b)
