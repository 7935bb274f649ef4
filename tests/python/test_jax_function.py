"""tapegrad.jax.function and tapegrad.jax.op, next to JAX's own gradients."""

import concurrent.futures
import doctest
import gc
import pathlib

import numpy as np
import pytest

import tapegrad as tg

jax = pytest.importorskip('jax')
jax.config.update('jax_enable_x64', True)
import tapegrad.jax as tj  # noqa: E402 # after the check that JAX is here

jnp = jax.numpy
DOCS = pathlib.Path(__file__).resolve().parents[2] / 'docs'


@tj.function
def attend(x, w, scale=1.0):
    """A function with two results and an argument that is no array."""
    y = tg.ops.softmax(x @ w, dim=-1)
    return y @ y.transpose(d0=0, d1=1), tg.ops.tanh(x * scale)


def attend_in_jax(x, w, scale=1.0):
    y = jax.nn.softmax(x @ w)
    return y @ y.T, jnp.tanh(x * scale)


def loss_of(f):
    """A loss that gives each result another gradient."""

    def loss(x, w):
        a, b = f(x, w, scale=0.7)
        return (a * jnp.arange(1.0, 10.0).reshape(3, 3)).sum() + (b**3).sum()

    return loss


OURS, THEIRS = loss_of(attend), loss_of(attend_in_jax)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal((3, 4))), jnp.asarray(rng.standard_normal((4, 2)))


def same(ours, theirs, limit=1e-12):
    ours, theirs = (jax.tree_util.tree_flatten(t) for t in (ours, theirs))
    assert ours[1] == theirs[1]
    for a, b in zip(ours[0], theirs[0]):
        assert isinstance(a, jax.Array) and a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit)


@pytest.mark.parametrize('transform', [lambda f: f, jax.jit], ids=['called', 'compiled'])
@pytest.mark.parametrize('which', [1, (0, 1)], ids=str)
def test_values_and_gradients(transform, which):
    for derive in (lambda f: f, lambda f: jax.value_and_grad(f, which)):
        same(transform(derive(OURS))(*inputs()), transform(derive(THEIRS))(*inputs()))


def test_vjp_can_be_called_again():
    y, back = jax.vjp(attend, *inputs())
    expected_y, expected_back = jax.vjp(attend_in_jax, *inputs())
    same(y, expected_y)
    for seed in range(3):
        seeds = tuple(jnp.asarray(np.random.default_rng(seed).standard_normal(a.shape)) for a in y)
        same(back(seeds), expected_back(seeds))
        same(jax.jit(back)(seeds), expected_back(seeds))


@pytest.mark.parametrize(
    'transform, order',
    [(lambda f: f, 1), (lambda f: f, 2), (jax.jit, 1)],
    ids=['2, called', '3, called', '2, compiled'],
)
def test_second_and_third_derivatives(transform, order):
    def derived(loss, order):
        for _ in range(order):
            loss = (lambda f: lambda x, w: sum(jnp.sin(g).sum() for g in jax.grad(f, (0, 1))(x, w)))(loss)
        return jax.grad(loss, (0, 1))

    same(transform(derived(OURS, order))(*inputs()), jax.jit(derived(THEIRS, order))(*inputs()), 1e-10)


@pytest.mark.parametrize('transform', [lambda f: f, jax.jit], ids=['called', 'compiled'])
def test_vmap(transform):
    x, w = jnp.stack([inputs(i)[0] for i in range(3)]), inputs()[1]
    same(transform(jax.vmap(jax.grad(OURS), (0, None)))(x, w), jax.jit(jax.vmap(jax.grad(THEIRS), (0, None)))(x, w))
    sums = [lambda x, f=f: jax.vmap(f, (0, None))(x, w).sum() for f in (OURS, THEIRS)]
    same(transform(jax.grad(sums[0]))(x), jax.jit(jax.grad(sums[1]))(x))


def test_jacobian_by_rows():
    same(
        jax.jacrev(lambda x: attend(x, inputs()[1])[0])(inputs()[0]),
        jax.jacrev(lambda x: attend_in_jax(x, inputs()[1])[0])(inputs()[0]),
    )


