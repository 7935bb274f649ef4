"""The page docs/pytorch-models.md: what it says of the rows of measure.py, and the rows of a page that is there."""

import math
import re
import textwrap

from measure import CURVE_LIMIT, FLOOR, LIMIT, Row

PAGE = """# Architectures under PyTorch

{summary}

The models are those of transformers, torchvision and timm, with random weights and small sizes
(`tests/python_torch/zoo.py`), run by `torch.compile(model, backend="tapegrad")` in float64
([pytorch-backend.md](pytorch-backend.md)). After `scripts/test --python` this page is written by

```
export PYTHONPATH=build/python
build/venv-python/bin/python tests/python_torch/models.py --results models --page docs/pytorch-models.md
build/venv-python/bin/python tests/python_torch/models.py --times --results models --page docs/pytorch-models.md
```

The columns "output", "gradient" and "losses" have the greatest differences from eager PyTorch:

- "Output": of an element of an output, divided by the greatest element of that output.
- "Gradient": of an element of a parameter's gradient, divided by the greatest element of that gradient. Some gradients
  are 0 but for rounding, so the divisor is at least {floor:g} of the greatest gradient of the model.
- "Losses": of the loss of a step, divided by that loss, in a training run of 22 steps of SGD.

A model agrees if the first two are at most {limit:g} and the third is at most {curve_limit:g}. Batch norms over few elements,
as in mobilenet_v2, magnify rounding in each step, so that some losses drift apart.

Times are the CPU time of a training step on one thread: the median of the last 20 steps of the training run, in which
eager PyTorch, Tapegrad and PyTorch's default backend take turns in one process. In models this small the cost of a call
counts more than that of a kernel. The time of the default backend is missing if the row was not measured with it, or if
that backend did not compile the model, or not within the second command's `--timeout`. Rows without any time are of an
earlier run, in which the divisor of a gradient's difference had no least value.

The column "in PyTorch" has the ops that fell back to PyTorch, with the number of their calls in one forward and
backward.

| architecture | parameters | output | gradient | losses | eager, ms | Tapegrad, ms | default backend, ms | in PyTorch |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{table}
"""


def page(rows):
    found = textwrap.fill(f'{summary(rows)}. {ratios(rows)}', 120)
    limits = {'floor': FLOOR, 'limit': LIMIT, 'curve_limit': CURVE_LIMIT}
    return PAGE.format(summary=found, table='\n'.join(map(cells, rows)), **limits)


def summary(rows):
    good = [r for r in rows if r.good]
    full = [r for r in good if not r.fallbacks]
    return f'{len(rows)} architectures, {len(good)} agree with eager PyTorch, {len(full)} of them without a fallback'


def ratios(rows):
    """A sentence about the times."""
    eager = sorted(r.ours / r.eager for r in rows if r.timed)
    default = sorted(r.ours / r.default for r in rows if not math.isnan(r.default))
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


def cells(row):
    if row.error:
        return f'| {row.name} | {row.parameters} | | | | | | | {row.error} |'
    fallbacks = ', '.join(f'`{name}` {n}' for name, n in row.fallbacks.items())
    times = ' | '.join('' if math.isnan(t) else f'{t:.1f}' for t in (row.eager, row.ours, row.default))
    differences = f'{row.output:.0e} | {row.gradient:.0e} | {row.curve:.0e}'
    return f'| {row.name} | {row.parameters} | {differences} | {times} | {fallbacks} |'


def rows_of(text):
    """The rows of a page, by name."""
    rows = {}
    for line in text.splitlines():
        values = [v.strip() for v in line.strip('|').split('|')]
        if len(values) != 9 or not values[1].isdigit():
            continue
        numbers = [float(v) if v else math.nan for v in values[2:8]]
        if math.isnan(numbers[0]):
            rows[values[0]] = Row(values[0], int(values[1]), error=values[8])
        else:
            fallbacks = {name: int(n) for name, n in re.findall(r'`([^`]+)` (\d+)', values[8])}
            rows[values[0]] = Row(values[0], int(values[1]), *numbers, fallbacks=fallbacks)
    return rows
