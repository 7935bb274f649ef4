"""Boxes, whose corners are read on the host."""

import numpy as np

from .. import ops
from ..tensor import tensor
from .dtypes import integers
from .registry import op
from .sample import Axis, sampled


@op('NonMaxSuppression')
def non_max_suppression(n, boxes, scores, count=None, overlap=None, threshold=None):
    """(batch, class, box) of the best boxes of each class that overlap none which is better."""
    limit = max(0, int(count.numpy().reshape(-1)[0])) if count is not None else 0
    most = float(overlap.numpy().reshape(-1)[0]) if overlap is not None else 0.0
    least = float(threshold.numpy().reshape(-1)[0]) if threshold is not None else -np.inf
    corners, points, kept = _corners(boxes.numpy(), n.center_point_box), scores.numpy(), []
    for b in range(points.shape[0]):
        for c in range(points.shape[1]):
            kept += [(b, c, i) for i in _best(corners[b], points[b, c], limit, most, least)]
    return tensor(np.array(kept, 'int64').reshape(-1, 3))


def _corners(boxes, centered):
    """Boxes as (low, high) corners."""
    a, b = boxes[..., :2], boxes[..., 2:]
    if centered:
        return np.concatenate([a - b / 2, a + b / 2], -1)
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], -1)


def _best(boxes, scores, limit, most, least):
    chosen = []
    for i in np.argsort(-scores, kind='stable'):
        if len(chosen) < limit and scores[i] > least and all(_overlap(boxes[i], boxes[j]) <= most for j in chosen):
            chosen.append(int(i))
    return chosen


def _overlap(a, b):
    """The area in both, divided by the area in either."""
    shared = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
    return shared / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - shared) if shared > 0 else 0.0


@op('RoiAlign', mode=('avg',))
def roi_align(n, x, boxes, batch):
    """Means of bilinear samples in the cells of each box. Gradients flow to x, not to the boxes."""
    offset = 0.5 if getattr(n, 'coordinate_transformation_mode', None) == 'half_pixel' else 0.0
    rows = []
    for box, image in zip(boxes.numpy().astype('float64') * n.spatial_scale - offset, integers(batch)):
        rows.append(_aligned(n, ops.slice(x, 0, start=image, stop=image + 1), box, offset))
    return ops.concat(rows, dim=0)


def _aligned(n, x, box, offset):
    """The cells of one box (x, y, x, y) of one image."""
    sides, counts, inside = [], [], []
    for d, cells in ((0, n.output_height), (1, n.output_width)):
        start, end = box[1 - d], box[3 - d]
        length = end - start if offset else max(end - start, 1.0)
        k = n.sampling_ratio or int(np.ceil(length / cells))
        at = start + (np.arange(cells * k) + 0.5) * (length / cells / k)
        sides.append(at)
        counts += [cells, k]
        inside.append((at >= -1) & (at <= x.shape[2 + d]))
    shape = (len(sides[0]), len(sides[1]))
    places = [np.broadcast_to(sides[0][:, None], shape), np.broadcast_to(sides[1], shape)]
    axes = [
        Axis(tensor(np.clip(p, 0, size - 1).reshape(1, -1), x.dtype), size, padding='border')
        for p, size in zip(places, x.shape[2:])
    ]
    samples = sampled(x, axes) * tensor(np.outer(*inside).reshape(-1), x.dtype)
    return ops.mean(samples.reshape([1, x.shape[1], *counts]), dims=[3, 5])
