"""Ops on elements: arithmetic, functions, activations and comparisons. Their gradients are those of the library's
ops."""

import functools
import math

import numpy as np
from onnx import TensorProto

from .. import ops, values
from ..tensor import full
from .dtypes import FLOATS, GREATEST, dtype, number, on_host, to_float8
from .registry import MissingOp, op

FUNCTIONS = {
    'Neg': ops.neg,
    'Abs': ops.abs,
    'Exp': ops.exp,
    'Log': ops.log,
    'Sqrt': ops.sqrt,
    'Reciprocal': ops.reciprocal,
    'Sin': ops.sin,
    'Cos': ops.cos,
    'Tan': ops.tan,
    'Asin': ops.asin,
    'Acos': ops.acos,
    'Atan': ops.atan,
    'Sinh': ops.sinh,
    'Cosh': ops.cosh,
    'Tanh': ops.tanh,
    'Sigmoid': ops.sigmoid,
    'Erf': ops.erf,
    'Sign': ops.sign,
    'Relu': ops.relu,
    'Asinh': ops.asinh,
    'Acosh': ops.acosh,
    'Atanh': ops.atanh,
    'Mish': ops.mish,
    'Softsign': ops.softsign,
    'HardSwish': ops.hardswish,
    'Softplus': ops.softplus,
    'Identity': lambda x: x,
    'IsNaN': ops.isnan,
    'Not': ops.logical_not,
    'BitwiseNot': ops.bitwise_not,
    'Floor': ops.floor,
    'Ceil': ops.ceil,
    'Round': ops.round,
}


def _enter(name, fn):
    op(name)(lambda n, x: fn(x))


for _name, _fn in FUNCTIONS.items():
    _enter(_name, _fn)


# ---- Two operands ----


def aligned(n, a, b):
    """The operands of a node. Before version 7 the dims of b stand for those of a from the attribute axis on."""
    axis = getattr(n, 'axis', None)
    if axis is not None and getattr(n, 'broadcast', 0):
        axis %= a.ndim
        b = b.reshape([*b.shape, *[1] * (a.ndim - axis - b.ndim)])
    return a, b


def _enter_pair(name, fn):
    op(name)(lambda n, a, b: fn(*aligned(n, a, b)))


def divided(a, b):
    """a / b; integers are truncated."""
    return a / b if a.dtype in FLOATS else ops.trunc_divide(a, b)


for _name, _fn in {
    'Add': ops.add,
    'Sub': ops.sub,
    'Mul': ops.mul,
    'Div': divided,
    'Less': ops.lt,
    'LessOrEqual': ops.le,
    'Greater': ops.gt,
    'GreaterOrEqual': ops.ge,
    'Equal': ops.eq,
    'And': ops.logical_and,
    'Or': ops.logical_or,
    'Xor': ops.logical_xor,
    'BitwiseAnd': ops.bitwise_and,
    'BitwiseOr': ops.bitwise_or,
    'BitwiseXor': ops.bitwise_xor,
}.items():
    _enter_pair(_name, _fn)


@op('Pow')
def power(n, a, b):
    a, b = aligned(n, a, b)
    if a.dtype in FLOATS:
        return ops.pow_scalar(a, number(b)) if not b.ndim and not b.requires_grad else ops.pow(a, b.cast(a.dtype))
    return on_host(np.power, a, b)


@op('Mod')
def mod(n, a, b):
    if a.dtype not in FLOATS:
        return a - b * ops.trunc_divide(a, b) if n.fmod else ops.remainder(a, b)
    rest = ops.fmod(a, b)
    return rest if n.fmod else ops.where(ops.sign(rest) * ops.sign(b) < 0, rest + b, rest)


@op('BitShift')
def bit_shift(n, a, b):
    return on_host(np.left_shift if n.direction == 'LEFT' else np.right_shift, a, b)


@op('PRelu')
def prelu(n, x, slope):
    if n.since < 7 and slope.ndim == 1 and slope.size > 1:
        slope = slope.reshape([slope.size, *[1] * (x.ndim - 2)])
    return ops.where(x < 0, slope * x, x)


