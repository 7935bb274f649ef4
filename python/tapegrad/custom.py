"""Ops in Python, and the check of gradients against differences (op.h, gradcheck.h).

@tapegrad.custom_op
def cube(call, x):
    return x ** 3

@cube.vjp
def _(call, gradient):
    x, = call.inputs
    return 3 * x ** 2 * gradient
"""

import collections
import contextlib
import inspect

from ._capi import ffi, lib
from .callbacks import Function, forget, found, guarded, on_tape, register
from .context import context
from .derivatives import _handles, _list, _results, _tape
from .errors import fail, text, using
from .objects import note_site
from .structs import options
from .tensor import Tensor, _context_of, like, tensor_for, wrap, zeros
from .values import FLOATS, INTEGERS

NULL = ffi.NULL
_ALL = 0xFFFFFFFF  # every tensor, in a bit mask of tg_op
_tables = []  # the structs of all ops, which live as long as the process, because nodes refer to them


class Call:
    """One call of an op in Python, as its functions see it. forward may set attributes of its own for later."""

    def __init__(self, op, world, arguments):
        self._op, self._world = op, world
        self.arguments = arguments  # the named arguments of the call
        self.inputs = self.outputs = ()
        self.needs = ()  # for each input, whether it needs a gradient; set before backward or vjp is called

    @contextlib.contextmanager
    def _of_node(self, tape, inputs, outputs):
        """Sets the tensors for a function of a derivative, which must not keep them."""
        self.inputs, self.outputs = _lent(self._world, tape, inputs), _lent(self._world, tape, outputs)
        try:
            yield
        finally:
            self.inputs = self.outputs = ()


class CustomOp:
    """An op in Python. forward(call, *inputs, **arguments) computes the outputs, tensors or arrays, from tensors; an
    absent input is None. Numbers among inputs and outputs get the dtype of the first tensor of floats among the inputs,
    else of the first of integers, else of the first. What forward records is not kept for backward. Gradients are given
    by one or more of

    - vjp(call, *gradients), which records ops, and so can be differentiated again;
    - backward(call, *gradients), which may compute anything, also with NumPy, and is used where no second derivative
      is asked for;
    - jvp(call, *tangents), for forward mode.

    vjp and backward return the gradients of the inputs, and jvp the tangents of the outputs. None is zero."""

    def __init__(self, forward):
        self.__name__, self.__doc__, self.__module__ = forward.__name__, forward.__doc__, forward.__module__
        self.__signature__ = inspect.signature(forward)
        self._forward, self._backward, self._vjp, self._jvp = forward, None, None, None
        name, formula = (ffi.new('char[]', s.encode()) for s in (self.__name__, f'{self.__name__}(..), in Python'))
        self._table = ffi.new(
            'tg_op *',
            {
                'size': ffi.sizeof('tg_op'),
                'name': name,
                'formula': formula,
                'n_in': -1,
                'n_out': -1,
                'params_size': ffi.sizeof('void *'),
                'saves_in': _ALL,
                'saves_out': _ALL,
                'optional': _ALL,
                'family': lib.TG_FAMILY_CUSTOM,
                'infer': lib.tgpy_on_infer,
                'forward': lib.tgpy_on_forward,
            },
        )
        _tables.append((self._table, name, formula))

    def vjp(self, fn):
        self._vjp = fn
        self._table.vjp, self._table.backward = lib.tgpy_on_vjp, lib.tgpy_on_backward
        return fn

    def backward(self, fn):
        self._backward = fn
        self._table.backward = lib.tgpy_on_backward
        return fn

    def jvp(self, fn):
        self._jvp = fn
        self._table.jvp = lib.tgpy_on_jvp
        return fn

    def __call__(self, *inputs, **arguments):
        tensors = [x for x in inputs if isinstance(x, Tensor)]
        if not tensors:
            raise TypeError(f'{self.__name__} needs at least one tensor')
        first = min(tensors, key=lambda x: 0 if x.dtype in FLOATS else 1 if x.dtype in INTEGERS else 2)
        inputs = [x if x is None else like(x, first) for x in inputs]
        if any(x is NotImplemented for x in inputs):
            raise TypeError(f'an input of {self.__name__} must be a tensor, a number or an array')
        world = first._world
        call = Call(self, world, arguments)
        call._results = self._computed(world, call, inputs, first)
        note_site(1)
        _, tape, t = _tape([x for x in inputs if x is not None])
        user = register(call)
        n = len(call._results)
        out = ffi.new('tg_tensor *[]', max(1, n))
        with using(world):
            failed = lib.tg_apply(
                t,
                self._table,
                ffi.new('void *[1]', [user]),
                _handles(inputs),
                len(inputs),
                out,
                n,
                user,
                lib.tgpy_on_function_free,
                NULL,
            )
        call._results = None
        if failed:
            fail(world)
        results = _results(world, tape, out, n, inputs)
        return results[0] if n == 1 else tuple(results)

    def _computed(self, world, call, inputs, first):
        """What forward returns, as tensors."""
        before = lib.tgpy_set_grad(world, False)
        try:
            y = self._forward(call, *inputs, **call.arguments)
        finally:
            lib.tgpy_set_grad(world, before)
        y = [like(part, first) for part in (y if isinstance(y, (tuple, list)) else (y,))]
        for part in y:
            if not isinstance(part, Tensor):
                raise TypeError(f'{self.__name__} returned a {type(part).__name__}, but must return tensors or arrays')
            part._live()  # raises an error if it has ended
            if part.device != first.device:
                raise ValueError(
                    f'{self.__name__} returned a tensor on {part.device}, but its inputs are on {first.device}'
                )
        return y

    def __reduce__(self):
        return self.__name__  # as a function, it is found by its name

    def __repr__(self):
        return f'<custom op {self.__name__}{self.__signature__}>'


