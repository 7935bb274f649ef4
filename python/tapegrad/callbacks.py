"""Python functions that the library calls: hooks on gradients, and functions that are run again in backward."""

import itertools

from . import errors
from ._capi import ffi, lib
from .errors import fail

_numbers = itertools.count(1)
# Python objects by number. A callback's `user` is such a number, because a pointer to a Python object could dangle.
_functions = {}
_sweep_at = [64]


def register(value):
    """A `user` pointer that stands for a Python object until forget()."""
    number = next(_numbers)
    _functions[number] = value
    return ffi.cast('void *', number)


def forget(user):
    _functions.pop(int(ffi.cast('uintptr_t', user)), None)


def found(user):
    return _functions.get(int(ffi.cast('uintptr_t', user)))


def guarded(world, call):
    """Runs call(), and returns the status for the library. An exception is kept for the error that follows."""
    try:
        call()
        return lib.TG_OK
    except BaseException as error:  # noqa: BLE001 # also Ctrl-C, which then stops the call that runs the callback
        errors._raised.exceptions.append(error)
        ctx = lib.tgpy_ctx(world)
        message = ffi.new('char[]', f'{type(error).__name__}: {error}'.encode(errors='replace'))
        lib.tg_ctx_fail(ctx, lib.TG_ERR_CALLBACK, ffi.new('char[]', b'%s'), message)
        return lib.TG_ERR_CALLBACK


def on_tape(world, tape, call):
    """Runs call(lent) with the tape of a callback open."""
    lent = lib.tgpy_tape_lent(world, tape)
    before = lib.tgpy_open(world, lent)
    try:
        return call(lent)
    finally:
        lib.tgpy_open(world, before)
        lib.tgpy_tape_end(lent)
        lib.tgpy_tape_drop(lent)


# ---- Hooks ----


class _Hook:
    """A hook of a tensor. It keeps neither the tensor nor the context. Its watch shows whether the tensor has ended.
    `world` is valid while the hook runs, because the caller of backward keeps it."""

    watch = None

    def __init__(self, x, fn):
        self.fn, self.world = fn, x._world
        self.watch = lib.tgpy_watch_new(x._world, x._live())
        if self.watch == ffi.NULL:
            fail(x._world)

    def __del__(self):
        if self.watch:
            lib.tgpy_watch_drop(self.watch)

    @property
    def ended(self):
        return not lib.tgpy_watch_is_alive(self.watch)


def _sweep():
    """Forgets the hooks of tensors that have ended, if the number of registered objects has doubled since the last
    sweep, and is at least 64."""
    if len(_functions) < _sweep_at[0]:
        return
    for number in [n for n, h in list(_functions.items()) if isinstance(h, _Hook) and h.ended]:
        _functions.pop(number, None)  # a sweep in another thread may have forgotten it since
    _sweep_at[0] = max(64, 2 * len(_functions))


def add_hook(x, fn):
    """Tensor.on_grad."""
    _sweep()
    user = register(_Hook(x, fn))
    number = lib.tg_on_grad(x._live(), lib.tgpy_on_hook, user)
    if not number:
        forget(user)
        fail(x._world)

    def remove():
        if found(user) and x.is_alive:
            lib.tg_remove_hook(x._handle(), number)
        forget(user)

    return remove


@ffi.def_extern()
def tgpy_on_hook(user, t, x, grad):
    from .tensor import Tensor, wrap

    hook = found(user)
    if hook is None:
        return lib.TG_OK

    def run(tape):
        replacement = hook.fn(wrap(lib.tgpy_box_new(hook.world, tape, grad[0], True)))
        if isinstance(replacement, Tensor):
            lib.tgpy_box_give(replacement._box)
            grad[0] = replacement._handle()

    return guarded(hook.world, lambda: on_tape(hook.world, t, run))


# ---- Functions of tensors ----


class Function:
    """A Python function of tensors that the library calls, perhaps several times."""

    def __init__(self, world, fn):
        self.world, self.fn = world, fn

    def run(self, tape, inputs, n_in, out, n_out):
        from .tensor import Tensor, wrap

        args = [wrap(lib.tgpy_box_new(self.world, tape, inputs[i], True)) for i in range(n_in)]
        results = self.fn(*args)
        results = (results,) if isinstance(results, Tensor) else tuple(results)
        if len(results) != n_out:
            raise ValueError(f'the function returned {len(results)} tensors, but {n_out} were expected (outputs=)')
        for i, y in enumerate(results):
            lib.tgpy_box_give(y._box)
            out[i] = y._handle()


@ffi.def_extern()
def tgpy_on_function(state, t, inputs, n_in, out, n_out):
    function = found(state)
    return guarded(
        function.world, lambda: on_tape(function.world, t, lambda tape: function.run(tape, inputs, n_in, out, n_out))
    )


@ffi.def_extern()
def tgpy_on_function_free(state):
    forget(state)
