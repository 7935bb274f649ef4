"""Initial values (tg_init in nn.h). Each function here returns a function that writes values into a tensor and returns
it; the layers take it:

    nn.Linear(64, 32, weight=init.kaiming_normal())
    init.orthogonal()(model.hidden.weight)
"""

import math

from .._capi import lib
from ..errors import fail
from ..structs import options


def _writer(kind, **fields):
    struct = options('tg_init', {'kind': kind, **fields})

    def write(x):
        if lib.tg_param_init(x._live(), struct):
            fail(x._world)
        return x

    return write


def constant(value):
    return _writer('constant', a=value)


def zeros():
    return constant(0)


def ones():
    return constant(1)


def normal(mean=0, std=1):
    return _writer('normal', a=mean, b=std)


def uniform(low=0, high=1):
    return _writer('uniform', a=low, b=high)


def truncated_normal(mean=0, std=1):
    """Normal between mean - 2 std and mean + 2 std."""
    return _writer('truncated', a=mean, b=std)


def eye(value=1):
    """value on the diagonal of a matrix, and 0 elsewhere."""
    return _writer('eye', a=value)


def orthogonal(gain=1):
    """gain times a random matrix with orthonormal columns or rows (Saxe et al., arXiv 1312.6120)."""
    return _writer('orthogonal', b=gain)


def kaiming_normal(gain=math.sqrt(2)):
    """Normal with the standard deviation gain / sqrt(inputs) (He et al., arXiv 1502.01852). The default gain is that of
    relu."""
    return _writer('normal', b=gain, fan='in')


def kaiming_uniform(gain=math.sqrt(2)):
    """Uniform with the standard deviation gain / sqrt(inputs)."""
    return _writer('uniform', b=gain, fan='in')


def xavier_normal(gain=1):
    """Normal with the standard deviation gain / sqrt((inputs + outputs) / 2) (Glorot and Bengio, AISTATS 2010)."""
    return _writer('normal', b=gain, fan='mean')


def xavier_uniform(gain=1):
    """Uniform with the standard deviation of xavier_normal."""
    return _writer('uniform', b=gain, fan='mean')
