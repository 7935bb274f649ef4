"""Tensors: creation, values, indexing, operators, printing, and how long they last."""

import copy
import gc
import operator
import pickle
import sys
import threading
import weakref

import numpy as np
import pytest

import tapegrad as tg


@pytest.mark.parametrize('dtype', ['f32', 'f64', 'f16', 'i64', 'i32', 'i16', 'i8', 'u64', 'u32', 'u16', 'u8', 'bool'])
def test_values_come_back_with_their_dtype(dtype):
    x = tg.tensor([[1, 0, 1], [0, 1, 1]], dtype)
    assert x.dtype == dtype and x.shape == (2, 3) and x.size == 6
    assert x.tolist() == [[1, 0, 1], [0, 1, 1]]
    assert isinstance(x[0, 0].item(), {'f': float, 'b': bool}.get(dtype[0], int))
    assert (
        x.numpy().dtype.name
        in {
            'f32': 'float32',
            'f64': 'float64',
            'f16': 'float16',
            'i64': 'int64',
            'i32': 'int32',
            'i16': 'int16',
            'i8': 'int8',
            'u64': 'uint64',
            'u32': 'uint32',
            'u16': 'uint16',
            'u8': 'uint8',
            'bool': 'bool',
        }[dtype]
    )
    assert (tg.tensor(x.numpy()).numpy() == x.numpy()).all()


def test_dtypes_of_numbers_without_a_dtype():
    assert [tg.tensor(v).dtype for v in (1.5, [1, 2], [True], [1, 2.0], np.float32(3), np.arange(3))] == [
        'f32',
        'i64',
        'bool',
        'f32',
        'f32',
        'i64',
    ]
    assert tg.tensor([1.5], np.float64).dtype == tg.tensor([1.5], 'float64').dtype == 'f64'
    assert tg.tensor([1.5, 2.5], 'bf16').numpy().dtype == np.float32
    assert tg.tensor(2**60 + 1).item() == 2**60 + 1
    assert tg.tensor([np.int64(2**60 + 1), np.int8(3)]).tolist() == [2**60 + 1, 3]


def test_arrays_of_the_other_byte_order_are_converted():
    for order in '<>':
        assert tg.tensor(np.array([1, -2.5], order + 'f4')).tolist() == [1, -2.5]
        assert tg.tensor(np.array([1, -2], order + 'i2')).tolist() == [1, -2]


def test_integers_of_64_bits_are_exact():
    most = 2**64 - 1
    x = tg.tensor([most, 2**63, 1])
    assert x.dtype == 'u64' and x.tolist() == [most, 2**63, 1] and x.numpy().tolist() == x.tolist()
    assert (x + 1).tolist() == [0, 2**63 + 1, 2] and x.sum().item() == 2**63 and x.max().item() == most
    assert (x > tg.tensor([1, 2**63 + 1, 0], 'u64')).tolist() == [True, False, True]
    assert repr(x) == f'[{most}  {2**63}{1:21}]\nu64[3]'
    assert tg.tensor(np.array([-128, 127], 'int8')).dtype == 'i8'
    assert tg.full(2, most, dtype='u64').tolist() == [most] * 2
    assert tg.full((), -(2**53) - 1, dtype='i64').item() == -(2**53) - 1
    for numbers, dtype in (([2**64], 'u64'), ([-1], 'u16'), ([128], 'i8')):
        with pytest.raises(OverflowError):
            tg.tensor(numbers, dtype)


def test_float8_is_stored_and_cast():
    x = tg.tensor([1.0, -0.3, 1e9], 'f8e4m3')
    assert x.tolist() == [1.0, -0.3125, 448.0] and x.numpy().dtype == np.float32
    assert x[:2].cast('f64').tolist() == [1.0, -0.3125] and tg.tensor(x, 'f8e5m2').tolist() == [1.0, -0.3125, 448.0]
    with pytest.raises(tg.Error, match='with which no op computes; cast it to a float first'):
        x + x


def test_ragged_sequences_and_unknown_dtypes_are_refused():
    with pytest.raises(ValueError, match='must have the same'):
        tg.tensor([[1, 2], [3]])
    with pytest.raises(TypeError, match="an element is 'a', but must be a number"):
        tg.tensor(['a'])
    with pytest.raises(TypeError, match='the array is complex128, but must have'):
        tg.tensor(np.array([1j]))
    with pytest.raises(TypeError, match='the library has f32, f64'):
        tg.zeros(3, dtype='complex64')


