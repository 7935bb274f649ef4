#!/bin/sh
# install.sh BUILD HELLO.c RANKS.c: installs into an empty directory, builds a program of one file there with the
# pkg-config file's flags, against the shared and the static library, and runs it and the installed program. If MPI is
# installed, RANKS.c is built against libtapegrad-mpi; libtapegrad must not need MPI. Plugins are found where they are.
set -eu
build=$1 hello=$2 ranks=$3
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it

meson install -C "$build" --no-rebuild --quiet --destdir "$root"
pc=$(find "$root" -name tapegrad.pc)
prefix=${pc%/lib*/pkgconfig/*}
export PKG_CONFIG_PATH="${pc%/*}"
config() { pkg-config --define-variable=prefix="$prefix" "$@" "${package:-tapegrad}"; }
libdir=$(config --variable=libdir)

# shellcheck disable=SC2046 # words on purpose
${CC:-cc} "$hello" -o "$root/shared" $(config --cflags --libs)
readelf -d "$root/shared" | grep -q 'NEEDED.*libtapegrad\.so\.'
LD_LIBRARY_PATH="$libdir" "$root/shared"

# shellcheck disable=SC2046
${CC:-cc} "$hello" -o "$root/static" $(config --static --cflags --libs | sed 's/-ltapegrad/-l:libtapegrad.a/')
if readelf -d "$root/static" | grep -q libtapegrad; then
    echo "the static program still needs the shared library"
    exit 1
fi
"$root/static"

if [ -x "$prefix/bin/tapegrad" ]; then
    "$prefix/bin/tapegrad" --help >"$root/help"
    # It finds the installed plugin, and what the plugin needs, or says what else is missing.
    if [ -e "$libdir/tapegrad/libtapegrad-cuda.so" ]; then
        "$prefix/bin/tapegrad" gradcheck add --device cuda >"$root/checked" 2>&1 ||
            grep -q -e 'no NVIDIA driver' -e 'finds no GPU' "$root/checked" || { cat "$root/checked" && exit 1; }
    fi
fi

find "$root" -path '*/man1/tapegrad-train.1' | grep -q .

if readelf -d "$libdir/libtapegrad.so" | grep -q 'NEEDED.*libmpi'; then
    echo "libtapegrad needs MPI"
    exit 1
fi
if [ -e "$libdir/libtapegrad-mpi.so" ] && command -v mpicc >/dev/null; then
    package=tapegrad-mpi
    # shellcheck disable=SC2046
    OMPI_CC="${CC:-cc}" mpicc -DTG_HAVE_MPI "$ranks" -o "$root/ranks" $(config --cflags --libs)
    readelf -d "$root/ranks" | grep -q 'NEEDED.*libtapegrad-mpi\.so\.'
    LD_LIBRARY_PATH="$libdir" "$root/ranks" 2 >"$root/losses"
    [ "$(wc -l <"$root/losses")" = 4 ]
fi
