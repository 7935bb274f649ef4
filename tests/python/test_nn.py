"""Modules, layers, initial values, and models of the library."""

import copy
import functools
import gc
import os
import pickle
import shutil

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import nn, ops, optim


class Block(nn.Module):
    def __init__(self, n):
        self.inner = nn.Linear(n, n)
        self.scale = tg.ones((n,))
        self.mask = nn.Buffer(tg.ones((n,)), saved=False)
        self.count = tg.tensor([0])

    def forward(self, x):
        self.last = self.inner(x) * self.scale * self.mask
        return self.last


class Model(nn.Module):
    def __init__(self):
        self.embedding = nn.Embedding(5, 4)
        self.blocks = [Block(4), Block(4)]
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.dropout(x))


def test_a_buffer_that_is_computed_again_keeps_no_tape_alive():
    class Mean(nn.Module):
        def __init__(self, n):
            self.mean = nn.Buffer(tg.zeros((n,)))

    n = 10000
    with tg.Context() as ctx:
        model = Mean(n)
        for step in range(50):
            with tg.no_grad():
                model.mean = 0.5 * model.mean + 1
            if step == 1:
                live = ctx.memory()['live']
        assert [name for name, _ in model.named_buffers()] == ['mean']
        assert model.mean[0].item() == pytest.approx(2) and ctx.memory()['live'] <= live


def test_attributes_become_parameters_buffers_and_children():
    model = Model()
    assert [path for path, _ in model.named_parameters()] == [
        'embedding.weight',
        'blocks.0.scale',
        'blocks.0.inner.weight',
        'blocks.0.inner.bias',
        'blocks.1.scale',
        'blocks.1.inner.weight',
        'blocks.1.inner.bias',
    ]
    assert [path for path, _ in model.named_buffers()] == [
        'blocks.0.mask',
        'blocks.0.count',
        'blocks.1.mask',
        'blocks.1.count',
    ]
    assert 'blocks.0.count' in model.state_dict() and 'blocks.0.mask' not in model.state_dict()
    assert all(x.requires_grad for x in model.parameters()) and not model.blocks[0].mask.requires_grad
    assert model.head.weight is model.embedding.weight and model.blocks[0].scale.name == 'scale'
    ids = tg.tensor([0, 3])
    assert model(ids).shape == (2, 5)
    assert len(model.parameters()) == 7  # results that a module keeps are no parameters
    del model.blocks[1].scale
    assert len(model.parameters()) == 6 and len(model.modules()) == 9


def test_what_is_computed_before_a_call_is_a_parameter_and_within_it_is_not():
    class Scaled(nn.Module):
        def __init__(self):
            self.w = tg.randn((3,)) * 0.1
            self.twice = self.w * 2

        def forward(self, x):
            self.seen = tg.zeros((1,))
            self.w = tg.ones((3,))
            self.last = x * self.w
            return self.last

    model = Scaled()
    assert [path for path, _ in model.named_parameters()] == ['w']
    with tg.no_grad():
        model(tg.ones((3,)))
    assert [path for path, _ in model.named_parameters()] == ['w'] and model.w.tolist() == [1, 1, 1]
    model.w = model.w * 2
    assert not model.parameters()
    model.w = 3
    assert model.w == 3


def test_a_model_learns_and_freezes():
    model = Model().eval()
    ids, target = tg.tensor([0, 1, 2, 3, 4]), tg.tensor([1, 2, 3, 4, 0])
    model.blocks[0].freeze()
    before = model.blocks[0].inner.weight.tolist()
    opt = optim.AdamW(model, lr=0.05)
    assert len(opt.params) == 4
    for _ in range(100):
        opt.zero_grad()
        loss = model(ids).cross_entropy(target=target)
        loss.backward()
        opt.step()
    assert loss.item() < 0.1 and model.blocks[0].inner.weight.tolist() == before
    model.freeze(False).zero_grad()
    assert all(x.requires_grad and x.grad is None for x in model.parameters())


def test_modes_override_that_of_the_context():
    drop = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    x = tg.ones((100,))
    assert drop(x).tolist() != x.tolist()
    with tg.evaluation():
        assert drop(x).tolist() == x.tolist()
        drop[1].train()
        assert drop(x).tolist() != x.tolist() and drop[1].training and not drop[0].training
    drop.eval()
    assert drop(x).tolist() == x.tolist() and not drop.training and tg.context().training
    assert tg.recompute(drop, x).tolist() == x.tolist()
    drop.train()
    assert drop(x).tolist() != x.tolist()


