#!/bin/sh
# pipeline.sh PROGRAM TEXT: stages of a pipeline train to the numbers of one rank, in all schedules; any composition of
# stages and ranks resumes, evaluates and generates from the checkpoint of another; wrong options are refused. With
# TG_LONG=1 all compositions run, else a part of them.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
shape="--layers 4 --hidden 16 --heads 2 --seq-len 16 --batch 8 --dropout 0.1"
run="--data $text $shape --threads 1 --precision fp64 --val-batches 1 --val-every 3 --checkpoint-every 3 --steps 6"

# follows DIR OTHER: every loss, validation loss and norm of the gradients of DIR equals that of the run OTHER with a
# relative error of at most 1e-10.
follows() {
    for key in loss val_loss grad_norm; do
        number $key "$2/metrics.jsonl" >left
        number $key "$1/metrics.jsonl" >right
        [ -s left ] && [ "$(wc -l <left)" = "$(wc -l <right)" ] &&
            paste left right | awk '{ d = $1 - $2; m = 1e-10 * ($1 > 1 ? $1 : 1)
                if (!(d <= m && -d <= m)) exit 1 }' || return 1
    done
}

# long_turn: succeeds for each case in the suite long, and for every third in the short one.
cases=0
long_turn() {
    cases=$((cases + 1))
    [ -n "${TG_LONG:-}" ] || [ $((cases % 3)) = 0 ]
}

# ---- All schedules give one rank's numbers ----

runs train --out one $run --micro-batches 4
for how in "--pp 2 --ranks 2 --schedule gpipe" "--pp 2 --ranks 2" "--pp 2 --ranks 2 --schedule zb-h1" \
    "--pp 2 --ranks 2 --vp 2" "--pp 2 --ranks 2 --vp 2 --schedule gpipe" "--pp 2 --tp 2 --ranks 4 --schedule zb-h1" \
    "--pp 4 --ranks 4" "--pp 2 --tp 2 --ranks 4 --sp --vp 2" "--pp 2 --ranks 4" "--pp 2 --ranks 4 --vp 2" \
    "--pp 2 --ranks 2 --recompute full --schedule zb-h1" "--pp 2 --tp 2 --ranks 8 --sp --recompute selective" \
    "--pp 4 --ranks 4 --schedule zb-h1 --layout E|t*2|t*2|L" "--pp 2 --ranks 4 --schedule zb-h1 --find-nan"; do
    long_turn || continue
    runs train --out many $run --micro-batches 4 $how
    holds "$how gives one rank's numbers" follows many one
    rm -rf many
done

# Numbers of micro-batches that are not multiples of the stages, and Llama with an output matrix of its own.
for micros in 1 2 8; do
    long_turn || continue
    rm -rf alone many
    runs train --out alone $run --micro-batches $micros
    runs train --out many $run --micro-batches $micros --pp 2 --ranks 2 --schedule zb-h1
    holds "$micros micro-batches in a pipeline give one rank's numbers" follows many alone
done
rm -rf alone many
llama="--data $text --arch llama --layers 3 --hidden 16 --heads 2 --seq-len 16 --batch 4 --threads 1 --precision fp64"
llama="$llama --val-every 0 --checkpoint-every 0 --micro-batches 4 --steps 4"
runs train --out alone $llama
runs train --out many $llama --pp 2 --ranks 2 --layout "E t*2|t L"
sed 's/^{/{"val_loss": 0, /' alone/metrics.jsonl >with && mv with alone/metrics.jsonl
sed 's/^{/{"val_loss": 0, /' many/metrics.jsonl >with && mv with many/metrics.jsonl
holds "llama in uneven stages gives one rank's numbers" follows many alone

# ---- Processes, checkpoints, evaluation ----

