"""Functions of PyTorch as ops of Tapegrad: PyTorch computes the result and, in backward, the gradients."""

import functools

import torch

import tapegrad as tg
from tapegrad import ffi, lib
from tapegrad.callbacks import found, guarded, register
from tapegrad.errors import fail
from tapegrad.tensor import wrap

from .tensors import given, taken


def op(f):
    """f, a function of PyTorch tensors that returns one or a tuple of them, as a function of Tensors. Both see the same
    bytes. Gradients flow through it, once. Arguments that are no tensors are passed on."""

    @functools.wraps(f)
    def call(*args, **named):
        return apply(f, args, named)

    return call


class Foreign:
    """A result of PyTorch whose dtype Tapegrad lacks, such as a complex one, and the tensors that it depends on: pairs
    of a Tensor and the leaf of PyTorch's graph that has its bytes."""

    def __init__(self, value, sources):
        self.value, self.sources = value, sources


def apply(f, args, named):
    """f(*args, **named) for arguments that may hold Tensors and Foreigns, also in lists."""
    sources = {}

    def leaf(x):
        if isinstance(x, Foreign):
            sources.update(x.sources)
            return x.value
        y = given(x)
        if isinstance(x, tg.Tensor) and x.requires_grad:
            sources[id(y)] = x, y.requires_grad_()
        return y

    args, named = torch.utils._pytree.tree_map(leaf, (args, named))
    with torch.set_grad_enabled(bool(sources)):
        results = f(*args, **named)
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda y: _attached(y, sources), results)


def _attached(y, sources):
    """y as a Tensor, whose gradient PyTorch takes on to the inputs."""
    result = taken(y)
    if not isinstance(result, tg.Tensor):
        return Foreign(y, sources)
    if not y.requires_grad:
        return result
    inputs, leaves = zip(*sources.values())
    boxes = [result._box, *(x._box for x in inputs)]
    world = inputs[0]._world
    tape = lib.tgpy_ready(world, boxes, len(boxes))
    if tape == ffi.NULL:
        fail(world)
    out, box = ffi.new('tg_tensor *[1]'), ffi.new('tgpy_box *[1]')
    handles = ffi.new('tg_tensor *[]', [x._handle() for x in (result, *inputs)])
    state = register(_Backward(world, y, leaves))
    if lib.tg_apply(
        lib.tgpy_tape_of(tape), _OP, ffi.NULL, handles, len(handles), out, 1, state, lib.tgpy_on_function_free, ffi.NULL
    ):
        fail(world)
    lib.tgpy_results(world, tape, out, 1, boxes, len(boxes), box)
    return wrap(box[0])


class _Backward:
    """What backward needs of a call: PyTorch's graph between the leaves and y."""

    def __init__(self, world, y, leaves):
        self.world, self.y, self.leaves = world, y, leaves

    def run(self, call):
        """Writes the gradients of the inputs. Input 0 is the result itself, which needs none."""
        wanted = [i for i in range(1, call.n_in) if call.gin_mode[i] != lib.TG_GRAD_NONE]
        seed = self._torch(call.gout[0])
        grads = torch.autograd.grad(
            self.y, [self.leaves[i - 1] for i in wanted], seed, retain_graph=True, allow_unused=True
        )
        for i, grad in zip(wanted, grads):
            _write(self._torch(call.gin[i]), grad, call.gin_mode[i])

    def _torch(self, x):
        return given(wrap(lib.tgpy_box_new(self.world, ffi.NULL, x, True)))


def _write(into, grad, mode):
    if mode == lib.TG_GRAD_ADD:
        into.add_(0 if grad is None else grad)
    else:
        into.copy_(torch.zeros_like(into) if grad is None else grad)


@ffi.def_extern()
def tgpy_on_torch_infer(call):
    """The result exists already: the output is a view of input 0."""
    x = call.input[0]
    n = lib.tg_ndim(x)
    shape, stride = (ffi.new('int64_t[]', [f(x, i) for i in range(n)] or 1) for f in (lib.tg_dim, lib.tg_stride))
    return lib.tg_call_view(call, 0, 0, n, shape, stride)


@ffi.def_extern()
def tgpy_on_torch_backward(call):
    backward = found(call.state)
    return guarded(backward.world, lambda: backward.run(call))


_name, _formula = ffi.new('char[]', b'torch'), ffi.new('char[]', b'a function of PyTorch')
_OP = ffi.new(
    'tg_op *',
    {
        'size': ffi.sizeof('tg_op'),
        'name': _name,
        'formula': _formula,
        'n_in': -1,
        'n_out': 1,
        'family': lib.TG_FAMILY_CUSTOM,
        'infer': lib.tgpy_on_torch_infer,
        'backward': lib.tgpy_on_torch_backward,
    },
)
