"""Windows over the dims of images: pads, sizes of results, and positions."""

import numpy as np

from .. import ops
from ..tensor import tensor


class Windows:
    """Where the windows of a node lie along each spatial dim of an input."""

    def __init__(self, n, sizes, kernel):
        k = len(kernel)
        self.sizes, self.kernel = sizes, kernel
        self.strides = list(getattr(n, 'strides', None) or [1] * k)
        self.dilations = list(getattr(n, 'dilations', None) or [1] * k)
        self.extents = [(size - 1) * d + 1 for size, d in zip(kernel, self.dilations)]
        self.before, self.after = self._pads(n)
        self.ceil = bool(getattr(n, 'ceil_mode', 0))
        self.counts = [self._count(d, self.ceil) for d in range(k)]

    def _pads(self, n):
        """Numbers of elements to add before and after each dim. SAME gives ceil(size / stride) windows."""
        k, auto = len(self.kernel), getattr(n, 'auto_pad', None) or 'NOTSET'
        if auto == 'VALID':
            return [0] * k, [0] * k
        if auto == 'NOTSET':
            pads = getattr(n, 'pads', None) or [0] * 2 * k
            return pads[:k], pads[k:]
        total = [
            max(0, (-(-size // s) - 1) * s + e - size) for size, s, e in zip(self.sizes, self.strides, self.extents)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        return (small, large) if auto == 'SAME_UPPER' else (large, small)

    def _count(self, d, ceil):
        """The number of windows. With ceil_mode the last may reach beyond the pads, but must not start in them."""
        room = self.sizes[d] + self.before[d] + self.after[d] - self.extents[d]
        count = (-(-room // self.strides[d]) if ceil else room // self.strides[d]) + 1
        if ceil and (count - 1) * self.strides[d] >= self.sizes[d] + self.before[d]:
            count -= 1
        return count

    def places(self, d):
        """Positions in the input, of shape [windows, size of a window]; those outside lie in the pads."""
        starts = np.arange(self.counts[d]) * self.strides[d] - self.before[d]
        return starts[:, None] + np.arange(self.kernel[d]) * self.dilations[d]

    def simple(self):
        """Whether the ops that pool can make the pads: as many at both ends, and at most half a window."""
        return self.before == self.after and all(0 <= 2 * p <= k for p, k in zip(self.before, self.kernel))

    def padding(self):
        """The pads that an op makes."""
        return self.before if self.simple() else [0] * len(self.kernel)

    def extra(self):
        """How many elements the caller has to add to x before and after each dim: none if the op makes the pads. A
        negative number removes elements at the end."""
        if self.simple():
            return [(0, 0)] * len(self.kernel)
        parts = zip(self.counts, self.strides, self.extents, self.sizes, self.before)
        return [(before, (count - 1) * step + e - size - before) for count, step, e, size, before in parts]

    def taken(self, x, value):
        """x [n, c, size..] as [n, c, windows.., elements], with value in the pads."""
        k = len(self.kernel)
        for d in range(k):
            places, dim = self.places(d), 2 + 2 * d
            low, high = max(0, -places.min()), max(0, places.max() + 1 - self.sizes[d])
            x = ops.pad(x, dim, before=int(low), after=int(high), value=value) if low or high else x
            shape = [*x.shape[:dim], *places.shape, *x.shape[dim + 1 :]]
            x = ops.index_select(x, tensor((places + low).reshape(-1)), dim=dim).reshape(shape)
        order = [0, 1, *(2 + 2 * d for d in range(k)), *(3 + 2 * d for d in range(k))]
        return ops.permute(x, order).reshape([*x.shape[:2], *self.counts, int(np.prod(self.kernel))])

    def over(self, fn):
        """Returns fn(d, positions along dim d) for each dim d, as arrays of shape [windows.., elements] that the caller
        combines."""
        k = len(self.kernel)
        parts = [fn(d, self.places(d)) for d in range(k)]
        shaped = [
            p.reshape([p.shape[0] if i == d else 1 for i in range(k)] + [p.shape[1] if i == d else 1 for i in range(k)])
            for d, p in enumerate(parts)
        ]
        full = [*self.counts, *self.kernel]
        return [np.broadcast_to(p, full).reshape([*self.counts, -1]) for p in shaped]
