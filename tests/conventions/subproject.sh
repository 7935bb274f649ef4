#!/bin/sh
# subproject.sh SOURCE HELLO.c: another Meson project builds the library as its subproject and links it.
set -eu
source=$1 hello=$2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it

mkdir -p "$root/subprojects/tapegrad"
for part in meson.build meson_options.txt include src tools; do
    cp -R "$source/$part" "$root/subprojects/tapegrad/$part"
done
cp "$hello" "$root/hello.c"
cat >"$root/meson.build" <<'END'
project('embedder', 'c')
executable('hello', 'hello.c', dependencies: dependency('tapegrad', fallback: 'tapegrad'))
END
meson setup "$root/build" "$root" -Dbuildtype=plain -Db_ndebug=true -Dtapegrad:cuda=disabled \
    --wrap-mode=forcefallback >"$root/log" 2>&1 ||
    { cat "$root/log"; exit 1; }
ninja -C "$root/build" hello >"$root/log" 2>&1 || { tail -n 40 "$root/log"; exit 1; }
"$root/build/hello"
