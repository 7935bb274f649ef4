#!/bin/sh
# head_comments.sh SOURCE: every C, C++ and CUDA file opens with a comment, which says what belongs in the file.
set -eu
cd "$1"
find src tools include bench examples tests \( -name '*.[ch]' -o -name '*.cu' -o -name '*.[ch]pp' \) -print |
    LC_ALL=C sort | awk '
    {
        first = ""
        getline first < $0
        close($0)
        files++
        if (first ~ /^(\/\*|\/\/) ?[^ ]/) next
        print $0 ": the first line is no comment: say there what belongs in the file"
        bad = 1
    }
    END {
        if (!files) { print "no files read"; bad = 1 }
        exit bad
    }'
