"""Optimizers (optim.h, lbfgs.h), learning-rate schedules, and averages of parameters.

The options of each class are the fields of the library's struct, by name:

    opt = optim.AdamW(model, lr=3e-4, weight_decay=0.1)
    loss.backward()
    opt.step()
    opt.zero_grad()
"""

import copy
import functools
import math

from ._capi import ffi, lib
from .averages import EMA, SWA
from .errors import BY_STATUS, fail, text
from .lbfgs import LBFGS
from .objects import note_site
from .owned import Owned
from .parameters import Parameters, state, write_all
from .structs import options
from .tensor import Tensor, tensor_for, wrap

__all__ = ['SGD', 'Adam', 'AdamW', 'RMSprop', 'Adagrad', 'Lion', 'Muon', 'LBFGS', 'EMA', 'SWA', 'Schedule', 'Optimizer']


class Schedule:
    """The learning rate of each step (tg_schedule in schedule.h). Called with the number of a step, from 1, it returns
    the rate. Further arguments, 0 by default:

    start_lr, warmup: the rate goes from start_lr to lr in the first `warmup` steps
    steps, min_lr: the rate falls to min_lr at step `steps`, which must not be less than warmup
    decay: how it falls: "constant" (not at all, the default), "linear", "cosine", "inverse_sqrt" or "wsd" (only in the
        last wsd_steps steps)
    wsd: the form of the fall of "wsd": "linear", "cosine", "exponential" or "minus_sqrt" """

    def __init__(self, lr, **fields):
        self._arguments = lr, fields
        self._struct = options('tg_schedule', {'lr': lr, **fields})
        if math.isnan(self(1)):
            raise ValueError(f'the schedule is invalid: lr {lr}, {fields}')

    def __call__(self, step):
        return lib.tg_schedule_lr(self._struct, step)

    def __reduce__(self):
        lr, fields = self._arguments
        return functools.partial(type(self), **fields), (lr,)


class Optimizer(Owned):
    """What all optimizers of optim.h have. The parameters are a module's, or a sequence of tensors. A module's
    parameters that require no gradient are left out."""

    _new = _struct = None  # the function that makes one, and the struct of its options
    _INTERNAL = frozenset('params _fields _calls _group_rates _max_norm _world _pointer _free'.split())

    def __init__(self, params, *, schedule=None, **fields):
        self.params = Parameters.of(params)
        self._fields, self._calls, self._group_rates = fields, [], {}
        world = self.params.world
        made = self._new(lib.tgpy_ctx(world), self.params.handles, len(self.params), self._options(fields))
        self._own(world, made, 'tg_optim_free')
        self._max_norm = 0.0
        if schedule is not None:
            self.add_group(self.params, schedule=schedule)

    def _options(self, fields):
        return options(self._struct, fields)

    # ---- Steps ----

    def step(self):
        """Steps every parameter that has a gradient. The step is skipped if a measured norm is not finite."""
        self._do(lib.tg_optim_step)

    def zero_grad(self):
        """Clears the gradients of all parameters."""
        self._do(lib.tg_optim_zero_grad)

    @property
    def steps(self):
        """The number of steps, without skipped ones."""
        return self._ask(lib.tg_optim_steps)

    @property
    def lr(self):
        """The learning rate of every group that has no schedule."""
        return self._ask(lib.tg_optim_lr)

    @lr.setter
    def lr(self, lr):
        self._do(lib.tg_optim_set_lr, lr)
        self._group_rates.clear()

    # ---- Groups ----

    def add_group(self, params, *, schedule=None, **fields):
        """Moves parameters of this optimizer into a group with numbers of its own (tg_group_opts): lr_scale,
        weight_decay, beta1, beta2, eps. Returns the number of the group."""
        params = Parameters.of(params)
        own = {x._handle() for x in self.params}
        for key, x in zip(params.keys, params.tensors):
            if x._handle() not in own:  # the library would refuse it after it has made the group
                raise BY_STATUS[lib.TG_ERR_ARGUMENT](f'add_group: parameter {key} does not belong to this optimizer')
        struct = options('tg_group_opts', fields if schedule is None else {**fields, 'schedule': schedule._struct})
        group = lib.tg_optim_add_group(self._live, struct)
        if group < 0:
            fail(self._world)
        self._do(lib.tg_optim_assign, group, params.handles, len(params))
        self._calls.append((Optimizer.add_group, (params,), {'schedule': schedule, **fields}))
        return group

    def set_lr_of(self, group, lr):
        """Sets the learning rate of one group until lr is set again."""
        self._do(lib.tg_optim_set_lr_of, group, lr)
        self._group_rates[group] = lr

    def no_decay_1d(self):
        """Removes the weight decay of parameters with fewer than 2 dims, such as biases."""
        self._do(lib.tg_optim_no_decay_1d)
        self._calls.append((Optimizer.no_decay_1d, (), {}))

    # ---- Norms ----

    @property
    def max_norm(self):
        """The norm of all gradients together to which each step clips. 0: steps do not measure it; infinity: they
        measure it only."""
        return self._max_norm

    @max_norm.setter
    def max_norm(self, max_norm):
        self._do(lib.tg_optim_set_clip, max_norm)
        self._max_norm = float(max_norm)

    @property
    def norm(self):
        """The norm that the last step has measured; NaN if it has not."""
        return self._ask(lib.tg_optim_norm)

    def clip(self, max_norm):
        """Measures the norm of the gradients now, and returns it. The next step clips to max_norm; 0: it does not
        clip."""
        return self._ask(lib.tg_optim_clip, max_norm)

    # ---- Loss scaling ----

    def set_loss_scale(self, **fields):
        """Turns on loss scaling, for float16, with the options of tg_loss_scale. Call backward on scale_loss(loss)."""
        self._do(lib.tg_optim_set_scale, options('tg_loss_scale', fields))
        self._calls.append((Optimizer.set_loss_scale, (), fields))

    @property
    def loss_scale(self):
        """The current scale; 1 if loss scaling is off."""
        return self._ask(lib.tg_optim_scale)

    def scale_loss(self, loss):
        """The loss times the current scale. Call backward on it before the next step."""
        note_site(1)
        box = ffi.new('tgpy_box *[1]')
        boxes = [loss._box]
        tape = lib.tgpy_ready(self._world, boxes, 1)
        y = ffi.new('tg_tensor *[1]', [lib.tg_scale_loss(lib.tgpy_tape_of(tape), loss._handle(), self._live)])
        lib.tgpy_results(self._world, tape, y, 1, boxes, 1, box)
        return wrap(box[0]) if box[0] else fail(self._world)

    # ---- The state ----

    def _state(self):
        return state(self, self.params, lib.tg_optim_state_count, lib.tg_optim_state)

    def state_dict(self):
        """Copies of the moments and other tensors of the state, and the count "steps". The options, rates and groups
        are not in it."""
        copies = {key: copy.deepcopy(x) for key, x in self._state().items()}
        return {**copies, 'steps': tensor_for(self.params.tensors[0], self.steps)}

    def load_state_dict(self, values):
        """Restores a state that state_dict has returned, of an optimizer with the same parameters."""
        values = dict(values)
        if 'steps' not in values:
            raise KeyError('the state of the optimizer lacks steps')
        steps = int(values.pop('steps'))
        write_all(self._state(), values, 'the optimizer')
        self._do(lib.tg_optim_set_steps, steps)

    # ---- Pickles and copies ----

    def __reduce__(self):
        """With its parameters, so that an optimizer and its model are pickled or copied together."""
        others = {name: value for name, value in vars(self).items() if name not in self._INTERNAL}
        settings = self.lr, self._group_rates, self.max_norm, self.state_dict(), others
        return _again, (type(self), self.params, self._fields, self._calls), settings

    def __setstate__(self, settings):
        self.lr, rates, self.max_norm, state, others = settings
        vars(self).update(others)
        for group, lr in rates.items():
            self.set_lr_of(group, lr)
        self.load_state_dict(state)

    def __repr__(self):
        return f'<{type(self).__name__} of {len(self.params)} parameters, lr {self.lr:g}>'


