"""Ops in Python and checks of gradients."""

import copy
import gc
import pickle

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import callbacks


@tg.custom_op
def cube(call, x):
    """x^3"""
    return x**3


@cube.vjp
def _(call, gradient):
    return 3 * call.inputs[0] ** 2 * gradient


@cube.jvp
def _(call, tangent):
    return 3 * call.inputs[0] ** 2 * tangent


@tg.custom_op
def sine(call, x, y=None, scale=1.0):
    """scale * sin(x) by NumPy, and x * y."""
    call.cosine = np.cos(x.numpy())
    first = scale * np.sin(x.numpy())
    return first if y is None else (first, x * y)


@sine.backward
def _(call, *gradients):
    x, g = call.inputs[0], gradients[0]
    gx = 0 if g is None else g * tg.tensor(call.cosine) * call.arguments.get('scale', 1.0)
    if len(gradients) == 1:
        return gx
    h, y = gradients[1], call.inputs[1]
    return (gx, None) if h is None else (gx + h * y, h * x)


def leaf(*shape, seed=0):
    return tg.tensor(np.random.default_rng(seed).normal(size=shape), requires_grad=True)


def test_values_and_gradients():
    x = leaf(3)
    y = cube(x)
    assert y.dtype == 'f64' and np.allclose(y.numpy(), x.numpy() ** 3)
    (x * x + y + x).sum().backward()
    assert np.allclose(x.grad.numpy(), 2 * x.numpy() + 3 * x.numpy() ** 2 + 1)


def test_a_vjp_can_be_differentiated_again():
    x = leaf(3)
    first = tg.grad(cube(x).sum(), x, create_graph=True)
    second = tg.grad(first.sum(), x, create_graph=True)
    third = tg.grad(second.sum(), x)
    assert np.allclose(second.numpy(), 6 * x.numpy()) and np.allclose(third.numpy(), 6)
    assert np.allclose(tg.jvp(cube(x), [x], [tg.ones((3,), dtype='f64')]).numpy(), 3 * x.numpy() ** 2)


def test_numpy_in_forward_and_absent_gradients():
    x, y = leaf(2, 3), leaf(2, 3, seed=1)
    a, b = sine(x, y, scale=2.0)
    assert np.allclose(b.numpy(), x.numpy() * y.numpy())
    a.sum().backward()
    assert np.allclose(x.grad.numpy(), 2 * np.cos(x.numpy()))
    assert y.grad is None or not y.grad.numpy().any()
    x.grad = y.grad = None
    sine(x, y)[1].sum().backward()
    assert np.allclose(x.grad.numpy(), y.numpy()) and np.allclose(y.grad.numpy(), x.numpy())
    assert np.allclose(sine(x).numpy(), np.sin(x.numpy()))


@tg.custom_op
def chosen(call, mask, a, b):
    return tg.ops.where(mask, a, b)


def test_numbers_are_floats_next_to_a_mask():
    x = tg.tensor([1.0, 2.0], dtype='f64')
    y = chosen(x > 1, x, 0.5)
    assert y.dtype == 'f64' and y.tolist() == [0.5, 2]
    assert chosen(x > 1, tg.tensor([3, 4]), 5).tolist() == [5, 4]


def test_gradcheck():
    x, y = leaf(3), leaf(3, seed=1)
    result = tg.gradcheck(cube, [x], second_order=True)
    assert result.checked == 3 and result.worst < 1e-3 and not result.report
    assert tg.gradcheck(lambda x, y: sine(x, y, scale=3.0), [x, y]).checked == 6
    assert x.is_alive and x.grad is None

    @tg.custom_op
    def square(call, x):
        return x * x

    @square.vjp
    def _(call, gradient):
        return gradient * call.inputs[0]

    with pytest.raises(tg.GradientError, match='a factor 2 is missing'):
        tg.gradcheck(square, [x])
    with pytest.raises(tg.StateError):
        tg.gradcheck(cube, [tg.ones((2,), dtype='f64')])


def test_exceptions_come_out_of_the_call():
    @tg.custom_op
    def broken(call, x):
        if call.arguments.get('now'):
            raise KeyError('forward')
        return x * 1

    @broken.backward
    def _(call, gradient):
        raise ZeroDivisionError('backward')

    x = leaf(2)
    with pytest.raises(TypeError):
        broken(x, now=True)
    y = broken(x)
    with pytest.raises(tg.CallbackError, match='ZeroDivisionError: backward.*broken') as error:
        y.sum().backward()
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    with pytest.raises(tg.UnsupportedError, match='vjp slot'):
        tg.grad(sine(x).sum(), x, create_graph=True)


