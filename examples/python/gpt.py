"""Trains a small GPT on the text of this program, byte by byte, and lets it continue a line.

gpt.py [STEPS]
"""

import pathlib
import sys

import numpy as np

import tapegrad as tg
from tapegrad import nn, optim

LENGTH, BATCH = 32, 12


def batch(text, rng):
    """Random parts of the text, and the same parts one byte further on."""
    starts = rng.integers(0, len(text) - LENGTH - 1, BATCH)
    parts = np.stack([text[i : i + LENGTH + 1] for i in starts])
    return tg.tensor(parts[:, :-1]), tg.tensor(parts[:, 1:])


def main():
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    source = pathlib.Path(__file__).read_bytes()
    alphabet = sorted(set(source))
    text = np.array([alphabet.index(byte) for byte in source])
    rng = np.random.default_rng(0)

    with tg.Context(seed=1, threads=2):
        model = nn.GPT(arch='gpt2', vocab=len(alphabet), layers=2, heads=4, hidden=48, positions=LENGTH)
        print(f'{sum(p.size for p in model.parameters()):,} parameters, {len(text):,} bytes')
        schedule = optim.Schedule(6e-3, min_lr=6e-4, warmup=20, steps=steps, decay='cosine')
        opt = optim.AdamW(model, weight_decay=0.1, schedule=schedule)
        opt.no_decay_1d()
        opt.max_norm = 1
        ema = optim.EMA(model, decay=0.9)
        for step in range(1, steps + 1):
            loss = model.loss(*batch(text, rng))
            loss.backward()
            opt.step()
            opt.zero_grad()
            ema.update()
            if step % 50 == 0:
                print(f'step {step}: loss {loss.item():.2f}')
        start = b'from tapegrad import '
        with ema.applied():
            tokens = model.generate([[alphabet.index(byte) for byte in start]], LENGTH - len(start))[0]
        print(bytes(alphabet[token] for token in tokens).decode())
        return 0 if loss.item() < 2.5 else 1


if __name__ == '__main__':
    sys.exit(main())
