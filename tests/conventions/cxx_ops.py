#!/usr/bin/env python3
"""cxx_ops.py SOURCE [--write]: include/tapegrad/cxx/ops.hpp has a function of C++ for each op of the C headers below,
made from its prototype. --write renews the file; without it the file is compared."""
import pathlib
import re
import sys
import textwrap

HEADERS = ["ops.h", "mappings.h", "megatron.h"]
LEFT_OUT = {"tg_broadcast_data"}  # fills an array in place, and is no op

HEAD = """/* C++: the ops, made from the prototypes of {headers} by tests/conventions/cxx_ops.py. These
 * headers say what each op computes. An op records on the tape of its first operand that has one (tensor.hpp). Operands
 * that "may be NULL" are left out, or tensor(). dims() means all dims. tapegrad.hpp includes this header. */
#ifndef TAPEGRAD_CXX_OPS_HPP
#define TAPEGRAD_CXX_OPS_HPP

#include <tapegrad/cxx/call.hpp>
#include <tapegrad/mappings.h>
#include <tapegrad/megatron.h>

namespace tapegrad {{
inline namespace TAPEGRAD_KIND {{

"""
TAIL = """
} // namespace TAPEGRAD_KIND
} // namespace tapegrad

#endif
"""


def prototypes(text):
    """Yields (result, name, [(type, name)]) of each function whose first parameter is a tape."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    for result, name, rest in re.findall(r"TG_API (tg_tensor \*|tg_status )(tg_\w+)\(tg_tape \*t, ([^;]*)\);", text):
        yield result, name, [re.match(r"(.*?)(\w+)$", " ".join(p.split())).groups() for p in rest.split(",")]


def parameter(kind, name, before):
    """Returns the parameter of C++ for one of C, and the default value that it may have."""
    options = re.match(r"const (tg_\w+_opts) \*", kind)
    if options:
        return f"const options<{options.group(1)}> &{name}", "{}"
    if kind == "tg_tensor *":
        return f"const tensor &{name}", "{}" if (before, name) == ("w", "b") else None
    if kind == "tg_tensor *const *":
        return f"const tensors &{name}", None
    if kind == "tg_tensor **":
        return f"tensor *{name}", "nullptr"
    if kind == "tg_dims ":
        return f"const dims &{name}", "{}" if name == "dims" else None
    if kind == "tg_shape ":
        hidden = before == "shape"  # the parameter before it hides the type's name
        return f"const {'tapegrad::' if hidden else ''}shape &{name}", None
    return f"{kind}{name}", "false" if name in ("keepdim", "descending") else None


def translate(result, name, c):
    """Returns the function of C++. A list and its length in C are one parameter; results that C stores are returned."""
    cxx, arguments, n_out, before, on = [], [], "", "", ""
    if not any(kind.startswith("tg_tensor *") for kind, _ in c if kind != "tg_tensor **"):
        cxx.append(("tg_tape *t", None))
        on = "t"
    for i, (kind, name_of) in enumerate(c):
        if result == "tg_status " and kind == "tg_tensor **":
            continue
        if name_of == "n" and c[i - 1][0] == "tg_tensor *const *":
            arguments.append(f"{before}.size()")
        elif name_of == "n" and c[i - 1][0] == "const int64_t *":
            n_out = f"detail::size({before})"
            cxx[-1] = (f"const std::vector<int64_t> &{before}", None)
            arguments[-1:] = [f"{before}.data()", n_out]
        else:
            n_out = "n" if name_of == "n" else n_out
            cxx.append(parameter(kind, name_of, before))
            arguments.append(name_of)
        before = name_of
    return emit(name, cxx, arguments, n_out if result == "tg_status " else "", on)


def emit(name, cxx, arguments, n_out, on):
    parameters, optional = [], True
    for text, default in reversed(cxx):
        optional = optional and default is not None
        parameters.insert(0, f"{text} = {default}" if optional else text)
    made = "std::vector<tensor>" if n_out else "tensor"
    parameters.append("const site &at = site::here()")
    first = [x for x in (n_out, on) if x] + ["at", name]
    call = ("_n(" if n_out else "_on(" if on else "(") + ", ".join(first + arguments)
    begin = f"inline {made} {name.removeprefix('tg_')}("
    head = wrap(begin, ", ".join(parameters) + ") {")
    body = f"return detail::call{call});"
    return f"{head} {body} }}\n" if len(head) + len(body) < 117 else f"{head}\n    {body}\n}}\n"


def wrap(begin, rest):
    """Returns begin + rest in lines of at most 120 columns, which continue below the first character of rest."""
    lines = textwrap.wrap(rest, 120 - len(begin))
    return begin + ("\n" + " " * len(begin)).join(lines)


def header_text(source):
    text, seen = HEAD.format(headers=", ".join(HEADERS)), 0
    for header in HEADERS:
        text += f"/* ---- {header} ---- */\n\n"
        for result, name, c in prototypes((source / "include/tapegrad" / header).read_text()):
            if name not in LEFT_OUT:
                text += translate(result, name, c)
                seen += 1
        text += "\n" if header != HEADERS[-1] else ""
    return text + TAIL, seen


def main():
    source = pathlib.Path(sys.argv[1])
    file = source / "include/tapegrad/cxx/ops.hpp"
    text, seen = header_text(source)
    if "--write" in sys.argv:
        file.write_text(text)
    if file.read_text() != text:
        print(f"{file} is old: python3 tests/conventions/cxx_ops.py . --write")
        return 1
    print(f"{seen} ops")
    return 0 if seen > 100 else 1


sys.exit(main())