def test_checkpoint_and_scan():
    def through(f):
        def loss(x, w):
            body = jax.checkpoint(lambda x, _: (f(x, w)[1], f(x, w)[0].sum()))
            y, sums = jax.lax.scan(body, x, None, length=3)
            return (y**2).sum() + sums.sum()

        return jax.grad(loss, (0, 1))(*inputs())

    same(through(attend), through(attend_in_jax))


def test_pytrees():
    @tj.function
    def f(parameters, x):
        y = tg.ops.relu(x @ parameters['w'] + parameters['b'])
        return {'y': y, 'extra': [y.sum(), (y * 2, None)]}

    def g(parameters, x):
        y = jax.nn.relu(x @ parameters['w'] + parameters['b'])
        return {'y': y, 'extra': [y.sum(), (y * 2, None)]}

    x, w = inputs()
    parameters = {'w': w, 'b': jnp.ones(2)}
    same(f(parameters, x), g(parameters, x))
    same(*(jax.jit(jax.grad(lambda p, x: h(p, x)['extra'][1][0].sum()))(parameters, x) for h in (f, g)))


def test_integers_have_no_gradient():
    @tj.function
    def f(table, index):
        rows = tg.ops.embedding(table, index)
        return rows, index + 1

    table, index = inputs()[0], jnp.array([2, 0, 2])
    for transform in (lambda f: f, jax.jit):
        grad, out = transform(jax.grad(lambda t: ((f(t, index)[0] ** 2).sum(), f(t, index)[1]), has_aux=True))(table)
        same(out, index + 1)
        same(grad, jax.grad(lambda t: (t[index] ** 2).sum())(table))


def test_a_result_that_is_an_input_or_depends_on_none():
    @tj.function
    def f(x, y):
        return x, tg.ones((2,), dtype='f64'), y.transpose(d0=0, d1=1)

    x, y = inputs()
    for transform in (lambda f: f, jax.jit):
        same(transform(f)(x, y), (x, jnp.ones(2), y.T))
        grads = transform(jax.grad(lambda x, y: sum((r**2).sum() for r in f(x, y)), (0, 1)))(x, y)
        same(grads, (2 * x, 2 * y))


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'float64'])
def test_dtypes(dtype):
    square = tj.function(lambda x: x * x)
    x = jnp.array([1.5, -2.0, 0.25], dtype)
    for transform in (lambda f: f, jax.jit):
        same(transform(square)(x), x * x)
        same(transform(jax.grad(lambda x: square(x).sum()))(x), 2 * x)


def test_without_x64_results_are_narrow():
    @tj.function
    def f(x):
        return x.cast('f64').sum(), x.argmax(0)

    with jax.enable_x64(False):
        x = jnp.arange(3.0)
        for transform in (lambda f: f, jax.jit):
            same(transform(f)(x), (x.sum(), x.argmax()))
            same(transform(jax.grad(lambda x: f(x)[0]))(x), jnp.ones(3))


def test_no_copy():
    places = []

    @tj.function
    def f(x):
        y = x.reshape((2, 2)) * 1
        places.extend(int(tg.ffi.cast('intptr_t', tg.lib.tg_host_data(t._handle()))) for t in (x, y))
        return y

    x = jnp.arange(4.0)
    y = f(x)
    assert places == [x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()]


def test_results_outlive_the_run():
    kept = []
    for i in range(200):
        kept.append((i, *jax.vjp(attend, *inputs(i))))
        if i % 50 == 49:
            del kept[::2]
            gc.collect()
    seed, values, _ = kept[-1]
    kept.clear()
    gc.collect()
    attend(*inputs())
    same(values, attend_in_jax(*inputs(seed)))


def test_arrays_of_jax_are_not_written():
    @tj.function
    def f(x):
        x += 1
        return x

    x = jnp.zeros(2)
    with pytest.raises(tg.Error, match='read-only'):
        f(x)
    assert x.tolist() == [0, 0]


