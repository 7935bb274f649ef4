#!/bin/sh
# headers.sh LANGUAGE STANDARD INCLUDE HEADER: the header compiles by itself, included twice, without a warning.
set -eu
printf '#include "%s"\n#include "%s"\n' "$4" "$4" |
    ${CC:-cc} -x "$1" "$2" -I "$3" -Wall -Wextra -Werror -pedantic-errors -fsyntax-only -
