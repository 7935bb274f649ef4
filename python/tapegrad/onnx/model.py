"""Models: loading, parameters and calls."""

import os

import numpy
import onnx
from google.protobuf.message import DecodeError

from ..objects import note_site
from ..tensor import Tensor
from . import graph
from .dtypes import DTYPES, FLOATS, from_array
from .gradient import leaves_of
from .registry import MissingOp


def load(model, requires_grad=False):
    """A model that runs on Tapegrad, of a path or an onnx.ModelProto. With requires_grad, its parameters are trained.
    Raises MissingOp, with all names, if it needs ops or dtypes that Tapegrad does not have."""
    if isinstance(model, (str, os.PathLike)):
        model = _read(model)
    return Model(onnx.shape_inference.infer_shapes(model), requires_grad)


def _read(path):
    try:
        return onnx.load(path)
    except DecodeError as error:
        raise ValueError(f'{os.fspath(path)!r} is not a model in ONNX: {error}') from None


class Model:
    """A graph that can be called: model(x, ...) in the order of its inputs, or model(name=x). The result is a tensor,
    or a tuple of them if there are several outputs.

    inputs and outputs map names to (dtype, shape); a size that is not fixed is text or None, and a dtype or shape that
    the model does not declare is None. parameters maps the names
    of float initializers to tensors. Their requires_grad may be set, and optimizers may write them."""

    def __init__(self, model, requires_grad=False):
        missing = []
        types = {v.name: v.type for v in [*model.graph.input, *model.graph.value_info, *model.graph.output]}
        types.update({i.name: onnx.helper.make_tensor_type_proto(i.data_type, i.dims) for i in model.graph.initializer})
        functions = {(f.domain, f.name): f for f in model.functions}
        rules = graph.Rules(graph.opsets_of(model), functions, types, missing)
        self._graph = graph.of_graph(rules, model.graph)
        if missing:
            raise MissingOp(missing)
        self._leaves = leaves_of(self._graph)
        self._defaults = {i.name for i in model.graph.input} & {*self._graph.constants}
        self.inputs = {v.name: _signature(v.type) for v in model.graph.input if v.name not in self._defaults}
        self.outputs = {v.name: _signature(v.type) for v in model.graph.output}
        self.parameters = graph.float_constants(self._graph)
        self.requires_grad(requires_grad)

    def requires_grad(self, on=True):
        """Says whether the parameters require gradients, and returns the model. Those for which a node Gradient
        computes a gradient always do."""
        for name, x in self.parameters.items():
            x.requires_grad = on or name in self._leaves
        return self

    def __call__(self, *inputs, **named):
        note_site(1)
        values = {**dict(zip(self.inputs, inputs)), **named}
        if len(values) < len(inputs) + len(named):
            got = [f'{len(inputs)} values', *named]
            raise TypeError(f'the model has the inputs {", ".join(self.inputs)}, but got {", ".join(got)}')
        results = self.run(values)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs):
        """The outputs as a list, for a dict of the inputs. An initializer that is an input may be given too."""
        note_site(1)
        unknown = [name for name in inputs if name not in self.inputs and name not in self._defaults]
        if unknown:
            raise TypeError(f'the model has the inputs {", ".join(self.inputs)}, but got {", ".join(unknown)}')
        absent = [name for name, (kind, _) in self.inputs.items() if name not in inputs and kind != 'optional']
        if absent:
            raise TypeError(f'the model needs the inputs {", ".join(self.inputs)}; {", ".join(absent)} is not given')
        values = {name: _value(x, self.inputs.get(name)) for name, x in inputs.items()}
        values.update({name: None for name in self.inputs if name not in inputs})
        for name in self._leaves & {*values}:
            values[name] = _leaf(values[name])
        return self._graph.run(values)


def _signature(proto):
    """(dtype, shape) of a type; a sequence is ('sequence', None), and a type that is not declared (None, None)."""
    kind = proto.WhichOneof('value')
    if kind is None:
        return None, None
    if kind != 'tensor_type':
        return kind.removesuffix('_type'), None
    t = proto.tensor_type
    shape = (
        tuple(d.dim_value if d.HasField('dim_value') else d.dim_param or None for d in t.shape.dim)
        if t.HasField('shape')
        else None
    )
    return DTYPES.get(t.elem_type), shape


def _value(x, signature):
    """An input as a tensor of its dtype, or a list of them, or None."""
    if x is None or isinstance(x, Tensor):
        return x
    kind = signature[0] if signature else 'sequence'
    if kind not in DTYPES.values():
        return [_value(part, None) for part in x] if isinstance(x, (list, tuple)) else from_array(numpy.asarray(x))
    return from_array(numpy.asarray(x), kind)


def _leaf(x):
    if x.dtype in FLOATS and not x.requires_grad:
        x = x.detach()
        x.requires_grad = True
    return x