def custom_op(forward):
    """Makes an op of a Python function: see CustomOp."""
    return CustomOp(forward)


def _lent(world, tape, handles):
    return tuple(None if x == NULL else _readable(world, tape, x) for x in handles)


def _readable(world, tape, x):
    """A Tensor of a handle that a callback was given. Of an input that has ended since the call, such as one that the
    call made of a number, it is a copy: the node still has its bytes."""
    if lib.tg_is_alive(x) or not lib.tg_array_of(x).contiguous:
        return wrap(lib.tgpy_box_new(world, tape, x, True))
    ctx, array = lib.tgpy_ctx(world), lib.tg_array_of(x)
    shape = lib.tg_shape_make(array.ndim, array.shape if array.ndim else NULL)
    box = lib.tgpy_box_new(world, NULL, lib.tg_zeros(ctx, array.dtype, shape), False)
    y = wrap(box) if box else fail(world)
    _copy_bytes(world, ctx, y._live(), x)
    return y


def _called(params):
    """The Call of a copy of the params that tg_apply was given."""
    return found(ffi.cast('void *const *', params)[0])


def _returned(values, like_these, what):
    """What a function of a derivative has returned, one tensor or None for each of these tensors."""
    values = list(values) if isinstance(values, (tuple, list)) else [values]
    if len(values) != len(like_these):
        raise ValueError(f'{what} returned {len(values)} tensors, but {len(like_these)} were expected')
    tensors = [None if v is None or x is None else like(v, x) for v, x in zip(values, like_these)]
    for i, (v, x) in enumerate(zip(tensors, like_these)):
        if v is NotImplemented:
            raise TypeError(f'number {i} of what {what} returned is a {type(values[i]).__name__}; expected a tensor')
        if v is not None and v.shape != x.shape:
            raise ValueError(f'number {i} of what {what} returned has the shape {v.shape}, but must have {x.shape}')
    return tensors


def _give(tensors, out):
    """Hands results of a callback over to the library."""
    for i, x in enumerate(tensors):
        if x is not None:
            lib.tgpy_box_give(x._box)
        out[i] = NULL if x is None else x._handle()


# ---- Callbacks ----


@ffi.def_extern()
def tgpy_on_infer(c):
    results = _called(c.params)._results
    status = lib.tg_call_outputs(c, len(results))
    for i, y in enumerate(results):
        x = y._live()
        shape = [lib.tg_dim(x, d) for d in range(lib.tg_ndim(x))]
        status = status or lib.tg_call_out(c, i, lib.tg_dtype_of(x), len(shape), shape)
    return status


@ffi.def_extern()
def tgpy_on_forward(c):
    call = _called(c.params)

    def run():
        for i, y in enumerate(call._results):
            _copy(call._world, c, c.out[i], y)

    return guarded(call._world, run)


def _copy(world, c, into, x):
    """Copies the values of x into a contiguous tensor of the call with the same shape and dtype."""
    x = x if x.is_contiguous else x.contiguous()
    _copy_bytes(world, c.ctx, into, x._live())


