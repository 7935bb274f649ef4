#!/bin/sh
# checkpoints.sh PROGRAM TEXT: the state of ranks in checkpoints. It can be written while training goes on
# (--async-save), and the command check reads all of it and names what is damaged.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--data $text --layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 8 --threads 1 --steps 9 --checkpoint-every 3
    --val-every 3 --keep 9"

for ranks in "--ranks 1" "--ranks 4 --zero 1 --cp 2" "--ranks 4 --tp 2" "--ranks 4 --tp 2 --pp 2"; do
    rm -rf whole held cut
    runs train --out whole $run $ranks
    runs train --out held $run $ranks --async-save
    holds "$ranks: the same numbers" same_steps whole held
    holds "$ranks: the same checkpoints" test "$(ls whole/checkpoints)" = "$(ls held/checkpoints)"
    runs check held
    cp -r held cut
    rm -r cut/checkpoints/*9 cut/model*.safetensors* cut/config.json cut/loss.svg
    head -n 6 held/metrics.jsonl >cut/metrics.jsonl
    runs train --resume --out cut
    holds "$ranks: it goes on from them" same_steps whole cut
    rm -rf cut
    cp -r held cut
    runs train --resume --out cut --steps 12 --ranks 1 --tp 1 --pp 1 --cp 1
done

# ---- What is damaged is named ----

last=checkpoints/step-0000000009
for file in rank-00002.safetensors index.json model-00001-of-00002.safetensors model.safetensors.index.json state.json; do
    rm -rf hurt
    cp -r whole hurt
    size=$(wc -c <hurt/$last/$file)
    printf '#' | dd of=hurt/$last/$file bs=1 seek=$((size / 3)) conv=notrunc 2>/dev/null
    for dir in hurt hurt/$last; do
        "$tapegrad" check $dir >printed 2>&1
        holds "a damaged $file is refused" test $? = 1
        holds "and named" grep -q "^tapegrad check: 'hurt/$last/$file'" printed
    done
    rm hurt/$last/$file
    "$tapegrad" check hurt >printed 2>&1
    holds "a missing $file is refused" test $? = 1
    holds "and named too" grep -q "$last/$file" printed
done
rm -rf hurt
runs check whole/checkpoints/step-0000000003
holds "what is whole is said to be" grep -q "step-0000000003' is whole" printed
mkdir empty
refuses 1 "'empty' has neither saved state nor a model" check empty
: >empty/file
refuses 1 "cannot read the directory 'none': No such file or directory" check none
refuses 1 "cannot read the directory 'empty/file': Not a directory" check empty/file
mkdir listless && cp whole/config.json whole/model* listless && : >listless/checkpoints
refuses 1 "cannot read the directory 'listless/checkpoints': Not a directory" check listless
refuses 2 "expected a DIR to check" check
finish
