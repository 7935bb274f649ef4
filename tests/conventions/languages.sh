#!/bin/sh
# languages.sh lua|go BUILD SOURCE MLP: the program of examples/mlp.c in another language prints what MLP prints, and a
# mistake is an error with its message. Skipped (77) where the language is not installed.
set -eu
language=$1 build=$2 source=$3 mlp=$4
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
need() { command -v "$1" >/dev/null || { echo "skipped: $1 is not installed" && exit 77; }; }

case $language in
lua)
    need luajit
    TAPEGRAD_LIBRARY=$build/src/libtapegrad.so luajit "$source/examples/lua/mlp.lua" >"$root/printed"
    grep -q 'dim 5 is out of range.*called from mlp.lua:24' "$root/printed"
    ;;
go)
    need go
    cp "$source"/examples/go/* "$root"
    (cd "$root" && GOCACHE=$root/cache GOFLAGS=-mod=mod GOPROXY=off PKG_CONFIG_PATH=$build/meson-uninstalled go build -o mlp .)
    LD_LIBRARY_PATH=$build/src "$root/mlp" >"$root/printed"
    grep -q 'sizes 3 and 4 of dim -1 do not broadcast' "$root/printed"
    chmod -R u+w "$root/cache"
    ;;
esac
"$mlp" >"$root/expected"
[ -s "$root/expected" ]
head -n "$(wc -l <"$root/expected")" "$root/printed" | diff - "$root/expected"
