"""Averages of parameters over the steps of training (average.h), with which to evaluate a model."""

import contextlib
import copy

from ._capi import lib
from .owned import Owned
from .parameters import Parameters, state, write_all


class _Average(Owned):
    """What EMA and SWA share. The parameters are a module's, or a sequence of tensors."""

    def __init__(self, params, new, *numbers):
        self.params, self._numbers = Parameters.of(params), numbers
        world = self.params.world
        self._own(world, new(lib.tgpy_ctx(world), self.params.handles, len(self.params), *numbers), 'tg_average_free')

    def update(self):
        """Adds the present parameters to the averages. Call it after each step, or every few."""
        self._do(lib.tg_average_update)

    def apply(self):
        """Writes the averages into the parameters, and keeps copies of the parameters for restore."""
        self._do(lib.tg_average_apply)

    def restore(self):
        """Writes the parameters back."""
        self._do(lib.tg_average_restore)

    def commit(self):
        """Makes the averages that apply has written permanent: forgets the copies of the parameters."""
        self._do(lib.tg_average_commit)

    @contextlib.contextmanager
    def applied(self):
        """In `with ema.applied():` the parameters have the values of the averages. Their own values come back at the
        end."""
        self.apply()
        try:
            yield
        finally:
            self.restore()

    @property
    def updates(self):
        """The number of calls of update."""
        return self._ask(lib.tg_average_updates)

    def _state(self):
        return state(self, self.params, lib.tg_average_state_count, lib.tg_average_state)

    def state_dict(self):
        """Copies of the averages, and the count "updates"."""
        return {key: copy.deepcopy(x) for key, x in self._state().items()}

    def load_state_dict(self, values):
        """Restores a state that state_dict has returned."""
        write_all(self._state(), values, 'the average')

    def __reduce__(self):
        return type(self), (self.params, *self._numbers), self.state_dict()

    __setstate__ = load_state_dict


class EMA(_Average):
    """The exponential moving average: each update makes it decay * average + (1 - decay) * parameter."""

    def __init__(self, params, decay=0.999):
        super().__init__(params, lib.tg_ema_new, decay)


class SWA(_Average):
    """The plain mean of the parameters at all updates."""

    def __init__(self, params):
        super().__init__(params, lib.tg_swa_new)
