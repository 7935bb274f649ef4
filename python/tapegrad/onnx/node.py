"""Nodes of a graph: attributes as members, with the defaults of the version of the op."""

import onnx
from onnx import AttributeProto as A

from .dtypes import FIELDS, from_proto, missing


class Node:
    """A node. op is the name of its op, since the version of the op, inputs and outputs the names of values, n_out the
    number of outputs, label its name in messages, and lacks the dtypes that have no mapping. The other members are its
    attributes: numbers, text, lists, tensors, and graphs."""

    def __init__(self, proto, schema, attributes):
        self.op, self.since = proto.op_type, schema.since_version if schema else 1
        self.inputs, self.outputs, self.n_out = list(proto.input), list(proto.output), len(proto.output)
        self.label = f'node {proto.name or " ".join(self.outputs)}, {self.op}'
        self.lacks = []
        for name, default in schema.attributes.items() if schema else ():
            setattr(self, name, self._plain(default.default_value) if default.default_value.name else None)
        for attribute in attributes:
            setattr(self, attribute.name, self._plain(attribute))
            if attribute.name in FIELDS and attribute.type == A.INT and missing(attribute.i):
                self.lacks.append(missing(attribute.i))

    def _plain(self, attribute):
        value = onnx.helper.get_attribute_value(attribute)
        if attribute.type == A.STRING:
            return value.decode(errors='replace')
        if attribute.type == A.STRINGS:
            return [text.decode(errors='replace') for text in value]
        if attribute.type == A.TENSOR:
            return self._tensor(value)
        return list(value) if attribute.type in (A.INTS, A.FLOATS, A.GRAPHS) else value

    def _tensor(self, proto):
        lack = missing(proto.data_type)
        if lack:
            self.lacks.append(lack)
            return None
        return from_proto(proto)


def schema_of(domain, name, version):
    """The schema of an op in a version of its domain; None if onnx does not know it."""
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None
