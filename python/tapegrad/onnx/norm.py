"""Normalizations."""

from .. import ops
from .registry import op


def _channels(v, x):
    """A vector of channels that broadcasts to x [n, c, ..]."""
    return v.reshape([v.size, *[1] * (x.ndim - 2)])


@op('BatchNormalization', spatial=(None, 1))
def batch_norm(n, x, w, b, mean, var):
    training = getattr(n, 'training_mode', 0) if n.since >= 14 else n.since < 7 and not n.is_test or n.n_out > 1
    if not training:
        return _normalized(x, _channels(mean, x), _channels(var, x), n.epsilon) * _channels(w, x) + _channels(b, x)
    dims = [d for d in range(x.ndim) if d != 1]
    now_mean, now_var = ops.mean(x, dims=dims), ops.var(x, dims=dims, correction=0)
    y = _normalized(x, _channels(now_mean, x), _channels(now_var, x), n.epsilon) * _channels(w, x) + _channels(b, x)
    running = [
        old * n.momentum + new.cast(old.dtype) * (1 - n.momentum) for old, new in ((mean, now_mean), (var, now_var))
    ]
    return (y, *running, now_mean, now_var)[: n.n_out]


def _normalized(x, mean, var, eps):
    return (x - mean.cast(x.dtype)) / ops.sqrt(var + eps).cast(x.dtype)


@op('InstanceNormalization')
def instance_norm(n, x, w, b):
    return ops.group_norm(x, w, b, groups=x.shape[1], eps=n.epsilon)


@op('LayerNormalization')
def layer_norm(n, x, w, b=None):
    """Normalizes rows, each of all dims from axis on. The other outputs are their mean and 1 / standard deviation."""
    axis = n.axis % x.ndim
    rows = x.reshape([*x.shape[:axis], -1])
    if w.shape == x.shape[axis:]:
        flat = None if b is None else ops.expand(b, list(w.shape)).reshape([-1])
        y = ops.layer_norm(rows, w.reshape([-1]), flat, eps=n.epsilon).reshape(x.shape)
    else:
        y = ops.layer_norm(rows, eps=n.epsilon).reshape(x.shape) * w
        y = y if b is None else y + b
    if n.n_out == 1:
        return y
    rows = rows if rows.dtype == 'f64' else rows.cast('f32')
    kept = [*x.shape[:axis], *[1] * (x.ndim - axis)]
    deviation = ops.rsqrt(ops.var(rows, dims=[axis], correction=0) + n.epsilon)
    return (y, ops.mean(rows, dims=[axis]).reshape(kept), deviation.reshape(kept))[: n.n_out]


@op('RMSNormalization')
def rms_norm(n, x, w):
    axis = n.axis % x.ndim
    y = ops.rms_norm(x.reshape([*x.shape[:axis], -1]), eps=n.epsilon).reshape(x.shape)
    return y.cast(w.dtype) * w


@op('LRN')
def local_response_norm(n, x):
    """x / (bias + alpha / size * the sum of squares of size neighboring channels)^beta."""
    low = (n.size - 1) // 2
    squares = ops.pad(x * x, 1, before=low, after=n.size - 1 - low)
    total = ops.sum(ops.unfold(squares, 1, n.size, 1), dims=[-1])
    return x / ops.pow_scalar(total * (n.alpha / n.size) + n.bias, n.beta)


@op('LpNormalization')
def lp_norm(n, x):
    size = ops.norm(x, p=float(n.p), dims=[n.axis], keepdim=True)
    return x / ops.where(ops.eq(size, 0.0), ops.full(shape=[], value=1.0, dtype=x.dtype), size)
