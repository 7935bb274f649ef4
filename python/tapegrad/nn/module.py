"""Modules: models as Python classes.

Attributes that are tensors are parameters, and attributes that are modules are children, so a model is written as any
other class:

    class Perceptron(nn.Module):
        def __init__(self):
            self.hidden = nn.Linear(64, 32)
            self.scale = tapegrad.ones((32,))

        def forward(self, x):
            return self.hidden(x).relu() * self.scale
"""

import contextlib
import threading

from .._capi import ffi, lib
from ..context import context, no_grad
from ..errors import check
from ..objects import note_site
from ..parameters import write_all
from ..tensor import Tensor
from ..values import FLOATS

PARAMETER, BUFFER, TRANSIENT = 'parameter', 'buffer', 'transient buffer'


class Buffer:
    """Marks a tensor that belongs to a module and is not trained: self.mean = nn.Buffer(zeros((8,))). saved=False
    leaves it out of the state, because it can be computed again."""

    def __init__(self, x, saved=True):
        self.tensor, self.role = x, BUFFER if saved else TRANSIENT


class Module:
    """A model or a part of one. A tensor that is assigned to an attribute becomes a parameter: it requires a gradient
    from then on. These do not: tensors of integers and those in a Buffer, what was computed from tensors that require a
    gradient, and what a module assigns while it is called. A list of modules becomes a ModuleList."""

    _training = None

    def forward(self, *args, **named):
        raise NotImplementedError(f'{type(self).__name__} has no forward')

    def __call__(self, *args, **named):
        note_site(1)
        _thread.running += 1
        try:
            if self._training is None:
                return self.forward(*args, **named)
            with _mode(_world((*args, *named.values())), self._training):
                return self.forward(*args, **named)
        finally:
            _thread.running -= 1

    # ---- Attributes ----

    def __setattr__(self, name, value):
        roles = self.__dict__.setdefault('_roles', {})
        role = None
        if isinstance(value, Buffer):
            value, role = _kept(value.tensor), value.role
        elif isinstance(value, Tensor):
            value, role = _with_role(value, roles.get(name))
        elif isinstance(value, (list, tuple)) and value and all(isinstance(m, Module) for m in value):
            value = ModuleList(value)
        roles.pop(name, None)
        if role is not None:
            roles[name] = role
            value.name = value.name or name
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        object.__delattr__(self, name)
        self._roles.pop(name, None)

    def _tensors(self):
        """The tensors of this module itself: (name, tensor, role)."""
        roles = vars(self).get('_roles', {})
        return [(name, x, roles[name]) for name, x in vars(self).items() if name in roles]

    def children(self):
        """The modules in this one, without theirs: a dict by name."""
        return {name: m for name, m in vars(self).items() if isinstance(m, Module)}

    def named_modules(self, prefix=''):
        """This module and all modules in it: pairs of the path and the module."""
        yield prefix, self
        for name, child in self.children().items():
            yield from child.named_modules(f'{prefix}.{name}' if prefix else name)

    def modules(self):
        return [m for _, m in self.named_modules()]

    def _named(self, *roles):
        """The tensors of all modules that have one of these roles. A tensor that has several paths is listed under the
        first."""
        seen = set()
        for prefix, module in self.named_modules():
            for name, x, role in module._tensors():
                key = ffi.cast('uintptr_t', x._handle())
                if role in roles and int(key) not in seen:
                    seen.add(int(key))
                    yield (f'{prefix}.{name}' if prefix else name), x

    def named_parameters(self):
        """The parameters of this module and of all modules in it: pairs of the path, such as "hidden.weight", and the
        tensor."""
        return self._named(PARAMETER)

    def parameters(self):
        return [x for _, x in self.named_parameters()]

    def named_buffers(self):
        return self._named(BUFFER, TRANSIENT)

    def zero_grad(self):
        """Clears the gradients of all parameters."""
        for x in self.parameters():
            x.grad = None

    def freeze(self, frozen=True):
        """Sets that no parameter requires a gradient, or, frozen=False, that all do. Returns the module."""
        for x in self.parameters():
            x.requires_grad = not frozen
        return self

    def cast(self, dtype):
        """Converts the floating-point parameters and buffers of this module and of all modules in it. Create optimizers
        afterwards. Returns the module."""
        converted = {}
        with no_grad():
            for module in self.modules():
                module._cast(dtype, converted)
        return self

    def _cast(self, dtype, converted):
        """Converts the tensors of this module itself. converted has pairs of an old and the new tensor, by the
        address of the old one."""
        for name, x, _ in self._tensors():
            if x.dtype not in FLOATS:
                continue
            key = int(ffi.cast('uintptr_t', x._handle()))
            if key not in converted:
                y = x.cast(dtype).detach()
                y.name, y.requires_grad = x.name, x.requires_grad
                converted[key] = x, y  # x must not end, or another tensor could have its address
            vars(self)[name] = converted[key][1]

    # ---- Parts ----

    def get(self, path):
        """The module of a path, such as "h.0.mlp"; "" is this module."""
        module = self
        for name in path.split('.') if path else ():
            if name not in module.children():
                names = ', '.join(module.children()) or 'none'
                raise KeyError(f'there is no module {path!r}: {type(module).__name__} has {names}')
            module = module.children()[name]
        return module

    def replace(self, path, module):
        """Puts a module in the place of that of the path, and returns the old one. The model uses it wherever it has
        used the old one. Replace modules before you create an optimizer."""
        if not path:
            raise ValueError('replace: the path is "", which is this module; expected the path of a module in it')
        old = self.get(path)
        parent, _, name = path.rpartition('.')
        setattr(self.get(parent), name, module)
        return old

    # ---- The state ----

    def state_dict(self):
        """The parameters and the buffers that are not transient, by their paths. They are the tensors themselves, not
        copies."""
        return dict(self._named(PARAMETER, BUFFER))

    def load_state_dict(self, values, strict=True):
        """Writes values, tensors or arrays, into the parameters and buffers. Nothing is written if a shape differs,
        or, with strict, if a path is missing or unknown. Returns the missing and the unknown paths."""
        return write_all(self.state_dict(), values, type(self).__name__, strict)

    # ---- Modes ----

    @property
    def training(self):
        """Whether the module runs in training mode: as train or eval have set, or else as its context does."""
        return lib.tgpy_training(context()._world) if self._training is None else self._training

    def train(self, mode=True):
        """Makes the module and all modules in it run in training mode, whatever the mode of the context is. None
        removes the override. Returns the module."""
        for child in self.children().values():
            child.train(None)
        object.__setattr__(self, '_training', mode)
        return self

    def eval(self):
        """Makes the module and all modules in it run in evaluation mode."""
        return self.train(False)

    # ---- Text ----

    def describe(self):
        """What print shows after the name of the class, such as "64 to 32"."""
        return ''

    def _line(self):
        about, mode = self.describe(), {None: '', True: ', train', False: ', eval'}[self._training]
        return type(self).__name__ + (f' ({about})' if about else '') + mode

    def __repr__(self):
        roles = {name: (x, role) for name, x, role in self._tensors()}
        lines = [self._line()]
        for name, value in vars(self).items():
            if name in roles:
                x, role = roles[name]
                lines.append(f'{name}: {"" if role == PARAMETER else role + " "}{x.dtype}{list(x.shape)}')
            elif isinstance(value, Module):
                lines.extend(f'{name}: {value!r}'.split('\n'))
        return '\n  '.join(lines)


