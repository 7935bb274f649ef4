"""Ops that compute each element on its own."""

import math

import torch

import tapegrad as tg

from .table import FLOATS, common, maps, number, operand, require, to

aten = torch.ops.aten

# ---- One operand ----

_SAME = (
    'neg abs exp log sqrt rsqrt reciprocal sin cos tanh sigmoid erf tan asin acos atan sinh cosh log1p expm1 sign '
    'floor ceil round relu silu square erfc asinh acosh atanh log2 log10 exp2 hardsigmoid hardswish mish'
).split()


def _same(name):
    op = getattr(tg.ops, name)

    @maps(getattr(aten, name).default)
    def unary(out, x):
        return op(to(x, out.dtype))


for _name in _SAME:
    _same(_name)


@maps(aten.trunc.default)
def trunc(out, x):
    return tg.ops.trunc(x) if x.dtype in FLOATS else x


@maps(aten.isnan.default)
def isnan(out, x):
    return tg.ops.isnan(x)


@maps(aten.isinf.default)
def isinf(out, x):
    return tg.ops.isinf(x)


@maps(aten.sinc.default)
def sinc(out, x):
    """sin(pi x) / (pi x). At 0 it is 1, and its derivative is 0."""
    x = to(x, out.dtype)
    at_zero = tg.ops.eq(x, number(0, out.dtype))
    angle = tg.ops.scale(tg.ops.masked_fill(x, at_zero, value=1.0), a=math.pi)
    return tg.ops.masked_fill(tg.ops.div(tg.ops.sin(angle), angle), at_zero, value=1.0)


@maps(aten.gelu.default)
def gelu(out, x, approximate='none'):
    return tg.ops.gelu_tanh(x) if approximate == 'tanh' else tg.ops.gelu(x)


@maps(aten.leaky_relu.default)
def leaky_relu(out, x, negative_slope=0.01):
    return tg.ops.leaky_relu(x, slope=negative_slope)


@maps(aten.elu.default)
def elu(out, x, alpha=1, scale=1, input_scale=1):
    if scale == input_scale == 1:
        return tg.ops.elu(x, alpha=alpha)
    below = tg.ops.scale(
        tg.ops.expm1(tg.ops.scale(tg.ops.minimum(x, number(0, out.dtype)), a=input_scale)), a=alpha * scale
    )
    return tg.ops.where(tg.ops.gt(x, number(0, out.dtype)), tg.ops.scale(x, a=scale), below)


@maps(aten.softplus.default)
def softplus(out, x, beta=1, threshold=20):
    return tg.ops.softplus(x, beta=beta, threshold=threshold)


@maps(aten.clamp.default, aten.clamp_min.default, aten.hardtanh.default)
def clamp(out, x, min=None, max=None):
    """As in PyTorch no gradient passes at a bound; in tg.ops.clamp it does."""
    x = to(x, out.dtype)
    if out.dtype in FLOATS:
        lo, hi = -math.inf if min is None else min, math.inf if max is None else max
        require(lo <= hi, 'a lower bound above the upper one')
        return tg.ops.hardtanh(x, lo=lo, hi=hi)
    x = x if min is None else tg.ops.maximum(x, number(min, out.dtype))
    return x if max is None else tg.ops.minimum(x, number(max, out.dtype))


@maps(aten.clamp_max.default)
def clamp_max(out, x, max):
    return clamp(out, x, None, max)


@maps(aten.clamp.Tensor)
def clamp_tensor(out, x, min=None, max=None):
    x = to(x, out.dtype)
    x = x if min is None else tg.ops.maximum(x, to(min, out.dtype))
    return x if max is None else tg.ops.minimum(x, to(max, out.dtype))


# ---- Two operands ----


@maps(aten.add.Tensor, aten.add.Scalar)
def add(out, a, b, alpha=1):
    return _sum(out, a, b, alpha)


@maps(aten.sub.Tensor, aten.sub.Scalar)
def sub(out, a, b, alpha=1):
    if isinstance(b, tg.Tensor) and alpha == 1:
        return tg.ops.sub(operand(a, out.dtype), to(b, out.dtype))
    return _sum(out, a, b, -alpha)


def _sum(out, a, b, factor):
    """a + factor * b."""
    a = operand(a, out.dtype)
    if not isinstance(b, tg.Tensor):
        floats = out.dtype in FLOATS
        return tg.ops.add_scalar(a, b=factor * b) if floats else tg.ops.add(a, number(factor * b, out.dtype))
    b = to(b, out.dtype)
    return tg.ops.add(a, b if factor == 1 else _times(b, factor, out.dtype))


def _times(x, factor, dtype):
    return tg.ops.scale(x, a=factor) if dtype in FLOATS else tg.ops.mul(x, number(factor, dtype))


@maps(aten.mul.Tensor, aten.mul.Scalar)
def mul(out, a, b):
    if out.dtype == 'bool':
        return tg.ops.where(a, operand(b, 'bool'), a)
    if not isinstance(b, tg.Tensor):
        return _times(to(a, out.dtype), b, out.dtype)
    return tg.ops.mul(operand(a, out.dtype), to(b, out.dtype))


