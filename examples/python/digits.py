"""Trains a convolutional network to read handwritten digits: the 1,797 images that scikit-learn ships."""

import sys

import numpy as np

import tapegrad as tg
from tapegrad import nn, ops, optim

try:
    from sklearn.datasets import load_digits
except ImportError:
    print('this example needs scikit-learn, whose data it reads')
    sys.exit(77)


class Block(nn.Module):
    """A convolution that keeps the size, with normalization and an activation."""

    def __init__(self, inputs, outputs):
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False, weight=nn.init.kaiming_normal())
        self.norm = nn.BatchNorm(outputs)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class Reader(nn.Module):
    """Images [n, 1, 8, 8] to scores of the ten digits [n, 10]."""

    def __init__(self):
        pool = nn.Function(ops.max_pool2d, h=2, w=2)
        self.features = nn.Sequential(Block(1, 16), pool, Block(16, 32), nn.Dropout(0.2))
        self.head = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        return self.head(self.features(x).reshape([x.shape[0], -1]))


def batches(n, size, rng):
    """The numbers 0 to n - 1 in random order, in parts."""
    order = rng.permutation(n)
    return (order[i : i + size] for i in range(0, n, size))


def main():
    data = load_digits()
    images, digits = np.float32(data.images[:, None] / 16), data.target
    train, test = slice(0, 1400), slice(1400, None)  # the test images are of other writers
    rng = np.random.default_rng(0)

    with tg.Context(seed=1, threads=2):
        model = Reader()
        print(model)
        epochs, size = 6, 50
        steps = epochs * 1400 // size
        schedule = optim.Schedule(3e-3, warmup=10, steps=steps, decay='cosine')
        opt = optim.AdamW(model, weight_decay=0.05, schedule=schedule)
        for epoch in range(epochs):
            for i in batches(1400, size, rng):
                loss = model(tg.tensor(images[train][i])).cross_entropy(target=tg.tensor(digits[train][i]))
                loss.backward()
                opt.step()
                opt.zero_grad()
            print(f'epoch {epoch + 1}: loss {loss.item():.3f}')
        model.eval()
        with tg.no_grad():
            guesses = model(tg.tensor(images[test])).argmax(dim=-1).numpy()
        accuracy = (guesses == digits[test]).mean()
    print(f'{100 * accuracy:.1f} % of the test images are read')
    return 0 if accuracy > 0.9 else 1


if __name__ == '__main__':
    sys.exit(main())
