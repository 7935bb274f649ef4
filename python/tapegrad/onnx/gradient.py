"""Ops of training graphs: gradients, and steps of optimizers."""

from .. import ops
from ..derivatives import grad
from .registry import TRAINING, MissingOp, op


@op('Gradient', domain=TRAINING, scope=True)
def gradient(n, scope, *inputs):
    """The gradients of the value y for the values xs. The inputs are these values, and what y depends on otherwise."""
    return tuple(grad(scope[n.y], [scope[name] for name in n.xs], create_graph=True))


def leaves_of(graph):
    """The names of the values with respect to which the graph computes gradients. Raises MissingOp if a node has other
    inputs than the values that it names, because the graph would have to run again for these."""
    nodes = [step.node for step in graph.steps if step.node.op == 'Gradient']
    if any(n.inputs != [*n.xs, *(n.zs or ())] for n in nodes):
        raise MissingOp([f'{TRAINING}:Gradient with inputs that are not xs and zs'])
    return {name for n in nodes for name in n.xs}


def _groups(n, values, kinds):
    """The parameters, gradients and states of a step: for each tensor, one of each kind."""
    count = len(values) // kinds
    return [values[i::count] for i in range(count)]


def _regrouped(results):
    """All new parameters, then all states of the first kind, and so on."""
    return tuple(value for kind in zip(*results) for value in kind)


@op('Adagrad', domain=TRAINING)
def adagrad(n, rate, count, *values):
    def step(x, g, h):
        g = g + x * n.norm_coefficient
        h = h + g * g
        return x - g * (rate / (ops.cast(count, x.dtype) * n.decay_factor + 1)) / (ops.sqrt(h) + n.epsilon), h

    return _regrouped([step(*group) for group in _groups(n, values, 3)])


@op('Momentum', domain=TRAINING)
def momentum(n, rate, count, *values):
    beta = n.beta if int(count.item()) > 0 else 1.0

    def step(x, g, v):
        g = g + x * n.norm_coefficient
        v = v * n.alpha + g * beta
        return x - (g + v * n.alpha if n.mode == 'nesterov' else v) * rate, v

    return _regrouped([step(*group) for group in _groups(n, values, 3)])


@op('Adam', domain=TRAINING)
def adam(n, rate, count, *values):
    t = int(count.item())
    if t > 0:
        rate = rate * ((1 - n.beta**t) ** 0.5 / (1 - n.alpha**t))

    def step(x, g, v, h):
        g = g + x * n.norm_coefficient
        v = v * n.alpha + g * (1 - n.alpha)
        h = h * n.beta + g * g * (1 - n.beta)
        x = x - v * rate / (ops.sqrt(h) + n.epsilon)
        return x * (1 - n.norm_coefficient_post), v, h

    return _regrouped([step(*group) for group in _groups(n, values, 4)])
