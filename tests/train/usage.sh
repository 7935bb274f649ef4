#!/bin/sh
# usage.sh PROGRAM TEXT: wrong command lines are refused with status 2 and one line that says what was expected, and
# change nothing; --help lists every option with its default.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--data $text --out x $tiny --steps 3"

no_command() {
    "$tapegrad" "$@" >/dev/null 2>printed
    [ $? = 2 ] && grep -q '^usage: tapegrad COMMAND' printed
}
holds "a missing command is refused" no_command
holds "an unknown command is refused" no_command trian
holds "the nearest command is named" grep -q "did you mean 'train'" printed

for command in train generate chat eval inspect schedule tokenizer tokenize convert check gradcheck compare tape diff ops; do
    runs $command --help
    holds "help of $command fits 80 columns" test "$(awk 'length > 80' printed | wc -l)" = 0
    holds "--help prints the help of $command" grep -q "^usage: tapegrad $command" printed
    cp printed by_option
    runs help $command
    holds "help $command prints the same" cmp by_option printed
    refuses 2 "there is no option --nonsense" $command --nonsense 1
    refuses 2 "'-x' is not an option" $command -x
done
runs train --help
# Prints each option and its help as one line.
awk '/^                              / { sub(/^ +/, " "); line = line $0; next } { print line; line = $0 } END { print line }' printed >joined
mv joined printed
for default in 'arch NAME .*: gpt2, llama, mistral, .* olmo2 \[gpt2\]' 'steps N .*\[[0-9]*\]' 'lr X .*\[[0-9.e-]*\]' 'beta2 X .*\[[0-9.]*\]' \
    'precision fp32|bf16|fp16|fp64 .*\[fp32\]' 'loss-scale X .*\[0\]' 'initial-loss-scale X .*\[65536\]' 'recompute none|full|selective|distributed .*\[none\]' 'checkpoint-every N .*\[[0-9]*\]'; do
    holds "the help has --$default" grep -q -e "^  --$default" printed
done

refuses 2 "did you mean --steps?" train $run --stpes 3
refuses 2 "--steps needs a value: N" train $run --steps
refuses 2 "'--out' follows" train --data --out x
refuses 2 "'stray' is not an option" train $run stray
refuses 2 "--resume takes no value" train $run --resume=yes
refuses 2 "--help takes no value" train --help=3
refuses 2 "--seed is '-1', expected a whole number from 0 to 9223372036854775807" train $run --seed -1
refuses 2 "--seed is '9223372036854775808'" train $run --seed 9223372036854775808
for device in tpu meta cuda: cuda:x; do
    refuses 2 "--device is '$device', expected one of cpu|cuda|cuda:N" train $run --device $device
done
refuses 2 "--heads 2 is not divisible by --tp 3" train $run --ranks 3 --tp 3
refuses 2 "--heads 4 is not divisible by --tp 3" inspect --ranks 3 --tp 3
refuses 2 "--ffn 6 is not divisible by --tp 4" inspect --ffn 6 --ranks 4 --tp 4
refuses 2 "--steps is '0', expected a whole number from 1" train $run --steps 0
refuses 2 "--steps is '1e3', expected a whole number" train $run --steps 1e3
refuses 2 "--steps is '', expected a whole number" train $run --steps ''
refuses 2 "--steps is '99999999999999999999'" train $run --steps 99999999999999999999
refuses 2 "--batch is '-4'" train $run --batch -4
refuses 2 "--lr is '-1', expected a number from 0" train $run --lr -1
refuses 2 "--lr is 'nan'" train $run --lr nan
refuses 2 "--beta1 is '1'" train $run --beta1 1
refuses 2 "--dropout is '1'" train $run --dropout 1
refuses 2 "--arch is 'gpt3', expected one of gpt2|llama" train $run --arch gpt3
refuses 2 "--data FILE, the data to train on, is missing" train --out x
refuses 2 "--out DIR is missing" train --resume
refuses 1 "there is no checkpoint in 'x': give the --out of a run that has one" train --resume --out x
refuses 2 "--batch 4 cannot be cut into --accumulate 3" train $run --accumulate 3
refuses 2 "--batch 4 cannot be cut into --micro-batches 3" train $run --micro-batches 3
refuses 2 "--batch 16 cannot be cut into --accumulate 3" inspect --accumulate 3
refuses 2 "--batch 16 cannot be cut into --micro-batches 3" inspect --micro-batches 3
refuses 2 "--hidden 16 is not a multiple of --heads 3" train $run --heads 3
refuses 2 "--heads 2 is not a multiple of --kv-heads 3" train $run --arch llama --kv-heads 3
refuses 2 "is odd; --arch llama rotates pairs" train $run --arch llama --hidden 18 --heads 6
refuses 2 "--arch llama has no dropout" train $run --arch llama --dropout 0.1
refuses 2 "--min-lr 1 is above --lr 0.1" train $run --lr 0.1 --min-lr 1
refuses 2 "--lr-schedule is constant; leave --min-lr out" train $run --lr-schedule constant --min-lr 1e-4
refuses 2 "but --val-data names other files" train $run --val-data y --val-fraction 0.1
refuses 2 "--val-batches is for validations, but --val-every is 0" train $run --val-every 0 --val-batches 2
refuses 2 "--sample-tokens is for --samples N or --sample-prompt TEXT" train $run --sample-tokens 9
refuses 2 "--warmup 9 is longer than --steps 3" train $run --warmup 9
refuses 2 "--wsd-steps 9 is more than --steps 3" train $run --wsd-steps 9
refuses 2 "--warmup 2 and --wsd-steps 2 are more than --steps 3 together" train $run --lr-schedule wsd --warmup 2 --wsd-steps 2
for option in "--wsd-steps 2" "--wsd-decay cosine"; do
    refuses 2 "--wsd-steps and --wsd-decay are for --lr-schedule wsd" train $run $option
