#!/bin/sh
# symbols.sh PROGRAM LIBRARY.so...: every exported symbol without a version (private ones have one) has a row in the
# misuse tests, or belongs to an op that the rows of all ops have run; and every row names an exported symbol.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
program=$1
shift
"$program" --symbols >"$dir/all"
nm -D --defined-only "$@" >"$dir/nm"
awk '$NF ~ /^tg_[^@]*$/ { print $NF }' "$dir/nm" | sort -u >"$dir/exports"
sed -n 's/^op /tg_/p' "$dir/all" | sort -u | comm -12 - "$dir/exports" >"$dir/ops"
grep -v '^op ' "$dir/all" | sort -u - "$dir/ops" >"$dir/rows"
comm -3 "$dir/rows" "$dir/exports" | awk '
    /^\t/ { print $1 " is exported and has no row"; next }
    { print $1 " has rows and is not exported" }'
[ -s "$dir/exports" ] && cmp -s "$dir/rows" "$dir/exports"
