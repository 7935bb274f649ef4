"""Modules of the library as modules of Python (nn.h)."""

import functools
import weakref

from .._capi import ffi, lib
from ..callbacks import found, guarded, on_tape, register
from ..context import context
from ..errors import fail, text, using
from ..owned import Owned
from ..tensor import Tensor, wrap
from ..values import dtype_value
from .copies import Copied, Origin
from .module import BUFFER, PARAMETER, Module

NULL = ffi.NULL


class _Root(Owned):
    """Owns a tree of modules of the library."""

    def __init__(self, world, module):
        self._own(world, module, 'tg_module_free')


class _Part(Tensor):
    """A parameter or buffer of a module of the library. It keeps the library's module."""

    __slots__ = ('_root', '_module', '_key')  # _module() is the module of Python that has this tensor as _key, or None

    def _shared(self):
        module = self._module()
        if module is None:
            raise TypeError('a parameter of the library cannot be copied with an optimizer after its module has ended')
        return functools.partial(getattr, module, self._key)


class Native(Copied):
    """A module of the library. Its parameters and children are attributes, as those of any module, and a child that is
    replaced, also by a module of Python, is used wherever the library has used the old one. A copy of a module that is
    a part of another is a part of a copy of that."""

    def __init__(self, make):
        """make(ctx) calls the function of the library that makes the module. Pickles contain make."""
        self._make(Origin(make))

    def _make(self, origin):
        ctx = context()
        next_draws(ctx._world)
        self._bind(_Root(ctx._world, origin.make(ctx._ctx)), None, origin, '')
        origin.top = weakref.ref(self)
        self._find_parts()

    def _bind(self, root, pointer, origin, path):
        """Sets the library's module: `pointer`, or the root itself."""
        vars(self).update(_root=root, _pointer=pointer, _roles={}, _origin=origin, _path=path)

    @property
    def _module(self):
        root = self._root._live
        return root if self._pointer is None else self._pointer

    # ---- Parts ----

    def _find_parts(self):
        """Makes the attributes of the tensors, and of the children that have tensors."""
        for path, x, role in _listed(self._root, self._module):
            *parents, name = path.split('.')
            module = self
            for parent in parents:
                module = module._child(parent)
            vars(module)[name] = x
            module._roles[name] = role
            x._module, x._key = weakref.ref(module), name

    def _child(self, name):
        if name not in vars(self):
            child = object.__new__(Native)
            path = f'{self._path}.{name}' if self._path else name
            child._bind(self._root, lib.tg_module_child(self._module, name.encode()), self._origin, path)
            vars(self)[name] = child
        return vars(self)[name]

    def __setattr__(self, name, value):
        old = vars(self).get(name)
        if isinstance(old, Tensor):
            raise AttributeError(f'{name} is a tensor of the library; write() changes its values')
        if not isinstance(old, Module):
            return object.__setattr__(self, name, value)
        if not isinstance(value, Module):
            raise TypeError(f'{name} is a module, so it can be replaced by a module only')
        module, root = _given(value, self._root)
        taken = lib.tg_module_replace(self._module, name.encode(), module)
        if lib.tg_ctx_status(lib.tgpy_ctx(self._root._world)):
            if root is None:
                lib.tg_module_free(module)
            fail(self._root._world)
        vars(self)[name] = value
        if root is not None:
            root._disown()
            value._move(self._root, module)
        _take_back(old, _Root(self._root._world, taken))

    def _move(self, root, pointer):
        """Notes that the library's module now belongs to another tree, with its tensors and the modules in it. Other
        attributes may be modules and tensors of other trees, which stay there."""
        old = self._root
        vars(self).update(_root=root, _pointer=pointer)
        for value in vars(self).values():
            if isinstance(value, _Part) and value._root is old:
                value._root = root
            elif isinstance(value, Native) and value._root is old:
                value._move(root, value._pointer)

    def __getitem__(self, i):
        """Child number i."""
        return list(self.children().values())[i]

    # ---- Calls ----

    def _run(self, inputs, n_out):
        """Calls the module with tensors, of which some may be None."""
        world = self._root._world
        boxes = [NULL if x is None else x._box for x in inputs]
        tape = lib.tgpy_ready(world, boxes, len(boxes))
        handles = ffi.new('tg_tensor *[]', [NULL if x is None else x._handle() for x in inputs])
        y = ffi.new('tg_tensor *[]', n_out)
        with using(world):
            if lib.tg_module_call(self._module, lib.tgpy_tape_of(tape), handles, len(inputs), y, n_out):
                fail(world)
        return results(world, tape, y, n_out, boxes)

    def forward(self, x):
        return self._run([x], 1)[0]

    def train(self, mode=True):
        super().train(mode)
        mode = {None: lib.TG_MODE_TAPE, True: lib.TG_MODE_TRAIN, False: lib.TG_MODE_EVAL}[mode]
        if lib.tg_module_set_mode(self._module, mode):
            fail(self._root._world)
        return self

    def _cast(self, dtype, converted):
        if lib.tg_module_cast(self._module, dtype_value(dtype)):
            fail(self._root._world)

    @property
    def is_whole(self):
        """Whether all modules in this one are still the library's own."""
        return all(isinstance(m, Native) for m in self.modules())

    def _line(self):
        size = lib.tg_module_print(self._module, NULL, 0)
        buffer = ffi.new('char[]', size + 1)
        lib.tg_module_print(self._module, buffer, size + 1)
        return text(buffer).partition('\n')[0]


