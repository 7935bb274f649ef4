#!/usr/bin/env python3
"""keywords.py INCLUDE: no member of a public struct, and no argument of an op, has a name that is a keyword of Python,
C++, Rust, Go or Lua, because a binding could not offer it under this name."""
import pathlib
import re
import sys

KEYWORDS = {
    "Python": "False None True and as assert async await break class continue def del elif else except finally for from "
    "global if import in is lambda nonlocal not or pass raise return try while with yield",
    "C++": "alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const "
    "consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do double "
    "dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return "
    "short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try "
    "typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq",
    "Rust": "abstract as async await become box break const continue crate do dyn else enum extern false final fn for if "
    "impl in let loop macro match mod move mut override priv pub ref return self static struct super trait true try type "
    "typeof unsafe unsized use virtual where while yield",
    "Go": "break case chan const continue default defer else fallthrough for func go goto if import interface map "
    "package range return select struct switch type var",
    "Lua": "and break do else elseif end false for function goto if in local nil not or repeat return then true until "
    "while",
}


def members_of(text):
    """Yields the names of the members of all structs and unions: what stands before a comma, a semicolon or a bracket,
    and the names of function pointers."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^\s*#(?:.*\\\n)*.*$", "", text, flags=re.M)
    text = re.sub(r"\breturn [^;]*;", "", text)  # in the functions of C++
    for body in re.findall(r"(?:struct|union)(?: \w+)? \{(.*?)^\}", text, re.S | re.M):
        yield from re.findall(r"\(\*(\w+)\)", body)
        yield from re.findall(r"(\w+)(?:\[\w+\])*(?=[,;])", re.sub(r"\([^()]*\)", "", body))


def main():
    of = {}
    for language, words in KEYWORDS.items():
        for word in words.split():
            of.setdefault(word, []).append(language)
    seen, bad = 0, []
    for header in sorted(pathlib.Path(sys.argv[1]).rglob("*.h")):
        for name in members_of(header.read_text()):
            seen += 1
            if name in of:
                bad.append(f"{header.name}: member {name} is a keyword of {' and '.join(of[name])}")
    for line in bad:
        print(line)
    print(f"{seen} members")
    return 1 if bad or seen < 500 else 0


sys.exit(main())
