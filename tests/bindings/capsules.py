"""Tensors as Python objects that other libraries take by DLPack, and arrays of other libraries as tensors.

This is what a binding does with tg_dlpack_export and tg_dlpack_import (tapegrad/dlpack.h): structs travel in capsules,
and who takes a struct renames its capsule, so that nobody else frees it."""
import contextlib
import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'reference'))
from bindings import ALL_DIMS, Library, shape  # noqa: E402, F401 # the tests use all three

UNVERSIONED, VERSIONED = b'dltensor', b'dltensor_versioned'
USED = {UNVERSIONED: b'used_dltensor', VERSIONED: b'used_dltensor_versioned'}
DTYPES = ('f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8', 'i8', 'i16', 'u16', 'u32', 'u64', 'bool', 'f8e4m3', 'f8e5m2',
          'f8e8m0')  # from 1, as in tg_dtype

# A destructor gets a capsule that is being freed, so it must not count a reference to it: its address is passed.
Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _capsule_function(name, result, *args):
    function = ctypes.PYFUNCTYPE(result, *args)
    return function((name, ctypes.pythonapi))


_new = _capsule_function('PyCapsule_New', ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, Destructor)
_is_valid = _capsule_function('PyCapsule_IsValid', ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = _capsule_function('PyCapsule_GetPointer', ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_rename = _capsule_function('PyCapsule_SetName', ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


def _delete(struct, name):
    """Calls the deleter, which is the second pointer after the tensor, or after the version."""
    size_of_tensor, size_of_version = 48, 8
    at = struct + (size_of_tensor if name == UNVERSIONED else size_of_version) + ctypes.sizeof(ctypes.c_void_p)
    Deleter(ctypes.c_void_p.from_address(at).value)(struct)


@Destructor
def _free_unused(capsule):
    """Frees the struct of a capsule that no library has taken."""
    for name in (UNVERSIONED, VERSIONED):
        if _is_valid(capsule, name):
            _delete(_pointer(capsule, name), name)


class MemoryInfo(ctypes.Structure):
    """The first fields of tg_memory_info."""
    _fields_ = [('size', ctypes.c_size_t), ('live', ctypes.c_int64)]


class Tensor:
    """A tensor of a context, as an object that np.from_dlpack and torch.from_dlpack take."""

    def __init__(self, world, handle):
        self.world, self.handle = world, world.checked(handle)

    @property
    def data(self):
        return self.world.lib.tg_host_data(self.handle)

    def __dlpack_device__(self):
        return 1, 0  # the CPU

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        versioned = bool(max_version) and max_version[0] >= 1
        lib, name = self.world.lib, VERSIONED if versioned else UNVERSIONED
        struct = (lib.tg_dlpack_export if versioned else lib.tg_dlpack_export_unversioned)(self.handle)
        return _new(self.world.checked(struct), name, _free_unused)


class World:
    """A context and a tape of the library at this path. Errors of the library are exceptions."""

    def __init__(self, path):
        self.lib = Library(path)
        self.ctx = self.lib.tg_ctx_new(None)
        self.lib.tape = self.lib.tg_tape_new(self.ctx)

    def checked(self, result):
        if self.lib.tg_ctx_status(self.ctx):
            message = self.lib.tg_ctx_message(self.ctx).decode()
            self.lib.tg_ctx_clear(self.ctx)
            raise BufferError(message)
        return result

    def zeros(self, dtype, *dims):
        return Tensor(self, self.lib.tg_zeros(self.ctx, DTYPES.index(dtype) + 1, shape(*dims)))

    def take(self, array, **arguments):
        """Returns the array of another library as a tensor on the same memory."""
        capsule = array.__dlpack__(**arguments)
        name = VERSIONED if _is_valid(id(capsule), VERSIONED) else UNVERSIONED
        struct = _pointer(id(capsule), name)
        _rename(id(capsule), USED[name])
        take = self.lib.tg_dlpack_import if name == VERSIONED else self.lib.tg_dlpack_import_unversioned
        return Tensor(self, take(self.ctx, struct))

    def drop(self, tensor):
        self.lib.tg_drop(tensor.handle)

    def settle(self):
        """Does what deleters have asked for, as any call does that creates a tensor."""
        self.drop(self.zeros('u8'))

    def live(self):
        self.settle()
        info = MemoryInfo(size=ctypes.sizeof(MemoryInfo))
        self.checked(self.lib.tg_memory_query(self.ctx, ctypes.addressof(info)))
        return info.live

    def free(self):
        self.checked(None)
        self.lib.tg_tape_free(self.lib.tape)
        self.lib.tg_ctx_free(self.ctx)


@contextlib.contextmanager
def refused(*words):
    """Fails unless the block raises an error whose message has these words."""
    try:
        yield
    except (BufferError, RuntimeError) as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f'nothing was raised; expected {words}')


def run(tests, library, **arguments):
    """Runs each test with a world of its own, whose context it may free, and prints the count."""
    for test in tests:
        world = World(library)
        before = world.live()
        test(world, **arguments)
        if world.ctx:
            left = world.live() - before
            assert not left, f'{test.__name__}: {left} bytes are left'
            world.free()
    print(f'{len(tests)} passed, 0 failed')
