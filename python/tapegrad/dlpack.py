"""DLPack's protocol in Python. Structs are passed in capsules. A library that takes a struct renames its capsule, so
that no other one takes or frees it. Both versions of the struct are exported and imported."""

import ctypes

from . import ops
from ._capi import ffi, lib
from .errors import fail

UNVERSIONED, VERSIONED = b'dltensor', b'dltensor_versioned'
_USED = {UNVERSIONED: b'used_dltensor', VERSIONED: b'used_dltensor_versioned'}
_DEVICES = {'cpu': 1, 'cuda': 2}

# A destructor gets a capsule that is being freed, so it must not count a reference to it: its address is passed.
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _function(name, result, *args):
    return ctypes.PYFUNCTYPE(result, *args)((name, ctypes.pythonapi))


_new = _function('PyCapsule_New', ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_is_valid = _function('PyCapsule_IsValid', ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_pointer = _function('PyCapsule_GetPointer', ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_rename = _function('PyCapsule_SetName', ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)


@_Destructor
def _free_unused(capsule):
    """Frees the struct of a capsule that no library has taken, by its deleter: the second pointer after the tensor, or
    after the version."""
    for name, offset in ((UNVERSIONED, 48), (VERSIONED, 8)):
        if _is_valid(capsule, name):
            struct = _pointer(capsule, name)
            _Deleter(ctypes.c_void_p.from_address(struct + offset + 8).value)(struct)


def device_of(x):
    """(type, number) in DLPack's terms. Raises BufferError, as its protocol requires, if DLPack has no such device."""
    x._live()  # raises if the context was closed
    kind, _, number = x.device.partition(':')
    if kind not in _DEVICES:
        raise BufferError(f'the tensor is on {x.device}, which is no device of DLPack; expected "cpu" or "cuda"')
    return _DEVICES[kind], int(number or 0)


def export(x, max_version=None, dl_device=None, copy=None):
    """The capsule that __dlpack__ returns."""
    device = device_of(x)
    if copy:
        flat = x.detach().reshape([x.size])
        x = ops.stack([flat], dim=0).reshape(x.shape)  # stack copies tensors of every dtype
    if dl_device is not None and tuple(dl_device) != device:
        raise BufferError(f'the tensor is on the DLPack device {device}, and cannot be given for {tuple(dl_device)}')
    versioned = max_version is not None and max_version[0] >= 1
    give = lib.tg_dlpack_export if versioned else lib.tg_dlpack_export_unversioned
    struct = give(x._live())
    if struct == ffi.NULL:
        fail(x._world)
    return _new(int(ffi.cast('uintptr_t', struct)), VERSIONED if versioned else UNVERSIONED, _free_unused)


def _capsule_of(array):
    if not hasattr(array, '__dlpack__'):
        return array
    try:
        return array.__dlpack__(max_version=(1, 1))
    except TypeError:  # written before version 1 of DLPack
        return array.__dlpack__()


def take(ctx, array):
    """A tensor of the context on the memory of an array, or of a capsule of one."""
    from .tensor import made

    into, capsule = ctx._ctx, _capsule_of(array)
    name = VERSIONED if _is_valid(id(capsule), VERSIONED) else UNVERSIONED
    if not _is_valid(id(capsule), name):
        raise TypeError(f'{array!r} has no method __dlpack__, and is not an unused capsule of DLPack')
    struct = _pointer(id(capsule), name)
    _rename(id(capsule), _USED[name])
    if name == VERSIONED:
        return made(ctx, lib.tg_dlpack_import(into, ffi.cast('struct DLManagedTensorVersioned *', struct)))
    return made(ctx, lib.tg_dlpack_import_unversioned(into, ffi.cast('struct DLManagedTensor *', struct)))