def test_creation():
    assert tg.zeros((2, 0)).tolist() == [[], []]
    assert tg.ones(3).tolist() == [1, 1, 1] and tg.full((), 2.5).item() == 2.5
    with tg.Context(seed=5):
        a = tg.randn(10000, std=2.0).numpy()
        b = tg.uniform(10000, -1.0, 3.0).numpy()
    assert abs(a.mean()) < 0.1 and abs(a.std() - 2) < 0.1
    assert b.min() >= -1 and b.max() < 3 and abs(b.mean() - 1) < 0.1


INDICES = [
    0,
    -1,
    slice(None),
    slice(1, 3),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(5, 1, -2),
    slice(9, 2),
    None,
    ...,
    (0, 1),
    (..., 0),
    (slice(1, 2), None, -1),
    (None, ..., slice(1, None)),
    [0, 2, -1],
    (1, [0, 0]),
    ([2, 0], slice(None, 2)),
]


@pytest.mark.parametrize('index', INDICES, ids=str)
def test_indexing_is_numpys(index):
    a = np.arange(4 * 5 * 6, dtype='f4').reshape(4, 5, 6)
    x = tg.tensor(a)
    assert np.array_equal(x[index].numpy(), a[index])


def test_indexing_by_tensors_and_masks():
    a = np.arange(12.0).reshape(3, 4)
    x = tg.tensor(a)
    i = np.array([[0, 2], [1, -1]])
    assert np.array_equal(x[tg.tensor(i)].numpy(), a[i])
    assert np.array_equal(x[:, i].numpy(), a[:, i])
    assert np.array_equal(x[x > 4].numpy(), a[a > 4])
    assert np.array_equal(x[tg.tensor([True, False, True])].numpy(), a[[True, False, True]])
    assert x[x > 100].shape == (0,)
    assert np.array_equal(x[i, i].numpy(), a[i, i]) and np.array_equal(x[1, i].numpy(), a[1, i])
    b = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    y = tg.tensor(b)
    j = np.array([[0, 1], [1, -1]])
    for index in (
        (j, slice(1), i),
        (slice(None), i, i),
        (j, None, slice(None, None, -1), [1, 0]),
        (0, j, slice(1, None, 2)),
        (b > 50,),
    ):
        assert np.array_equal(y[index].numpy(), b[index])
    with pytest.raises(tg.DataError, match='test_tensor.py'):
        x[tg.tensor([3])]
    with pytest.raises(TypeError, match='a part of the index is 1.5; expected an integer'):
        x[1.5]
    with pytest.raises(ValueError, match='a tensor of 12 elements is no number or truth value'):
        bool(x)
    with pytest.raises(IndexError, match='integers or bools'):
        x[tg.tensor([0.5])]
    for number in (x.sum() > 100, np.False_):
        with pytest.raises(IndexError, match='a bool without dims; expected a mask'):
            x[number] = 0
    with pytest.raises(TypeError, match='a part of the index is False'):
        x[False]
    assert np.array_equal(y[0, :, [1, 2]].numpy(), b[0][:, [1, 2]])
    with pytest.raises(IndexError):
        x[3]
    with pytest.raises(IndexError):
        x[0, 0, 0]


ASSIGNMENTS = [
    (0, 5),
    (slice(1, 3), 7),
    (slice(None, None, -2), [1, 2, 3, 4]),
    ((slice(None), 1), 9),
    (..., 3),
    ((1, slice(2), -1), 8),
    ([0, 2], 6),
    ((slice(None), [1, 0]), [[5], [6]]),
    ((slice(None), slice(2, None), slice(1, 3)), 4),
]


@pytest.mark.parametrize('index, value', ASSIGNMENTS, ids=str)
def test_assignments_are_numpys(index, value):
    a = np.arange(3 * 4 * 4, dtype='f4').reshape(3, 4, 4)
    x = tg.tensor(a)
    a[index] = value
    x[index] = value
    assert np.array_equal(x.numpy(), a)


