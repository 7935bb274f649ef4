#!/bin/sh
# ranks.sh PROGRAM TEXT: on ranks the program trains to the numbers of one rank, with the same bits twice, and any
# composition of ranks resumes the checkpoint of any other.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
shape="--layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 8 --dropout 0.1"
model="$shape --threads 1"
steps=100
[ -z "${TG_TEST_QUICK:-}" ] || steps=20
run="--data $text $model --val-every $((steps / 2)) --checkpoint-every $((steps / 2)) --steps $steps"

# follows DIR [TOLERANCE]: every loss, validation loss and norm of the gradients (before clipping; AdamW hides a wrong
# scale from the losses) of the run equals one rank's with a relative error of at most 1e-3, or the tolerance.
follows() {
    [ "$(wc -l <"$1/metrics.jsonl")" = "$(wc -l <one/metrics.jsonl)" ] &&
        for key in loss val_loss grad_norm; do
            number $key one/metrics.jsonl >left
            number $key "$1/metrics.jsonl" >right
            [ -s left ] && [ "$(wc -l <left)" = "$(wc -l <right)" ] &&
                paste left right | awk -v e="${2:-1e-3}" '{ d = $1 - $2; m = e * ($1 > 1 ? $1 : 1)
                    if (!(d <= m && -d <= m)) exit 1 }' || return 1
        done
}

# peaks_as DIR OPTION...: checks that every step's peak of memory is the one that inspect prints.
peaks_as() {
    number peak_bytes "$1/metrics.jsonl" | sort -u >left
    shift
    "$tapegrad" inspect $shape "$@" --json >right 2>&1
    [ -s left ] && number peak_bytes right | cmp - left
}

runs train --out one $run
i=0
for ranks in "--ranks 2" "--ranks 2 --tp 2" "--ranks 4 --tp 2 --sp" "--ranks 4 --tp 4" \
    "--ranks 2 --tp 2 --sp --recompute selective" "--ranks 4 --tp 4 --recompute distributed" \
    "--ranks 4 --tp 2 --recompute full"; do
    i=$((i + 1))
    runs train --out "many$i" $run $ranks
    holds "$ranks gives one rank's losses" follows "many$i"
    if turn; then
        runs train --out again $run $ranks
        holds "$ranks gives the same bits twice" same_run "many$i" again
        rm -rf again
    fi
    holds "$ranks: inspect says the peak" peaks_as "many$i" $ranks
    holds "$ranks: the model is as large" grep -q ": 34176 parameters" printed
done

# Ranks that are processes give the bits of threads.
runs run -n 2 -- "$tapegrad" train --out shm $run --tp 2
holds "processes give the bits of threads" same_run many2 shm
runs run -n 4 -- "$tapegrad" train --resume --out shm --steps $((steps + 10)) --tp 4
holds "four processes resume a run of two" test "$(wc -l <shm/metrics.jsonl)" = $((steps + 10))

# One rank is killed: the other one gets an error, and the launcher names it.
"$tapegrad" run -n 2 -- "$tapegrad" train --out lost $run --tp 2 --steps 1000000 --checkpoint-every 0 --deadline 60 >printed 2>&1 &
launcher=$!
holds "the ranks start" while_alive $launcher test -s lost/metrics.jsonl
victim=$(pgrep -P $launcher | tail -n 1)
kill -KILL "$victim"
wait $launcher
holds "the launcher fails with the rank" test $? = 137
holds "the rank is named" grep -q "^tapegrad run: rank 1 was ended by signal 9" printed
holds "its peer reports an error" grep -q "^tapegrad train: .*rank 1" printed

# The launcher is killed: no rank remains.
ended() { [ ! -e "/proc/$1" ] || grep -q '^State:[[:space:]]*[XZ]' "/proc/$1/status"; }
"$tapegrad" run -n 2 -- "$tapegrad" train --out orphans $run --tp 2 --steps 1000000 --checkpoint-every 0 >printed 2>&1 &
launcher=$!
until_there orphans/metrics.jsonl
ranks=$(pgrep -P $launcher)
kill -KILL $launcher
wait $launcher
for pid in $ranks; do
    holds "a rank ends with its launcher" eventually ended "$pid"
done
holds "there were two ranks" test "$(echo "$ranks" | wc -w)" = 2

# Any composition of ranks resumes the checkpoint of another.
more=$(($(wc -l <one/metrics.jsonl) + 10))
cp -r one ended && runs train --resume --out ended --steps $more
number loss ended/metrics.jsonl >whole
goes_on() {
    number loss "$1/metrics.jsonl" | paste - whole | awk '{ d = $1 - $2; if (d > 1e-3 || -d > 1e-3) exit 1 }' &&
        [ "$(wc -l <"$1/metrics.jsonl")" = $more ]
}
for from in one many2 many3 many4; do
    for to in "--ranks 1 --tp 1" "--ranks 2 --tp 2" "--ranks 4 --tp 4 --sp"; do
        turn || continue
        rm -rf next
        cp -r $from next
        runs train --resume --out next --steps $more $to
        holds "$from goes on with $to" goes_on next
    done
done
runs eval --model many4 --data "$text" --json
mine=$(number loss printed)
runs eval --model one --data "$text" --json
holds "the models are equal" near "$mine" "$(number loss printed)" 1e-4
runs generate --model many3 --prompt "The" --tokens 5

# Micro-batches, of each of which a data-parallel rank has a part.
rm -rf one many
runs train --out one $run --accumulate 4 --steps 20
runs train --out many $run --accumulate 4 --steps 20 --ranks 4 --tp 2
holds "micro-batches on ranks give one rank's numbers" follows many

# In float64, where only the last bits may differ.
exactly="$run --precision fp64 --steps 20 --accumulate 2"
rm -rf one many
runs train --out one $exactly
for ranks in "--ranks 2" "--ranks 4 --tp 2 --sp" "--ranks 4 --tp 4 --recompute full"; do
    turn || continue
    runs train --out many $exactly $ranks
    holds "$ranks gives one rank's numbers in float64" follows many 1e-10
    rm -rf many
done

# Llama, with fewer key-value heads than ranks.
llama="--data $text --arch llama --kv-heads 2 --layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 4 --threads 1 --steps 20"
rm -rf one many
runs train --out one $llama
runs train --out many $llama --ranks 4 --tp 4 --sp
holds "llama with replicated key-value heads gives one rank's numbers" follows many

refuses 2 "--ranks 4 is not divisible by --tp 3" train --data "$text" --out x $model --steps 3 --ranks 4 --tp 3
refuses 2 "--heads 4 is not divisible by --tp 8" train --data "$text" --out x $model --steps 3 --ranks 8 --tp 8
refuses 1 "cannot be cut into equal parts for 3" train --data "$text" --out x $model --steps 3 --ranks 3
refuses 1 "cannot open 'none'" train --data none --out x $model --steps 3 --ranks 2
refuses 2 "needs \`$tapegrad run" train --data "$text" --out x $model --steps 3 --comm shm
finish