done
refuses 2 "--loss-scale is for --precision fp16" train $run --loss-scale 8
refuses 2 "--initial-loss-scale is for --precision fp16" train $run --precision bf16 --initial-loss-scale 8
refuses 2 "--hysteresis is for --precision fp16" train $run --hysteresis 1
refuses 2 "--loss-scale is '-1'" train $run --precision fp16 --loss-scale -1
refuses 2 "--loss-scale is 'inf'" train $run --precision fp16 --loss-scale inf
refuses 2 "--initial-loss-scale is '0'" train $run --precision fp16 --initial-loss-scale 0
refuses 2 "--loss-scale-window is '0'" train $run --precision fp16 --loss-scale-window 0
refuses 2 "--hysteresis is '0'" train $run --precision fp16 --hysteresis 0
refuses 2 "--min-loss-scale is for dynamic loss scaling, but --loss-scale 8 is a fixed scale" train $run --precision fp16 --loss-scale 8 --min-loss-scale 1
refuses 2 "--min-loss-scale 8 is above --initial-loss-scale 4" train $run --precision fp16 --initial-loss-scale 4 \
    --min-loss-scale 8
refuses 2 "--capture replays a step without them; leave one out" train $run --find-nan --capture
refuses 2 "dynamic loss scaling overflows on purpose" train $run --precision fp16 --find-nan
refuses 2 "--vocab N is missing" train $run --data-format u16
refuses 2 "--hidden is set by the config in --init" train --data "$text" --out x --init y --hidden 8
refuses 1 "overflows" train $run --hidden 1000000000 --heads 1 --vocab 4294967295
refuses 2 "expected text in UTF-8" train $run --order "$(printf 'order\377')"
refuses 2 "--data is '" train --data "$(printf 'data\377')" --out x
refuses 2 "--init is '" train --data "$text" --out x --init "$(printf 'init\377')"

refuses 2 "--model DIR, the model, is missing" generate --prompt a
refuses 1 "cannot open 'y/config.json'" generate --model y --prompt -h
runs generate --model y -h
holds "-h after a value is no value" grep -q "^usage: tapegrad generate" printed
refuses 2 "'relu' is one word too many; expected" gradcheck softmax relu
refuses 2 "--prompt TEXT or --prompt-ids IDS is missing" generate --model y
refuses 2 "expected one of --prompt and --prompt-ids" generate --model y --prompt a --prompt-ids 1
refuses 2 "--prompt is empty" generate --model y --prompt ''
refuses 2 "--top-p is '0'" generate --model y --prompt a --top-p 0
refuses 1 "cannot open 'y/config.json'" generate --model y --prompt a
for option in "--top-k 3" "--top-p 0.5" "--min-p 0.1"; do
    for command in "generate --prompt a" chat; do
        refuses 2 "${option% *} is for draws, and --temperature 0 always takes the likeliest token" \
            $command --model y --temperature 0 $option
    done
