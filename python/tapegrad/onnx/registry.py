"""The table from ONNX ops to functions.

A function gets the node (node.py), whose members are the attributes, and the inputs; an absent input is None. It
returns a value, or a tuple with one value for each output. A value is a Tensor, a list (a sequence), or None (an empty
optional)."""

TABLE = {}
TRAINING = 'ai.onnx.preview.training'


class MissingOp(NotImplementedError):
    """The model needs ops or dtypes that have no mapping. names has them, such as 'DeformConv' or 'dtype int8'."""

    def __init__(self, names):
        self.names = sorted(set(names))
        super().__init__('the model needs what Tapegrad has no mapping for: ' + ', '.join(self.names))


class Mapping:
    """How an op is computed: by function, for nodes whose attributes have the allowed values."""

    def __init__(self, function, scope, allowed):
        self.function, self.scope, self.allowed = function, scope, allowed

    def lacks(self, node):
        """The attribute that has no mapping with its value, as "Resize with mode=cubic"; None if there is none."""
        for name, values in self.allowed.items():
            value = getattr(node, name, None)
            found = value if isinstance(value, list) else [value]
            if not all(v in values for v in found):
                return f'{node.op} with {name}={value}'
        return None


def op(*names, domain='', scope=False, **allowed):
    """Enters a function for ops of these names. With scope, the function also gets the values of the graph, by name,
    before its inputs. allowed has the values of attributes that the function knows; a node with others has no
    mapping."""

    def enter(function):
        for name in names:
            TABLE[domain, name] = Mapping(function, scope, allowed)
        return function

    return enter


def find(domain, name):
    return TABLE.get(('' if domain == 'ai.onnx' else domain, name))
