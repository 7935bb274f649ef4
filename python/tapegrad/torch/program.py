"""A traced graph as a list of calls of Tapegrad's ops."""

import operator

import torch

import tapegrad as tg

from . import fallback
from .foreign import Foreign
from .ops import TABLE, Out, Unmapped
from .ops.table import DTYPES, MAX_DIMS
from .tensors import taken


class _Slot(int):
    """The place of a value among those of a run, in the arguments of a step."""


class Step:
    """A node of the graph: a function, and where its arguments are found and its result is put."""

    __slots__ = ('target', 'function', 'out', 'args', 'named', 'place', 'ended')

    def __init__(self, node, places):
        self.target, self.place, self.ended = node.target, places[node], []
        self.out = _described(node.meta.get('val'))
        self.args = [_placed(a, places) for a in node.args]
        self.named = {name: _placed(a, places) for name, a in node.kwargs.items()}
        self.function = _function(node)

    def run(self, values):
        args = [_filled(a, values) for a in self.args]
        named = {name: _filled(a, values) for name, a in self.named.items()}
        try:
            values[self.place] = self.function(self.out, *args, **named)
        except Unmapped:
            self.function = fallback.Operator(self.target)
            values[self.place] = self.function(self.out, *args, **named)
        except tg.Error as error:
            error.args = (f'{error} (in {self.target} of the compiled graph)',)
            raise
        for place in self.ended:
            values[place] = None


class Program:
    """The steps of a Trace. It may be run by one context only, because it holds the constants of the graph as
    tensors."""

    def __init__(self, trace):
        nodes = list(trace.module.graph.nodes)
        places = {node: _Slot(i) for i, node in enumerate(nodes)}
        self.count = len(nodes)
        self.inputs = [places[n] for n in nodes if n.op == 'placeholder']
        self.constants = [(places[n], taken(getattr(trace.module, n.target))) for n in nodes if n.op == 'get_attr']
        self.steps = [Step(n, places) for n in nodes if n.op == 'call_function']
        self.results = [_placed(r, places) for r in nodes[-1].args[0]]
        self._find_ends()

    def _find_ends(self):
        """Notes for each step which values no later step reads, so that their memory is free from then on."""
        kept = {p for p in self.results if isinstance(p, _Slot)}
        for step in reversed(self.steps):
            read = set(_slots([step.args, list(step.named.values())]))
            step.ended = list(read - kept) + ([] if step.place in kept else [step.place])
            kept |= read | {step.place}

    def run(self, inputs):
        """Returns the results for these tensors: tensors of either library, numbers or None."""
        values = [None] * self.count
        for place, x in zip(self.inputs, inputs):
            values[place] = x
        for place, x in self.constants:
            values[place] = x
        for step in self.steps:
            step.run(values)
        return [r.value.detach() if isinstance(r, Foreign) else r for r in _filled(self.results, values)]


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
