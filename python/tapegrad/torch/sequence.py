"""Steps of a program that the library runs in one call, without Python between its ops (sequence.h)."""

import tapegrad as tg
from tapegrad import ffi, lib
from tapegrad.errors import fail
from tapegrad.tensor import wrap


class Sequence:
    """Steps that call only ops of Tapegrad. The first run records these ops; later runs repeat them. A program has the
    same shapes, strides and dtypes in each run, so the functions of the table would call the same ops again."""

    def __init__(self, steps, constants):
        """constants are the places of values that are the same in each run."""
        made = {s.place for s in steps}
        self.steps, self.recorded = steps, None
        self.reads = sorted({p for s in steps for p in s.reads} - made - constants)
        self.ended = sorted({p for s in steps for p in s.ended})
        self.writes = sorted(made.difference(self.ended))

    def run(self, values):
        if self.recorded is None:
            self._record(values)
        elif self.recorded:
            results = self.recorded([values[p] for p in self.reads])
            for place, form in zip(self.writes, self.forms):
                values[place] = _filled(form, results)
        else:
            for step in self.steps:
                step.run(values)
        for place in self.ended:
            values[place] = None

    def _record(self, values):
        recording = _Recording(tg.context()._world, [values[p] for p in self.reads])
        try:
            for step in self.steps:
                values[step.place] = step.call(values)
        except BaseException:
            recording.ended([])
            raise
        written = [values[p] for p in self.writes]
        self.recorded = recording.ended(list(_tensors(written)))
        places = map(_Place, range(recording.count))
        self.forms = [_form(v, places) for v in written]


class _Recording:
    """Ops of a context's world that are being recorded, and then their repetition as a function of tensors."""

    def __init__(self, world, inputs):
        self.world = world
        self.sequence = lib.tgpy_sequence_begin(world, [x._box for x in inputs], len(inputs))

    def ended(self, outputs):
        """The recording as a function; False if it cannot be repeated."""
        self.count = len(outputs)
        self.out = ffi.new('tgpy_box *[]', self.count + 1)
        boxes = [y._box for y in outputs]
        return self if self.sequence and lib.tgpy_sequence_end(self.sequence, boxes, self.count) else False

    def __call__(self, inputs):
        if lib.tgpy_sequence_run(self.sequence, [x._box for x in inputs], self.out):
            fail(self.world)
        return [wrap(self.out[i]) for i in range(self.count)]

    def __del__(self):
        lib.tgpy_sequence_free(self.sequence)


# ---- Results of several tensors ----


class _Place(int):
    """The place of a tensor among the results of a recording."""


def _tensors(values):
    for v in values:
        if isinstance(v, tg.Tensor):
            yield v
        elif isinstance(v, (tuple, list)):
            yield from _tensors(v)


def _form(value, places):
    """A value with places instead of its tensors."""
    if isinstance(value, tg.Tensor):
        return next(places)
    return tuple(_form(v, places) for v in value) if isinstance(value, (tuple, list)) else value


def _filled(form, tensors):
    if type(form) is _Place:
        return tensors[form]
    return tuple(_filled(f, tensors) for f in form) if isinstance(form, tuple) else form