def test_assignments_by_masks_and_their_gradients():
    a = np.arange(6.0).reshape(2, 3)
    x = tg.tensor(a)
    x[x > 2] = 0
    a[a > 2] = 0
    assert np.array_equal(x.numpy(), a)
    y, v = tg.ones((2, 2), requires_grad=True), tg.ones(2, requires_grad=True)
    z = y * 2
    z[0] = v * 5
    (z * z).sum().backward()
    assert y.grad.tolist() == [[0, 0], [8, 8]] and v.grad.tolist() == [50, 50]
    with pytest.raises(TypeError, match='must be a tensor'):
        z[0] = 'text'


def test_fractions_do_not_become_integers():
    i = tg.tensor([1, 2, 3])
    assert (i * 2.0).tolist() == [2, 4, 6] and (i.cast('f32') * 0.5).tolist() == [0.5, 1, 1.5]
    for call in (
        lambda: i * 0.5,
        lambda: i >= 1.5,
        lambda: 1.5 - i,
        lambda: i == float('nan'),
        lambda: tg.ops.where(i > 1, i, 0.25),
    ):
        with pytest.raises(tg.DtypeError, match='cast that to a float'):
            call()
    i[0] = 7.9
    assert i.tolist() == [7, 2, 3]


def test_numbers_get_the_dtype_of_the_inputs_like_them():
    i, x = tg.tensor([1, 2, 3]), tg.tensor([1.0, 2.0, 3.0], dtype='f64')
    mask = i > 1
    for y, dtype, expected in (
        (tg.ops.where(mask, x, 0.5), 'f64', [0.5, 2, 3]),
        (tg.ops.where(mask, 2, x), 'f64', [1, 2, 2]),
        (tg.ops.where(True, i, 7), 'i64', [1, 2, 3]),
        (tg.ops.where(mask, 0.5, 0.25), 'f32', [0.25, 0.5, 0.5]),
        (tg.ops.where(mask, 1, 0.5), 'f32', [0.5, 1, 1]),
        (tg.ops.where(mask, 1, 2), 'i64', [2, 1, 1]),
        (tg.ops.index(x, [2], dims=[0]), 'f64', 3),
        (tg.ops.add(1, 0.5), 'f32', 1.5),
    ):
        assert y.dtype == dtype and y.tolist() == expected


def test_operators_are_numpys():
    a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([2.0, 5.0])
    x, y = tg.tensor(a), tg.tensor(b)
    for f in (
        lambda u, v: u + v,
        lambda u, v: u - v,
        lambda u, v: u * v,
        lambda u, v: u / v,
        lambda u, v: u**v,
        lambda u, v: u @ v,
        lambda u, v: u < v,
        lambda u, v: u >= v,
        lambda u, v: u == v,
        lambda u, v: u != v,
    ):
        assert np.allclose(f(x, y).numpy(), f(a, b))
        assert np.allclose(f(x, b).numpy(), f(a, b))
    for f in (
        lambda u: 2 + u,
        lambda u: 2 - u,
        lambda u: 2 * u,
        lambda u: 2 / u,
        lambda u: 2**u,
        lambda u: -u,
        lambda u: abs(-u),
        lambda u: u + 1,
        lambda u: u - 1,
        lambda u: u / 2,
        lambda u: u**2,
        lambda u: u > 2,
    ):
        assert np.allclose(f(x).numpy(), f(a))
    for u, v in ((a, b), (b, a), (b, b), (a, a)):
        assert np.allclose((tg.tensor(u) @ tg.tensor(v)).numpy(), u @ v) and np.allclose(
            (u @ tg.tensor(v)).numpy(), u @ v
        )
    for f in (
        lambda u: u % 3,
        lambda u: u // 3,
        lambda u: 7 // u,
        lambda u: 7 % u,
        lambda u: u & 6,
        lambda u: u | 1,
        lambda u: 5 ^ u,
        lambda u: ~u,
    ):
        assert f(tg.tensor([-4, 3, 5])).tolist() == f(np.array([-4, 3, 5])).tolist()
    assert ((x > 1) & ~(x > 3)).tolist() == ((a > 1) & ~(a > 3)).tolist() and np.allclose((x % -1.5).numpy(), a % -1.5)
    i = tg.tensor([1, 2, 3])
    assert (i + 1).tolist() == [2, 3, 4] and (i * 2).dtype == 'i64'
    with pytest.raises(TypeError):
        x + 'text'