def next_draws(world):
    """Makes the models of a context draw other numbers than before."""
    lib.tgpy_catch_up(world)
    if lib.tgpy_next_draws(world):
        fail(world)


def results(world, tape, y, n, boxes):
    """Tensors of the results y[n] of a call on boxes."""
    out = ffi.new('tgpy_box *[]', n)
    lib.tgpy_results(world, tape, y, n, boxes, len(boxes), out)
    return tuple(wrap(out[i]) if out[i] else fail(world) for i in range(n))


def _listed(root, module):
    """The parameters and buffers of a module: (path, tensor, role)."""
    path = ffi.new('char **')
    for count, at, role in (
        (lib.tg_module_param_count, lib.tg_module_param, PARAMETER),
        (lib.tg_module_buffer_count, lib.tg_module_buffer, BUFFER),
    ):
        for i in range(count(module)):
            x = _Part._of(lib.tgpy_box_new(root._world, NULL, at(module, i, path), True))
            x._root = root
            yield ffi.string(path[0]).decode(), x, role


# ---- Modules of Python in those of the library ----


def _given(value, root):
    """The library's module for a module that takes a place in a tree: its own, with the root that has owned it, or a
    new one that calls it, with None."""
    if isinstance(value, Native):
        if value._pointer is not None:
            raise ValueError('the module is a part of another one; take it out of there first, by replacing it')
        return value._root._live, value._root
    module = lib.tg_module_new(lib.tgpy_ctx(root._world), _table(type(value).__name__), register((root._world, value)))
    return (module, None) if not lib.tg_ctx_status(lib.tgpy_ctx(root._world)) else fail(root._world)


def _take_back(old, root):
    """Makes the module that was replaced the owner of `root`, the library's module for it. For a module of Python, the
    library's module only called it; it is freed when this function returns."""
    if isinstance(old, Native):
        vars(old)['_pointer'] = None
        old._move(root, None)


_tables = {}


def _table(kind):
    """The functions of a module of Python for the library. Tables last as long as the process."""
    if kind not in _tables:
        name = ffi.new('char[]', kind.encode())
        _tables[kind] = (
            name,
            ffi.new(
                'tg_module_ops *',
                {
                    'size': ffi.sizeof('tg_module_ops'),
                    'kind': name,
                    'call': lib.tgpy_on_module,
                    'free': lib.tgpy_on_function_free,
                },
            ),
        )
    return _tables[kind][1]


@ffi.def_extern()
def tgpy_on_module(m, t, inputs, n_in, out, n_out):
    world, module = found(lib.tg_module_state(m))

    def run(tape):
        args = (None if x == NULL else wrap(lib.tgpy_box_new(world, tape, x, True)) for x in inputs[0:n_in])
        y = module(*args)
        y = (y,) if isinstance(y, Tensor) else tuple(y)
        if len(y) != n_out:
            raise ValueError(f'{type(module).__name__} returned {len(y)} tensors, but {n_out} were expected')
        for i, x in enumerate(y):
            lib.tgpy_box_give(x._box)
            out[i] = x._handle()

    return guarded(world, lambda: on_tape(world, t, run))
