"""The classes in C below Tensor and Op (python/objects.h). They are a second module in the shared object of _capi."""

import importlib.machinery
import importlib.util

from . import _capi

_loader = importlib.machinery.ExtensionFileLoader(f'{__package__}._objects', _capi.__file__)
_objects = importlib.util.module_from_spec(importlib.util.spec_from_loader(_loader.name, _loader))
TensorBase, OpBase = _objects.TensorBase, _objects.OpBase
note_site, setup = _objects.note_site, _objects.setup