done
refuses 2 "--data FILE, the tokens to predict, is missing" eval --model y
refuses 2 "--tokenizer is for text, but --data-format says" eval --model y --data z --data-format u16 --tokenizer t
refuses 2 "expected one of --config and --model" inspect --model y --config z
refuses 2 "--pad-documents is for --no-attend-across" inspect --pad-documents
refuses 2 "--layers is set by the config" inspect --model y --layers 3
refuses 1 "cannot open 'y/config.json'" inspect --model y
for option in "--batch 8" "--tp 1" "--recompute full" "--precision bf16" "--config y.json --seq-len 8"; do
    name=${option#--config y.json }
    refuses 2 "${name% *} is for a step, but --parameters prints the parameters and nothing else" \
        inspect --parameters $option
done
for option in "--zero 1" "--zero 3" "--wire bf16"; do
    for ranks in "" "--ranks 2 --tp 2" "--ranks 2 --pp 2 --micro-batches 2"; do
        for command in inspect "train $run"; do
            refuses 2 "${option% *} $([ "$option" = "--wire bf16" ] && echo "is how" || echo divides)" $command $option $ranks
        done
    done
    runs inspect --layers 1 $option --ranks 2 --cp 2
done
runs inspect --layers 1 --zero 0 --wire auto
refuses 1 "overflows" inspect --hidden 1000000000 --heads 1 --vocab 4294967295
gpt3="--layers 96 --heads 96 --hidden 12288 --seq-len 2048 --vocab 50257"
for batch in 16384 8192; do # forward, and the sum alone
    refuses 1 "a step takes more than 9223372036854775807 FLOPs or bytes" inspect $gpt3 --batch $batch
    refuses 1 "a step takes more than 9223372036854775807 FLOPs or bytes" inspect $gpt3 --batch $batch --json
done
runs inspect $gpt3 --batch 4096
holds "FLOPs that fit 64 bits are printed" grep -q "^FLOPs       8907916000452673536 a step" printed
runs inspect --recompute selective
holds "selective recomputation adds norms and activations" grep -q "^FLOPs .* recomputation 6291456$" printed
# Layers whose windows differ have different FLOPs. What full recomputation leaves out does not depend on the layers.
gemma='"model_type": "gemma2", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128, "sliding_window": 8, "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 32, "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0'
for layers in 1 4; do
    printf '{"num_hidden_layers": %s, %s}\n' $layers "$gemma" >gemma.json
    runs inspect --config gemma.json --batch 2 --recompute full --json
    echo $(($(number forward printed) - $(number recomputation printed))) >"not_recomputed$layers"
done
holds "each layer is recomputed at its own cost" cmp not_recomputed1 not_recomputed4
# Takes less than a second, unless a walk over the parameters begins again for each of them.
holds "inspect of many layers is fast" timeout 30 "$tapegrad" inspect --layers 1600 --hidden 8 --json >printed 2>&1
refuses 2 "there is no op 'ad'; did you mean 'add'?" gradcheck ad
refuses 1 "argmax has no gradient" gradcheck argmax
refuses 1 "cannot open 'y.json'" gradcheck --replay y.json
refuses 2 "--replay repeats the op that the report names" gradcheck add --replay y.json
for option in '--strict' '--second-order' '--eps 1e-3' '--rtol 1e-3' '--seed 3' '--slow' '--report z.json'; do
    refuses 2 "--replay repeats the check that the report describes; leave ${option%% *} out" \
        gradcheck --replay y.json $option
done
fails_twice() {
    ! "$tapegrad" gradcheck sin --rtol 1e-18 --atol 1e-300 --report y.json >printed &&
        grep -q "report: 'y.json'" printed && ! "$tapegrad" gradcheck --replay y.json >again &&
        grep -q '^fails again: sin (matrix): 15 of 15 elements could not be checked' again
}
holds "a failed gradient check is repeated from its report" fails_twice
mkfifo pipe
keeps_pipe() {
    ! "$tapegrad" gradcheck sin --rtol 1e-18 --atol 1e-300 --report pipe >printed && [ -p pipe ] &&
        grep -q "no report: 'pipe' is a device, pipe or socket, expected a regular file or a new one" printed
}
holds "a report replaces only regular files" keeps_pipe
damaged() {
    head -c 200 y.json >z.json
    ! "$tapegrad" gradcheck --replay z.json 2>printed && grep -q "'z.json' is not JSON" printed
}
holds "a damaged report is refused" damaged
refuses 2 "--kind is 'gpipes', expected one of gpipe|1f1b|interleaved|zb-h1|forward" schedule --kind gpipes
refuses 2 "--stages is '0', expected a whole number from 1" schedule --stages 0
refuses 2 "--chunks is for --kind interleaved, gpipe and forward" schedule --kind zb-h1 --chunks 2
refuses 2 "--group is for --kind interleaved, gpipe and forward" schedule --group 4
refuses 2 "--group 2 is less than --stages 4" schedule --kind interleaved --group 2
for kind in gpipe "forward --chunks 1" "interleaved --chunks 1"; do
    refuses 2 "--group is for turns through several chunks, and each stage has one" schedule --kind $kind --group 4
done
refuses 2 "--backward is the time of backwards, and this schedule has none" schedule --kind forward --backward 2
refuses 2 "--weight is the time of backwards, and this schedule has none" schedule --kind forward --weight 2
refuses 2 "--hop is the time of messages between stages, and this schedule has none" schedule --stages 1 --hop 1
refuses 2 "--micros is set by the file; leave it out" schedule --file y --micros 8
refuses 2 "--forward is '-1', expected a number from 0" schedule --forward -1
refuses 2 "--stages is '4097', expected a whole number from 1 to 4096" schedule --stages 4097 --micros 1
refuses 1 "1000 stages x 1 chunk x 10000 micro-batches are more than 1048576" schedule --stages 1000 --micros 10000
refuses 2 "expected one of --json and --markdown" ops --json --markdown
finish