def test_state_dict_is_written_as_a_whole_or_not_at_all():
    model, other = Model(), Model()
    state = {path: x.numpy() for path, x in model.state_dict().items()}
    assert other.load_state_dict(state) == ([], [])
    for path, x in other.state_dict().items():
        assert np.array_equal(x.numpy(), state[path])
    changed = {**state, 'embedding.weight': state['embedding.weight'] + 1}
    wrong = {**changed, 'blocks.1.scale': np.zeros(3)}
    with pytest.raises(ValueError, match=r'blocks.1.scale of Model has the shape \(4,\), but the given one has \(3,\)'):
        other.load_state_dict(wrong)
    del changed['blocks.0.scale']
    with pytest.raises(KeyError, match='lacks blocks.0.scale; Model has no extra'):
        other.load_state_dict({**changed, 'extra': 1})
    assert np.array_equal(other.embedding.weight.numpy(), state['embedding.weight'])
    assert other.load_state_dict({**changed, 'extra': 1}, strict=False) == (['blocks.0.scale'], ['extra'])
    assert np.array_equal(other.embedding.weight.numpy(), changed['embedding.weight'])


def test_replace_is_used_everywhere():
    model = Model().eval()
    old = model.replace('blocks.0', nn.Function(ops.relu))
    assert isinstance(old, Block) and len(model.parameters()) == 4
    model.replace('head', nn.Linear(4, 7))
    assert model(tg.tensor([1])).shape == (1, 7)
    with pytest.raises(KeyError, match="no module 'blocks.7': ModuleList has 0, 1"):
        model.replace('blocks.7', old)


def test_copies_and_pickles_keep_ties():
    model = Model().eval()
    ids = tg.tensor([2, 3])
    for other in copy.deepcopy(model), pickle.loads(pickle.dumps(model)):
        assert other.head.weight is other.embedding.weight and other.head.weight is not model.head.weight
        assert other(ids).tolist() == model(ids).tolist() and not other.training
    functions = pickle.loads(pickle.dumps(copy.deepcopy(nn.Sequential(ops.relu, ops.tanh))))
    assert functions(tg.tensor([-1.0])).tolist() == [0]


def test_cast_converts_everything_and_keeps_ties():
    model = Model().cast('f64')
    assert {x.dtype for x in model.parameters()} == {'f64'} and model.blocks[0].count.dtype == 'i64'
    assert model.head.weight is model.embedding.weight and model.head.weight.requires_grad
    assert model(tg.tensor([1])).dtype == 'f64'
    gpt = nn.GPT(arch='gpt2', vocab=11, layers=1, heads=2, hidden=16, positions=12)
    gpt.transformer.h[0].mlp = nn.Linear(16, 16)
    assert {x.dtype for x in gpt.cast('bf16').parameters()} == {'bf16'}


def test_print_shows_a_tree():
    assert (
        repr(nn.Sequential(nn.Linear(2, 3), ops.relu, nn.BatchNorm(3)).eval())
        == '''Sequential, eval
  0: Linear (2 to 3)
    weight: f32[3, 2]
    bias: f32[3]
  1: Function (relu)
  2: BatchNorm (3, eps 1e-05)
    weight: f32[3]
    bias: f32[3]
    running_mean: buffer f32[3]
    running_var: buffer f32[3]'''
    )


