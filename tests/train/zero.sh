#!/bin/sh
# zero.sh PROGRAM TEXT: an optimizer whose state is divided over replicas (--zero 1), also gradients (--zero 2), and also
# parameters (--zero 3), give the model of a run in which they are not, and checkpoints are continued by any number of
# replicas.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
model="--layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 12"
run="--data $text $model --threads 1 --steps 8 --val-every 4 --checkpoint-every 4 --keep 9"

# close DIR DIR: the losses of two runs differ by at most 1e-4.
close() {
    number loss "$1/metrics.jsonl" >left
    number loss "$2/metrics.jsonl" >right
    paste left right | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > 1e-4) bad = 1 } END { exit bad || !NR }'
}
# stopped DIR: makes `cut` the run in DIR as it was after step 4.
stopped() {
    rm -rf cut
    cp -r "$1" cut
    rm -r cut/checkpoints/*8 cut/model.safetensors cut/config.json cut/loss.svg
    head -n 4 "$1/metrics.jsonl" >cut/metrics.jsonl
}

for ranks in "--ranks 3" "--ranks 4 --tp 2 --sp --accumulate 2" "--ranks 4 --pp 2 --micro-batches 2" \
    "--ranks 2 --precision bf16"; do
    rm -rf whole divided
    runs train --out whole $run $ranks --clip 0
    runs train --out divided $run $ranks --clip 0 --zero 1
    holds "$ranks: divided state gives the same model" same_weights whole divided
    case $ranks in *accumulate*) continue ;; esac # from --zero 2 on each micro-batch is summed, in another order
    for zero in 2 3; do
        rm -rf divided
        runs train --out divided $run $ranks --clip 0 --zero $zero
        holds "$ranks: --zero $zero gives the same model" same_weights whole divided
    done
done

# The norm adds its squares in another order, so clipped steps differ by rounding.
rm -rf whole divided
runs train --out whole $run --ranks 3
runs train --out divided $run --ranks 3 --zero 1
holds "clipped steps agree" close whole divided
stopped divided
runs train --resume --out cut
holds "it resumes with the same bits" same_run divided cut
for ranks in "--ranks 2" "--ranks 1" "--ranks 4" "--ranks 4 --tp 2" "--ranks 3 --zero 0" "--ranks 2 --zero 2" "--ranks 4 --tp 2 --zero 3"; do
    stopped divided
    runs train --resume --out cut $ranks
    holds "it resumes with $ranks" close divided cut
done
stopped whole
runs train --resume --out cut --zero 1
holds "whole state is divided by a resume" close whole cut
rm -rf whole divided
runs train --out whole $run --ranks 2 --accumulate 3
runs train --out divided $run --ranks 2 --accumulate 3 --zero 3
holds "sums of each micro-batch give close losses" close whole divided

# On two ranks the sums of 16 bits are those of the gradients, rounded.
rm -rf whole divided
runs train --out whole $run --ranks 2
runs train --out divided $run --ranks 2 --zero 1 --wire bf16
number loss whole/metrics.jsonl >left
number loss divided/metrics.jsonl >right
holds "gradients that travel in 16 bits train as well" sh -c "! cmp -s left right && paste left right |
    awk '{ d = \$1 - \$2; if (d < 0) d = -d; if (d > 0.02) bad = 1 } END { exit bad || !NR }'"
runs inspect $model --ranks 2 --zero 1
holds "inspect says what a rank updates" grep -q "buckets     zero 1; replicas sum" printed
refuses 2 "--zero" train --out x $run --zero 4
refuses 2 "--wire" train --out x $run --wire f16
finish
