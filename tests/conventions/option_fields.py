"""option_fields.py SOURCE PROGRAM: compares the public headers with the table of structs of options that PROGRAM
(option_table.c) prints: every struct that has a macro is in the table, with every field and its type, and so is every
enum of a field with its values.
"""
import pathlib
import re
import subprocess
import sys

PLAIN = {'bool': 'BOOL', 'int': 'INT', 'int64_t': 'INT64', 'uint64_t': 'UINT64', 'size_t': 'SIZE', 'double': 'DOUBLE',
         'tg_dtype': 'DTYPE'}
FUNCTION = re.compile(r'\(\*(\w+)\)')


def read_headers(source):
    """All headers as one text, without comments and lines of the preprocessor, and the macros of structs."""
    text = '\n'.join(p.read_text() for p in sorted((source / 'include/tapegrad').glob('*.h')))
    text = re.sub(r'/\*.*?\*/', '', text, flags=re.S).replace('\\\n', ' ')
    macros = set(re.findall(r'#define TG_\w+\(\.\.\.\)\s+\(&\((tg_\w+)\)\{', text))
    return re.sub(r'(?m)^\s*#.*$', '', text), macros


def enums_of(text):
    """The names of values by enum; the last one may be a count (TG_MAX_...)."""
    found = re.findall(r'typedef enum (tg_\w+) \{([^}]*)\}', text)
    return {name: [v for v in re.findall(r'\bTG_\w+', body) if not v.startswith('TG_MAX_')] for name, body in found}


def kind_of(base, stars, enums):
    """The kind of a field of this type, and the name of the type if the kind has one."""
    base = re.sub(r'\bconst\b', '', base).strip()
    if stars:
        if (base, stars) == ('tg_tensor', 1):
            return 'TENSOR', '-'
        return 'POINTER', base + '*' * (stars - 1)
    if base in PLAIN:
        return PLAIN[base], '-'
    if base.endswith('_fn'):
        return 'FUNCTION', '-'
    return ('ENUM' if base in enums else 'STRUCT'), base


def fields_of(body, enums):
    """The fields that a struct declares, as rows of the table."""
    for declaration in re.split(r';', body):
        declaration = ' '.join(declaration.split())
        function = FUNCTION.search(declaration)
        if function:
            yield function.group(1), 'FUNCTION', '-', 1
            continue
        if not declaration:
            continue
        base, rest = re.match(r'((?:const )?\w+) ?(.*)', declaration).groups()
        for one in rest.split(','):
            pointers, name, count = re.match(r'\s*([*\s]*(?:const\s*\*)?\s*)(\w+)(?:\[(\d+)\])?$', one).groups()
            stars = pointers.count('*')
            kind, of = kind_of(base, stars, enums)
            if base == 'const char' and stars == 1:
                kind, of = 'TEXT', '-'
            yield name, kind, of, int(count or 1)


def main():
    source, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    text, macros = read_headers(source)
    enums = enums_of(text)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in printed.splitlines()]
    table, values = {}, {}
    for row in rows:
        if row[0] == 'field':
            table.setdefault(row[1], []).append((*row[2:5], int(row[5])))
        else:
            values.setdefault(row[1], []).append(row[2])
    wrong = [f'{s} has a macro, and is not in TG_OPTIONS_LIST (options_list.h)' for s in macros - set(table)]
    wrong += [f'{s} is in TG_OPTIONS_LIST (options_list.h), and has no macro' for s in set(table) - macros]
    for name in sorted(macros & set(table)):
        body = re.search(r'struct %s \{(.*?)\n\}' % name, text, flags=re.S).group(1)
        declared = list(fields_of(body, enums))[1:]  # without size
        wrong += [f'{name}: described as {is_}, declared as {should}' for is_, should in zip(table[name], declared)
                  if is_ != should]
        if len(declared) != len(table[name]):
            wrong.append(f'{name}: {len(table[name])} fields are described, {len(declared)} are declared')
    for name in sorted(values):
        if values[name] != enums.get(name):
            wrong.append(f'{name}: described as {values[name]}, declared as {enums.get(name)}')
    print('\n'.join(wrong) or f'{len(table)} structs, {sum(map(len, table.values()))} fields, {len(values)} enums')
    return 1 if wrong or not table else 0


if __name__ == '__main__':
    sys.exit(main())
