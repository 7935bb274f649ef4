#!/usr/bin/env python3
"""layers.py includes SOURCE | symbols SOURCE BUILD | table SOURCE: holds the code to the table of layers in layers.txt.

`includes` reads every #include under src/, tools/ and bench/: the file that it names must lie in the same layer or in
one that the table allows. Every quoted #include must name a file that lies next to its user, in include/, in src/ or,
if the user is in tools/, in tools/, so that no option of the compiler adds a folder, such as one of tests/. `symbols`
reads the undefined tg_ symbols of every object of the library with nm: each must be defined in an allowed layer. So
calls through prototypes in headers that everybody may include are found as well. Files that need each other, directly
or through others, form a circle; none may have more than 12 files. `table` compares the table of
docs/design.md, which also says what each folder is for, with layers.txt.

Breaks that are known stand in layers.known, one `FROM TO` a line. A break that is not listed fails, and so does a
listed one that is gone. The table itself must have no circle, and umbrella headers are for users: src/ includes none.
Programs (tools/ and bench/) are no layers: they may include every public header, and of src/ only the headers that their
rows name. A folder of a program may include those folders of rows above it that its row names.
"""
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
LARGEST_CIRCLE = 12  # files
FOLDERS = ('src', 'tools', 'bench')
UMBRELLAS = {'include/tapegrad/tapegrad.h', 'include/tapegrad/extend.h'}


class Layers:
    def __init__(self, text):
        self.prefixes, self.allowed = {}, {}
        self.programs = {}  # prefix: headers
        for line in text.splitlines():
            line = line.split('#')[0]
            if not line.strip():
                continue
            layer, prefix, allowed = (field.strip() for field in line.split('|'))
            if layer == 'program':
                parts = [name for name in allowed.split() if name.endswith('/')]
                if not set(parts) <= self.programs.keys():
                    raise SystemExit(f'layers.txt: {prefix} may include {" ".join(parts)}, of which not all are above it')
                self.programs[prefix] = set(allowed.split())
                continue
            self.prefixes[prefix] = layer
            self.allowed.setdefault(layer, set()).update(allowed.split())

    def of(self, path):
        """The layer of a file: that of the longest prefix."""
        fitting = [prefix for prefix in self.prefixes if path.startswith(prefix)]
        return self.prefixes[max(fitting, key=len)] if fitting else None

    def allows(self, user, used):
        if user == used:
            return True
        whole_user, whole_used = user.split('/')[0], used.split('/')[0]
        if whole_user == whole_used:
            return used in self.allowed[user]
        allowed = self.allowed[user] | self.allowed[whole_user]
        return used in allowed or whole_used in allowed

    def circle(self):
        """A layer that reaches itself through whole layers, or None."""
        whole = {}
        for layer, allowed in self.allowed.items():
            top = layer.split('/')[0]
            whole.setdefault(top, set()).update(name.split('/')[0] for name in allowed if name.split('/')[0] != top)
        done = set()

        def visit(layer, above):
            if layer in above:
                return layer
            if layer in done:
                return None
            done.add(layer)
            return next(filter(None, (visit(below, above | {layer}) for below in sorted(whole[layer]))), None)

        return next(filter(None, (visit(layer, set()) for layer in whole)), None)


def named_file(source, user, name):
    """Returns the file that an #include names: next to the including file, in include/, in src/ or, for a file of tools/, in
    tools/. None: there is none."""
    tools = [source / 'tools'] if source / 'tools' in user.parents else []
    for folder in (user.parent, source / 'include', source / 'src', *tools):
        if (folder / name).is_file():
            return (folder / name).resolve().relative_to(source).as_posix()
    return None


def program_may_include(allowed, prefix, used):
    parts = tuple(name for name in allowed if name.endswith('/'))
    return used.startswith((prefix, 'include/tapegrad/', *parts)) or used.removeprefix('src/') in allowed


def includes(source, user):
    """(name, the file of ours, whether it is quoted) of each #include."""
    for mark, name in re.findall(r'^\s*#\s*include\s+(["<])([^">@]+)[">]', user.read_text(), re.M):
        yield name, named_file(source, user, name), mark == '"'


def include_breaks(source, layers):
    for user in sorted(path for folder in FOLDERS for path in (source / folder).rglob('*')):
        if user.suffix not in ('.c', '.h', '.cu', '.in'):
            continue
        path = user.relative_to(source).as_posix()
        program = max((prefix for prefix in layers.programs if path.startswith(prefix)), key=len, default=None)
        for name, used, quoted in includes(source, user):
            if not used:
                if quoted:
                    yield path, name, None
            elif program:
                if not program_may_include(layers.programs[program], program, used):
                    yield path, used, layers.of(used)
            elif used in UMBRELLAS or layers.of(used) is None or not layers.allows(layers.of(path), layers.of(used)):
                yield path, used, layers.of(used)


