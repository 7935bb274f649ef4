"""Files of tensors in the format safetensors (io.h): load, save, and File, which reads one tensor at a time."""

import os
from collections.abc import Mapping

from ._capi import ffi, lib
from .context import context as default_context
from .errors import fail, text
from .owned import Owned
from .tensor import Tensor, made, tensor


class File(Owned, Mapping):
    """An open file, or a set of files (*.index.json), as a mapping from names to tensors, which are read when they are
    asked for:

        with files.File('model.safetensors') as f:
            print(f.metadata, f.shapes)
            w = f['hidden.weight']

    The tensors belong to the context, which is the current one by default.
    """

    def __init__(self, path, context=None):
        self._context = context or default_context()
        world = self._context._world
        self._own(world, lib.tg_safetensors_open(self._context._ctx, os.fsencode(path)), 'tg_safetensors_close')

    def close(self):
        if self._pointer is not None:
            if lib.tgpy_ctx(self._world) != ffi.NULL:  # the end of the context has closed the file
                lib.tg_safetensors_close(self._live)
            self._disown()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def _live(self):
        if self._pointer is None:
            raise ValueError('the file is closed')
        return super()._live

    def _entries(self):
        return [lib.tg_safetensors_at(self._live, i) for i in range(len(self))]

    def __len__(self):
        return lib.tg_safetensors_count(self._live)

    def __iter__(self):
        return (text(e.name) for e in self._entries())

    def __contains__(self, name):
        return lib.tg_safetensors_find(self._live, name.encode()) != ffi.NULL

    def __getitem__(self, name):
        if name not in self:
            raise KeyError(name)
        return made(self._context, lib.tg_safetensors_load(self._live, name.encode()))

    def read(self, name, into):
        """Reads a tensor into an existing one of the same shape; floats are converted to its dtype."""
        if lib.tg_safetensors_read(self._live, name.encode(), into._live(), True):
            fail(self._world)

    @property
    def shapes(self):
        """The shapes of all tensors by name."""
        return {text(e.name): tuple(e.shape.dim[0 : e.shape.ndim]) for e in self._entries()}

    @property
    def metadata(self):
        """The metadata of the file: a dict of strings."""
        n = lib.tg_safetensors_metadata_count(self._live)
        pairs = (lib.tg_safetensors_metadata_at(self._live, i) for i in range(n))
        return {text(p.key): text(p.value) for p in pairs}


def load(path, prefix=''):
    """The tensors of a file by name. With a prefix, those whose names begin with "<prefix>.", without it."""
    start = prefix + '.' if prefix else ''
    with File(path) as f:
        return {name.removeprefix(start): f[name] for name in f if name.startswith(start)}


def save(path, values, metadata=None):
    """Writes tensors to a file, which is replaced as a whole or, on an error, not at all. values is a dict of tensors
    and arrays by name, a module, or what else has a state_dict. A dict may have such values too, whose names then
    begin with the key and a dot. metadata is a dict, whose keys and values are saved as strings:

        save('run.safetensors', {'model': model, 'optimizer': opt}, {'epoch': 3})
        model.load_state_dict(load('run.safetensors', 'model'))
    """
    tensors = {}
    for name, x in _flat('', values):
        if name in tensors:
            raise ValueError(f'save: two of the values have the name {name!r}; each needs a name of its own')
        tensors[name] = x
    world = next((x._world for x in tensors.values()), None) or default_context()._world
    names = [ffi.new('char[]', name.encode()) for name in tensors]
    entries = ffi.new('tg_named_tensor[]', [(name, x._live()) for name, x in zip(names, tensors.values())])
    texts = [[ffi.new('char[]', str(part).encode()) for part in pair] for pair in (metadata or {}).items()]
    notes = ffi.new('tg_metadata[]', texts)
    if lib.tg_safetensors_save(lib.tgpy_ctx(world), os.fsencode(path), entries, len(tensors), notes, len(texts)):
        fail(world)


def _flat(name, value):
    """Pairs of names and tensors."""
    if isinstance(value, Tensor):
        yield name, value
    elif hasattr(value, 'state_dict'):
        yield from _flat(name, value.state_dict())
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _flat(f'{name}.{key}' if name else str(key), part)
    else:
        yield name, tensor(value)
