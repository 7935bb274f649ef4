"""Measures the architectures of zoo.py (measure.py), and writes the table of docs/pytorch-models.md (page.py).

    models.py [--only NAME ..] [--steps N] [--timeout S] [--results DIR] [--page FILE]
    models.py --times [--count N] [--only NAME ..] [--steps N] [--timeout S] [--results DIR] [--page FILE]

The first command compares all numbers with eager PyTorch's. The second one measures times only, next to PyTorch's
default backend, of the models with the fewest parameters among those that agree in the results or on the page.

Each model has a process of its own. Its row is kept in a file of the results, and a later run goes on where this one
was stopped; what the default backend has compiled is kept there too. The page is written anew at the end: rows that
were not measured stay as they are on it."""

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import pathlib
import tempfile
import time

import timm  # noqa: F401 # here, so that the processes of the models need not import it again
import torch
import transformers  # noqa: F401

import tapegrad.torch  # noqa: F401

from measure import Row, measured, time_all
from page import page, rows_of, summary
from zoo import ZOO

TIMEOUT = {False: 1200, True: 120}  # seconds for a model, without and with --times


def main():
    torch.set_num_threads(1)
    options = arguments()
    with tempfile.TemporaryDirectory() as unnamed:
        folder = pathlib.Path(options.results or unnamed).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault('TORCHINDUCTOR_CACHE_DIR', str(folder / 'inductor'))
        prepare()
        file = pathlib.Path(options.page) if options.page else None
        known = rows_of(file.read_text()) if file and file.exists() else {}
        known |= {name: row for name in ZOO if (row := stored(path_of(folder, name)))}
        known |= measure_times(folder, known, options) if options.times else compare(folder, options)
    rows = [known[name] for name in ZOO if name in known]
    if file:
        file.write_text(page(rows))
    print(summary(rows))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', default=[], metavar='NAME', help='models to run')
    parser.add_argument('--steps', type=int, default=20, help='length of the training run')
    parser.add_argument('--times', action='store_true', help='measure times, of models that agree')
    parser.add_argument('--count', type=int, default=60, metavar='N', help='number of models for --times')
    parser.add_argument('--timeout', type=float, metavar='S', help='seconds for a model: 1200, with --times 120')
    parser.add_argument('--results', metavar='DIR', help='folder in which rows are kept')
    parser.add_argument('--page', metavar='FILE', help='the page, which is read and written')
    options = parser.parse_args()
    options.timeout = options.timeout or TIMEOUT[options.times]
    return options


def prepare():
    """Loads what compilation needs, once for the processes of all models. (A backward would start threads, after which
    no process can be forked.)"""
    torch.compile(torch.nn.Linear(2, 2), backend='tapegrad')(torch.ones(1, 2))


# ---- Rows ----


def path_of(folder, name):
    return folder / (name.replace(' ', '_') + '.json')


def stored(path):
    return Row(**json.loads(path.read_text())) if path.exists() else None


def store(path, row):
    path.write_text(json.dumps(dataclasses.asdict(row)))


def in_a_process(seconds, function, *arguments):
    """Runs a function in a process of its own for at most so many seconds. Returns why it has not come to its end, or
    an empty text."""
    process = multiprocessing.get_context('fork').Process(target=function, args=arguments)
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.terminate()
        process.join()
        return f'not done in {seconds:g} s'
    return f'the process ended with {process.exitcode}' if process.exitcode else ''


# ---- Numbers ----


def compare(folder, options):
    rows = {}
    for name in options.only or ZOO:
        path = path_of(folder, name)
        lack = '' if path.exists() else in_a_process(options.timeout, compare_one, name, path, options.steps)
        if lack:
            store(path, Row(name, error=lack))
        rows[name] = stored(path)
        print(line(rows[name]), flush=True)
    return rows


def compare_one(name, path, steps):
    store(path, measured(name, steps))


def line(row):
    if row.error:
        return f'{row.name:36} {row.error}'
    differences = f'{row.output:8.1e} {row.gradient:8.1e} {row.curve:8.1e}'
    return f'{row.name:36} {differences} {row.eager:7.1f} {row.ours:7.1f} ms {row.fallbacks or ""}'


# ---- Times ----


def measure_times(folder, known, options):
    """Measures the rows that have no time of the default backend, nor a reason for that, yet."""
    good = sorted((r for r in known.values() if r.good and r.name in ZOO), key=lambda r: r.parameters)
    chosen = [r for r in good if r.name in options.only] if options.only else good[: options.count]
    rows, begun, spent = {}, time.monotonic(), []
    for i, row in enumerate(chosen):
        if math.isnan(row.default) and not row.default_lack:
            start, path = time.monotonic(), path_of(folder, row.name)
            lack = in_a_process(options.timeout, time_one, row, path, options.steps)
            row = stored(path) or row
            if lack:
                row.default_lack = lack
                store(path, row)
            spent.append(time.monotonic() - start)
        rows[row.name] = row
        print(time_line(i + 1, chosen, row, spent), flush=True)
    print(f'{len(spent)} models in {(time.monotonic() - begun) / 60:.0f} min')
    return rows


def time_one(row, path, steps):
    time_all(row, steps, lambda row: store(path, row))


def time_line(number, chosen, row, spent):
    """Times of one model, and how long the others may take if they take as long as those so far."""
    times = ' '.join(f'{t:7.1f}' for t in (row.eager, row.ours, row.default))
    now = f'{spent[-1]:4.0f} s' if spent else ' kept'
    rest = sum(spent) / len(spent) * (len(chosen) - number) / 60 if spent else 0
    return f'{number:3} of {len(chosen)} {row.name:36} {times} ms {now}, about {rest:.0f} min left {row.default_lack}'


if __name__ == '__main__':
    main()
