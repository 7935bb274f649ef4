"""Programs: functions of a list of Tensors, which run.py runs on JAX's arrays."""

import contextlib

import jax

import tapegrad as tg

from .arrays import narrowed


class Program:
    """f for the structure of one call. The arrays among the leaves of its arguments are inputs of the program; what
    else the arguments hold is passed on."""

    def __init__(self, f, spec, leaves, places):
        self.f, self.spec, self.places = f, spec, places
        self.leaves = [None if i in set(places) else a for i, a in enumerate(leaves)]
        self.results = None  # the structure of the results, known after a run

    @property
    def name(self):
        return getattr(self.f, '__name__', 'the function')

    def run(self, inputs, recorded):
        """The results for these Tensors, as a list. recorded: they can be differentiated."""
        leaves = list(self.leaves)
        for place, x in zip(self.places, inputs):
            leaves[place] = x
        args, named = jax.tree_util.tree_unflatten(self.spec, leaves)
        with contextlib.nullcontext() if recorded else tg.no_grad():
            results, self.results = jax.tree_util.tree_flatten(self.f(*args, **named))
            for y in results:
                if not isinstance(y, tg.Tensor):
                    kind = type(y).__name__
                    raise TypeError(f'{self.name} returned a result of type {kind}; expected Tensors')
            return [narrowed(y) for y in results]

    def shapes(self, arrays, context):
        """Descriptions of the results for arrays of these shapes and dtypes. context is of device meta."""
        with context, context.tape():
            inputs = [tg.zeros(x.shape, dtype=x.dtype.name) for x in arrays]
            try:
                results = self.run(inputs, False)
            except tg.DeviceError as error:
                error.args = (
                    f'{error}; under jit and vmap {self.name} is called once on tensors without values, for the shapes '
                    'of its results, and so it must not read any',
                )
                raise
            return [jax.ShapeDtypeStruct(y.shape, _NAMES[y.dtype]) for y in results]


_NAMES = {name: other for other, name in tg.values.OTHERS.items() if hasattr(jax.numpy, other)}
_NAMES['bool'] = 'bool'


class Gradient:
    """The gradients of a program as a program, of the inputs that are `needed`. Its own inputs are those of the program
    and then the gradients of the outputs `seeded`."""

    def __init__(self, program, needed, seeded):
        self.program, self.needed, self.seeded = program, needed, seeded

    def run(self, inputs, recorded):
        inputs, seeds = inputs[: -len(self.seeded)], inputs[-len(self.seeded) :]
        wanted = [inputs[i] for i in self.needed]
        for x in wanted:
            x.requires_grad = True
        outputs = self.program.run(inputs, True)
        return gradients([outputs[i] for i in self.seeded], wanted, seeds, create_graph=recorded)

    def shapes(self, arrays, context):
        return [jax.ShapeDtypeStruct(arrays[i].shape, arrays[i].dtype) for i in self.needed]


def gradients(outputs, inputs, seeds, **options):
    """The gradients of the inputs, for those of the outputs; zeros where there is none."""
    pairs = [(y, s) for y, s in zip(outputs, seeds) if y.requires_grad]
    grads = [None] * len(inputs)
    if pairs:
        grads = tg.grad([y for y, _ in pairs], inputs, [s for _, s in pairs], allow_unused=True, **options)
    return [tg.zeros(x.shape, dtype=x.dtype) if g is None else g for x, g in zip(inputs, grads)]
