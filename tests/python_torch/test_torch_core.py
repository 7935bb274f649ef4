"""Every differentiable op of core ATen, PyTorch's own list, is in the table or has a reason not to be."""

import torch

from tapegrad.torch.ops import TABLE

aten = torch.ops.aten

WITHOUT = {
    aten._fft_c2r.default: 'complex numbers',
    aten._fft_r2c.default: 'complex numbers',
    aten.native_dropout.default: 'random: PyTorch and Tapegrad have other generators',
    aten.nonzero.default: 'integers, whose number depends on data',
}


def core():
    """The overloads with PyTorch's tag "core"."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, name = name.partition('::')
        packet, _, overload = name.partition('.')
        op = getattr(getattr(aten, packet, None), overload or 'default', None) if namespace == 'aten' else None
        if op is not None and torch.Tag.core in op.tags:
            yield op


def is_differentiable(op):
    """Whether op may have a gradient: it makes tensors of tensors. Left out are those that write to their operands,
    which functionalization replaces, those that PyTorch itself composes of others, and those that are a backward, whose
    part Tapegrad's tape takes."""
    schema = op._schema
    takes, makes = (any('Tensor' in str(x.type) for x in part) for part in (schema.arguments, schema.returns))
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), 'CompositeImplicitAutograd')
    return takes and makes and not schema.is_mutable and not composed and not op._opname.endswith('_backward')


def test_core_has_the_size_that_pytorch_documents():
    assert len(set(core())) > 150
    assert {aten.convolution.default, aten.scatter_reduce.two, aten.as_strided.default} <= set(core())


def test_every_differentiable_op_is_mapped_or_has_a_reason():
    assert {op for op in core() if is_differentiable(op)} - set(TABLE) == set(WITHOUT)
