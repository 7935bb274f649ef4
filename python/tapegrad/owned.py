"""Objects of the library that a Python object owns, such as optimizers and modules."""

from ._capi import ffi, lib
from .errors import check, fail, using

_Free = ffi.typeof('void (*)(void *)')


class Owned:
    """Owns an object of the library. Its last reference may end on any thread; the object is freed at the next call on
    the context, or with the context."""

    _pointer = None

    def _own(self, world, pointer, free):
        """Takes over what a function of the library has made, and raises the error if it has failed. free is the name
        of the function that ends it."""
        check(world)
        lib.tgpy_world_keep(world)
        self._world, self._pointer = world, pointer
        self._free = ffi.cast(_Free, ffi.addressof(lib, free))

    def _disown(self):
        """Gives the object up, and returns it."""
        pointer, self._pointer = self._pointer, None
        lib.tgpy_world_drop(self._world)
        return pointer

    def __del__(self):
        if self._pointer is not None:
            lib.tgpy_later(self._world, self._free, self._pointer)
            self._disown()

    @property
    def _live(self):
        """The object. Raises an error if the context was closed, or another thread uses it."""
        with using(self._world):
            if lib.tgpy_ctx(self._world) == ffi.NULL:
                fail(self._world)
            lib.tgpy_catch_up(self._world)
        return self._pointer

    def _do(self, call, *arguments):
        """Calls a function that returns a status."""
        with using(self._world):
            if call(self._live, *arguments):
                fail(self._world)

    def _ask(self, call, *arguments):
        """Calls a function that returns a value."""
        with using(self._world):
            value = call(self._live, *arguments)
            check(self._world)
        return value

    def __reduce__(self):
        raise TypeError(f'a {type(self).__name__} cannot be copied or pickled')
