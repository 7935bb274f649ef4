"""Layers of neural networks."""
import math

import torch

import tapegrad as tg

from .table import maps, pair, require, to

aten = torch.ops.aten


@maps(aten.native_layer_norm.default, results=1)
def layer_norm(out, x, shape, weight, bias, eps):
    if len(shape) == 1:
        return tg.ops.layer_norm(x, weight, bias, eps=eps)
    rows = tg.ops.reshape(x, shape=[*x.shape[:x.ndim - len(shape)], math.prod(shape)])
    weight, bias = (None if w is None else tg.ops.reshape(w, shape=(-1,)) for w in (weight, bias))
    return tg.ops.reshape(tg.ops.layer_norm(rows, weight, bias, eps=eps), shape=x.shape)


@maps(aten._fused_rms_norm.default, results=1)
def rms_norm(out, x, shape, weight, eps):
    require(len(shape) == 1, 'rms_norm over several dims')
    dtype = {'f32': torch.float32, 'f64': torch.float64, 'bf16': torch.bfloat16, 'f16': torch.float16}[x.dtype]
    return tg.ops.rms_norm(x, weight, eps=torch.finfo(dtype).eps if eps is None else eps)


@maps(aten.native_group_norm.default, results=1)
def group_norm(out, x, weight, bias, n, c, hw, groups, eps):
    return tg.ops.group_norm(x, weight, bias, groups=groups, eps=eps)


@maps(aten._native_batch_norm_legit_functional.default)
def batch_norm(out, x, weight, bias, running_mean, running_var, training, momentum, eps):
    """Returns the running statistics as new tensors, behind the statistics for PyTorch's backward, which are not needed."""
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
    world = tg.context()
    before, world.training = world.training, training
    try:
        return tg.ops.batch_norm(x, weight, bias, running_mean, running_var, momentum=momentum, eps=eps)
    finally:
        world.training = before


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
    return _pooled(out[0], x, tg.ops.max_pool2d, -math.inf, kernel, stride, padding, dilation)


@maps(aten.avg_pool2d.default)
def avg_pool2d(out, x, kernel, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    require(divisor_override is None, 'divisor_override')
    fits = _overhang(out, x, pair(kernel), pair(stride or kernel), pair(padding), [1, 1]) == [0, 0]
    require(fits, 'avg_pool2d with windows that leave the input')
    x4 = tg.ops.reshape(x, shape=(-1, *x.shape[-3:]))
    h, w = pair(kernel)
    y = tg.ops.avg_pool2d(x4, h=h, w=w, stride=pair(stride or kernel), padding=pair(padding),
                          exclude_padding=not count_include_pad and pair(padding) != [0, 0])
    return tg.ops.reshape(y, shape=out.shape)


@maps(aten.avg_pool1d.default)
def avg_pool1d(out, x, kernel, stride=(), padding=0, ceil_mode=False, count_include_pad=True):
    wide = tg.ops.unsqueeze(x, dim=-2)
    k, s, p = (_one(n) for n in (kernel, stride or kernel, padding))
    y = avg_pool2d(out._replace(shape=(*out.shape[:-1], 1, out.shape[-1])), wide, [1, k], [1, s], [0, p], ceil_mode, count_include_pad)
    return tg.ops.reshape(y, shape=out.shape)


def _pooled(out, x, op, value, kernel, stride, padding, dilation):
    """Pools an image, or a batch of them. Windows that leave the input (ceil_mode) see `value` there."""
    kernel, stride, padding, dilation = pair(kernel), pair(stride or kernel), pair(padding), pair(dilation)
    x4 = tg.ops.reshape(x, shape=(-1, *x.shape[-3:]))
    over = _overhang(out, x, kernel, stride, padding, dilation)
    if any(over):
        for i in range(2):
            x4 = tg.ops.pad(x4, dim=2 + i, before=padding[i], after=padding[i] + over[i], value=value)
        padding = [0, 0]
    y = op(x4, h=kernel[0], w=kernel[1], stride=stride, padding=padding, dilation=dilation)
    return tg.ops.reshape(y, shape=out.shape)


def _overhang(out, x, kernel, stride, padding, dilation):
    """How many elements beyond the padding the last window needs, for each dim."""
    return [max(0, (out.shape[i] - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 - x.shape[i] - 2 * padding[i])
            for i in (-2, -1)]


def _one(x):
    return x if isinstance(x, int) else x[0]
