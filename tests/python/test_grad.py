"""Gradients, derivatives, hooks, recomputation and modes."""

import operator
import sys
import threading
import weakref

import numpy as np
import pytest

import tapegrad as tg


def leaf(*numbers, dtype='f64'):
    return tg.tensor(numbers, dtype, requires_grad=True)


def test_backward_accumulates_and_none_clears():
    x = leaf(1, 2, 3)
    (x * x).sum().backward()
    (x * 2).sum().backward()
    assert x.grad.tolist() == [4, 6, 8]
    x.grad = None
    assert x.grad is None
    with pytest.raises(ValueError):
        x.grad = x


def test_derivatives_use_constants_that_python_has_forgotten():
    x = leaf(1, 2)
    first = tg.grad((x * x * np.array([3.0, 4.0])).sum(), x, create_graph=True)
    assert first.tolist() == [6, 16]
    assert tg.grad(first.sum(), x).tolist() == [6, 8]


def test_backward_with_gradients_and_inputs():
    x, y = leaf(1, 2), leaf(3, 4)
    z = x * y
    z.backward(tg.tensor([10.0, 100.0], 'f64'), inputs=[x], retain=True)
    assert x.grad.tolist() == [30, 400] and y.grad is None
    tg.backward([z, x * 1], [tg.ones(2, dtype='f64')] * 2)
    assert y.grad.tolist() == [1, 2]
    with pytest.raises(tg.ShapeError):
        (x * y).backward()
    with pytest.raises(ValueError, match='there are 2 outputs, but 1 gradients; there must be one for each'):
        tg.backward([x * y, x + y], [tg.ones(2, dtype='f64')])
    with pytest.raises(ValueError, match='there are 2 outputs, but 1 gradients of them'):
        tg.grad([x * y, x + y], [x], [tg.ones(2, dtype='f64')])


def test_grad_of_grad():
    x = leaf(0.5, 2.0)
    first = tg.grad((x**3).sum(), x, create_graph=True)
    second = tg.grad(first.sum(), x)
    assert np.allclose(first.numpy(), [0.75, 12]) and np.allclose(second.numpy(), [3, 12])
    a, b = tg.grad((x.sin() * x).sum(), [x, x])
    assert a.tolist() == b.tolist()
    with pytest.raises(tg.StateError):
        tg.grad(x.sum(), leaf(1.0))
    assert tg.grad(x.sum(), [leaf(1.0)], allow_unused=True)[0].tolist() == [0]


def test_jvp_and_hvp():
    x = leaf(0.5, 2.0)
    y = x.exp()
    assert np.allclose(tg.jvp(y, [x], [tg.tensor([1.0, 2.0], 'f64')]).numpy(), np.exp([0.5, 2.0]) * [1, 2])
    assert np.allclose(tg.hvp((x**3).sum(), x, tg.tensor([1.0, 2.0], 'f64')).numpy(), [3, 24])
    with pytest.raises(ValueError, match='one for each'):
        tg.jvp(y, [x], [])


def test_recompute_gives_the_same_gradients():
    x, w = leaf(0.1, 0.2), leaf(3.0, 4.0)

    def f(a):
        return (a * w).tanh() * a

    f(x).sum().backward()
    expected = x.grad.tolist(), w.grad.tolist()
    x.grad = w.grad = None
    calls = []
    y = tg.recompute(lambda a: calls.append(1) or f(a), x)
    y.sum().backward()
    assert (x.grad.tolist(), w.grad.tolist()) == expected and len(calls) == 2
    a, b = tg.recompute(lambda a: (a * 2, a * 3), x, outputs=2)
    assert b.tolist() == (x * 3).tolist()
    with pytest.raises(tg.CallbackError, match='2 were expected'):
        tg.recompute(f, x, outputs=2)


