#!/bin/sh
# words.sh [PROGRAM]: trains a small model on English words, and adapts it to French ones. The word lists are those of the
# Debian packages wamerican and wfrench. docs/fine-tuning.md explains the steps. Works in a folder that it removes; takes
# about a minute. Ends with status 77 where the lists are not installed.
set -eu
tapegrad=$(command -v "${1:-tapegrad}")
tapegrad=$(realpath "$tapegrad")
english=/usr/share/dict/american-english french=/usr/share/dict/french
for list in $english $french; do
    [ -r $list ] || { echo "there is no $list: install wamerican and wfrench"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

# The lists are sorted, and a model should see all letters: take words in a random order, which is the same every time.
mixed() { LC_ALL=C awk 'BEGIN { srand(1) } { printf "%.9f\t%s\n", rand(), $0 }' "$1" | LC_ALL=C sort | cut -f 2 | head -n "$2"; }
mixed $english 20000 >english.txt
mixed $french 20000 >french.txt
loss() { "$tapegrad" eval "$@" --json | sed -n 's/.*"loss": \([0-9.]*\).*/\1/p'; }

# The base model.
"$tapegrad" train --data english.txt --out base --layers 2 --hidden 64 --seq-len 64 --steps 150 --lr 5e-3
head -c 20000 french.txt >test.txt
before=$(loss --model base --data test.txt)

# Adapters for French. The base model stays as it is.
"$tapegrad" train --init base --data french.txt --out french --lora r=8,alpha=16 --steps 150 --lr 1e-2 \
    --val-every 25 --keep-best --patience 4
adapted=$(loss --model french/best --data test.txt)

# One model again, which needs no adapters.
"$tapegrad" convert --adapter french/best --to french-model
merged=$(loss --model french-model --data test.txt)
"$tapegrad" generate --model french-model --prompt 'pr' --tokens 60 --temperature 0.7

echo "loss on French words: $before before, $adapted with adapters, $merged merged"
awk -v a="$before" -v b="$adapted" -v c="$merged" 'BEGIN { exit !(b < 0.85 * a && c - b < 1e-3 && b - c < 1e-3) }'
