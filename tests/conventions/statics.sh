#!/bin/sh
# statics.sh LIBRARY.a: no object has writable static data. Tables of pointers that the dynamic linker fills and then
# protects (.data.rel.ro) are not writable. Objects *.cu.o are left out: see calls.sh.
set -eu
readelf -SW "$1" | awk '
    /^File: / { object = $2; objects++ }
    { sub(/^ *\[ *[0-9]+\] */, "") }
    object ~ /\.cu\.o\)$/ { next }
    $1 ~ /^\.(data|bss|tdata|tbss|lbss|ldata)/ && $1 !~ /^\.data\.rel\.ro/ && $5 !~ /^0+$/ {
        print object ": " $1 " has 0x" $5 " bytes"
        bad++
    }
    END {
        if (!objects) { print "no objects read"; bad = 1 }
        exit bad > 0
    }'
nm "$1" 2>/dev/null | awk 'NF == 3 && $2 == "C" { print "common symbol " $NF; bad = 1 } END { exit bad }'
