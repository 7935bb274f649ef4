"""Attention, which hides keys by masks, by their order, and by the lengths of sequences."""

import functools

import numpy as np

from .. import ops
from ..tensor import full, tensor
from .dtypes import dtype as dtype_of
from .dtypes import integers
from .registry import op


@op('Attention')
def attention(n, q, k, v, mask=None, past_k=None, past_v=None, lengths=None):
    """A query of which all keys are hidden has the result 0, and passes no gradient on."""
    flat = q.ndim == 3
    if flat:
        q, k, v = (_heads(x, h) for x, h in ((q, n.q_num_heads), (k, n.kv_num_heads), (v, n.kv_num_heads)))
    past = past_k.shape[2] if past_k is not None else 0
    if past_k is not None:
        k, v = ops.concat([past_k, k], dim=2), ops.concat([past_v, v], dim=2)
    hidden = _hidden(n, q.shape[2], k.shape[2], past, None if lengths is None else np.array(integers(lengths)))
    options = {} if n.scale is None else {'scale': n.scale}
    options |= {'softcap': n.softcap} if n.softcap else {}
    mask = _joined(mask, hidden, k.shape[2], q.dtype)
    y = ops.attention(q, k, ops.cast(v, q.dtype), mask=mask, **options)
    y = ops.transpose(y, 1, 2).reshape([y.shape[0], y.shape[2], -1]) if flat else y
    return (y, k, v, _scores(n, q, k, mask))[: n.n_out] if n.n_out > 3 else (y, k, v)[: n.n_out]


def _heads(x, h):
    """[b, s, h d] as [b, h, s, d]."""
    return ops.transpose(x.reshape([*x.shape[:2], h, -1]), 1, 2)


def _hidden(n, queries, keys, past, lengths):
    """Where a key is outside of the query's window, or after the end of its sequence, as an array that broadcasts to
    [b, h, queries, keys]; None if nowhere. Query i is at place i + past. With lengths and no past, the last query is
    at the end of its sequence."""
    first = past if lengths is None or past else (lengths - queries)[:, None, None, None]
    key, place = np.arange(keys), np.arange(queries)[:, None] + first
    left, right = (getattr(n, name, -1) for name in ('left_window_size', 'right_window_size'))
    rules = [key > place] if n.is_causal else []
    rules += [key < place - left] if left >= 0 else []
    rules += [key > place + right] if right >= 0 else []
    rules += [key >= lengths[:, None, None, None]] if lengths is not None else []
    return functools.reduce(np.logical_or, rules) if rules else None


def _joined(mask, hidden, keys, dtype):
    """The mask and the array `hidden` as one mask. Keys that the mask lacks at its end are hidden."""
    if mask is None:
        return None if hidden is None else tensor(~hidden)
    missing = keys - mask.shape[-1]
    if mask.dtype == 'bool':
        mask = ops.cast(ops.pad(ops.cast(mask, 'u8'), -1, after=missing), 'bool') if missing else mask
        return mask if hidden is None else ops.logical_and(mask, tensor(~hidden))
    mask = ops.pad(mask, -1, after=missing, value=-np.inf) if missing else mask
    return mask if hidden is None else ops.where(tensor(hidden), full((), -np.inf, dtype=dtype), mask)


# ---- The scores as a result ----


def _scores(n, q, k, mask):
    """The scores [b, h, queries, keys] of queries [b, h, queries, d] and keys [b, g, keys, d]. The mode says how far
    they are computed: 0 the products, 1 with the soft cap, 2 with the mask, 3 after softmax."""
    mode = n.qk_matmul_output_mode
    root = (q.shape[-1] ** -0.5 if n.scale is None else n.scale) ** 0.5
    groups = q.reshape([q.shape[0], k.shape[1], -1, *q.shape[2:]])  # [b, g, h / g, queries, d]
    scores = (groups * root) @ (ops.transpose(k, -2, -1) * root).unsqueeze(2)
    scores = scores.reshape([*q.shape[:3], k.shape[2]])
    if mode > 0 and n.softcap:
        scores = ops.tanh(scores / n.softcap) * n.softcap
    if mode < 2 or mask is None:
        return _weights(n, scores) if mode == 3 else scores
    nothing = full((), -np.inf, dtype=q.dtype)
    bias = ops.where(mask, full((), 0, dtype=q.dtype), nothing) if mask.dtype == 'bool' else ops.cast(mask, q.dtype)
    if mode == 2:
        return scores + bias
    # The softmax of a query of which all keys are hidden would be NaN, and so would be the gradients of its inputs,
    # although its weights are 0.
    hidden = ops.eq(ops.max(bias.detach(), [-1], keepdim=True), nothing)
    weights = _weights(n, ops.masked_fill(scores + bias, hidden, 0))
    return ops.masked_fill(weights, hidden, 0)


def _weights(n, scores):
    """The softmax of each row, computed in the node's precision."""
    precise = scores if n.softmax_precision is None else ops.cast(scores, dtype_of(n.softmax_precision))
    return ops.cast(ops.softmax(precise, -1), scores.dtype)
