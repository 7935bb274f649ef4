#!/usr/bin/env python3
"""torch_orders.py LIBRARY.so torch-first|torch-last: PyTorch and Tapegrad work in one process, in this order of loading.

PyTorch brings CUDA and NCCL libraries of its own, under the names of those that the plugins of Tapegrad need. Each library
runs an op after both are loaded; then a context is made on device cuda: it works, or says what this machine lacks.
"""
import ctypes
import sys

MAX_DIMS = 8
DTYPE_DEFAULT = 0


class Config(ctypes.Structure):
    """The first fields of tg_config; those after them are zero."""
    _fields_ = [('size', ctypes.c_size_t), ('device', ctypes.c_char_p), ('rest', ctypes.c_uint64 * 14)]


class Shape(ctypes.Structure):
    _fields_ = [('ndim', ctypes.c_int64), ('dim', ctypes.c_int64 * MAX_DIMS)]


def load(path):
    tg = ctypes.CDLL(path)
    for name in ('tg_ctx_new', 'tg_tape_new', 'tg_full', 'tg_add'):
        getattr(tg, name).restype = ctypes.c_void_p
    for name in ('tg_ctx_message', 'tg_ctx_device'):
        getattr(tg, name).restype = ctypes.c_char_p
    tg.tg_item.restype = ctypes.c_double
    return tg


def add(tg, device):
    """Returns 1.5 + 2 as the device computes it, or the context's message."""
    pointer = ctypes.c_void_p
    config = Config(size=ctypes.sizeof(Config), device=device)
    ctx = pointer(tg.tg_ctx_new(ctypes.byref(config)))
    tape = pointer(tg.tg_tape_new(ctx))
    a, b = (pointer(tg.tg_full(tape, DTYPE_DEFAULT, Shape(ndim=0), ctypes.c_double(v))) for v in (1.5, 2))
    result = tg.tg_item(pointer(tg.tg_add(tape, a, b)))
    message = tg.tg_ctx_message(ctx).decode()
    tg.tg_tape_free(tape)
    tg.tg_ctx_free(ctx)
    return message or result


library, order = sys.argv[1:]
if order == 'torch-first':
    import torch
tg = load(library)
ours = add(tg, b'cpu')
if order == 'torch-last':
    import torch
theirs = (torch.ones(2) + torch.ones(2)).sum().item()
on_cuda = add(tg, b'cuda')
print(f'{order}, PyTorch {torch.__version__}: cpu {ours}, PyTorch {theirs}, cuda {on_cuda}')
wanted = (3.5, 'there is no NVIDIA driver here', 'the driver finds no GPU', 'plugin libtapegrad-cuda.so is neither in')
fine = on_cuda == wanted[0] or any(w in str(on_cuda) for w in wanted[1:])
sys.exit(not (ours == 3.5 and theirs == 4 and add(tg, b'cpu') == 3.5 and fine))