def test_in_place_operators_change_all_references():
    x = tg.tensor([1.0, 2.0])
    same = x
    x += 1
    x *= tg.tensor([2.0, 3.0])
    assert same is x and same.tolist() == [4, 9]


@pytest.mark.parametrize('name', ['add', 'sub', 'mul', 'truediv', 'pow', 'lt', 'iadd', 'isub', 'imul'])
def test_operators_refuse_what_is_no_tensor_number_or_array(name):
    x = tg.ones(2)
    with pytest.raises(TypeError, match='not supported|unsupported'):
        getattr(operator, name)(x, object())
    assert x.tolist() == [1, 1] and (x == 'text') is False and (x != None) is True  # noqa: E711


def test_an_operand_may_bring_its_own_operator():
    class Other:
        def __radd__(self, x):
            return 'other'

    x = tg.ones(2)
    assert x + Other() == 'other'
    x += Other()
    assert x == 'other'


def test_objects_of_tensors():
    x = tg.ones(2)
    weak, references = weakref.ref(x), sys.getrefcount(x)
    for _ in range(100):
        y = (x + x) * 2 - x
    assert sys.getrefcount(x) == references and y.tolist() == [3, 3]
    del x, y
    assert weak() is None
    with pytest.raises(TypeError, match=r'tapegrad.tensor\(data\)'):
        tg.Tensor()


def test_every_op_is_a_method_and_a_function():
    x = tg.tensor([[1.0, -2.0], [3.0, 4.0]])
    assert x.softmax(dim=-1).tolist() == tg.ops.softmax(x, -1).tolist()
    assert x.sum().item() == 6 and x.sum(dims=[0], keepdim=True).shape == (1, 2)
    assert x.transpose(0, 1).is_contiguous is False and x.reshape([4]).shape == (4,)
    parts = x.split(dim=1, sizes=[1, 1])
    assert [p.tolist() for p in parts] == [[[1.0], [3.0]], [[-2.0], [4.0]]]
    values, index = x.topk(1)
    assert values.tolist() == [[1.0], [4.0]] and index.tolist() == [[0], [1]]
    assert tg.ops.concat([x, x], dim=1).shape == (2, 4)
    assert tg.ops.arange(stop=3).tolist() == [0, 1, 2]
    assert 'softmax' in dir(tg.ops) and 'dim' in tg.ops.softmax.__doc__
    assert list(tg.ops.linear.__signature__.parameters) == ['x', 'w', 'b']


X = np.arange(1.0, 7.0).reshape(2, 3)
SOFTMAX = np.exp(X) / np.exp(X).sum(1, keepdims=True)


@pytest.mark.parametrize(
    'call, expected',
    [
        (lambda x: x.softmax(-1), SOFTMAX),
        (lambda x: x.softmax(dim=np.int64(1)), SOFTMAX),
        (lambda x: tg.ops.softmax(dim=-1, x=x), SOFTMAX),
        (lambda x: x.softmax(**{''.join(['di', 'm']): -1}), SOFTMAX),  # a name that is no constant
        (lambda x: x.sum(dims=[0], keepdim=True), X.sum(0, keepdims=True)),
        (lambda x: x.sum(dims=(0, 1), keepdim=None), X.sum()),
        (lambda x: x.sum(dims='all'), X.sum()),
        (lambda x: x.leaky_relu(slope=2), X),
        (lambda x: x.add(X), X + X),
        (lambda x: tg.ops.add(3, x), 3 + X),
        (lambda x: x.linear(x, None), X @ X.T),
        (lambda x: x.linear(x, b=tg.tensor([1.0, 2.0], 'f64')), X @ X.T + [1, 2]),
        (lambda x: x.topk(1)[0], X[:, 2:]),
        (lambda x: x.split(dim=1, sizes=[1, 2])[1], X[:, 1:]),
        (lambda x: x.cast('float32').cast('f64'), X),
        (lambda x: tg.ops.concat([x, x], dim=0), np.concatenate([X, X])),
        (lambda x: getattr(x, 'reshape')([3, -1]), X.reshape(3, 2)),  # a bound method
        (lambda x: x.relu(), X),
    ],
)
def test_calls_of_every_form(call, expected):
    x = tg.tensor(X)
    for _ in range(3):  # the form of a call is new only once
        assert np.allclose(call(x).numpy(), expected)


