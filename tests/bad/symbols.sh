#!/bin/sh
# symbols.sh PROGRAM LIBRARY.so...: every symbol that the libraries export has a row, and every row a symbol.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
program=$1
shift
"$program" --symbols >"$dir/all"
sort -u "$dir/all" >"$dir/rows"
nm -D --defined-only "$@" >"$dir/nm"
awk '$NF ~ /^tg_/ { print $NF }' "$dir/nm" | sort -u >"$dir/exports"
comm -3 "$dir/rows" "$dir/exports" | awk '
    /^\t/ { print $1 " is exported and has no row"; next }
    { print $1 " has rows and is not exported" }'
[ -s "$dir/exports" ] && cmp -s "$dir/rows" "$dir/exports"
