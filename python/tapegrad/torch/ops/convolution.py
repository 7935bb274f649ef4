"""Convolutions, and ops that resize images."""
import weakref

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


# ---- Resizing, which is a matrix product along each dim. (PyTorch decomposes the other modes into indexing.) ----

@maps(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(out, x, size):
    return _resized(out, x, lambda unit, new: torch.nn.functional.adaptive_avg_pool2d(unit, (new, 2)), 'pool')


def _antialiased(overload):
    @maps(overload)
    def upsample(out, x, size, align_corners, scale_h=None, scale_w=None):
        def resize(unit, new, scale):
            return overload(unit, (new, 2), align_corners, scale, None)
        return _resized(out, x, resize, (overload, align_corners), (scale_h,), (scale_w,))


_antialiased(aten._upsample_bilinear2d_aa.default)
_antialiased(aten._upsample_bicubic2d_aa.default)

_matrices = weakref.WeakKeyDictionary()


def _resized(out, x, resize, name, *options):
    """x resized by resize(image, height, *options) along each of its last two dims. name stands for resize."""
    along_h, along_w = options or ((), ())
    rows = _matrix(x.dtype, x.shape[-2], out.shape[-2], resize, name, along_h)
    columns = _matrix(x.dtype, x.shape[-1], out.shape[-1], resize, name, along_w)
    return tg.ops.matmul(tg.ops.matmul(rows, x), tg.ops.transpose(columns, d0=0, d1=1))


def _matrix(dtype, size, new, resize, name, options):
    """The matrix that resizes a dim: PyTorch's own result for each unit vector. There is one for each context."""
    known = _matrices.setdefault(tg.context(), {})
    key = dtype, size, new, name, options
    if key not in known:
        unit = torch.eye(size, dtype=torch.float64)[None, :, :, None].repeat(1, 1, 1, 2)
        known[key] = tg.tensor(resize(unit, new, *options)[0, :, :, 0].T.contiguous().numpy(), dtype=dtype)
    return known[key]
