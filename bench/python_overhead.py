"""What a call costs from Python: Tapegrad's package next to NumPy and PyTorch, on arrays of one element.

    python_overhead.py [ROUNDS]

Rounds of all rows alternate, and each row prints the median over the rounds of the CPU time per call, which other
programs on the machine change less than the time. PyTorch and NumPy are left out where they are not installed. One
thread each."""

import importlib.util
import statistics
import sys
import time
import timeit

import tapegrad as tg

CALLS = 5000


def rows(x, w, m):
    """The calls of Tapegrad and PyTorch on a number, a number that requires a gradient, and a row."""
    return {
        'add': lambda: x + x,
        'add a number': lambda: x + 1.5,
        'add, recorded': lambda: w + x,
        'index': lambda: m[0],
        'relu by name': lambda: m.relu(),
        'softmax by name, with an argument': lambda: m.softmax(dim=-1),
        'reshape by name, with a list': lambda: m.reshape([2]),
        'shape': lambda: m.shape,
        'multiply and backward': lambda: (w * x).backward(),
    }


def tapegrad_rows():
    return rows(tg.tensor([1.0]), tg.tensor([1.0], requires_grad=True), tg.tensor([[1.0, 2.0]]))


def numpy_rows():
    import numpy

    x, m = numpy.ones(1, 'f4'), numpy.ones((1, 2), 'f4')
    return {
        'add': lambda: x + x,
        'add a number': lambda: x + 1.5,
        'index': lambda: m[0],
        'reshape by name, with a list': lambda: m.reshape([2]),
        'shape': lambda: m.shape,
    }


def torch_rows():
    import torch

    torch.set_num_threads(1)
    return rows(torch.ones(1), torch.ones(1, requires_grad=True), torch.tensor([[1.0, 2.0]]))


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    libraries = {'tapegrad': tapegrad_rows}
    libraries.update(
        {name: made for name, made in (('numpy', numpy_rows), ('torch', torch_rows)) if importlib.util.find_spec(name)}
    )
    calls = {(row, name): call for name, made in libraries.items() for row, call in made().items()}
    times = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            times[key].append(timeit.timeit(call, timer=time.process_time, number=CALLS) / CALLS * 1e6)
    print(f'microseconds of CPU time for a call, median of {rounds} rounds of {CALLS} calls')
    print(f"{'':36}" + ''.join(f'{name:>10}' for name in libraries))
    for row in dict.fromkeys(row for row, _ in calls):
        cells = (
            f'{statistics.median(times[row, name]):10.2f}' if (row, name) in times else f"{'':10}" for name in libraries
        )
        print(f'{row:36}' + ''.join(cells))


if __name__ == '__main__':
    with tg.Context(threads=1):
        main()
