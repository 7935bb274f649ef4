"""Probabilities of tg_sampling_probabilities are those of transformers' logits processors, in the order in which
transformers' generate applies them."""

import ctypes
import os
import pathlib
import random
import unittest

import torch
from transformers.generation import logits_process as hf

BUILD = pathlib.Path(os.environ.get('TG_BUILD_ROOT', pathlib.Path(__file__).parents[2] / 'build'))


class SamplingOptions(ctypes.Structure):
    _fields_ = [('size', ctypes.c_size_t), ('temperature', ctypes.c_double), ('top_k', ctypes.c_int64),
                ('top_p', ctypes.c_double), ('min_p', ctypes.c_double), ('repetition_penalty', ctypes.c_double),
                ('presence_penalty', ctypes.c_double), ('frequency_penalty', ctypes.c_double),
                ('seed', ctypes.c_uint64)]


def load_library():
    library = ctypes.CDLL(str(BUILD / 'src/libtapegrad.so'))
    library.tg_ctx_new.restype = ctypes.c_void_p
    library.tg_ctx_message.restype = ctypes.c_char_p
    return library


library = load_library()
context = ctypes.c_void_p(library.tg_ctx_new(None))


def probabilities(logits, ids, **options):
    o = SamplingOptions(ctypes.sizeof(SamplingOptions), **options)
    x = (ctypes.c_double * len(logits))(*logits)
    history = (ctypes.c_int64 * max(1, len(ids)))(*ids)
    status = library.tg_sampling_probabilities(context, x, ctypes.c_int64(len(logits)), history,
                                               ctypes.c_int64(len(ids)), ctypes.c_int64(len(ids)), ctypes.byref(o), x)
    if status:
        raise ValueError(library.tg_ctx_message(context).decode())
    return torch.tensor(list(x), dtype=torch.float64)


def theirs(logits, ids, o):
    scores, history = torch.tensor([logits], dtype=torch.float64), torch.tensor([ids], dtype=torch.int64)
    processors = hf.LogitsProcessorList()
    if o['repetition_penalty'] != 1:
        processors.append(hf.RepetitionPenaltyLogitsProcessor(penalty=o['repetition_penalty']))
    processors.append(hf.TemperatureLogitsWarper(o['temperature']))
    if o['top_k']:
        processors.append(hf.TopKLogitsWarper(top_k=o['top_k']))
    if o['top_p'] < 1:
        processors.append(hf.TopPLogitsWarper(top_p=o['top_p']))
    if o['min_p'] > 0:
        processors.append(hf.MinPLogitsWarper(min_p=o['min_p']))
    return torch.softmax(processors(history, scores), dim=-1)[0]


class Processors(unittest.TestCase):
    def test_probabilities_are_those_of_transformers(self):
        draw = random.Random(7)
        for case in range(3000):
            vocab = draw.randint(2, 300)
            logits = [draw.gauss(0, 4) for _ in range(vocab)]
            ids = [draw.randrange(vocab) for _ in range(draw.randint(1, 30))]
            o = {'temperature': draw.choice([1.0, draw.uniform(0.1, 3)]),
                 'top_k': draw.choice([0, draw.randint(1, 2 * vocab)]),
                 'top_p': draw.choice([1.0, draw.uniform(0.01, 0.99)]),
                 'min_p': draw.choice([0.0, draw.uniform(0, 0.5)]),
                 'repetition_penalty': draw.choice([1.0, draw.uniform(0.5, 2)])}
            ours = probabilities(logits, ids, **o)
            self.assertLess(float((ours - theirs(logits, ids, o)).abs().max()), 1e-12, f'case {case}: {o}')

    def test_one_distribution_is_not_another(self):
        logits = [0.0, 1.0, 2.0]
        o = {'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'min_p': 0.0, 'repetition_penalty': 1.0}
        self.assertGreater(float((probabilities(logits, [], **o) - theirs(logits, [0], o | {'top_k': 2})).abs().max()),
                           0.05)


if __name__ == '__main__':
    unittest.main()
