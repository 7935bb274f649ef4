"""Errors of the library as exceptions.

Each status of the C interface, such as TG_ERR_SHAPE, is a class (ShapeError) below Error, and below the built-in
exception that Python programs expect for it."""

import re
import threading

from ._capi import ffi, lib

_BUILTIN = {
    'ARGUMENT': ValueError,
    'SHAPE': ValueError,
    'DTYPE': TypeError,
    'DATA': ValueError,
    'MEMORY': MemoryError,
    'IO': OSError,
    'FORMAT': ValueError,
    'UNSUPPORTED': NotImplementedError,
    'TIMEOUT': TimeoutError,
}


class Error(RuntimeError):
    """A call of the library failed. The message says what was wrong, what was expected, and where."""

    status = None


def _class_of(name):
    short = name.removeprefix('TG_ERR_')
    bases = (Error, _BUILTIN[short]) if short in _BUILTIN else (Error,)
    return type(
        short.capitalize() + 'Error', bases, {'status': name, '__module__': __name__, '__doc__': f'The status {name}.'}
    )


BY_STATUS = {
    value: _class_of(name) for value, name in ffi.typeof('tg_status').elements.items() if name.startswith('TG_ERR_')
}
globals().update({c.__name__: c for c in BY_STATUS.values()})
__all__ = ['Error', *(c.__name__ for c in BY_STATUS.values())]


# What this package calls the functions of C that messages advise.
PYTHON_NAMES = {
    'tg_cast': 'Tensor.cast',
    'tg_detach': 'Tensor.detach',
    'tg_grad_of': 'Tensor.grad',
    'tg_reshape': 'Tensor.reshape',
    'tg_set_requires_grad': 'Tensor.requires_grad',
    'tg_tape_set_grad_mode(t, false)': 'tapegrad.no_grad()',
}
_ADVISED = re.compile('|'.join(rf'\b{re.escape(name)}(?!\w|: )' for name in PYTHON_NAMES))


def text(pointer):
    return ffi.string(pointer).decode(errors='replace')


def _in_python(message):
    """The message with the names of this package. Names of C that a colon follows stay: they say which call failed."""
    return _ADVISED.sub(lambda found: PYTHON_NAMES[found[0]], message)


class _Raised(threading.local):
    def __init__(self):
        self.exceptions = []


_raised = _Raised()  # this thread's exceptions of callbacks that the library is reporting: see callbacks.py


def fail(world):
    """Raises the error of a context, and clears it. Raises StateError if another thread is using the context,
    HandleError if it was closed, and MemoryError if it has no error."""
    if lib.tgpy_was_refused():
        raise BY_STATUS[lib.TG_ERR_STATE](
            'another thread is using the context at this moment; a context and its tensors belong to one thread at a '
            'time (make one for each thread by tapegrad.Context(), or take turns by a lock)'
        )
    ctx = lib.tgpy_ctx(world)
    if ctx == ffi.NULL:
        raise BY_STATUS[lib.TG_ERR_HANDLE]('the context has been closed')
    status, message = lib.tg_ctx_status(ctx), text(lib.tg_ctx_message(ctx))
    if status == lib.TG_OK:
        raise MemoryError
    lib.tg_ctx_clear(ctx)
    error = BY_STATUS[status](_in_python(message))
    cause = _raised.exceptions.pop() if _raised.exceptions else None
    _raised.exceptions.clear()
    raise error from cause


def check(world):
    """Raises the error of a context, if it has one."""
    if lib.tg_ctx_status(lib.tgpy_ctx(world)):
        fail(world)


class using:
    """`with using(world):` this thread uses the context, and other threads are refused. Calls that may run Python
    functions need it. Other calls may do without it if tgpy_usable or a function of bridge.h has checked before that no
    other thread uses the context."""

    __slots__ = ('world',)

    def __init__(self, world):
        self.world = world

    def __enter__(self):
        if not lib.tgpy_enter(self.world):
            fail(self.world)

    def __exit__(self, *_):
        lib.tgpy_leave(self.world)
