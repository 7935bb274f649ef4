"""Adapts a trained GPT to new data with low-rank adapters (Hu et al., LoRA, arXiv 2106.09685). The model's own weights
stay as they are. In the end the adapters are added to the weights, and the model has its own layers again."""

import sys

import numpy as np

import tapegrad as tg
from tapegrad import nn, optim

VOCAB, LENGTH, BATCH, RANK = 16, 12, 8, 4


class LoRA(nn.Module):
    """base(x) + scale * x a^T b^T, with a [rank, inputs] and b [outputs, rank]. b is 0 at first, so the model computes
    what it did before."""

    def __init__(self, base, rank, scale):
        outputs, inputs = base.weight.shape
        self.base, self.scale = base.freeze(), scale
        self.a = nn.init.kaiming_uniform(1)(tg.zeros((rank, inputs)))
        self.b = tg.zeros((outputs, rank))

    def forward(self, x):
        return self.base(x) + x.linear(self.a).linear(self.b) * self.scale

    def merge(self):
        """Adds the product to the weights of the layer, and returns the layer."""
        self.base.weight.write(self.base.weight.numpy() + self.scale * (self.b.numpy() @ self.a.numpy()))
        return self.base


def batch(step, by):
    """Sequences that go up or down by one, and the tokens that follow."""
    start = step + 3 * np.arange(BATCH)[:, None] + by * np.arange(LENGTH + 1)
    tokens = start % VOCAB
    return tg.tensor(tokens[:, :-1]), tg.tensor(tokens[:, 1:])


def train(model, steps, by, lr):
    opt = optim.AdamW(model, lr=lr)
    for step in range(steps):
        loss = model.loss(*batch(step, by))
        loss.backward()
        opt.step()
        opt.zero_grad()
    way = 'up' if by > 0 else 'down'
    print(f'{steps} steps on sequences that go {way}, {len(opt.params)} tensors trained: loss {loss.item():.3f}')


def main():
    with tg.Context(seed=1, threads=2):
        model = nn.GPT(arch='gpt2', vocab=VOCAB, layers=2, heads=2, hidden=32, positions=LENGTH)
        train(model, 60, +1, 1e-2)
        weights = model.transformer.h[0].attn.c_attn.weight.numpy()

        model.freeze()
        paths = [f'transformer.h.{i}.{layer}' for i in range(2) for layer in ('attn.c_attn', 'mlp.c_fc', 'mlp.c_proj')]
        for path in paths:
            model.replace(path, LoRA(model.get(path), RANK, scale=2))
        print(model.transformer.h[0].attn)
        train(model, 150, -1, 2e-2)
        kept = np.array_equal(model.transformer.h[0].attn.c_attn.base.weight.numpy(), weights)

        ids = batch(0, -1)[0]
        adapted = model(ids).numpy()
        for path in paths:
            model.replace(path, model.get(path).merge())
        difference = np.abs(model(ids).numpy() - adapted).max()
        print(f'the weights stayed: {kept}; merging changes the logits by {difference:.1e}')
        down = model.generate([[9, 8, 7]], 4)[0]
        print('continued:', down)
        return 0 if kept and difference < 1e-3 and down == [9, 8, 7, 6, 5, 4, 3] else 1


if __name__ == '__main__':
    sys.exit(main())