# ---- Any number of operands ----


@op('Sum')
def sum_(n, *xs):
    return functools.reduce(ops.add, xs)


@op('Mean')
def mean(n, *xs):
    return functools.reduce(ops.add, xs) * (1 / len(xs))


@op('Max')
def max_(n, *xs):
    return functools.reduce(ops.maximum, xs)


@op('Min')
def min_(n, *xs):
    return functools.reduce(ops.minimum, xs)


# ---- Activations and others with attributes ----


@op('LeakyRelu')
def leaky_relu(n, x):
    return ops.leaky_relu(x, slope=n.alpha)


@op('Elu')
def elu(n, x):
    return ops.elu(x, alpha=n.alpha)


@op('Celu')
def celu(n, x):
    return ops.elu(x * (1 / n.alpha)) * n.alpha


@op('Selu')
def selu(n, x):
    return ops.elu(x, alpha=n.alpha) * n.gamma


@op('Gelu')
def gelu(n, x):
    return ops.gelu_tanh(x) if n.approximate == 'tanh' else ops.gelu(x)


@op('Swish')
def swish(n, x):
    return x * ops.sigmoid(x * n.alpha)


@op('HardSigmoid')
def hard_sigmoid(n, x):
    return ops.clamp(x * n.alpha + n.beta, 0, 1)


@op('ThresholdedRelu')
def thresholded_relu(n, x):
    return ops.where(x > n.alpha, x, full((), 0, dtype=x.dtype))


@op('Shrink')
def shrink(n, x):
    if x.dtype not in FLOATS:
        return ops.cast(shrink(n, ops.cast(x, 'f64')), x.dtype)
    zero = full((), 0, dtype=x.dtype)
    return ops.where(x < -n.lambd, x + n.bias, ops.where(x > n.lambd, x - n.bias, zero))


@op('Clip')
def clip(n, x, low=None, high=None):
    if n.since < 11:
        return ops.clamp(x, _bound(n.min, -math.inf), _bound(n.max, math.inf))
    constant = (low is None or not low.requires_grad) and (high is None or not high.requires_grad)
    if constant and x.dtype in FLOATS:  # a bound of 64-bit integers may be no double
        low, high = (None if b is None else number(b) for b in (low, high))
        low, high = _bound(low, -math.inf), _bound(high, math.inf)
        return ops.clamp(x, min(low, high), high)
    x = x if low is None else ops.maximum(x, low)
    return x if high is None else ops.minimum(x, high)


def _bound(number, otherwise):
    return otherwise if number is None else float(number)


@op('IsInf')
def is_inf(n, x):
    found = full(x.shape, 0, dtype='bool')
    for wanted, value in ((n.detect_positive, math.inf), (n.detect_negative, -math.inf)):
        if wanted:
            found = ops.where(ops.eq(x, value), full((), 1, dtype='bool'), found)
    return found


@op('Where')
def where(n, c, a, b):
    return ops.where(c, a, b)


@op('Cast')
def cast(n, x):
    code = TensorProto.DataType.Value(n.to) if isinstance(n.to, str) else n.to  # the first version has a name
    return cast_to(n, x, dtype(code))


def cast_to(n, x, name):
    if x.dtype == name:
        return x
    if name == 'bool':
        return ops.ne(x, full((), 0, dtype=x.dtype))
    if name in GREATEST:
        return to_float8(x, name, getattr(n, 'saturate', 1), getattr(n, 'round_mode', 'up'))
    return ops.cast(x, name)


@op('BitCast')
def bit_cast(n, x):
    """The same bytes in a dtype of the same size."""
    name = dtype(n.to)
    for kind in (name, x.dtype):
        if kind not in values.NUMPY:
            raise MissingOp([f'BitCast with {kind}'])
    return on_host(lambda a: a.view(values.NUMPY[name]), x, dtype=name)


@op('CastLike')
def cast_like(n, x, like):
    return cast_to(n, x, like.dtype)