def test_wrong_results_are_refused():
    @tg.custom_op
    def op(call, x):
        return x + 1

    @op.backward
    def _(call, gradient):
        return gradient.sum()

    x = leaf(2)
    with pytest.raises(tg.CallbackError, match=r'has the shape \(\), but must have \(2,\)'):
        op(x).sum().backward()

    @op.backward
    def _(call, gradient):
        return gradient, gradient

    with pytest.raises(tg.CallbackError, match='returned 2 tensors, but 1 were expected'):
        op(x).sum().backward()

    @tg.custom_op
    def texts(call, x):
        return 'text'

    with pytest.raises(TypeError, match='returned a'):
        texts(x)
    with pytest.raises(TypeError, match='at least one tensor'):
        cube(3.0)


def test_within_hooks_recompute_and_no_grad():
    x = leaf(3)
    tg.recompute(cube, x).sum().backward()
    assert np.allclose(x.grad.numpy(), 3 * x.numpy() ** 2)
    x.grad = None
    y = x * 2
    y.on_grad(cube)
    (y * 3).sum().backward()
    assert np.allclose(x.grad.numpy(), 2 * 27)
    with tg.no_grad():
        z = cube(x)
    assert not z.requires_grad


def test_an_op_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(cube)) is cube and copy.deepcopy(cube) is cube


def test_calls_leave_nothing():
    x = leaf(3)
    for _ in range(3):
        cube(x)
    gc.collect()
    x + x
    before = len(callbacks._functions)
    for _ in range(100):
        cube(cube(x)).sum().backward()
    gc.collect()
    x + x
    assert len(callbacks._functions) <= before + 1


def test_gradients_of_another_dtype_add_up():
    @tg.custom_op
    def same(call, x):
        return x * 1

    @same.backward
    def _(call, gradient):
        return gradient.numpy().astype('float64')

    x = tg.ones((2,), requires_grad=True)
    (same(x) + same(x)).sum().backward()
    assert x.grad.tolist() == [2, 2] and x.grad.dtype == 'f32'


def test_outputs_that_cannot_be_read_are_refused():
    meta = tg.zeros((2,), context=tg.Context(device='meta'))

    @tg.custom_op
    def ended(call, x):
        with tg.tape() as tape:
            y = x * 1
        tape.reset()
        return y

    @tg.custom_op
    def elsewhere(call, x):
        return meta

    with pytest.raises(tg.HandleError, match='reset'):
        ended(tg.ones((2,)))
    with pytest.raises(ValueError, match='returned a tensor on meta, but its inputs are on cpu'):
        elsewhere(tg.ones((2,)))
    with pytest.raises(TypeError, match='an input of ended must be'):
        ended(tg.ones((2,)), 'text')


def test_a_backward_may_return_tensors_of_the_default_context():
    @tg.custom_op
    def same(call, x):
        return x * 1

    @same.backward
    def _(call, gradient):
        return tg.ones(gradient.shape)

    x = tg.ones((2,), requires_grad=True, context=tg.Context())
    (same(x) + same(x)).sum().backward()
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize('create_graph', [False, True])
def test_a_vjp_knows_which_inputs_need_a_gradient(create_graph):
    seen = []

    @tg.custom_op
    def product(call, x, y, z=None):
        return x * y

    @product.vjp
    def _(call, g):
        seen.append(call.needs)
        return call.inputs[1] * g, None, None

    x, y = leaf(3), tg.tensor(np.ones(3))
    assert tg.grad(product(x, y, None).sum(), x, create_graph=create_graph).tolist() == [1, 1, 1]
    assert seen == [(True, False, False)]


def test_a_gradient_must_be_a_tensor_or_numbers():
    @tg.custom_op
    def same(call, x):
        return x * 1

    same.backward(lambda call, g: {'x': g})
    with pytest.raises(tg.CallbackError, match='number 0 of what the backward of same returned is a dict'):
        same(leaf(3)).sum().backward()


@tg.custom_op
def product(call, x, y):
    return x * y


@product.vjp
def _(call, g):
    return call.inputs[1] * g, None


@pytest.mark.parametrize('create_graph', [False, True])
def test_inputs_that_have_ended_are_read_in_backward(create_graph):
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    values = np.array([3.0, 4.0], 'float32')
    for make in (lambda: 3, lambda: values, values.tolist, lambda: tg.tensor(values)):
        g = tg.grad(product(x * x, make()).sum(), x, create_graph=create_graph)
        assert np.allclose(g.numpy(), 2 * x.numpy() * np.array(make()))
        if create_graph:
            assert np.allclose(tg.grad(g.sum(), x).numpy(), 2 * np.array(make()))


def test_a_gradient_on_another_device_is_refused():
    @tg.custom_op
    def double(call, x):
        return x * 2

    double.backward(lambda call, g: tg.zeros(g.shape, dtype='f64', context=tg.Context('meta')))
    with pytest.raises(tg.Error, match='meta'):
        double(leaf(3)).sum().backward()
