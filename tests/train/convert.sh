#!/bin/sh
# convert.sh PROGRAM TEXT: the command convert. A model becomes the state of ranks, and comes back; what does not fit is
# refused, and a conversion that ends early leaves no half of a file.
# shellcheck source=tests/train/check.sh disable=SC2010,SC2086,SC2166
. "$(dirname "$0")/check.sh"
runs train --out whole --data "$text" $tiny --steps 3 --checkpoint-every 2

# config_of DIR: prints its config.json, without the checksum of the weights.
config_of() { grep -v weights_xxh64 $1/config.json; }

sed -i 's/"model_type"/"eos_token_id": 7,\n  "model_type"/' whole/config.json
runs convert --from whole --to state
runs check state
runs convert --from state --to back
config_of whole >left
config_of back >right
holds "the config comes back, with keys that the program does not know" cmp left right
runs eval --model back --data "$text"
cp printed left
runs eval --model whole --data "$text"
grep -v warning: printed >right # of the edited config
holds "and gives the same loss" cmp left right
runs convert --from state --config whole/config.json --to back
runs convert --from whole --to bare --bare
runs convert --from bare --bare --to back

# Both are in a checkpoint, of which the state does not have the model.
last=whole/checkpoints/step-0000000002
refuses 1 "has both a model and saved state; add --kind model or --kind state" convert --from $last --to x
runs convert --from $last --kind model --to of-last
refuses 1 "has no tensor whose key begins with 'model.'" convert --from $last --kind state --to x

refuses 1 "'state' has a state already; give another directory" convert --from whole --to state
refuses 1 "'back' has a model already; give another directory" convert --from whole --to back
refuses 1 "has no tensor whose key begins with 'other.'; the first one is 'model.t" convert --from state --prefix other --to x
rm of-last/config.json
refuses 1 "'of-last' has no config.json; give that of the model with --config FILE" convert --from of-last --to x
refuses 1 "--config is only for a state; 'whole' has its own" convert --from whole --config back/config.json --to x
refuses 1 "cannot read the directory 'none': No such file or directory" convert --from none --to x
mkdir empty
refuses 1 "'empty' has neither a model (model.safetensors) nor saved state (index.json)" convert --from empty --to x
refuses 1 "--to is the directory 'state' itself" convert --from state --to ./state
refuses 1 "cannot make the directory 'none/x': No such file or directory" convert --from whole --to none/x
refuses 1 "'left' is not a directory" convert --from whole --to left
holds "nothing was begun" test ! -e x
refuses 2 "--from DIR is missing" convert --to x
refuses 2 "--to DIR is missing" convert --from whole
refuses 2 "--prefix and --bare exclude each other" convert --from whole --to x --prefix a --bare

# ---- A conversion that ends early leaves the old model, the new one or none, and no half of a file ----

# nothing_begun DIR: whether the directory has neither a state, a model nor the begin of a file.
nothing_begun() { test -z "$(ls $1 | grep -v '^model.safetensors$')"; }
# no_half DIR: whether the directory has no begin of a file.
no_half() { test -z "$(ls $1 2>/dev/null | grep tmp-)"; }

(ulimit -f 20 && "$tapegrad" convert --from whole --to full >printed 2>&1)
holds "a full disk is reported" grep -q "cannot write 'full/rank-00000.safetensors' at offset" printed
holds "and nothing is left" nothing_begun full
(ulimit -f 20 && "$tapegrad" convert --from state --to back >printed 2>&1)
holds "a full disk is reported" grep -q "cannot write 'back/model.safetensors' at offset" printed
holds "and no config is left" nothing_begun back

# ---- GGUF; torch / gguf compares the files with llama.cpp ----

refuses 1 "'whole' has no tokenizer.json; --no-tokenizer writes the model" convert --from whole --to whole.gguf
holds "and nothing was begun" test -z "$(ls | grep gguf)"
runs convert --from whole --to whole.gguf --no-tokenizer
holds "a file of version 3 is there" test "$(head -c 8 whole.gguf | od -An -tx1 | tr -d ' ')" = 4747554603000000
cp whole.gguf before
(ulimit -f 20 && "$tapegrad" convert --from whole --to whole.gguf --no-tokenizer >printed 2>&1)
holds "a full disk is reported" grep -q "cannot write 'whole.gguf' at offset" printed
holds "and the old file stays" cmp before whole.gguf
holds "without another" test "$(ls | grep -c gguf)" = 1
refuses 1 "'state' is saved state; convert it to a model first" convert --from state --to x.gguf --no-tokenizer
refuses 2 "--no-tokenizer is for --to FILE.gguf" convert --from whole --to x --no-tokenizer
refuses 2 "do not go with --to FILE.gguf" convert --from whole --to x.gguf --adapter y
head -c 200 whole/model.safetensors >left
mkdir damaged && cp whole/config.json damaged && cp left damaged/model.safetensors
refuses 1 "damaged/model.safetensors" convert --from damaged --to x.gguf --no-tokenizer
holds "nothing was begun" test ! -e x.gguf

# ---- Interrupts ----

# Interrupts hit any moment of the conversion of a model of 8 MB.
head -c 1000 "$text" >short
runs train --out large --data short --data-format u16 $tiny --vocab 60000 --hidden 32 --steps 1
runs convert --from large --to large-state
for ms in 01 02 03 04 05 06 08 10 12 15; do
    rm -f large.gguf
    timeout --foreground -s INT 0.$ms "$tapegrad" convert --from large --to large.gguf --no-tokenizer >printed 2>&1
    holds "an interrupt after 0.$ms s of writing GGUF leaves no half" test -z "$(ls | grep gguf.tmp)"
    for from in large large-state; do
        rm -rf cut
        timeout --foreground -s INT 0.$ms "$tapegrad" convert --from $from --to cut >printed 2>&1
        holds "an interrupt after 0.$ms s of converting $from leaves no half" no_half cut
        test -e cut/index.json -o -e cut/config.json || runs convert --from $from --to cut
    done
done
finish
