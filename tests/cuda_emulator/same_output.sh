#!/bin/sh
# same_output.sh A B: both programs succeed and print the same words, and numbers within 1e-3 of each other. Call
# sites are ignored, as they may contain the program's name.
a=$(mktemp) b=$(mktemp)
trap 'rm -f "$a" "$b"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
"$1" >"$a" || { echo "$1: status $?"; exit 1; }
"$2" >"$b" || { echo "$2: status $?"; exit 1; }
awk '
function number(x) { return x ~ /^[-+]?[0-9.]+(e[-+]?[0-9]+)?$/ }
{ sub(/, called from [^,)]*/, "") }
FNR == NR { line[++lines] = $0; next }
{
    n = split(line[FNR], other, " ")
    same = n == NF
    for (i = 1; same && i <= n; i++) {
        apart = number($i) && number(other[i]) ? $i - other[i] : $i != other[i]
        same = apart <= 1e-3 && apart >= -1e-3
    }
    if (!same) { print "line " FNR ": \"" line[FNR] "\" and \"" $0 "\""; differ = 1 }
}
END { exit differ || !lines || FNR != lines }' "$a" "$b"
