#!/usr/bin/env python3
"""dlpack_torch.py LIBRARY: PyTorch and the library exchange tensors by DLPack, both ways, without a copy."""
import ctypes
import sys
import threading

import torch

from capsules import ALL_DIMS, DTYPES, refused, run

NAMES = dict(zip(DTYPES, (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
                          torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.bool,
                          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)))
VERSIONS = ({}, {'max_version': (1, 0)})  # arguments of __dlpack__; the first gives a struct without a version


def test_a_tensor_is_one_of_pytorch(world):
    for dtype, theirs in NAMES.items():
        x = world.zeros(dtype, 2, 3)
        y = torch.from_dlpack(x)
        assert y.data_ptr() == x.data and y.dtype == theirs and y.shape == (2, 3) and y.stride() == (3, 1)
        y.fill_(1)
        size = 6 * y.element_size()
        assert ctypes.string_at(x.data, size) != bytes(size), 'the write is not seen'
        del y
        world.drop(x)


def test_views_and_empty_tensors(world):
    tape, x = world.lib.tape, world.zeros('f32', 2, 3)
    base = torch.from_dlpack(x)
    base.copy_(torch.arange(6.0).reshape(2, 3))
    view = torch.from_dlpack(type(x)(world, world.lib.tg_transpose(tape, x.handle, 0, 1)))
    assert torch.equal(view, base.T) and view.stride() == (1, 3) and view.data_ptr() == base.data_ptr()
    empty = world.zeros('f32', 0, 3)
    assert torch.from_dlpack(empty).shape == (0, 3)
    del base, view
    world.lib.tg_tape_reset(tape)
    world.drop(x)
    world.drop(empty)


def test_one_of_pytorch_is_a_tensor(world):
    base = torch.arange(24.0).reshape(2, 3, 4)
    given = [base, base.permute(2, 0, 1), base[:, 1:, ::2], base[0].expand(2, 3, 4)]
    given += [torch.tensor(5.0), torch.zeros(0, 3)]
    given += [torch.ones(3, dtype=dtype) for dtype in NAMES.values()]
    for theirs in given:
        for arguments in VERSIONS:
            x = world.take(theirs, **arguments)
            assert not theirs.numel() or x.data == theirs.data_ptr()
            y = torch.from_dlpack(x)
            assert torch.equal(y.float(), theirs.float()) and y.dtype == theirs.dtype  # float8 has no equal
            del y
            world.drop(x)


def test_memory_is_given_back(world):
    theirs = torch.ones(1000)
    references = theirs._use_count()
    x = world.take(theirs)
    assert theirs._use_count() > references
    world.drop(x)
    world.settle()
    assert theirs._use_count() == references


def test_gradients(world):
    lib, theirs = world.lib, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    (theirs ** 3).sum().backward()
    x = world.take(theirs.detach())
    lib.tg_set_requires_grad(x.handle, True)
    lib.tg_backward(lib.tape, lib.sum(lib.mul(lib.square(x.handle), x.handle), ALL_DIMS, False))
    gradient = torch.from_dlpack(type(x)(world, lib.tg_grad_of(x.handle)))
    assert torch.equal(gradient, theirs.grad)
    with refused('tg_dlpack_export', 'requires a gradient', 'tg_detach'):
        torch.from_dlpack(x)
    del gradient
    lib.tg_tape_reset(lib.tape)
    world.drop(x)


def test_other_dtypes_are_refused(world):
    for dtype, name in ((torch.complex64, 'complex64'), (torch.float8_e4m3fnuz, 'float8_e4m3fnuz')):
        with refused('tg_dlpack_import', f'dtype {name},'):
            world.take(torch.zeros(3).to(dtype), max_version=(1, 0))


def test_ends_on_another_thread_and_after_the_context(world):
    exported = []
    for i in range(50):
        x = world.zeros('f64', 100)
        exported.append(torch.from_dlpack(x))
        world.drop(x)
    exported[-1].fill_(3)
    thread = threading.Thread(target=lambda: [exported.pop(0) for _ in range(40)])
    thread.start()
    for _ in range(50):
        world.settle()
    thread.join()
    world.free()
    world.ctx = None
    assert exported[-1].sum() == 300
    thread = threading.Thread(target=exported.clear)
    thread.start()
    thread.join()


run([test for name, test in sorted(globals().items()) if name.startswith('test_')], sys.argv[1])
