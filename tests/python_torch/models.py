"""Measures the architectures of zoo.py (measure.py), and writes the table of docs/pytorch-models.md.

    models.py [--only NAME ..] [--steps N] [--default] [--timeout S] [--results DIR] [--out FILE]

Each model has a process of its own. With --results the rows are kept in files of a folder, and a later run measures
only the models that have no file there yet, or, with --default, no time of PyTorch's default backend."""

import argparse
import dataclasses
import json
import math
import multiprocessing
import pathlib
import tempfile
import textwrap

import timm  # noqa: F401 # here, so that the processes of the models need not import it again
import torch
import transformers  # noqa: F401

import tapegrad.torch  # noqa: F401

from measure import CURVE_LIMIT, FLOOR, LIMIT, Row, measured
from zoo import ZOO


def main():
    torch.set_num_threads(1)
    options = arguments()
    prepare()
    with tempfile.TemporaryDirectory() as unnamed:
        folder = pathlib.Path(options.results or unnamed)
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for name in options.only or ZOO:
            rows.append(row_of(name, folder / (name.replace(' ', '_') + '.json'), options))
            print(line(rows[-1]), flush=True)
    if options.out:
        pathlib.Path(options.out).write_text(page(rows, options.steps))
    print(summary(rows))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', default=[], metavar='NAME', help='models to run; all by default')
    parser.add_argument('--steps', type=int, default=20, help='length of the training run')
    parser.add_argument('--default', action='store_true', help="measure PyTorch's default backend too")
    parser.add_argument('--timeout', type=float, default=1200, metavar='S', help='seconds that a model may take')
    parser.add_argument('--results', metavar='DIR', help='folder in which rows are kept')
    parser.add_argument('--out', metavar='FILE', help='file that the page is written to')
    return parser.parse_args()


def prepare():
    """Loads what compilation needs, once for the processes of all models. (A backward would start threads, after which
    no process can be forked.)"""
    torch.compile(torch.nn.Linear(2, 2), backend='tapegrad')(torch.ones(1, 2))


# ---- Rows ----


def row_of(name, path, options):
    """The row of a model: what its file has, or what a new process measures. First without the default backend, whose
    compilation may fail or take too long."""
    for default in (False, True) if options.default else (False,):
        row = stored(path)
        if row and (row.error or not default or not math.isnan(row.default)):
            continue
        process = multiprocessing.get_context('fork').Process(target=measure, args=(name, path, options.steps, default))
        process.start()
        process.join(options.timeout)
        if process.is_alive():
            process.terminate()
        if not path.exists():
            store(path, Row(name, error='the process took too long or ended'))
    return stored(path)


def stored(path):
    return Row(**json.loads(path.read_text())) if path.exists() else None


def store(path, row):
    path.write_text(json.dumps(dataclasses.asdict(row)))


def measure(name, path, steps, default):
    """What the process of a model does. If only the default backend fails, the row stays as it was."""
    row = measured(name, steps, default)
    if not (default and row.error):
        store(path, row)


# ---- The page ----


def line(row):
    if row.error:
        return f'{row.name:36} {row.error}'
    times = f'{row.eager:7.1f} {row.ours:7.1f} {row.default:7.1f} ms'
    return f'{row.name:36} {row.output:8.1e} {row.gradient:8.1e} {row.curve:8.1e} {times} {row.fallbacks or ""}'


def summary(rows):
    good = [r for r in rows if r.good]
    full = [r for r in good if not r.fallbacks]
    return f'{len(rows)} architectures, {len(good)} agree with eager PyTorch, {len(full)} of them without a fallback'


def ratios(rows):
    """A sentence about the times."""
    eager = sorted(r.ours / r.eager for r in rows if not r.error)
    default = sorted(r.ours / r.default for r in rows if not r.error and not math.isnan(r.default))
    if not eager:
        return ''
    text = (
        f'A step on Tapegrad takes {eager[len(eager) // 2]:.2f} times the time of eager PyTorch (median; '
        f'{eager[0]:.2f} to {eager[-1]:.2f}; at most 1 for {sum(r <= 1 for r in eager)} of {len(eager)}, at most 2 for '
        f'{sum(r <= 2 for r in eager)})'
    )
    if default:
        text += (
            f', and {default[len(default) // 2]:.2f} times that of the default backend (median of {len(default)}; '
            f'{default[0]:.2f} to {default[-1]:.2f})'
        )
    return text + '.'


PAGE = """# Architectures under PyTorch

{summary}

The models are those of transformers, torchvision and timm, with random weights and small sizes
(`tests/python_torch/zoo.py`), run by `torch.compile(model, backend="tapegrad")` in float64
([pytorch-backend.md](pytorch-backend.md)). After `scripts/test --python` this page is written by

```
PYTHONPATH=build/python build/venv-python/bin/python tests/python_torch/models.py --default --out docs/pytorch-models.md
```

"Output", "gradient" and "losses" are the greatest differences from eager PyTorch: of an element of an output, and of
any gradient, relative to the greatest element of its tensor, and of the losses of {steps} steps of SGD, relative to the
loss. (The divisor of a gradient's difference is at least {floor:g} of the greatest gradient of the model, because some
gradients are 0 but for rounding.) A model agrees if the first two are at most {limit:g} and the third {curve_limit:g}.
Batch norms over few elements, as in mobilenet_v2, magnify rounding in each step, so that some losses drift apart.

Times are the CPU time of a training step, on one thread: the medians of {steps} steps, for which eager PyTorch,
Tapegrad and PyTorch's default backend take turns in one process. Models this small measure what a call costs more than
what a kernel does. A row without a time of the default backend is one that was not measured, or that it does not
compile.

| architecture | parameters | output | gradient | losses | eager, ms | Tapegrad, ms | default backend, ms | in PyTorch |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{table}
"""


def page(rows, steps):
    found = textwrap.fill(f'{summary(rows)}. {ratios(rows)}', 120)
    limits = {'floor': FLOOR, 'limit': LIMIT, 'curve_limit': CURVE_LIMIT}
    return PAGE.format(summary=found, steps=steps, table='\n'.join(map(cells, rows)), **limits)


def cells(row):
    if row.error:
        return f'| {row.name} | {row.parameters} | | | | | | | {row.error} |'
    fallbacks = ', '.join(f'`{name}` {n}' for name, n in row.fallbacks.items())
    default = '' if math.isnan(row.default) else f'{row.default:.1f}'
    return (
        f'| {row.name} | {row.parameters} | {row.output:.0e} | {row.gradient:.0e} | {row.curve:.0e} | '
        f'{row.eager:.1f} | {row.ours:.1f} | {default} | {fallbacks} |'
    )


if __name__ == '__main__':
    main()
