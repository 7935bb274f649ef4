"""Images that are read at positions which are themselves values, so that gradients flow to both."""

import itertools

import numpy as np

from .. import ops
from ..tensor import full, tensor
from .registry import op
from .windows import Windows


@op('GridSample')
def grid_sample(n, x, grid):
    """x [n, c, size..] at grid [n, place.., k], whose last dim counts the spatial dims backward and goes from -1 to
    1."""
    k, sizes, places = x.ndim - 2, x.shape[2:], grid.shape[1:-1]
    mode = {'bilinear': 'linear', 'bicubic': 'cubic'}.get(n.mode, n.mode)

    def axis(d):
        at = ops.select(grid, -1, k - 1 - d).reshape([x.shape[0], -1])
        at = (at + 1) * ((sizes[d] - 1) / 2) if n.align_corners else ((at + 1) * sizes[d] - 1) * 0.5
        return Axis(at, sizes[d], mode, n.padding_mode, n.align_corners)

    return sampled(x, [axis(d) for d in range(k)]).reshape([*x.shape[:2], *places])


def sampled(x, axes):
    """x [n, c, size..] at the positions that the axes have for each dim: [n, c, places]."""
    flat, y = x.reshape([*x.shape[:2], -1]), None
    for taps in itertools.product(*(axis.taps() for axis in axes)):
        index, weight = taps[0]
        for (place, w), axis in zip(taps[1:], axes[1:]):
            index, weight = index * axis.size + place, weight * w
        index = ops.contiguous(ops.expand(index.unsqueeze(1), [*x.shape[:2], index.shape[-1]]))
        part = ops.gather(flat, index, 2) * weight.unsqueeze(1)
        y = part if y is None else y + part
    return y


class Axis:
    """Positions along one dim of x, of shape [n, places]: 0 is the middle of the first element."""

    def __init__(self, at, size, mode='linear', padding='zeros', align_corners=False):
        self.size, self.mode, self.padding = size, mode, padding
        self.low, self.high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        self.at = self._within(ops.round(at) if mode == 'nearest' else at)

    def _within(self, at):
        if self.padding == 'border':
            return ops.where(_outside(at, self.low, self.high), ops.clamp(at, 0, self.size - 1), at)
        return self._reflected(at) if self.padding == 'reflection' else at

    def _reflected(self, at):
        """Positions outside [low, high] are mirrored at its ends until they are within."""
        length = self.high - self.low
        if not length:
            return at * 0
        distance = ops.abs(at - self.low)
        turns = ops.floor(distance * (1 / length))
        rest = distance - turns * length
        odd = turns - ops.floor(turns * 0.5) * 2
        return ops.where(
            _outside(at, self.low, self.high), ops.where(ops.eq(odd, 0.0), rest + self.low, -rest + self.high), at
        )

    def taps(self):
        """(place, weight) of each element of x that counts. For a place outside of x the padding decides: with zeros
        the weight is 0, with border the place is that of the nearest element, and with reflection it is mirrored."""
        if self.mode == 'nearest':
            return [self._tap(self.at, full((), 1, dtype=self.at.dtype))]
        base = ops.floor(self.at).detach()
        t = self.at - base
        weights = [-t + 1, t] if self.mode == 'linear' else _cubic(t)
        first = 0 if self.mode == 'linear' else -1
        return [self._tap(base + (first + i), w) for i, w in enumerate(weights)]

    def _tap(self, place, weight):
        outside = _outside(place, 0, self.size - 1)
        if self.padding == 'zeros':
            weight = ops.where(outside, full((), 0, dtype=weight.dtype), weight)
        elif self.padding == 'reflection':
            place = self._reflected(place)
        return ops.cast(ops.clamp(place, 0, self.size - 1), 'i64'), weight


def _outside(at, low, high):
    return ops.ne(ops.clamp(at, low, high), at)


def _cubic(t, a=-0.75):
    def far(d):
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    def near(d):
        return (d * (a + 2) - (a + 3)) * d * d + 1

    return [far(t + 1), near(t), near(-t + 1), far(-t + 2)]


@op('DeformConv')
def deform_conv(n, x, w, offsets, b=None, mask=None):
    """A convolution whose windows have an offset for each of their elements: offsets [n, groups * elements * k,
    place..]."""
    k, c, sizes = x.ndim - 2, x.shape[1], x.shape[2:]
    windows = Windows(n, sizes, list(w.shape[2:]))
    elements, places, groups = int(np.prod(windows.kernel)), int(np.prod(windows.counts)), n.offset_group
    offsets = offsets.reshape([x.shape[0] * groups, elements, k, places])
    axes = []
    for d, at in enumerate(windows.over(lambda d, at: at)):
        base = tensor(np.ascontiguousarray(at.reshape(places, elements).T), x.dtype)
        axes.append(Axis((ops.select(offsets, 2, d) + base).reshape([-1, elements * places]), sizes[d]))
    taken = sampled(x.reshape([x.shape[0] * groups, c // groups, *sizes]), axes)
    if mask is not None:
        taken = taken * mask.reshape([x.shape[0] * groups, 1, elements * places])
    columns = taken.reshape([x.shape[0], n.group, c // n.group * elements, places])
    y = w.reshape([n.group, w.shape[0] // n.group, -1]) @ columns
    y = y.reshape([x.shape[0], w.shape[0], *windows.counts])
    return y if b is None else y + b.reshape([-1, *[1] * k])