def test_layers_compute_what_they_say():
    rng = np.random.default_rng(0)
    with tg.Context(dtype='f64'):
        x = rng.normal(size=(4, 6))
        linear = nn.Linear(6, 3)
        assert np.allclose(linear(tg.tensor(x)).numpy(), x @ linear.weight.numpy().T + linear.bias.numpy())
        norm = nn.LayerNorm(6)(tg.tensor(x)).numpy()
        assert np.allclose(norm, (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5))
        assert np.allclose(nn.RMSNorm(6)(tg.tensor(x)).numpy(), x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6))
        groups = nn.GroupNorm(2, 6)(tg.tensor(x)).numpy().reshape(4, 2, 3)
        assert np.allclose(groups.mean(2), 0) and np.allclose(groups.var(2), 1, atol=1e-2)
        assert nn.Embedding(5, 2)(tg.tensor([[1, 2]])).shape == (1, 2, 2)
        images = tg.tensor(rng.normal(size=(2, 4, 8, 8)))
        assert nn.Conv2d(4, 6, 3, padding=1, groups=2)(images).shape == (2, 6, 8, 8)
        assert nn.Conv2d(4, 6, (1, 3), bias=False, stride=2)(images).shape == (2, 6, 4, 3)
        assert nn.Conv1d(4, 6, 3)(images[:, :, 0]).shape == (2, 6, 6)
        with pytest.raises(ValueError, match='groups is 0, but must be positive'):
            nn.Conv2d(4, 6, 3, groups=0)
        with pytest.raises(ValueError, match='groups is 3'):
            nn.Conv2d(4, 6, 3, groups=3)


def test_batch_norm_moves_its_statistics_in_training():
    norm = nn.BatchNorm(3, momentum=0.5)
    x = tg.tensor(np.random.default_rng(0).normal(3, 2, size=(50, 3)).astype('f'))
    y = norm(x).numpy()
    assert np.allclose(y.mean(0), 0, atol=1e-5)
    assert np.allclose(norm.running_mean.numpy(), x.numpy().mean(0) / 2, atol=1e-5)
    before = norm.running_mean.tolist()
    expected = (x.numpy() - norm.running_mean.numpy()) / np.sqrt(norm.running_var.numpy() + 1e-5)
    assert np.allclose(norm.eval()(x).numpy(), expected, atol=1e-5) and norm.running_mean.tolist() == before


def test_initial_values():
    def std(write):
        return write(tg.zeros((400, 100), dtype='f64')).numpy().std()

    init = nn.init
    assert std(init.kaiming_normal()) == pytest.approx(np.sqrt(2 / 100), rel=0.05)
    assert std(init.kaiming_uniform(1)) == pytest.approx(np.sqrt(1 / 100), rel=0.05)
    assert std(init.xavier_normal()) == pytest.approx(np.sqrt(1 / 250), rel=0.05)
    assert std(init.xavier_uniform()) == pytest.approx(np.sqrt(1 / 250), rel=0.05)
    assert std(init.normal(1, 0.5)) == pytest.approx(0.5, rel=0.05)
    assert np.abs(init.truncated_normal(0, 1)(tg.zeros((1000,))).numpy()).max() <= 2
    q = init.orthogonal()(tg.zeros((6, 4), dtype='f64')).numpy()
    assert np.allclose(q.T @ q, np.eye(4))
    assert nn.Linear(3, 3, weight=init.eye(), bias=init.ones()).weight.numpy().tolist() == np.eye(3).tolist()
    bound = 1 / np.sqrt(100)
    weight = nn.Linear(100, 400).weight.numpy()
    assert np.abs(weight).max() <= bound and np.abs(weight).max() > 0.99 * bound


def lstm_step(x, h, c, wx, wh, bx, bh):
    def sig(v):
        return 1 / (1 + np.exp(-v))

    i, f, g, o = np.split(x @ wx.T + bx + h @ wh.T + bh, 4, axis=1)
    c = sig(f) * c + sig(i) * np.tanh(g)
    return sig(o) * np.tanh(c), c


def test_recurrent_layers():
    with tg.Context(dtype='f64'):
        lstm = nn.LSTM(3, 5)
        x = tg.randn((7, 2, 3))
        y, h, c = lstm(x)
        hs, cs, weights = np.zeros((2, 5)), np.zeros((2, 5)), [p.numpy() for p in lstm.parameters()]
        assert [n for n, _ in lstm.named_parameters()] == ['weight_ih_l0', 'weight_hh_l0', 'bias_ih_l0', 'bias_hh_l0']
        for i in range(7):
            hs, cs = lstm_step(x.numpy()[i], hs, cs, *weights)
            assert np.allclose(y.numpy()[i], hs)
        assert np.allclose(h.numpy()[0], hs) and np.allclose(c.numpy()[0], cs)
        again = lstm(x[4:], *lstm(x[:4])[1:])
        assert np.allclose(again[0].numpy(), y.numpy()[4:])
        gru = nn.GRU(3, 5, 2, bidirectional=True)
        y, h = gru(x)
        assert y.shape == (7, 2, 10) and h.shape == (4, 2, 5)
        y.sum().backward()
        assert all(p.grad is not None for p in gru.parameters())
        with pytest.raises(TypeError, match='at most 1 states'):
            gru(x, h, h)
        with pytest.raises(tg.ArgumentError):
            nn.GRU(0, 5)


