#!/bin/sh
# symbols.sh PROGRAM LIBRARY.so...: every symbol that the libraries export has a row, or is that of an op which all ops'
# rows have run, and every row a symbol.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
program=$1
shift
"$program" --symbols >"$dir/all"
nm -D --defined-only "$@" >"$dir/nm"
awk '$NF ~ /^tg_/ { print $NF }' "$dir/nm" | sort -u >"$dir/exports"
sed -n 's/^op /tg_/p' "$dir/all" | sort -u | comm -12 - "$dir/exports" >"$dir/ops"
grep -v '^op ' "$dir/all" | sort -u - "$dir/ops" >"$dir/rows"
comm -3 "$dir/rows" "$dir/exports" | awk '
    /^\t/ { print $1 " is exported and has no row"; next }
    { print $1 " has rows and is not exported" }'
[ -s "$dir/exports" ] && cmp -s "$dir/rows" "$dir/exports"
