"""Graphs as lists of steps, and how they run.

Compiling a graph looks up every node and notes what has no mapping, so that nothing runs if something is missing. An op
without a mapping whose definition is a function of other ops (onnx has it in the op's schema, or the model brings it)
is compiled as a graph of its own."""

import onnx

from . import registry
from .dtypes import FLOATS, from_proto, missing, missing_of_type
from .node import Node, schema_of


class Rules:
    """What all graphs of a model share: versions of domains, functions, types by name, and notes of what is missing."""

    def __init__(self, opsets, functions, types, missing, functions_open=()):
        self.opsets = opsets
        self.functions, self.types, self.missing, self.functions_open = functions, types, missing, functions_open

    def inside(self, function, types):
        """The rules within a function, which may have opsets of its own."""
        opsets = {**self.opsets, **opsets_of(function)}
        return Rules(
            opsets, self.functions, types, self.missing, (*self.functions_open, (function.domain, function.name))
        )


def opsets_of(proto):
    """The versions of domains that a model or a function uses."""
    return {'' if o.domain == 'ai.onnx' else o.domain: o.version for o in proto.opset_import}


class Step:
    """A call of a function with values of the graph. ends has the names of values that no later step uses."""

    def __init__(self, node, call):
        self.node, self.call, self.ends = node, call, ()

    def run(self, scope):
        inputs = [scope[name] if name else None for name in self.node.inputs]
        try:
            results = self.call(scope, inputs)
        except Exception as error:
            _note(self.node, error)
            raise
        for name, value in zip(self.node.outputs, results if isinstance(results, tuple) else (results,)):
            if name:
                scope[name] = value
        for name in self.ends:
            scope.pop(name, None)


def _note(node, error):
    """Lets the message of an error name the innermost node."""
    if not hasattr(error, 'node'):
        error.node = node.label
        error.args = (f'{error} (at {node.label})', *error.args[1:])


class Graph:
    """A compiled graph: names of inputs and outputs, constants by name, and steps."""

    def __init__(self, rules, inputs, outputs, nodes, initializers=(), attributes=None):
        self.inputs, self.outputs = inputs, outputs
        self.constants = {}
        for proto in initializers:
            self._add_constant(rules, proto)
        self.steps = [step for proto in nodes for step in self._compiled(rules, proto, attributes or {})]
        self.free = self._mark_ends()

    def _add_constant(self, rules, proto):
        lack = missing(proto.data_type)
        if lack:
            rules.missing.append(lack)
        else:
            self.constants[proto.name] = from_proto(proto)

    def _compiled(self, rules, proto, attributes):
        own = list(_resolved(proto.attribute, attributes))
        graphs = {a.name: a.g for a in own if a.type == onnx.AttributeProto.GRAPH}
        domain = '' if proto.domain == 'ai.onnx' else proto.domain
        schema = schema_of(domain, proto.op_type, rules.opsets.get(domain, 1))
        node = Node(proto, schema, [a for a in own if a.name not in graphs])
        rules.missing.extend(node.lacks)
        for name, graph in graphs.items():
            setattr(node, name, of_graph(rules, graph, attributes))
        node.used = {*filter(None, node.inputs), *(n for name in graphs for n in getattr(node, name).free)}
        if (domain, node.op) == (registry.TRAINING, 'Gradient'):
            node.used |= {node.y, *node.xs}  # values that it names without having them as inputs
        call = self._call_of(rules, proto, domain, schema, node, own)
        return [Step(node, call)] if call else []

    def _call_of(self, rules, proto, domain, schema, node, attributes):
        function = rules.functions.get((domain, proto.op_type))
        mapping = registry.find(domain, proto.op_type)
        lack = None if function or not mapping else mapping.lacks(node)
        if mapping and not function and not lack:
            return _mapped(mapping, node)
        function = function or _function_of(rules, schema, proto)
        if function is None or (function.domain, function.name) in rules.functions_open:
            rules.missing.append(lack or (f'{domain}:{proto.op_type}' if domain else proto.op_type))
            return None
        return _called(of_function(rules, function, attributes, schema, proto), node)

    def _mark_ends(self):
        """Lets every step end the values that are used there last, and returns the names that come from outside."""
        made = {name for step in self.steps for name in step.node.outputs if name}
        later = {*filter(None, self.outputs)}
        for step in reversed(self.steps):
            names = step.node.used | {name for name in step.node.outputs if name}
            step.ends = [name for name in names if name in made and name not in later]
            later |= names
        return later - made - {*self.inputs} - {*self.constants}

    def run(self, values, around=None):
        """The outputs, as a list, for the values of inputs by name. around has the values of the graph around this
        one."""
        scope = {**(around or {}), **self.constants, **values}
        for step in self.steps:
            step.run(scope)
        return [scope[name] if name else None for name in self.outputs]


def of_graph(rules, proto, attributes=None):
    for value in [*proto.input, *proto.output, *proto.value_info]:
        rules.missing.extend(missing_of_type(value.type))
    names = {i.name for i in proto.initializer}
    for sparse in proto.sparse_initializer:
        rules.missing.append('sparse_initializer')
    return Graph(
        rules,
        [i.name for i in proto.input if i.name not in names],
        [o.name for o in proto.output],
        proto.node,
        proto.initializer,
        attributes,
    )


def of_function(rules, function, attributes, schema, proto):
    """The graph of a function with the attributes of the node that calls it, completed with their defaults."""
    given = {a.name: a for a in function.attribute_proto}
    given.update(
        {name: a.default_value for name, a in (schema.attributes.items() if schema else ()) if a.default_value.name}
    )
    given.update({a.name: a for a in attributes})
    types = {inner: rules.types[outer] for inner, outer in zip(function.input, proto.input) if outer in rules.types}
    wanted = [inner if outer else '' for inner, outer in zip(function.output, proto.output)]
    return Graph(rules.inside(function, types), list(function.input), wanted, function.node, (), given)


def _resolved(attributes, given):
    """Attributes of a node in a function, with those of the call in place of references to them."""
    for attribute in attributes:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in given:
            copy = onnx.AttributeProto()
            copy.CopyFrom(given[attribute.ref_attr_name])
            copy.name = attribute.name
            yield copy


def _function_of(rules, schema, proto):
    """The function that defines an op, by its schema; None if there is none."""
    if schema is None:
        return None
    if schema.has_function:
        return schema.function_body
    types = [rules.types[name] if name in rules.types else onnx.TypeProto() for name in proto.input]
    if schema.has_context_dependent_function:
        body = schema.get_context_dependent_function(proto.SerializeToString(), [t.SerializeToString() for t in types])
        if body:
            function = onnx.FunctionProto()
            function.ParseFromString(body)
            return function
    return None


def _mapped(mapping, node):
    function = mapping.function
    if mapping.scope:
        return lambda scope, inputs: function(node, scope, *inputs)
    return lambda scope, inputs: function(node, *inputs)


def _called(graph, node):
    def call(scope, inputs):
        values = {**dict.fromkeys(graph.inputs), **dict(zip(graph.inputs, inputs))}
        return tuple(graph.run(values))

    return call


def float_constants(graph):
    """The float constants of a graph and of the graphs within it, by name."""
    found = {name: x for name, x in graph.constants.items() if x.dtype in FLOATS}
    for step in graph.steps:
        for value in vars(step.node).values():
            if isinstance(value, Graph):
                found.update(float_constants(value))
    return found
