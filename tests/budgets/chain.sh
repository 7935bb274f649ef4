#!/bin/sh
# chain.sh PROGRAM MOST: counts the instructions of an op of one element, recorded, run and differentiated, with
# valgrind's callgrind. Fails above MOST (0: only prints), and at nine tenths of it or less, so that MOST is lowered.
# The figure is the difference of 10 and 5 chains of 1,000 ops, so that nothing else counts.
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
