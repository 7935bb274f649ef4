"""Calls of an op: arguments in Python are sorted and converted by the op's entry in the library's table."""

import difflib
import inspect
import operator
from numbers import Real

from ._capi import ffi, lib
from .context import context
from .errors import fail, text
from .objects import OpBase
from .tensor import Tensor, like, tensor, tensor_for, wrap
from .values import INTEGERS, dtype_of_numbers, dtype_value

NULL = ffi.NULL
_world_of, _ctx_of = lib.tgpy_world_of, lib.tgpy_ctx


class Op(OpBase):  # an op of the library; its __doc__ is that of the op
    __slots__ = (
        '__name__',
        '__doc__',
        '_op',
        'inputs',
        'arguments',
        '_lists',
        '_kinds',
        '_n_out',
        '_many',
        '_plans',
        '_required',
    )

    def __init__(self, op):
        self.__name__, self._op = text(op.name), op
        names = text(op.inputs).split() if op.inputs else []
        self.inputs = tuple(n.removesuffix('..') for n in names)
        self._lists = tuple(n.endswith('..') for n in names)
        self._required = sum(not (op.optional >> i) & 1 for i in range(len(names)))
        self.arguments = {text(op.fields[i].name): op.fields[i] for i in range(op.n_fields)}
        outputs = text(op.outputs).split() if op.outputs else ['y']
        self._n_out = op.n_out if op.n_out > 0 else len(outputs)
        self._many = op.n_out < 0 and any(o.endswith('..') for o in outputs)
        self._kinds = None
        self._plans = {}
        self.__doc__ = _documentation(self)

    def _call(self, args, named):
        """Makes a call that OpBase leaves to Python."""
        form = (len(args), *named)
        plan = self._plans.get(form) or self._plans.setdefault(form, _Plan(self, len(args), tuple(named)))
        everything = (*args, *named.values())
        inputs = self._tensors([everything[i] if i is not None else None for i in plan.inputs])
        return plan.run(inputs, [everything[i] for i in plan.values])

    def _tensors(self, inputs):
        """The inputs as tensors: lists are spread out, numbers and arrays converted, and absent inputs at the end left
        out."""
        places = range(len(inputs))  # which of the op's inputs each is
        if True in self._lists:
            spread = [
                (place, x)
                for place, (many, item) in enumerate(zip(self._lists, inputs))
                for x in (item if many and isinstance(item, (list, tuple)) else (item,))
            ]
            places, inputs = [place for place, _ in spread], [x for _, x in spread]
        while inputs and inputs[-1] is None:
            inputs.pop()
        if all(type(x) is Tensor or x is None for x in inputs):
            return inputs
        return self._converted(inputs, places)

    def _converted(self, inputs, places):
        first = next((x for x in inputs if isinstance(x, Tensor)), None)
        inputs = [x if x is None or isinstance(x, (Tensor, Real)) else self._array(x, first) for x in inputs]
        given = list(zip(places, inputs))
        return [self._number(x, place, given, first) if isinstance(x, Real) else x for place, x in given]

    def _array(self, x, first):
        x = tensor(x) if first is None else like(x, first)
        if x is NotImplemented:
            raise TypeError(f'an input of {self.__name__} must be a tensor, a number or an array')
        return x

    def _number(self, x, place, given, first):
        """A number as a tensor. Its dtype is that of the first tensor among the inputs that must have the same dtype.
        Without such a tensor it is that of an array of the numbers among them."""
        peers = [y for other, y in given if y is not None and self._same_dtype(place, other)]
        model = next((y for y in peers if isinstance(y, Tensor)), None)
        if model is not None:
            return like(x, model)
        dtype = dtype_of_numbers(peers) if len(peers) > 1 else None
        x = float(x) if len(peers) > 1 and dtype is None else x
        return tensor(x, dtype) if first is None else tensor_for(first, x, dtype)

    def _same_dtype(self, a, b):
        """Whether inputs a and b must have the same dtype: they are never of different kinds in the op's samples. A
        condition and what it chooses from are not alike, nor are values and indices."""
        if self._kinds is None:
            self._kinds = _kinds(self._op)
        return not any(a in kinds and b in kinds and kinds[a] != kinds[b] for kinds in self._kinds)

    @property
    def is_method(self):
        """Whether the op is a method of its first input: whether that is a single tensor."""
        return bool(self.inputs) and not self._lists[0]

    @property
    def __signature__(self):
        P = inspect.Parameter
        parameters = [
            P(n, P.POSITIONAL_OR_KEYWORD, default=None if i >= self._required else P.empty)
            for i, n in enumerate(self.inputs)
        ]
        optional = any(p.default is None for p in parameters)
        parameters += [
            P(
                n,
                P.KEYWORD_ONLY if optional or not f.required else P.POSITIONAL_OR_KEYWORD,
                default=P.empty if f.required else None,
            )
            for n, f in self.arguments.items()
        ]
        return inspect.Signature(sorted(parameters, key=lambda p: (p.kind, p.default is None)))

    def __reduce__(self):
        return _named, (self.__name__,)

    def __repr__(self):
        return f'<op {self.__name__}: {text(self._op.formula)}>'


