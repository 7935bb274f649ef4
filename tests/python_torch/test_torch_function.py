"""tapegrad.torch.function and tapegrad.torch.op: functions of either library in the other."""

import gc
import sys
import threading

import pytest
import torch

import tapegrad as tg
import tapegrad.torch as tt
from tapegrad.errors import using
from tapegrad.torch.run import context_of

torch.set_num_threads(1)


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@tt.function
def attend(x, w, scale):
    """A function with two results and an argument that is no tensor."""
    y = tg.ops.softmax(x @ w, dim=-1)
    return y @ y.transpose(d0=0, d1=1), tg.ops.tanh(x * scale)


def test_gradients_of_first_and_second_order():
    inputs = randn(3, 4), randn(4, 2), 0.7
    assert torch.autograd.gradcheck(attend, inputs)
    assert torch.autograd.gradgradcheck(attend, inputs)


def test_gradients_arrive_in_grad_and_add_up():
    x, w = randn(3, 4), randn(4, 2)
    for n in (1, 2):
        attend(x, w, 1.0)[1].sum().backward()
        torch.testing.assert_close(x.grad, n / x.detach().cosh() ** 2)
    assert w.grad is None or not w.grad.any()


def test_no_copy():
    x = torch.ones(4)
    seen = []

    @tt.function
    def f(x):
        seen.append(x.numpy().sum())
        return x.reshape((2, 2))

    y = f(x)
    y += 1
    assert x.tolist() == [2.0] * 4 and seen == [4.0]


def test_no_grad():
    with torch.no_grad():
        assert not attend(randn(3, 4), randn(4, 2), 1.0)[0].requires_grad


def test_an_error_of_tapegrad_is_raised():
    with pytest.raises(tg.ShapeError):
        attend(randn(3, 4), randn(5, 2), 1.0)
    assert attend(randn(3, 4), randn(4, 2), 1.0)[0].shape == (3, 3)


def test_a_function_of_pytorch_as_an_op():
    erfcx = tt.op(lambda x, y, n: torch.special.erfcx(x) * y**n)
    x = tg.tensor([[0.1, 0.5], [1.0, 2.0]], 'f64', requires_grad=True)
    y = tg.tensor([[1.0, 2.0], [3.0, 4.0]], 'f64', requires_grad=True)
    gx, gy = tg.grad((erfcx(tg.ops.sin(x), y, 2) * x).sum(), [x, y])
    tx, ty = (torch.from_dlpack(t.detach()).requires_grad_() for t in (x, y))
    expected = torch.autograd.grad((torch.special.erfcx(tx.sin()) * ty**2 * tx).sum(), (tx, ty))
    torch.testing.assert_close(torch.from_dlpack(gx), expected[0])
    torch.testing.assert_close(torch.from_dlpack(gy), expected[1])


def test_a_dtype_that_tapegrad_lacks_is_passed_on():
    x = torch.ones(2, dtype=torch.complex64)
    assert torch.equal(tt.function(lambda x: x * 2)(x), x * 2)


def test_a_result_that_is_no_tensor_is_refused():
    with pytest.raises(TypeError, match='half returned a result of type float; expected a Tensor'):

        @tt.function
        def half(x):
            return 0.5

        half(torch.ones(2))


def test_an_error_of_pytorch_is_raised():
    bad = tt.op(lambda x: x.view(7))
    with pytest.raises(RuntimeError, match='invalid for input of size 4'):
        bad(tg.zeros((2, 2)))


def test_runs_that_end_in_cycles_of_garbage():
    kept = []
    for i in range(30):
        x, w = randn(3, 4), randn(4, 2)
        results = attend(x, w, 1.0)
        kept.append((results, kept))
        try:
            attend(x, randn(5, 2), 1.0)
        except tg.ShapeError as error:
            kept.append(error)
        if i % 5 == 0:
            kept = []
            gc.collect()
        results[1].sum().backward()
        torch.testing.assert_close(x.grad, 1 / x.detach().cosh() ** 2)


def test_named_arguments_may_be_tensors():
    x, w = randn(3, 4), randn(4, 2)
    attend(x, scale=1.0, w=w)[1].sum().backward()
    attend(x, w=w.detach(), scale=1.0)[0].sum().backward()
    f = tt.function(lambda x, scale: x * scale)
    x, scale = randn(2), randn(2)
    f(x, scale=scale).sum().backward()
    assert torch.equal(scale.grad, x.detach())
    assert torch.equal(f(x.detach(), scale=scale.detach()), (x * scale).detach())


def test_a_run_may_end_while_its_thread_uses_the_context():
    entered, ended, results = threading.Event(), threading.Event(), []

    def work():
        results.append(attend(randn(3, 4), randn(4, 2), 1.0))
        with using(context_of(torch.device('cpu'))._world):
            entered.set()
            ended.wait()
        attend(randn(3, 4), randn(4, 2), 1.0)[0].sum().backward()
        results.append('done')

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait()
    hook, sys.unraisablehook, reported = sys.unraisablehook, lambda error: reported.append(error), []
    excepthook, sys.excepthook = sys.excepthook, lambda *error: reported.append(error)
    results.clear()
    gc.collect()
    sys.unraisablehook, sys.excepthook = hook, excepthook
    ended.set()
    thread.join()
    assert results == ['done'] and not reported
