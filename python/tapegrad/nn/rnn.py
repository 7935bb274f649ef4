"""Recurrent layers (layers.h), with the equations, the names and the initial values of PyTorch."""

import functools

from .._capi import lib
from ..structs import options
from .native import Native


def _made(new, sizes, fields, ctx):
    return getattr(lib, new)(ctx, *sizes, options('tg_rnn_opts', fields))


class _Recurrent(Native):
    """What both have."""

    def __init__(self, inputs, hidden, layers=1, **fields):
        super().__init__(functools.partial(_made, self._new, (inputs, hidden, layers), fields))

    def forward(self, x, *states):
        if len(states) > self._states:
            raise TypeError(f'{type(self).__name__} takes at most {self._states} states, but got {len(states)}')
        return self._run([x, *states, *[None] * (self._states - len(states))], 1 + self._states)


class GRU(_Recurrent):
    """A gated recurrent unit: y, h = gru(x, h). x is [s, b, inputs], a batch of b sequences of s elements, and y is
    [s, b, d * hidden], with d 2 if bidirectional and else 1. h is [layers * d, b, hidden], the state before the first
    element and after the last one; without it the state is 0. Options: bidirectional, no_bias, dropout (of the outputs
    of every layer but the last one)."""

    _new, _states = 'tg_nn_gru', 1


class LSTM(_Recurrent):
    """A long short-term memory: y, h, c = lstm(x, h, c). h and c are [layers * d, b, hidden], the state and the cell
    state before the first element and after the last one; without them they are 0. The other shapes and the options
    are those of GRU."""

    _new, _states = 'tg_nn_lstm', 2
