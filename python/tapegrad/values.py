"""Python's values as those of the C interface: dtypes, shapes, and numbers of a new tensor."""

import array
from numbers import Integral
from operator import index

from ._capi import ffi, lib

DTYPES = {ffi.string(lib.tg_dtype_name(i)).decode(): i for i in range(1, lib.TG_DTYPE_COUNT)}
# Names of the same dtypes in other libraries.
OTHERS = {
    'float32': 'f32',
    'float64': 'f64',
    'bfloat16': 'bf16',
    'float16': 'f16',
    'int64': 'i64',
    'int32': 'i32',
    'uint8': 'u8',
    'int8': 'i8',
    'int16': 'i16',
    'uint16': 'u16',
    'uint32': 'u32',
    'uint64': 'u64',
    'float8_e4m3fn': 'f8e4m3',
    'float8_e5m2': 'f8e5m2',
    'float8_e8m0fnu': 'f8e8m0',
    'bool_': 'bool',
    'float': 'f64',
    'int': 'i64',
}
FLOATS = ('f32', 'f64', 'bf16', 'f16')
INTEGERS = ('i8', 'i16', 'i32', 'i64', 'u8', 'u16', 'u32', 'u64')
NUMPY = {
    'f32': 'float32',
    'f64': 'float64',
    'f16': 'float16',
    'i64': 'int64',
    'i32': 'int32',
    'u8': 'uint8',
    'i8': 'int8',
    'i16': 'int16',
    'u16': 'uint16',
    'u32': 'uint32',
    'u64': 'uint64',
    'bool': 'bool',
}
# The codes of Python's array.
CODES = {
    'f32': 'f',
    'f64': 'd',
    'i64': 'q',
    'i32': 'i',
    'i16': 'h',
    'i8': 'b',
    'u64': 'Q',
    'u32': 'I',
    'u16': 'H',
    'u8': 'B',
    'bool': 'B',
}


def dtype_name(dtype):
    """The library's name of a dtype: of "f32", "float32", numpy.float32, torch.float32 or float."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, '__name__', None) or str(dtype)
    name = name.rpartition('.')[2]
    name = OTHERS.get(name, name)
    if name not in DTYPES:
        raise TypeError(f'the dtype is {dtype!r}, but the library has {", ".join(DTYPES)}')
    return name


def dtype_value(dtype):
    return lib.TG_DTYPE_DEFAULT if dtype is None else DTYPES[dtype_name(dtype)]


def shape_value(shape):
    """A tg_shape, of an integer or a sequence of integers."""
    sizes = [index(n) for n in ((shape,) if isinstance(shape, Integral) else shape)]
    return lib.tg_shape_make(len(sizes), ffi.new('int64_t[]', sizes) if sizes else ffi.NULL)


def flattened(data):
    """The shape and the numbers of nested sequences. Raises ValueError if their lengths differ."""
    if not isinstance(data, (list, tuple)):
        if not hasattr(data, '__float__'):
            raise TypeError(f'an element is {data!r}, but must be a number')
        return (), [data]
    parts = [flattened(part) for part in data]
    shapes = {shape for shape, _ in parts}
    if len(shapes) > 1:
        raise ValueError(f'the parts of a sequence have the shapes {sorted(shapes)}, but must have the same')
    inner = shapes.pop() if shapes else ()
    return (len(data), *inner), [number for _, numbers in parts for number in numbers]


def dtype_of_numbers(numbers):
    """bool, i64, u64 if i64 is too narrow, or None for the context's default float."""
    if numbers and all(map(_is_bool, numbers)):
        return 'bool'
    if not numbers or not all(isinstance(n, Integral) or _is_bool(n) for n in numbers):  # also NumPy's integers
        return None
    return 'u64' if max(map(int, numbers)) >= 2**63 else 'i64'


def _is_bool(n):
    return isinstance(n, bool) or getattr(n, 'dtype', None) == 'bool'  # also NumPy's bools


def bytes_of(numbers, dtype):
    """The elements as bytes of a dtype that Python's array knows; None for another dtype."""
    code = CODES.get(dtype)
    if code is None:
        return None
    if code not in 'fd':
        kind = bool if dtype == 'bool' else int
        numbers = [int(kind(n)) for n in numbers]
    return array.array(code, numbers)


def write(x, numbers):
    """Writes an array of doubles, or of elements of the tensor's dtype, into a new tg_tensor. Does nothing on device
    meta, whose tensors have no values."""
    if ffi.string(lib.tg_ctx_device(lib.tg_ctx_of(x))) == b'meta':
        return
    if numbers.typecode == 'd':
        lib.tg_write_f64(x, ffi.from_buffer('double[]', numbers), len(numbers))
    else:
        lib.tg_write(x, ffi.from_buffer(numbers), len(numbers) * numbers.itemsize)
