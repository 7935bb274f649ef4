#!/usr/bin/env python3
"""op_arguments.py TAPEGRAD SOURCE: every function of ops.h is an op of the table, and the arguments of an op by name are
those of its C function: its tensors, its other parameters, and the members of its options."""
import json
import pathlib
import re
import subprocess
import sys

HEADERS = ["ops.h", "mappings.h", "megatron.h", "tensor_parallel.h"]
# Parameters of C functions that are no arguments by name: the tape, results, and the grid, which only C programs have.
SKIPPED_TYPES = {"tg_tape *", "tg_tensor **", "const tg_parallel *"}
SKIPPED_OPTIONS = {"deferred"}  # an object of C programs


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def structs_of(text):
    """Returns the members of each options struct."""
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+_opts);", text, re.S):
        members = re.findall(r"(\w+)(?:\[\d+\])?(?=[,;])", body)
        found[name] = [m for m in members if m != "size"]
    return found


def parameters_of(text):
    """Returns the parameters of each function as (type, name)."""
    found = {}
    for name, parameters in re.findall(r"TG_API [\w ]+\*?(tg_\w+)\(([^;]*)\);", text):
        split = [re.match(r"(.*?)(\w+)$", " ".join(p.split())) for p in parameters.split(",")]
        found[name] = [(m.group(1).strip(), m.group(2)) for m in split if m]
    return found


def options_of(kind):
    found = re.search(r"(\w+_opts) \*$", kind)
    return found and found.group(1)


def expected(parameters, structs):
    """Returns the names that must be arguments, and those that may be: the options, which no op needs to use all of."""
    must, may, before = set(), set(), ""
    for kind, name in parameters:
        length = name == "n" and before in ("tg_tensor *const *", "const int64_t *")
        if options_of(kind):
            may |= set(structs[options_of(kind)])
        elif kind not in SKIPPED_TYPES and not length:
            must.add(name)
        before = kind
    return must, may


def compare(name, op, parameters, structs, bad):
    has = {a["name"] for a in op["inputs"]} | {a["name"] for a in op["arguments"]}
    must, may = expected(parameters, structs)
    for missing in sorted(must - has):
        bad.append(f"{name} has no argument {missing}, which its C function takes")
    for extra in sorted(has - must - may):
        bad.append(f"{name} has an argument {extra}, which its C function does not take")
    return has


def main():
    program, source = sys.argv[1], pathlib.Path(sys.argv[2])
    manifest = json.loads(subprocess.run([program, "ops", "--json"], capture_output=True, check=True).stdout)
    ops = {op.get("alias", op["name"]): op for op in manifest["ops"]}
    texts = {h: without_comments((source / "include/tapegrad" / h).read_text()) for h in HEADERS}
    structs, functions = {}, {}
    for text in texts.values():
        structs |= structs_of(text)
        functions |= parameters_of(text)
    bad, used = [], {}
    for name in parameters_of(texts["ops.h"]):
        if name.removeprefix("tg_") not in ops:
            bad.append(f"{name} of ops.h is no op of the table")
    for name, op in ops.items():
        parameters = functions.get(f"tg_{name}")
        if parameters is None:
            continue  # an op that only other ops record, or one with a C function in another header
        has = compare(name, op, parameters, structs, bad)
        for kind, _ in parameters:
            if options_of(kind):
                used.setdefault(options_of(kind), set()).update(has)
    for struct, names in used.items():
        for member in sorted(set(structs[struct]) - names - SKIPPED_OPTIONS):
            bad.append(f"no op has {member} of {struct} as an argument")
    for line in bad:
        print(line)
    print(f"{len(ops)} ops, {len(functions)} functions")
    return 1 if bad or len(ops) < 100 else 0


sys.exit(main())
