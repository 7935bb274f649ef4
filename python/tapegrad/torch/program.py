"""A traced graph as calls of Tapegrad's ops: by Python in its first run, and then in sequences."""

import operator

import torch

import tapegrad as tg

from . import fallback
from .foreign import Foreign
from .ops import TABLE, Out, Unmapped
from .ops.table import DTYPES, FLOATS, MAX_DIMS
from .sequence import Sequence
from .tensors import taken


class _Slot(int):
    """The place of a value among those of a run, in the arguments of a step."""


class Step:
    """A node of the graph: a function, and where its arguments are found and its result is put."""

    __slots__ = ('target', 'function', 'out', 'args', 'named', 'reads', 'place', 'ended')

    def __init__(self, node, places):
        self.target, self.place, self.ended = node.target, places[node], []
        self.out = _described(node.meta.get('val'))
        self.args = [_placed(a, places) for a in node.args]
        self.named = {name: _placed(a, places) for name, a in node.kwargs.items()}
        self.reads = set(_slots([self.args, list(self.named.values())]))
        self.function = _function(node)

    @property
    def in_pytorch(self):
        return isinstance(self.function, fallback.Operator)

    def run(self, values):
        """Computes the value of the step, and drops the values that no later step reads. If Tapegrad has no counterpart
        of the op for its arguments, for their shapes, or for integers or bools, PyTorch computes it from then on."""
        try:
            values[self.place] = self.call(values)
        except (Unmapped, tg.ShapeError):  # PyTorch has accepted the shapes while it traced the graph
            self._fall_back(values)
        except tg.Error as error:
            if isinstance(error, tg.DtypeError) and not _has_floats(self.out):
                self._fall_back(values)
            else:
                error.args = (f'{error} (in {self.target} of the compiled graph)',)
                raise
        for place in self.ended:
            values[place] = None

    def _fall_back(self, values):
        self.function = fallback.Operator(self.target)
        values[self.place] = self.call(values)

    def call(self, values):
        args = [_filled(a, values) for a in self.args]
        named = {name: _filled(a, values) for name, a in self.named.items()}
        return self.function(self.out, *args, **named)


class Program:
    """The steps of a Trace. It may be run by one context only, because it holds the constants of the graph as
    tensors. In all runs the inputs have the same shapes, strides and dtypes."""

    def __init__(self, trace):
        nodes = list(trace.module.graph.nodes)
        places = {node: _Slot(i) for i, node in enumerate(nodes)}
        self.count = len(nodes)
        self.inputs = [places[n] for n in nodes if n.op == 'placeholder']
        self.constants = {places[n]: taken(getattr(trace.module, n.target)) for n in nodes if n.op == 'get_attr'}
        self.steps = [Step(n, places) for n in nodes if n.op == 'call_function']
        self.parts = None  # after the first run: the steps, in which a Sequence stands for several in a row
        self.results = [_placed(r, places) for r in nodes[-1].args[0]]
        self._find_ends()

    def _find_ends(self):
        """Notes for each step which values no later step reads, so that their memory is free from then on."""
        kept = {p for p in self.results if isinstance(p, _Slot)} | set(self.constants)
        for step in reversed(self.steps):
            step.ended = list(step.reads - kept) + ([] if step.place in kept else [step.place])
            kept |= step.reads | {step.place}

    def run(self, inputs):
        """Returns the results for these tensors: tensors of either library, numbers or None."""
        values = [None] * self.count
        for place, x in zip(self.inputs, inputs):
            values[place] = x
        for place, x in self.constants.items():
            values[place] = x
        for part in self.parts or self.steps:
            part.run(values)
        if self.parts is None:  # the first run has found out what PyTorch computes
            self.parts = list(_parts(self.steps, set(self.constants)))
        return [r.value.detach() if isinstance(r, Foreign) else r for r in _filled(self.results, values)]


def _parts(steps, constants):
    """The steps in sequences, and those between them that Python has to call: ops that PyTorch computes, and getitem
    of a tuple that was made before the sequence."""
    row, made = [], set()
    for step in steps:
        alone = step.in_pytorch or (step.target is operator.getitem and not step.reads <= made)
        if alone and row:
            yield Sequence(row, constants)
            row, made = [], set()
        if alone:
            yield step
        else:
            row.append(step)
            made.add(step.place)
    if row:
        yield Sequence(row, constants)


def _function(node):
    if node.target is operator.getitem:
        # A function of the table that returns only the first of several results returns it without a tuple.
        return lambda out, x, i: x[i] if isinstance(x, (tuple, list)) else x
    function = TABLE.get(node.target)
    return function if function and _is_supported(node, function.results) else fallback.Operator(node.target)


def _is_supported(node, results):
    """Whether Tapegrad has the dtypes and dims of all operands, and the function of the table all results that are
    read."""
    tensors = [n.meta.get('val') for n in node.all_input_nodes] + [node.meta.get('val')]
    if not all(_has(x) for x in tensors):
        return False
    return results is None or all(user.args[1] < results for user in node.users)


def _has(value):
    if isinstance(value, (tuple, list)):
        return all(_has(x) for x in value)
    return not isinstance(value, torch.Tensor) or (value.dtype in DTYPES and value.ndim <= MAX_DIMS)


def _described(value):
    if isinstance(value, (tuple, list)):
        return [_described(x) for x in value]
    return Out(tuple(value.shape), DTYPES.get(value.dtype)) if isinstance(value, torch.Tensor) else None


def _has_floats(out):
    """Whether one of the results of an op has floats."""
    return any(map(_has_floats, out)) if type(out) is list else out is not None and out.dtype in FLOATS


def _placed(argument, places):
    """An argument of a node with the places of values instead of nodes."""
    if isinstance(argument, torch.fx.Node):
        return places[argument]
    return [_placed(a, places) for a in argument] if isinstance(argument, (list, tuple)) else argument


def _filled(argument, values):
    if type(argument) is _Slot:
        return values[argument]
    return [_filled(a, values) for a in argument] if type(argument) is list else argument


def _slots(arguments):
    for a in arguments:
        if type(a) is list:
            yield from _slots(a)
        elif type(a) is _Slot:
            yield a