def test_forms_of_calls_do_not_weaken_checks():
    x = tg.tensor(X)
    for _ in range(3):
        with pytest.raises(TypeError, match='at most 1 arguments'):
            x.relu(3)
        with pytest.raises(tg.ArgumentError, match='nearest is dim'):
            x.softmax(dmi=1)
        with pytest.raises(tg.ArgumentError, match='argument dim is "a"'):
            x.softmax('a')
        with pytest.raises(OverflowError):
            x.softmax(2**70)
        with pytest.raises(tg.ArgumentError, match='argument dim is 4294967296'):
            x.softmax(2**32)
        with pytest.raises(tg.ShapeError, match='from 0 to 8'):
            x.reshape([1] * 40)
        with pytest.raises(tg.ArgumentError, match='input x is missing'):
            tg.ops.relu(None)
        assert x.softmax(-1).shape == (2, 3)


def test_an_op_is_called_by_several_threads():
    wrong = []

    def work(n):
        x = tg.full((300,), n, dtype='f64')
        for i in range(200):
            y = x.add(x).sum(dims=[0]).reshape([1])
            if y.tolist() != [600 * n]:
                wrong.append(y)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arguments_are_checked():
    x = tg.tensor([1.0])
    with pytest.raises(AttributeError, match="did you mean 'softmax'"):
        tg.ops.softmx
    with pytest.raises(ValueError, match='dimm'):
        x.softmax(dimm=1)
    with pytest.raises(TypeError, match='at most'):
        x.relu(1)
    with pytest.raises(TypeError, match='twice'):
        x.softmax(0, dim=0)


@pytest.mark.parametrize('name, why', [('concat', r'takes a list of tensors \(x\)'), ('arange', 'takes no tensors')])
def test_an_op_without_a_single_first_input_is_no_method(name, why):
    x = tg.ones(3)
    with pytest.raises(AttributeError, match=f'{name} is no method of tensors, because it {why}'):
        getattr(x, name)
    assert not hasattr(x, name) and hasattr(x, 'softmax')


def test_printing():
    assert repr(tg.tensor([1.0, 2.5])) == '[1.  2.5]\nf32[2]'
    assert '<pre>' in tg.tensor([1.0])._repr_html_() and 'f32 [1] on cpu' in tg.tensor([1.0])._repr_html_()


def test_values_that_cannot_be_read_are_no_error_of_repr(monkeypatch):
    x = tg.tensor([1.0, 2.5])

    def is_a_share(world):
        raise tg.StateError("tg_print: this gradient is one rank's share of a sum")

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[tg.Tensor.__module__], 'check', is_a_share)
        assert repr(x) == (
            "<tapegrad.Tensor f32[2] whose values cannot be read: tg_print: this gradient is one rank's share of a sum>"
        )
        assert 'share' in x._repr_html_()
    assert repr(x) == '[1.  2.5]\nf32[2]'
    x.requires_grad = True
    y = x.exp()
    (y * y).sum().backward()  # discards y, which no one else needs
    assert repr(y).startswith('<tapegrad.Tensor f32[2] whose values cannot be read: the bytes of f32[2] were discarded')
    with pytest.raises(tg.DiscardedError):
        y.tolist()


def test_pickles_and_copies():
    x = tg.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True).transpose(0, 1)
    y = pickle.loads(pickle.dumps(x))
    assert y.tolist() == x.tolist() and y.requires_grad
    z = copy.deepcopy(x)
    assert z.tolist() == x.tolist()


def test_a_deep_copy_is_in_the_context_of_its_original():
    with tg.Context(threads=1):
        x = tg.tensor([1.0, 2.0], requires_grad=True)
    with tg.Context('meta'):
        y = copy.deepcopy(x)
    assert y.device == 'cpu' and (x + y).tolist() == [2, 4] and y.requires_grad


