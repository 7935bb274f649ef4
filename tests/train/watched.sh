#!/bin/sh
# watched.sh PROGRAM TEXT: runs that observe their ops to find the first NaN.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
tr '\n' ' ' <"$text" >plain
run="--data plain $tiny --steps 6 --checkpoint-every 0"

# The first NaN is found, and the search changes no results.
runs train $run --out plainly
runs train $run --out looking --find-nan
holds "the model is the same" cmp plainly/model.safetensors looking/model.safetensors
runs train $run --out recomputed --find-nan --recompute full
holds "the model is the same with recomputation" cmp plainly/model.safetensors recomputed/model.safetensors
runs train $run --out split --ranks 2 --tp 2 --sp
runs train $run --out split_looking --find-nan --ranks 2 --tp 2 --sp
holds "the model is the same on ranks" cmp split/model.safetensors split_looking/model.safetensors
refuses 1 "the backward of linear_cross_entropy made a" \
    train $run --out x --find-nan --precision fp16 --loss-scale 1e12
cp -r plainly poisoned
sed -i 's/tapegrad\.xxh64/somebody.xxh64/g' poisoned/model.safetensors # checksums are of no use here
size=$(wc -c <poisoned/model.safetensors)
printf '\377\377\377\377' | dd of=poisoned/model.safetensors bs=1 seek=$((size - 4)) conv=notrunc 2>/dev/null
refuses 1 "brought a NaN: it is a leaf, which no op has made" \
    train --data plain --seq-len 16 --steps 2 --threads 1 --init poisoned --out x --find-nan
refuses 1 "1 NaN, 0 infinite, the numbers in [" \
    train --data plain --seq-len 16 --steps 2 --threads 1 --init poisoned --out x --find-nan
refuses 1 ", on rank " train $run --out x --find-nan --precision fp16 --loss-scale 1e12 --ranks 2
finish
