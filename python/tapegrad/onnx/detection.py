"""Boxes. Which ones are kept is decided on the host."""
import numpy as np

from ..tensor import tensor
from .registry import op


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
