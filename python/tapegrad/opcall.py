"""Calls of an op: arguments of Python, sorted and converted by what the library's table says of the op."""
import difflib
import inspect

from ._capi import ffi, lib
from .context import context
from .errors import fail, text
from .tensor import Tensor, like, note_site, tensor, wrap
from .values import dtype_value

NULL = ffi.NULL


class Op:  # an op of the library; its __doc__ is that of the op
    __slots__ = ('__name__', '__doc__', '_op', 'inputs', 'arguments', '_lists', '_fixed', '_many', '_bindings', '_required')

    def __init__(self, op):
        self.__name__, self._op = text(op.name), op
        names = text(op.inputs).split() if op.inputs else []
        self.inputs = tuple(n.removesuffix('..') for n in names)
        self._lists = frozenset(n.removesuffix('..') for n in names if n.endswith('..'))
        self._required = sum(not (op.optional >> i) & 1 for i in range(len(names)))
        fields = [op.fields[i] for i in range(op.n_fields)]
        self.arguments = {text(f.name): f for f in fields}
        outputs = text(op.outputs).split() if op.outputs else ['y']
        self._fixed = op.n_out if op.n_out > 0 else len(outputs)
        self._many = op.n_out < 0 and any(o.endswith('..') for o in outputs)
        self._bindings = {}
        self.__doc__ = _documentation(self)

    def __get__(self, x, owner=None):
        """A method of a tensor."""
        return self if x is None else lambda *args, **named: self._call(2, (x, *args), named)

    def __call__(self, *args, **named):
        return self._call(2, args, named)

    def _call(self, depth, args, named):
        note_site(depth)
        inputs, given = self._sorted(args, named)
        inputs = self._boxes(inputs)
        world = next((lib.tgpy_world_of(b) for b in inputs if b != NULL), None) or context()._world
        ctx = lib.tgpy_ctx(world)
        if ctx == NULL:
            fail(world)
        binding = self._binding(world, tuple(given))
        keep = []
        values = ffi.new('tg_value[]', max(1, len(given)))
        for value, (name, argument) in zip(values, given.items()):
            _set(value, argument, self.arguments[name], keep)
        n = lib.tg_op_output_count(ctx, binding, values) if self._many else self._fixed
        if n < 0:
            fail(world)
        out = ffi.new('tgpy_box *[]', max(1, n))
        if lib.tgpy_call(world, binding, inputs, len(inputs), values, out, n):
            fail(world)
        results = tuple(wrap(out[i]) for i in range(n))
        return results if n != 1 or self._many else results[0]

    def _sorted(self, args, named):
        """The inputs in their order, and the arguments by name."""
        n = len(self.inputs)
        inputs, given = dict(zip(self.inputs, args)), dict(zip(self.arguments, args[n:]))
        if len(args) > n + len(self.arguments):
            raise TypeError(f'{self.__name__} takes at most {n + len(self.arguments)} arguments, but got {len(args)}')
        for name, value in named.items():
            into = inputs if name in self.inputs else given
            if name in into:
                raise TypeError(f'{self.__name__} got the argument {name!r} twice')
            into[name] = value
        return [inputs.get(name) for name in self.inputs], {k: v for k, v in given.items() if v is not None}

    def _boxes(self, inputs):
        """The boxes of the inputs; lists are spread out, and absent inputs at the end are left out."""
        flat = []
        for name, x in zip(self.inputs, inputs):
            flat.extend(x) if name in self._lists and isinstance(x, (list, tuple)) else flat.append(x)
        while flat and flat[-1] is None:
            flat.pop()
        first = next((x for x in flat if isinstance(x, Tensor)), None)
        boxes, self_keep = [], []
        for x in flat:
            if x is not None and not isinstance(x, Tensor):
                x = tensor(x) if first is None else like(x, first)
                if x is NotImplemented:
                    raise TypeError(f'an input of {self.__name__} must be a tensor, a number or an array')
                self_keep.append(x)
            boxes.append(NULL if x is None else x._box)
        return _Inputs(boxes, self_keep)

    def _binding(self, world, names):
        binding = self._bindings.get(names)
        if binding is None:
            binding = ffi.new('tg_op_binding *', {'size': ffi.sizeof('tg_op_binding')})
            texts = [ffi.new('char[]', name.encode()) for name in names]
            if lib.tg_op_bind(lib.tgpy_ctx(world), self._op, ffi.new('char *[]', texts), len(names), binding):
                fail(world)
            self._bindings[names] = binding
        return binding

    @property
    def __signature__(self):
        P = inspect.Parameter
        parameters = [P(n, P.POSITIONAL_OR_KEYWORD, default=None if i >= self._required else P.empty) for i, n in enumerate(self.inputs)]
        optional = any(p.default is None for p in parameters)
        parameters += [P(n, P.KEYWORD_ONLY if optional or not f.required else P.POSITIONAL_OR_KEYWORD,
                         default=P.empty if f.required else None) for n, f in self.arguments.items()]
        return inspect.Signature(sorted(parameters, key=lambda p: (p.kind, p.default is None)))

    def __repr__(self):
        return f'<op {self.__name__}: {text(self._op.formula)}>'


class _Inputs(list):
    """Boxes, and the tensors that were made for them."""

    def __init__(self, boxes, keep):
        super().__init__(boxes)
        self.keep = keep


def _set(value, argument, field, keep):
    """Sets a tg_value to an argument. keep is a list of what must live until the call."""
    if isinstance(argument, bool):
        value.kind, value.boolean = lib.TG_VALUE_BOOL, argument
    elif isinstance(argument, int):
        value.kind, value.integer = lib.TG_VALUE_INT, argument
    elif isinstance(argument, float):
        value.kind, value.number = lib.TG_VALUE_DOUBLE, argument
    elif field.kind == lib.TG_FIELD_DTYPE:
        value.kind, value.integer = lib.TG_VALUE_INT, dtype_value(argument)
    elif isinstance(argument, str):
        keep.append(ffi.new('char[]', argument.encode()))
        value.kind, value.text = lib.TG_VALUE_TEXT, keep[-1]
    elif isinstance(argument, (list, tuple)):
        keep.append(ffi.new('int64_t[]', [int(n) for n in argument] or 1))
        value.kind, value.list, value.n = lib.TG_VALUE_LIST, keep[-1], len(argument)
    elif isinstance(argument, ffi.CData):
        value.kind, value.pointer = lib.TG_VALUE_POINTER, argument
    elif hasattr(argument, '__index__'):
        value.kind, value.integer = lib.TG_VALUE_INT, argument.__index__()
    else:
        value.kind, value.number = lib.TG_VALUE_DOUBLE, float(argument)


def _documentation(op):
    lines = [text(op._op.formula)]
    lines += [f'{name}: {text(field.doc)}' for name, field in op.arguments.items() if field.doc]
    return '\n\n'.join([lines[0], '\n'.join(lines[1:])]) if lines[1:] else lines[0]


def find(name):
    """The entry of the table with this name."""
    op = NULL if name.startswith('__') else lib.tg_op_find(name.encode())
    if op == NULL:
        near = difflib.get_close_matches(name, names(), 1)
        raise AttributeError(f'the library has no op {name!r}' + (f'; did you mean {near[0]!r}?' if near else ''))
    return op


def names():
    """The names of all ops."""
    table = [lib.tg_op_at(i) for i in range(lib.tg_op_count())]
    return sorted(text(op.alias) if op.alias else text(op.name) for op in table)
