#!/bin/sh
# fp16.sh PROGRAM TEXT: training in float16: the scale of the loss, on one rank and several, and after a resume.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"

# trains DIR STEPS OPTION...: trains in float16.
trains() {
    dir=$1 steps=$2
    shift 2
    rm -rf "$dir"
    runs train --data "$text" --out "$dir" $tiny --steps $steps --val-every 20 "$@"
}
last() { number "$1" "$2/metrics.jsonl" | tail -n 1; }
scale_at() { number loss_scale "$1/metrics.jsonl" | sed -n "$2p"; }
skipped() { grep -c '"grad_norm": null' "$1/metrics.jsonl"; }

trains whole 60
holds "float32 has no loss scale" sh -c '! grep -q loss_scale whole/metrics.jsonl'
trains half 60 --precision fp16
holds "it learns like float32" near "$(last loss whole)" "$(last loss half)" 5e-2
holds "its model has 16 bits" grep -q '"torch_dtype": "float16"' half/config.json
holds "every line of the metrics has the scale" test "$(number loss_scale half/metrics.jsonl | wc -l)" = 60
runs eval --model half --data "$text" --json --precision fp16
holds "eval in float16 gives about the validation loss" near "$(last val_loss half)" "$(number loss printed)" 0.5
runs generate --model half --prompt a --tokens 4 --precision fp16

# The scale falls until nothing overflows, and grows again.
trains a 60 --precision fp16 --initial-loss-scale 1073741824 --loss-scale-window 7
holds "the scale falls after two overflows, the default" test "$(scale_at a 1),$(scale_at a 2)" = "1073741824,536870912"
n=$(skipped a)
holds "the first steps are skipped" test "$(head -n "$n" a/metrics.jsonl | grep -c '"grad_norm": null')" -ge 5
holds "later steps are not skipped" less "$n" 30
holds "it learns nevertheless" less "$(last loss a)" 5.3
trains b 60 --precision fp16 --initial-loss-scale 4 --loss-scale-window 5 --hysteresis 1
holds "the scale grows" test "$(scale_at b 4),$(scale_at b 5),$(scale_at b 60)" = "4,8,16384"
trains b 10 --precision fp16 --loss-scale 128
holds "a fixed scale does not change" test "$(number loss_scale b/metrics.jsonl | sort -u)" = 128
for scale in "--loss-scale 1e30" "--initial-loss-scale 1e30 --min-loss-scale 1e29"; do
    rm -rf b
    "$tapegrad" train --data "$text" --out b $tiny --steps 60 --precision fp16 $scale >printed 2>&1
    holds "overflows without end are an error ($scale)" test $? = 1
    holds "and said to be ($scale)" grep -q "10 such steps in a row" printed
done

# Stops in the middle of a window, and after overflows have used up the hysteresis.
trains b 60 --precision fp16 --initial-loss-scale 1073741824 --loss-scale-window 7 --checkpoint-every 1 --keep 60
holds "two runs give the same bits" same_run a b
for step in 1 3 11 25 38; do
    rm -rf c
    cp -r b c
    find c/checkpoints -name 'step-*' | awk -F- -v s=$step '$NF + 0 > s' | xargs rm -r
    runs train --resume --out c
    holds "the same bits after step $step" same_run b c
done
"$tapegrad" train --data "$text" --out high $tiny --steps 20 --precision fp16 --loss-scale 1e30 >/dev/null 2>printed
holds "a scale that is too high is named" grep -q "10 such steps in a row; try a lower --loss-scale" printed
refuses 1 "--precision is fp32, but the run in --out was begun with fp16" train --resume --out c --precision fp32
refuses 1 "--loss-scale is 8, but the run in --out was begun with 0" train --resume --out c --loss-scale 8

# Ranks skip a step if one of them overflows.
for on in "--ranks 2" "--ranks 2 --tp 2" "--ranks 4 --tp 2 --sp"; do
    trains c 60 --precision fp16 --initial-loss-scale 1073741824 --loss-scale-window 7 $on
    holds "$on: it learns as on one rank" near "$(last loss a)" "$(last loss c)" 0.1
    holds "$on: it skips" test "$(skipped c)" -ge 5
    rm -rf d
    cp -r c d
    rm -r d/checkpoints/* d/model.safetensors d/config.json
    trains d 60 --precision fp16 --initial-loss-scale 1073741824 --loss-scale-window 7 --checkpoint-every 9 --keep 9 $on
    holds "$on: the same bits twice" same_run c d
    rm -r d/checkpoints/step-*5[0-9] d/checkpoints/step-*60
    runs train --resume --out d $on
    holds "$on: the same bits after a stop" same_run c d
done
rm -r d/checkpoints/step-*5[0-9] d/checkpoints/step-*60
runs train --resume --out d --ranks 1 --tp 1
holds "another number of ranks continues with the scale" near "$(last loss a)" "$(last loss d)" 0.1
finish
