#!/usr/bin/env python3
"""Prints what PyTorch's GRU and LSTM compute for the inputs of tests/unit/test_recurrent.c: the numbers of its table."""

import math

import torch

torch.set_default_dtype(torch.float64)


def wave(shape, k):
    return torch.cos(0.3 * torch.arange(math.prod(shape)) + k).reshape(shape)


def show(name, numbers):
    print(f"{name}: {', '.join(f'{v:.15g}' for v in numbers)}")


for kind, n_states in ((torch.nn.GRU, 1), (torch.nn.LSTM, 2)):
    m = kind(3, 2, num_layers=2, bidirectional=True)
    with torch.no_grad():
        for k, p in enumerate(m.parameters()):
            p.copy_((0.5 * torch.sin(0.7 * torch.arange(p.numel()) + k)).reshape(p.shape))
    first = [wave((4, 2, 2), 2 + i) for i in range(n_states)]
    y, last = m(wave((3, 2, 3), 1), first[0] if n_states == 1 else tuple(first))
    last = [last] if n_states == 1 else list(last)
    loss = (y * wave(y.shape, 5)).sum() + sum((h * wave(h.shape, 6)).sum() for h in last)
    loss.backward()
    print(kind.__name__)
    show("loss", [loss])
    show("y", y.flatten())
    for h in last:
        show("state", h.flatten())
    show("gradients", [(p.grad * wave(p.shape, 7)).sum() for p in m.parameters()])
