#!/usr/bin/env python3
"""snippets.py SOURCE BUILD PAGE: what a page shows of the examples is what they contain and print.

A block of code on the page must be a run of lines of the example that the page has linked to last; lines are compared
without their indentation, and each line `...` of the block leaves out lines of the example. A block that begins with
"$ build/examples/..." or "$ build/tools/..." is a command and what it prints: the commands of a page run one after
another, in an empty folder that has a copy of LICENSE. Numbers with a fraction may differ by 5 %: other instruction sets
and optimizations round otherwise, and a training run enlarges the difference. What ends in `...` is the beginning of an
output. Everything else must be equal.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

source, build, page = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
wrong = []


def words(text):
    return [line.strip() for line in text.strip('\n').split('\n')]


def contains(lines, block):
    """Whether the parts of the block, which `...` separates, are runs of the lines, in their order."""
    at = 0
    for part in '\n'.join(block).split('\n...\n'):
        part = part.split('\n')
        found = next((i for i in range(at, len(lines) - len(part) + 1) if lines[i:i + len(part)] == part), None)
        if found is None:
            return False
        at = found + len(part)
    return True


def check_code(example, block, number):
    if example is None:
        wrong.append(f'{page.name}:{number}: no example is linked to before this block')
    elif not contains(words((source / 'examples' / example).read_text()), words(block)):
        wrong.append(f'{page.name}:{number}: this is not in examples/{example}')


def alike(printed, expected):
    """Whether two texts have the same words, with nearly equal fractions, up to `...`."""
    printed, expected = printed.split(), expected.split()
    if expected and expected[-1].endswith('...'):
        begun = expected.pop()[:-3]  # of a word, or the dots alone
        if not ' '.join(printed[len(expected):]).startswith(begun):
            return False
        printed = printed[:len(expected)]
    return len(printed) == len(expected) and all(map(same_word, printed, expected))


def same_word(a, b):
    if not (re.fullmatch(r'-?\d+\.\d+', a) and re.fullmatch(r'-?\d+\.\d+', b)):
        return a == b
    return abs(float(a) - float(b)) <= 0.05 * max(abs(float(a)), abs(float(b)))


def check_output(block, number, folder):
    command, _, expected = block.partition('\n')
    command = command[2:].replace('build/', f'{build}/')
    done = subprocess.run(command, shell=True, cwd=folder, stdout=subprocess.PIPE, text=True)
    if not alike(done.stdout, expected):
        wrong.append(f'{page.name}:{number}: {command} prints\n{done.stdout}')


checked = 0
example = None
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(source / 'LICENSE', folder)
    text = page.read_text()
    for found in re.finditer(r'\(\.\./examples/([\w./]+)\)|^```(\w*)\n(.*?)^```$', text, re.M | re.S):
        number = text.count('\n', 0, found.start()) + 1
        link, language, block = found.groups()
        if link:
            example = link
        elif language in ('c', 'cpp', 'lua', 'go'):
            check_code(example, block, number)
            checked += 1
        elif block.startswith(('$ build/examples/', '$ build/tools/')):
            check_output(block, number, folder)
            checked += 1
for line in wrong:
    print(line)
print(f'{checked - len(wrong)} passed, {len(wrong)} failed')
sys.exit(bool(wrong) or not checked)