rm -rf many
runs run -n 4 -- "$tapegrad" train --out many $run --micro-batches 4 --pp 2 --tp 2 --schedule zb-h1
holds "processes give one rank's numbers" follows many one
holds "the program says how ranks are divided" grep -q "^4 ranks (shm): tp 2, dp 1, pp 2 (zb-h1, bubble 0\.[0-9]*)" printed
holds "each stage has a file of weights" test -s many/model-00002-of-00002.safetensors
holds "the words are in the state once" test "$(grep -o '"transformer.wte.weight.m":' \
    many/checkpoints/step-0000000006/index.json | wc -l)" = 1
holds "each rank has a file of the state" test "$(echo many/checkpoints/step-0000000006/rank-0000[0-3].safetensors | wc -w)" = 4
holds "and the index names it" grep -q '"transformer.h.3.ln_1.weight": *"model-00002-of-00002' many/model.safetensors.index.json
loss=$(runs eval --model one --data "$text" --precision fp64 --json && number loss printed)
for how in "--ranks 1" "--ranks 2 --tp 2" "--ranks 2 --pp 2" "--ranks 4 --pp 2 --tp 2" "--ranks 4 --pp 2" "--ranks 4 --pp 4"; do
    long_turn || continue
    runs eval --model many --data "$text" --precision fp64 --json $how
    holds "eval $how gives one rank's loss" near "$(number loss printed)" "$loss" 1e-9
done
"$tapegrad" generate --model one --prompt "The" --tokens 8 --temperature 0 >left 2>&1
"$tapegrad" generate --model many --prompt "The" --tokens 8 --temperature 0 >right 2>&1
holds "generate reads what stages have written" cmp left right
runs train --init many --out next --data "$text" --seq-len 16 --batch 4 --threads 1 --steps 1 --ranks 2 --pp 2 --val-every 0
rm -rf next

# Any composition goes on with the checkpoint of another.
cp -r one whole && runs train --resume --out whole --steps 9
cp -r many stages
runs train --out chunks $run --micro-batches 4 --ranks 2 --pp 2 --vp 2
for from in one stages chunks; do
    for to in "--ranks 1 --tp 1 --pp 1" "--ranks 2 --tp 1 --pp 2" "--ranks 2 --tp 1 --pp 2 --vp 2" \
        "--ranks 4 --tp 2 --pp 2 --schedule zb-h1" "--ranks 2 --tp 2 --pp 1" "--ranks 4 --tp 1 --pp 4 --schedule gpipe"; do
        long_turn || continue
        rm -rf next
        cp -r $from next
        runs train --resume --out next --steps 9 $to
        holds "$from goes on with $to" follows next whole
    done
done
rm -rf next
cp -r stages next
runs run -n 4 -- "$tapegrad" train --resume --out next --steps 9
holds "without options a run goes on in its composition" follows next whole
holds "and its schedule" grep -q "pp 2 (zb-h1" printed

# Megatron's streams: each stage has a seed of its own, and goes on with it.
runs train --out seeds $run --micro-batches 4 --ranks 2 --pp 2 --rng megatron --seed 5
holds "the seeds of stages are 100 apart" grep -q '"rng":"1 2 1 1 0 0 0 0 5 0 [0-9]* 0 1 0 0 105 0 [0-9]*"' \
    seeds/checkpoints/step-0000000003/index.json