def symbols(source, build):
    """Where each symbol of the library is defined, and the pairs of a file and a symbol that it needs."""
    files = {}  # object: source
    for command in json.loads((build / 'compile_commands.json').read_text()):
        file = (pathlib.Path(command['directory']) / command['file']).resolve()
        if source not in file.parents or 'libtapegrad' not in command['output']:
            continue
        if not file.is_relative_to(source / 'src/plugins'):  # which takes the place of base/plugin.c in libtapegrad.a
            files[command['output']] = file.relative_to(source).as_posix()
    files = {o: f for o, f in files.items() if f.startswith('src/') and (build / o).exists()}
    if not files:
        raise SystemExit('layers.py: no objects in ' + str(build))
    defined, needed = {}, []
    for name, file in files.items():
        for line in subprocess.check_output(['nm', '-p', build / name], text=True).splitlines():
            kind, symbol = line.split()[-2:]
            if not symbol.startswith('tg_'):
                continue
            if kind == 'U':
                needed.append((file, symbol))
            elif kind.isupper():
                defined[symbol] = file
    return defined, sorted(set(needed))


def symbol_breaks(defined, needed, layers):
    for file, symbol in needed:
        if symbol in defined and not layers.allows(layers.of(file), layers.of(defined[symbol])):
            yield file, symbol, layers.of(defined[symbol])


def large_circles(defined, needed):
    """The circles of more files than LARGEST_CIRCLE: Tarjan's strongly connected components (SIAM J. Comput. 1, 1972)."""
    uses = {}
    for file, symbol in needed:
        uses.setdefault(file, set()).add(defined.get(symbol, file))
    number, low, stack, circles = {}, {}, [], []

    def visit(file):
        number[file] = low[file] = len(number)
        stack.append(file)
        for used in sorted(uses.get(file, ())):
            if used not in number:
                visit(used)
                low[file] = min(low[file], low[used])
            elif used in stack:
                low[file] = min(low[file], number[used])
        if low[file] == number[file]:
            at = stack.index(file)
            circles.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(10000)
    for file in sorted(uses):
        if file not in number:
            visit(file)
    return [circle for circle in circles if len(circle) > LARGEST_CIRCLE]


def table_breaks(source, layers):
    """Folders whose rows in docs/design.md and layers.txt differ."""
    text = (source / 'docs/design.md').read_text()
    rows = dict(re.findall(r'^\| `((?:src|tools|bench)/[^`]*)` \|[^|]+\| ([^|]*) \|$', text, re.M))
    wanted = {prefix: ' '.join(row.split('|')[2].split()) or '-'
              for row in (HERE / 'layers.txt').read_text().splitlines()
              for prefix in [row.split('|')[1].strip() if row.count('|') == 2 and row[0] != '#' else '']
              if prefix.startswith(FOLDERS)}
    for prefix in sorted(rows.keys() | wanted.keys()):
        if rows.get(prefix) != wanted.get(prefix):
            yield f'{prefix}: docs/design.md has {rows.get(prefix)!r}, layers.txt {wanted.get(prefix)!r}'


def main():
    check, source = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    layers = Layers((HERE / 'layers.txt').read_text())
    bad = 0
    if layers.circle():
        print('layers.txt: layer', layers.circle(), 'may include itself through others')
        bad = 1
    if check == 'table':
        wrong = list(table_breaks(source, layers))
        print('\n'.join(wrong))
        return bool(wrong)
    if check == 'includes':
        found = list(include_breaks(source, layers))
    else:
        defined, needed = symbols(source, pathlib.Path(sys.argv[3]).resolve())
        found = list(symbol_breaks(defined, needed, layers))
        for circle in large_circles(defined, needed):
            print(f'{len(circle)} files need each other, expected at most {LARGEST_CIRCLE}:', *circle)
            bad = 1
    found = {f'{user} {used}': f'layer {layers.of(user) or "program"} may not use {layer or "it"}'
             for user, used, layer in found}
    list_file = HERE / f'layers.{check}.known'
    known = set(list_file.read_text().splitlines()) if list_file.exists() else set()
    if '--write-known' in sys.argv:
        list_file.write_text(''.join(line + '\n' for line in sorted(found)))
        return 0
    for line in sorted(found.keys() - known):
        print(f'{line}: {found[line]}')
        bad = 1
    for line in sorted(known - found.keys()):
        print(f'{line}: this is allowed now; remove the line from {list_file.name}')
        bad = 1
    return bad


sys.exit(main())