class LoRA(nn.Module):
    def __init__(self, base, rank=2):
        outputs, inputs = base.weight.shape
        self.base = base.freeze()
        self.a = nn.init.kaiming_uniform(1)(tg.zeros((rank, inputs)))
        self.b = tg.zeros((outputs, rank))

    def forward(self, x):
        return self.base(x) + x.linear(self.a).linear(self.b)


@pytest.fixture
def gpt():
    with tg.Context(seed=3):
        yield nn.GPT(arch='gpt2', vocab=11, layers=2, heads=2, hidden=16, positions=12)


IDS = np.arange(20).reshape(2, 10) % 11


def train(model, targets, steps, lr=1e-2):
    opt = optim.AdamW(model, lr=lr)
    for _ in range(steps):
        opt.zero_grad()
        loss = model.loss(tg.tensor(IDS), tg.tensor(targets))
        loss.backward()
        opt.step()
    return loss.item()


def test_gpt_is_a_module(gpt):
    names = [path for path, _ in gpt.named_parameters()]
    assert names[0] == 'transformer.wte.weight' and 'transformer.h.1.mlp.c_fc.bias' in names
    assert len(names) == len(set(names))
    assert gpt.transformer.h[1].attn.c_attn.weight.shape == (48, 16)
    assert repr(gpt).startswith('gpt\n  transformer: list\n    wte: embedding\n      weight: f32[11, 16]')
    logits = gpt(tg.tensor(IDS))
    expected = logits.reshape([-1, 11]).cross_entropy(target=tg.tensor(IDS.reshape(-1)))
    assert gpt.loss(tg.tensor(IDS), tg.tensor(IDS)).item() == pytest.approx(expected.item(), abs=1e-5)
    assert train(gpt, (IDS + 1) % 11, 60) < 0.1
    assert gpt.generate([[4, 5], [7, 8]], 3) == [[4, 5, 6, 7, 8], [7, 8, 9, 10, 0]]
    with pytest.raises(ValueError, match=r'the sequences have the lengths \[2, 1\]; expected equal ones of 1 or more'):
        gpt.generate([[4, 5], [7]], 3)
    with pytest.raises(ValueError, match='n is -1, but must be 0 or more'):
        gpt.generate([[4, 5]], -1)
    drawn = gpt.generate([[4, 5]], 3, temperature=1.0)
    assert len(drawn[0]) == 5 and max(drawn[0]) < 11


@pytest.mark.parametrize('dtype', ['f32', 'bf16', 'f16'])
def test_draws_of_equally_likely_tokens_favor_none(dtype):
    with tg.Context(dtype=dtype, seed=1, threads=1):
        model = nn.GPT(arch='gpt2', vocab=4096, layers=1, heads=1, hidden=8, positions=8)
        for x in model.parameters():
            nn.init.zeros()(x)
        drawn = np.array(model.generate([[0]] * 64, 4, temperature=1.0))[:, 1:]
    assert 1700 < drawn.mean() < 2400


def test_adapters_in_a_gpt_are_trained_and_taken_away(gpt):
    train(gpt, (IDS + 1) % 11, 60)
    before = gpt(tg.tensor(IDS)).numpy()
    gpt.freeze()
    paths = [f'transformer.h.{i}.{name}' for i in range(2) for name in ('attn.c_attn', 'mlp.c_fc')]
    for path in paths:
        gpt.replace(path, LoRA(gpt.get(path)))
    assert np.allclose(gpt(tg.tensor(IDS)).numpy(), before, atol=1e-6)
    weights = gpt.transformer.h[0].attn.c_attn.base.weight.tolist()
    assert len(optim.AdamW(gpt, lr=1).params) == 8
    first, last = train(gpt, (IDS - 1) % 11, 1), train(gpt, (IDS - 1) % 11, 100, 3e-2)
    assert last < first / 4 and gpt.transformer.h[0].attn.c_attn.base.weight.tolist() == weights
    with pytest.raises(ValueError, match='were replaced'):
        gpt.save('nowhere')
    for path in paths:
        lora = gpt.get(path)
        assert gpt.replace(path, lora.base) is lora
    assert np.allclose(gpt(tg.tensor(IDS)).numpy(), before, atol=1e-6) and gpt.is_whole


