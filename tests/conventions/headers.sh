#!/bin/sh
# headers.sh LANGUAGE MODE INCLUDE HEADER: the header compiles by itself, included twice, without a warning. So does
# each of its macros of options in C, where a designator replaces a default. A header may have macros alone, so that a
# declaration follows it.
set -eu
# shellcheck disable=SC2086 # words on purpose
{
    printf '#include "%s"\n#include "%s"\nextern int after_it;\n' "$4" "$4"
    [ "$1" != c ] || sed -n 's/^#define \(TG_[A-Z_]*\)_DEFAULTS .*/size_t use_\1(void);\
size_t use_\1(void) { return \1(.size = 1)->size; }/p' "$4"
} | ${CC:-cc} -x "$1" $2 -I "$3" -Wall -Wextra -Werror -pedantic-errors -fsyntax-only -
