"""Recurrent layers (layers.h), with the equations, the names and the initial values of PyTorch."""
from .._capi import lib
from ..structs import options
from .native import Native


class _Recurrent(Native):
    """x [s, b, inputs], a batch of b sequences of s elements, gives y [s, b, d * hidden], with d 2 if bidirectional
    and else 1. Options: bidirectional, no_bias, dropout (of the outputs of every layer but the last one)."""
    _states = 1

    def __init__(self, inputs, hidden, layers=1, **fields):
        make = getattr(lib, f'tg_nn_{type(self).__name__.lower()}')
        super().__init__(lambda ctx: make(ctx, inputs, hidden, layers, options('tg_rnn_opts', fields)))

    def forward(self, x, *states):
        if len(states) > self._states:
            raise TypeError(f'{type(self).__name__} takes at most {self._states} states, but got {len(states)}')
        return self._run([x, *states, *[None] * (self._states - len(states))], 1 + self._states)


class GRU(_Recurrent):
    """A gated recurrent unit: y, h = gru(x, h). h is [layers * d, b, hidden], the state before the first element and
    after the last one; without it the state is 0."""
    __doc__ += '\n\n' + _Recurrent.__doc__


class LSTM(_Recurrent):
    """A long short-term memory: y, h, c = lstm(x, h, c). h and c are [layers * d, b, hidden], the state and the cell
    state before the first element and after the last one; without them they are 0."""
    __doc__ += '\n\n' + _Recurrent.__doc__
    _states = 2