def test_bool_len_iter_and_conversions():
    x = tg.tensor([3.0, 4.0])
    assert len(x) == 2 and [float(v) for v in x] == [3, 4] and int(x[0]) == 3 and bool(x[1] > 3)
    assert [10, 20, 30][tg.tensor(1)] == 20
    with pytest.raises(TypeError):
        [1][tg.tensor(0.0)]
    with pytest.raises(TypeError):
        len(x[0])


def test_loops_without_a_reset_do_not_grow():
    with tg.Context(threads=1) as ctx:
        w = tg.ones(1000, requires_grad=True)

        def step():
            loss = ((w * 2).tanh() + w).sum()
            loss.backward()
            w.grad = None
            return loss.item()

        for _ in range(3):
            step()
        before = ctx.memory()
        for _ in range(200):
            step()
        assert ctx.memory()['reserved'] == before['reserved'] and ctx.memory()['live'] <= before['live'] + 20000


def test_results_outlive_their_tape_object():
    with tg.tape() as t:
        y = tg.ones(2, requires_grad=True) * 3
    del t
    gc.collect()
    assert y.tolist() == [3, 3]
    y.sum().backward()


def test_ended_handles_are_refused_for_ever():
    t = tg.tape()
    with t:
        old = tg.ones(2) * 3
    t.reset()
    for _ in range(1000):
        with t:
            tg.ones(2) * 5
        t.reset()
    assert not old.is_alive and 'ended' in repr(old)
    with pytest.raises(tg.HandleError, match='reset'):
        old.tolist()
    with pytest.raises(tg.HandleError):
        old + 1


def test_a_closed_context():
    ctx = tg.Context(threads=1)
    with ctx:
        x = tg.ones(2)
        y = x * 2
    ctx.close()
    ctx.close()
    with pytest.raises(tg.HandleError, match='closed'):
        y + 1
    with pytest.raises(tg.HandleError):
        x.tolist()


def test_a_context_lives_as_long_as_its_tensors():
    with tg.Context(threads=1):
        x = tg.ones(2)
    gc.collect()
    assert (x * 2).tolist() == [2, 2]


def test_contexts_of_threads_and_finalizers_on_other_threads():
    kept, errors = [], []

    def work(n):
        try:
            for i in range(200):
                x = tg.ones((8, 8)) * n
                kept.append(x)  # ends on another thread
                assert x.sum().item() == 64 * n
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        kept.clear()
    for thread in threads:
        thread.join()
    kept.clear()
    assert not errors


def test_tensors_of_two_contexts_do_not_mix():
    with tg.Context(threads=1):
        x = tg.ones(2)
    with tg.Context(threads=1):
        y = tg.ones(2)
    with pytest.raises(tg.HandleError):
        x + y


def test_options_of_contexts():
    with pytest.raises(TypeError, match="did you mean 'threads'"):
        tg.Context(thread=1)
    with pytest.raises(tg.ArgumentError):
        tg.Context(threads=-5)
    with tg.Context(dtype='f64', memory=1 << 20):
        assert tg.zeros(1).dtype == 'f64'
        with pytest.raises(MemoryError):
            tg.zeros(1 << 20)


# ---- Contexts of several threads ----


@pytest.fixture
def in_use():
    """A context that another thread uses, and a tensor of it. The thread is in a function that
    it recomputes."""
    context, found = tg.Context(threads=1), []
    x = tg.ones((2, 2), context=context)
    begun, end = threading.Event(), threading.Event()

    def slow(y):
        begun.set()
        assert end.wait(60)
        return y * 2

    thread = threading.Thread(target=lambda: found.append(tg.recompute(slow, x)))
    thread.start()
    assert begun.wait(60)
    try:
        yield context, x
    finally:
        end.set()
        thread.join()
    assert found[0].tolist() == [[2, 2], [2, 2]]
    assert (x + found[0]).tolist() == [[3, 3], [3, 3]]  # one after the other is allowed


CALLS = {
    'operator': lambda x: x + x,
    'number': lambda x: x * 2,
    'method': lambda x: x.tanh(),
    'array': lambda x: x + [[1, 2], [3, 4]],
    'op': lambda x: tg.ops.concat([x, x], dim=0),
    'values': lambda x: x.tolist(),
    'numpy': lambda x: x.numpy(),
    'index': lambda x: x[0],
    'backward': lambda x: tg.backward(x, x),
    'recompute': lambda x: tg.recompute(lambda y: y, x),
    'handle': lambda x: x.is_contiguous,
}


