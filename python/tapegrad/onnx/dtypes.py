"""Dtypes and values of ONNX as those of Tapegrad."""

import numpy as np
from onnx import TensorProto, numpy_helper

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
    TensorProto.BOOL: 'bool',
}
FLOATS = ('f32', 'f64', 'f16', 'bf16')
FIELDS = ('to', 'dtype', 'output_dtype', 'output_datatype', 'precision')  # attributes that are dtypes


def missing(code):
    """What MissingOp calls a dtype, or None if the library has it. Code 0 is a dtype that is not known."""
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
    """A tensor with the values of an array, or with the given dtype."""
    if array.dtype.name == 'bfloat16':
        array, name = array.astype('float32'), name or 'bf16'
    return tensor(array, name)


def number(x):
    """The only element of a tensor, as a number."""
    return x.item()


def integers(x):
    """The elements of a tensor of integers, as a list of integers."""
    return [int(n) for n in x.numpy().reshape(-1)]


def on_host(fn, *inputs, dtype=None):
    """A tensor of what fn computes from arrays of the inputs: integers and bools, for ops that the library has for
    floats only. No gradient flows."""
    result = np.asarray(fn(*[x.numpy() for x in inputs]))
    return tensor(result, dtype or inputs[0].dtype)