def _again(cls, params, fields, calls):
    """An optimizer that is made as another one was."""
    optimizer = object.__new__(cls)
    Optimizer.__init__(optimizer, params, **fields)
    for method, positional, named in calls:
        method(optimizer, *positional, **named)
    return optimizer


def _documented(name, struct, doc):
    """A class for tg_<name>_new. Its documentation has the fields of its options."""
    found = lib.tg_struct_find(struct.encode())
    fields = [found.fields[i] for i in range(found.n_fields)]
    shown = [f for f in fields if f.doc and f.kind != lib.TG_FIELD_POINTER and text(f.name) != 'n_others']
    lines = [f'{text(f.name)}: {text(f.doc)}' for f in shown]
    doc = '\n'.join([doc, '', *lines])
    new = getattr(lib, f'tg_{name.lower()}_new')
    return type(name, (Optimizer,), {'_new': new, '_struct': struct, '__module__': __name__, '__doc__': doc})


SGD = _documented('SGD', 'tg_sgd_opts', 'Stochastic gradient descent with momentum.')
Adam = _documented('Adam', 'tg_adamw_opts', 'Adam. Its weight decay is added to the gradient.')
AdamW = _documented('AdamW', 'tg_adamw_opts', 'AdamW. Its weight decay is subtracted from the parameter.')
RMSprop = _documented('RMSprop', 'tg_rmsprop_opts', 'RMSprop.')
Adagrad = _documented('Adagrad', 'tg_adagrad_opts', 'Adagrad.')
Lion = _documented('Lion', 'tg_lion_opts', 'Lion.')
_Muon = _documented('Muon', 'tg_muon_opts', 'Muon for matrices, and AdamW for all other parameters.')


class Muon(_Muon):
    __doc__ = (
        _Muon.__doc__
        + '''
others: matrices that AdamW steps, such as embeddings and the output matrix
adamw: options of AdamW for all parameters that Muon does not step, as a dict'''
    )

    def __init__(self, params, *, others=(), **fields):
        others = [others] if isinstance(others, Tensor) else list(others)
        super().__init__(params, others=Parameters(others) if others else (), **fields)

    def _options(self, fields):
        fields = dict(fields)
        others, adamw = fields.pop('others'), fields.pop('adamw', None)
        if others:
            fields.update(others=others.handles, n_others=len(others))
        if adamw is not None:
            fields['adamw'] = options('tg_adamw_opts', adamw)
        return options(self._struct, fields)