class _Plan:
    """How calls of one form become calls in C. A form is a number of positional arguments and a tuple of names."""

    __slots__ = ('op', 'inputs', 'values', 'fields', 'binding')

    def __init__(self, op, n, named):
        """inputs and values are indices of arguments: the positional ones first, then the named ones."""
        positional = [*op.inputs, *op.arguments]
        if n > len(positional):
            raise TypeError(f'{op.__name__} takes at most {len(positional)} arguments, but got {n}')
        at = {name: i for i, name in enumerate(positional[:n])}
        for i, name in enumerate(named):
            if name in at:
                raise TypeError(f'{op.__name__} got the argument {name!r} twice')
            at[name] = n + i
        self.op = op
        self.inputs = [at.pop(name, None) for name in op.inputs]
        self.values = list(at.values())
        self.binding = _bound(op, list(at))
        self.fields = [op.arguments[name].kind for name in at]
        if True not in op._lists and not op._many and lib.TG_FIELD_DTYPE not in self.fields:
            address = int(ffi.cast('uintptr_t', self.binding))
            op._learn(n, named, tuple(self.inputs), tuple(self.values), op._n_out, address)

    def run(self, inputs, arguments):
        world = next((_world_of(x._box) for x in inputs if x is not None), None) or context()._world
        keep = []
        values = ffi.new('tg_value[]', len(arguments) + 1)
        for i, argument in enumerate(arguments):
            _set(values[i], argument, self.fields[i], keep)
        op = self.op
        n = lib.tg_op_output_count(_ctx_of(world), self.binding, values) if op._many else op._n_out
        if n < 0:
            fail(world)
        out = ffi.new('tgpy_box *[]', n + 1)
        boxes = [NULL if x is None else x._box for x in inputs]
        if lib.tgpy_call(world, self.binding, boxes, len(boxes), values, out, n):
            fail(world)
        if n == 1 and not op._many:
            return wrap(out[0])
        return tuple(wrap(out[i]) for i in range(n))


def _bound(op, names):
    world = context()._world
    binding = ffi.new('tg_op_binding *', {'size': ffi.sizeof('tg_op_binding')})
    texts = [ffi.new('char[]', name.encode()) for name in names]
    if lib.tg_op_bind(_ctx_of(world), op._op, texts, len(names), binding):
        fail(world)
    return binding


def _set(value, argument, kind, keep):
    """Sets a tg_value to an argument. keep is a list of what must live until the call."""
    if argument is None:
        value.kind = lib.TG_VALUE_DEFAULT
    elif kind == lib.TG_FIELD_DTYPE:
        value.kind, value.integer = lib.TG_VALUE_INT, dtype_value(argument)
    elif isinstance(argument, bool) or getattr(argument, 'dtype', None) == 'bool':  # also NumPy's bools
        value.kind, value.boolean = lib.TG_VALUE_BOOL, bool(argument)
    elif isinstance(argument, int):
        value.kind, value.integer = lib.TG_VALUE_INT, argument
    elif isinstance(argument, float):
        value.kind, value.number = lib.TG_VALUE_DOUBLE, argument
    elif isinstance(argument, str):
        keep.append(ffi.new('char[]', argument.encode()))
        value.kind, value.text = lib.TG_VALUE_TEXT, keep[-1]
    elif isinstance(argument, (list, tuple)):
        keep.append(ffi.new('int64_t[]', [operator.index(n) for n in argument] or 1))
        value.kind, value.list, value.n = lib.TG_VALUE_LIST, keep[-1], len(argument)
    elif isinstance(argument, ffi.CData):
        value.kind, value.pointer = lib.TG_VALUE_POINTER, argument
    elif hasattr(argument, '__index__') and not (isinstance(argument, Tensor) and argument.dtype not in INTEGERS):
        value.kind, value.integer = lib.TG_VALUE_INT, argument.__index__()
    else:
        value.kind, value.number = lib.TG_VALUE_DOUBLE, float(argument)


def _kinds(op):
    """For each sample that the op accepts: the kind of each input, by its place. The last place may be a list."""
    last = len(text(op.inputs).split()) - 1
    samples = [op.samples[i] for i in range(op.n_samples) if not op.samples[i].refused]
    kinds = [{min(j, last): s.input[j].kind for j in range(s.n_in)} for s in samples]
    return [{place: kind for place, kind in of.items() if kind != lib.TG_SAMPLE_ABSENT} for of in kinds]


def _named(name):
    from . import ops

    return getattr(ops, name)


def _documentation(op):
    arguments = [f'{name}: {text(field.doc)}' for name, field in op.arguments.items() if field.doc]
    return '\n\n'.join([text(op._op.formula), *(['\n'.join(arguments)] if arguments else [])])


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
