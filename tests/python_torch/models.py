"""Runs the architectures of zoo.py in eager PyTorch and compiled for Tapegrad, and compares all numbers.

    models.py [--only NAME ..] [--steps N] [--jobs N] [--inductor NAME ..] [--out FILE]

For each model: outputs and gradients of the first step, the losses of a training run, and the time of a step. --out
writes the table as a page of the documentation."""

import argparse
import concurrent.futures
import copy
import dataclasses
import math
import multiprocessing
import pathlib
import time

import torch
from torch.utils._pytree import tree_leaves

import tapegrad.torch as tapegrad_torch
from zoo import ZOO

LIMIT = 1e-9  # of outputs and gradients
CURVE_LIMIT = 1e-6  # of losses: a batch norm over few elements magnifies a difference in each step


@dataclasses.dataclass
class Row:
    name: str
    parameters: int = 0
    output: float = math.nan  # greatest differences, relative to the greatest number of the tensor
    gradient: float = math.nan
    curve: float = math.nan
    eager: float = math.nan  # milliseconds of a step
    ours: float = math.nan
    inductor: float = math.nan
    fallbacks: dict = dataclasses.field(default_factory=dict)
    error: str = ''

    @property
    def good(self):
        return not self.error and max(self.output, self.gradient) <= LIMIT and self.curve <= CURVE_LIMIT


def main():
    torch.set_num_threads(1)
    options = arguments()
    rows = []
    for row in measurements(options):
        rows.append(row)
        print(line(row), flush=True)
        if options.out:  # after each row, so that an interrupted run leaves a page too
            pathlib.Path(options.out).write_text(page(rows, options.steps))
    print(summary(rows))


def measurements(options):
    """The rows in the order of the models. With --jobs each process measures a model at a time, on one thread."""
    names = options.only or list(ZOO)
    inductor = [name in options.inductor for name in names]
    steps = [options.steps] * len(names)
    if options.jobs == 1:
        return map(measured, names, steps, inductor)
    context = multiprocessing.get_context('spawn')
    pool = concurrent.futures.ProcessPoolExecutor(
        options.jobs, context, initializer=torch.set_num_threads, initargs=(1,)
    )
    return pool.map(measured, names, steps, inductor)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', default=[], metavar='NAME', help='models to run; all by default')
    parser.add_argument('--steps', type=int, default=20, help='length of the training run')
    parser.add_argument('--jobs', type=int, default=1, help='number of processes that share the models')
    parser.add_argument(
        '--inductor', nargs='+', default=[], metavar='NAME', help="models that the default backend compiles too"
    )
    parser.add_argument('--out', help='file that the page is written to')
    return parser.parse_args()


def measured(name, steps, inductor):
    torch.manual_seed(0)
    torch._dynamo.reset()
    row = Row(name)
    try:
        case = ZOO[name]()
        row.parameters = sum(p.numel() for p in case.model.parameters())
        models = case.model.train(), copy.deepcopy(case.model)
        compiled = torch.compile(models[1], backend='tapegrad')
        compare_first(row, models, [models[0], compiled], case.inputs)
        eager, row.eager = trained(models[0], models[0], case.inputs, steps)
        ours, row.ours = trained(models[1], compiled, case.inputs, steps)
        row.curve = max(abs(a - b) / max(abs(a), 1e-300) for a, b in zip(eager, ours))
        if inductor:
            row.inductor = trained(models[0], torch.compile(models[0]), case.inputs, steps)[1]
    except Exception as error:  # the row says what does not work
        row.error = f'{type(error).__name__}: {error}'.splitlines()[0][:200]
    return row


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
    row.gradient = max(difference(a, b, 1e-6 * greatest) for a, b in zip(*grads))


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


def trained(model, function, inputs, steps):
    """The losses of a training run, and the median time of its later steps in milliseconds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    losses, times = [], []
    for _ in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(outputs(function, inputs))
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    later = sorted(times[1:] or times)
    return losses, 1000 * later[len(later) // 2]


def line(row):
    if row.error:
        return f'{row.name:36} {row.error}'
    times = f'{row.eager:7.1f} {row.ours:7.1f} ms'
    return f'{row.name:36} {row.output:8.1e} {row.gradient:8.1e} {row.curve:8.1e} {times} {row.fallbacks or ""}'


def summary(rows):
    good = [r for r in rows if r.good]
    full = [r for r in good if not r.fallbacks]
    return f'{len(rows)} architectures, {len(good)} agree with eager PyTorch, {len(full)} of them without a fallback'


PAGE = """# Architectures under PyTorch

{summary}.

The models are those of transformers, torchvision and timm, with random weights and small sizes
(`tests/python_torch/zoo.py`), run by `torch.compile(model, backend="tapegrad")` in float64
([pytorch-backend.md](pytorch-backend.md)). After `scripts/test --python` this page is
written by

```
PYTHONPATH=build/python build/venv-python/bin/python tests/python_torch/models.py --out docs/pytorch-models.md
```

"Output", "gradient" and "losses" are the greatest differences from eager PyTorch: of an element of an output, and of
any gradient, relative to the greatest element of its tensor, and of the losses of {steps} steps of SGD, relative to the
loss. Times are of a training step, the median of these steps, on one thread; models this small measure what a call
costs more than what a kernel does.

| architecture | parameters | output | gradient | losses | eager, ms | Tapegrad, ms | default backend, ms | in PyTorch |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{table}
"""


def page(rows, steps):
    return PAGE.format(summary=summary(rows), steps=steps, table='\n'.join(map(cells, rows)))


def cells(row):
    if row.error:
        return f'| {row.name} | {row.parameters} | | | | | | | {row.error} |'
    fallbacks = ', '.join(f'`{name}` {n}' for name, n in row.fallbacks.items())
    inductor = '' if math.isnan(row.inductor) else f'{row.inductor:.1f}'
    return (
        f'| {row.name} | {row.parameters} | {row.output:.0e} | {row.gradient:.0e} | {row.curve:.0e} | '
        f'{row.eager:.1f} | {row.ours:.1f} | {inductor} | {fallbacks} |'
    )


if __name__ == '__main__':
    main()
