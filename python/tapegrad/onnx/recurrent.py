"""RNN, GRU and LSTM over steps of the library's ops."""

import functools

from .. import ops
from ..tensor import full, tensor
from .elementwise import FUNCTIONS
from .registry import op

# For each name a function of x, alpha and beta, and the defaults of alpha and beta; None: the function has none.
ACTIVATIONS = {
    'Sigmoid': (lambda x, a, b: ops.sigmoid(x), None, None),
    'Tanh': (lambda x, a, b: ops.tanh(x), None, None),
    'Relu': (lambda x, a, b: ops.relu(x), None, None),
    'Affine': (lambda x, a, b: x * a + b, 1, 0),
    'LeakyRelu': (lambda x, a, b: ops.leaky_relu(x, slope=a), 0.01, None),
    'ThresholdedRelu': (lambda x, a, b: ops.where(x > a, x, full((), 0, dtype=x.dtype)), 1, None),
    'ScaledTanh': (lambda x, a, b: ops.tanh(x * b) * a, 1, 1),
    'HardSigmoid': (lambda x, a, b: ops.clamp(x * a + b, 0, 1), 0.2, 0.5),
    'Elu': (lambda x, a, b: ops.elu(x, alpha=a), 1, None),
    'Softsign': (lambda x, a, b: FUNCTIONS['Softsign'](x), None, None),
    'Softplus': (lambda x, a, b: ops.softplus(x), None, None),
}


def activations_of(n, defaults, directions):
    """The functions of each direction. The node lists alpha and beta for those functions that have them, in order."""
    names = n.activations or defaults * directions
    alphas, betas = iter(n.activation_alpha or ()), iter(n.activation_beta or ())
    chosen = []
    for name in names:
        fn, a, b = ACTIVATIONS[name]
        a, b = (usual if usual is None else next(listed, usual) for usual, listed in ((a, alphas), (b, betas)))
        chosen.append(functools.partial(lambda fn, a, b, x: fn(x, a, b), fn, a, b))
    k = len(defaults)
    return [chosen[i * k : (i + 1) * k] for i in range(directions)]


def clipped(n, x):
    return ops.clamp(x, -n.clip, n.clip) if n.clip else x


def rnn_step(n, f, x, r, state, bias, peepholes):
    (h,) = state
    return (f[0](clipped(n, x + h @ ops.transpose(r, 0, 1) + bias[1])),)


def gru_step(n, f, x, r, state, bias, peepholes):
    """z = f(..), r = f(..), h~ = g(..): h = (1 - z) h~ + z h."""
    (h,) = state
    xz, xr, xh = ops.chunk(x, n=3, dim=1)
    rz, rr, rh = ops.chunk(r, n=3, dim=0)
    bz, br, bh = ops.chunk(bias[1], n=3, dim=0)
    z = f[0](clipped(n, xz + h @ ops.transpose(rz, 0, 1) + bz))
    s = f[0](clipped(n, xr + h @ ops.transpose(rr, 0, 1) + br))
    if n.linear_before_reset:
        new = f[1](clipped(n, xh + s * (h @ ops.transpose(rh, 0, 1) + bh)))
    else:
        new = f[1](clipped(n, xh + (s * h) @ ops.transpose(rh, 0, 1) + bh))
    return (new + z * (h - new),)


def lstm_step(n, f, x, r, state, bias, peepholes):
    """Gates i, o, f and the new value c, in this order."""
    h, c = state
    i, o, forget, new = ops.chunk(x + h @ ops.transpose(r, 0, 1) + bias[1], n=4, dim=1)
    pi, po, pf = ops.chunk(peepholes, n=3, dim=0) if peepholes is not None else (None,) * 3
    i = f[0](clipped(n, i if pi is None else i + pi * c))
    forget = 1 - i if n.input_forget else f[0](clipped(n, forget if pf is None else forget + pf * c))
    c = forget * c + i * f[1](clipped(n, new))
    o = f[0](clipped(n, o if po is None else o + po * c))
    return o * f[2](c), c


def _entry(name, defaults, step, gates, n_states):
    @op(name, layout=(None, 0, 1), activations=(None, *ACTIVATIONS))
    def recurrent(n, x, w, r, b=None, lengths=None, h=None, c=None, p=None):
        directions, hidden = r.shape[0], r.shape[2]
        x = ops.transpose(x, 0, 1) if getattr(n, 'layout', 0) else x
        states = [h, c][:n_states]
        if getattr(n, 'layout', 0):
            states = [s if s is None else ops.transpose(s, 0, 1) for s in states]
        zero = full((directions, x.shape[1], hidden), 0, dtype=x.dtype)
        states = [zero if s is None else s for s in states]
        b = full((directions, 2 * gates * hidden), 0, dtype=x.dtype) if b is None else b
        ys, ends = [], []
        for d, f in enumerate(activations_of(n, defaults, directions)):
            backward = n.direction == 'reverse' or d == 1
            bias = ops.chunk(ops.select(b, 0, d), n=2, dim=0)
            inputs = x @ ops.transpose(ops.select(w, 0, d), 0, 1) + bias[0]
            peepholes = None if p is None else ops.select(p, 0, d)
            run = functools.partial(step, n, f, r=ops.select(r, 0, d), bias=bias, peepholes=peepholes)
            y, end = _unrolled(run, inputs, [ops.select(s, 0, d) for s in states], lengths, backward)
            ys.append(y)
            ends.append(end)
        y = ops.stack(ys, dim=1)
        last = [ops.stack([end[k] for end in ends], dim=0) for k in range(n_states)]
        if getattr(n, 'layout', 0):
            y, last = ops.permute(y, [2, 0, 1, 3]), [ops.transpose(s, 0, 1) for s in last]
        return (y, *last)[: n.n_out]


def _unrolled(run, inputs, state, lengths, backward):
    """Runs the steps in order, or backward. Rows keep their state after the end of their sequence, where y is 0."""
    steps = inputs.shape[0]
    ys = [None] * steps
    for t in reversed(range(steps)) if backward else range(steps):
        new = run(x=ops.select(inputs, 0, t), state=state)
        y = new[0]
        if lengths is not None:
            live = (ops.cast(lengths, 'i64') > tensor(t, 'i64')).unsqueeze(1)
            new = [ops.where(live, a, b) for a, b in zip(new, state)]
            y = ops.where(live, y, full((), 0, dtype=y.dtype))
        state, ys[t] = list(new), y
    return ops.stack(ys, dim=0), state


_entry('RNN', ['Tanh'], rnn_step, 1, 1)
_entry('GRU', ['Sigmoid', 'Tanh'], gru_step, 3, 1)
_entry('LSTM', ['Sigmoid', 'Tanh', 'Tanh'], lstm_step, 4, 2)