@pytest.mark.parametrize('call', CALLS.values(), ids=CALLS)
def test_a_context_in_use_by_another_thread_is_refused(in_use, call):
    with pytest.raises(tg.StateError, match='another thread is using the context at this moment'):
        call(in_use[1])


def test_a_context_in_use_by_another_thread_is_not_closed(in_use):
    context, _ = in_use
    for call in (context.close, context.memory, context.tape, lambda: tg.ones((2,), context=context)):
        with pytest.raises(tg.StateError, match='another thread'):
            call()
    assert (tg.ones((2,)) * 3).tolist() == [3, 3]  # in another context


def test_threads_that_meet_in_a_context_get_errors_and_no_wrong_numbers():
    context, refused = tg.Context(threads=1), [0]
    x = tg.ones((300, 300), context=context)

    def work():
        for _ in range(200):
            try:
                y = x @ x
            except tg.StateError:
                refused[0] += 1
            else:
                wrong.extend([] if y.shape == (300, 300) else [y])

    wrong = []
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and (x @ x)[0, 0].item() == 300


def test_a_context_without_memory_is_an_error(monkeypatch):
    freed = []

    class Library:
        """The library, without memory for a world."""

        def __getattr__(self, name):
            return getattr(tg.lib, name)

        def tgpy_world_new(self, ctx):
            return tg.ffi.NULL

        def tg_ctx_free(self, ctx):
            freed.append(ctx)
            tg.lib.tg_ctx_free(ctx)

    monkeypatch.setattr(sys.modules['tapegrad.context'], 'lib', Library())
    with pytest.raises(MemoryError, match='no memory for a new context'):
        tg.Context(threads=1)
    assert len(freed) == 1 and freed[0] != tg.ffi.NULL


def test_operands_of_a_closed_context_are_refused():
    context = tg.Context()
    leaf = tg.ones((2,), context=context)
    result = leaf + 1
    with tg.Context():
        x = tg.ones((2,))
        context.close()
        for other in (leaf, result):
            for call in (lambda: x + other, lambda: tg.ops.add(x, other), lambda: tg.ops.concat([x, other], dim=0)):
                with pytest.raises(tg.ArgumentError, match='NULL'):
                    call()
        assert (x + 1).tolist() == [2, 2]


def test_values_that_cannot_be_read_are_not_written():
    x, m = tg.ones((2,)), tg.zeros((2,), context=tg.Context(device='meta'))
    with pytest.raises(tg.DeviceError):
        x.write(m)
    assert x.tolist() == [1, 1] and 'values cannot be read' in repr(m)


def test_numbers_as_bools():
    assert tg.tensor([2, 0, -1], 'bool').tolist() == tg.tensor([0.5, 0, -1], 'bool').tolist() == [True, False, True]
    m = tg.tensor([True, False])
    assert (m == 1).tolist() == [True, False] and (m == 0.0).tolist() == [False, True]
    with pytest.raises(tg.DtypeError, match='2 cannot be bool.*cast that to an integer dtype'):
        m == 2
    m[1] = 0.5
    assert m.tolist() == [True, True]


def test_a_copy_of_a_tensor_has_its_dtype_and_shape():
    for dtype in ('bf16', 'f8e4m3', 'f16', 'i8', 'bool'):
        for shape in ((2,), (0, 3), ()):
            y = tg.tensor(tg.ones(shape).cast(dtype))
            assert (y.dtype, y.shape) == (dtype, shape)
    assert tg.tensor(tg.ones((2,)).cast('bf16'), 'f64').dtype == 'f64'
    if np.lib.NumpyVersion(np.__version__) >= '2.0.0':
        with pytest.raises(ValueError, match='from_dlpack'):
            np.asarray(tg.ones((2,)), copy=False)


def test_sizes_must_be_integers():
    assert tg.zeros(np.int64(3)).shape == (3,) and tg.zeros((np.int64(2), 1)).shape == (2, 1)
    x = tg.ones((2, 2))
    for call in (lambda: tg.zeros((2.7,)), lambda: x.reshape([1.9, 4]), lambda: x.sum(dims=[0.5])):
        with pytest.raises(TypeError):
            call()
    assert tg.ops.sum(x, dims=[0], keepdim=np.bool_(True)).shape == (1, 2)


