"""Runs of programs on the bytes of JAX's arrays.

JAX may call from any thread, so contexts are in a pool: a run takes one that no other thread uses."""

import contextlib
import threading

import tapegrad as tg

from .arrays import device_of, given, taken
from .program import gradients


class _Locked:
    """A context, and the lock that the thread which uses it holds."""

    def __init__(self, device):
        self.context, self.lock = tg.Context(device=device), threading.RLock()


_pool, _guard = {}, threading.Lock()  # the contexts of each device, and the lock of the pool


@contextlib.contextmanager
def unused(device):
    """A context of the device that no other thread uses, for a `with`."""
    with _guard:
        known = _pool.setdefault(device, [])
        found = next((c for c in known if c.lock.acquire(blocking=False)), None)
        if found is None:
            found = _Locked(device)
            found.lock.acquire()
            known.append(found)
    try:
        with found.context:
            yield found
    finally:
        found.lock.release()


def shapes(program, arrays):
    """Descriptions of a program's results, without running it on numbers."""
    with unused('meta') as locked:
        return program.shapes(arrays, locked.context)


def results(program, arrays):
    """The results of a program for arrays. Nothing is kept for backward."""
    with unused(device_of(arrays)) as locked, locked.context.tape():
        return [given(y) for y in program.run([taken(x) for x in arrays], False)]


class Run:
    """A run of a program that is recorded, until JAX does not need its backward any more."""

    def __init__(self, program, arrays, needed):
        with unused(device_of(arrays)) as self.locked, self.locked.context.tape():
            inputs = [taken(x) for x in arrays]
            self.wanted = [inputs[i] for i in needed]
            for x in self.wanted:
                x.requires_grad = True
            self.outputs = program.run(inputs, True)
            self.arrays = [given(y) for y in self.outputs]

    def gradients(self, seeded, seeds):
        """The gradients of the needed inputs, for those of the outputs at the positions `seeded`."""
        with self.locked.lock, self.locked.context:
            outputs, seeds = [self.outputs[i] for i in seeded], [taken(s) for s in seeds]
            return [given(g) for g in gradients(outputs, self.wanted, seeds, retain=True)]
