"""torch.compile(backend="tapegrad"): gradients, memory, modes, and what falls back to PyTorch."""

import copy
import gc
import weakref

import pytest
import torch

import tapegrad as tg
import tapegrad.torch as tt
from tapegrad.torch.ops.table import TABLE
from tapegrad.torch.run import context_of

torch.set_num_threads(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()
    tt.reset_report()


def image():
    return torch.randn(2, 3, 6, 6, dtype=torch.float64)


def compiled(model):
    return torch.compile(model, backend='tapegrad')


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_training_changes_what_it_changes_in_eager_pytorch():
    theirs = Net().double()
    ours = copy.deepcopy(theirs)
    f = compiled(ours)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (theirs, ours)]
    for _ in range(3):
        x = image()
        for run, optimizer in zip((theirs, f), optimizers):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
    for name, value in theirs.state_dict().items():
        same(ours.state_dict()[name], value)
    assert tt.report() == {}


def test_evaluation_and_no_grad():
    model = Net().double().eval()
    x = image()
    f = compiled(model)
    with torch.no_grad():
        y = f(x)
    same(y, model(x))
    assert not y.requires_grad and f(x).requires_grad


def test_second_derivatives():
    f = compiled(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double())
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(f, (x,))
    assert torch.autograd.gradgradcheck(f, (x,))


def test_a_parameter_without_effect_gets_no_gradient():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]).double()

    def f(x):
        model[1](x)
        return model[0](x)

    compiled(f)(torch.randn(3, 2, dtype=torch.float64)).sum().backward()
    assert model[0].weight.grad is not None and model[1].weight.grad is None


def test_backward_twice():
    model = torch.nn.Linear(3, 2).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    loss = compiled(model)(x).square().sum()
    loss.backward(retain_graph=True)
    first = model.weight.grad.clone()
    loss.backward()
    same(model.weight.grad, 2 * first)


