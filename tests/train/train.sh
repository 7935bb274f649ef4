#!/bin/sh
# train.sh PROGRAM TEXT: ordinary use of `tapegrad train`: the files that it writes, and the effect of every option.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
tr '\n' ' ' <"$text" >plain # one long line: sed below makes other formats of it
sed 's/./&\x00/g' plain >plain.u16
sed 's/./&\x00\x00\x00/g' plain >plain.u32

# trains DIR OPTION...: makes a run of 20 steps.
trains() {
    dir=$1
    shift
    rm -rf "$dir"
    runs train --data plain --out "$dir" $tiny --steps 20 --val-every 10 "$@"
}
differs() { ! cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
same_model() { cmp "$1/model.safetensors" "$2/model.safetensors"; }
first_loss() { number loss "$1/metrics.jsonl" | head -n 1; }
last_loss() { number loss "$1/metrics.jsonl" | tail -n 1; }

# Output and files.
trains a --checkpoint-every 10 --log-every 5
holds "it prints five lines of progress" test "$(grep -c '^step ' printed)" = 5 # the first, and four
holds "a line of progress has all values" grep -Eq '^step 10/20  loss [0-9.]+  val [0-9.]+  norm [0-9.]+  [0-9.]+ [KM]iB  [0-9]+ tokens/s  ETA 0:0[0-9]$' printed
holds "no line has a carriage return" sh -c '! grep -q "$(printf "\r")" printed'
holds "the directory has these files" test "$(cd a && echo *)" = "checkpoints config.json loss.svg metrics.jsonl model.safetensors"
holds "the directory has these checkpoints" test "$(cd a/checkpoints && echo *)" = "step-0000000010 step-0000000020"
real='-?[0-9.]+(e-?[0-9]+)?'
line="^{\"step\": [0-9]+, \"loss\": $real, \"grad_norm\": $real, \"lr\": $real"
line="$line, \"tokens_per_s\": $real, \"seconds\": $real, \"tokens\": [0-9]+, \"peak_bytes\": [0-9]+"
holds "the metrics have 20 lines" test "$(grep -Ec "$line(, \"val_loss\": $real)?}\$" a/metrics.jsonl)" = 20
holds "the metrics have 2 validations" test "$(number val_loss a/metrics.jsonl | grep -c .)" = 2
digits=$(number grad_norm a/metrics.jsonl | tr -d . | awk 'length($1) > n { n = length($1) } END { print n }')
holds "norms have 17 digits" test "$digits" -ge 17
holds "the curve begins as SVG" grep -q '^<svg xmlns=' a/loss.svg
holds "the curve ends as SVG" test "$(tail -n 1 a/loss.svg)" = "</svg>"
holds "the curve has no NaN or infinity" sh -c '! grep -Eq "nan|inf" a/loss.svg'
rm -rf long
runs train --data plain --out often $tiny --steps 900 --val-every 1 --val-batches 1 --checkpoint-every 0 --html
holds "the curve of many validations is thinned" test "$(grep -c '<circle' often/loss.svg)" = 301 # every third, and the first
runs train --data plain --out long $tiny --steps 300 --lr 1e-2 --val-every 100 --checkpoint-every 0
holds "it learns" less "$(last_loss long)" 3
holds "no checkpoints are written if none are wanted" test "$(ls long/checkpoints)" = ""
refuses 1 "a model but no checkpoint" train --resume --out long
cp -r a kept
trains b --checkpoint-every 5 --keep 3
holds "the newest checkpoints are kept" test "$(cd b/checkpoints && echo *)" = "step-0000000010 step-0000000015 step-0000000020"

# Runs that must give the same bits.
trains b --checkpoint-every 10
holds "two runs are the same" same_run a b
for threads in 1 2 3; do
    trains b --threads $threads
    holds "$threads threads give the same run" same_run a b
done
trains b --recompute full
holds "recomputation gives the same model" same_model a b
rm -rf b
runs train --data plain.u16 --data-format u16 --vocab 256 --out b $tiny --steps 20 --val-every 10
holds "u16 data give the same run" same_run a b
rm -rf b
runs train --data plain.u32 --data-format u32 --vocab 256 --out b $tiny --steps 20 --val-every 10
holds "u32 data give the same run" same_run a b

# Options that change the run.
for options in "--seed 2" "--arch llama" "--lr 2e-3" "--lr-schedule linear" "--beta1 0.8" "--beta2 0.9" "--eps 1e-4" \
    "--weight-decay 0" "--clip 0.1" "--dropout 0.1" "--warmup 7" "--min-lr 5e-4" "--val-fraction 0.3" \
    "--hidden 32" "--heads 4" "--ffn 24" "--layers 2" "--vocab 300" "--seq-len 24" "--batch 6"; do
    trains b $options
    holds "$options changes the model" differs a b
done
trains b --arch llama --kv-heads 1
holds "the config has the key-value heads" grep -q '"num_key_value_heads": 1' b/config.json
trains b --accumulate 4
holds "four micro-batches take less memory" less "$(number peak_bytes b/metrics.jsonl | tail -n 1)" \
    "$(number peak_bytes a/metrics.jsonl | tail -n 1)"
holds "four micro-batches give the same loss except for rounding" near "$(last_loss a)" "$(last_loss b)" 1e-4
trains b --precision fp64
holds "the config says float64" grep -q '"torch_dtype": "float64"' b/config.json
holds "float64 gives the same loss except for rounding" near "$(last_loss a)" "$(last_loss b)" 1e-4
trains b --precision bf16
holds "the config says bfloat16" grep -q '"torch_dtype": "bfloat16"' b/config.json
holds "bfloat16 gives nearly the same loss" near "$(last_loss a)" "$(last_loss b)" 5e-2
trains b --val-fraction 0
holds "without validation data there is no validation loss" test "$(number val_loss b/metrics.jsonl)" = ""
trains b --val-every 0
holds "validation can be turned off" test "$(number val_loss b/metrics.jsonl)" = ""

# Learning rates.
rates() {
    trains b --lr 1e-3 --warmup 2 "$@"
    number lr b/metrics.jsonl >rates
}
rate_is() { near "$(sed -n "$1p" rates)" "$2" 1e-12; }
rates --lr-schedule constant
holds "the rate warms up" rate_is 1 5e-4
holds "the rate stays constant" rate_is 20 1e-3
for schedule in linear cosine wsd; do
    rates --lr-schedule $schedule --min-lr 1e-4
    holds "$schedule begins" rate_is 2 1e-3
    holds "$schedule ends" rate_is 20 1e-4
done
rates --lr-schedule inverse-sqrt
holds "the inverse square root schedule has this rate" rate_is 8 5e-4
for decay in linear cosine exponential minus-sqrt; do
    rates --lr-schedule wsd --min-lr 1e-4 --wsd-steps 10 --wsd-decay $decay
    holds "wsd stays, $decay" rate_is 10 1e-3
    holds "wsd ends, $decay" rate_is 20 1e-4
done
trains b --lr 0
holds "losses vary only with the batches at a rate of 0" test "$(number loss b/metrics.jsonl | sort -u | wc -l)" -gt 1
rm -rf b
"$tapegrad" train --data plain --out b $tiny --steps 20 --lr 1e6 --clip 0 --warmup 0 >printed 2>&1
holds "a run that diverges ends with status 1" test $? = 1
holds "the remedy is printed" grep -q "10 such steps in a row; try a lower --lr" printed

# An order file: 20 steps of 4 sequences at offset 256, little-endian.
for _ in $(seq 80); do printf '\000\001\000\000\000\000\000\000'; done >order
trains b --order order
holds "an order file changes the run" differs a b
for _ in $(seq 80); do printf '\000\002\000\000\000\000\000\000'; done >order
trains c --order order
holds "another order file changes the run" differs b c

# From a model directory.
trains b --arch llama --hidden 24
rm -rf c
runs train --data plain --out c --init b --steps 5 --batch 4 --warmup 0 --val-every 0
holds "the model keeps its architecture" test "$(grep -c '"model_type": "llama"\|"hidden_size": 24' c/config.json)" = 2
holds "the run begins with the model's weights" less "$(first_loss c)" "$(awk "BEGIN { print $(last_loss b) + 0.2 }")"

# A terminal.
if script -qec true /dev/null >/dev/null 2>&1; then # a terminal can be had
    rm -rf b
    script -qec "'$tapegrad' train --data plain --out b $tiny --steps 50" /dev/null >printed </dev/null
    holds "progress is a line that is overwritten" grep -q "$(printf '\r')step 50/50" printed
    holds "progress is one line" test "$(grep -c 'step 50/50' printed)" = 1
fi
finish
