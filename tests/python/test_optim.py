"""Optimizers, schedules and averages of parameters."""

import copy
import gc
import pickle

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import nn, ops, optim


def problem():
    """Data of a linear function, and its weights."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(64, 5)), rng.normal(size=(5, 1))
    return tg.tensor(x), tg.tensor(x @ w), w


def leaf(shape=(5, 1)):
    return tg.zeros(shape, dtype='f64', requires_grad=True)


@pytest.mark.parametrize(
    'name, options, tolerance',
    [
        ('SGD', {'lr': 0.1, 'momentum': 0.9, 'nesterov': True}, 1e-6),
        ('Adam', {'lr': 0.1}, 1e-3),
        ('AdamW', {'lr': 0.1, 'weight_decay': 0}, 1e-3),
        ('RMSprop', {'lr': 0.01, 'centered': True}, 2e-2),
        ('Adagrad', {'lr': 0.5}, 1e-6),
        ('Lion', {'lr': 0.01}, 3e-2),
        ('Muon', {'lr': 0.01}, 3e-2),
    ],
)
def test_every_optimizer_fits_a_linear_function(name, options, tolerance):
    x, y, truth = problem()
    w = leaf()
    opt = getattr(optim, name)([w], **options)
    for _ in range(300):
        opt.zero_grad()
        ((x @ w - y) ** 2).mean().backward()
        opt.step()
    assert opt.steps == 300
    assert np.abs(w.numpy() - truth).max() < tolerance


def test_adamw_is_its_formula():
    rng = np.random.default_rng(1)
    w, m, v = rng.normal(size=4), np.zeros(4), np.zeros(4)
    p = tg.tensor(w, requires_grad=True)
    opt = optim.AdamW([p], lr=0.01, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.1)
    for step in range(1, 5):
        g = rng.normal(size=4)
        opt.zero_grad()
        (p * tg.tensor(g)).sum().backward()
        opt.step()
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        w = w - 0.01 * 0.1 * w
        w = w - 0.01 * (m / (1 - 0.8**step)) / (np.sqrt(v / (1 - 0.9**step)) + 1e-6)
        assert np.allclose(p.numpy(), w, rtol=1e-12)


def test_options_are_checked_by_name_and_by_value():
    with pytest.raises(TypeError, match="'momentun'; did you mean 'momentum'"):
        optim.SGD([leaf()], lr=1, momentun=0.9)
    with pytest.raises(tg.ArgumentError, match='lr is -1'):
        optim.SGD([leaf()], lr=-1)
    with pytest.raises(ValueError, match='no parameters'):
        optim.SGD([], lr=1)
    with pytest.raises(TypeError, match='parameter 1 is a float'):
        optim.SGD([leaf(), 1.0], lr=1)
    with pytest.raises(tg.Error, match='gradient'):
        optim.SGD([tg.zeros((2,))], lr=1)
    assert 'beta2: ' in optim.AdamW.__doc__


def test_groups_have_numbers_of_their_own():
    a, b = leaf((2,)), leaf((2,))
    opt = optim.SGD([a, b], lr=1)
    group = opt.add_group([b], lr_scale=0.1)
    (a + b).sum().backward()
    opt.step()
    assert np.allclose(a.numpy(), -1) and np.allclose(b.numpy(), -0.1)
    opt.set_lr_of(group, 2)
    opt.step()
    assert np.allclose(b.numpy(), -0.3) and opt.lr == 1
    opt.lr = 0
    opt.step()
    assert np.allclose(a.numpy(), -2)


def test_no_decay_of_vectors():
    w, bias = tg.ones((2, 2), dtype='f64', requires_grad=True), tg.ones((2,), dtype='f64', requires_grad=True)
    opt = optim.AdamW([w, bias], lr=0.1, weight_decay=0.5)
    opt.no_decay_1d()
    ((w + bias).sum() * 0).backward()
    opt.step()
    assert np.allclose(w.numpy(), 0.95) and np.allclose(bias.numpy(), 1)


def test_a_schedule_gives_the_rate_of_each_step():
    schedule = optim.Schedule(1.0, warmup=2, steps=6, decay='linear')
    assert [schedule(i) for i in range(7)] == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25, 0])
    w = leaf((1,))
    opt = optim.SGD([w], lr=9, schedule=schedule)
    moved = []
    for _ in range(6):
        before = w.item()
        opt.zero_grad()
        w.sum().backward()
        opt.step()
        moved.append(before - w.item())
    assert moved == pytest.approx([0.5, 1, 0.75, 0.5, 0.25, 0])
    with pytest.raises(ValueError, match='not one of'):
        optim.Schedule(1, decay='cosin')
    with pytest.raises(ValueError, match='invalid'):
        optim.Schedule(1, warmup=5, steps=2)


def test_clipping_and_norms():
    w = leaf((2,))
    opt = optim.SGD([w], lr=1)
    (w * tg.tensor([3.0, 4.0], 'f64')).sum().backward()
    assert opt.clip(0.5) == pytest.approx(5)
    opt.step()
    assert np.allclose(w.numpy(), [-0.3, -0.4], atol=1e-6)
    opt.max_norm = 1
    opt.step()
    assert opt.norm == pytest.approx(5) and opt.max_norm == 1
    assert np.allclose(w.numpy(), [-0.9, -1.2], atol=1e-5)


def test_loss_scaling_skips_an_overflow():
    w = tg.ones((2,), requires_grad=True)
    opt = optim.SGD([w], lr=1)
    opt.set_loss_scale(initial=8, hysteresis=1)
    opt.scale_loss(w.sum()).backward()
    assert w.grad.tolist() == [8, 8]
    opt.step()
    assert w.tolist() == [0, 0] and opt.loss_scale == 8
    opt.zero_grad()
    (w * float('inf')).sum().backward()
    opt.step()
    assert opt.steps == 1 and opt.loss_scale == 4


def test_a_state_continues_a_run():
    x, y, _ = problem()

    def run(model, opt, steps):
        for _ in range(steps):
            opt.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            opt.step()

    with tg.Context(dtype='f64', seed=1) as ctx:
        x, y = tg.tensor(x.numpy()), tg.tensor(y.numpy())
        one, other = nn.Linear(5, 1), nn.Linear(5, 1)
        first, second = optim.Adam(one, lr=0.1), optim.Adam(other, lr=0.1)
        run(one, first, 5)
        state = first.state_dict()
        assert sorted(state) == ['bias.m', 'bias.v', 'steps', 'weight.m', 'weight.v']
        other.load_state_dict(one.state_dict())
        second.load_state_dict(state)
        run(one, first, 5)
        run(other, second, 5)
        assert one.weight.tolist() == other.weight.tolist() and second.steps == 10
        with pytest.raises(KeyError, match='lacks bias.m'):
            second.load_state_dict({k: v for k, v in state.items() if k != 'bias.m'})
        with pytest.raises(KeyError, match='lacks steps'):
            second.load_state_dict({})
        with pytest.raises(ValueError, match='weight.m of the optimizer has the shape'):
            second.load_state_dict({**state, 'weight.m': tg.zeros((2, 2))})
        assert second.steps == 10
    del ctx


RATE = optim.Schedule(0.1, warmup=2, steps=20, decay='cosine', min_lr=0.01)


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize(
    'name, options',
    [
        ('SGD', {'lr': 0.1, 'momentum': 0.9}),
        ('AdamW', {'schedule': RATE, 'weight_decay': 0.1}),
        ('RMSprop', {'lr': 0.01, 'centered': True}),
        ('Adagrad', {'lr': 0.1}),
        ('Lion', {'lr': 0.01}),
        ('Muon', {'lr': 0.1, 'adamw': {'lr': 0.01}}),
    ],
)
def test_a_copy_continues_as_its_original(name, options, copied):
    x, y, _ = problem()
    model = nn.Sequential(nn.Linear(5, 4), ops.tanh, nn.Linear(4, 1)).cast('f64')
    if name == 'Muon':
        options = {**options, 'others': [model[2].weight]}
    opt = getattr(optim, name)(model, **options)
    opt.no_decay_1d()
    group = opt.add_group([model[2].bias], lr_scale=0.5)
    opt.set_loss_scale(initial=8, interval=2)
    opt.max_norm, ema = 1.0, optim.EMA(model, 0.5)
    opt.lr = 0.05
    opt.set_lr_of(group, 0.02)
    opt.notes = ['an attribute of the program']

    def run(model, opt, ema):
        for _ in range(3):
            opt.scale_loss(((model(x) - y) ** 2).mean()).backward()
            opt.step()
            opt.zero_grad()
            ema.update()
        return [p.tolist() for p in model.parameters()], {k: v.tolist() for k, v in ema.state_dict().items()}, opt.norm

    run(model, opt, ema)
    others = copied((model, opt, ema))
    assert (others[1].lr, others[1].max_norm, others[1].loss_scale) == (opt.lr, opt.max_norm, opt.loss_scale)
    assert run(*others) == run(model, opt, ema) and others[1].steps == 6
    assert repr(others[1]) == repr(opt) and others[1].notes == opt.notes


def test_schedules_are_pickled():
    assert [pickle.loads(pickle.dumps(RATE))(n) for n in range(20)] == [RATE(n) for n in range(20)]


def test_lbfgs_minimizes_rosenbrock():
    p = tg.tensor([-1.2, 1.0], 'f64', requires_grad=True)
    opt = optim.LBFGS([p], iterations=100, evaluations=200)
    loss = opt.step(lambda: (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2)
    assert loss < 1e-12 and np.allclose(p.numpy(), 1, atol=1e-6)
    with pytest.raises(tg.CallbackError) as error:
        opt.step(lambda: 1 / 0)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_averages():
    w = tg.ones((2,), dtype='f64', requires_grad=True)
    ema, swa = optim.EMA([w], decay=0.9), optim.SWA([w])
    for average in ema, swa:
        average.update()
    w.write([3.0, 5.0])
    for average in ema, swa:
        average.update()
    with ema.applied():
        assert np.allclose(w.numpy(), [1.2, 1.4])
    with swa.applied():
        assert np.allclose(w.numpy(), [2, 3])
    assert w.tolist() == [3, 5] and ema.updates == 2
    state = ema.state_dict()
    again = optim.EMA([w], decay=0.9)
    again.load_state_dict(state)
    again.apply()
    again.commit()
    assert np.allclose(w.numpy(), [1.2, 1.4])
    with pytest.raises(tg.StateError):
        again.restore()


def test_muon_gives_other_parameters_to_adamw():
    w, e, b = leaf((3, 3)), leaf((4, 3)), leaf((3,))
    opt = optim.Muon([w, e, b], lr=0.1, others=[e], adamw={'lr': 1e-3})
    (w.sum() + e.sum() + b.sum()).backward()
    opt.step()
    assert sorted(opt.state_dict()) == ['0.momentum', '1.m', '1.v', '2.m', '2.v', 'steps']
    assert np.allclose(e.numpy(), -1e-3) and np.allclose(b.numpy(), -1e-3)


def test_objects_end_in_any_order():
    with tg.Context() as ctx:
        w = tg.ones((2,), requires_grad=True)
        opt = optim.Adam([w])
        live = ctx.memory()['live']
        del w, opt
        gc.collect()
        tg.zeros((1,))
        assert ctx.memory()['live'] < live
        v = tg.ones((2,), requires_grad=True)
        opt = optim.Adam([v])
    ctx.close()
    with pytest.raises(tg.HandleError):
        opt.step()
    with pytest.raises(tg.HandleError):
        pickle.dumps(opt)
    with pytest.raises(TypeError, match='cannot be copied or pickled'):
        pickle.dumps(optim.LBFGS([tg.ones((2,), requires_grad=True)]))


def test_a_group_of_other_parameters_is_not_made():
    model = nn.Linear(2, 2)
    opt = optim.AdamW(model, lr=0.1)
    with pytest.raises(tg.ArgumentError, match='parameter 0 does not belong to this optimizer'):
        opt.add_group([tg.ones((2,), requires_grad=True)], lr_scale=0.5)
    opt.set_lr_of(opt.add_group([model.bias], lr_scale=0.5), 0.3)
    copy.deepcopy((model, opt))  # makes the same groups


def test_muon_takes_one_other_matrix():
    model = nn.Linear(3, 3)
    w = model.weight.numpy()
    opt = optim.Muon(model, others=model.weight, adamw={'lr': 0.25, 'weight_decay': 0.0})
    model(tg.ones((1, 3))).sum().backward()
    opt.step()
    assert np.allclose(w - model.weight.numpy(), 0.25, atol=1e-3)  # AdamW's first step
