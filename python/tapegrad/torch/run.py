"""Programs on tapes of their own, as functions that PyTorch's autograd knows."""

import threading
import weakref

import torch

import tapegrad as tg

from .tensors import given, taken

_thread = threading.local()


def context_of(device):
    """This thread's context for a device of PyTorch. It has as many threads as PyTorch has when the thread first asks
    for the context."""
    contexts = _thread.__dict__.setdefault('contexts', {})
    name = 'cpu' if device.type == 'cpu' else str(device)
    if name not in contexts:
        contexts[name] = tg.Context(device=name, threads=torch.get_num_threads())
    return contexts[name]


class _Tapes:
    """Tapes that no run uses at the moment. A tape that is used again has its memory already."""

    def __init__(self, context):
        self.context, self.free = context, []

    def take(self):
        return self.free.pop() if self.free else self.context.tape()

    def put_back(self, tape):
        try:
            tape.reset()
        except tg.StateError:  # another thread uses the context: the tape is not used again, and ends with its object
            return
        self.free.append(tape)


def _tapes(context):
    tapes = _thread.__dict__.setdefault('tapes', {})
    return tapes.setdefault(context, _Tapes(context))


class Run:
    """One run of a program that is recorded, until PyTorch does not need its backward any more."""

    def __init__(self, context, program, inputs, required):
        self.tapes = _tapes(context)
        self.tape = self.tapes.take()
        # Unlike __del__, a finalizer keeps the tape, even if both are garbage of one cycle.
        weakref.finalize(self, self.tapes.put_back, self.tape).atexit = False
        self.inputs = inputs
        self.required = [i for i, r in enumerate(required) if r]
        with self.tape:
            self.outputs = program(inputs)

    def gradients(self, seeds):
        """The gradients of the inputs that require one, for those of the outputs; None where there is none."""
        pairs = [(y, s) for y, s in zip(self.outputs, seeds) if s is not None and _requires_grad(y)]
        grads = [None] * len(self.inputs)
        if pairs:
            outputs, wanted = [y for y, _ in pairs], [self.inputs[i] for i in self.required]
            with self.tapes.context:  # also for tensors that functions of PyTorch make in backward
                found = tg.grad(outputs, wanted, [taken(s) for _, s in pairs], retain=True, allow_unused=True)
            for i, g in zip(self.required, found):
                grads[i] = g
        return grads


class Call(torch.autograd.Function):
    """program(inputs) for PyTorch's autograd. The inputs at the positions `written` may change before backward."""

    @staticmethod
    def forward(ctx, context, program, imports, written, *tensors):
        required = ctx.needs_input_grad[4:]
        ctx.run = Run(context, program, imports(context, tensors, required), required)
        results = [given(y) for y in ctx.run.outputs]
        ctx.mark_non_differentiable(
            *[r for r, y in zip(results, ctx.run.outputs) if isinstance(r, torch.Tensor) and not _requires_grad(y)]
        )
        ctx.set_materialize_grads(False)
        ctx.call = context, program, written
        ctx.written = {i: tensors[i] for i in written}
        ctx.count = len(tensors)
        # PyTorch reports tensors that were overwritten, inputs and results.
        ctx.save_for_backward(
            *[x for i, x in enumerate(tensors) if i not in written],
            *[r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point()],
        )
        return tuple(results)

    @staticmethod
    def backward(ctx, *seeds):
        saved = iter(ctx.saved_tensors)
        if torch.is_grad_enabled():
            tensors = [ctx.written[i] if i in ctx.written else next(saved) for i in range(ctx.count)]
            return None, None, None, None, *_differentiable(ctx, tensors, seeds)
        return None, None, None, None, *[None if g is None else given(g) for g in ctx.run.gradients(seeds)]


def _requires_grad(y):
    return isinstance(y, tg.Tensor) and y.requires_grad


def _differentiable(ctx, tensors, seeds):
    """The gradients as results of a call of their own, which has a backward again."""
    context, program, written = ctx.call
    required = ctx.needs_input_grad[4:]
    seeded = [i for i, s in enumerate(seeds) if s is not None]
    gradient = _Gradient(program, required, seeded)
    found = iter(Call.apply(context, gradient, import_all, written, *tensors, *[seeds[i] for i in seeded]))
    return [next(found) if r else None for r in required]


class _Gradient:
    """The gradients of a program as a program: of the inputs that require one, for some outputs' gradients."""

    def __init__(self, program, required, seeded):
        self.program, self.seeded = program, seeded
        self.count, self.required = len(required), [i for i, r in enumerate(required) if r]

    def __call__(self, tensors):
        inputs, seeds = tensors[: self.count], tensors[self.count :]
        outputs = self.program(inputs)
        pairs = [(outputs[i], s) for i, s in zip(self.seeded, seeds) if _requires_grad(outputs[i])]
        wanted = [inputs[i] for i in self.required]
        grads = tg.grad([y for y, _ in pairs], wanted, [s for _, s in pairs], create_graph=True, allow_unused=True)
        return [tg.zeros(x.shape, dtype=x.dtype) if g is None else g for x, g in zip(wanted, grads)]


def import_all(context, tensors, required):
    """The tensors of a call as leaves of the context."""
    with context:
        return [leaf(x, r) for x, r in zip(tensors, required)]


def leaf(x, required):
    x = taken(x)
    if required:
        x.requires_grad = True
    return x
