"""Trains a classifier in JAX one of whose layers is a program of Tapegrad: attention of a point to learned places.

JAX differentiates and compiles the whole step; the layer's forward and backward run on Tapegrad, in the compiled step
too. The gradients are compared with those of the same layer in JAX."""

import sys

import jax
import jax.numpy as jnp

import tapegrad as tg
import tapegrad.jax


@tapegrad.jax.function
def attend(x, places, values):
    """The values [n, k] of the n places [n, 2], weighted by their distance from each point of x [b, 2]."""
    dot = x @ places.transpose(d0=0, d1=1)
    return tg.ops.softmax(2 * dot - (places**2).sum(1), dim=-1) @ values


def attend_in_jax(x, places, values):
    return jax.nn.softmax(2 * x @ places.T - (places**2).sum(1)) @ values


def loss_with(layer):
    def loss(parameters, x, classes):
        scores = layer(3 * x, parameters['places'], parameters['values']) @ parameters['out']
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), classes[:, None], 1).mean()

    return loss


def spirals(key, n):
    """Points of two spirals that wind around each other, and the number of the spiral."""
    turn, spread = jax.random.split(key)
    classes = jnp.arange(n) % 2
    angle = jnp.sqrt(jax.random.uniform(turn, (n,))) * 6
    radius = angle / 6
    x = radius[:, None] * jnp.stack([jnp.cos(angle + jnp.pi * classes), jnp.sin(angle + jnp.pi * classes)], 1)
    return x + 0.01 * jax.random.normal(spread, x.shape), classes


def main():
    keys = jax.random.split(jax.random.key(0), 4)
    x, classes = spirals(keys[0], 256)
    parameters = {
        'places': 2 * jax.random.normal(keys[1], (32, 2)),
        'values': jax.random.normal(keys[2], (32, 8)),
        'out': jax.random.normal(keys[3], (8, 2)) / 3,
    }
    ours, theirs = (jax.grad(loss_with(f))(parameters, x, classes) for f in (attend, attend_in_jax))
    difference = max(float(jnp.abs(ours[name] - theirs[name]).max()) for name in parameters)
    print(f'greatest difference of a gradient from JAX: {difference:.1e}')

    @jax.jit
    def step(parameters, moments):
        loss, grads = jax.value_and_grad(loss_with(attend))(parameters, x, classes)
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
        return jax.tree.map(lambda p, m: p - 0.1 * m, parameters, moments), moments, loss

    moments = jax.tree.map(jnp.zeros_like, parameters)
    for i in range(301):
        parameters, moments, loss = step(parameters, moments)
        if i % 100 == 0:
            print(f'step {i}: loss {loss:.3f}')
    return 0 if loss < 0.2 and difference < 1e-5 else 1


if __name__ == '__main__':
    sys.exit(main())