def test_two_runs_before_their_backwards():
    model = torch.nn.Linear(3, 2).double()
    f = compiled(model)
    xs = [torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    losses = [f(x).exp().sum() for x in xs]
    for x, loss in zip(reversed(xs), reversed(losses)):
        loss.backward()
        same(x.grad, torch.autograd.grad(model(x).exp().sum(), x)[0])


def test_dynamic_shapes():
    f = torch.compile(lambda x: (x * 2).sum(0), backend='tapegrad', dynamic=True)
    for n in (3, 5, 3):
        x = torch.randn(n, 4, dtype=torch.float64)
        same(f(x), (x * 2).sum(0))


def test_inputs_are_freed():
    model = torch.nn.Linear(3, 2).double()
    f = compiled(model)
    x = torch.randn(50, 3, dtype=torch.float64)
    ref = weakref.ref(x)
    f(x).sum().backward()
    del x
    gc.collect()
    assert ref() is None


def test_an_error_names_the_op_of_the_graph():
    fast = torch.compile(lambda a, b: torch.matmul(a, b), backend='tapegrad')
    with pytest.raises(tg.DtypeError, match=r'input 1 is f64.*in aten.mm.default of the compiled graph'):
        fast(torch.ones(2, 2), torch.ones(2, 2).double())


def test_an_overwritten_parameter_is_reported():
    model = torch.nn.Linear(3, 2).double()
    y = compiled(model)(torch.randn(2, 3, dtype=torch.float64, requires_grad=True))
    with torch.no_grad():
        model.weight.add_(1)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        y.sum().backward()


def test_new_data_of_a_parameter_is_seen():
    model = torch.nn.Linear(3, 2, bias=False).double()
    f, x = compiled(model), torch.randn(2, 3, dtype=torch.float64)
    f(x)
    model.weight.data = torch.ones(2, 3, dtype=torch.float64)
    same(f(x), model(x))


def test_an_op_that_falls_back_is_counted_and_has_a_gradient():
    def f(x, w):
        return torch.special.i0(x * w) + x

    x, w = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    same(torch.autograd.grad(compiled(f)(x, w).sum(), (x, w)), torch.autograd.grad(f(x, w).sum(), (x, w)))
    assert tt.report() == {'aten.i0.default': 1} or tt.report() == {'aten.special_i0.default': 1}


def test_integers_and_bools_that_ops_do_not_take_fall_back():
    def f(i, b):
        return i @ i, i.round() + 1, b + b, b.max(), torch.maximum(b, ~b), b.masked_fill(b, False)

    i, b = torch.arange(9).reshape(3, 3), torch.tensor([True, False])
    fast = compiled(f)
    same(fast(i, b), f(i, b))
    same(fast(i, b), f(i, b))
    names = 'mm.default round.default add.Tensor max.default maximum.default'
    assert {name.removeprefix('aten.') for name in tt.report()} <= set(names.split())


def test_runs_are_repeated_around_what_pytorch_computes():
    """The first run of a graph calls its ops one by one, the second records them, later ones repeat the recording."""

    def f(x, w):
        a, b = (x * w).tanh().split(2)
        c = torch.special.i0(a)
        values, places = (b + c).sort(0)
        return values * w[:2], places, torch.nn.functional.dropout(values, 0.5)[0], c, x

    g = compiled(f)
    for seed in range(4):
        x, w = (torch.randn(4, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
        results = []
        for run in (f, g):
            torch.manual_seed(seed)
            results.append(run(x, w))
        for a, b in zip(*results):
            same(a, b)
        losses = [sum(y.sum() for y in ys if y.is_floating_point()) for ys in results]
        same(*(torch.autograd.grad(loss, (x, w)) for loss in losses))


def test_a_run_in_evaluation_mode_repeats_what_training_has_recorded():
    norm, x = torch.nn.BatchNorm2d(3).double(), image()
    f = tt.backend(lambda x: torch.nn.functional.batch_norm(x, None, None, norm.weight, training=True), None)
    for scale in (1, 2, 3):
        same(f(x * scale), norm(x * scale))
        with torch.no_grad(), tg.evaluation():
            same(f(x), norm(x))


def test_an_op_that_cannot_be_recorded_is_called_each_time(monkeypatch):
    """The result of an operator is not noted by a recording, so its users are no part of a sequence either."""
    monkeypatch.setitem(TABLE, torch.ops.aten.sin.default, lambda out, x: (x + x) * 0.5)
    TABLE[torch.ops.aten.sin.default].results = None
    f = compiled(lambda x: x.sin().exp())
    for _ in range(4):
        x = torch.randn(3, dtype=torch.float64)
        same(f(x), x.exp())


def test_memory_does_not_grow():
    model = Net().double()
    f, optimizer = compiled(model), torch.optim.SGD(model.parameters(), lr=0.1)
    live = []
    for _ in range(8):
        optimizer.zero_grad()
        f(image()).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            f(image())
        live.append(context_of(torch.device('cpu')).memory()['live'])
    assert live[-1] == live[-4]


def test_dtypes_that_tapegrad_lacks():
    def f(x, n):
        spectrum = torch.fft.rfft(x)
        return (spectrum * spectrum.conj()).real.sum() * n.to(torch.int16).sum()

    x = torch.randn(8, dtype=torch.float64, requires_grad=True)
    n = torch.tensor([1, 2], dtype=torch.int16)
    same(torch.autograd.grad(compiled(f)(x, n), x), torch.autograd.grad(f(x, n), x))


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


def test_the_backward_of_an_autograd_function_is_used():
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    f = compiled(lambda x: Straight.apply(x.exp()) * 2)
    for _ in range(3):
        y = f(x)
        same(y, x.exp().round() * 2)
        same(torch.autograd.grad(y.sum(), x)[0], 2 * x.exp())
    assert tt.report() == {}


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
def test_other_floats(dtype):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU()).to(dtype)
    x = torch.randn(4, 8, dtype=dtype)
    y = compiled(model)(x)
    assert y.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y, model(x), rtol=4 * eps, atol=4 * eps)


# ---- float8 ----


@pytest.mark.parametrize('dtype', [torch.float8_e4m3fn, torch.float8_e5m2])
def test_rounding_to_float8_and_its_gradient_are_those_of_pytorch(dtype):
    def f(x, w):
        scale = x.abs().amax() / torch.finfo(dtype).max
        return torch.nn.functional.linear((x / scale).to(dtype).to(x.dtype) * scale, w).tanh()

    results = []
    for run in (f, compiled(f), compiled(f)):  # the third repeats what the second has recorded
        torch.manual_seed(1)
        x, w = (torch.randn(*shape, requires_grad=True) for shape in ((4, 16), (8, 16)))
        y = run(x, w)
        y.square().sum().backward()
        results.append((y.detach(), x.grad, w.grad))
    for ours in results[1:]:
        torch.testing.assert_close(ours, results[0])
    assert tt.report() == {'aten._to_copy.default': 4}


def test_float8_is_moved_and_multiplied_as_in_pytorch():
    one = torch.tensor(1.0)

    def f(x, w):
        y = x.reshape(4, 16)
        z = torch._scaled_mm(y, w.t(), scale_a=one, scale_b=one, out_dtype=torch.float32)
        return y.t(), torch.cat([y, y]), z.relu()

    with torch.no_grad():
        x, w = (torch.randn(n, 16).to(torch.float8_e4m3fn) for n in (4, 16))
        for ours, theirs in zip(compiled(f)(x.reshape(-1), w), f(x.reshape(-1), w)):
            assert ours.dtype == theirs.dtype and torch.equal(ours.float(), theirs.float())
    assert tt.report()['aten._scaled_mm.default'] == 1


@pytest.mark.parametrize(
    'f',
    [
        lambda x: torch.softmax(x, 0),
        lambda x: x.sum(0) + torch.logsumexp(x, 0),
        lambda x: torch.sort(x)[0],
        lambda x: torch.clamp(x, 2, 1),
    ],
)
def test_arguments_that_only_pytorch_takes(f):
    x = torch.tensor(2.5, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(f(x), x)
    fast = compiled(f)
    for _ in range(3):
        y = fast(x)
        assert torch.equal(y, f(x)) and torch.equal(torch.autograd.grad(y, x)[0], expected[0])
    assert tt.report()


@pytest.mark.parametrize('f', [lambda x: torch.special.i0(x) + x * x, lambda x: x * x + torch.special.i0(x).sin()])
def test_gradients_of_what_falls_back_add_up(f):
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        torch.testing.assert_close(torch.autograd.grad(compiled(f)(x).sum(), x), torch.autograd.grad(f(x).sum(), x))