rm -rf next
cp -r seeds next
rm -r next/checkpoints/*6
runs train --resume --out next
holds "and draw the same numbers after a resumption" same_steps seeds next

# Damage of a stage's files is found.
for file in rank-00001.safetensors index.json model-00002-of-00002.safetensors model.safetensors.index.json; do
    rm -rf hurt
    cp -r stages hurt
    echo >>hurt/checkpoints/step-0000000006/$file
    sed -i 's/weight/weighs/' hurt/checkpoints/step-0000000006/$file
    "$tapegrad" train --resume --out hurt --ranks 1 --tp 1 --pp 1 --steps 9 >printed 2>&1
    holds "a damaged $file is refused" test $? = 1
    holds "and named, with a checkpoint that is whole" grep -q "$file.*--resume-step 3" printed
done

# Weights of another run are found: one file is refused, all of them are warned of.
rm -rf hurt
cp -r stages hurt
cp chunks/model-00002-of-00002.safetensors hurt
refuses 1 "model-00002-of-00002.safetensors' is not the file that" eval --model hurt --data "$text"
cp chunks/model* hurt
runs eval --model hurt --data "$text"
holds "other weights are warned of" grep -q "does not hold the weights that 'hurt/config.json' was saved with (the checksum of the index" printed
rm -rf next
cp -r stages next
runs train --resume --out next --steps 7 --ranks 1 --tp 1 --pp 1
holds "one stage leaves no files of several" test "$(cd next && echo model*)" = model.safetensors

# ---- A stage is killed ----

"$tapegrad" run -n 2 -- "$tapegrad" train --out lost $run --pp 2 --micro-batches 4 --steps 1000000 --checkpoint-every 0 --deadline 60 >printed 2>&1 &
launcher=$!
holds "the stages start" while_alive $launcher test -s lost/metrics.jsonl
kill -KILL "$(pgrep -P $launcher | tail -n 1)"
wait $launcher
holds "the launcher fails with the stage" test $? = 137
holds "the stage is named" grep -q "^tapegrad run: rank 1 was ended by signal 9" printed
holds "the other stage reports it" grep -q "^tapegrad train: .*rank 1" printed

# ---- inspect ----

runs inspect $shape --ranks 4 --pp 2 --tp 2 --schedule zb-h1 --micro-batches 8 --json
holds "inspect counts the micro-batches that stages keep" test "$(number kept_micro_batches printed | tr '\n' ' ')" = "2 2 "
holds "and the messages" test "$(number sends printed | tr '\n' ' ')" = "8 8 "
holds "and that the last one, which has the output matrix, is idle less" \
    test "$(number idle printed | awk '{ idle[NR] = $1 } END { print(idle[2] < idle[1]) }')" = 1
holds "and the layers" test "$(number layers printed | tail -n 2 | tr '\n' ' ')" = "2 2 "

holds "and the words that stage 1 has too" test "$(number copied_parameters printed | tr '\n' ' ')" = "0 2048 "
runs inspect $shape --ranks 2 --pp 2 --micro-batches 1
holds "and says that checkpoints have them once" grep -q "^ *4096 parameters of stage 1 are a copy of stage 0's" printed

# ---- Wrong options ----

wrong_run="--data $text --out x $tiny --layers 3 --steps 3"
refuses 2 "--ranks 3 is not divisible by --tp 1 x --pp 2" train $wrong_run --ranks 3 --pp 2
refuses 1 'a layout that would do is "E t*2|t L"' train $wrong_run --ranks 2 --pp 2
refuses 1 "layout" train $wrong_run --ranks 2 --pp 2 --layout "E t|t L"
refuses 2 "--schedule zb-h1 has one chunk of layers on each stage" train $wrong_run --ranks 2 --pp 2 --vp 2 --schedule zb-h1
refuses 2 "--schedule needs --pp N of 2 or more" train $wrong_run --schedule zb-h1
refuses 2 "--vp needs --pp N of 2 or more" train $wrong_run --vp 2
refuses 2 "--layout needs --pp N of 2 or more" train $wrong_run --layout "E t*3 L"
refuses 2 "--schedule is 'dualpipe', expected one of gpipe|1f1b|interleaved|zb-h1" train $wrong_run --schedule dualpipe
refuses 2 "--accumulate 2 and --micro-batches 4: the two are names of one option" train $wrong_run --accumulate 2 --micro-batches 4
refuses 2 "--record needs --pp 1" train $wrong_run --ranks 2 --pp 2 --layout "E t*2|t L" --record x.rec
refuses 2 "a pipeline cannot generate" generate --model one --prompt a --pp 2
refuses 2 "--ranks 1 is not divisible by --tp 1 x --pp 2" inspect --pp 2
finish
