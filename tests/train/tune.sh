#!/bin/sh
# tune.sh PROGRAM TEXT: fine-tuning by the program: adapters, frozen parameters, groups, early stopping, the best model,
# and what may change on a resume.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"

# The adapted text has its letters exchanged, so that the base model does not know it.
tr 'a-z' 'n-za-m' <"$text" >other
base="--layers 2 --hidden 32 --seq-len 32 --batch 8 --lr 1e-2 --val-every 20 --val-batches 4"
runs train --data "$text" --out base $base --heads 2 --steps 60 --checkpoint-every 0
runs train --data "$text" --out llama $base --arch llama --heads 4 --kv-heads 2 --steps 60 --checkpoint-every 0
runs eval --model base --data other --json
before=$(number loss printed)

tune="--data other --seq-len 32 --batch 8 --lr 1e-2 --val-every 20 --val-batches 4"
for model in base llama; do
    cp $model/model.safetensors was
    runs train --init $model --out $model-lora $tune --steps 60 --lora r=4,alpha=8,dropout=0.05
    holds "$model: what is trained is said" grep -Eq '^low-rank adapters of (8|14) layers of' printed
    holds "$model: its share is said" grep -Eq '^[0-9]+ of [0-9]+ parameters are trained' printed
    holds "$model: the base stays" cmp was $model/model.safetensors
    holds "$model: adapters are saved" test -s $model-lora/adapter_model.safetensors
    holds "$model: and no model" test ! -e $model-lora/model.safetensors
    runs eval --model $model-lora --data other --json
    cp printed by-run
    runs eval --model $model --adapter $model-lora --data other --json
    holds "$model: --adapter and the run's directory are the same" cmp by-run printed
    holds "$model: the adapters have learned" less "$(number loss printed)" "$before"
    adapted=$(number loss printed)
    refuses 1 "--to is the directory './$model' of the model that the adapters adapt" convert --adapter $model-lora --to ./$model
    refuses 1 "--to is the directory './$model-lora' of the adapters" convert --from $model --adapter $model-lora --to ./$model-lora
    runs convert --adapter $model-lora --to $model-merged
    runs convert --from $model --adapter $model-lora --to $model-merged-2
    refuses 1 "'$model-merged' has a model already; give another directory" convert --adapter $model-lora --to $model-merged
    holds "$model: both ways merge alike" cmp $model-merged/model.safetensors $model-merged-2/model.safetensors
    runs eval --model $model-merged --data other --json
    holds "$model: the merged model computes the same" near "$adapted" "$(number loss printed)" 1e-5
    "$tapegrad" generate --model $model --adapter $model-lora --prompt 'Gur ' --tokens 20 --temperature 0 >one.txt
    "$tapegrad" generate --model $model-merged --prompt 'Gur ' --tokens 20 --temperature 0 >two.txt
    holds "$model: and generates the same" cmp one.txt two.txt
done
refuses 1 "does not belong to the model" convert --from base --adapter llama-lora --to x
mkdir whole-numbers named
cp base/config.json whole-numbers
header='{"transformer.wte.weight":{"dtype":"I32","shape":[1],"data_offsets":[0,4]}}'
printf '%b%s\0\0\0\0' "\\0$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0" "$header" >whole-numbers/model.safetensors
refuses 1 'tensor "transformer.wte.weight" has dtype I32, expected F32, BF16, F16 or F64' \
    convert --from whole-numbers --adapter base-lora --to x
echo '{"base_model_name_or_path": "publisher/model"}' >named/adapter_config.json
refuses 1 "give the directory of the model, and the adapters with --adapter 'named'" convert --adapter named --to x

# A run that is resumed ends with the bits of one that was not stopped.
lora="$tune --init llama --lora r=2,targets=q_proj,v_proj,alpha=3 --checkpoint-every 10"
runs train $lora --out whole --steps 20
holds "adapters of two layers each" grep -q '^low-rank adapters of 4 layers' printed
runs train $lora --out halves --steps 10 --min-lr 1e-4 --warmup 2
runs train $lora --out halves-whole --steps 20 --warmup 2 --lr-schedule constant
runs train $lora --out halves-2 --steps 10 --warmup 2 --lr-schedule constant
runs train --resume --out halves-2 --steps 20
holds "resumed adapters are the same" cmp halves-whole/adapter_model.safetensors halves-2/adapter_model.safetensors
holds "a checkpoint has adapters only" sh -c '! test -e halves-2/checkpoints/step-0000000020/model.safetensors'
runs train --resume --out halves --steps 14 --lr 5e-3 --lr-schedule constant
holds "another rate is said" grep -q '^--lr is 0.005 from now on; it was 0.01' printed
holds "another schedule is said" grep -q '^--lr-schedule is constant from now on; it was cosine' printed
refuses 1 "--lora is r=9, but the run in --out was begun with r=2" train --resume --out halves --lora r=9

# Ranks train the same adapters.
runs train $lora --out ranks --steps 20 --ranks 2 --tp 2
runs eval --model whole --data other --json
one=$(number loss printed)
runs eval --model ranks --data other --json
holds "tensor-parallel ranks train the same adapters" near "$one" "$(number loss printed)" 1e-4
runs eval --model ranks --data other --json --ranks 2 --tp 2
holds "and evaluate them" near "$one" "$(number loss printed)" 1e-4

