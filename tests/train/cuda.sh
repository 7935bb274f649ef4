#!/bin/sh
# cuda.sh PROGRAM TEXT: on device cuda, or its emulator, the program trains, resumes and predicts as on the CPU.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
# At the default learning rate some steps amplify rounding differences a thousandfold, which would hide what is tested.
model="--lr 3e-4 --layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 4 --threads 1"
steps=100
[ -z "${TG_TEST_QUICK:-}" ] || steps=20

# follows DIR OTHER: every loss, validation loss and norm equals the other's with a relative error of at most 1e-4.
follows() {
    [ "$(wc -l <"$1/metrics.jsonl")" = "$(wc -l <"$2/metrics.jsonl")" ] &&
        for key in loss val_loss grad_norm; do
            number $key "$1/metrics.jsonl" >left
            number $key "$2/metrics.jsonl" >right
            [ -s left ] && paste left right | awk '{ d = $1 - $2; m = 1e-4 * ($1 > 1 ? $1 : 1)
                if (!(d <= m && -d <= m)) exit 1 }' || return 1
        done
}

for arch in "gpt2 --dropout 0.1" "llama --kv-heads 2"; do
    turn || continue
    run="--data $text $model --arch $arch --steps $steps --val-every $((steps / 2)) --checkpoint-every $((steps / 2))"
    rm -rf cpu gpu again
    runs train --out cpu $run
    runs train --out gpu $run --device cuda
    holds "$arch: the CPU's losses" follows cpu gpu
    runs train --out again $run --device cuda
    holds "$arch: the same bits twice" same_run gpu again
    rm -rf again
    runs train --out again $run --device cuda --capture
    holds "$arch: the same bits from captured steps" same_steps gpu again
    runs train --resume --out gpu --steps $((steps + 10)) --device cuda
    runs train --resume --out cpu --steps $((steps + 10))
    holds "$arch: goes on" follows cpu gpu
    runs train --resume --out gpu --steps $((steps + 20)) # what a GPU has saved the CPU goes on from
    runs eval --model gpu --data "$text" --json
    mine=$(number loss printed)
    runs eval --model gpu --data "$text" --json --device cuda
    holds "$arch: eval" near "$mine" "$(number loss printed)" 1e-4
done

# In float16 both overflow at first; a run resumes in the middle of a window.
if turn; then
    half="--data $text $model --steps 40 --precision fp16 --initial-loss-scale 16777216 --loss-scale-window 9"
    rm -rf cpu gpu again
    runs train --out cpu $half --checkpoint-every 11 --keep 9
    runs train --out gpu $half --device cuda --checkpoint-every 11 --keep 9
    runs train --out again $half --device cuda
    holds "float16: the same bits twice" same_run gpu again
    holds "float16: it overflows" test "$(grep -c '"grad_norm": null' gpu/metrics.jsonl)" -ge 2
    holds "float16: the CPU's losses" near "$(number loss cpu/metrics.jsonl | tail -n 1)" \
        "$(number loss gpu/metrics.jsonl | tail -n 1)" 5e-2
    rm -r gpu/checkpoints/*33 gpu/checkpoints/*40
    runs train --resume --out gpu --device cuda
    holds "float16: goes on" same_run gpu again
fi

if turn; then
    rm -rf cpu gpu
    runs train --out cpu --data "$text" $model --steps 20 --recompute full --device cuda
    runs train --out gpu --data "$text" $model --steps 20 --device cuda
    holds "recomputation" follows cpu gpu
    rm -rf cpu gpu
    runs train --out cpu --data "$text" $model --steps 20 --recompute full --device cuda --dropout 0.2 --accumulate 2
    runs train --out gpu --data "$text" $model --steps 20 --recompute full --device cuda --dropout 0.2 --accumulate 2 --capture
    holds "captured steps with recomputation and accumulation" same_steps cpu gpu
fi
finish