def test_a_mask_has_the_shape_of_what_it_indexes():
    x = tg.ones((2, 3))
    for index in ([True] * 3, (slice(None), [True, False]), (..., np.ones((2, 2), bool)), (None, [True] * 3)):
        with pytest.raises(IndexError, match='mask has the shape'):
            x[index]
        with pytest.raises(IndexError, match='mask has the shape'):
            x[index] = 0.0
    assert x[..., [True, False, True]].shape == (2, 2) and x[None, [False, True]].shape == (1, 1, 3)


NEW_DIMS = [(np.s_[:, None], (1, 4)), (np.s_[None], (4,)), (np.s_[:, None, 1:], (3, 1, 1))]


@pytest.mark.parametrize('index, shape', NEW_DIMS)
def test_assignment_to_new_dims_broadcasts_as_in_numpy(index, shape):
    a, value = np.zeros((3, 4), 'float32'), np.arange(1.0, 1 + np.prod(shape), dtype='float32').reshape(shape)
    x = tg.tensor(a)
    a[index], x[index] = value, tg.tensor(value)
    assert np.array_equal(x.numpy(), a)


def test_assignment_by_tensors_in_another_context():
    x = tg.tensor([1.0, 2, 3], context=tg.Context())
    x[[0, 2]] = 5.0
    assert x.tolist() == [5, 2, 5]


def test_numbers_of_numpy_take_the_dtype_of_the_tensor():
    x, i = tg.ones((2,)), tg.tensor([1, 2], 'i32')
    for y in (x * np.int64(2), x + np.float64(1), np.float16(2) * x, x + np.uint8(1)):
        assert y.dtype == 'f32' and y.tolist() == [2, 2]
    assert (i + np.int64(2)).dtype == 'i32' and (i >= np.float32(2)).tolist() == [False, True]
    with pytest.raises(tg.DtypeError, match='0.5 cannot be i32'):
        i + np.float32(0.5)


@pytest.mark.parametrize('number', [1.5, np.float64(1.5), np.float32(1.5), np.float16(1.5), np.int8(1), np.uint64(1)])
def test_an_assigned_number_is_converted_as_in_numpy(number):
    for dtype in 'i64', 'u8', 'bool', 'f32':
        x = tg.tensor([0, 0], dtype)
        x[0] = number
        assert x.dtype == dtype and x.tolist() == [number if dtype == 'f32' else 1, 0]


def test_lists_of_numpys_bools_are_bools():
    assert tg.tensor([np.True_, False]).dtype == 'bool' and tg.tensor([[np.bool_(0)], [np.bool_(1)]]).dtype == 'bool'
    assert tg.tensor([np.True_, 2]).dtype == 'i64' and tg.tensor([np.True_, 0.5]).dtype == 'f32'
    assert tg.tensor([1.0, 2.0, 3.0])[[v > 1 for v in np.arange(3)]].tolist() == [3]


def test_a_float8_is_no_index():
    x = tg.tensor([1.5]).cast('f8e5m2')
    with pytest.raises(TypeError, match='this tensor is f8e5m2'):
        range(5)[x]
    for index in (x, (Ellipsis, x)):
        with pytest.raises(IndexError, match='this one is f8e5m2'):
            tg.tensor([1.0, 2.0, 3.0])[index]
    with pytest.raises(TypeError, match='this tensor is f8e5m2'):
        tg.tensor([1.0, 2.0, 3.0])[x.reshape(())]
    assert tg.ops.leaky_relu(tg.tensor([-1.0, 2.0]), slope=x).tolist() == [-1.5, 2]


@pytest.mark.parametrize('index', [slice(None), slice(1, 3), [0, 2], (None, slice(None)), slice(None, None, -1)])
def test_a_value_may_have_dims_of_size_1_in_front(index):
    expected, x = np.zeros(3, 'float32'), tg.zeros((3,))
    value = np.arange(expected[index].size, dtype='float32').reshape(1, 1, -1)
    expected[index] = value
    x[index] = value
    assert x.tolist() == expected.tolist()
    with pytest.raises(tg.ShapeError):
        x[index] = np.ones((2, 3), 'float32')
