#!/bin/sh
# needed.sh LIBRARY.so: the library needs libc, libm, the thread library and jansson, and no other. Prints its size.
set -eu
readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | awk '
    { seen++ }
    !/^(libc|libm|libpthread|libjansson|ld-linux.*)\.so\.[0-9]+$/ { print "needs " $0; bad = 1 }
    END {
        if (!seen) { print "needs nothing: no dynamic section was read"; bad = 1 }
        exit bad
    }'
size -A "$1" | awk -v bytes="$(stat -L -c %s "$1")" '
    $1 !~ /^\.(debug|comment|note)/ && $3 ~ /^[1-9]/ { loaded += $2 }
    END { printf "%.1f MB in memory, %.1f MB as a file\n", loaded / 1e6, bytes / 1e6 }'
