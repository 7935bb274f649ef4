#!/bin/sh
# exports.sh LIBRARY.so: every exported symbol begins with tg_, and the library has a numbered soname. Private symbols have
# version TAPEGRAD_PRIVATE.
set -eu
nm -D --extern-only --defined-only "$1" | awk '
    { seen++ }
    $NF == "TAPEGRAD_PRIVATE" { next }
    $NF !~ /^tg_/ || ($NF ~ /@/ && $NF !~ /@@TAPEGRAD_PRIVATE$/) { print "exports " $NF; bad = 1 }
    END {
        if (!seen) { print "exports nothing"; bad = 1 }
        exit bad
    }'
readelf -d "$1" | grep -q 'SONAME.*\[libtapegrad\(-mpi\)\?\.so\.[0-9][0-9.]*\]'
