"""Functions of PyTorch as ops of Tapegrad: PyTorch computes the result and, in backward, the gradients."""

import functools

import torch

import tapegrad as tg

from .tensors import given, taken


def op(f):
    """f, a function of PyTorch tensors that returns one or a tuple of them, as a function of Tensors. f sees their
    bytes. Gradients flow through it, once. Arguments that are no tensors are passed on."""

    @functools.wraps(f)
    def call(*args, **named):
        return apply(f, args, named)

    return call


class Foreign:
    """A result of PyTorch whose dtype, layout or number of dims Tapegrad lacks, such as a complex one, and the tensors
    that it depends on: pairs of a Tensor and the leaf of PyTorch's graph that has its bytes."""

    def __init__(self, value, sources):
        self.value, self.sources = value, sources


def apply(f, args, named):
    """f(*args, **named) for arguments that may hold Tensors and Foreigns, also in lists."""
    sources = {}

    def leaf(x):
        if isinstance(x, Foreign):
            sources.update(x.sources)
            return x.value
        y = given(x)
        if isinstance(x, tg.Tensor) and x.requires_grad:
            sources[id(y)] = x, y.requires_grad_()
        return y

    args, named = torch.utils._pytree.tree_map(leaf, (args, named))
    with torch.set_grad_enabled(bool(sources)):
        results = f(*args, **named)
    flat, spec = torch.utils._pytree.tree_flatten(results)
    return torch.utils._pytree.tree_unflatten(_attached(flat, sources), spec)


def _attached(flat, sources):
    """The tensors among values as Tensors, whose gradients PyTorch passes on to the inputs."""
    values = [taken(y) if isinstance(y, torch.Tensor) else y for y in flat]
    values = [Foreign(y, sources) if isinstance(y, torch.Tensor) else y for y in values]
    places = [i for i, y in enumerate(values) if isinstance(y, tg.Tensor) and flat[i].requires_grad]
    if places:
        inputs, leaves = zip(*sources.values())
        edges = [torch.autograd.graph.get_gradient_edge(flat[i]) for i in places]
        made = _foreign(*inputs, results=[values[i] for i in places], edges=edges, leaves=leaves)
        for i, y in zip(places, made if isinstance(made, tuple) else (made,)):
            values[i] = y
    return values


@tg.custom_op
def _foreign(call, *inputs, results, edges, leaves):
    """The results, which PyTorch has computed. edges are where they leave its graph, and leaves where the inputs enter
    it."""
    call.edges, call.leaves, call.arguments = edges, leaves, {}
    return results


@_foreign.backward
def _foreign_backward(call, *seeds):
    pairs = [(edge, given(s)) for edge, s in zip(call.edges, seeds) if s is not None]
    edges, seeds = zip(*pairs)
    wanted = [x for x, needed in zip(call.leaves, call.needs) if needed]
    found = iter(torch.autograd.grad(edges, wanted, seeds, retain_graph=True, allow_unused=True))
    grads = [next(found) if needed else None for needed in call.needs]
    return [None if g is None else taken(g) for g in grads]
