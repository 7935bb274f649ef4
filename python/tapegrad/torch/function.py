"""A program of Tapegrad as a function of PyTorch."""

import functools

import torch

import tapegrad as tg

from .run import Call, context_of, import_all
from .tensors import given


def function(f):
    """f, a function of Tensors that returns one or a tuple of them, as a function of PyTorch tensors.

    Both see the same bytes. PyTorch's autograd calls Tapegrad's backward, and differentiates again as often as the ops
    of f can. Arguments that are no tensors are passed on."""

    @functools.wraps(f)
    def call(*args, **named):
        tensors = [a for a in (*args, *named.values()) if isinstance(a, torch.Tensor)]
        program = _Program(f, args, named)
        context = context_of(tensors[0].device if tensors else torch.device('cpu'))
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            results = Call.apply(context, program, import_all, (), *tensors)
        else:
            with context, tg.no_grad():
                results = [given(y) for y in program(import_all(context, tensors, [False] * len(tensors)))]
        return results[0] if program.single else tuple(results)

    return call


class _Program:
    """f as a function of a list of Tensors, for the other arguments of one call."""

    def __init__(self, f, args, named):
        self.f, self.args, self.named, self.single = f, args, named, False

    def __call__(self, inputs):
        tensors = iter(inputs)

        def filled(a):
            return next(tensors) if isinstance(a, torch.Tensor) else a

        args = [filled(a) for a in self.args]
        y = self.f(*args, **{name: filled(a) for name, a in self.named.items()})
        self.single = not isinstance(y, (tuple, list))
        results = [y] if self.single else list(y)
        for result in results:
            if not isinstance(result, (tg.Tensor, torch.Tensor)):
                name, kind = getattr(self.f, '__name__', 'the function'), type(result).__name__
                raise TypeError(f'{name} returned a result of type {kind}; expected a Tensor, or a tuple of Tensors')
        return results
