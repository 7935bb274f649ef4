#!/bin/sh
# cuda_ranks.sh PROGRAM TEXT: ranks with a GPU each (of the emulator) train like one rank, and their captured steps
# give the bits of called ones.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--data $text --layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 8 --threads 1 --steps 8 --accumulate 2 --val-every 4 --dropout 0.1"

# compare NAME REFERENCE RANKS...: with each of the options RANKS, $run ends with the loss of the run REFERENCE, and
# captured steps have the bits of called ones.
compare() {
    name=$1 reference=$2
    shift 2
    for ranks; do
        rm -rf called captured
        runs train --out called $run --device cuda $ranks
        holds "$name $ranks: the loss of run $reference" near "$(number loss "$reference"/metrics.jsonl | tail -n 1)" \
            "$(number loss called/metrics.jsonl | tail -n 1)" 1e-4
        runs train --out captured $run --device cuda $ranks --capture
        holds "$name $ranks: the same bits from captured steps" same_steps called captured
    done
}

runs train --out one $run --device cuda
compare text one "--ranks 2" "--ranks 2 --tp 2" "--ranks 4 --tp 2 --sp" "--ranks 2 --pp 2" \
    "--ranks 4 --pp 2 --tp 2 --schedule zb-h1" "--ranks 2 --zero 1" "--ranks 2 --zero 2"

# Packed documents: the captured step reads positions, and the number of tokens that are predicted, which each step sets anew.
for i in $(seq 1 60); do printf '{"prompt": "q%d", "completion": "answer %d of a text"}\n' "$i" "$((i * 7919))"; done >pairs.jsonl
run="--data pairs.jsonl --no-attend-across --layers 2 --hidden 32 --heads 4 --seq-len 32 --batch 8 --threads 1 --steps 6 --accumulate 2
    --val-every 3 --dropout 0.1"
runs train --out packed_cpu $run
compare packed packed_cpu "" "--ranks 2" "--ranks 2 --tp 2 --sp" "--ranks 2 --pp 2" \
    "--ranks 4 --pp 2 --tp 2 --schedule zb-h1" "--ranks 2 --zero 2 --recompute full" "--ranks 4 --cp 2 --tp 2 --sp"

# --time chooses for the memory of the ranks' GPUs, of which the emulator leaves 16 MiB.
export TG_EMULATOR_MEMORY=48
head -c 1000 "$text" >few.txt
runs train --data few.txt --time 1h --device cuda --threads 1 --ranks 2 --capture --arch llama --layers 2 --hidden 64 --heads 2 \
    --seq-len 32 --batch 128 --val-every 0 --out timed
holds "the batch is cut for the memory of a GPU" grep -q "micro-batches because of 16 MiB of memory for each rank" printed
finish
