"""Losses of classes."""

from .. import ops
from ..tensor import full
from .registry import op


@op('NegativeLogLikelihoodLoss')
def nll(n, x, target, weight=None):
    """-w[target] x[.., target, ..] along dim 1; a target of ignore_index gives 0. The mean is divided by the sum of
    weights."""
    target = ops.cast(target, 'i64')
    ignored = full(target.shape, 0, dtype='bool') if n.ignore_index is None else ops.eq(target, n.ignore_index)
    safe = ops.masked_fill(target, ignored, 0)
    loss = -ops.squeeze(ops.gather(x, safe.unsqueeze(1), 1), 1)
    one = full((), 1, dtype=x.dtype)
    w = (
        ops.expand(one, list(target.shape))
        if weight is None
        else ops.index_select(weight, safe.reshape([-1]), dim=0).reshape(target.shape)
    )
    w = ops.masked_fill(ops.contiguous(w), ignored, 0.0)
    loss = loss * w
    if n.reduction == 'none':
        return loss
    return ops.sum(loss) if n.reduction == 'sum' else ops.sum(loss) / ops.sum(w)


@op('SoftmaxCrossEntropyLoss')
def softmax_cross_entropy(n, x, target, weight=None):
    log_prob = ops.log_softmax(x, 1)
    loss = nll(n, log_prob, target, weight)
    return loss if n.n_out == 1 else (loss, log_prob)
