"""Arrays that are shared with NumPy by DLPack."""

import gc
import weakref

import numpy as np
import pytest

import tapegrad as tg


def test_numpy_sees_the_bytes():
    x = tg.tensor([[1.0, 2.0], [3.0, 4.0]])
    a = np.from_dlpack(x)
    x += 1
    assert a.tolist() == [[2, 3], [4, 5]]
    del x
    gc.collect()
    assert a.tolist() == [[2, 3], [4, 5]]  # the export keeps them


def test_numpy_may_ask_for_a_copy():
    for values in (True, [True, False], [[1.0, 2.0]], [1, 2]):
        x = tg.tensor(values)
        capsule = x.__dlpack__(max_version=(1, 0), copy=True)
        y = tg.from_dlpack(capsule)
        assert y.tolist() == values and y.dtype == x.dtype
        x.write(np.zeros(x.shape))
        assert y.tolist() == values


def test_numpys_memory_is_used_and_freed():
    class Watched(np.ndarray):
        pass

    a = np.arange(6.0).reshape(2, 3)[:, ::-1].view(Watched)
    gone = weakref.ref(a)
    x = tg.from_dlpack(a)
    assert x.tolist() == a.tolist() and x.strides == (3, -1)
    a[0, 0] = 7
    assert x[0, 0].item() == 7
    del a, x
    gc.collect()
    tg.zeros(1)  # the context frees what has ended
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize('name', ['int8', 'int16', 'uint16', 'uint32', 'uint64'])
def test_integers_of_every_size(name):
    limits = np.iinfo(name)
    a = np.array([limits.min, 0, limits.max], name)
    x = tg.from_dlpack(a)
    assert x.tolist() == a.tolist() and x.numpy().dtype == name and np.from_dlpack(x).dtype == name
    assert tg.tensor(a).dtype == x.dtype and tg.tensor(a).tolist() == a.tolist()


def test_gradients_through_shared_arrays():
    x = tg.from_dlpack(np.array([1.0, 2.0, 3.0]))
    x.requires_grad = True
    (x * x).sum().backward()
    assert np.from_dlpack(x.grad).tolist() == [2, 4, 6]
    with pytest.raises(tg.StateError):
        np.from_dlpack(x)


def test_what_is_refused():
    with pytest.raises(TypeError, match='no method __dlpack__'):
        tg.from_dlpack(3)
    with pytest.raises(tg.DtypeError):
        tg.from_dlpack(np.zeros(3, 'complex128'))
    with pytest.raises(BufferError):
        tg.ones(1).__dlpack__(dl_device=(2, 0))
    x = tg.ones(1, context=tg.Context('meta'))
    for export in x.__dlpack_device__, x.__dlpack__, lambda: x.__dlpack__(dl_device=(1, 0)), lambda: np.from_dlpack(x):
        with pytest.raises(BufferError, match='the tensor is on meta, which is no device of DLPack'):
            export()


def test_unused_capsules_free_their_export():
    with tg.Context(threads=1) as ctx:
        x = tg.ones(1000)
        for _ in range(100):
            x.__dlpack__()
            x.__dlpack__(max_version=(1, 1))
        del x
        tg.zeros(1)
        assert ctx.memory()['live'] < 4000


def test_copies_have_as_many_dims_as_tensors():
    x = tg.ones([1] * 7 + [2])
    y = tg.from_dlpack(x.__dlpack__(max_version=(1, 1), copy=True))
    y += 1
    assert y.shape == x.shape and y.sum().item() == 4 and x.sum().item() == 2