@maps(aten.div.Tensor, aten.div.Scalar)
def div(out, a, b):
    return tg.ops.div(operand(a, out.dtype), operand(b, out.dtype))


@maps(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(out, a, b, rounding_mode=None):
    op = {'floor': tg.ops.floor_divide, 'trunc': tg.ops.trunc_divide, None: tg.ops.div}[rounding_mode]
    return op(operand(a, out.dtype), operand(b, out.dtype))


@maps(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(out, a, b):
    return div_mode(out, a, b, 'floor')


@maps(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(out, a, b):
    return tg.ops.remainder(operand(a, out.dtype), operand(b, out.dtype))


@maps(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(out, a, b):
    require(out.dtype in FLOATS, 'fmod of integers')
    return tg.ops.fmod(operand(a, out.dtype), operand(b, out.dtype))


@maps(aten.pow.Tensor_Scalar)
def pow_scalar(out, x, exponent):
    x = to(x, out.dtype)
    if exponent == 2:
        return tg.ops.square(x)
    require(out.dtype in FLOATS, 'a power of integers')
    return tg.ops.pow_scalar(x, p=exponent)


@maps(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_tensor(out, a, b):
    require(out.dtype in FLOATS, 'a power of integers')
    return tg.ops.pow(operand(a, out.dtype), operand(b, out.dtype))


def _binary(overload, op):
    @maps(overload)
    def binary(out, a, b):
        return op(operand(a, out.dtype), operand(b, out.dtype))


_binary(aten.maximum.default, tg.ops.maximum)
_binary(aten.minimum.default, tg.ops.minimum)
_binary(aten.atan2.default, tg.ops.atan2)


@maps(aten.lerp.Scalar)
def lerp_scalar(out, a, b, weight):
    return tg.ops.lerp_scalar(a, b, w=weight)


@maps(aten.lerp.Tensor)
def lerp(out, a, b, weight):
    return tg.ops.lerp(a, b, to(weight, out.dtype))


# ---- Comparisons and choices ----


def _comparison(name):
    op = getattr(tg.ops, name)
    packet = getattr(aten, name)

    @maps(packet.Tensor, packet.Scalar)
    def compare(out, a, b):
        dtype = common(a, b)
        return op(operand(a, dtype), operand(b, dtype))


for _name in ('eq', 'ne', 'lt', 'le', 'gt', 'ge'):
    _comparison(_name)


@maps(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(out, condition, a, b):
    return tg.ops.where(truth(condition), operand(a, out.dtype), operand(b, out.dtype))


@maps(aten.masked_fill.Scalar)
def masked_fill(out, x, mask, value):
    if out.dtype not in FLOATS:  # the op takes a double, which has not all integers
        return tg.ops.where(mask, number(value, out.dtype), to(x, out.dtype))
    return tg.ops.masked_fill(to(x, out.dtype), mask, value=float(value))


@maps(aten.masked_fill.Tensor)
def masked_fill_tensor(out, x, mask, value):
    return tg.ops.where(mask, to(value, out.dtype), to(x, out.dtype))


def truth(x):
    """Whether each element is not 0."""
    return x if x.dtype == 'bool' else tg.ops.ne(x, number(0, x.dtype))


@maps(aten.logical_not.default)
def logical_not(out, x):
    return tg.ops.logical_not(x)


@maps(aten.bitwise_not.default)
def bitwise_not(out, x):
    return tg.ops.bitwise_not(x)


def _logical(name):
    logical_op, bitwise_op = (getattr(tg.ops, kind + name) for kind in ('logical_', 'bitwise_'))
    bitwise_packet = getattr(aten, 'bitwise_' + name)

    @maps(getattr(aten, 'logical_' + name).default)
    def logical(out, a, b):
        return logical_op(truth(a), truth(b))

    @maps(bitwise_packet.Tensor, bitwise_packet.Scalar)
    def bitwise(out, a, b):
        return bitwise_op(operand(a, out.dtype), operand(b, out.dtype))


for _name in ('and', 'or', 'xor'):
    _logical(_name)


# ---- Copies and constants ----


@maps(
    aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.contiguous.default
)
def same(out, x, memory_format=None):
    return x


@maps(aten._to_copy.default)
def to_copy(out, x, **_):
    return to(x, out.dtype)


@maps(aten.copy.default)
def copy(out, x, source, non_blocking=False):
    source = to(source, out.dtype)
    return source if source.shape == out.shape else tg.ops.expand(source, shape=out.shape)


@maps(aten.fill.Scalar, aten.full_like.default)
def full_like(out, x, value, **_):
    return filled(out, value)


@maps(aten.zeros_like.default, aten.empty_like.default, aten.new_empty_strided.default)
def zeros_like(out, x, *_, **__):
    return filled(out, 0)


@maps(aten.ones_like.default)
def ones_like(out, x, **_):
    return filled(out, 1)


def filled(out, value):
    return tg.ops.expand(number(value, out.dtype), shape=out.shape)
