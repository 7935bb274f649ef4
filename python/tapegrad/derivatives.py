"""Gradients and other derivatives of what tapes have recorded (backward.h, derivatives.h, recompute.h)."""

from ._capi import ffi, lib
from .callbacks import Function, register
from .context import context
from .errors import fail, using
from .objects import TensorBase, note_site
from .structs import options

NULL = ffi.NULL


def _list(x):
    return [x] if isinstance(x, TensorBase) else list(x)


def _handles(tensors):
    return ffi.new('tg_tensor *[]', [NULL if x is None else x._handle() for x in tensors] or 1)


def _boxes(tensors):
    return [NULL if x is None else x._box for x in tensors]


def _tape(tensors):
    """The world and the tape of a call on these tensors."""
    if not tensors:
        raise ValueError('at least one tensor is needed')
    world = tensors[0]._world
    tape = lib.tgpy_ready(world, _boxes(tensors), len(tensors))
    return (world, tape, lib.tgpy_tape_of(tape)) if tape != NULL else fail(world)


def _results(world, tape, handles, n, inputs):
    from .tensor import wrap

    out = ffi.new('tgpy_box *[]', max(1, n))
    lib.tgpy_results(world, tape, handles, n, _boxes(inputs), len(inputs), out)
    return [wrap(out[i]) for i in range(n)]


def backward(outputs, gradients=None, *, inputs=None, retain=False):
    """Adds the gradients of the outputs to those of the leaves that they depend on, or of `inputs` only. gradients are
    the gradients with which backward begins at each output; None: 1, for an output of one element. retain keeps what is
    saved, so that backward can run again."""
    outputs = _list(outputs)
    world, _, t = _tape(outputs)
    given = {'retain': retain}
    keep = []
    struct = options('tg_backward_opts', given)
    if gradients is not None:
        gradients = _list(gradients)
        _same_number('outputs', outputs, 'gradients', gradients)
        keep.append(_handles(gradients))
        struct.seeds = keep[-1]
    if inputs is not None:
        inputs = _list(inputs)
        keep.append(_handles(inputs))
        struct.inputs, struct.n_inputs = keep[-1], len(inputs)
    with using(world):
        if lib.tg_backward_with(t, _handles(outputs), len(outputs), struct):
            fail(world)


def grad(outputs, inputs, grad_outputs=None, *, retain=False, create_graph=False, allow_unused=False):
    """The gradients of the sum of the outputs with respect to the inputs, as a list; a single tensor if inputs is one.
    The accumulated gradients do not change. grad_outputs are the gradients of the outputs with which backward begins;
    None: 1, for outputs of one element. retain keeps what is saved, so that backward can run again. create_graph: the
    gradients can be differentiated again. allow_unused: an input on which no output depends gets zeros; else it is an
    error."""
    outputs, single = _list(outputs), isinstance(inputs, TensorBase)
    inputs = _list(inputs)
    world, tape, t = _tape(outputs)
    struct = options(
        'tg_grad_opts', {'retain': retain or create_graph, 'create_graph': create_graph, 'allow_unused': allow_unused}
    )
    if grad_outputs is not None:
        grad_outputs = _list(grad_outputs)
        _same_number('outputs', outputs, 'gradients of them', grad_outputs)
        seeds = _handles(grad_outputs)
        struct.seeds = seeds
    out = ffi.new('tg_tensor *[]', len(inputs))
    with using(world):
        if lib.tg_grad(t, _handles(outputs), len(outputs), _handles(inputs), len(inputs), out, struct):
            fail(world)
    grads = _results(world, tape, out, len(inputs), ())
    return grads[0] if single else grads


def jvp(outputs, inputs, tangents):
    """Forward mode: the tangents of the outputs for the tangents of the inputs, as a list; a single tensor if outputs
    is one. A tangent None is zero."""
    single, outputs = isinstance(outputs, TensorBase), _list(outputs)
    inputs, tangents = _list(inputs), _list(tangents)
    _same_number('inputs', inputs, 'tangents', tangents)
    world, tape, t = _tape(outputs)
    out = ffi.new('tg_tensor *[]', len(outputs))
    with using(world):
        if lib.tg_jvp(t, _handles(outputs), len(outputs), _handles(inputs), len(inputs), _handles(tangents), out):
            fail(world)
    results = _results(world, tape, out, len(outputs), ())
    return results[0] if single else results


def hvp(output, inputs, vectors):
    """The products of the Hessian of an output of one element with vectors: for each input, the derivative of its
    gradient along the vectors."""
    single = isinstance(inputs, TensorBase)
    inputs, vectors = _list(inputs), _list(vectors)
    _same_number('inputs', inputs, 'vectors', vectors)
    world, tape, t = _tape([output])
    out = ffi.new('tg_tensor *[]', len(inputs))
    with using(world):
        if lib.tg_hvp(t, output._handle(), _handles(inputs), len(inputs), _handles(vectors), out):
            fail(world)
    results = _results(world, tape, out, len(inputs), ())
    return results[0] if single else results


def _same_number(what, tensors, other, others):
    if len(tensors) != len(others):
        raise ValueError(f'there are {len(tensors)} {what}, but {len(others)} {other}; there must be one for each')


def recompute(fn, *inputs, outputs=1, name=None, keep_rng=False):
    """fn(*inputs), whose ops keep nothing for backward; fn runs again in backward (tg_recompute). outputs is the number
    of tensors that fn returns. name stands for fn in messages. In the second run random ops draw the same numbers
    again, unless keep_rng is True."""
    note_site(1)
    inputs = list(inputs)
    world = inputs[0]._world if inputs else context()._world
    tape = lib.tgpy_ready(world, _boxes(inputs), len(inputs))
    if tape == NULL:
        fail(world)
    struct = options('tg_recompute_opts', {'keep_rng': keep_rng, **({'name': name} if name else {})})
    struct.destroy = lib.tgpy_on_function_free
    out = ffi.new('tg_tensor *[]', max(1, outputs))
    state = register(Function(world, fn))
    with using(world):
        if lib.tg_recompute(
            lib.tgpy_tape_of(tape), lib.tgpy_on_function, state, _handles(inputs), len(inputs), out, outputs, struct
        ):
            fail(world)
    results = _results(world, tape, out, outputs, inputs)
    return results[0] if outputs == 1 else tuple(results)
