"""Functions of JAX as ops of Tapegrad: JAX computes the results and, in backward, the gradients."""

import functools

import jax
import numpy

import tapegrad as tg
from tapegrad.values import FLOATS

from .arrays import given, taken


def op(f):
    """f, a function of JAX's arrays that returns one or a tuple of them, as a function of Tensors. f sees their bytes.
    Gradients flow through it, and can be differentiated again. Arguments that hold no tensors are passed on."""

    @functools.wraps(f)
    def call(*args, **named):
        leaves, spec = jax.tree_util.tree_flatten((args, named))
        places = [i for i, a in enumerate(leaves) if isinstance(a, tg.Tensor)]

        def of_arrays(*arrays):
            filled = list(leaves)
            for place, x in zip(places, arrays):
                filled[place] = x
            args, named = jax.tree_util.tree_unflatten(spec, filled)
            results = f(*args, **named)
            return tuple(map(jax.numpy.asarray, results if isinstance(results, (tuple, list)) else [results]))

        return _apply(*[leaves[i] for i in places], function=of_arrays)

    return call


@tg.custom_op
def _apply(call, *inputs, function):
    """function(*inputs), where JAX's function returns a tuple."""
    results, call.back = jax.vjp(function, *[given(x) for x in inputs])
    call.kinds = _kinds(results)
    return [taken(y) for y in results]


@_apply.backward
def _apply_backward(call, *seeds):
    grads = call.back(_filled(call.kinds, {i: given(s) for i, s in enumerate(seeds) if s is not None}))
    return [None if g.dtype == jax.dtypes.float0 else taken(g) for g in grads]


@_apply.vjp
def _apply_vjp(call, *seeds):
    """The gradients as results of an op of this kind."""
    function, kinds = call.arguments['function'], call.kinds
    floats = [i for i, x in enumerate(call.inputs) if x.dtype in FLOATS]
    seeded = [i for i, s in enumerate(seeds) if s is not None]

    def gradient(*arrays):
        inputs, given_seeds = arrays[: -len(seeded)], dict(zip(seeded, arrays[-len(seeded) :]))
        back = jax.vjp(function, *inputs)[1]
        grads = back(_filled(kinds, given_seeds))
        return tuple(grads[i] for i in floats)

    found = _apply(*call.inputs, *[seeds[i] for i in seeded], function=gradient)
    grads = [None] * len(call.inputs)
    for i, g in zip(floats, found if isinstance(found, tuple) else (found,)):
        grads[i] = g
    return grads


@_apply.jvp
def _apply_jvp(call, *tangents):
    function, n = call.arguments['function'], len(call.inputs)
    moved = [i for i, t in enumerate(tangents) if t is not None]

    def pushed(*arrays):
        given_tangents = dict(zip(moved, arrays[n:]))
        return jax.jvp(function, arrays[:n], _filled(_kinds(arrays[:n]), given_tangents))[1]

    return _apply(*call.inputs, *[tangents[i] for i in moved], function=pushed)


def _kinds(arrays):
    return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]


def _filled(kinds, known):
    """A derivative for each array of these kinds: zeros where none is known, and JAX's own zeros for integers."""
    return tuple(known[i] if i in known else _zeros(kind) for i, kind in enumerate(kinds))


def _zeros(kind):
    if jax.numpy.issubdtype(kind.dtype, jax.numpy.floating):
        return jax.numpy.zeros(kind.shape, kind.dtype)
    return numpy.zeros(kind.shape, jax.dtypes.float0)
