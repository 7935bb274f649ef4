"""A program of Tapegrad as a function of JAX."""

import functools

import jax
import numpy
from jax.custom_derivatives import SymbolicZero

from . import run
from .program import Gradient, Program


def function(f):
    """f, a function of Tensors that returns Tensors, as a function of JAX's arrays.

    Arguments and results may be pytrees of them. Both libraries see the same bytes. jax.grad and jax.vjp call
    Tapegrad's backward, and differentiate again as often as the ops of f can. Under jit and vmap f is called back while
    the compiled program runs, and so it has to depend on its arguments alone. What is no array is passed on."""

    @functools.wraps(f)
    def call(*args, **named):
        leaves, spec = jax.tree_util.tree_flatten((args, named))
        places = [i for i, a in enumerate(leaves) if isinstance(a, (jax.Array, numpy.ndarray, numpy.generic))]
        program = Program(f, spec, leaves, places)
        results = _differentiable(program)(*[jax.numpy.asarray(leaves[i]) for i in places])
        return jax.tree_util.tree_unflatten(program.results, results)

    return call


@jax.tree_util.register_pytree_node_class
class _Kept:
    """What backward needs: the arrays and, as constants for JAX, a pair. The pair has the positions of the inputs that
    need a gradient, and the recorded run, or None if no run was recorded."""

    def __init__(self, constants, arrays):
        self.constants, self.arrays = constants, arrays

    def tree_flatten(self):
        return self.arrays, self.constants

    tree_unflatten = classmethod(lambda kind, constants, arrays: kind(constants, list(arrays)))


def _differentiable(program):
    """A program as a function of arrays with a derivative, which is a program too."""

    @jax.custom_vjp
    def call(*arrays):
        return _computed(program, arrays)

    def forward(*primals):
        arrays = [p.value for p in primals]
        needed = tuple(i for i, p in enumerate(primals) if p.perturbed)
        known = run.Run(program, arrays, needed) if needed and not _traced(arrays) else None
        return known.arrays if known else call(*arrays), _Kept((needed, known), arrays)

    def backward(kept, seeds):
        needed, known = kept.constants
        seeded = tuple(i for i, s in enumerate(seeds) if not _is_zero(s))
        grads = [None] * len(kept.arrays)
        if needed and seeded:
            seeds = [seeds[i] for i in seeded]
            if known and not _traced(seeds):
                found = known.gradients(seeded, seeds)
            else:
                found = _differentiable(Gradient(program, needed, seeded))(*kept.arrays, *seeds)
            for i, g in zip(needed, found):
                grads[i] = g
        return tuple(grads)

    call.defvjp(forward, backward, symbolic_zeros=True)
    return call


def _computed(program, arrays):
    if not _traced(arrays):
        return run.results(program, arrays)
    described = run.shapes(program, arrays)
    return jax.pure_callback(lambda *given: run.results(program, given), described, *arrays, vmap_method='sequential')


def _traced(arrays):
    return any(isinstance(x, jax.core.Tracer) for x in arrays)


def _is_zero(seed):
    """Whether an output has no gradient, because no result depends on it or because it is an integer."""
    return isinstance(seed, SymbolicZero) or seed.dtype == jax.dtypes.float0
