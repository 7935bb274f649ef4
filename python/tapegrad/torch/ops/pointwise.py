"""Ops that compute each element on its own."""
import math

import torch

import tapegrad as tg

from .table import FLOATS, common, maps, number, operand, require, to

aten = torch.ops.aten

# ---- One operand ----

_SAME = ('neg abs exp log sqrt rsqrt reciprocal sin cos tanh sigmoid erf tan asin acos atan sinh cosh log1p expm1 sign floor ceil '
         'round relu silu square').split()


def _same(name):
    op = getattr(tg.ops, name)

    @maps(getattr(aten, name).default)
    def unary(out, x):
        return op(to(x, out.dtype))


for _name in _SAME:
    _same(_name)


@maps(aten.exp2.default)
def exp2(out, x):
    return tg.ops.exp(tg.ops.scale(to(x, out.dtype), a=math.log(2)))


@maps(aten.log2.default)
def log2(out, x):
    return tg.ops.scale(tg.ops.log(to(x, out.dtype)), a=1 / math.log(2))


@maps(aten.log10.default)
def log10(out, x):
    return tg.ops.scale(tg.ops.log(to(x, out.dtype)), a=1 / math.log(10))


@maps(aten.trunc.default)
def trunc(out, x):
    if x.dtype not in FLOATS:
        return x
    return tg.ops.mul(tg.ops.sign(x), tg.ops.floor(tg.ops.abs(x)))


@maps(aten.isnan.default)
def isnan(out, x):
    return tg.ops.ne(x, x)


@maps(aten.isinf.default)
def isinf(out, x):
    require(x.dtype in FLOATS, 'isinf of integers')
    return tg.ops.eq(tg.ops.abs(x), number(math.inf, x.dtype))


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
    below = tg.ops.scale(tg.ops.expm1(tg.ops.scale(tg.ops.minimum(x, number(0, out.dtype)), a=input_scale)), a=alpha * scale)
    return tg.ops.where(tg.ops.gt(x, number(0, out.dtype)), tg.ops.scale(x, a=scale), below)


@maps(aten.softplus.default)
def softplus(out, x, beta=1, threshold=20):
    return tg.ops.softplus(x, beta=beta, threshold=threshold)


@maps(aten.clamp.default, aten.clamp_min.default, aten.hardtanh.default)
def clamp(out, x, min=None, max=None):
    x = to(x, out.dtype)
    if out.dtype in FLOATS and not x.requires_grad:
        return tg.ops.clamp(x, lo=-math.inf if min is None else min, hi=math.inf if max is None else max)
    x = x if max is None else _bounded(tg.ops.lt, x, max)
    return x if min is None else _bounded(tg.ops.gt, x, min)


@maps(aten.clamp_max.default)
def clamp_max(out, x, max):
    return clamp(out, x, None, max)


def _bounded(inside, x, bound):
    """x where it is inside, else the bound. In PyTorch no gradient passes at a bound; in tg.ops.clamp it does."""
    bound = number(bound, x.dtype)
    return tg.ops.where(inside(x, bound), x, bound)


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
        return tg.ops.add_scalar(a, b=factor * b)
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
    dtype = out.dtype if out.dtype in FLOATS else 'f64'
    quotient = tg.ops.div(operand(a, dtype), operand(b, dtype))
    if rounding_mode == 'floor':
        quotient = tg.ops.floor(quotient)
    elif rounding_mode == 'trunc':
        quotient = trunc(out._replace(dtype=dtype), quotient)
    return to(quotient, out.dtype)


@maps(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(out, a, b):
    return div_mode(out, a, b, 'floor')


@maps(aten.remainder.Tensor, aten.remainder.Scalar)
def remainder(out, a, b):
    """a - b * floor(a / b), which has the sign of b."""
    a, b = operand(a, out.dtype), operand(b, out.dtype)
    return tg.ops.sub(a, tg.ops.mul(b, div_mode(out, a, b, 'floor')))


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
    return tg.ops.masked_fill(to(x, out.dtype), mask, value=value)


@maps(aten.masked_fill.Tensor)
def masked_fill_tensor(out, x, mask, value):
    return tg.ops.where(mask, to(value, out.dtype), to(x, out.dtype))


def truth(x):
    """Whether each element is not 0."""
    return x if x.dtype == 'bool' else tg.ops.ne(x, number(0, x.dtype))


@maps(aten.logical_not.default)
def logical_not(out, x):
    return tg.ops.eq(x, number(0, x.dtype))


@maps(aten.bitwise_not.default)
def bitwise_not(out, x):
    if x.dtype == 'bool':
        return logical_not(out, x)
    require(x.dtype != 'u8', 'bitwise_not of uint8')
    return tg.ops.add_scalar(tg.ops.neg(x), b=-1)


def _logical(name, combine):
    packets = getattr(aten, 'logical_' + name), getattr(aten, 'bitwise_' + name)

    @maps(packets[0].default)
    def logical(out, a, b):
        return combine(truth(a), truth(b))

    @maps(packets[1].Tensor, packets[1].Scalar)
    def bitwise(out, a, b):
        require(out.dtype == 'bool', 'the bits of integers')
        return combine(operand(a, 'bool'), operand(b, 'bool'))


_logical('and', lambda a, b: tg.ops.where(a, b, a))
_logical('or', lambda a, b: tg.ops.where(a, a, b))
_logical('xor', lambda a, b: tg.ops.ne(a, b))


# ---- Copies and constants ----

@maps(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.contiguous.default)
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


@maps(aten.zeros_like.default, aten.empty_like.default)
def zeros_like(out, x, **_):
    return filled(out, 0)


@maps(aten.ones_like.default)
def ones_like(out, x, **_):
    return filled(out, 1)


def filled(out, value):
    return tg.ops.expand(number(value, out.dtype), shape=out.shape)
