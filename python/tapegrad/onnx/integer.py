"""Products of integers, whose sums are exact in float64."""
from .. import ops
from .registry import op


def centered(x, zero):
    """x - zero in float64. A zero point of several elements belongs to the rows."""
    x = ops.cast(x, 'f64')
    if zero is None:
        return x
    zero = ops.cast(zero, 'f64')
    return x - (zero.unsqueeze(-1) if zero.ndim else zero)


@op('MatMulInteger')
def matmul_integer(n, a, b, a_zero=None, b_zero=None):
    b = ops.cast(b, 'f64')
    b = b if b_zero is None else b - ops.cast(b_zero, 'f64')
    return ops.cast(centered(a, a_zero) @ b, 'i32')
