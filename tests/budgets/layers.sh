#!/bin/sh
# layers.sh PROGRAM: the instructions of a training step grow with the layers, and with nothing else: what a layer adds
# between 2 and 6, 6 and 12, 12 and 24, 24 and 48 of them is within 1 % the same, by valgrind's callgrind. What 4 steps
# take more than 3, so that the first ones, which make what lives longer than a step, do not count.
program=$1
# shellcheck source=tests/budgets/instructions.sh
. "$(dirname "$0")/instructions.sh"
before='' least='' most=''
for layers in 2 6 12 24 48; do
    few=$(instructions "$program" $layers 3) more=$(instructions "$program" $layers 4)
    if [ -z "$few" ] || [ -z "$more" ]; then
        "$program" $layers 4 && echo "wrong: callgrind says nothing"
        exit 1
    fi
    step=$((more - few))
    if [ -n "$before" ]; then
        each=$(((step - before) / (layers - less)))
        echo "$less to $layers layers: $each instructions a layer"
        { [ -z "$least" ] || [ $each -lt "$least" ]; } && least=$each
        { [ -z "$most" ] || [ $each -gt "$most" ]; } && most=$each
    fi
    before=$step less=$layers
done
[ $((100 * most)) -le $((101 * least)) ] || { echo "wrong: $most is more than 1 % above $least" && exit 1; }
