"""Structs of options, filled from keyword arguments. The library describes them, so no field is named here."""

import difflib
import weakref

from ._capi import ffi, lib
from .errors import text
from .values import dtype_value, shape_value

_fields = {}
_alive = weakref.WeakKeyDictionary()  # for each struct a list of what its fields point to, kept as long as the struct


def fields_of(name):
    """The fields of a struct of options by their names."""
    if name not in _fields:
        found = lib.tg_struct_find(name.encode())
        _fields[name] = {text(found.fields[i].name): found.fields[i] for i in range(found.n_fields)}
    return _fields[name]


def enum_value(enum, value):
    """The integer of an enum's value, which may be given by its name without the prefix: "mean" for TG_LOSS_MEAN."""
    if isinstance(value, int):
        return value
    found = lib.tg_enum_find(enum)
    names = {text(v.name).removeprefix(text(found.prefix)).lower(): v.value for v in found.values[0 : found.n_values]}
    if value not in names:
        raise ValueError(f'{value!r} is not one of {", ".join(map(repr, names))}')
    return names[value]


def _converted(field, value, keep):
    """A field's value in C. keep is a list of what must live as long as the struct."""
    kind = field.kind
    if kind == lib.TG_FIELD_TEXT:
        value = ffi.NULL if value is None else ffi.new('char[]', str(value).encode())
    elif kind == lib.TG_FIELD_DTYPE:
        value = dtype_value(value)
    elif kind == lib.TG_FIELD_ENUM:
        value = enum_value(field.of, value)
    elif kind == lib.TG_FIELD_SHAPE:
        value = shape_value(value)
    elif kind == lib.TG_FIELD_TENSOR:
        keep.append(value)
        value = value._handle()
    elif field.count > 1:
        value = [value] * field.count if not isinstance(value, (list, tuple)) else list(value)
    keep.append(value)
    return value


def options(name, values):
    """A struct of options with its defaults, in which the given values replace theirs."""
    struct, keep = ffi.new(name + ' *'), []
    lib.tg_struct_fill(name.encode(), struct, ffi.sizeof(name))
    fields = fields_of(name)
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            raise TypeError(f'there is no option {key!r}' + (f'; did you mean {near[0]!r}?' if near else f' of {name}'))
        try:
            setattr(struct, key, _converted(fields[key], value, keep))
        except (TypeError, OverflowError) as error:
            raise type(error)(f'option {key} is {value!r}: {error}') from None
    _alive[struct] = keep
    return struct


def fields_set(name, struct):
    """The values from which `options` makes a struct like this one. Raises TypeError if the struct has a pointer that
    is neither a text nor NULL."""
    found = {}
    for key, field in fields_of(name).items():
        value = getattr(struct, key)
        if field.kind == lib.TG_FIELD_TEXT:
            value = None if value == ffi.NULL else text(value)
        elif isinstance(value, ffi.CData):
            if value != ffi.NULL:
                raise TypeError(f'{key} of {name} is a pointer, which cannot be copied')
            continue
        found[key] = value
    return found
