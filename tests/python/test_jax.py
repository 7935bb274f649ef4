"""Arrays that are shared with JAX by DLPack, both ways."""

import numpy as np
import pytest

import tapegrad as tg

jax = pytest.importorskip('jax')
jax.config.update('jax_enable_x64', True)
jnp = jax.numpy


@pytest.mark.parametrize('dtype', ['f32', 'f64', 'f16', 'bf16', 'i64', 'i32', 'i16', 'i8', 'u64', 'u32', 'u16', 'u8', 'bool'])
def test_round_trip(dtype):
    x = tg.tensor(np.arange(6).reshape(2, 3) % 2, dtype)
    a = jax.dlpack.from_dlpack(x)
    assert a.shape == (2, 3) and a.astype('float64').tolist() == x.tolist()
    y = tg.from_dlpack(a)
    assert y.dtype == dtype and y.tolist() == x.tolist()


def test_no_copy():
    a = jnp.arange(4.0)
    x = tg.from_dlpack(a)
    assert int(tg.ffi.cast('intptr_t', tg.lib.tg_host_data(x._handle()))) == a.unsafe_buffer_pointer()
    b = jax.dlpack.from_dlpack(tg.zeros((64, 64), dtype='f64'))
    assert b.shape == (64, 64)


def test_gradients_of_a_jax_function_as_a_hook():
    x = tg.tensor([1.0, 2.0], 'f64', requires_grad=True)
    y = x * 3
    y.on_grad(lambda g: tg.from_dlpack(jnp.sin(jax.dlpack.from_dlpack(g.detach().contiguous()))))
    y.sum().backward()
    assert np.allclose(x.grad.numpy(), 3 * np.sin(1.0))
