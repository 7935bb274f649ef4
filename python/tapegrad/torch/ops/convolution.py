"""Convolutions, and ops that resize images."""
import functools

import torch

import tapegrad as tg

from .table import maps, pair, require

aten = torch.ops.aten


@maps(aten.convolution.default)
def convolution(out, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    dims = weight.ndim - 2
    require(dims in (1, 2), f'a convolution of {dims} dims')
    require(x.ndim == weight.ndim, 'a convolution without a batch')
    if dims == 1 and transposed:
        wide = out._replace(shape=(*out.shape[:-1], 1, out.shape[-1]))
        x, weight = (tg.ops.unsqueeze(a, dim=-2) for a in (x, weight))
        y = _transposed(wide, x, weight, bias, [1, stride[0]], [0, padding[0]], [1, dilation[0]], groups)
        return tg.ops.reshape(y, shape=out.shape)
    if transposed:
        return _transposed(out, x, weight, bias, pair(stride), pair(padding), pair(dilation), groups)
    if dims == 1:
        return tg.ops.conv1d(x, weight, bias, stride=stride[0], padding=padding[0], dilation=dilation[0], groups=groups)
    return tg.ops.conv2d(x, weight, bias, stride=pair(stride), padding=pair(padding), dilation=pair(dilation), groups=groups)


def _transposed(out, x, weight, bias, stride, padding, dilation, groups):
    """A transposed convolution as a convolution: zeros between the elements of x, and the mirrored weight with its channels
    exchanged."""
    for i in range(2):
        x = _spread(x, 2 + i, stride[i])
        reach = dilation[i] * (weight.shape[2 + i] - 1)
        before = reach - padding[i]
        after = out.shape[2 + i] + reach - before - x.shape[2 + i]
        require(before >= 0 and after >= 0, 'a transposed convolution with more padding than its kernel')
        x = tg.ops.pad(x, dim=2 + i, before=before, after=after)
    ci, co, h, w = weight.shape
    weight = tg.ops.reshape(tg.ops.flip(weight, dims=[2, 3]), shape=(groups, ci // groups, co, h, w))
    weight = tg.ops.reshape(tg.ops.transpose(weight, d0=1, d1=2), shape=(groups * co, ci // groups, h, w))
    return tg.ops.conv2d(x, weight, bias, dilation=dilation, groups=groups)


def _spread(x, dim, step):
    """x with step - 1 zeros between adjacent elements of dim."""
    if step == 1:
        return x
    size = x.shape[dim]
    x = tg.ops.pad(tg.ops.unsqueeze(x, dim=dim + 1), dim=dim + 1, after=step - 1)
    x = tg.ops.reshape(x, shape=(*x.shape[:dim], size * step, *x.shape[dim + 2:]))
    return tg.ops.slice(x, dim=dim, start=0, stop=(size - 1) * step + 1)


# ---- Resizing, which is a matrix product along each dim ----

@maps(aten._adaptive_avg_pool2d.default, aten.adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(out, x, size):
    return _resized(out, x, 'pool')


@maps(aten.upsample_nearest2d.vec, aten.upsample_nearest2d.default)
def upsample_nearest2d(out, x, *_, **__):
    return _resized(out, x, 'nearest')


def _interpolation(packet, mode, antialias=False):
    """The overloads differ in where align_corners is: after the size, with the scales behind it or in its place."""
    @maps(packet.vec)
    def upsample_by(out, x, size, align_corners, scales):
        return _resized(out, x, mode, align_corners, antialias, *(scales or [None] * 2))

    @maps(packet.default)
    def upsample(out, x, size, align_corners, scale_h=None, scale_w=None):
        return _resized(out, x, mode, align_corners, antialias, scale_h, scale_w)


_interpolation(aten.upsample_bilinear2d, 'bilinear')
_interpolation(aten.upsample_bicubic2d, 'bicubic')
_interpolation(aten._upsample_bilinear2d_aa, 'bilinear', True)
_interpolation(aten._upsample_bicubic2d_aa, 'bicubic', True)


def _resized(out, x, mode, *options):
    scales = options[2:] or (None, None)
    rows, columns = (_matrix(tg.context(), x.dtype, x.shape[i], out.shape[i], mode, options[:2], scales[i]) for i in (-2, -1))
    return tg.ops.matmul(tg.ops.matmul(rows, x), tg.ops.transpose(columns, d0=0, d1=1))


@functools.lru_cache(256)
def _matrix(context, dtype, size, new, mode, options, scale):
    """The matrix that resizes a dim: PyTorch's own result for each unit vector."""
    unit = torch.eye(size, dtype=torch.float64)[None, :, :, None]
    if mode == 'pool':
        resized = torch.nn.functional.adaptive_avg_pool2d(unit, (new, 1))
    elif mode == 'nearest':
        resized = torch.nn.functional.interpolate(unit, (new, 1), mode='nearest')
    else:
        align, antialias = options
        op = {('bilinear', False): aten.upsample_bilinear2d, ('bicubic', False): aten.upsample_bicubic2d,
              ('bilinear', True): aten._upsample_bilinear2d_aa, ('bicubic', True): aten._upsample_bicubic2d_aa}[mode, antialias]
        resized = op(unit, (new, 1), align, scale, None)
    return tg.tensor(resized[0, :, :, 0].T.contiguous().numpy(), dtype=dtype, context=context)
