"""The table of ops, and what the functions in it share.

A function of the table is called as f(out, *args, **kwargs). out describes the result or is a list with a description
of each result; the rest are the arguments of the ATen op, whose tensors are Tensors. It raises Unmapped if Tapegrad has
no counterpart for these arguments; the op then runs in PyTorch. So does one after a ShapeError, such as a softmax of a
tensor without dims, and one without float results after a DtypeError.

The calls of ops are recorded and then repeated for other tensors (sequence.py). So a function computes by ops of the
library alone, and decides by arguments, shapes and dtypes, not by numbers or by whether a tensor needs a gradient."""

import functools
import typing
import weakref

import torch

import tapegrad as tg

TABLE = {}

DTYPES = {
    torch.float32: 'f32',
    torch.float64: 'f64',
    torch.bfloat16: 'bf16',
    torch.float16: 'f16',
    torch.int64: 'i64',
    torch.int32: 'i32',
    torch.uint8: 'u8',
    torch.int8: 'i8',
    torch.int16: 'i16',
    torch.uint16: 'u16',
    torch.uint32: 'u32',
    torch.uint64: 'u64',
    torch.bool: 'bool',
}
_TORCH = {name: dtype for dtype, name in DTYPES.items()}
FLOATS = ('f32', 'f64', 'bf16', 'f16')
MAX_DIMS = 8


class Unmapped(Exception):
    """Tapegrad has no counterpart for an op with these arguments."""


class Out(typing.NamedTuple):
    """The shape and dtype of a result."""

    shape: tuple
    dtype: str


def maps(*overloads, results=None):
    """Puts a function into the table. If the op returns a tuple of which the function returns only the first members,
    `results` says how many."""

    def add(function):
        for overload in overloads:
            TABLE[overload] = function
        function.results = results
        return function

    return add


def require(condition, reason):
    if not condition:
        raise Unmapped(reason)


# ---- Dtypes ----


def to(x, dtype):
    """x in a dtype."""
    return x if x.dtype == dtype else tg.ops.cast(x, dtype=dtype)


def common(a, b):
    """The dtype that PyTorch computes with, of two operands of which one may be a number."""
    return _common(*(_kind(x) for x in (a, b)))


def _kind(x):
    return (x.dtype, x.ndim > 0) if isinstance(x, tg.Tensor) else type(x)


@functools.cache
def _common(a, b):
    return DTYPES[torch.result_type(_example(a), _example(b))]


def _example(kind):
    return kind(1) if isinstance(kind, type) else torch.ones([1] * kind[1], dtype=_TORCH[kind[0]])


# ---- Numbers ----

_numbers = weakref.WeakKeyDictionary()


def number(value, dtype):
    """A tensor without dims. Each context has one for each value and dtype, which lasts as long as the context."""
    known = _numbers.setdefault(tg.context(), {})
    key = dtype, repr(value)
    if key not in known:
        known[key] = tg.tensor(value, dtype=dtype)
    return known[key]


def operand(x, dtype):
    """A tensor or number as a tensor of a dtype."""
    return to(x, dtype) if isinstance(x, tg.Tensor) else number(x, dtype)


def times(x, n):
    """n numbers, of one or n numbers; for n = 1 the number itself."""
    x = [x] if isinstance(x, int) else list(x)
    x = x * n if len(x) == 1 else x
    return x[0] if n == 1 else x
