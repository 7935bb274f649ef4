"""L-BFGS (lbfgs.h): for problems with few parameters whose loss and gradient are exact."""

from ._capi import ffi, lib
from .callbacks import forget, found, guarded, register
from .errors import fail, using
from .owned import Owned
from .parameters import Parameters
from .structs import options


class LBFGS(Owned):
    """L-BFGS. The options are those of tg_lbfgs_opts: lr, iterations, evaluations, history, gradient_tolerance,
    change_tolerance."""

    def __init__(self, params, **fields):
        self.params = Parameters(params)
        world, struct = self.params.world, options('tg_lbfgs_opts', fields)
        made = lib.tg_lbfgs_new(lib.tgpy_ctx(world), self.params.handles, len(self.params), struct)
        self._own(world, made, 'tg_lbfgs_free')

    def step(self, closure):
        """Runs up to `iterations` iterations, and returns the loss at the parameters that it has found. closure()
        returns the loss at the present parameters as a tensor of one element, on which step calls backward."""
        user, loss = register((self._world, closure)), ffi.new('double *')
        try:
            with using(self._world):
                if lib.tg_lbfgs_step(self._live, lib.tgpy_on_loss, user, loss):
                    fail(self._world)
        finally:
            forget(user)
        return loss[0]

    def zero_grad(self):
        """Clears the gradients of all parameters."""
        self.params.zero_grad()


@ffi.def_extern()
def tgpy_on_loss(user, loss):
    world, closure = found(user)

    def run():
        y = closure()
        loss[0] = y.item()
        y.backward()

    return guarded(world, run)
