#!/bin/sh
# look.sh PROGRAM TEXT: what a run shows in addition to its progress: samples, the next commands, the page, the trace, the
# event file, and the commands compare and tape. look.py reads the files.
# shellcheck source=tests/train/check.sh disable=SC2086
here=$(realpath "$(dirname "$0")")
. "$here/check.sh"
# python3 of the system, without packages.
reads() { python3 "$here/look.py" "$@" >printed 2>&1; }
tr '\n' ' ' <"$text" >plain
run="--data plain $tiny --steps 20 --val-every 10 --checkpoint-every 10"

# Without options nothing more is written; with all of them the model is the same.
runs train $run --out bare
holds "the next commands are printed" grep -q "^generate: $tapegrad generate --model bare --prompt 'The '$" printed
holds "and evaluate" grep -q "^evaluate: $tapegrad eval --model bare --data plain$" printed
holds "and train further" grep -q "^train further: $tapegrad train --resume --out bare --steps 40$" printed
runs train $run --out full --html --trace full.json --tensorboard events --samples 2 --sample-prompt 'The <b>' \
    --sample-tokens 9 --live
holds "looking does not change the run" same_run bare full
holds "--live is off where the output is no terminal" sh -c '! grep -q "$(printf "\033")" printed'
holds "the page is named" grep -q "^the page of the run is full/run.html$" printed
holds "samples are printed" test "$(grep -c '^  sample: The <b>' printed)" = 4
holds "samples are kept" test "$(grep -c '"text":"The <b>' full/samples.jsonl)" = 4
for command in "$(sed -n 's/^generate: //p' printed) --tokens 3" \
    "$(sed -n 's/^evaluate: //p' printed)" "$(sed -n 's/^train further: //p' printed)"; do
    holds "the printed command works: $command" sh -c "$command >/dev/null"
done
holds "the run goes on" test "$(wc -l <full/metrics.jsonl)" = 40
holds "so do its samples" test "$(sed -n 's/{"step":\([0-9]*\),.*/\1/p' full/samples.jsonl | tr '\n' ' ')" = "10 10 20 20 30 30 40 40 "
cp -r full grown
yes "$(head -n 1 full/samples.jsonl)" | head -n 300000 >grown/samples.jsonl
runs train --resume --out grown --steps 41 --log-every 1
holds "also if there are more than 16 MiB of them" test "$(wc -l <grown/samples.jsonl)" = 300002
rm -r grown

# The files.
holds "the page has the run and a step" reads page full/run.html run 40 1
holds "the trace has forward and backward" reads trace full.json 1
holds "the event file has every step" reads events events 1 20
runs train --resume --out full --steps 50 --tensorboard events --device cpu
for command in "generate --model full --prompt 'The <b>'" "eval --model full --data plain" \
    "train --resume --out full --steps 100"; do
    holds "the next command has the device: $command" grep -q ": $tapegrad $command --device cpu$" printed
done
holds "a second event file goes on" reads events events 41 50
runs train $run --out ranks --ranks 2 --trace ranks.json --html
holds "the trace has both ranks and their collectives" reads trace ranks.json 2
holds "so has the page" reads page ranks/run.html run 20 2

# A run without a validation, and ids that are no text.
sed 's/./&\x00/g' plain >plain.u16
runs train --data plain.u16 --data-format u16 --vocab 300 --out ids $tiny --steps 4 --val-every 2 --samples 1 --sample-tokens 3
holds "samples of ids are numbers" grep -Eq '^  sample: [0-9]+(,[0-9]+){18}$' printed
sample=$(sed -n 's/^  sample: //p' printed | tail -n 1)
prompt=$(echo "$sample" | cut -d , -f 1-16)
holds "the last sample is what tapegrad generate makes of its prompt" \
    test "$sample" = "$("$tapegrad" generate --model ids --prompt-ids "$prompt" --tokens 3 --threads 1 | tr -d ' ')"
