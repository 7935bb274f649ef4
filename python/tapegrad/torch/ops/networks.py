"""Layers of neural networks."""

import math

import torch

import tapegrad as tg

from .table import maps, require, times, to

aten = torch.ops.aten


@maps(aten.native_layer_norm.default, results=1)
def layer_norm(out, x, shape, weight, bias, eps):
    return _over_last(tg.ops.layer_norm, x, shape, (weight, bias), eps)


@maps(aten._fused_rms_norm.default, results=1)
def rms_norm(out, x, shape, weight, eps):
    dtype = {'f32': torch.float32, 'f64': torch.float64, 'bf16': torch.bfloat16, 'f16': torch.float16}[x.dtype]
    return _over_last(tg.ops.rms_norm, x, shape, (weight,), torch.finfo(dtype).eps if eps is None else eps)


def _over_last(norm, x, shape, weights, eps):
    """A norm over the last dims of x, which have this shape."""
    if len(shape) == 1:
        return norm(x, *weights, eps=eps)
    rows = tg.ops.reshape(x, shape=[*x.shape[: x.ndim - len(shape)], math.prod(shape)])
    weights = [None if w is None else tg.ops.reshape(w, shape=(-1,)) for w in weights]
    return tg.ops.reshape(norm(rows, *weights, eps=eps), shape=x.shape)


@maps(aten.native_group_norm.default, results=1)
def group_norm(out, x, weight, bias, n, c, hw, groups, eps):
    return tg.ops.group_norm(x, weight, bias, groups=groups, eps=eps)


@maps(aten._native_batch_norm_legit_functional.default)
def batch_norm(out, x, weight, bias, running_mean, running_var, training, momentum, eps):
    """Returns y, None twice instead of statistics for PyTorch's backward, which is not used, and the running statistics
    as new tensors."""
    running_mean, running_var = (tg.ops.scale(r, a=1) for r in (running_mean, running_var))
    y = _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return y, None, None, running_mean, running_var


@maps(aten._native_batch_norm_legit.no_stats, results=1)
def batch_norm_alone(out, x, weight, bias, training, momentum, eps):
    return _batch_norm(x, weight, bias, None, None, training, momentum, eps)


@maps(aten._native_batch_norm_legit_no_training.default, results=1)
def batch_norm_fixed(out, x, weight, bias, running_mean, running_var, momentum, eps):
    return _batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)


def _batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    context = tg.context()
    before, context.training = context.training, training
    try:
        return tg.ops.batch_norm(x, weight, bias, running_mean, running_var, momentum=momentum, eps=eps)
    finally:
        context.training = before


@maps(aten.glu.default)
def glu(out, x, dim=-1):
    return tg.ops.glu(x, dim=dim)


@maps(aten._scaled_dot_product_flash_attention_for_cpu.default, results=1)
def attention(out, q, k, v, dropout_p=0.0, is_causal=False, attn_mask=None, scale=None):
    require(not dropout_p, 'dropout of attention weights')  # PyTorch's own random numbers
    require(not is_causal or q.shape[2] == k.shape[2], 'causal attention of other numbers of queries and keys')
    mask = attn_mask if attn_mask is None or attn_mask.dtype == 'bool' else to(attn_mask, q.dtype)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    return tg.ops.attention(q, k, v, mask=mask, causal=is_causal, scale=scale)


# ---- Pooling ----


@maps(aten.max_pool2d_with_indices.default, results=1)
def max_pool2d(out, x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
    return _pooled(
        2, out[0], tg.ops.max_pool2d, x, kernel, stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode
    )


@maps(aten.max_pool3d_with_indices.default, results=1)
def max_pool3d(out, x, kernel, stride=(), padding=0, dilation=1, ceil_mode=False):
    return _pooled(
        3, out[0], tg.ops.max_pool3d, x, kernel, stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode
    )


def _average(overload, n, op):
    @maps(overload)
    def avg_pool(out, x, kernel, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
        return _pooled(
            n,
            out,
            op,
            x,
            kernel,
            stride,
            padding=padding,
            ceil_mode=ceil_mode,
            exclude_padding=not count_include_pad,
            divisor=divisor_override,
        )


_average(aten.avg_pool1d.default, 1, tg.ops.avg_pool1d)
_average(aten.avg_pool2d.default, 2, tg.ops.avg_pool2d)
_average(aten.avg_pool3d.default, 3, tg.ops.avg_pool3d)


def _pooled(n, out, op, x, kernel, stride, **options):
    """Pools over the last n dims, of a batch or of a single example."""
    size = {'k': times(kernel, 1)} if n == 1 else dict(zip(('d', 'h', 'w')[-n:], times(kernel, n)))
    batch = tg.ops.reshape(x, shape=(-1, *x.shape[-n - 1 :]))
    options = {name: times(v, n) if name in ('padding', 'dilation') else v for name, v in options.items()}
    return tg.ops.reshape(op(batch, **size, stride=times(stride or kernel, n), **options), shape=out.shape)


@maps(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default, aten.adaptive_avg_pool1d.default)
def adaptive_avg_pool(out, x, size):
    batch = tg.ops.reshape(x, shape=(-1, *x.shape[-len(size) - 1 :]))
    return tg.ops.reshape(tg.ops.adaptive_avg_pool(batch, size=size), shape=out.shape)


@maps(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default, aten.adaptive_max_pool1d.default)
def adaptive_max_pool(out, x, size):
    batch = tg.ops.reshape(x, shape=(-1, *x.shape[-len(size) - 1 :]))
    return tuple(tg.ops.reshape(y, shape=out[0].shape) for y in tg.ops.adaptive_max_pool(batch, size=size))
