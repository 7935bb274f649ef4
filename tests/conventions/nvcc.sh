#!/bin/sh
# nvcc.sh SOURCE: a plain `meson setup` finds nvcc, and builds library and program for every architecture of option
# gpu_arch; without a GPU the program says what is missing.
set -eu
build=$(mktemp -d)
trap 'rm -rf "$build" "$build.log"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
meson setup "$build" "$1" -Doptimization=0 -Dtests=disabled -Dexamples=false -Dbench=false -Dmpi=disabled >"$build.log" ||
    { cat "$build.log" && exit 1; }
ninja -C "$build" tools/tapegrad >"$build/log" || { tail -n 40 "$build/log" && exit 1; }
for arch in 80 90; do
    grep -q "code=sm_$arch" "$build/build.ninja" || { echo "nothing is built for sm_$arch" && exit 1; }
done
"$(dirname "$0")/../train/no_gpu.sh" "$build/tools/tapegrad" "$1/LICENSE"
