"""Fourier transforms, as products with matrices of cosines and sines, and weights of spectra."""

import numpy as np

from .. import ops
from ..tensor import tensor
from .dtypes import dtype
from .registry import op


@op('DFT')
def dft(n, x, length=None, axis=None):
    """x [.., 1 or 2]: the last dim has the real and the imaginary part."""
    dim = (int(axis.item()) if axis is not None else -2 if n.since >= 20 else n.axis) % x.ndim
    order = [*(d for d in range(x.ndim - 1) if d != dim), dim, x.ndim - 1]
    count = int(length.item()) if length is not None else None
    y = transformed(ops.permute(x, order), count, bool(n.inverse), bool(n.onesided))
    return ops.permute(y, [order.index(d) for d in range(x.ndim)])


def transformed(x, length, inverse, onesided):
    """The transform of the dim before the last one. onesided gives the first half of the spectrum, or takes it and
    gives real numbers."""
    half = inverse and onesided
    length = length or (2 * (x.shape[-2] - 1) if half else x.shape[-2])
    used = min(x.shape[-2], length // 2 + 1 if half else length)
    x = ops.slice(x, x.ndim - 2, stop=used)
    angle = 2 * np.pi * np.outer(np.arange(used), np.arange(length)) / length
    cos, sin = np.cos(angle), np.sin(angle)
    if half:
        twice = np.where((np.arange(used) == 0) | (2 * np.arange(used) == length), 1, 2)[:, None]
        cos, sin = cos * twice, sin * twice
    elif onesided:
        cos, sin = cos[:, : length // 2 + 1], sin[:, : length // 2 + 1]
    cos, sin = (tensor(np.ascontiguousarray(m) / (length if inverse else 1), x.dtype) for m in (cos, sin))
    real, imaginary = ops.select(x, -1, 0), ops.select(x, -1, 1) if x.shape[-1] == 2 else None
    sign = 1 if inverse else -1
    re, im = real @ cos, (real @ sin) * sign
    if imaginary is not None:
        re, im = re - (imaginary @ sin) * sign, im + imaginary @ cos
    return re.unsqueeze(-1) if half else ops.stack([re, im], dim=-1)


@op('STFT')
def stft(n, x, step, window=None, length=None):
    """The transforms of frames of x [n, length, 1 or 2]."""
    size = int(length.item()) if length is not None else window.shape[0]
    frames = ops.permute(ops.unfold(x, 1, size, int(step.item())), [0, 1, 3, 2])
    if window is not None:
        frames = frames * window.reshape([-1, 1])
    return transformed(frames, None, False, bool(n.onesided))


@op('MelWeightMatrix')
def mel_weights(n, bins, length, rate, low, high):
    """The weights [spectrum, bins] of triangles that are equally wide on the mel scale."""
    bins, length = int(bins.item()), int(length.item())
    first, last = (2595 * np.log10(1 + edge.item() / 700) for edge in (low, high))
    mel = np.arange(bins + 2) * (last - first) / (bins + 2) + first
    edges = (length + 1) * 700 * (10 ** (mel / 2595) - 1) // rate.item()
    left, middle, right = (edges[i : bins + i] for i in range(3))
    place = np.arange(length // 2 + 1)[:, None]
    rising = np.where(left < middle, (place - left) / np.maximum(middle - left, 1), place == middle)
    falling = (right - place) / np.maximum(right - middle, 1)
    weights = np.where((place > middle) | (place == middle) & (right > middle), falling, rising)
    inside = (place >= left) & ((place < right) | (place == middle))
    return tensor(np.where(inside, weights, 0), dtype(n.output_datatype))