def test_tensors_that_leave_a_recomputed_function_have_ended():
    left = []
    x = leaf(1.0, 2.0)
    tg.recompute(lambda a: left.append(a * 2) or a * 3, x).sum().backward()
    with pytest.raises(tg.HandleError):
        left[0] + 1


def test_hooks():
    x = leaf(1.0, 2.0)
    seen = []
    y = x * 3
    remove = y.on_grad(lambda g: seen.append(g.tolist()))
    y.on_grad(lambda g: g * 10)
    y.sum().backward(retain=True)
    assert seen == [[1, 1]] and x.grad.tolist() == [30, 30]
    remove()
    y.sum().backward()
    assert len(seen) == 1


def test_exceptions_of_callbacks_come_out_of_the_call():
    x = leaf(1.0)
    y = x * 2

    def hook(g):
        raise KeyError('mine')

    y.on_grad(hook)
    with pytest.raises(tg.CallbackError, match='mine') as raised:
        y.sum().backward()
    assert isinstance(raised.value.__cause__, KeyError)
    assert (x * 2).item() == 2  # the context can be used again


def test_causes_of_errors_do_not_move_between_threads():
    wrong, begin = [], threading.Barrier(4, timeout=60)

    def work(n):
        def hook(g):
            begin.wait()
            raise KeyError(n)

        for _ in range(20):
            y = leaf(1.0) * 3
            y.on_grad(hook)
            try:
                y.sum().backward()
            except tg.CallbackError as error:
                if repr(error.__cause__) != repr(KeyError(n)):
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_threads_forget_the_hooks_of_ended_tensors():
    wrong = []

    def work():
        try:
            for _ in range(300):
                leaf(1.0).on_grad(lambda g: None)
        except BaseException as error:
            wrong.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads take turns inside of a sweep
    try:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_a_hook_does_not_keep_the_context():
    for _ in range(3):
        context = tg.Context(threads=1)
        array = np.ones(4)
        freed = weakref.ref(array)
        x = tg.from_dlpack(array, context=context)
        x.requires_grad = True
        x.on_grad(lambda g: g * 2)
        x.sum().backward()
        assert x.grad.tolist() == [2] * 4
        del x, context, array
        assert freed() is None  # with the context, whose last owner was x
    for _ in range(200):  # sweeps meet hooks of contexts that have ended
        leaf(1.0).on_grad(lambda g: None)


def test_contexts_end_while_other_threads_sweep_hooks():
    wrong = []

    def work():
        try:
            for _ in range(100):
                x = tg.zeros(3, context=tg.Context(threads=1), requires_grad=True)
                x.on_grad(lambda g: None)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_messages_name_the_line_of_the_program():
    x, w = tg.ones((2, 3)), tg.ones((2, 3))
    with pytest.raises(tg.ShapeError, match=r'test_grad.py:\d+'):
        x @ w
    y = leaf(4.0)
    z = y.sqrt()  # backward reads its result
    with pytest.raises(tg.Error, match='test_grad.py'):
        z += 1
        z.sum().backward()


def test_calls_of_the_package_that_record_ops_name_the_line_of_the_program():
    x, wrong, layer, gru = leaf(1.0, 2.0), tg.ones((1, 1, 3), dtype='f64'), tg.nn.Linear(3, 2), tg.nn.GRU(3, 2)
    gpt = tg.nn.GPT(arch='gpt2', vocab=4, layers=1, heads=1, hidden=4, positions=4)
    ids, opt, times = tg.tensor([[4]]), tg.optim.SGD([x], lr=0.1), []
    opt.set_loss_scale()

    def second_fails(x):
        times.append(1)
        return x / x if len(times) == 1 else x @ x

    def fails_again(y):
        y.sum().backward()
        y.sum().backward()

    lines = [
        'lambda: x * 2', 'lambda: layer(wrong)', 'lambda: tg.nn.Sequential(layer)(wrong)', 'lambda: gru(wrong)', 'lambda: gpt(ids)',
        'lambda: gpt.loss(ids, ids)', 'lambda: tg.nn.LM.loss(gpt, ids, ids)', 'lambda: gpt.generate([[4]], 1)',
        'lambda: tg.recompute(second_fails, x).sum().backward()', 'lambda: fails_again(opt.scale_loss(x))',
    ]  # fmt: skip
    first, *calls = eval(compile('[' + ',\n'.join(lines) + ']', 'program.py', 'eval'), {'tg': tg, **locals()})
    for i, call in enumerate(calls):
        first()  # an op on another line
        with pytest.raises(tg.Error, match=rf'program.py:{i + 2}\)'):
            call()


