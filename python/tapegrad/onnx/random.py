"""Dropout and random numbers. They are those of the context's seed; a node with a seed of its own gets NumPy's, as in
the reference of onnx."""

import numpy as np

from .. import ops
from ..tensor import full, randn, tensor, uniform
from .dtypes import dtype
from .registry import op


@op('Dropout')
def dropout(n, x, ratio=None, training=None):
    """x and the mask of what is kept. Elements are dropped if the input training is true, and before version 7 unless
    is_test is set."""
    p = ratio.item() if ratio is not None else 0.5 if n.since >= 12 else n.ratio
    if not (training.item() if training is not None else n.since < 7 and not n.is_test) or not p:
        return (x, full(x.shape, 1, dtype='bool' if n.since >= 10 else x.dtype))[: n.n_out] if n.n_out > 1 else x
    if n.n_out == 1 and getattr(n, 'seed', None) is None:
        return ops.dropout(x, float(p))
    kept = _uniform(n, x.shape) >= tensor(p, 'f64')
    y = x * kept.cast(x.dtype) * (1 / (1 - p))
    return y if n.n_out == 1 else (y, kept if n.since >= 10 else kept.cast(x.dtype))


def _uniform(n, shape):
    """Uniform numbers in [0, 1)."""
    if getattr(n, 'seed', None) is None:
        return uniform(shape, dtype='f64')
    return tensor(np.random.RandomState(int(n.seed)).uniform(0, 1.0, shape), 'f64')


def _normal(n, shape):
    if n.seed is None:
        return randn(shape, dtype='f64')
    return tensor(np.random.RandomState(int(n.seed)).standard_normal(shape), 'f64')


def _name(n, x):
    return dtype(n.dtype) if n.dtype else x.dtype if x is not None else 'f32'


def _shape(n, x):
    return tuple(x.shape if x is not None else n.shape)


@op('RandomUniform', 'RandomUniformLike')
def random_uniform(n, x=None):
    return ops.cast(_uniform(n, _shape(n, x)) * (n.high - n.low) + n.low, _name(n, x))


@op('RandomNormal', 'RandomNormalLike')
def random_normal(n, x=None):
    return ops.cast(_normal(n, _shape(n, x)) * n.scale + n.mean, _name(n, x))


@op('Bernoulli')
def bernoulli(n, x):
    return ops.cast(_uniform(n, x.shape) < x.cast('f64'), _name(n, x))
