#!/bin/sh
# data.sh PROGRAM TEXT: what train and eval read. The same text gives the same model from a file, a directory, a pattern,
# standard input and compressed files; examples have masks; blends, validation files and documents are as documented;
# a resumed run goes on from its token files; what is damaged is refused.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="$tiny --steps 6 --val-every 3 --checkpoint-every 3"
same() { cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
says() { grep -qF -e "$1" printed; }

# ---- One text, in many ways ----
head -c 6000 "$text" >a.txt
tail -c 4000 "$text" >b.txt
cat a.txt b.txt >both.txt
mkdir -p folder/deeper .folder
cp a.txt folder/1.txt
cp b.txt folder/deeper/2.txt
echo hidden >folder/.hidden
runs train --data both.txt --out whole $run
for words in "a.txt b.txt" "folder" "[ab].txt"; do
    rm -rf several
    runs train --data $words --out several $run
    holds "the tokens of '$words' are those of both.txt" same whole several
    holds "it says how many files" says "data: 2 files, 10.0 kB, 2 documents, 10000 tokens, of which 500 validate"
done
holds "it says what the run reads" says "the run reads 384 tokens: 0.04"
"$tapegrad" train --data - --out piped $run <both.txt >printed 2>&1
holds "standard input is read" same whole piped
holds "standard input becomes a token file" test -s piped/data/data-000.bin
mkdir many
for i in $(seq 1 70); do cp a.txt "many/$i.txt"; done
runs train --data many --out of_many $run
holds "many small files become one token file" test "$(wc -c <of_many/data/data-000.bin)" = 420000

# ---- Compressed ----
for tool in gzip zstd; do
    if ! command -v $tool >/dev/null || "$tapegrad" train --data none.gz --out none 2>&1 | grep -q "without"; then continue; fi
    $tool -c a.txt >packed
    $tool -c b.txt >>packed # two members
    if ! "$tapegrad" eval --model whole --data packed >printed 2>&1 && grep -q "was built without" printed; then continue; fi
    rm -rf unpacked
    runs train --data packed --out unpacked $run
    holds "a file compressed by $tool is its text" same whole unpacked
    head -c 2500 packed >cut
    refuses 1 "'cut' is damaged" train --data cut --out x $run
    (head -c 1000 packed; printf '\377\377\377\377\377'; tail -c +1006 packed) >turned
    refuses 1 "'turned' is damaged" train --data turned --out x $run
done

# ---- Examples ----
for i in $(seq 1 60); do echo "{\"prompt\": \"question $i? \", \"completion\": \"answer $i.\"}"; done >pairs.jsonl
for i in $(seq 1 60); do echo "{\"text\": \"question $i? answer $i.\", \"more\": [$i]}"; done >texts.jsonl
for i in $(seq 1 60); do echo "question $i? answer $i."; done >lines.txt
runs train --data lines.txt --out lines $run
runs train --data texts.jsonl --out texts $run
holds "{\"text\"} is text with a line break" same lines texts
holds "each line is a document" says "texts.jsonl, 60 documents"
runs eval --model lines --data pairs.jsonl
answers=$(cat printed)
holds "only the completions are predicted" grep -q "^tokens  *651$" printed
runs eval --model lines --data lines.txt
holds "in text everything is predicted" grep -q "^tokens  *1421$" printed
runs train --data pairs.jsonl --out pairs $run
holds "masks change what is learned" test "$(tail -n 1 pairs/metrics.jsonl)" != "$(tail -n 1 texts/metrics.jsonl)"
for options in "--ranks 2" "--accumulate 2" "--ranks 2 --cp 2" "--ranks 2 --tp 2" "--ranks 2 --zero 2"; do
    rm -rf other
    runs train --data pairs.jsonl --out other $run $options
    holds "the mean over the tokens that are predicted is the same with $options" \
        test "$(number loss pairs/metrics.jsonl | cut -c 1-6)" = "$(number loss other/metrics.jsonl | cut -c 1-6)"
done
bad() { # LINE SAYS
    (head -n 2 texts.jsonl; echo "$1") >bad.jsonl
    refuses 1 "'bad.jsonl' line 3: $2" train --data bad.jsonl --out x $run
}
bad '{"text": 1}' '"text" is something else, expected a string'
bad '{"prompt": "a"}' '"completion" is missing, expected a string'
bad '{"title": "a"}' 'the object has neither "text", nor "prompt" and "completion"'
bad '["a"]' 'expected an object'
bad '{"text": "a"' 'not JSON'
bad '{"messages": []}' 'chat "messages" need a tokenizer with a chat template'

runs train --data pairs.jsonl --out stages $tiny --layers 2 --steps 6 --val-every 3
runs train --data pairs.jsonl --out staged $tiny --layers 2 --steps 6 --val-every 3 --ranks 2 --pp 2 --accumulate 2
holds "so it is in a pipeline" \
    test "$(number loss stages/metrics.jsonl | cut -c 1-6)" = "$(number loss staged/metrics.jsonl | cut -c 1-6)"

# ---- Documents ----
runs train --data pairs.jsonl --no-attend-across --pad-documents --out apart $run
holds "padding is said" says "% of the places in sequences are padding"
runs train --data pairs.jsonl --no-attend-across --pad-documents --out divided $run --ranks 2 --cp 2
holds "ranks that divide sequences read the same documents" \
    test "$(number loss apart/metrics.jsonl | cut -c 1-6)" = "$(number loss divided/metrics.jsonl | cut -c 1-6)"
"$tapegrad" eval --model lines --data pairs.jsonl --no-attend-across >printed
holds "apart, as many tokens are predicted" grep -q "^tokens  *651$" printed
holds "apart, no document sees the one before it" test "$(cat printed)" != "$answers"
head -n 1 pairs.jsonl >one.jsonl
"$tapegrad" eval --model lines --data one.jsonl >one
"$tapegrad" eval --model lines --data one.jsonl one.jsonl one.jsonl --no-attend-across --pad-documents >printed
holds "a document that is read three times has one loss" \
    test "$(sed -n 's/^loss *//p' one)" = "$(sed -n 's/^loss *//p' printed)"

# Documents of 16 tokens, of which a sequence of 64 has four: packed and padded, a step reads the same ones. An offset of
# --order is where a sequence begins.
offsets() { # DISTANCE
    for i in $(seq 0 "$1" 511); do printf "\\$(printf %03o $((i % 256)))\\$(printf %03o $((i / 256)))\\0\\0\\0\\0\\0\\0"; done
}
for i in $(seq 10 42); do echo "{\"text\": \"$((i * 7919)) is $i$i$i${i}\"}"; done | sed 's/"}/xxxxxx"}/; s/": "\(.\{15\}\).*/": "\1"}/' >sixteen.jsonl
offsets 64 >order-64
offsets 16 >order-16
blocks="--data sixteen.jsonl --arch llama --layers 2 --hidden 16 --heads 2 --threads 1 --steps 1 --val-fraction 0 --precision fp64"
runs train $blocks --out filled --no-attend-across --seq-len 64 --batch 8 --order order-64
holds "documents are packed" says "documents are packed, and attention stays within each"
packed=$(number loss filled/metrics.jsonl)
runs train $blocks --out spread --no-attend-across --pad-documents --seq-len 16 --batch 32 --order order-16
holds "packed and padded documents have the same loss" near "$packed" "$(number loss spread/metrics.jsonl)" 1e-12
runs train $blocks --out across --seq-len 64 --batch 8 --order order-64
holds "which attention across them changes" test "$packed" != "$(number loss across/metrics.jsonl)"
for options in "--ranks 2 --tp 2" "--ranks 2 --tp 2 --sp" "--ranks 2" "--ranks 2 --pp 2" "--ranks 4 --pp 2 --tp 2 --sp" \
    "--ranks 2 --cp 2" "--ranks 4 --cp 2 --pp 2" "--accumulate 2 --recompute full" "--ranks 2 --zero 3"; do
    rm -rf other
    runs train $blocks --out other --no-attend-across --seq-len 64 --batch 8 --order order-64 $options
    holds "packed, the loss is the same with $options" near "$(number loss other/metrics.jsonl)" "$packed" 1e-12
done
# A captured step has the inputs of each step anew, and positions and the number of predicted tokens are among them.
steps="--data pairs.jsonl --val-fraction 0.3 --no-attend-across --arch gpt2 --dropout 0.1 --layers 2 --hidden 16 --heads 2 --seq-len 64 --batch 8 \
    --accumulate 2 --steps 4 --val-every 2 --threads 1"
for options in "" "--ranks 2" "--ranks 2 --tp 2 --sp" "--ranks 2 --pp 2" "--ranks 4 --pp 2 --tp 2 --schedule zb-h1" \
    "--ranks 2 --zero 2 --recompute full" "--ranks 4 --cp 2 --tp 2 --sp"; do
    rm -rf called captured
    runs train $steps --out called $options
    runs train $steps --out captured $options --capture
    holds "packed, captured steps give the bits of called ones with $options" same_steps called captured
done
runs train --resume --out captured --steps 6 --capture
runs train --resume --out called --steps 6
holds "and go on after a resume" same_steps called captured
for options in "" "--ranks 2" "--ranks 2 --tp 2"; do
    "$tapegrad" eval --model filled --data sixteen.jsonl --no-attend-across --precision fp64 --json $options >printed
    loss=$(number loss printed)
    holds "all but the first token of each document are predicted" grep -q '"tokens": 495' printed
    "$tapegrad" eval --model filled --data sixteen.jsonl --no-attend-across --pad-documents --precision fp64 --json $options >printed
    holds "eval packs documents to the same loss, $options" near "$(number loss printed)" "$loss" 1e-12
done
"$tapegrad" eval --model filled --data sixteen.jsonl --no-attend-across --precision fp64 --json --ranks 2 --pp 2 >printed
holds "so does a pipeline" near "$(number loss printed)" "$loss" 1e-12
(head -n 32 sixteen.jsonl; printf '%s\n' '{"text": "\n"}') >judges.jsonl # eight sequences, and the token after them
for options in "" "--pad-documents"; do
    rm -rf judged
    runs train --data sixteen.jsonl --init filled --out judged --no-attend-across $options --steps 1 --lr 0 --min-lr 0 \
        --batch 4 --threads 1 --seq-len 64 --val-data judges.jsonl --val-batches 0 --precision fp64
    "$tapegrad" eval --model filled --data judges.jsonl --no-attend-across $options --precision fp64 --json >printed
    holds "the validation of a run has the loss of eval $options" \
        near "$(number val_loss judged/metrics.jsonl)" "$(number loss printed)" 1e-12
done
refuses 2 "--pad-documents is for --no-attend-across" train --data pairs.jsonl --out x $run --pad-documents
refuses 2 "--pad-documents is for --no-attend-across" eval --model filled --data pairs.jsonl --pad-documents

# A run goes on as it was begun, also one of a version that always padded the documents which it kept apart.
runs train --data pairs.jsonl --no-attend-across --out goes_on $run
refuses 1 "--pad-documents is true, but the run in --out was begun with false" train --resume --out goes_on --steps 8 --pad-documents
runs train --resume --out goes_on --steps 8
holds "a packed run goes on packed" says "documents are packed"
runs train --resume --out goes_on --steps 10 --ranks 2 --cp 2
holds "also on ranks that divide sequences" says "documents are packed"
sed -i '/"pad-documents"/d' apart/checkpoints/*/state.json
for state in apart/checkpoints/*; do "$SEAL" "$state"; done
runs train --resume --out apart --steps 8
holds "a padded run of an earlier version goes on padded" says "each document begins a sequence"

# ---- Tokenizers ----
for i in $(seq 1 30); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"q$i\"}, {\"role\": \"assistant\", \"content\": \"a$i\"}," \
        "{\"role\": \"user\", \"content\": \"more?\"}, {\"role\": \"assistant\", \"content\": \"no.\"}]}"
done >talks.jsonl
if "$tapegrad" tokenizer train --data both.txt --to words --vocab 300 >printed 2>&1; then
    runs train --data both.txt --tokenizer words --out worded $run
    holds "the vocabulary is the tokenizer's" says "vocabulary 300"
    holds "the tokenizer is kept with the model" cmp words/tokenizer.json worded/tokenizer.json
    mkdir named && cp words/tokenizer.json named/other.json && echo '{}' >named/tokenizer.json
    runs train --data both.txt --tokenizer named/other.json --out by_file $run
    holds "also if its file has another name" cmp words/tokenizer.json by_file/tokenizer.json
    runs tokenize --tokenizer words --data both.txt --to ids.bin --ends
    holds "the tokens are those of tapegrad tokenize" cmp ids.bin worded/data/data-000.bin
    printf '{"text":"one"}\n{"text":"two"}\n' >lines.jsonl
    printf '{"text":"one"}\r\n\r\n{"text":"two"}\r\n' >breaks.jsonl
    runs tokenize --tokenizer words --data lines.jsonl --to lines.bin --ends
    runs tokenize --tokenizer words --data breaks.jsonl --to breaks.bin --ends
    holds "empty lines of MS-DOS are left out" cmp lines.bin breaks.bin
    runs eval --model worded --data both.txt
    expected=$(cat printed)
    runs eval --model worded --data ids.bin
    holds "eval takes the model's tokenizer" test "$(cat printed)" = "$expected"
    refuses 1 "--tokenizer is for text, but --data 'ids.bin' holds token ids" eval --model worded --data ids.bin --tokenizer words
    runs train --data both.txt --init worded --lora r=1 --out of_words --steps 1 --batch 4 --val-every 0
    runs eval --model of_words --data both.txt
    holds "also that of the model that adapters adapt" grep -q "^bits/token" printed
    runs train --data pairs.jsonl --init worded --out tuned --steps 2 --batch 4 --val-every 0
    holds "examples are encoded, masked and ended" says "60 documents"
    printf 'a\377b' >broken
    refuses 1 "'broken': " train --data broken --tokenizer words --out x $run
    refuses 1 "the tokenizer 'words' has 300 ids, but the model has a vocabulary of 299" \
        train --data both.txt --tokenizer words --vocab 299 --out x $run

    # Conversations: with a template that marks the answers, and with one that does not, the same tokens are predicted.
    for marks in '' '{% generation %}'; do
        name=chat$([ -z "$marks" ] || echo marked)
        mkdir $name
        cp words/tokenizer.json $name
        part="{{ m.content }}<|endoftext|>{{ '\\\\n' }}"
        [ -z "$marks" ] || part="{% if m.role == 'assistant' %}$marks$part{% endgeneration %}{% else %}$part{% endif %}"
        echo "{\"eos_token\": \"<|endoftext|>\", \"chat_template\": \"{% for m in messages %}<{{ m.role }}>$part{% endfor %}{%" \
            "if add_generation_prompt %}<assistant>{% endif %}\"}" >$name/tokenizer_config.json
        runs train --data talks.jsonl --tokenizer $name --out of_$name $run
        holds "each conversation is a document" says "30 documents"
    done
    holds "templates with and without {% generation %} give the same" same of_chat of_chatmarked
    holds "and the same masks" cmp of_chat/data/data-000.idx of_chatmarked/data/data-000.idx
    holds "the questions are context" test "$(wc -c <of_chat/data/data-000.idx)" = $((34 + 13 * 120 + 8 * 31))
    sed 's/{% for m in messages %}/{{ messages | length }}&/' chat/tokenizer_config.json >other_config.json
    cp -r chat counted
    cp other_config.json counted/tokenizer_config.json
    refuses 1 "'talks.jsonl' line 1: the chat template has no {% generation %}" \
        train --data talks.jsonl --tokenizer counted --out x $run
    head -n 1 talks.jsonl | sed 's/}$/, "tools": "[]"}/' >tools.jsonl
    refuses 1 "'tools.jsonl' line 1: \"tools\" is not an array" train --data tools.jsonl --tokenizer chat --out x $run

    "$tapegrad" train --data - --tokenizer words --out resumed $tiny --steps 3 --val-every 3 --lr-schedule constant \
        <both.txt >printed 2>&1
    runs train --data both.txt --tokenizer words --out at_once $run --lr-schedule constant
    runs train --resume --out resumed --steps 6
    holds "a run with a tokenizer goes on from its token file" same resumed at_once
    mkdir -p begun other
    cp at_once/*.json at_once/*.safetensors begun
    sed 's/ *$//' words/tokenizer.json >other/tokenizer.json
    head -c 17000000 /dev/zero | tr '\0' ' ' >>other/tokenizer.json
    runs train --init begun --data a.txt --tokenizer other --out retold --steps 3 --checkpoint-every 3 --batch 4 --seq-len 16
    holds "a large tokenizer is saved in place of the model's" cmp other/tokenizer.json retold/tokenizer.json
    runs train --init begun --data a.txt --out orphan --steps 3 --checkpoint-every 3 --batch 4 --seq-len 16
    runs train --init begun --lora r=2 --data a.txt --out adapted --steps 3 --checkpoint-every 3 --batch 4 --seq-len 16
    mkdir -p apart
    holds "a run of adapters goes on from another directory" \
        sh -c "cd apart && '$tapegrad' train --resume --out ../adapted --steps 6 >../printed 2>&1"
    mv begun elsewhere
    runs train --resume --out orphan --steps 6 --samples 1 --sample-prompt The --val-every 3
    holds "a run goes on when the model that it began with has moved" says "  sample: The"
else
    holds "a tokenizer is trained, or its plugin is missing" says "libtapegrad-text"
fi

# ---- Blends and validation ----
runs train --data 0.75 a.txt 0.25 b.txt --out blend $run
holds "the command of the evaluation has the words" says "eval --model blend --data 0.75 a.txt 0.25 b.txt"
holds "a blend says its shares" says "75 % of the sequences from a.txt: 5700 tokens"
runs train --data 3 a.txt 1 b.txt --out blend2 $run
holds "weights are relative" same blend blend2
runs train --data 1.5e308 a.txt 5e307 b.txt --out blend3 $run
holds "also if their sum is no number" same blend blend3
refuses 1 "--data: the weight 1e-300 of 'b.txt' is nothing next to 2, the largest" train --data 2 a.txt 1e-300 b.txt --out x $run
runs train --data a.txt --val-data b.txt --out checked $run
holds "a validation file is not trained on" says "10000 tokens, of which 4000 validate"
runs train --data a.txt --val-data b.txt --patience 2 --out patient $run
holds "a run waits for a lower loss of a validation file" test -s patient/model.safetensors
refuses 1 "'0.7' is no file, and not every word has a weight" train --data 0.7 a.txt b.txt --out x $run
refuses 1 "no file matches this pattern" train --data 'none*.txt' --out x $run
mkdir latin empties
cp a.txt "$(printf 'latin/\351.txt')"
refuses 1 '\xe9.txt'"' is not a name in UTF-8" train --data latin --out x $run
refuses 1 "--data 'empt*': no file matches this pattern" train --data 'empt*' --out x $run
refuses 1 "--data: the directory 'empties' has no files" train --data empties --out x $run
refuses 2 "--data: a word has a line break" train --data="a.txt
b.txt" --out x $run
again="--val-data a.txt b.txt"
runs train --data a.txt b.txt $again $again $again $again --out again $run # the last --val-data counts
holds "an option that is given again leaves others as they are" says "data: 4 files, 20.0 kB, 4 documents, 20000 tokens, of which 10000"
refuses 1 "'-' is given twice" train --data - - --out x $run
printf '' >nothing.jsonl
refuses 1 "'nothing.jsonl' has no text" train --data nothing.jsonl --out x $run
printf abc >few
refuses 1 "--val-data 'few' has 3 tokens" train --data a.txt --val-data few --out x $run
refuses 1 "in which no document of two tokens or more begins" train --data a.txt --no-attend-across --pad-documents --out x $run
mkdir -p taken/data/data.json
refuses 1 "'taken/data/data.json' is a directory" train --data pairs.jsonl --out taken $run

# ---- Resume ----
"$tapegrad" train --data - --out ended $tiny --steps 3 --val-every 3 --checkpoint-every 3 --lr-schedule constant <both.txt >printed 2>&1
"$tapegrad" train --data - --out uncut $run --lr-schedule constant <both.txt >printed 2>&1
runs train --resume --out ended --steps 6
holds "a run on standard input goes on from its token file" same ended uncut
"$tapegrad" train --resume --out ended --steps 9 --val-data b.txt </dev/null >printed 2>&1
holds "other data are refused, and the token files stay" test -s ended/data/data-000.bin -a ! -e ended/data.old
runs train --resume --out ended --steps 9
mkdir ended/data.old
mv ended/data/* ended/data.old
runs train --resume --out ended --steps 12
holds "token files that a killed run has set aside are taken back" test -s ended/data/data-000.bin -a ! -e ended/data.old
runs train --data 3 a.txt 1 pairs.jsonl --out mixed $tiny --steps 3 --val-every 3 --lr-schedule constant
runs train --data 3 a.txt 1 pairs.jsonl --out unmixed $run --lr-schedule constant
runs train --resume --out mixed --steps 6
holds "a blend goes on in its order" same mixed unmixed
sed -i 's/"path": "data-000"/"none": ""/' mixed/data/data.json
refuses 1 "'mixed/data/data.json' has an entry that is not a part of the data" train --resume --out mixed --steps 9
sed -i 's/"none": ""/"path": "data-000"/' mixed/data/data.json
refuses 1 "--data is not what the run began with" train --resume --out mixed --steps 9 --data 2 a.txt 1 pairs.jsonl

# A file of the same size that was written in the same second is another one.
cp pairs.jsonl stamped.jsonl
touch -d '2020-01-01 00:00:00.25' stamped.jsonl
runs train --data stamped.jsonl --out stamped $run
sed -i 's/1/2/g' stamped.jsonl
touch -d '2020-01-01 00:00:00.75' stamped.jsonl
refuses 1 "with other contents, expected" train --resume --out stamped --steps 9

# ---- A time instead of options ----
runs train --data both.txt --time 4s --threads 1 --out timed
holds "the choice is said" says "chosen: --arch llama --layers"
holds "the reason is said" says "tokens for each of its parameters"
rm -rf timed
runs train --data both.txt --time 4s --threads 1 --ranks 2 --seq-len 64 --out timed
holds "ranks are measured together" says "2 ranks (threads)"
rm -rf timed
runs train --data both.txt --time 3s --threads 1 --layers 1 --hidden 16 --heads 2 --seq-len 32 --out timed
holds "what is given is kept" says "hidden 16"
small="--data both.txt --time 1s --threads 1 --layers 1 --hidden 16 --heads 2 --seq-len 32 --val-every 0"
rm -rf timed
runs train $small --micro-batches 3 --min-lr 0.002 --out timed
holds "it need not agree with the defaults of what is chosen" says "--min-lr 0.002"
yes 'text to train and to validate on' | head -c 200000 >many.txt
runs train --data many.txt --time 1s --threads 1 --layers 1 --hidden 16 --heads 2 --seq-len 16 --batch 1 \
    --val-fraction 0.9 --val-batches 0 --out all-valid
holds "whole validations count in the time" test "$(grep -c val_loss all-valid/metrics.jsonl)" -le 4
rm -rf all-valid
refuses 2 "--warmup 900000000 is longer than --steps" train $small --warmup 900000000 --out x
refuses 2 "is more than --steps" train --data both.txt --time 1s --threads 1 --layers 1 --hidden 16 --heads 2 --lr-schedule wsd \
    --wsd-steps 1000 --out x
refuses 2 "--time is 'soon'" train --data a.txt --time soon --out x
refuses 2 "--time chooses the number of steps, and --steps gives it" train --data a.txt --time 3s --steps 3 --out x
refuses 2 "leave it out with --resume" train --resume --time 3s --out timed

# Sizes that the ranks cannot divide are left out.
rm -rf timed
runs train --data both.txt --time 2s --threads 1 --ranks 4 --tp 4 --val-every 0 --out timed
holds "heads are divided over --tp" says "chosen: --arch llama --layers 3 --hidden 128 --heads 4"
refuses 1 "none of the sizes that --time tries can be divided over the ranks (tg_lm_new: " \
    train --data both.txt --time 2s --threads 1 --ranks 5 --tp 5 --out x

# The memory: large models are left out, the batch is cut, and the run keeps within the limit.
head -c 3000 both.txt >few.txt
timed="--data few.txt --time 1h --threads 1 --val-every 0"
rm -rf timed
runs train $timed --memory 7M --out timed
holds "the memory leaves models out" says "Models from 3 x 128 on were left out because of 7.0 MiB of memory"
holds "the memory cuts the batch" says "The batch is cut into 4 micro-batches because of 7.0 MiB of memory."
holds "the choice says so" says "batch 8 --micro-batches 4 --steps"
rm -rf timed
runs train $timed --memory 7M --ranks 2 --zero 1 --out timed
holds "each rank has the memory" says "because of 7.0 MiB of memory for each rank"
"$tapegrad" inspect --arch llama --layers 2 --hidden 64 --heads 2 --seq-len 128 --batch 8 --micro-batches 8 --json >printed
needed=$(number peak_bytes printed | awk '{ printf "%.1f MiB", $1 / 1048576 }')
refuses 1 "8 micro-batches takes $needed with a model of 2 layers of 64, more than three quarters of 2.0 MiB of memory" \
    train $timed --memory 2M --out x
refuses 1 "12 x 16 tokens in 3 micro-batches takes" train $timed --layers 1 --hidden 16 --heads 2 --seq-len 16 --batch 12 \
    --micro-batches 3 --memory 100K --out x
refuses 1 "the limit is 102400;" train --data few.txt $tiny --memory 100K --out x
refuses 2 "--memory is '3X', expected bytes from 1 on, or a number with a unit" train --data few.txt --memory 3X --out x

finish
