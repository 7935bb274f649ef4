"""Writes the type stub of tapegrad.ops, for editors and type checkers, from the manifest that the program prints.

stubs.py OUTPUT PROGRAM
"""

import json
import keyword
import subprocess
import sys

TYPES = {
    'bool': 'bool',
    'int': 'int',
    'int64': 'int',
    'double': 'float',
    'text': 'str',
    'list': 'Sequence[int]',
    'dtype': 'Dtype',
    'enum': 'str | int',
    'shape': 'int | Sequence[int]',
    'dims': 'int | Sequence[int] | str',
    'pointer': 'Any',
    'struct': 'Any',
}
HEAD = '''"""Every op of the library (generated from its table)."""
from typing import Any, Sequence

from .tensor import Tensor

Array = Tensor | float | Any  # what can be made a tensor: numbers, nested sequences, arrays
Dtype = str | Any

'''


def input_of(x):
    kind = 'Sequence[Array]' if x['list'] else 'Array'
    return f"{x['name']}: {kind} | None = None" if x['optional'] else f"{x['name']}: {kind}"


def argument_of(a):
    kind = TYPES[a['kind']]
    if a.get('count', 1) > 1:
        kind = 'int | Sequence[int]'
    return f"{a['name']}: {kind}" if a['required'] else f"{a['name']}: {kind} = {default_of(a)}"


def default_of(a):
    value = a['default']
    return repr(value) if isinstance(value, (bool, int, float, str)) else '...'


def result_of(op):
    if len(op['outputs']) == 1 and not op['outputs'][0]['list']:
        return 'Tensor'
    return (
        'tuple[Tensor, ...]'
        if any(o['list'] for o in op['outputs'])
        else f"tuple[{', '.join(['Tensor'] * len(op['outputs']))}]"
    )


def stub_of(op):
    """A function whose optional inputs and arguments come after the required ones, by name."""
    required = [input_of(x) for x in op['inputs'] if not x['optional']]
    optional = [input_of(x) for x in op['inputs'] if x['optional']]
    needed = [argument_of(a) for a in op['arguments'] if a['required']]
    given = [argument_of(a) for a in op['arguments'] if not a['required']]
    named = needed + given if optional else given
    parameters = required + (optional if optional else needed) + (['*', *named] if named else [])
    doc = '\n'.join([op['formula'], *(f"    {a['name']}: {a['doc']}" for a in op['arguments'] if a.get('doc'))])
    doc = doc.replace('\\', '\\\\')
    body = f'    """{doc}"""\n' if '\n' not in doc else f'    """{doc}\n    """\n'
    return f"def {op['name']}({', '.join(parameters)}) -> {result_of(op)}:\n{body}"


def main():
    output, program = sys.argv[1:]
    manifest = json.loads(subprocess.run([program, 'ops', '--json'], capture_output=True, check=True).stdout)
    ops = [op for op in manifest['ops'] if op['name'].isidentifier() and not keyword.iskeyword(op['name'])]
    with open(output, 'w') as out:
        out.write(HEAD + '\n'.join(map(stub_of, ops)))


main()