# Frozen parameters and rates of their own.
runs train --init llama --out frozen $tune --steps 10 --freeze 'embed_tokens,layers.0' --lr-of lm_head=0,norm=1e-3
runs train --init llama --out rates $tune --steps 10 --lr-of 'layers=0'
cat >same.py <<'EOF'
import json, struct, sys
def tensors(path):
    f = open(path, 'rb')
    n = struct.unpack('<Q', f.read(8))[0]
    header, start = json.loads(f.read(n)), 8 + n
    data = open(path, 'rb').read()
    return {k: data[start + v['data_offsets'][0]:start + v['data_offsets'][1]] for k, v in header.items() if k != '__metadata__'}
a, b = tensors(sys.argv[1] + '/model.safetensors'), tensors(sys.argv[2] + '/model.safetensors')
same = {k for k in a if a[k] == b[k]}
expected = {k for k in a if any(part in k for part in sys.argv[3].split(','))}
sys.exit(same != expected and sorted(same ^ expected))
EOF
holds "frozen parameters stay, and others change" python3 same.py llama frozen embed_tokens,layers.0.,lm_head
holds "a rate of 0 is one for its parameters" python3 same.py llama rates layers.
refuses 1 'the pattern "layers.9" matches no parameter' train --init llama --out none $tune --steps 5 --freeze layers.9
holds "it says what lists the paths" grep -q "inspect --parameters --model llama lists the paths" printed
refuses 1 'the pattern "hed" matches no parameter' train --init llama --out none $tune --steps 5 --lr-of hed=1
holds "it says what lists the paths" grep -q "inspect --parameters --model llama lists the paths" printed
refuses 1 "leaves no parameter to train" train --init llama --out none $tune --steps 5 --freeze '*'

# Early stopping and the best model: with this rate the loss soon rises.
runs train --init base --out early $tune --lr 0.3 --min-lr 0.3 --warmup 0 --steps 400 --val-every 5 --patience 3 --keep-best
holds "the end is said" grep -q '^ended after 3 validations without a lower loss' printed
steps=$(wc -l <early/metrics.jsonl)
holds "it ends early" test "$steps" -lt 400
holds "the best model is named" grep -Eq '^the best model, of step [0-9]+ with validation loss .*, is in early/best' printed
best=$(sed -n 's/^the best model, of step \([0-9]*\) .*/\1/p' printed)
holds "three validations before the end" test $((best + 15)) = "$steps"
runs train --init base --out until $tune --lr 0.3 --warmup 0 --steps "$best" --lr-schedule constant --val-every 5
holds "it is the model of that step" python3 same.py until early/best .

# The best model after steps were given up is one of those that are kept. With these rates the loss of step 15 is lower
# than that of step 10, and the given up loss is never reached again.
going="--data other --lr-schedule constant --warmup 0 --val-every 5 --checkpoint-every 5 --keep-best --keep 9"
runs train --init base $going --out back --threads 1 --batch 4 --lr 0.002 --steps 20
holds "the best one is the last" grep -q '"step": 20,' back/best/best.json
runs train --resume --resume-step 10 --out back --lr 0.3 --steps 15
holds "that of a step that was given up is set aside" grep -q "^set aside: 'back/best', whose model" printed
holds "nothing is lost" grep -q '"step": 20,' back/best.unused/best.json
holds "the best of the steps that are kept is named" grep -q '^the best model, of step 10 ' printed
holds "it is in its place" python3 same.py back/checkpoints/step-0000000010 back/best .
runs train --init llama --out lora-best $tune --lora r=2 --steps 10 --val-every 5 --keep-best
holds "adapters are kept too" test -s lora-best/best/adapter_model.safetensors

# Data that has grown.
head -c 6000 other >part
runs train --data part --out grown $tiny --steps 10 --checkpoint-every 5
head -c 9000 other >part
runs train --resume --out grown --steps 15
holds "more data is said" grep -q '^--data has 9000 tokens from now on: the 6000 that the run began with, and more' printed
tail -c 9000 other >part
refuses 1 "is not what the run began with" train --resume --out grown --steps 20
head -c 5000 other >part
refuses 1 "is not what the run began with" train --resume --out grown --steps 20

refuses 2 "--lora adapts a trained model: add --init DIR" train --data other --out none --lora r=4
refuses 2 "'rank=4' is none of r=N" train --data other --out none --init base --lora rank=4
refuses 2 "dropout=P (0 to below 1)" train --data other --out none --init base --lora dropout=1
refuses 2 "--lora has 5008 bytes, expected at most 4095" train --data other --out none --init base \
    --lora "targets=$(printf '%05000d' 0)"
refuses 2 "'targets=' is none of r=N" train --data other --out none --init base --lora r=4,targets=
refuses 2 "--lr-of 'wte': expected PATTERN=RATE" train --data other --out none --init base --lr-of wte
refuses 1 'the target "q_proj" matches no linear layer' train $tune --out none --init base --lora targets=q_proj
holds "it says what lists the paths" grep -q "inspect --parameters --model base lists the paths" printed
refuses 2 "--patience compares validation losses, but --val-every is 0" train --data other --out none --patience 2 --val-every 0
refuses 1 "has adapters, not a model; merge them first" train $tune --out none --init base-lora
refuses 1 "has no adapter_config.json" eval --model base --adapter llama --data other
refuses 1 "--pp 2: low-rank adapters need a whole model" eval --model base-lora --data other --ranks 2 --pp 2
refuses 1 "has adapters already" eval --model base-lora --adapter base-lora --data other
refuses 1 "has no linear layer" eval --model base --adapter llama-lora --data other
finish
