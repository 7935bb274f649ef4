"""Quantized numbers: integers of up to 32 bits, and float8."""

from .. import ops
from .convolution import by_channel, conv
from .dtypes import GREATEST, dtype, to_float8
from .matmul import centered, of_rows
from .registry import op

LIMITS = {
    'u8': (0, 255),
    'i8': (-128, 127),
    'u16': (0, 65535),
    'i16': (-32768, 32767),
    'i32': (-(2**31), 2**31 - 1),
}


def along(n, v, x):
    """A scale or zero point that broadcasts to x: one number, one for each part of the axis, or one for each block."""
    if v is None or not v.size > 1 and v.ndim <= 1:
        return v if v is None else v.reshape([])
    axis = n.axis % x.ndim
    if v.ndim == 1:
        return v.reshape([*[1] * axis, -1, *[1] * (x.ndim - axis - 1)])
    block = n.block_size or x.shape[axis] // v.shape[axis]
    shape = [*v.shape[: axis + 1], block, *v.shape[axis + 1 :]]
    wide = ops.expand(v.unsqueeze(axis + 1), shape).reshape(
        [*v.shape[:axis], v.shape[axis] * block, *v.shape[axis + 1 :]]
    )
    return ops.slice(wide, axis, stop=x.shape[axis])


def quantized(x, scale, zero, name, saturates=True):
    """round(x / scale) + zero, within the limits of the dtype. The zero of float8 is 0, and saturates is that of
    to_float8."""
    if name in GREATEST:
        return to_float8(x / scale, name, saturates)
    y = ops.round(x / scale)
    y = y if zero is None else y + ops.cast(zero, y.dtype)
    return ops.cast(ops.clamp(y, *LIMITS[name]), name)


@op('QuantizeLinear')
def quantize(n, x, scale, zero=None):
    name = zero.dtype if zero is not None else dtype(n.output_dtype) if getattr(n, 'output_dtype', 0) else 'u8'
    scale = ops.cast(scale, dtype(n.precision)) if getattr(n, 'precision', 0) else scale
    x = ops.cast(x, scale.dtype)
    return quantized(x, along(n, scale, x), along(n, zero, x), name, bool(getattr(n, 'saturate', 1)))


@op('DequantizeLinear')
def dequantize(n, x, scale, zero=None):
    y = ops.cast(x, scale.dtype)
    if zero is not None:
        y = y - along(n, ops.cast(zero, scale.dtype), x)
    y = y * along(n, scale, x)
    return ops.cast(y, dtype(n.output_dtype)) if getattr(n, 'output_dtype', 0) else y


def _requantized(product, scale, y_scale, y_zero):
    y = product * ops.cast(scale, 'f64')
    return quantized(y, ops.cast(y_scale, 'f64'), y_zero, y_zero.dtype)


@op('QLinearMatMul')
def quantized_matmul(n, a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    y = centered(a, of_rows(a_zero)) @ centered(b, b_zero)
    return _requantized(y, ops.cast(a_scale, 'f64') * ops.cast(b_scale, 'f64'), y_scale, y_zero)


@op('QLinearConv')
def quantized_conv(n, x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b=None):
    y = conv(n, centered(x, x_zero), centered(w, by_channel(w_zero, w)), None if b is None else ops.cast(b, 'f64'))
    scale = ops.cast(w_scale, 'f64')
    scale = scale.reshape([-1, *[1] * (w.ndim - 2)]) if scale.size > 1 else scale.reshape([])
    return _requantized(y, scale * ops.cast(x_scale, 'f64'), y_scale, y_zero)