holds "the next command has ids" grep -q "^generate: $tapegrad generate --model ids --prompt-ids 1,2,3$" printed
runs train --resume --out ids --steps 6
holds "and the format of the data" grep -q "^evaluate: $tapegrad eval --model ids --data plain.u16 --data-format u16$" printed
if "$tapegrad" tokenizer train --data "$text" --to words --vocab 300 >printed 2>&1; then # needs libtapegrad-text.so
    runs train --data plain --tokenizer words --out text $tiny --steps 4 --val-every 2 --sample-prompt 'The License' \
        --sample-tokens 5
    holds "samples of a tokenizer are text" test "$(grep -c '^  sample: The License' printed)" = 2
    next="$(sed -n 's/^generate: //p' printed) --tokens 3"
    holds "so is the prompt of the next command" \
        test "$next" = "$tapegrad generate --model text --prompt 'The License' --tokens 3"
    holds "which works: $next" sh -c "$next >/dev/null"

    # Samples begin with the token that the tokenizer puts before a text, as those of tapegrad generate do.
    mkdir begins
    python3 -c 'import json
t, end = json.load(open("words/tokenizer.json")), "<|endoftext|>"
t["post_processor"] = {
    "type": "TemplateProcessing", "pair": [], "special_tokens": {end: {"id": end, "ids": [0], "tokens": [end]}},
    "single": [{"SpecialToken": {"id": end, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}
json.dump(t, open("begins/tokenizer.json", "w"))'
    runs train --data plain --tokenizer begins --out begun $tiny --steps 2 --val-every 2 --sample-prompt 'The License' \
        --sample-tokens 5
    "$tapegrad" generate --model begun --prompt 'The License' --tokens 5 --threads 1 --json >generated
    holds "a sample is what tapegrad generate makes of its prompt" \
        python3 -c 'import json
sample, generated = json.loads(open("begun/samples.jsonl").readlines()[-1]), json.load(open("generated"))
assert sample["text"] == "<|endoftext|>The License" + generated["text"], (sample, generated)'
else
    grep -q libtapegrad-text printed || wrong "tokenizer train"
fi
# A model that diverges has no samples, and the run goes on.
runs train $run --out wild --precision fp16 --lr 1e6 --min-lr 1e6 --warmup 0 --steps 4 --val-every 2 --samples 1
holds "samples of logits that are not finite are reported" \
    grep -q "^  samples are not possible: .*expected a finite number" printed
holds "and the run goes on" test "$(wc -l <wild/metrics.jsonl)" = 4

# The way in which the program was started is that of the printed commands.
mkdir "its place"
ln -s "$tapegrad" "its place/tapegrad"
"its place/tapegrad" train $run --out found >printed 2>&1
holds "a path is quoted" grep -q "^evaluate: 'its place/tapegrad' eval --model found --data plain$" printed
(PATH="$PWD/its place:$PATH" && tapegrad train $run --out named) >printed 2>&1
holds "a name is kept" grep -q "^evaluate: tapegrad eval --model named --data plain$" printed

refuses 1 "--samples 1 are made at validations" train $run --out x --val-fraction 0 --samples 1
refuses 2 "--samples are made at validations, but --val-every is 0" train $run --out x --val-every 0 --sample-prompt a
refuses 1 "the model's vocabulary of 300 ids" train --data plain.u16 --data-format u16 --vocab 300 --out x $tiny --steps 4 --sample-prompt a
refuses 2 "text cannot be generated by ranks of --pp, --cp or --sp" train $run --out x --layers 2 --ranks 2 --pp 2 --samples 1
refuses 2 "--trace observes ops as they run" train $run --out x --device cuda --capture --trace x.json
stages="--data plain --layers 2 --hidden 16 --heads 2 --seq-len 16 --batch 4 --threads 1 --steps 20 --val-every 10"
runs train $stages --ranks 2 --pp 2 --accumulate 2 --out stages
runs train $stages --ranks 2 --pp 2 --accumulate 2 --out watched --html --trace stages.json
holds "looking does not change a pipeline" same_steps stages watched
holds "its page has the stages" reads page watched/run.html run 20 2
holds "its trace has the stages" reads trace stages.json 2
runs train $run --accumulate 2 --recompute full --out again --html
holds "micro-batches and recomputed ops have numbers of their own" reads page again/run.html run 20 1
mkdir directory
refuses 1 "cannot write 'directory': it is a directory" compare bare --html directory

# compare.
runs compare bare full ids --html all.html
holds "a row for each run" test "$(grep -Ec '^(bare|full|ids) ' printed)" = 3
holds "the page has all runs" reads page all.html compare 20 0
holds "no text ends a script early" test "$(grep -c '</script>' all.html)" = "$(grep -c '</script>' full/run.html)"
mkdir many
seq 5000 | awk '{ printf "{\"step\": %d, \"loss\": 2, \"seconds\": 1, \"tokens\": 9, \"val_loss\": %d}\n", $1, $1 == 777 ? 1 : 2 }' \
    >many/metrics.jsonl
runs compare many --html many.html
holds "of many validations the page has every third, the last and the best" \
    test "$(grep -o '\[[0-9]*,1.0,9,[12].0\]' many.html | wc -l)" = 1669
holds "the best one is known" grep -q '^many .* 1.0000 *777 ' printed
yes "{\"step\": 1, \"text\": \"$(printf %01000d 0)\"}" | head -n 17000 >many/samples.jsonl
printf '{"step": 2, "te' >>many/samples.jsonl
runs compare many --html many.html
holds "samples may have any length" test "$(wc -c <many.html)" -gt 17000000
holds "nothing is said of them" test "$(wc -l <printed)" = 2
rm many/samples.jsonl many.html
refuses 1 "cannot open 'nothing/metrics.jsonl'" compare bare nothing
refuses 2 "expected the directories of one or more runs" compare
printf '{"step": 1, "loss": 2}\nnot JSON\n{"step": 2, "loss": null}\n{"step": 3, "lo' >bare/metrics.jsonl
runs compare bare
holds "damaged lines are left out" grep -Eq '^bare +2 ' printed

# tape.
runs tape full --html tape.html --trace tape.json --batch 2 --threads 1
holds "a row for each op" grep -Eq '^linear +[0-9]+ +[0-9.]+ +[0-9.]+ ' printed
holds "the peak of memory" grep -Eq '^memory at the peak: [1-9][0-9]+ bytes$' printed
holds "the page has the tape" reads page tape.html tape 0 1
holds "the trace has it too" reads trace tape.json 1
runs tape full --ranks 2 --tp 2 --html tape.html
holds "the page has two ranks" reads page tape.html tape 0 2
runs tape full --json
holds "JSON on request" grep -q '"ops": \[' printed
ops_of() { # COLUMN: nodes, and the bytes saved, which are in that column
    awk -v at="$1" '$1 ~ /^(embedding|layer_norm|linear.*|attention)$/ { print $1, $2, $at }' | sort
}
for documents in "" "--no-attend-across"; do
    runs tape full --batch 2 --threads 1 $documents
    ops_of 5 <printed >"ran$documents"
    "$tapegrad" inspect --model full --batch 2 $documents | ops_of 3 >on_paper
    holds "inspect has the ops of tape $documents" cmp "ran$documents" on_paper
    holds "which are several" test "$(wc -l <on_paper)" -ge 5
done
holds "those of a packed step differ" sh -c '! cmp -s ran ran--no-attend-across'
runs tape full --ranks 2 --tp 2 --no-attend-across --documents 3 --html tape.html
holds "ranks pack documents" reads page tape.html tape 0 2
refuses 2 "--documents is for --no-attend-across" tape full --documents 3
refuses 1 "--documents 17 is more than the 16 tokens of a sequence" tape full --no-attend-across --documents 17
refuses 1 "--batch 3 cannot be cut into equal parts for 2 data-parallel ranks" tape full --batch 3 --ranks 2
refuses 2 "expected the directory of a MODEL" tape

# The live view, on a terminal whose size changes.
rm -rf seen
holds "the live view fits the terminal" reads live "$tapegrad" train --data plain $tiny --out seen --steps 6000 --live
finish
