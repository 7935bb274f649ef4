#!/bin/sh
# context.sh PROGRAM TEXT: ranks that divide each sequence train to the numbers of one rank, in each way of exchange and
# next to other axes; inspect says their peaks of memory; other compositions resume their checkpoints.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
shape="--layers 2 --hidden 32 --heads 4 --seq-len 32 --batch 8 --dropout 0.1"
run="--data $text $shape --threads 1 --precision fp64 --val-every 5 --checkpoint-every 10 --steps 10"

# follows DIR: every loss, validation loss and norm of the gradients of the run equals one rank's within 1e-10.
follows() {
    [ "$(wc -l <"$1/metrics.jsonl")" = "$(wc -l <one/metrics.jsonl)" ] &&
        for key in loss val_loss grad_norm; do
            number $key one/metrics.jsonl >left
            number $key "$1/metrics.jsonl" >right
            [ -s left ] && paste left right | awk '{ d = $1 - $2; if (d > 1e-10 || -d > 1e-10) exit 1 }' || return 1
        done
}

# peaks_as DIR OPTION...: checks that every step's peak of memory is the one that inspect prints.
peaks_as() {
    number peak_bytes "$1/metrics.jsonl" | sort -u >left
    shift
    "$tapegrad" inspect $shape --precision fp64 "$@" --json >right 2>&1
    [ -s left ] && number peak_bytes right | cmp - left
}

runs train --out one $run
for ranks in "--ranks 2 --cp 2" "--ranks 2 --cp 2 --cp-kind gather" "--ranks 4 --cp 4 --cp-kind ulysses" \
    "--ranks 4 --cp 4 --cp-kind hierarchy --cp-inner 2" "--ranks 4 --cp 2 --tp 2 --sp" \
    "--ranks 4 --cp 2 --recompute full"; do
    turn || continue
    rm -rf many
    runs train --out many $run $ranks
    holds "$ranks gives one rank's numbers" follows many
    holds "$ranks: inspect says the peak" peaks_as many $ranks
done
rm -rf many
runs train --out many $run --ranks 4 --cp 2 --pp 2
holds "stages whose ranks divide sequences give one rank's numbers" follows many

# Sequences that are not divided have any length.
for ranks in "--ranks 1" "--ranks 2 --pp 2"; do
    rm -rf odd
    runs train --out odd --data "$text" $tiny --layers 2 --seq-len 15 --steps 1 $ranks
done

# Any composition of ranks resumes the checkpoint of another.
cp -r one whole && runs train --resume --out whole --steps 15
runs train --resume --out many --steps 15 --ranks 2 --cp 1 --pp 1 --tp 2
runs train --resume --out one --steps 15 --ranks 2 --cp 2 --cp-kind ulysses
number loss whole/metrics.jsonl >left
goes_on() { number loss "$1/metrics.jsonl" | paste left - | awk '{ d = $1 - $2; if (d > 1e-10 || -d > 1e-10) exit 1 }'; }
holds "a run with --cp goes on without" goes_on many
holds "a run without --cp goes on with it" goes_on one

refuses 2 "--ranks 3 is not divisible by --tp 1 x --cp 2" train --data "$text" --out x $tiny --ranks 3 --cp 2
refuses 2 "--seq-len 34 is not divisible by 4" train --data "$text" --out x $tiny --seq-len 34 --ranks 2 --cp 2
refuses 1 "--seq-len 15 is not divisible by 4" train --data "$text" --out x --init odd --batch 4 --ranks 2 --cp 2
runs train --out short --data "$text" $tiny --seq-len 36 --steps 1
runs train --out third --data "$text" --init short --batch 3 --steps 1 --ranks 3 --cp 3 # 36 positions, not the default
refuses 2 "--seq-len 32 is not divisible by 6" train --data "$text" --out x --init short --seq-len 32 --ranks 3 --cp 3
refuses 2 "--cp-kind needs --cp N of 2 or more" train --data "$text" --out x $tiny --cp-kind ring
refuses 2 "it is for --cp-kind hierarchy" train --data "$text" --out x $tiny --ranks 2 --cp 2 --cp-inner 2
refuses 2 "must divide --cp 4" train --data "$text" --out x $tiny --ranks 4 --cp 4 --cp-kind hierarchy --cp-inner 3
echo '{"model_type": "llama", "vocab_size": 256, "hidden_size": 36, "num_hidden_layers": 1, "num_attention_heads": 3,
"intermediate_size": 48, "max_position_embeddings": 36}' >config.json
runs inspect --config config.json --ranks 3 --cp 3 # the config's 36 positions are divided, not the default --seq-len
refuses 2 "--seq-len 36 is not divisible by 8" inspect --config config.json --ranks 4 --cp 4
finish
