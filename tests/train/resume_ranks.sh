#!/bin/sh
# resume_ranks.sh PROGRAM TEXT: a run with dropout on ranks, in both modes of random numbers, resumes from a
# checkpoint with the bits of a run that was never stopped.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
model="--layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 8 --threads 1 --dropout 0.2"
run="--data $text $model --steps 30 --val-every 10 --checkpoint-every 12 --keep 9"

# stopped: makes `cut` the run in `whole` as it was after step 12.
stopped() {
    rm -rf cut
    cp -r whole cut
    rm -r cut/checkpoints/*24 cut/checkpoints/*30 cut/model.safetensors cut/config.json cut/loss.svg
    head -n 12 whole/metrics.jsonl >cut/metrics.jsonl
}
# seeds NAME: prints the seeds of the stream in the last checkpoint, by rank. They follow four sizes and the four
# positions of each rank.
seeds() {
    LC_ALL=C sed 's/,/\n/g' whole/checkpoints/*30/index.json |
        LC_ALL=C sed -n "s/^.*\"rng\\/$1\": *\"\([0-9 ]*\)\".*/\1/p" |
        awk '{ for (i = 9; i <= NF; i += 7) printf "%s ", $i }'
}
for rng in global megatron; do
    for ranks in "--ranks 1" "--ranks 2 --tp 2" "--ranks 2 --tp 2 --sp" "--ranks 4 --tp 2 --recompute full" \
        "--ranks 4 --tp 4 --sp --recompute selective"; do
        turn || continue
        rm -rf whole
        runs train --out whole $run $ranks --rng $rng
        stopped
        runs train --resume --out cut
        holds "$rng: $ranks resumes with the same bits" same_run whole cut
    done
done

# Megatron's streams differ between ranks.
rm -rf whole
runs train --out whole $run --ranks 4 --tp 2 --rng megatron
holds "the model-parallel stream has a seed for each tp rank" test "$(seeds model-parallel-rng)" = "2719 2720 2719 2720 "
holds "the data-parallel stream has one seed" test "$(seeds data-parallel-rng)" = "1 1 1 1 "
stopped
"$tapegrad" run -n 4 -- "$tapegrad" train --resume --out cut --ranks 1 >printed 2>&1
holds "--ranks is refused under a launcher" grep -q "a launcher gives the number of ranks" printed
runs run -n 4 -- "$tapegrad" train --resume --out cut
holds "processes resume with the bits of threads" same_run whole cut

# Other numbers of ranks resume too.
for ranks in "--ranks 2 --tp 2" "--ranks 4 --tp 4" "--ranks 1 --tp 1"; do
    stopped
    runs train --resume --out cut $ranks
    holds "megatron: resumes with $ranks" test "$(wc -l <cut/metrics.jsonl)" = 30
done

# lost STREAM NUMBER OPTION...: a run that resumes from a checkpoint with another NUMBER of that stream, its seed or its
# counter, has other losses. So the checks above would find a stream that is not restored. With unchanged streams the
# losses are the same. Models draw by key, which takes only the seed from the default stream.
lost() {
    stream=$1 number_of=$2
    shift 2
    rm -rf whole cut sealed
    runs train --data "$text" $tiny --dropout 0.2 --val-every 0 --steps 8 --checkpoint-every 4 --out whole "$@"
    cp -r whole cut
    rm -r cut/checkpoints/*8 cut/model.safetensors cut/config.json
    head -n 4 whole/metrics.jsonl >cut/metrics.jsonl
    cp -r cut sealed
    "$SEAL" sealed/checkpoints/*4
    runs train --resume --out sealed
    holds "$stream: unchanged, it resumes with the same bits" same_run whole sealed
    state=$(echo cut/checkpoints/*4/index.json)
    cp "$state" kept
    case $number_of in
    seed) sed -i "s#\(\"$stream\":\"\)[0-9]#\19#" "$state" ;;
    counter) sed -i "s#\(\"$stream\":\"[0-9 ]* \)[0-9]\([0-9]*\"\)#\19\2#" "$state" ;;
    esac
    holds "$stream: its $number_of has changed" test "$(cmp -l kept "$state" | wc -l)" = 1
    "$SEAL" cut/checkpoints/*4
    runs train --resume --out cut
    number loss whole/metrics.jsonl | tail -n 4 >left
    number loss cut/metrics.jsonl | tail -n 4 >right
    holds "$stream: a lost stream is found" sh -c 'test -s left && test -s right && ! cmp -s left right'
}
lost rng seed
lost rng/model-parallel-rng counter --ranks 2 --tp 2 --rng megatron
refuses 1 "--rng is global, but the run in --out was begun with megatron" train --resume --out whole --rng global
refuses 2 "--rng megatron needs a --seed of 1 or more" train --data "$text" --out x $model --rng megatron --seed 0
finish
