"""Convolutions, and ops that resample images."""

import weakref

import torch

import tapegrad as tg

from .table import maps, times

aten = torch.ops.aten


@maps(aten.convolution.default)
def convolution(out, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    dims = weight.ndim - 2
    options = {
        'stride': times(stride, dims),
        'padding': times(padding, dims),
        'dilation': times(dilation, dims),
        'groups': groups,
    }
    if transposed:
        op = (tg.ops.conv_transpose1d, tg.ops.conv_transpose2d, tg.ops.conv_transpose3d)[dims - 1]
        options['output_padding'] = times(output_padding, dims)
    else:
        op = (tg.ops.conv1d, tg.ops.conv2d, tg.ops.conv3d)[dims - 1]
    if x.ndim == weight.ndim:
        return op(x, weight, bias, **options)
    return tg.ops.squeeze(op(tg.ops.unsqueeze(x, dim=0), weight, bias, **options), dim=0)


@maps(aten.col2im.default)
def col2im(out, x, size, kernel, dilation, padding, stride):
    columns = x if x.ndim == 3 else tg.ops.unsqueeze(x, dim=0)
    y = tg.ops.col2im(
        columns, size=size, h=kernel[0], w=kernel[1], stride=stride, padding=padding, dilation=dilation
    )
    return y if x.ndim == 3 else tg.ops.squeeze(y, dim=0)


@maps(aten.grid_sampler_2d.default)
def grid_sampler_2d(out, x, grid, mode, padding, align_corners):
    return tg.ops.grid_sampler_2d(
        x,
        grid,
        mode=('bilinear', 'nearest', 'bicubic')[mode],
        padding=('zeros', 'border', 'reflection')[padding],
        align_corners=align_corners,
    )


# ---- Resizing, which is a matrix product along each dim. (PyTorch decomposes the other modes into indexing.) ----


def _antialiased(overload):
    @maps(overload)
    def upsample(out, x, size, align_corners, scale_h=None, scale_w=None):
        def resize(unit, new, scale):
            return overload(unit, (new, 2), align_corners, scale, None)

        return _resized(out, x, resize, (overload, align_corners), (scale_h, scale_w))


_antialiased(aten._upsample_bilinear2d_aa.default)
_antialiased(aten._upsample_bicubic2d_aa.default)

_matrices = weakref.WeakKeyDictionary()


def _resized(out, x, resize, name, scales):
    """x resized by resize(image, height, scale) along each of its last two dims. name stands for resize."""
    rows = _matrix(x.dtype, x.shape[-2], out.shape[-2], resize, (name, scales[0]))
    columns = _matrix(x.dtype, x.shape[-1], out.shape[-1], resize, (name, scales[1]))
    return tg.ops.matmul(tg.ops.matmul(rows, x), tg.ops.transpose(columns, d0=0, d1=1))


def _matrix(dtype, size, new, resize, name):
    """The matrix that resizes a dim: PyTorch's own result for each unit vector. Each context keeps its matrices."""
    known = _matrices.setdefault(tg.context(), {})
    key = dtype, size, new, name
    if key not in known:
        unit = torch.eye(size, dtype=torch.float64)[None, :, :, None].repeat(1, 1, 1, 2)
        known[key] = tg.tensor(resize(unit, new, name[1])[0, :, :, 0].T.contiguous().numpy(), dtype=dtype)
    return known[key]
