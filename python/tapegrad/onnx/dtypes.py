"""Dtypes and values of ONNX as those of Tapegrad."""

import math

import numpy as np
from onnx import TensorProto, numpy_helper

from .. import ops
from ..tensor import tensor
from .registry import MissingOp

DTYPES = {
    TensorProto.FLOAT: 'f32',
    TensorProto.DOUBLE: 'f64',
    TensorProto.FLOAT16: 'f16',
    TensorProto.BFLOAT16: 'bf16',
    TensorProto.INT64: 'i64',
    TensorProto.INT32: 'i32',
    TensorProto.UINT8: 'u8',
    TensorProto.INT8: 'i8',
    TensorProto.INT16: 'i16',
    TensorProto.UINT16: 'u16',
    TensorProto.UINT32: 'u32',
    TensorProto.UINT64: 'u64',
    TensorProto.FLOAT8E4M3FN: 'f8e4m3',
    TensorProto.FLOAT8E5M2: 'f8e5m2',
    TensorProto.FLOAT8E8M0: 'f8e8m0',
    TensorProto.BOOL: 'bool',
}
FLOATS = ('f32', 'f64', 'f16', 'bf16')
GREATEST = {'f8e4m3': 448.0, 'f8e5m2': 57344.0, 'f8e8m0': 2.0**127}  # the numbers of float8 end here
FIELDS = ('to', 'dtype', 'output_dtype', 'output_datatype', 'precision')  # attributes that are dtypes


def missing(code):
    """What MissingOp calls a dtype; None if the library has it, or if the code is 0, which stands for an unknown
    dtype."""
    return None if code in DTYPES or not code else 'dtype ' + TensorProto.DataType.Name(code).lower()


def dtype(code):
    """The library's name of a dtype of ONNX."""
    if code not in DTYPES:
        raise MissingOp([missing(code) or 'dtype undefined'])
    return DTYPES[code]


def missing_of_type(proto):
    """The dtypes of a TypeProto that the library lacks."""
    kind = proto.WhichOneof('value')
    if kind in ('sequence_type', 'optional_type'):
        return missing_of_type(getattr(proto, kind).elem_type)
    if kind is None:
        return []
    name = missing(proto.tensor_type.elem_type) if kind == 'tensor_type' else kind
    return [name] if name else []


def from_proto(proto):
    """A tensor with the values of a TensorProto."""
    return from_array(numpy_helper.to_array(proto), dtype(proto.data_type))


def from_array(array, name=None):
    """A tensor with the values of an array, in the dtype of this name or else in that of the array."""
    return tensor(array, name)


def to_float8(x, name, saturates=True, mode='up'):
    """x in a dtype of float8, where numbers that are too great become the greatest one. If it does not saturate, they
    become infinity, or NaN where the dtype has no infinity. The mode says how powers of two are rounded, on the
    host."""
    x = ops.cast(x, 'f32')
    if name == 'f8e8m0':
        return from_array(numpy_helper.to_float8e8m0(x.numpy(), saturates, mode))
    if saturates:
        x = ops.clamp(x, -GREATEST[name], GREATEST[name])
    elif name == 'f8e4m3':
        x = ops.masked_fill(x, ops.abs(x) > 464, math.nan)  # up to 464 they are rounded to 448
    return ops.cast(x, name)


def number(x):
    """The only element of a tensor, as a number."""
    return x.item()


def integers(x):
    """The elements of a tensor of integers, as a list of integers."""
    return [int(n) for n in x.numpy().reshape(-1)]


def on_host(fn, *inputs, dtype=None):
    """A tensor of what fn computes from arrays of the inputs, for what no op of the library computes, such as powers of
    integers. Its dtype is that of the first input by default. No gradient flows."""
    result = np.asarray(fn(*[x.numpy() for x in inputs]))
    return tensor(result, dtype or inputs[0].dtype)