def _copy_bytes(world, ctx, into, x):
    source, target = lib.tg_array_of(x), lib.tg_array_of(into)
    n = target.numel * lib.tg_dtype_bits(target.dtype) // 8
    if n and lib.tg_ctx_ops(ctx).copy(ctx, target.data, source.data, n, lib.TG_COPY_DEVICE):
        fail(world)


@ffi.def_extern()
def tgpy_on_backward(c):
    call = _called(c.params)
    op, world = call._op, call._world

    def run(tape):
        call.needs = tuple(c.gin_mode[i] != lib.TG_GRAD_NONE for i in range(c.n_in))
        with call._of_node(tape, c.input[0 : c.n_in], c.out[0 : c.n_out]):
            gradients = (op._backward or op._vjp)(call, *_lent(world, tape, c.gout[0 : c.n_out]))
            for i, g in enumerate(_returned(gradients, call.inputs, f'the backward of {op.__name__}')):
                if call.needs[i]:
                    _put(call, tape, c, i, g)

    before = lib.tg_is_grad_on(c.tape)
    lib.tg_tape_set_grad_mode(c.tape, False)
    status = guarded(world, lambda: on_tape(world, c.tape, run))
    lib.tg_tape_set_grad_mode(c.tape, before)
    return status


def _put(call, tape, c, i, g):
    """Writes the gradient of input i, or adds it, as the library asks for."""
    x, add = call.inputs[i], c.gin_mode[i] == lib.TG_GRAD_ADD
    if g is None and add:
        return
    if g is None:
        g = zeros(x.shape, dtype=x.dtype, context=_context_of(x))
    elif g._world != call._world and (add or g.device != x.device):
        g = tensor_for(x, g)
    if add:
        g = _lent(call._world, tape, [c.gin[i]])[0] + g.cast(x.dtype)
    _copy(call._world, c, c.gin[i], g.cast(x.dtype))


@ffi.def_extern()
def tgpy_on_vjp(t, node, gout, gin):
    def choose(call):
        call.needs = tuple(x is not None and x.requires_grad for x in call.inputs)
        return call._op._vjp, call.inputs

    return _recorded(t, node, gout, lib.tg_node_outputs(node), gin, choose)


@ffi.def_extern()
def tgpy_on_jvp(t, node, din, dout):
    n = lib.tg_node_inputs(node)
    return _recorded(t, node, din, n, dout, lambda call: (call._op._jvp, call.outputs))


def _recorded(t, node, given, n, out, choose):
    """Runs a vjp or jvp, which records ops on the tape, with n given tensors. choose(call) returns the function, and
    the tensors whose shapes its results have."""
    call = _called(lib.tg_node_params(node))

    def run(tape):
        inputs = [lib.tg_node_input(node, i) for i in range(lib.tg_node_inputs(node))]
        outputs = [lib.tg_node_output(node, i) for i in range(lib.tg_node_outputs(node))]
        with call._of_node(tape, inputs, outputs):
            function, like_these = choose(call)
            values = function(call, *_lent(call._world, tape, given[0:n]))
            _give(_returned(values, like_these, f'the derivative of {call._op.__name__}'), out)

    return guarded(call._world, lambda: on_tape(call._world, t, run))


# ---- Checks ----

Gradcheck = collections.namedtuple('Gradcheck', 'checked kinks unsure worst inconclusive report')
Gradcheck.__doc__ = 'The result of a check that has passed (tg_gradcheck_info).'


def gradcheck(fn, inputs, **fields):
    """Checks the gradients of fn(*inputs) against differences, with respect to every float64 input that requires one.
    The options are those of tg_gradcheck_opts, such as second_order, projections, atol and rtol. Raises GradientError,
    whose message is a report, if a gradient is wrong."""
    inputs = _list(inputs)
    world = inputs[0]._world if inputs else context()._world
    n_out = len(_list(fn(*inputs)))
    tape = lib.tgpy_tape_new(world)
    if tape == NULL:
        fail(world)
    struct, info = options('tg_gradcheck_opts', fields), ffi.new('tg_gradcheck_info *')
    info.size = ffi.sizeof('tg_gradcheck_info')
    user = register(Function(world, fn))
    try:
        with using(world):
            if lib.tg_gradcheck(
                lib.tgpy_tape_of(tape), lib.tgpy_on_function, user, _handles(inputs), len(inputs), n_out, info, struct
            ):
                fail(world)
    finally:
        forget(user)
        lib.tgpy_tape_drop(tape)
    return Gradcheck(info.checked, info.kinks, info.unsure, info.worst, info.inconclusive, text(info.report))
