"""Language models of the library (lm.h, gpt.h)."""

import functools
import os

from .._capi import ffi, lib
from ..errors import fail, using
from ..objects import note_site
from ..owned import Owned
from ..structs import enum_value, fields_set, options
from ..tensor import _context_of, tensor, uniform
from .native import Native, next_draws, results


def _made(new, struct, config, ctx):
    return getattr(lib, new)(ctx, options(struct, config))


class LM(Native):
    """A language model: a decoder of transformer layers. The options are those of tg_lm_config, of which vocab,
    layers, heads, hidden and positions must be given. Called with ids [b, s], it returns the logits [b, s, vocab]."""

    _new, _struct = 'tg_lm_new', 'tg_lm_config'

    def __init__(self, **config):
        super().__init__(functools.partial(_made, self._new, self._struct, config))

    def forward(self, ids):
        next_draws(self._root._world)
        return super().forward(ids)

    def loss(self, ids, targets, reduction='mean'):
        """The cross-entropy of the logits of ids with targets, both [b, s]. A target of -100 does not count."""
        note_site(1)
        logits = self(ids)
        return logits.reshape([-1, logits.shape[-1]]).cross_entropy(target=targets.reshape([-1]), reduction=reduction)

    def save(self, folder):
        """Saves the weights into a folder, with the names of published checkpoints (tg_lm_save)."""
        if not self.is_whole:
            raise ValueError('a model whose modules were replaced has no published format; use tapegrad.save')
        os.makedirs(folder, exist_ok=True)
        self._file(lib.tg_lm_save, os.fsencode(folder), ffi.NULL)

    def load(self, folder):
        """Fills the model from the weights in a folder (tg_lm_load)."""
        self._file(lib.tg_lm_load, os.fsencode(folder))

    def _file(self, call, *arguments):
        if call(ffi.new('tg_module *[1]', [self._module]), 1, *arguments):
            fail(self._root._world)


class GPT(LM):
    """A GPT-2 or Llama: arch "gpt2" or "llama". The options are those of tg_gpt_config, of which vocab, layers, heads,
    hidden and positions must be given. Called with ids [b, s], it returns the logits [b, s, vocab]."""

    _new, _struct = 'tg_gpt_new', 'tg_gpt_config'

    @classmethod
    def from_folder(cls, folder):
        """The model that config.json in a folder describes, with the weights there."""
        return cls._read(lambda ctx: lib.tg_gpt_load(ctx, os.fsencode(folder)))

    @classmethod
    def from_config(cls, path):
        """The model that a config.json describes, with random weights."""
        return cls._read(lambda ctx: lib.tg_gpt_from_config(ctx, os.fsencode(path)))

    @classmethod
    def _read(cls, make):
        model = object.__new__(cls)
        Native.__init__(model, make)
        config = fields_set(cls._struct, lib.tg_gpt_config_of(model._module))
        model._origin.make = functools.partial(_made, cls._new, cls._struct, config)  # copies need no file
        return model

    def loss(self, ids, targets, reduction='mean'):
        """The cross-entropy of the logits of ids with targets, both [b, s]. A target of -100 does not count. Only the
        logits of a few tokens are in memory at a time."""
        note_site(1)
        next_draws(self._root._world)
        world, boxes = self._root._world, [ids._box, targets._box]
        tape = lib.tgpy_ready(world, boxes, 2)
        reduction = enum_value(b'tg_loss_reduction', reduction)
        with using(world):
            y = lib.tg_gpt_loss(self._module, lib.tgpy_tape_of(tape), ids._handle(), targets._handle(), reduction)
        return results(world, tape, ffi.new('tg_tensor *[1]', [y]), 1, boxes)[0]

    def generate(self, ids, n, temperature=0.0):
        """n further tokens for each of the sequences ids, lists of equal length: the most likely ones, or, with a
        temperature above 0, tokens that are drawn at it. Returns lists of tokens."""
        note_site(1)
        ids = [list(row) for row in ids]
        if n < 0:
            raise ValueError(f'generate: n is {n}, but must be 0 or more')
        if len({len(row) for row in ids}) != 1 or not ids[0]:
            lengths = [len(row) for row in ids]
            raise ValueError(f'generate: the sequences have the lengths {lengths}; expected equal ones of 1 or more')
        cache = _Cache(self, len(ids), len(ids[0]) + n)
        step = ids
        before = lib.tgpy_set_grad(self._root._world, False)
        try:
            for _ in range(n):
                scores = cache.next(step)
                if temperature > 0:
                    scores = _perturbed(scores, temperature)
                step = [[token] for token in scores.argmax(dim=-1).tolist()]
                ids = [row + token for row, token in zip(ids, step)]
        finally:
            lib.tgpy_set_grad(self._root._world, before)
        return ids


def _perturbed(scores, temperature):
    """scores / temperature plus Gumbel noise: the greatest element of a row is a draw from the softmax of the row."""
    if scores.dtype in ('bf16', 'f16'):
        scores = scores.cast('f32')  # noise of 16 bits has few values, so that several elements would be the greatest
    noise = -(-uniform(scores.shape, 1e-12, 1, dtype=scores.dtype, context=_context_of(scores)).log()).log()
    return scores / temperature + noise


class _Cache(Owned):
    """The keys and values of the tokens that were given (tg_gpt_cache)."""

    def __init__(self, gpt, batch, positions):
        self.gpt = gpt
        self._own(gpt._root._world, lib.tg_gpt_cache_new(gpt._module, batch, positions), 'tg_gpt_cache_free')

    def next(self, ids):
        """The logits [b, vocab] of the token after ids, b lists of n tokens, which are appended."""
        ids = tensor(ids, context=_context_of(self))
        tape = lib.tgpy_ready(self._world, [ids._box], 1)
        with using(self._world):
            y = lib.tg_gpt_next(self.gpt._module, lib.tgpy_tape_of(tape), self._live, ids._handle())
        return results(self._world, tape, ffi.new('tg_tensor *[1]', [y]), 1, [ids._box])[0]