def test_what_a_model_of_the_library_refuses(gpt):
    other = nn.GPT(arch='gpt2', vocab=11, layers=1, heads=2, hidden=16, positions=12)
    with pytest.raises(ValueError, match='a part of another'):
        gpt.transformer.h[0].mlp = other.transformer.h[0].mlp
    with pytest.raises(TypeError, match='by a module only'):
        gpt.transformer.wte = 3
    with pytest.raises(AttributeError, match='write'):
        gpt.transformer.wte.weight = tg.zeros((11, 16))
    class Wrong(nn.Module):
        def forward(self, x):
            raise KeyError('mine')

    gpt.transformer.h[0].mlp = Wrong()
    with pytest.raises(tg.CallbackError, match='mine') as error:
        gpt(tg.tensor(IDS))
    assert isinstance(error.value.__cause__, KeyError)


def test_modes_reach_into_a_model_of_the_library(gpt):
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append(self.training)
            return x

    gpt.transformer.h[0].ln_1 = Spy()
    gpt.eval()(tg.tensor(IDS))
    gpt.train(True)(tg.tensor(IDS))
    gpt.transformer.h[0].ln_1.eval()
    gpt(tg.tensor(IDS))
    assert seen == [False, True, False]


def test_parts_keep_their_model(gpt):
    weight, mlp = gpt.transformer.wte.weight, gpt.transformer.h[0].mlp
    del gpt
    gc.collect()
    assert mlp(tg.zeros((3, 1, 16))).shape == (3, 1, 16) and weight.shape == (11, 16)


def test_folders_of_models(gpt, tmp_path):
    gpt.save(tmp_path / 'model')
    again = nn.GPT.from_folder(tmp_path / 'model')
    ids = tg.tensor(IDS)
    assert again(ids).tolist() == gpt(ids).tolist()
    other = nn.GPT.from_config(tmp_path / 'model' / 'config.json')
    other.load(tmp_path / 'model')
    assert other(ids).tolist() == gpt(ids).tolist()
    shutil.rmtree(tmp_path / 'model')
    assert copy.deepcopy(again)(ids).tolist() == gpt(ids).tolist()
    with pytest.raises(tg.IoError):
        nn.GPT.from_folder(tmp_path / 'model')


class OwnGPT(nn.GPT):
    pass


COPIES = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]


def outputs(model, x):
    y = model(x)
    return [t.tolist() for t in (y if isinstance(y, tuple) else (y,))]


@pytest.mark.parametrize('copied', COPIES)
def test_copies_of_models_of_the_library(gpt, copied):
    train(gpt, (IDS + 1) % 11, 3)
    gpt.transformer.h[0].freeze()
    gpt.transformer.h[1].eval()
    ids, x = tg.tensor(IDS), tg.randn((4, 1, 16))
    lm = nn.LM(vocab=11, layers=1, heads=2, hidden=16, positions=12)
    rnns = [nn.GRU(16, 4, layers=2, bidirectional=True), nn.LSTM(16, 4, no_bias=True)]
    for model, inputs in (gpt, ids), (lm, ids), *((rnn, x) for rnn in rnns):
        other = copied(model)
        assert type(other) is type(model) and repr(other) == repr(model)
        assert outputs(other, inputs) == outputs(model, inputs)
        for (path, p), (_, q) in zip(model.named_parameters(), other.named_parameters()):
            assert p is not q and p.tolist() == q.tolist() and p.requires_grad == q.requires_grad, path
    other, before = copied(gpt), gpt.transformer.h[1].ln_1.weight.tolist()
    train(other, (IDS - 1) % 11, 2)
    assert gpt.transformer.h[1].ln_1.weight.tolist() == before and gpt.get('transformer.h.0').is_whole


