"""GridSample: images read at positions that are themselves values, so that gradients flow to both."""
import itertools

from .. import ops
from ..tensor import full
from .registry import op


@op('GridSample')
def grid_sample(n, x, grid):
    """x [n, c, size..] at grid [n, place.., k], whose last dim counts the spatial dims backward and goes from -1 to 1."""
    k, sizes, places = x.ndim - 2, x.shape[2:], grid.shape[1:-1]
    axes = [_Axis(n, ops.select(grid, -1, k - 1 - d).reshape([x.shape[0], -1]), sizes[d]) for d in range(k)]
    flat = x.reshape([*x.shape[:2], -1])
    y = None
    for taps in itertools.product(*(axis.taps() for axis in axes)):
        index, weight = taps[0]
        for (place, w), size in zip(taps[1:], sizes[1:]):
            index, weight = index * size + place, weight * w
        index = ops.contiguous(ops.expand(index.unsqueeze(1), [*x.shape[:2], index.shape[-1]]))
        part = ops.gather(flat, index, 2) * weight.unsqueeze(1)
        y = part if y is None else y + part
    return y.reshape([*x.shape[:2], *places])


class _Axis:
    """Positions along one dim of x, of shape [n, places]."""

    def __init__(self, n, at, size):
        self.size, self.padding = size, n.padding_mode
        self.mode = {'bilinear': 'linear', 'bicubic': 'cubic'}.get(n.mode, n.mode)
        self.low, self.high = (0.0, size - 1.0) if n.align_corners else (-0.5, size - 0.5)
        at = (at + 1) * ((size - 1) / 2) if n.align_corners else ((at + 1) * size - 1) * 0.5
        self.at = self._within(ops.round(at) if self.mode == 'nearest' else at)

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
        return ops.where(_outside(at, self.low, self.high), ops.where(ops.eq(odd, 0.0), rest + self.low, -rest + self.high), at)

    def taps(self):
        """(place, weight) of each element of x that counts; the weight of one outside is 0."""
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
