"""Resize and Upsample: along each dim, elements of the result are weighted sums of those of the input."""

import numpy as np

from .. import ops
from ..tensor import full, tensor
from .dtypes import FLOATS, integers
from .registry import op


@op('Upsample')
def upsample(n, x, scales=None):
    factors = [float(s) for s in scales.numpy()] if scales is not None else n.scales
    for dim, factor in enumerate(factors):
        x = _along(n, x, dim, factor, int(np.floor(x.shape[dim] * factor)), 'asymmetric', 'floor', None)
    return x


@op('Resize')
def resize(n, x, *others):
    roi, scales, sizes = ([None, *others] + [None] * 3)[:3] if n.since < 11 else ([*others] + [None] * 3)[:3]
    axes = [a % x.ndim for a in getattr(n, 'axes', None) or range(x.ndim)]
    factors, wanted = _factors(n, [x.shape[a] for a in axes], scales, sizes)
    coordinates = getattr(n, 'coordinate_transformation_mode', None) or 'asymmetric'
    rounding = getattr(n, 'nearest_mode', None) or 'floor'
    if (y := _upsampled(n, x, axes, factors, wanted, coordinates)) is not None:
        return y
    box = roi.numpy() if roi is not None and roi.size else None
    for i, axis in enumerate(axes):
        part = (box[i], box[i + len(axes)]) if box is not None else None
        if factors[i] != 1 or wanted[i] != x.shape[axis] or coordinates == 'tf_crop_and_resize':
            x = _along(n, x, axis, factors[i], wanted[i], coordinates, rounding, part)
    return x


def _upsampled(n, x, axes, factors, wanted, coordinates):
    """Linear interpolation by the library's op, which resizes the dims after the first two; None if it differs."""
    corners = coordinates == 'align_corners'
    if n.mode != 'linear' or getattr(n, 'antialias', 0) or getattr(n, 'exclude_outside', 0):
        return None
    if not (corners or coordinates == 'half_pixel') or x.dtype not in FLOATS or not 3 <= x.ndim <= 5:
        return None
    sizes, scales = list(x.shape), [1.0] * x.ndim
    for axis, factor, size in zip(axes, factors, wanted):
        if corners and factor * sizes[axis] != size:  # ONNX places the last element at the unrounded size
            return None
        sizes[axis], scales[axis] = size, factor
    if sizes[:2] != list(x.shape[:2]) or scales[:2] != [1, 1]:
        return None
    named = {} if corners else {f'scale{d}': factor for d, factor in enumerate(scales[2:])}
    return ops.upsample_linear(x, size=sizes[2:], align_corners=corners, **named)


def _factors(n, sizes, scales, wanted):
    """The factor and the new size of each dim."""
    if scales is not None and scales.size:
        factors = [float(s) for s in scales.numpy()]
        return factors, [int(np.floor(size * f)) for size, f in zip(sizes, factors)]
    wanted = integers(wanted)
    factors = [w / size for w, size in zip(wanted, sizes)]
    policy = getattr(n, 'keep_aspect_ratio_policy', None) or 'stretch'
    if policy != 'stretch':
        factor = min(factors) if policy == 'not_larger' else max(factors)
        return [factor] * len(sizes), [int(np.floor(size * factor + 0.5)) for size in sizes]
    return factors, wanted


def _along(n, x, dim, factor, count, coordinates, rounding, roi):
    size = x.shape[dim]
    at = _positions(coordinates, factor, size, count, roi)
    if n.mode == 'nearest':
        y = ops.index_select(x, tensor(_nearest(at, rounding).clip(0, size - 1).astype('int64')), dim=dim)
    else:
        matrix = _weights(n, at, factor, size)
        order = [*(d for d in range(x.ndim) if d != dim), dim]
        y = ops.permute(x if x.dtype in FLOATS else x.cast('f32'), order)
        y = ops.permute(y @ tensor(matrix.T.copy(), y.dtype), [order.index(d) for d in range(x.ndim)])
        y = y if x.dtype in FLOATS else ops.cast(y, x.dtype)
    outside = (at < 0) | (at > size - 1)
    if coordinates == 'tf_crop_and_resize' and outside.any():
        mask = tensor(outside).reshape([-1, *[1] * (x.ndim - dim - 1)])
        y = ops.where(mask, full((), n.extrapolation_value, dtype=y.dtype), y)
    return y


def _positions(mode, factor, size, count, roi):
    """Positions in the input of the elements of the result."""
    i, width = np.arange(count, dtype='float64'), factor * size
    if mode == 'align_corners':
        return i * 0 if width == 1 else i * (size - 1) / (width - 1)
    if mode == 'asymmetric':
        return i / factor
    if mode == 'tf_crop_and_resize':
        start, end = (float(v) for v in roi)
        steps = i * 0 + (end - start) * (size - 1) / 2 if width == 1 else i * (end - start) * (size - 1) / (width - 1)
        return steps + start * (size - 1)
    if mode == 'pytorch_half_pixel' and width == 1:
        return i * 0 - 0.5
    offset = size / 2 * (1 - count / width) if mode == 'half_pixel_symmetric' else 0
    return offset + (i + 0.5) / factor - 0.5


def _nearest(at, rounding):
    return {
        'floor': np.floor,
        'ceil': np.ceil,
        'round_prefer_floor': lambda v: np.ceil(v - 0.5),
        'round_prefer_ceil': lambda v: np.floor(v + 0.5),
    }[rounding](at)


def _weights(n, at, factor, size):
    """The matrix [elements of the result, elements of the input] of linear or cubic interpolation. With antialias the
    kernel is as wide as the distance between the elements of a smaller result."""
    wide = min(factor, 1.0) if getattr(n, 'antialias', 0) else 1.0
    reach = 1 if n.mode == 'linear' else 2
    base = np.ceil(at) - 1
    first = int(np.floor(-reach / wide)) + 1
    taps = base[:, None] + np.arange(first, 2 - first)
    kernel = _tent if n.mode == 'linear' else _cubic(n)
    weights = kernel(np.abs(taps - at[:, None]) * wide)
    if wide < 1 or getattr(n, 'antialias', 0):
        weights = weights / weights.sum(1, keepdims=True)
    if getattr(n, 'exclude_outside', 0):
        weights = np.where((taps >= 0) & (taps < size), weights, 0)
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((len(at), size))
    np.add.at(matrix, (np.arange(len(at))[:, None], taps.clip(0, size - 1).astype(int)), weights)
    return matrix


def _tent(distance):
    return np.clip(1 - distance, 0, 1)


def _cubic(n):
    a = getattr(n, 'cubic_coeff_a', None)
    return cubic_kernel(-0.75 if a is None else a)


def cubic_kernel(a):
    """The kernel of cubic convolution."""

    def kernel(d):
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0))

    return kernel
