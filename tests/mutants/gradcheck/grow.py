#!/usr/bin/env python3
"""grow.py BUILD OUT.c OUT.a DEPFILE LIST...: compiles the mutants of the lists: mistakes seeded in backward functions.

A list has paragraphs, one for each mutant, and lines that hold for all paragraphs after them:

  file PATH             the file that is changed
  unit PATH...          the sources that are compiled with it, if these are others; the op's own is among them
  slot NAME             the change is in this composed slot of a device, not in the op; "none": in the op again
  mutant OP INPUT CLASS: WHAT    the op whose samples find it, the input, and the kind that the report must name
  in FUNCTION           the function that is changed
  formula NAME          or the row of kernels/scalar.h that is changed, whose whole value follows
  - LINE                lines that are there once (of the first and last line a part is enough) ...
  + LINE                ... and the lines that replace them

The sources of a mutant are compiled with BUILD's commands, less optimized. All their symbols become local except the
op's or slot's own, which becomes mutant_N. OUT.a has the objects, OUT.c the table of all mutants, and the formulas.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
SCALAR = 'src/kernels/scalar.h'


class Wrong(Exception):
    pass


def read_lists(paths):
    mutants, held = [], {'slot': None}
    for path in paths:
        mutant = None
        with open(path, encoding='utf-8') as lines:
            for number, line in enumerate(lines, 1):
                line = line.rstrip('\n')
                word, _, rest = line.partition(' ')
                where = f'{os.path.basename(path)}:{number}'
                if not line:
                    mutant = None
                elif word == '#' or line.startswith('#'):
                    pass
                elif word == 'file':
                    held.update(file=rest, units=[rest])
                elif word == 'unit':
                    held['units'] = rest.split()
                elif word == 'slot':
                    held['slot'] = None if rest == 'none' else rest
                elif word == 'mutant':
                    head, _, what = rest.partition(': ')
                    op, which, cause = head.split()
                    mutant = dict(held, where=where, op=op, input=int(which), cause=cause, what=what, hunks=[],
                                 function=None, formula=None)
                    mutants.append(mutant)
                elif mutant is not None and word == 'in':
                    mutant['function'] = rest
                elif mutant is not None and word == 'formula':
                    mutant.update(formula=rest, file=SCALAR, slot=None)
                elif mutant is not None and word == '-':
                    if not mutant['hunks'] or mutant['hunks'][-1][1]:
                        mutant['hunks'].append(([], []))
                    mutant['hunks'][-1][0].append(line[2:])
                elif mutant is not None and word == '+' and mutant['hunks']:
                    mutant['hunks'][-1][1].append(line[2:])
                else:
                    raise Wrong(f"{where}: '{line}'")
        held = {'slot': None}
    return mutants


def text_of(path, cache={}):
    if path not in cache:
        with open(os.path.join(ROOT, path), encoding='utf-8') as file:
            cache[path] = file.read()
    return cache[path]


def bounds(mutant, text):
    """The function's text, or all of it."""
    if not mutant['function']:
        return 0, len(text)
    found = re.search(r'^[a-z][^\n;]*\b' + re.escape(mutant['function']) + r'\([^;{]*\{\n', text, re.M)
    if not found:
        one = re.search(r'^[a-z][^\n;]*\b' + re.escape(mutant['function']) + r'\([^\n]*\n', text, re.M)
        if not one:
            raise Wrong(f"{mutant['where']}: no function {mutant['function']} in {mutant['file']}")
        return one.start(), one.end()
    return found.start(), text.index('\n}', found.end()) + 2


def edited(mutant):
    text = text_of(mutant['file'])
    for old, new in mutant['hunks']:
        old, new = ('\n'.join(lines).rstrip(' \\') for lines in (old, new))
        begin, end = bounds(mutant, text)
        at = text.find(old, begin, end)
        if not old or at < 0 or text.find(old, at + 1, end) >= 0:
            raise Wrong(f"{mutant['where']}: its lines are not there exactly once, in {mutant['file']}")
        text = text[:at] + new + text[at + len(old):]
    return text


def formula_of(mutant):
    """The new value, once the old one is seen to be what the row has."""
    rows = dict(re.findall(r'^    X\((\w+), \d, (.*?)\)\s*(?:/\*.*?\*/)?\s*\\?$', text_of(SCALAR), re.M))
    if [tuple(map(len, hunk)) for hunk in mutant['hunks']] != [(1, 1)]:
        raise Wrong(f"{mutant['where']}: a formula has one '-' line and one '+' line")
    (old,), (new,) = mutant['hunks'][0]
    if rows.get(mutant['formula']) != old:
        raise Wrong(f"{mutant['where']}: the row of {mutant['formula']} is '{rows.get(mutant['formula'])}'")
    return new


