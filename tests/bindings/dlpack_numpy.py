#!/usr/bin/env python3
"""dlpack_numpy.py LIBRARY: NumPy and the library exchange arrays by DLPack, both ways, without a copy."""
import ctypes
import gc
import sys
import threading

import numpy as np

from capsules import ALL_DIMS, refused, run

NAMES = {'f32': 'float32', 'f64': 'float64', 'f16': 'float16', 'i64': 'int64', 'i32': 'int32', 'u8': 'uint8',
         'i8': 'int8', 'i16': 'int16', 'u16': 'uint16', 'u32': 'uint32', 'u64': 'uint64', 'bool': 'bool'}
VERSIONS = ({}, {'max_version': (1, 0)})  # arguments of __dlpack__; the first gives a struct without a version


def address(array):
    return array.__array_interface__['data'][0]


def test_a_tensor_is_an_array(world):
    for dtype, name in NAMES.items():
        x = world.zeros(dtype, 2, 3)
        a = np.from_dlpack(x)
        assert address(a) == x.data and a.dtype == name and a.shape == (2, 3) and not a.any()
        assert a.strides == (3 * a.itemsize, a.itemsize)
        ctypes.memset(x.data, 1, a.nbytes)
        assert a.all(), 'the write is not seen'
        del a
        world.drop(x)


def test_an_array_writes_a_tensor(world):
    x = world.zeros('f64', 4)
    a = np.from_dlpack(x)
    a[:] = range(4)
    assert world.lib.tg_item(world.lib.tg_sum(world.lib.tape, x.handle, ALL_DIMS, False)) == 6
    world.lib.tg_tape_reset(world.lib.tape)
    del a
    world.drop(x)


def test_views_and_empty_tensors_are_arrays(world):
    tape, x = world.lib.tape, world.zeros('f32', 2, 3)
    base = np.from_dlpack(x)
    base[:] = np.arange(6).reshape(2, 3)
    for handle, expected in ((world.lib.tg_transpose(tape, x.handle, 0, 1), base.T),
                             (world.lib.tg_slice(tape, x.handle, 1, 1, 3, 1), base[:, 1:])):
        x_view = type(x)(world, handle)
        a = np.from_dlpack(x_view)
        assert (a == expected).all() and a.strides == expected.strides and address(a) == address(expected)
        del a
    del base, expected
    empty = world.zeros('f32', 0, 3)
    assert np.from_dlpack(empty).shape == (0, 3)
    world.lib.tg_tape_reset(tape)
    world.drop(x)
    world.drop(empty)


def test_an_array_is_a_tensor(world):
    base = np.arange(24.0).reshape(2, 3, 4)
    for array in (base, base[::-1, :, ::-2], base.T, np.broadcast_to(base[0], (2, 3, 4))[:, 1:].copy()[1],
                  np.array(5.0), np.zeros((0, 3)), np.arange(3, dtype=np.int32), np.array([True, False])):
        for arguments in VERSIONS:
            references = sys.getrefcount(array)
            x = world.take(array, **arguments)
            assert world.lib.tg_ndim(x.handle) == array.ndim and world.lib.tg_numel(x.handle) == array.size
            assert not array.size or x.data == address(array)
            a = np.from_dlpack(x)
            assert (a == array).all() and a.strides == array.strides or not array.size
            del a
            world.drop(x)
            world.settle()
            assert sys.getrefcount(array) == references, 'the array is still held'


def test_a_gradient_of_an_array(world):
    lib, array = world.lib, np.array([1.0, 2.0, 3.0])
    x = world.take(array)
    lib.tg_set_requires_grad(x.handle, True)
    lib.tg_backward(lib.tape, lib.sum(lib.mul(lib.square(x.handle), x.handle), ALL_DIMS, False))
    gradient = np.from_dlpack(type(x)(world, lib.tg_grad_of(x.handle)))
    assert (gradient == 3 * array ** 2).all()
    with refused('tg_dlpack_export', 'requires a gradient', 'tg_detach'):
        np.from_dlpack(x)
    del gradient
    lib.tg_tape_reset(lib.tape)
    world.drop(x)


def test_read_only_memory(world):
    array = np.arange(3.0)
    array.flags.writeable = False
    x = world.take(array, max_version=(1, 0))
    world.lib.tg_write_f64(x.handle, (ctypes.c_double * 3)(), 3)
    with refused('read-only'):
        world.checked(None)
    assert not np.from_dlpack(x).flags.writeable
    with refused('DLManagedTensor cannot say'):
        x.__dlpack__()
    world.drop(x)
    y = world.zeros('f64', 3)
    assert np.from_dlpack(y).flags.writeable
    world.drop(y)


def test_what_has_no_place_here_is_refused_and_freed(world):
    array = np.zeros(3, dtype=np.complex64)
    references = sys.getrefcount(array)
    with refused('tg_dlpack_import', 'complex64', 'float32, float64'):
        world.take(array)
    assert sys.getrefcount(array) == references
    x = world.zeros('f32', 100)
    x.__dlpack__()  # the capsules are freed without a taker
    x.__dlpack__(max_version=(1, 0))
    world.drop(x)


def test_arrays_end_on_another_thread(world):
    arrays = []
    for i in range(50):
        x = world.zeros('f64', 100)
        arrays.append(np.from_dlpack(x))
        world.drop(x)
    thread = threading.Thread(target=arrays.clear)
    thread.start()
    for _ in range(50):
        world.settle()
    thread.join()


def test_arrays_outlive_the_context(world):
    theirs = np.arange(3.0)
    references = sys.getrefcount(theirs)
    ours = np.from_dlpack(world.zeros('f64', 1000))
    through = np.from_dlpack(world.take(theirs))
    world.free()
    world.ctx = None
    ours += 1
    assert ours.sum() == 1000 and through[2] == 2 and sys.getrefcount(theirs) > references
    del ours, through
    gc.collect()
    assert sys.getrefcount(theirs) == references


run([test for name, test in sorted(globals().items()) if name.startswith('test_')], sys.argv[1])
