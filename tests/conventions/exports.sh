#!/bin/sh
# exports.sh LIBRARY.so: every symbol that it exports begins with tg_, and it has a soname with a number.
set -eu
nm -D --defined-only "$1" | awk '
    { seen++ }
    $NF !~ /^tg_/ { print "exports " $NF; bad = 1 }
    END {
        if (!seen) { print "exports nothing"; bad = 1 }
        exit bad
    }'
readelf -d "$1" | grep -q 'SONAME.*\[libtapegrad\(-mpi\)\?\.so\.[0-9][0-9]*\]'
