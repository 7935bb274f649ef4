"""Runs of programs on the bytes of JAX's arrays.

JAX may call from any thread, and so contexts belong to no thread: a run takes one that no other thread uses."""

import contextlib
import threading

import tapegrad as tg

from .arrays import device_of, given, taken
from .program import gradients


class _Seat:
    """A context, and the lock of the thread that uses it."""

    def __init__(self, device):
        self.context, self.lock = tg.Context(device=device), threading.RLock()


_seats, _guard = {}, threading.Lock()


@contextlib.contextmanager
def seat_of(device):
    """A context of the device that no other thread uses, for a `with`."""
    with _guard:
        seats = _seats.setdefault(device, [])
        seat = next((s for s in seats if s.lock.acquire(blocking=False)), None)
        if seat is None:
            seat = _Seat(device)
            seat.lock.acquire()
            seats.append(seat)
    try:
        with seat.context:
            yield seat
    finally:
        seat.lock.release()


def shapes(program, arrays):
    """Descriptions of a program's results, without running it on numbers."""
    with seat_of('meta') as seat:
        return program.shapes(arrays, seat.context)


def results(program, arrays):
    """The results of a program for arrays, which are kept for no backward."""
    with seat_of(device_of(arrays)) as seat, seat.context.tape():
        return [given(y) for y in program.run([taken(x) for x in arrays], False)]


class Run:
    """A run of a program that is recorded, until JAX does not need its backward any more."""

    def __init__(self, program, arrays, needed):
        with seat_of(device_of(arrays)) as self.seat, self.seat.context.tape():
            inputs = [taken(x) for x in arrays]
            self.wanted = [inputs[i] for i in needed]
            for x in self.wanted:
                x.requires_grad = True
            self.outputs = program.run(inputs, True)
            self.arrays = [given(y) for y in self.outputs]

    def gradients(self, seeded, seeds):
        """The gradients of the needed inputs, for those of the outputs at the positions `seeded`."""
        with self.seat.lock, self.seat.context:
            outputs, seeds = [self.outputs[i] for i in seeded], [taken(s) for s in seeds]
            return [given(g) for g in gradients(outputs, self.wanted, seeds, retain=True)]
