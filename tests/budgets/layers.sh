#!/bin/sh
# layers.sh PROGRAM: the instructions of a training step grow linearly with the layers: between 2, 6, 12, 24 and 48
# layers each adds the same number within 1 %, counted with valgrind's callgrind. Each figure is the difference of 4
# and 3 steps, so that the first steps, which make long-lived objects, do not count.
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