def test_a_deep_copy_is_in_the_context_of_its_model(gpt):
    model = nn.Sequential(gpt.transformer.h[0].mlp, LoRA(nn.Linear(16, 4)), nn.Linear(4, 2))
    optimizer, average = tg.optim.AdamW(model), tg.optim.EMA(model)
    with tg.Context('meta'):
        other, again, ema = copy.deepcopy((model, optimizer, average))
        whole = copy.deepcopy(gpt)
        states = [x for copied in (optimizer, average) for x in copied.state_dict().values()]
    parameters = [*other.parameters(), *whole.parameters(), *again.params, *ema.params]
    assert {x.device for x in [*parameters, *states]} == {'cpu'}
    assert outputs(other, tg.ones((2, 16))) == outputs(model, tg.ones((2, 16)))
    assert outputs(whole, tg.tensor(IDS)) == outputs(gpt, tg.tensor(IDS))


@pytest.mark.parametrize('copied', COPIES)
def test_copies_have_what_has_taken_the_place_of_parts(gpt, copied):
    for i in range(2):
        gpt.replace(f'transformer.h.{i}.attn.c_attn', LoRA(gpt.transformer.h[i].attn.c_attn))
    gpt.replace('transformer.h.1.mlp', nn.Linear(16, 16).eval())
    gpt.cast('f64')
    train(gpt, (IDS + 1) % 11, 3)
    other = copied(gpt)
    assert repr(other) == repr(gpt) and outputs(other, tg.tensor(IDS)) == outputs(gpt, tg.tensor(IDS))
    assert not other.transformer.h[1].mlp.training and other.transformer.h[0].mlp.training
    assert {p.dtype for p in other.parameters()} == {'f64'}
    # A part that was taken out is a module of its own, and comes back to where it was.
    lora = other.transformer.h[0].attn.c_attn
    assert other.replace('transformer.h.0.attn.c_attn', lora.base) is lora
    other(tg.tensor(IDS))
    alone, x = copied(lora), tg.randn((1, 1, 16), dtype='f64')
    assert outputs(alone, x) == outputs(lora, x)


@pytest.mark.parametrize('copied', COPIES)
def test_copies_keep_references_into_models_of_the_library(gpt, copied):
    own = OwnGPT(arch='llama', vocab=11, layers=1, heads=2, hidden=16, positions=12)
    own.notes = ['text', own.model.layers[0]]
    both = copied(nn.Sequential(own, gpt.transformer.h[1], gpt))
    assert both[0].notes == ['text', both[0].model.layers[0]] and type(both[0]) is OwnGPT
    assert both[1] is both[2].transformer.h[1] and both[1] is not gpt.transformer.h[1]
    part, x = copied(gpt.transformer.h[0]), tg.randn((2, 1, 16))
    assert outputs(part, x) == outputs(gpt.transformer.h[0], x)
    kept = nn.GPT(arch='gpt2', vocab=11, layers=1, heads=2, hidden=16, positions=12).transformer.h[0]
    gc.collect()
    assert outputs(copied(kept), x) == outputs(kept, x)  # its model has ended


@pytest.mark.parametrize('copied', COPIES)
def test_a_model_and_its_optimizer_are_copied_together(gpt, copied):
    gpt.replace('transformer.h.0.mlp', LoRA(nn.Linear(16, 16)))
    opt = optim.AdamW(gpt, lr=1e-2)

    def steps(model, opt):
        losses = []
        for _ in range(3):
            losses.append(model.loss(tg.tensor(IDS), tg.tensor((IDS + 1) % 11)))
            losses[-1].backward()
            opt.step()
            opt.zero_grad()
        return [loss.item() for loss in losses]

    steps(gpt, opt)
    model, other = copied((gpt, opt))
    assert steps(model, other) == steps(gpt, opt) and other.steps == opt.steps == 6
    alone = copied(opt)
    assert alone.steps == 6 and alone.params.keys == opt.params.keys
    weight = gpt.transformer.wte.weight
    assert type(copied(weight)) is tg.Tensor and copied(weight).tolist() == weight.tolist()


def test_an_optimizer_is_not_copied_without_the_module_of_its_parameters():
    opt = optim.SGD(nn.GRU(2, 2), lr=1)
    gc.collect()
    with pytest.raises(TypeError, match='after its module has ended'):
        pickle.dumps(opt)


