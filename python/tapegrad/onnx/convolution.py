"""Convolutions of lines, images and volumes, and their transposes."""

import numpy as np

from .. import ops
from ..tensor import tensor
from .dtypes import integers
from .matmul import centered
from .registry import op
from .shape import padded
from .windows import Windows


@op('Conv')
def conv(n, x, w, b=None):
    windows = Windows(n, x.shape[2:], list(w.shape[2:]))
    return convolved(x, w, b, windows.strides, windows.before, windows.after, windows.dilations, n.group)


def convolved(x, w, b, strides, before, after, dilations, groups):
    if before != after or any(p < 0 for p in before):
        for d, (low, high) in enumerate(zip(before, after)):
            x = padded(x, 2 + d, low, high)
        before = [0] * len(before)
    named = {'stride': strides, 'padding': before, 'dilation': dilations}
    if len(strides) == 1:
        named = {name: value[0] for name, value in named.items()}
    return (ops.conv1d, ops.conv2d, ops.conv3d)[len(strides) - 1](x, w, b, groups=groups, **named)


@op('ConvTranspose')
def conv_transpose(n, x, w, b=None):
    k = w.ndim - 2
    strides, dilations = n.strides or [1] * k, n.dilations or [1] * k
    extents = [(size - 1) * d + 1 for size, d in zip(w.shape[2:], dilations)]
    before, after = _cuts(n, x.shape[2:], strides, extents)
    extra = [low - high for low, high in zip(before, after)]
    if all(low >= 0 and 0 <= e < max(s, d) for low, e, s, d in zip(before, extra, strides, dilations)):
        return _transposed(x, w, b, strides, dilations, n.group, before, extra)
    y = _transposed(x, w, None, strides, dilations, n.group, [0] * k, [0] * k)
    for d in range(k):
        y = padded(y, 2 + d, -before[d], -after[d])
    return y if b is None else y + b.reshape([-1, *[1] * k])


def _transposed(x, w, b, strides, dilations, groups, padding, extra):
    named = {'stride': strides, 'padding': padding, 'dilation': dilations, 'output_padding': extra}
    if len(strides) == 1:
        named = {name: value[0] for name, value in named.items()}
    op = (ops.conv_transpose1d, ops.conv_transpose2d, ops.conv_transpose3d)[len(strides) - 1]
    return op(x, w, b, groups=groups, **named)


def _cuts(n, sizes, strides, extents):
    """How many elements are cut before and after each dim of the result; a negative number adds some."""
    k = len(sizes)
    extra = n.output_padding or [0] * k
    whole = [(size - 1) * s + e + o for size, s, e, o in zip(sizes, strides, extents, extra)]
    if n.output_shape or n.auto_pad in ('SAME_UPPER', 'SAME_LOWER'):
        wanted = (n.output_shape or [size * s for size, s in zip(sizes, strides)])[-k:]
        total = [full - out for full, out in zip(whole, wanted)]
        small = [t // 2 for t in total]
        large = [t - t // 2 for t in total]
        before, after = (small, large) if n.auto_pad == 'SAME_UPPER' else (large, small)
    else:
        pads = n.pads or [0] * 2 * k
        before, after = pads[:k], pads[k:]
    return before, [a - o for a, o in zip(after, extra)]


@op('ConvInteger')
def conv_integer(n, x, w, x_zero=None, w_zero=None):
    return ops.cast(conv(n, centered(x, x_zero), centered(w, by_channel(w_zero, w))), 'i32')


def by_channel(v, w):
    """A number, or one for each output channel, that broadcasts to weights."""
    return v if v is None or not v.ndim else v.reshape([-1, *[1] * (w.ndim - 1)]) if v.size > 1 else v.reshape([])


@op('Col2Im')
def col2im(n, x, image, block):
    """Adds the columns of blocks back into an image."""
    image, block = integers(image), integers(block)
    windows = Windows(n, image, block)
    each, flat = windows.over(lambda d, places: places), 0
    inside = True
    for d, places in enumerate(each):
        flat, inside = flat * image[d] + places, inside & (places >= 0) & (places < image[d])
    area, elements = int(np.prod(image)), int(np.prod(block))
    flat = np.where(inside, flat, area).reshape(-1, elements).T.reshape(-1)
    rows = x.reshape([x.shape[0], x.shape[1] // elements, -1])
    index = ops.contiguous(ops.expand(tensor(flat), list(rows.shape)))
    zero = ops.full(shape=[*rows.shape[:2], area + 1], value=0.0, dtype=x.dtype)
    return ops.slice(ops.scatter_add(zero, index, rows, 2), 2, stop=area).reshape([*rows.shape[:2], *image])