class Compiler:
    def __init__(self, build, work):
        self.build, self.work = build, work
        self.by_file, self.read = {}, set()
        with open(os.path.join(build, 'compile_commands.json'), encoding='utf-8') as commands:
            for entry in json.load(commands):
                self.by_file.setdefault(os.path.realpath(os.path.join(build, entry['file'])), entry['command'])

    def run(self, words):
        done = subprocess.run(words, cwd=self.build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Wrong(f"{shlex.join(words)}\n{done.stdout}")

    def compile(self, unit, source, out):
        command = self.by_file.get(os.path.join(ROOT, unit))
        if not command:
            raise Wrong(f'nothing compiles {unit}')
        words = shlex.split(command)
        words = words[:words.index('-MD')] if '-MD' in words else words[:words.index('-o')]
        words = [word for word in words if not word.startswith('-flto')]  # objcopy needs code, not what a linker reads
        deps = out + '.d'
        self.run(words + ['-O0', '-g0', '-U_FORTIFY_SOURCE', '-w', '-MMD', '-MF', deps, '-o', out, '-c', source])
        with open(deps, encoding='utf-8') as file:
            self.read.update(file.read().replace('\\\n', ' ').split(':', 1)[1].split())
        os.remove(deps)

    def grow(self, number, mutant):
        name = os.path.join(self.work, f'mutant_{number}')
        with open(name + '.c', 'w', encoding='utf-8') as file:
            file.write(edited(mutant))
        objects = [name + '.edited.o']
        self.compile(mutant['file'], name + '.c', objects[0])
        for unit in mutant['units']:
            if unit != mutant['file']:
                objects.append(f'{name}.{os.path.basename(unit)}.o')
                self.compile(unit, os.path.join(ROOT, unit), objects[-1])
        symbol = f"tg_composed_{mutant['slot']}" if mutant['slot'] else f"tg_op_{mutant['op']}"
        self.run(['ld', '-r', '-o', name + '.all.o', *objects])
        self.run(['objcopy', '--redefine-sym', f'{symbol}=mutant_{number}', name + '.all.o'])
        self.run(['objcopy', f'--keep-global-symbol=mutant_{number}', name + '.all.o', name + '.o'])
        for left in [name + '.c', name + '.all.o', *objects]:
            os.remove(left)
        return name + '.o'


def table(mutants):
    lines = ['/* Grown by grow.py. */', '#include <math.h>', '#include <stdbool.h>', '#include <stdint.h>', '',
             '#define T double', '#define TG_M(f) m_##f', '#define m_abs fabs',
             'static inline double m_sigmoid(double x) { return 1 / (1 + exp(-x)); }',
             'static inline double m_normal_cdf(double x) { return (1 + erf(x / sqrt(2))) / 2; }']
    lines += [f'#define m_{f} {f}' for f in ('exp log sqrt sin cos tan asin acos atan sinh cosh log1p expm1 floor ceil '
                                             'rint tanh erf pow atan2 fmod asinh acosh atanh log2 log10 exp2 '
                                             'trunc erfc').split()]
    lines += ['#include "kernels/scalar.h"', '#include "kernels/composed.h"', '#include "mutants/gradcheck/mutants.h"', '']
    rows = []
    for number, mutant in mutants:
        how = ''
        if mutant['formula']:
            value = formula_of(mutant)
            lines.append(f'static double mutant_{number}(T a, T b, T c, T d, T p, T q) {{\n'
                         f'    (void)a, (void)b, (void)c, (void)d, (void)p, (void)q;\n    return {value};\n}}')
            how = f".formula = TG_FN_{mutant['formula']}, .value = mutant_{number}"
        elif mutant['slot']:
            lines.append(f"extern __typeof__(tg_composed_{mutant['slot']}) mutant_{number};")
            how = f".{mutant['slot']} = mutant_{number}"
        else:
            lines.append(f'extern const tg_op mutant_{number};')
            how = f'.mutated = &mutant_{number}'
        op, cause, what, where = (json.dumps(mutant[key]) for key in ('op', 'cause', 'what', 'where'))
        rows.append(f"    {{{op}, {mutant['input']}, {cause}, {what}, {where}, {how}}},")
    return '\n'.join(lines + ['', 'const mutant mutants[] = {', *rows, '};',
                              'const int n_mutants = sizeof mutants / sizeof *mutants;', ''])


def main(argv):
    build, out_c, out_a, depfile = (os.path.abspath(path) for path in argv[:4])
    work = out_a + '.p'
    os.makedirs(work, exist_ok=True)
    mutants = list(enumerate(read_lists(argv[4:])))
    compiler = Compiler(build, work)
    wrong, objects = [], []
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(compiler.grow, number, mutant) for number, mutant in mutants if not mutant['formula']]
        for job in jobs:
            try:
                objects.append(job.result())
            except Wrong as why:
                wrong.append(str(why))
    try:
        text = table(mutants)
    except Wrong as why:
        wrong.append(str(why))
    if wrong:
        sys.exit('\n'.join(wrong))
    with open(out_c, 'w', encoding='utf-8') as file:
        file.write(text)
    if os.path.exists(out_a):
        os.remove(out_a)
    compiler.run(['ar', 'rcs', out_a, *objects])
    read = sorted(path for path in compiler.read if not os.path.abspath(os.path.join(build, path)).startswith(work))
    with open(depfile, 'w', encoding='utf-8') as file:
        file.write(f"{os.path.relpath(out_c, build)}: {' '.join(read)}\n")


try:
    main(sys.argv[1:])
except Wrong as why:
    sys.exit(str(why))
