"""Contexts and tapes.

A context owns the memory and the settings of one thread's work. A program that names none uses its thread's own, which
context() returns. A tape records ops for backward; every context has one of its own, and `with context.tape()` opens
another."""

import contextlib
import threading

from ._capi import ffi, lib
from .errors import BY_STATUS, check, fail, text, using
from .structs import options

_thread = threading.local()


class Context:
    """A context (context.h). Options are the fields of tg_config:

    device: "cpu" by default, "cuda", "cuda:1" for GPU number 1, or "meta", which computes shapes but no values
    seed: of random numbers; 0 by default
    threads: one for each usable core by default
    dtype: of new tensors of floats; "f32" by default
    memory: limit in bytes on tensors and workspaces; none by default
    check: whether recomputations must give the same bits, and memory of new gradients holds NaN; False by default
    isa: the kernels, such as "avx2"; by default the best that the CPU runs
    deadline: seconds for which a collective waits for other ranks; 300 by default"""

    __slots__ = ('_world', '_options', '__weakref__')

    def __init__(self, device=None, **config):
        self._world = None
        self._options = options('tg_config', {'device': device, **{k: v for k, v in config.items() if v is not None}})
        ctx = lib.tg_ctx_new(self._options)
        self._world = lib.tgpy_world_new(ctx)
        if self._world == ffi.NULL:
            lib.tg_ctx_free(ctx)
            raise MemoryError('Context: there is no memory for a new context')
        check_new(self._world)

    @classmethod
    def _of(cls, world):
        """Another object for the context of a world. It is one more owner."""
        context = cls.__new__(cls)
        lib.tgpy_world_keep(world)
        context._world = world
        return context

    def __del__(self):
        if self._world:
            lib.tgpy_world_drop(self._world)

    @property
    def _ctx(self):
        with using(self._world):
            ctx = lib.tgpy_ctx(self._world)
            if ctx == ffi.NULL:
                fail(self._world)
            lib.tgpy_catch_up(self._world)
            return ctx

    def close(self):
        """Frees the memory of all tensors of the context now. Without close it is freed with the last tensor. Raises
        StateError within a callback, such as a hook, because the call that runs it still needs the context."""
        with using(self._world):
            if lib.tgpy_is_nested(self._world):
                raise BY_STATUS[lib.TG_ERR_STATE](
                    'Context.close: a callback cannot close the context whose call runs it; close it after the call'
                )
            if lib.tgpy_ctx(self._world) != ffi.NULL:
                lib.tgpy_world_close(self._world)

    def __enter__(self):
        """Makes this the thread's context until the end of the `with`."""
        _stack().append(self)
        return self

    def __exit__(self, *_):
        _stack().pop()

    def tape(self):
        """A new tape of the context, for `with context.tape() as t`."""
        return Tape(self)

    @property
    def device(self):
        """The name of the device, such as "cpu"."""
        return text(lib.tg_ctx_device(self._ctx))

    @property
    def threads(self):
        """The number of threads."""
        return lib.tg_ctx_threads(self._ctx)

    @property
    def training(self):
        """Whether dropout drops and batch norm uses the statistics of the batch."""
        return lib.tgpy_training(self._world)

    @training.setter
    def training(self, on):
        lib.tgpy_set_training(self._world, on)

    def memory(self):
        """Numbers of bytes, as a dict: "live" are in use now, "peak" is the largest number in use since reset_peak,
        "reserved" were obtained from the system or the device, and "workspace" are work memory of CPU kernels, which is
        in none of the others."""
        info = ffi.new('tg_memory_info *', {'size': ffi.sizeof('tg_memory_info')})
        lib.tg_memory_query(self._ctx, info)
        check(self._world)
        return {name: getattr(info, name) for name in ('live', 'peak', 'reserved', 'workspace')}

    def reset_peak(self):
        """Sets the "peak" of memory() to the bytes that are in use now."""
        lib.tg_memory_reset_peak(self._ctx)

    def seed(self, seed):
        """Sets the default random stream to its beginning, with this seed."""
        lib.tg_rng_set(self._ctx, ffi.NULL, ffi.new('tg_rng *', {'seed': seed}))
        check(self._world)

    def __repr__(self):
        return (
            f'<tapegrad.Context on {self.device}, {self.threads} threads>'
            if lib.tgpy_ctx(self._world)
            else '<closed Context>'
        )


def check_new(world):
    """Raises the error of a context that could not be made. Its error cannot be cleared, so it is of no use."""
    if lib.tg_ctx_status(lib.tgpy_ctx(world)):
        fail(world)


class Tape:
    """A tape (tape.h). While it is open (`with`), it records ops whose operands are on no tape. It lives as long as
    something refers to this object or to a tensor on it."""

    __slots__ = ('context', '_tape', '_before', '__weakref__')

    def __init__(self, context):
        self._tape = None
        self.context, self._before = context, []
        self._tape = lib.tgpy_tape_new(context._world)
        if self._tape == ffi.NULL:
            self._tape = None
            fail(context._world)

    def __del__(self):
        if self._tape:
            tape, self._tape = self._tape, None  # another finalizer of the same cycle may still reach this object
            lib.tgpy_tape_drop(tape)

    def __enter__(self):
        self._before.append(lib.tgpy_open(self.context._world, self._tape))
        _stack().append(self.context)
        return self

    def __exit__(self, *_):
        _stack().pop()
        lib.tgpy_open(self.context._world, self._before.pop())

    @property
    def _handle(self):
        if self._tape is None:
            raise BY_STATUS[lib.TG_ERR_HANDLE]('the tape has ended')
        self.context._ctx  # raises if the context was closed
        return lib.tgpy_tape_of(self._tape)

    def reset(self):
        """Ends all results on the tape; their later use raises HandleError. The memory is kept for the next step."""
        with using(self.context._world):
            lib.tg_tape_reset(self._handle)
            check(self.context._world)

    @property
    def nodes(self):
        """The number of recorded ops."""
        return lib.tg_tape_nodes(self._handle)

    def __repr__(self):
        return f'<tapegrad.Tape of {self.nodes} nodes>'


def _stack():
    try:
        return _thread.stack
    except AttributeError:
        _thread.stack = []
        return _thread.stack


def context():
    """The context of this thread: that of the innermost `with`, or one with default options that lasts as long as the
    thread."""
    stack = _stack()
    if stack:
        return stack[-1]
    try:
        return _thread.own
    except AttributeError:
        _thread.own = Context()
        return _thread.own


def tape():
    """A new tape of the thread's context, for `with tape() as t`."""
    return context().tape()


@contextlib.contextmanager
def _mode(switch, on):
    world = context()._world
    before = switch(world, on)
    try:
        yield
    finally:
        switch(world, before)


def no_grad():
    """`with no_grad():` ops of the thread's context keep nothing for backward."""
    return _mode(lib.tgpy_set_grad, False)


def evaluation():
    """`with evaluation():` ops run in evaluation mode: dropout drops nothing, batch norm uses its running
    statistics."""
    return _mode(lib.tgpy_set_training, False)
