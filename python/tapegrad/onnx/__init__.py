"""Models in ONNX on Tapegrad: load("model.onnx") is a function of tensors, with parameters that can be trained.
docs/onnx.md."""

from . import (  # noqa: F401 # each module enters its ops into the table
    attention,
    control,
    convolution,
    detection,
    elementwise,
    gradient,
    loss,
    matmul,
    norm,
    places,
    pool,
    quantize,
    random,
    recurrent,
    reduce,
    resize,
    sample,
    sequence,
    shape,
    signal,
)
from .model import Model, load
from .registry import MissingOp

__all__ = ['MissingOp', 'Model', 'load']
