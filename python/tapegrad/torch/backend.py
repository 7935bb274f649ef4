"""The backend "tapegrad" of torch.compile."""

import weakref

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import tapegrad as tg

from .program import Program
from .run import Call, context_of, leaf
from .tensors import given
from .trace import restore, trace


def backend(module, example_inputs, **_):
    """Compiles a graph of torch.compile. Its ops run on Tapegrad, forward and backward."""
    return _with_own_backward(module, example_inputs) if _has_own_backward(module) else _Compiled(module)


def _has_own_backward(module):
    """Whether a graph has an autograd.Function, whose backward is not the derivative of its ops."""
    graphs = (
        [m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule)]
        if isinstance(module, torch.nn.Module)
        else []
    )
    return any(n.target is torch.ops.higher_order.autograd_function_apply for g in graphs for n in g.nodes)


def _boxed(module, _):
    """Compiles a graph of AOTAutograd. A view in it relies on the strides that PyTorch gives to the results of other
    graphs. Tapegrad's results may have other strides, so views become reshapes."""
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    module.recompile()
    return make_boxed_func(_Compiled(module))


# PyTorch derives the graph of the backward, which then is compiled like one of a forward.
_with_own_backward = aot_autograd(fw_compiler=_boxed, bw_compiler=_boxed)


class _Compiled:
    """A graph, with a program for each context, so for each thread and device. If there are numbers among the arguments
    (dynamic shapes), each set of numbers and shapes has a program of its own too."""

    def __init__(self, module):
        self.module, self.programs = module, {}

    def __call__(self, *args):
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        context = context_of(tensors[0].device if tensors else torch.device('cpu'))
        key = (
            (context, *(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args))
            if len(tensors) < len(args)
            else context
        )
        program = self.programs.get(key)
        if program is None:
            program = self.programs[key] = _Traced(context, trace(self.module, args))
        return program(tensors)


class _Traced:
    """A program with what surrounds it: imports of its inputs, writes to them, and results that are inputs."""

    def __init__(self, context, traced):
        self.context, self.traced, self.imports = context, traced, _Imports()
        self.used = traced.drop_unused_inputs()
        self.written = [self.used.index(i) for i in traced.written if i in self.used]
        with context:
            self.program = Program(traced)
        places = dict(zip(self.program.inputs, self.used))
        self.same = [(i, places[p]) for i, p in enumerate(self.program.results) if p in places]

    def __call__(self, tensors):
        results = self._run([tensors[i] for i in self.used])
        for i, place in self.same:
            results[i] = tensors[place]
        n = self.traced.count
        with torch.no_grad():
            for place, value in zip(self.traced.written, results[n:]):
                tensors[place].copy_(value)
        return restore(self.traced, results[:n])

    def _run(self, tensors):
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return list(Call.apply(self.context, self.program.run, self.imports, self.written, *tensors))
        with self.context, tg.no_grad():
            return [given(y) for y in self.program.run(self.imports(self.context, tensors))]


class _Imports:
    """The inputs of a graph as Tensors. A tensor that comes again, such as a parameter, is imported once. An import
    ends with its tensor."""

    def __init__(self):
        self.known = {}

    def __call__(self, context, tensors, required=None):
        with context:
            return [self._one(i, x, required is not None and required[i]) for i, x in enumerate(tensors)]

    def _one(self, place, x, required):
        known = self.known.get(place)
        if known is not None and known[0]() is x and known[1:3] == (x.data_ptr(), required):
            return known[3]
        imported = leaf(x, required)
        forget = weakref.ref(self)
        self.known[place] = weakref.ref(x, lambda ref: _forget(forget(), place, ref)), x.data_ptr(), required, imported
        return imported


def _forget(imports, place, ref):
    if imports is not None and place in imports.known and imports.known[place][0] is ref:
        del imports.known[place]
