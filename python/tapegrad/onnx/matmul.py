"""Products of matrices and sums of products. Those of integers are exact as long as they fit into the 53 bits of
float64."""

import string

from .. import ops
from .dtypes import FLOATS
from .registry import op


def product(a, b):
    """a @ b; integers are multiplied as float64."""
    return a @ b if a.dtype in FLOATS else ops.cast(ops.cast(a, 'f64') @ ops.cast(b, 'f64'), a.dtype)


@op('MatMul')
def matmul(n, a, b):
    return product(a, b)


@op('Gemm')
def gemm(n, a, b, c=None):
    a = ops.transpose(a, 0, 1) if n.transA else a
    b = ops.transpose(b, 0, 1) if n.transB else b
    y = product(a, b)
    y = y if n.alpha == 1 else y * n.alpha
    if c is None or n.beta == 0:
        return y
    return y + (c if n.beta == 1 else c * n.beta)


@op('MatMulInteger')
def matmul_integer(n, a, b, a_zero=None, b_zero=None):
    return ops.cast(centered(a, of_rows(a_zero)) @ centered(b, b_zero), 'i32')


def centered(x, zero):
    """x - zero in float64; zero broadcasts."""
    x = ops.cast(x, 'f64')
    return x if zero is None else x - ops.cast(zero, 'f64')


def of_rows(zero):
    """A number, or one for each row of a matrix."""
    return zero.unsqueeze(-1) if zero is not None and zero.ndim == 1 else zero


@op('Det')
def det(n, x):
    """By elimination; the pivot of a column is its greatest element."""
    batch, size, y = x.shape[:-2], x.shape[-1], None
    x = x.reshape([-1, size, size])
    for left in range(size, 0, -1):
        row = ops.argmax(ops.abs(ops.select(x, 2, 0)), 1, keepdim=True)
        chosen = ops.eq(ops.arange(dtype='i64', stop=left), row).unsqueeze(-1)
        top = ops.sum(x * ops.cast(chosen, x.dtype), dims=[1], keepdim=True)
        sign = ops.cast(ops.eq(row, 0).reshape([-1]), x.dtype) * 2 - 1
        pivot = ops.select(ops.select(top, 2, 0), 1, 0)
        x = ops.where(chosen, ops.slice(x, 1, stop=1), x)  # the first row takes the place of the chosen one
        y = pivot * (sign if y is None else sign * y)
        below, pivot = (
            ops.slice(x, 1, start=1),
            ops.where(ops.eq(pivot, 0.0), ops.full(shape=[], value=1.0, dtype=x.dtype), pivot),
        )
        x = ops.slice(below - ops.slice(below, 2, stop=1) / pivot.reshape([-1, 1, 1]) * top, 2, start=1)
    return y.reshape(batch)


# ---- Einsum ----


@op('Einsum')
def einsum(n, *xs):
    """Multiplies the operands one after another, and keeps the labels that later operands or the output have."""
    terms, output = _labels(n.equation.replace(' ', ''), [x.ndim for x in xs])
    xs = [_diagonal(x, term) for x, term in zip(xs, terms)]
    terms = [''.join(dict.fromkeys(term)) for term in terms]
    y, term = xs[0], terms[0]
    for i, (x, other) in enumerate(zip(xs[1:], terms[1:]), 2):
        later = {*output, *''.join(terms[i:])}
        kept = ''.join(label for label in dict.fromkeys(term + other) if label in later)
        y, term = ops.einsum(y, x, f'{term},{other}->{kept}'), kept
    gone = [i for i, label in enumerate(term) if label not in output]
    y = ops.sum(y, dims=gone) if gone else y
    term = ''.join(label for label in term if label in output)
    return ops.permute(y, [term.index(label) for label in output])


def _labels(equation, ndims):
    """The labels of each operand and of the output, in which letters that are free stand for an ellipsis."""
    left, arrow, output = equation.partition('->')
    terms = left.split(',')
    free = [c for c in string.ascii_letters if c not in equation]
    hidden = [ndim - len(term.replace('...', '')) for term, ndim in zip(terms, ndims)]
    most = max((k for k, term in zip(hidden, terms) if '...' in term), default=0)
    dots = ''.join(free[:most])
    if not arrow:
        letters = left.replace('...', '').replace(',', '')
        output = '...' * ('...' in left) + ''.join(sorted(c for c in set(letters) if letters.count(c) == 1))
    terms = [term.replace('...', dots[most - k :] if k else '') for term, k in zip(terms, hidden)]
    return terms, output.replace('...', dots)


def _diagonal(x, term):
    """x with one dim for each label: those of a label that occurs twice become their diagonal."""
    for i, label in enumerate(term):
        first = term.index(label)
        if first < i:
            size = x.shape[i]
            order = [d for d in range(x.ndim) if d not in (first, i)]
            rows = ops.permute(x, [*order, first, i]).reshape([*(x.shape[d] for d in order), size * size])
            rows = ops.slice(rows, rows.ndim - 1, step=size + 1)
            order.insert(first, None)
            back = [d for d in range(len(order))]
            back.remove(len(order) - 1)
            back.insert(first, len(order) - 1)
            return _diagonal(ops.permute(rows, back), term[:i] + term[i + 1 :])
    return x
