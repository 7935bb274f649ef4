"""Measures an architecture of zoo.py in eager PyTorch, compiled for Tapegrad and, on request, by PyTorch's default
backend: differences of all numbers, and the time of a training step."""

import copy
import dataclasses
import math
import time

import torch
from torch.utils._pytree import tree_leaves

import tapegrad.torch as tapegrad_torch
from zoo import ZOO

LIMIT = 1e-9  # of outputs and gradients
CURVE_LIMIT = 1e-6  # of losses: a batch norm over few elements magnifies a difference in each step
FLOOR = 1e-3  # the least divisor of a gradient's difference, in terms of the greatest gradient of the model


@dataclasses.dataclass
class Row:
    name: str
    parameters: int = 0
    output: float = math.nan  # greatest differences, relative to the greatest number of the tensor
    gradient: float = math.nan
    curve: float = math.nan
    eager: float = math.nan  # milliseconds of a step
    ours: float = math.nan
    default: float = math.nan
    default_lack: str = ''  # why there is no time of the default backend, if it was asked for
    fallbacks: dict = dataclasses.field(default_factory=dict)
    error: str = ''

    @property
    def timed(self):
        return not math.isnan(self.ours)

    @property
    def good(self):
        return not self.error and max(self.output, self.gradient) <= LIMIT and self.curve <= CURVE_LIMIT


def measured(name, steps):
    """The row of a model, for a training run of so many steps, without the default backend."""
    row = Row(name)
    try:
        models, functions, inputs = built(name)
        row.parameters = sum(p.numel() for p in models[0].parameters())
        compare_first(row, models, functions, inputs)
        losses, (row.eager, row.ours) = trained(models, functions, inputs, steps)
        row.curve = max(abs(a - b) / max(abs(a), 1e-300) for a, b in zip(losses[0], losses[1]))
    except Exception as error:  # the row says what does not work
        row.error = _described(error)
    return row


def time_all(row, steps, store):
    """Sets the times of a row, and calls store(row) whenever some are known: first without the default backend, whose
    compilation may fail or take too long."""
    models, functions, inputs = built(row.name)
    if not row.timed:
        row.eager, row.ours = trained(models, functions, inputs, steps)[1]
        store(row)
    try:
        models.append(copy.deepcopy(models[0]))
        functions.append(torch.compile(models[2]))
        times = trained(models, functions, inputs, steps)[1]
        row.eager, row.ours, row.default = times
    except Exception as error:
        row.default_lack = _described(error)
    store(row)


def built(name):
    """A model, twice, as it is and compiled for Tapegrad, and its inputs."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    case = ZOO[name]()
    models = [case.model.train(), copy.deepcopy(case.model)]
    return models, [models[0], torch.compile(models[1], backend='tapegrad')], case.inputs


def _described(error):
    return f'{type(error).__name__}: {error}'.splitlines()[0][:200]


def compare_first(row, models, functions, inputs):
    tapegrad_torch.reset_report()
    results = [outputs(f, inputs) for f in functions]
    for tensors in results:
        loss_of(tensors).backward()
    row.fallbacks = tapegrad_torch.report()
    row.output = max(difference(a, b) for a, b in zip(*results))
    grads = [[p.grad for p in m.parameters()] for m in models]
    greatest = max(g.abs().max().item() for g in grads[0] if g is not None)
    # Some gradients are 0 but for rounding, such as that of a bias in front of a batch norm.
    row.gradient = max(difference(a, b, FLOOR * greatest) for a, b in zip(*grads))


def outputs(function, inputs):
    """The floating-point tensors that a model returns for its inputs."""
    by_name = {k: v for k, v in inputs.items() if k}
    result = function(*[v for k, v in inputs.items() if not k], **by_name)
    return [
        x
        for x in tree_leaves(dict(result) if hasattr(result, 'keys') else result)
        if isinstance(x, torch.Tensor) and x.is_floating_point()
    ]


def loss_of(tensors):
    """The model's own loss, which comes first, or else the distance of all results from 1/2."""
    return sum(x if x.ndim == 0 else ((x - 0.5) ** 2).mean() for x in tensors if x.requires_grad)


def difference(a, b, floor=1e-300):
    if a is None or b is None:
        return 0 if a is b else math.inf
    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return math.inf
    a, b = a.detach()[finite], b.detach()[finite]
    return ((a - b).abs().max() / max(a.abs().max().item(), floor)).item() if a.numel() else 0


def trained(models, functions, inputs, steps):
    """The losses of a training run of each model, and the median time of its steps in milliseconds. The models take
    turns, so that whatever else runs on the machine slows all of them alike. The first two steps, which compile and
    record, are not timed."""
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9) for m in models]
    losses, times = [[] for _ in models], [[] for _ in models]
    for _ in range(steps + 2):
        for i, (function, optimizer) in enumerate(zip(functions, optimizers)):
            start = time.process_time()
            optimizer.zero_grad()
            loss = loss_of(outputs(function, inputs))
            loss.backward()
            optimizer.step()
            times[i].append(1000 * (time.process_time() - start))
            losses[i].append(loss.item())
    return losses, [sorted(t[2:])[steps // 2] for t in times]
