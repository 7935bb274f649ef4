#!/bin/sh
# model.sh PROGRAM TEXT: generate, eval, inspect, gradcheck and ops, on models that the test trains.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"

steps=200
[ -z "${TG_TEST_QUICK:-}" ] || steps=60
train="train --data $text --layers 2 --hidden 32 --seq-len 32 --batch 8 --steps $steps --lr 1e-2 --checkpoint-every 0"
runs $train --out gpt2 --heads 2
runs $train --out llama --arch llama --heads 4 --kv-heads 2
runs train --data "$text" --out wide $tiny --vocab 300 --steps 3

# says MODEL OPTION...: stores the text that the model generates.
says() {
    model=$1
    shift
    "$tapegrad" generate --model $model "$@" 2>&1
}
for model in gpt2 llama; do
    says $model --prompt 'The ' --tokens 100 --top-p 0.9 >once
    holds "$model: the prompt, 100 bytes and a newline" test "$(wc -c <once)" = 105
    holds "$model: the prompt first" test "$(head -c 4 once)" = "The "
    says $model --prompt 'The ' --tokens 100 --top-p 0.9 >again
    holds "$model: the same draws" cmp once again
    says $model --prompt 'The ' --tokens 100 --top-p 0.9 --threads 1 >again
    holds "$model: for any threads" cmp once again
    says $model --prompt 'The ' --tokens 100 --top-p 0.9 --seed 7 >again
    holds "$model: another seed, other draws" sh -c '! cmp -s once again'
    says $model --prompt 'The ' --tokens 60 --temperature 0 >greedy
    for same in "--top-k 1" "--top-p 1e-9" "--temperature 1e-6" "--temperature 0 --seed 9" \
        "--temperature 0 --precision fp64"; do
        says $model --prompt 'The ' --tokens 60 $same >again
        holds "$model: the likeliest by $same" cmp greedy again
    done
    says $model --prompt-ids 84,104,101,32 --tokens 60 --temperature 0 | tr ',' '\n' | awk '{ printf "%c", $1 }' >again
    echo >>again
    holds "$model: ids are bytes" cmp greedy again
    says $model --prompt 'The ' --tokens 0 >again
    holds "$model: nothing to add" test "$(cat again)" = "The "
    # Without a cache each token is the likeliest after all previous ones: generate one at a time.
    prompt='The '
    for _ in 1 2 3 4 5 6 7 8; do
        prompt=$(says $model --prompt "$prompt" --tokens 1 --temperature 0; echo .) # the dot keeps newlines
        prompt=${prompt%??}
    done
    holds "$model: the cache changes nothing" test "$prompt" = "$(head -c 12 greedy)"
    says $model --prompt "$(head -c 500 "$text")" --tokens 3 --top-p 0.9 >again
    holds "$model: a prompt longer than the positions" test "$(wc -c <again)" = 504
done
refuses 2 "has a vocabulary of 300 ids, and --prompt gives the 256 bytes: give --prompt-ids" generate --model wide --prompt a
runs generate --model wide --prompt-ids 299 --tokens 5

# The whole validation of train equals the loss of eval on the same bytes, if the windows are the same.
head -c 3302 "$text" >part
runs train --data part --out fit $tiny --seq-len 33 --steps 10 --val-fraction 0.5 --val-batches 0
tail -c 1651 part >end
runs eval --model fit --data end --seq-len 33 --json
trained=$(number val_loss fit/metrics.jsonl | tail -n 1)
holds "eval agrees with train" near "$trained" "$(number loss printed)" 1e-5
runs eval --model fit --data part
cp printed all
runs eval --model fit --data part --threads 1
holds "eval prints the same for any threads" cmp all printed
holds "it prints four lines" test "$(cut -d' ' -f1 printed | tr '\n' ' ')" = "tokens loss perplexity bits/byte "
runs eval --model fit --data part --precision bf16
runs train --data part --out mad $tiny --steps 3 --lr 100 --weight-decay 0 --warmup 0 --checkpoint-every 0
runs eval --model mad --data part --json
holds "an infinite perplexity is null in JSON" grep -q '"perplexity": null' printed
runs eval --model mad --data part
holds "an infinite perplexity is printed as inf" grep -q '^perplexity  inf' printed

# The memory that inspect predicts equals that of the real step.
for options in "" "--arch llama --heads 4 --kv-heads 2" "--precision bf16" "--precision fp64 --recompute full" \
    "--accumulate 2" "--dropout 0.1" "--arch llama --recompute full --accumulate 4" "--no-attend-across" \
    "--arch llama --no-attend-across --accumulate 2" "--no-attend-across --pad-documents"; do
    shape="--layers 3 --hidden 32 --heads 4 --seq-len 24 --batch 4 $options"
    rm -rf real
    runs train --data "$text" --out real $shape --steps 3 --val-every 0 --checkpoint-every 0
    real=$(number peak_bytes real/metrics.jsonl | sort -u)
    runs inspect $shape --json
    holds "peak of inspect $options" test "$(number peak_bytes printed)" = "$real"
    precision=$(echo " $options" | sed -n 's/.*--precision \([^ ]*\).*/--precision \1/p')
    case $options in *recompute*) again="--recompute full" ;; *) again="" ;; esac
    case $options in *accumulate*) again="$again --accumulate ${options##* }" ;; esac
    case $options in *across*) again="$again --no-attend-across" ;; esac
    case $options in *pad*) again="$again --pad-documents" ;; esac
    runs inspect --model real --batch 4 $again $precision --json
    holds "peak of inspect --model $options" test "$(number peak_bytes printed)" = "$real"
    runs inspect --config real/config.json
done

# listed: the parameters of the last model, as --parameters lists them. kept: those that its file has.
listed() { sed 1d printed | cut -d' ' -f1 | sort; }
kept() { head -c 8000 real/model.safetensors | tr '{' '\n' | sed -n 's/.*"\([^"]*\.[^"]*\)":$/\1/p' | sort; }
runs inspect --model real --parameters
holds "inspect --parameters has the names of the weights file" test "$(listed)" = "$(kept)"
holds "each with its shape" grep -Eq '^transformer.wpe.weight +24 x 32 +768$' printed
runs inspect --arch llama --layers 1 --parameters --json
holds "as JSON" test "$(number elements printed | head -n 1)" = 32768

runs ops
holds "the table ends with the count" test "$(($(wc -l <printed) - 2))" = "$(sed -n 's/^\([0-9]*\) ops$/\1/p' printed)"
runs ops --markdown
holds "the table has a row for matmul" grep -q '^| `matmul` | ' printed
runs ops --json
holds "the JSON has matmul" grep -q '"name": "matmul"' printed
runs gradcheck matmul
holds "all samples pass" grep -Eq '^[0-9]+ passed, 0 failed$' printed
cp printed samples # its last line is not this test's
runs gradcheck mul --projections 2 --seed 3 --threads 1
finish
