"""Passes arrays between the libraries: both see the same bytes, without a copy where JAX allows it."""

import jax

import tapegrad as tg
from tapegrad._capi import lib
from tapegrad.errors import check

NARROW = {'f64': 'f32', 'i64': 'i32', 'u64': 'u32'}  # what JAX has instead, unless jax_enable_x64 is on


def taken(x, context=None):
    """An array of JAX as a Tensor on the same bytes. The Tensor is read-only, because an array of JAX never changes."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        raise TypeError(f'an argument has the dtype {x.dtype}, which Tapegrad lacks; pass jax.random.key_data(key)')
    y = tg.from_dlpack(x, context)
    lib.tg_set_read_only(y._handle(), True)
    check(y._world)
    return y


def given(x):
    """A Tensor as an array of JAX on the same bytes. No gradient flows through it."""
    x = (x.detach() if x.requires_grad else x).contiguous()
    try:
        return jax.dlpack.from_dlpack(x)
    except tg.StateError:  # read-only memory, which this version of DLPack cannot say; JAX does not write it either
        lib.tg_set_read_only(x._handle(), False)
        try:
            return jax.dlpack.from_dlpack(x)
        finally:
            lib.tg_set_read_only(x._handle(), True)


def narrowed(x):
    """A Tensor in a dtype that JAX has."""
    return x if jax.config.jax_enable_x64 or x.dtype not in NARROW else x.cast(NARROW[x.dtype])


def device_of(arrays):
    """The name of the device of the arrays of a call; "cpu" if there are none."""
    names = {_device_name(d) for x in arrays for d in x.devices()}
    if len(names) > 1:
        raise ValueError(f'the arrays of one call are on {", ".join(sorted(names))}; expected one device')
    return names.pop() if names else 'cpu'


def _device_name(device):
    if device.platform not in ('cpu', 'gpu', 'cuda'):
        raise ValueError(f'an array is on {device}; Tapegrad has CPUs and CUDA devices (jax.device_put moves it)')
    return 'cpu' if device.platform == 'cpu' else f'cuda:{device.local_hardware_id}'