def test_lm_and_llama_have_losses():
    sizes = dict(vocab=11, layers=1, heads=2, hidden=16, positions=12)
    for model in nn.LM(**sizes), nn.GPT(arch='llama', **sizes):
        first, last = train(model, (IDS + 1) % 11, 1), train(model, (IDS + 1) % 11, 20)
        assert last < first
    with pytest.raises(TypeError, match="option layers is 'two'"):
        nn.LM(**{**sizes, 'layers': 'two'})
    with pytest.raises(TypeError, match="no option 'layer'; did you mean 'layers'"):
        nn.LM(layer=1)


def test_models_draw_other_numbers_each_time():
    sizes = dict(arch='gpt2', vocab=11, layers=1, heads=2, hidden=16, positions=12, dropout=0.5)

    def losses():
        with tg.Context(seed=7):
            one, other = nn.GPT(**sizes), nn.GPT(**sizes)
            ids = tg.tensor(IDS)
            return [model.loss(ids, ids).item() for model in (one, one, other, other)]

    first = losses()
    assert len(set(first)) == 4 and losses() == first


def test_classes_of_the_library_can_be_extended():
    class Own(nn.GRU):
        def forward(self, x):
            return super().forward(x)[0]

    class Slow(optim.SGD):
        pass

    gru = Own(3, 4)
    assert gru(tg.zeros((2, 1, 3))).shape == (2, 1, 4) and Slow(gru, lr=1).lr == 1


def test_a_context_ends_with_its_last_object(tmp_path):
    def threads():
        return len(os.listdir('/proc/self/task'))

    tg.zeros((1,))
    before = threads()
    ctx = tg.Context(threads=3)
    with ctx:
        gpt = nn.GPT(arch='gpt2', vocab=11, layers=1, heads=2, hidden=16, positions=12)
        gpt.replace('transformer.h.0.mlp', LoRA(gpt.transformer.h[0].attn.c_proj))
        gpt.replace('transformer.h.0.mlp', nn.GRU(16, 16))
        opt = optim.Adam(gpt, lr=1e-2)
        tg.save(tmp_path / 'a', {'w': tg.ones((2,))})
        with tg.files.File(tmp_path / 'a') as f:
            f['w']
        assert threads() > before
    del ctx, gpt, f
    gc.collect()
    assert threads() > before and opt.steps == 0
    del opt
    gc.collect()
    assert threads() == before


def test_parts_of_lists_are_modules():
    layers = nn.ModuleList([nn.Linear(1, 1)])
    for call in (lambda: layers.append(ops.relu), lambda: layers.__setitem__(0, tg.ones((1,)))):
        with pytest.raises(TypeError, match='expected a Module'):
            call()
    with pytest.raises(ValueError, match='expected the path of a module in it'):
        layers.replace('', nn.Linear(1, 1))
    assert list(layers.children()) == ['0'] and isinstance(layers[0], nn.Linear)


def test_named_arguments_are_run_in_the_mode_of_the_module():
    class Noise(nn.Module):
        def forward(self, x):
            return ops.dropout(x, 0.5)

    x = tg.ones((1000,), context=tg.Context())
    assert Noise().eval()(x=x).sum().item() == 1000


def test_a_gpt_generates_outside_of_its_context():
    with tg.Context(seed=1):
        gpt = nn.GPT(vocab=8, layers=1, heads=1, hidden=8, positions=16)
        expected = gpt.generate([[1, 2]], 3)
    assert gpt.generate([[1, 2]], 3) == expected and len(gpt.generate([[1, 2]], 3, 0.8)[0]) == 5


def test_a_function_without_a_name_is_printed_as_its_class():
    model = nn.Sequential(functools.partial(ops.leaky_relu, slope=0.5), ops.relu)
    assert repr(model).split('\n')[1:] == ['  0: Function (partial)', '  1: Function (relu)']
    assert model(tg.tensor([-2.0, 2.0])).tolist() == [0, 2]


def test_attributes_of_another_model_stay_with_it_when_a_part_is_moved(gpt):
    path = next(name for name, m in gpt.named_modules() if name.endswith('mlp'))
    part, gru, x = gpt.get(path), nn.GRU(4, 4), tg.ones((1, 1, 4))
    expected, weight = gru(x)[0].tolist(), dict(gru.named_parameters())
    part.extra, part.tied = gru, next(iter(weight.values()))
    assert gpt.replace(path, nn.Module()) is part
    assert gru(x)[0].tolist() == expected
    root = part.tied._root
    assert root is gru._root and root is not part._root