def test_every_operator_of_a_function_has_its_own_line():
    x, y = tg.ones(2), tg.ones(3)
    with tg.tape() as t:
        ended = x + x
    t.reset()
    lines = [
        'lambda: x + y', 'lambda: x * y', 'lambda: x < y', 'lambda: x @ y', 'lambda: x.mul(y)', 'lambda: [1, 2, 3] - x',
        'lambda: operator.iadd(x, y)', 'lambda: ~x', 'lambda: ended * 2', 'lambda: 1 - ended',
    ]  # fmt: skip
    calls = eval(compile('[' + ',\n'.join(lines) + ']', 'program.py', 'eval'), {'operator': operator, **locals()})
    for _ in range(2):  # the second time the places are known
        for i, call in enumerate(calls):
            with pytest.raises(tg.Error, match=rf'program.py:{i + 1}\)'):
                call()


def test_lines_of_functions_that_have_ended_are_not_taken_for_those_of_others():
    x, y = tg.ones(2), tg.ones(3)
    for n in range(1, 3000, 7):
        call = eval(compile('\n' * n + 'lambda: x + y', f'part{n % 3}.py', 'eval'), locals())
        with pytest.raises(tg.ShapeError, match=rf'part{n % 3}.py:{n + 1}\)'):
            call()


def test_modes():
    x = leaf(1.0, 2.0)
    with tg.no_grad():
        y = x * 2
    assert not y.requires_grad and (x * 2).requires_grad
    with tg.tape(), tg.no_grad():
        assert not (x * 2).requires_grad
    ones = tg.ones(1000)
    with tg.evaluation():
        assert ones.dropout(p=0.5).tolist() == ones.tolist()
    assert ones.dropout(p=0.5).tolist() != ones.tolist()


def test_detach_and_requires_grad():
    x = leaf(1.0, 2.0)
    assert not x.detach().requires_grad and (x.detach() * 2).requires_grad is False
    x.requires_grad = False
    assert not (x * 2).requires_grad
    with pytest.raises(tg.DtypeError):
        tg.tensor([1, 2], requires_grad=True)


def test_tapes_in_a_loop():
    w = leaf(1.0)
    losses = []
    for _ in range(5):
        with tg.tape() as t:
            loss = (w * w).sum()
            loss.backward()
            losses.append(loss)
            assert t.nodes
    assert [v.item() for v in losses] == [1] * 5 and w.grad.tolist() == [10]


def test_messages_advise_by_the_names_of_this_package():
    x = tg.randn((3,), requires_grad=True)
    with pytest.raises(tg.StateError, match=r'or tapegrad\.no_grad\(\)'):
        x += 1
    for name in tg.errors.PYTHON_NAMES.values():
        where, _, attribute = name.removesuffix('()').partition('.')
        assert hasattr({'Tensor': x, 'tapegrad': tg}[where], attribute), name


def test_a_callback_cannot_close_its_context():
    with tg.Context() as context:
        x = tg.ones((2,), requires_grad=True)
        y = x * 2
        y.on_grad(lambda gradient: context.close())
        with pytest.raises(tg.CallbackError, match='Context.close: a callback cannot close'):
            y.sum().backward()
        assert x.tolist() == [1, 1]
    context.close()
    assert not x.is_alive
