#!/usr/bin/env python3
"""torch_orders.py LIBRARY.so torch-first|torch-last: PyTorch and Tapegrad work in one process, in this order of loading.

PyTorch brings CUDA and NCCL libraries of its own, under the names of those that the plugins of Tapegrad need. Tapegrad runs
an op on the CPU and one on device cuda when it is loaded, and again when both are. Device cuda works, or says what this machine
lacks.
"""
import ctypes
import sys

MAX_DIMS = 8
DTYPE_DEFAULT = 0


class Config(ctypes.Structure):
    """The first fields of tg_config; tg_struct_fill gives those after them their defaults."""
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
    config = Config()
    if tg.tg_struct_fill(b'tg_config', ctypes.byref(config), ctypes.c_size_t(ctypes.sizeof(Config))):
        sys.exit('tg_struct_fill does not know tg_config')
    config.device = device
    ctx = pointer(tg.tg_ctx_new(ctypes.byref(config)))
    tape = pointer(tg.tg_tape_new(ctx))
    a, b = (pointer(tg.tg_full(tape, DTYPE_DEFAULT, Shape(ndim=0), ctypes.c_double(v))) for v in (1.5, 2))
    result = tg.tg_item(pointer(tg.tg_add(tape, a, b)))
    message = tg.tg_ctx_message(ctx).decode()
    tg.tg_tape_free(tape)
    tg.tg_ctx_free(ctx)
    return message or result


def check(tg):
    """Returns whether both devices have the right result, and what they have."""
    cpu, cuda = add(tg, b'cpu'), add(tg, b'cuda')
    lacks = ('there is no NVIDIA driver here', 'the driver finds no GPU', 'plugin libtapegrad-cuda.so is neither in')
    return cpu == 3.5 and (cuda == 3.5 or any(words in str(cuda) for words in lacks)), f'cpu {cpu}, cuda {cuda}'


library, order = sys.argv[1:]
if order == 'torch-first':
    import torch
tg = load(library)
alone, before = check(tg)
import torch  # noqa: E402 # the order is what is tested

theirs = (torch.ones(2) + torch.ones(2)).sum().item()
both, after = check(tg)
print(f'{order}, PyTorch {torch.__version__}: {theirs}; Tapegrad: {before}; then: {after}')
sys.exit(not (alone and both and theirs == 4))