def test_threads_have_contexts_of_their_own():
    step = jax.jit(jax.value_and_grad(OURS, (0, 1)))
    expected = [jax.value_and_grad(THEIRS, (0, 1))(*inputs(i)) for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for f in (step, jax.value_and_grad(OURS, (0, 1))):
            for found, theirs in zip(pool.map(lambda i: f(*inputs(i)), [*range(8)] * 5), expected * 5):
                same(found, theirs)


def test_large_arrays_in_a_compiled_function():
    x = jnp.ones((1500, 1500))
    double = tj.function(lambda x: x * 2)
    y = jax.jit(lambda x: double(double(x + 1)) + double(x))(x)
    same(y, 10 * x)


# ---- Errors ----


def test_errors_of_tapegrad():
    x, w = inputs()
    with pytest.raises(tg.ShapeError, match='matmul'):
        attend(x, w.T)
    with pytest.raises(tg.ShapeError, match='matmul'):
        jax.jit(attend)(x, w.T)
    same(attend(x, w), attend_in_jax(x, w))


def test_results_that_are_no_tensors_are_refused():
    with pytest.raises(TypeError, match='half returned a result of type float; expected Tensors'):

        @tj.function
        def half(x):
            return 0.5

        half(jnp.ones(2))


def test_numbers_are_not_known_while_a_function_is_compiled():
    last = tj.function(lambda x: x * x.sum().item())
    same(last(jnp.ones(2)), 2 * jnp.ones(2))
    with pytest.raises(tg.DeviceError, match='under jit and vmap <lambda> is called once on tensors without values'):
        jax.jit(last)(jnp.ones(2))


def test_tensors_from_outside_are_refused():
    weight = tg.ones((4,), dtype='f64')
    for transform in (lambda f: f, jax.jit):
        with pytest.raises(tg.Error, match='context'):
            transform(tj.function(lambda x: x * weight))(inputs()[0])


def test_arrays_that_tapegrad_lacks_are_refused():
    f = tj.function(lambda x: x)
    with pytest.raises(tg.DtypeError, match='complex'):
        f(jnp.ones(2, 'complex64'))
    with pytest.raises(TypeError, match=r'jax.random.key_data\(key\)'):
        f(jax.random.key(0))


def test_forward_mode_is_refused_by_jax():
    with pytest.raises(TypeError, match='custom_vjp'):
        jax.jvp(lambda x: attend(x, inputs()[1]), inputs()[:1], inputs()[:1])


# ---- A function of JAX in Tapegrad ----


def test_a_function_of_jax_as_an_op():
    f = tj.op(lambda x, n, y: (jax.scipy.special.gammaln(x) * y**n, jnp.argsort(x)))
    values = np.array([0.3, 1.5, 2.5]), np.array([1.0, 2.0, 0.5])
    x, y = (tg.tensor(v, requires_grad=True) for v in values)
    z, order = f(x * 2, 3, y)
    assert order.tolist() == [0, 1, 2] and order.dtype == 'i64'

    def expected(x, y):
        return (jnp.sin(jax.scipy.special.gammaln(x * 2) * y**3)).sum()

    loss = z.sin().sum()
    gx, gy = tg.grad(loss, [x, y], create_graph=True)
    ex, ey = jax.grad(expected, (0, 1))(*values)
    np.testing.assert_allclose(gx.numpy(), ex, 1e-12)
    np.testing.assert_allclose(gy.numpy(), ey, 1e-12)
    second = tg.grad((gx * gy).sum(), [x, y])
    theirs = jax.grad(lambda x, y: jnp.multiply(*jax.grad(expected, (0, 1))(x, y)).sum(), (0, 1))(*values)
    for a, b in zip(second, theirs):
        np.testing.assert_allclose(a.numpy(), b, 1e-9)


def test_gradcheck_of_an_op_of_jax():
    f = tj.op(lambda x, w: jax.lax.sin(x) * w)
    x, w = (tg.tensor(v, requires_grad=True) for v in (np.array([0.3, 1.0]), np.array([2.0, 0.5])))
    assert tg.gradcheck(f, [x, w], second_order=True).checked > 0


def test_a_function_of_either_in_the_other():
    inner = tj.op(jnp.sinh)
    outer = tj.function(lambda x: inner(x * 2) * x)
    same(jax.grad(lambda x: outer(x).sum())(inputs()[0]), jax.grad(lambda x: (jnp.sinh(x * 2) * x).sum())(inputs()[0]))


def test_sessions_of_the_documentation():
    with jax.enable_x64(False):
        failed, tried = doctest.testfile(str(DOCS / 'jax.md'), module_relative=False)
    assert tried > 10 and not failed
