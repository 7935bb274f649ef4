"""Traces a graph of torch.compile to a graph of core ATen ops without views of views and without writes.

The result, a Trace, is what program.py turns into calls of Tapegrad. Everything that PyTorch alone knows is settled
here: decomposition, functionalization, the shapes and dtypes of every value (node.meta["val"]), and the parts of the
graph that depend on no input, which PyTorch computes once.
"""

import contextlib
import dataclasses

import torch
from torch._decomp import core_aten_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

aten = torch.ops.aten

# Core ATen has a decomposition of these ops, but Tapegrad has an op that does the same in one pass, or the derivative
# of the decomposition differs from PyTorch's: that of a norm or of sinc is NaN at 0.
KEPT = (
    aten.elu,
    aten.glu,
    aten.huber_loss,
    aten.leaky_relu,
    aten.lerp,
    aten.linalg_vector_norm,
    aten.logsumexp,
    aten.masked_fill,
    aten.mse_loss,
    aten.nll_loss_forward,
    aten.silu,
    aten.sinc,
    aten.smooth_l1_loss,
    aten.softplus,
    aten.stack,
    aten.std,
    aten.tril,
    aten.triu,
    aten._fused_rms_norm,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten.baddbmm,
    aten.flip,
    aten.roll,
    aten.square,
    aten.binary_cross_entropy_with_logits,
    aten.split,
    aten.cumprod,
    aten.log1p,
    aten.expm1,
    aten.hardtanh,
    aten.hardswish,
    aten.hardsigmoid,
    aten.mish,
    aten.grid_sampler_2d,
    aten._adaptive_avg_pool2d,
    aten._adaptive_avg_pool3d,
    aten.masked_scatter,
    aten.reflection_pad1d,
    aten.reflection_pad2d,
    aten.reflection_pad3d,
    aten.replication_pad1d,
    aten.replication_pad2d,
    aten.replication_pad3d,
    aten._embedding_bag,
    aten.scatter_reduce,
    aten.cummax,
    aten.cummin,
)


@dataclasses.dataclass
class Trace:
    """A traced graph. Its placeholders are the tensors of the call, its outputs `count` results and then the new
    values of the inputs `written`. `spec` puts the results back into the structure that the graph returned."""

    module: torch.fx.GraphModule  # whose attributes are the constants of the graph
    count: int
    written: list  # positions of the inputs that the graph writes to
    spec: object

    def drop_unused_inputs(self):
        """Removes the placeholders that no node reads, so that they get no gradient, as in PyTorch, and not zeros.
        Returns the positions of the others."""
        inputs = [n for n in self.module.graph.nodes if n.op == 'placeholder']
        used = [i for i, n in enumerate(inputs) if n.users]
        for n in inputs:
            if not n.users:
                self.module.graph.erase_node(n)
        return used


def trace(module, args):
    """Returns the Trace of module(*args). args are tensors and numbers; the numbers become constants."""
    found = {}

    def call(*tensors):
        with FunctionalTensorMode():
            inputs = [FunctionalTensor.to_functional(x) for x in tensors]
            given = iter(inputs)
            results = module(*(next(given) if isinstance(a, torch.Tensor) else a for a in args))
        flat, found['spec'] = tree_flatten(results)
        found['count'] = len(flat)
        found['written'] = [i for i, x in enumerate(inputs) if torch._functionalize_has_data_mutation(x.elem)]
        return [_plain(x) for x in flat + [inputs[i] for i in found['written']]]

    with _tracing(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(a.detach()) for a in args if isinstance(a, torch.Tensor)]
        traced = make_fx(call, decomposition_table=_decompositions(), _allow_non_fake_inputs=True)(*fakes)
    _drop_layouts(traced.graph)
    _settle_layouts(traced.graph)
    traced.graph.eliminate_dead_code()
    _fold(traced)
    return Trace(traced, **found)


@contextlib.contextmanager
def _tracing():
    """PyTorch in the state in which it traces: without modes that watch the calls of ops."""
    with _disable_current_modes(), torch.no_grad(), enable_python_dispatcher():
        yield


def _plain(x):
    """The value of a functional tensor after all writes to it."""
    if not isinstance(x, FunctionalTensor):
        return x
    torch._sync(x)
    return torch._from_functional_tensor(x.elem)


def restore(trace_, flat):
    """Returns the flat results in the structure that the graph returned."""
    return tree_unflatten(list(flat), trace_.spec)


def _decompositions():
    table = dict(core_aten_decompositions())
    for packet in KEPT:
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    return table


def _drop_layouts(graph):
    """Removes calls of as_strided that give a tensor the strides that it has, but for dims of size 1."""
    for node in graph.nodes:
        if node.target is aten.as_strided.default and _layout(node.args[0].meta['val']) == _layout(node.meta['val']):
            node.replace_all_uses_with(node.args[0])


def _layout(x):
    return x.shape, x.storage_offset(), [stride for size, stride in zip(x.shape, x.stride()) if size != 1]


def _settle_layouts(graph):
    """Makes each as_strided read a tensor whose elements, in row-major order, are those of PyTorch's storage.
    Tapegrad's tensors may have other strides."""
    for node in graph.find_nodes(op='call_function', target=aten.as_strided.default):
        x, size, stride, *offset = node.args
        whole, offset = _whole(x), offset[0] if offset and offset[0] is not None else x.meta['val'].storage_offset()
        value = whole.meta['val']
        order = sorted(range(value.ndim), key=value.stride, reverse=True)
        if value.storage_offset() or not value.permute(order).is_contiguous():
            raise NotImplementedError('as_strided reads a part of a larger tensor; pass x.contiguous() instead of x')
        with graph.inserting_before(node):
            rows = graph.call_function(aten.permute.default, (whole, order))
        rows.meta['val'] = value.permute(order)
        node.args = rows, size, stride, offset


def _whole(node):
    """The tensor of which a node is a view, or a view of a view, and so on."""
    storage = node.meta['val'].untyped_storage()._cdata
    while node.op == 'call_function' and node.all_input_nodes:
        source = node.all_input_nodes[0]
        value = source.meta.get('val')
        if not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata != storage:
            break
        node = source
    return node


def _fold(module):
    """Computes with PyTorch, once, what depends on no input and is not random. Its tensors become attributes of the
    module."""
    graph, values = module.graph, {}
    for node in list(graph.nodes):
        if node.op == 'get_attr':
            values[node] = getattr(module, node.target)
        elif _is_constant(node, values):
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    for node, value in values.items():
        if node.op != 'get_attr' and isinstance(value, torch.Tensor) and any(u not in values for u in node.users):
            _replace(module, node, value)
    graph.eliminate_dead_code()


def _is_constant(node, values):
    """Whether a node is a call of known values, with the same result at each call."""
    if node.op != 'call_function' or torch.Tag.nondeterministic_seeded in getattr(node.target, 'tags', ()):
        return False
    return all(n in values for n in node.all_input_nodes)


def _replace(module, node, value):
    """Makes a tensor an attribute of the module, which the users of the node then read."""
    name = f'_folded_{node.name}'
    module.register_buffer(name, value)
    with module.graph.inserting_before(node):
        constant = module.graph.create_node('get_attr', name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)
