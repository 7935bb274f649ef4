#!/bin/sh
# chain.sh PROGRAM MOST: how many instructions an op of one element takes, recorded, run and differentiated, by
# valgrind's callgrind: at most MOST (0: printed only), and more than nine tenths of it, or MOST is to be lowered. What
# 10 chains of 1,000 ops take more than 5, so that nothing counts but them.
program=$1 most=$2
# shellcheck source=tests/budgets/instructions.sh
. "$(dirname "$0")/instructions.sh"
few=$(instructions "$program" 5) more=$(instructions "$program" 10)
if [ -z "$few" ] || [ -z "$more" ]; then
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$program" 5
    exit 1
fi
each=$(((more - few) / 5000))
echo "$each instructions an op, forward and backward; committed: $most"
[ "$most" -gt 0 ] || exit 0
[ "$each" -le "$most" ] || { echo "wrong: more than is committed" && exit 1; }
[ "$each" -ge $((most * 9 / 10)) ] || { echo "wrong: less; the new figure is to be committed in tests/budgets" && exit 1; }
