#!/bin/sh
# eval_ranks.sh PROGRAM TEXT: generate and eval on ranks that are threads or processes give one rank's text and loss.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
steps=300 judged=$text # what eval reads
if [ -n "${TG_TEST_QUICK:-}" ]; then
    steps=60 judged=part
    head -c 3000 "$text" >part
fi
train="train --data $text --layers 2 --hidden 32 --heads 4 --seq-len 32 --batch 8 --steps $steps --lr 1e-2 --threads 1"
train="$train --val-every 0 --checkpoint-every 0"
runs $train --out gpt2
runs $train --out llama --arch llama --kv-heads 2
runs $train --out wide --vocab 300 --steps 30

# says FILE OPTION...: keeps what generate prints.
says() {
    file=$1
    shift
    "$tapegrad" generate --prompt "Licensed under" --tokens 60 --threads 1 "$@" >"$file" 2>&1
}
# loss OPTION...: what eval finds.
loss() {
    runs eval --data "$judged" --threads 1 --json "$@"
    number loss printed
}
for model in gpt2 llama; do
    whole=$(loss --model $model)
    half=$(loss --model $model --seq-len 20)
    for ranks in "--ranks 2 --tp 2" "--ranks 4 --tp 4" "--ranks 2" "--ranks 4 --tp 2" "--ranks 3"; do
        turn || continue
        holds "$model: $ranks: one rank's loss" near "$(loss --model $model $ranks)" "$whole" 1e-6
        holds "$model: $ranks: windows of 20" near "$(loss --model $model --seq-len 20 $ranks)" "$half" 1e-6
    done
    for how in "--temperature 0" "--temperature 0 --precision fp64" "--precision fp64"; do
        says one --model $model $how
        for tp in 2 4; do
            turn || continue
            says many --model $model $how --ranks $tp --tp $tp
            holds "$model: $how: one rank's text on $tp" cmp one many
        done
    done
    "$tapegrad" run -n 2 -- "$tapegrad" generate --model $model --prompt "Licensed under" --tokens 60 --threads 1 --tp 2 \
        --precision fp64 >many 2>&1
    holds "$model: processes give the text" cmp one many
    loss --model $model --ranks 4 --tp 2 >threads
    "$tapegrad" run -n 4 -- "$tapegrad" eval --model $model --data "$judged" --threads 1 --json --tp 2 >printed 2>&1
    holds "$model: processes print one report" test "$(number loss printed)" = "$(cat threads)"
done
"$tapegrad" generate --model wide --prompt-ids 299,7 --tokens 40 --temperature 0 >one 2>&1
"$tapegrad" generate --model wide --prompt-ids 299,7 --tokens 40 --temperature 0 --ranks 4 --tp 4 >many 2>&1
holds "a padded vocabulary is never said" cmp one many

# Fewer windows than replicas.
head -c 41 "$text" >short
one=$(runs eval --model gpt2 --data short --json && number loss printed)
runs eval --model gpt2 --data short --json --ranks 4
holds "a replica without windows" near "$(number loss printed)" "$one" 1e-6

refuses 2 "--ranks 4 is not divisible by --tp 3" eval --model gpt2 --data "$text" --ranks 4 --tp 3
refuses 2 "--ranks 1 is not divisible by --tp 2" generate --model gpt2 --prompt a --tp 2
refuses 2 "one text is no work for them: give --tp 4" generate --model gpt2 --prompt a --ranks 4 --tp 2
refuses 1 "4 heads are not divisible by tp = 8" generate --model gpt2 --prompt a --ranks 8 --tp 8
refuses 1 "cannot open 'none/config.json'" eval --model none --data "$text" --ranks 2
refuses 1 "cannot open 'none'" eval --model gpt2 --data none --ranks 2
refuses 2 "id 2, at character 3, is not a number" generate --model gpt2 --prompt-ids 1,256 --ranks 2 --tp 2
refuses 2 "needs \`tapegrad run" eval --model gpt2 --data "$text" --comm shm
"$tapegrad" run -n 2 -- "$tapegrad" generate --model gpt2 --prompt a >printed 2>&1
holds "processes that are replicas are refused" grep -q "2 ranks with --tp 1 are 2 replicas" printed
finish
