#!/bin/sh
# private_symbols.sh LIBRARY.so PROGRAM [PLUGIN.so...]: what the headers mark with TG_PRIVATE_API is exported under version
# TAPEGRAD_PRIVATE, and, if all plugins are given, each of these functions is used by the program or by a plugin. That a
# plugin uses no other private function is checked when it is linked.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
library=$1 program=$2
shift 2
symbols() { sed -n 's/.* \(tg_[a-z0-9_]*\)@@\{0,1\}TAPEGRAD_PRIVATE$/\1/p' | sort -u; }
nm -D --defined-only "$library" "$@" | symbols >"$dir/exported"
# The library finds a plugin's own table by its name.
{ nm -D --undefined-only "$program" "$@" | symbols && sed -n '/^tg_[a-z]*_plugin$/p' "$dir/exported"; } | sort -u >"$dir/used"
[ -s "$dir/used" ] || { echo "no private symbol is used" && exit 1; }
bad=0
if nm -D --defined-only "$library" | grep -w tg_fail | grep -vq '@@TAPEGRAD_PRIVATE$'; then
    echo "tg_fail is exported without the version"
    bad=1
fi
if [ $# = 5 ]; then # cuda, nccl, tcp, text and mpi
    comm -23 "$dir/exported" "$dir/used" >"$dir/idle"
    sed 's/$/ is marked with TG_PRIVATE_API, but neither the program nor a plugin uses it/' "$dir/idle"
    [ ! -s "$dir/idle" ] || bad=1
fi
echo "$(wc -l <"$dir/exported") exported, $(wc -l <"$dir/used") used"
exit $bad
