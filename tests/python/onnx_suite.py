"""Runs the tests that onnx brings for backends (onnx.backend.test) on Tapegrad, and prints the counts.

    onnx_suite.py [--markdown] [--verbose] [WORD]

Cases whose names contain WORD. Tests of real models are left out, as they need the network. A case passes if the
outputs are within the tolerances of the suite. It is missing if MissingOp names what it needs. It is random if its
outputs are those of another random generator (shapes and dtypes are compared), and rounding if the outputs differ by no
more than rounding to their dtype does, where the tolerance is smaller. Anything else is a failure, and the exit status
is 1."""

import argparse
import collections
import glob
import os
import sys
import traceback
import warnings

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import tapegrad.onnx
from tapegrad.onnx.dtypes import DTYPES, from_proto

KINDS = ('node', 'simple', 'pytorch-converted', 'pytorch-operator')
OUTCOMES = ('passed', 'missing', 'random', 'rounding', 'failed')
CODES = {name: code for code, name in DTYPES.items()}
RANDOM = {'Bernoulli', 'RandomNormal', 'RandomNormalLike', 'RandomUniform', 'RandomUniformLike', 'Multinomial'}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--markdown', action='store_true', help='print tables for docs/onnx.md')
    parser.add_argument('--verbose', action='store_true', help='print the traceback of each failure')
    parser.add_argument('word', nargs='?', default='')
    options = parser.parse_args()
    warnings.simplefilter('ignore')
    counts, missing, failed = {}, collections.Counter(), []
    for kind in KINDS:
        counts[kind] = collections.Counter()
        for case in load_model_tests(kind=kind):
            if options.word in case.name:
                outcome, detail = outcome_of(case)
                counts[kind][outcome] += 1
                missing.update(detail if outcome == 'missing' else [])
                if outcome == 'failed':
                    failed.append(case.name)
                    print(f'failed: {case.name}: ' + (detail if options.verbose else detail.strip().splitlines()[-1]))
    (print_markdown if options.markdown else print_text)(counts, missing)
    return 1 if failed else 0


def outcome_of(case):
    """('passed', None), ('missing', names), ('random', None), ('rounding', None) or ('failed', traceback)."""
    try:
        proto = case.model or onnx.load(os.path.join(case.model_dir, 'model.onnx'))
        model = tapegrad.onnx.load(proto)
        exact = True
        for inputs, outputs in data_of(case, proto):
            results = model.run(dict(zip((i.name for i in proto.graph.input), map(value_of, inputs))))
            exact &= agree(case, flat(outputs), flat(results), any(node.op_type in RANDOM for node in proto.graph.node))
        if not exact:
            return 'random' if any(node.op_type in RANDOM for node in proto.graph.node) else 'rounding', None
        return 'passed', None
    except tapegrad.onnx.MissingOp as error:
        return 'missing', error.names
    except Exception:
        return 'failed', traceback.format_exc()


def agree(case, expected, found, random):
    """Whether the outputs are within the suite's tolerances. False if they are as good as they can be: random numbers
    of the same shape, or numbers whose difference is that of two roundings of the dtype, relative to the greatest
    output."""
    if random:
        assert [(x.shape, x.dtype) for x in expected] == [(x.shape, x.dtype) for x in found]
        return False
    try:
        Runner.assert_similar_outputs(expected, found, case.rtol, case.atol)
        return True
    except AssertionError:
        for x, y in zip(expected, found):
            unit = np.finfo(x.dtype).eps if x.dtype.kind == 'f' else 0
            Runner.assert_similar_outputs(
                [x], [y], max(case.rtol, 2 * unit), max(case.atol, unit * np.abs(x).max(initial=0))
            )
        return False


def flat(values):
    """All arrays in values, which may be nested."""
    arrays = [array_of(x) for x in values]
    return [part for x in arrays for part in (flat(x) if isinstance(x, list) else [x] if x is not None else [])]


def data_of(case, proto):
    """Inputs and outputs of the case: in memory, or in files."""
    if case.data_sets is not None:
        return case.data_sets
    return [
        [read_all(folder, 'input', proto.graph.input), read_all(folder, 'output', proto.graph.output)]
        for folder in sorted(glob.glob(os.path.join(case.model_dir, 'test_data_set_*')))
    ]


def read_all(folder, stem, infos):
    paths = [
        os.path.join(folder, f'{stem}_{i}.pb') for i in range(len(glob.glob(os.path.join(folder, stem + '_*.pb'))))
    ]
    return [read_one(path, info.type) for path, info in zip(paths, infos)]


def read_one(path, kind):
    with open(path, 'rb') as file:
        data = file.read()
    if kind.HasField('sequence_type'):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    return onnx.TensorProto.FromString(data)


def value_of(x):
    return from_proto(x) if isinstance(x, onnx.TensorProto) else x


def array_of(x):
    """A value of the suite or of the package as arrays of NumPy."""
    if isinstance(x, onnx.TensorProto):
        return onnx.numpy_helper.to_array(x)
    if isinstance(x, (list, tuple)):
        return [array_of(part) for part in x]
    if isinstance(x, tapegrad.Tensor):
        code = CODES[x.dtype]
        return x.numpy().astype(onnx.helper.tensor_dtype_to_np_dtype(code))
    return x if x is None else np.asarray(x)


def rows_of(counts):
    total = sum(counts.values(), collections.Counter())
    return [[kind, *(n[outcome] for outcome in OUTCOMES)] for kind, n in (*counts.items(), ('all', total))]


def print_text(counts, missing):
    for kind, *numbers in rows_of(counts):
        print(f'{kind}: ' + ', '.join(f'{k} {outcome}' for k, outcome in zip(numbers, OUTCOMES)))
    print('missing: ' + ', '.join(f'{name} {n}' for name, n in missing.most_common()))


def print_markdown(counts, missing):
    print('| tests | ' + ' | '.join(OUTCOMES) + ' |\n' + '| --- ' * (len(OUTCOMES) + 1) + '|')
    for row in rows_of(counts):
        print('| ' + ' | '.join(map(str, row)) + ' |')
    print('\n| missing | cases |\n| --- | --- |')
    for name, n in missing.most_common():
        print(f'| {name} | {n} |')


if __name__ == '__main__':
    sys.exit(main())
