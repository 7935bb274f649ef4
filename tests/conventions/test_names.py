#!/usr/bin/env python3
"""test_names.py SOURCE BUILD: each test that a page of docs/ names as `suite / test` is in the build, and no test of suite
long has the name of another test, so that the name alone selects it.

Suites that this build does not have (those of an emulator, for example) are not checked, nor are tests that a suite has
only with CUDA, NCCL or MPI.
"""
import collections
import json
import pathlib
import re
import sys

source, build = (pathlib.Path(argument) for argument in sys.argv[1:3])
tests, suites = set(), set()
for test in json.loads((build / 'meson-info/intro-tests.json').read_text()):
    for suite in (name.split(':')[-1] for name in test['suite']):
        suites.add(suite)
        tests.add((suite, test['name']))

names = collections.Counter(name for _, name in tests)
wrong = checked = 0
for suite, name in sorted(tests):
    if suite == 'long':
        checked += 1
        if names[name] > 1:
            print(f'{suite} / {name} has the name of a test of another suite')
            wrong += 1
for page in sorted((source / 'docs').glob('*.md')):
    for suite, name in re.findall(r'`([a-z-]+) /\s+([^`]+)`', page.read_text()):
        name = ' '.join(name.split())
        if suite not in suites or re.search(r'cuda|NCCL|MPI', name):
            continue
        checked += 1
        if (suite, name) not in tests:
            print(f'{page.name} names the test {suite} / {name}, which does not exist')
            wrong += 1
print(f'{checked - wrong} passed, {wrong} failed')
sys.exit(bool(wrong) or not checked)
