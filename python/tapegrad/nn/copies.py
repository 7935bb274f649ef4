"""Copies and pickles of modules of the library. A copy is first made by the same call as the module. Then parts that
were replaced in the module are replaced in the copy too, and the values are written."""

import copy

from ..context import Context
from .module import Module


class Origin:
    """How a module of the library was made, with all modules in it."""

    def __init__(self, make):
        """make(ctx) calls the function of the library that makes the module. It is pickled with the module."""
        self.make, self.top = make, lambda: None  # top() is the module, or None after its end

    def find(self, path):
        """The module of this path, or None if it is no longer where it was made, or the top has ended."""
        module = self.top()
        for name in path.split('.') if path else ():
            module = None if module is None else module._own_child(name)
        return module

    def __reduce__(self):
        return Origin, (self.make,)


class Copied(Module):
    """What modules of the library need to be copied. _path is a module's path in the model that _origin made."""

    _INTERNAL = frozenset(['_root', '_pointer', '_roles', '_origin', '_path', '_training'])

    def _own_child(self, name):
        """The child of this name, or None if it is not the one that was made with this module."""
        child = vars(self).get(name)
        own = isinstance(child, Copied) and child._origin is self._origin and child._path == _joined(self._path, name)
        return child if own else None

    def _own(self, path=''):
        """This module and those in it that were made with it: pairs of the path in this one and the module, outer ones
        first."""
        yield path, self
        for name in vars(self):
            if child := self._own_child(name):
                yield from child._own(_joined(path, name))

    def __reduce__(self):
        if self._path and self._origin.find(self._path) is self:
            return _part, (self._origin.top(), self._path)
        state = {path: module._values() for path, module in self._own()}
        return _made, (type(self), self._origin, self._path), state

    def __deepcopy__(self, memo):
        """A copy in the context of the module. A pickle is loaded into the context of the thread instead."""
        make, arguments, *states = self.__reduce__()
        with Context._of(self._root._world):
            other = memo[id(self)] = make(*copy.deepcopy(arguments, memo))
            for state in states:
                other.__setstate__(copy.deepcopy(state, memo))
        return other

    def _values(self):
        """The mode, the tensors and the other attributes of this module itself."""
        tensors = {name: (x.detach(), x.requires_grad) for name, x, _ in self._tensors()}
        others = {
            name: value
            for name, value in vars(self).items()
            if name not in self._INTERNAL and name not in tensors and not self._own_child(name)
        }
        return self._training, tensors, others

    def __setstate__(self, state):
        for path, values in state.items():
            self.get(path)._restore(*values)

    def _restore(self, training, tensors, others):
        for name, (value, requires_grad) in tensors.items():
            x = vars(self)[name]
            if x.dtype != value.dtype:
                self._cast(value.dtype, {})
            x.write(value)
            if x.requires_grad != requires_grad:
                x.requires_grad = requires_grad
        if training is not None:
            self.train(training)
        for name, value in others.items():
            setattr(self, name, value)


def _joined(path, name):
    return f'{path}.{name}' if path else name


def _part(top, path):
    return top.get(path)


def _made(cls, origin, path):
    """A module as it was made: a whole model, or a part that was taken out of a model. The part is taken out of the
    copy of the model if there is one, and else out of a new model. The copy of the model gets what has replaced the
    part when its own state is restored."""
    if not path:
        return _whole(cls, origin)
    top = origin.top() if origin.find(path) else _whole(cls, Origin(origin.make))
    return top.replace(path, Module())


def _whole(cls, origin):
    module = object.__new__(cls)
    module._make(origin)
    return module
