"""Solves a differential equation with a network: a physics-informed net (Raissi, Perdikaris and Karniadakis, Journal of
Computational Physics 378, 2019).

The equation is the heat equation u_t = u_xx on 0 <= x <= pi with u = 0 at both ends and u = sin x at t = 0. Its exact
solution is exp(-t) sin x. The net knows the equation and the boundary only; its derivatives are taken by the tape, the
second one by differentiating the first."""

import math
import sys

import numpy as np

import tapegrad as tg
from tapegrad import nn, ops, optim


class Solution(nn.Module):
    """u(x, t) for points [n, 2]. The factors make the boundary values exact, whatever the net gives."""

    def __init__(self):
        self.net = nn.Sequential(nn.Linear(2, 24), ops.tanh, nn.Linear(24, 24), ops.tanh, nn.Linear(24, 1))

    def forward(self, points):
        x, t = points[:, :1], points[:, 1:]
        return x.sin() + t * x * (math.pi - x) * self.net(points)


def residual(u, points):
    """u_t - u_xx at the points."""
    first = tg.grad(u(points).sum(), points, create_graph=True)
    u_x, u_t = first[:, :1], first[:, 1:]
    u_xx = tg.grad(u_x.sum(), points, create_graph=True)[:, :1]
    return u_t - u_xx


def main():
    rng = np.random.default_rng(0)
    with tg.Context(dtype='f64', seed=1, threads=2):
        u = Solution()
        points = tg.tensor(rng.uniform([0, 0], [math.pi, 1], (200, 2)), requires_grad=True)
        opt = optim.LBFGS(u, iterations=20, evaluations=25)
        for step in range(8):
            loss = opt.step(lambda: (residual(u, points) ** 2).mean())
            print(f'step {step + 1}: mean square of the residual {loss:.1e}')

        x, t = np.meshgrid(np.linspace(0, math.pi, 21), np.linspace(0, 1, 11))
        with tg.no_grad():
            found = u(tg.tensor(np.stack([x.ravel(), t.ravel()], axis=1))).numpy().reshape(x.shape)
        error = np.abs(found - np.exp(-t) * np.sin(x)).max()
    print(f'the greatest difference from exp(-t) sin x: {error:.1e}')
    return 0 if error < 1e-2 else 1


if __name__ == '__main__':
    sys.exit(main())
