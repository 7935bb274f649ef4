#!/bin/sh
# resume.sh PROGRAM TEXT: a run that is interrupted, terminated or killed at any moment, and resumed, ends with the
# bits of one that was never stopped; two runs never share a directory.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--data $text $tiny --dropout 0.1 --steps 200 --val-every 50 --checkpoint-every 7 --keep 4"

endless=1000000000 # steps that no run completes, however long this script is kept from running

# interrupt SIGNAL STATUS: interrupts a run that would not end.
interrupt() {
    rm -rf long
    $interruptible "$tapegrad" train --out long $run --steps $endless --checkpoint-every 0 >log 2>&1 &
    child=$!
    holds "the run starts" while_alive $child test -s long/metrics.jsonl
    refuses 1 "is in use by another run" train --resume --out long
    refuses 1 "is in use by another run" train --out long $run
    kill -s "$1" $child
    wait $child
    holds "SIG$1 ends it with status $2" test $? = "$2"
    holds "the command to resume is printed" grep -q "^interrupted after step [0-9]*; to go on: .* --resume --out long" log
    step=$(sed -n 's/^interrupted after step \([0-9]*\);.*/\1/p' log)
    holds "the metrics end with the last step" test "$(wc -l <long/metrics.jsonl)" = "$step"
    holds "it leaves a model" test -s long/model.safetensors
    holds "it leaves a checkpoint" test -d "long/checkpoints/step-$(printf %010d "$step")"
}
# ignores_interrupts PID: whether that process ignores SIGINT.
ignores_interrupts() { grep -q '^SigIgn:.*[2367abef]$' "/proc/$1/status"; }
# goes_on COMMAND...: the command, a background job, so that it begins with SIGINT ignored, still ignores it once it
# trains, and takes 20 more steps after one.
goes_on() {
    rm -rf long
    "$@" train --out long $run --steps $endless --checkpoint-every 0 >printed 2>&1 &
    child=$!
    while_alive $child test -s long/metrics.jsonl && ignores_interrupts $child && kill -s INT $child &&
        lines=$(wc -l <long/metrics.jsonl) &&
        while_alive $child sh -c "[ \$(wc -l <long/metrics.jsonl) -gt $((lines + 20)) ]"
}
# stays_ignored COMMAND...: the command goes on after SIGINT, and another signal ends it.
stays_ignored() {
    goes_on "$@"
    status=$?
    kill -s TERM $child
    wait $child
    [ $? = 143 ] && return $status
}
holds "SIGINT stays ignored" stays_ignored "$tapegrad"
holds "SIGINT stays ignored under run" stays_ignored "$tapegrad" run -n 2 -- "$tapegrad"
interrupt INT 130
interrupt TERM 143
more=$((step + 20))
runs train --resume --out long --steps $more --warmup 10 --lr 1e-3
holds "the metrics continue" test "$(wc -l <long/metrics.jsonl)" = $more

milliseconds() { echo $(($(date +%s%N) / 1000000)); }
random() { od -An -N2 -tu2 /dev/urandom | tr -d ' '; }

most=${TG_LONG:+60}
# killed_often OPTION...: kills a run in `often` up to six times (sixty in the long suite), at moments spread over the
# time of an undisturbed run, and resumes it until it ends.
# (--foreground: timeout waits for its child, which has the lock until it ends. --preserve-status: if the moment comes
# while the run is ending, timeout returns the run's status and not 124.)
killed_often() {
    kills=0
    rm -rf often
    while [ $kills -lt "${most:-6}" ]; do
        after=$(($(random) % time))
        timeout --foreground --preserve-status -s KILL "$(printf '%d.%03d' $((after / 1000)) $((after % 1000)))" \
            "$tapegrad" train --resume --out often $run "$@" >printed 2>&1
        status=$?
        [ $status = 137 ] || return $status
        kills=$((kills + 1))
    done
    "$tapegrad" train --resume --out often $run "$@" >printed 2>&1
}
for variant in "" "--arch llama --accumulate 2 --dropout 0" "--precision bf16 --recompute full"; do
    rm -rf whole
    time=$(milliseconds)
    runs train --out whole $run $variant
    time=$(($(milliseconds) - time))
    holds "the killed run is completed ($variant)" killed_often $variant
    holds "the same bits after $kills kills ($variant)" same_run whole often
    holds "no temporary file remains" test -z "$(find often -name '*tmp*')"
done

# Killed after the last checkpoint, before the oldest one is removed and the model is in its place.
rm often/model.safetensors often/config.json
cp -r often/checkpoints/*189 often/checkpoints/step-0000000175
runs train --resume --out often
holds "the missing files are restored" same_run whole often
holds "no superfluous checkpoint remains" test "$(echo often/checkpoints/*)" = "$(echo whole/checkpoints/* | sed s/whole/often/g)"

# The last line is incomplete, and checkpoints are older than the metrics.
rm -r often/checkpoints/*196 often/checkpoints/*200
truncate -s -5 often/metrics.jsonl
runs train --resume --out often
holds "it resumes from an older checkpoint" same_run whole often
refuses 1 "has done 200 steps" train --resume --out often --steps 199
runs train --data "$text" --out older $tiny --steps 20 --checkpoint-every 10 --val-every 0
cp -r older newer
rm -r newer/checkpoints/*20
truncate -s -5 newer/metrics.jsonl
runs train --resume --out newer
holds "incomplete metrics are repaired" same_run older newer
rm -r newer/checkpoints/*20 newer/metrics.jsonl
runs train --resume --out newer
holds "missing metrics are reported" grep -q "warning: 'newer/metrics.jsonl' has no line for step 1" printed
holds "the following steps are written" test "$(wc -l <newer/metrics.jsonl)" = 10

# A long text is kept whole, and what was not given before is none.
long=$(printf '%05000d' 0)
runs train --data "$text" --out wordy $tiny --steps 4 --val-every 4 --sample-prompt "$long" --sample-tokens 1
runs train --resume --out wordy --steps 8 --memory 900M
holds "the text is whole" grep -q "\"sample-prompt\": \"$long\"" wordy/checkpoints/step-0000000008/state.json
holds "there was no limit" grep -q '^--memory is 900M from now on; it was none$' printed

# A damaged line, a missing one, one of a wrong step, and a repeated one do not affect good lines.
cp -r older repaired
rm -r repaired/checkpoints/*20
sed -i '3s/.*/{"step": 3, "lo/; 5d; 6s/6/9/; 8{p}' repaired/metrics.jsonl
runs train --resume --out repaired
holds "the damage is reported" grep -q "'repaired/metrics.jsonl' has no line for step 3, though the checkpoint has done it; \
steps without one: 3 of 10, damaged lines removed: 3" printed
metrics older | sed '3d; 5,6d' >left
metrics repaired >right
holds "each good line remains once" cmp left right
holds "no temporary file remains" test -z "$(find repaired -name '*tmp*')"
rm -r repaired/checkpoints/*20 repaired/metrics.jsonl
ln -s /dev/full repaired/metrics.jsonl
refuses 1 "'repaired/metrics.jsonl' is a device, pipe or socket, expected a regular file" train --resume --out repaired
finish
