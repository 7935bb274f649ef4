"""Lists of parameters that optimizers and averages take, and the tensors of their state."""

from ._capi import ffi, lib
from .errors import check
from .tensor import Tensor, tensor, wrap


class Parameters:
    """The parameters of an optimizer, with keys for its state: those of a module with their paths, or those of a
    sequence with their numbers."""

    def __init__(self, source):
        if hasattr(source, 'named_parameters'):
            named = {path: p for path, p in source.named_parameters() if p.requires_grad}
        else:
            source = [source] if isinstance(source, Tensor) else list(source)
            named = {str(i): p for i, p in enumerate(source)}
        for key, p in named.items():
            if not isinstance(p, Tensor):
                raise TypeError(f'parameter {key} is a {type(p).__name__}, but must be a tensor')
        if not named:
            raise ValueError('there are no parameters that require a gradient')
        self._set(list(named), list(named.values()))

    @classmethod
    def of(cls, source):
        return source if isinstance(source, cls) else cls(source)

    def _set(self, keys, tensors):
        self.keys, self.tensors, self.world = keys, tensors, tensors[0]._world

    def __len__(self):
        return len(self.tensors)

    def __iter__(self):
        return iter(self.tensors)

    def __reduce__(self):
        return _parameters, (self.keys, [x._shared() for x in self.tensors])

    @property
    def handles(self):
        return ffi.new('tg_tensor *[]', [x._live() for x in self.tensors])

    def zero_grad(self):
        for p in self.tensors:
            lib.tg_zero_grad(p._live())
        check(self.world)


def _parameters(keys, shared):
    made = object.__new__(Parameters)
    made._set(keys, [x if isinstance(x, Tensor) else x() for x in shared])
    return made


def state(owner, params, count, at):
    """The tensors of an object's state by their keys, which the library names after the parameters. count and at are
    its two functions."""
    before = [p.name for p in params.tensors]
    name, found = ffi.new('char **'), {}
    try:
        for key, p in zip(params.keys, params.tensors):
            p.name = key
        for i in range(owner._ask(count)):
            x = at(owner._live, i, name)
            found[ffi.string(name[0]).decode()] = wrap(lib.tgpy_box_new(owner._world, ffi.NULL, x, True))
    finally:
        for text, p in zip(before, params.tensors):
            p.name = text
    check(owner._world)
    return found


def write_all(into, values, what, strict=True):
    """Writes values into tensors that have the same keys. Checks all before it writes any. Returns the keys that are
    missing and those that are unknown, which are refused if strict."""
    missing = [key for key in into if key not in values]
    unknown = [key for key in values if key not in into]
    if strict and (missing or unknown):
        raise KeyError(
            '; '.join(
                part
                for part in (
                    missing and f'the state of {what} lacks {", ".join(missing)}',
                    unknown and f'{what} has no {", ".join(unknown)}',
                )
                if part
            )
        )
    common = {key: values[key] for key in into if key in values}
    common = {key: x if isinstance(x, Tensor) else tensor(x) for key, x in common.items()}
    for key, x in common.items():
        if x.shape != into[key].shape:
            raise ValueError(f'{key} of {what} has the shape {into[key].shape}, but the given one has {x.shape}')
    for key, x in common.items():
        into[key].write(x)
    return missing, unknown