class ModuleList(Module):
    """Modules under their numbers: what a list of modules becomes when it is assigned to an attribute."""

    def __init__(self, modules=()):
        for module in modules:
            self.append(module)

    def append(self, module):
        setattr(self, str(len(self)), _checked(module))

    def __len__(self):
        return len(self.children())

    def __iter__(self):
        return iter(self.children().values())

    def __getitem__(self, i):
        return list(self)[i]

    def __setitem__(self, i, module):
        setattr(self, list(self.children())[i], _checked(module))


def _checked(module):
    """A part of a ModuleList. What is no module would get no number of its own."""
    if not isinstance(module, Module):
        raise TypeError(f'a part of a list of modules is a {type(module).__name__}; expected a Module')
    return module


class _Thread(threading.local):
    running = 0  # how many calls of modules this thread is in


_thread = _Thread()


def _kept(x):
    """A result on a tape as a tensor that outlives the tape; any other tensor as it is."""
    return x if lib.tg_tape_of(x._live()) == ffi.NULL else x.detach()


def _with_role(x, role):
    """The tensor to store in an attribute whose role was `role`, and its new role. None: an ordinary attribute."""
    if role in (BUFFER, TRANSIENT):
        return x if x.requires_grad else _kept(x), role  # a buffer on a tape would keep the tape alive
    on_tape = lib.tg_tape_of(x._live()) != ffi.NULL
    if on_tape and x.requires_grad or role is None and _thread.running:
        return x, None
    x = _kept(x)
    if x.dtype not in FLOATS:
        return x, BUFFER
    x.requires_grad = True
    return x, PARAMETER


def _world(args):
    return next((x._world for x in args if isinstance(x, Tensor)), None) or context()._world


@contextlib.contextmanager
def _mode(world, on):
    """Sets the mode of the world and that of the current tape. Within a callback the tape belongs to the library, and
    ops do not give it the mode of the world."""
    tape = lib.tgpy_tape_of(lib.tgpy_current(world))
    before = lib.tgpy_set_training(world, on), lib.tg_is_training(tape)
    lib.tg_tape_set_training(tape, on)
    try:
        yield
    finally:
        lib.tgpy_set_training(world, before[0])
        lib.tg_tape_set_training(tape, before[1])
    check(world)
