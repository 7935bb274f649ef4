#!/bin/sh
# kills.sh PROGRAM TEXT POINTS [KILLER]: a run that saves a checkpoint after every step is killed (kill -9) at POINTS
# moments and resumed to its end. It must end with every byte of a run that was never stopped: model, checkpoints with
# the optimizer's state, loss curve, and metrics except for times. Every third run is killed again after the resume.
# KILLER (killer.c) kills at calls that change files, so mostly within saves; for every second group of four points,
# and without it, a random moment of the run is chosen. TG_SEED chooses others.
# shellcheck disable=SC2046,SC2086,SC2317
points=$3 killer=${4:+$(realpath "$4")}
# shellcheck source=tests/train/check.sh
. "$(dirname "$0")/check.sh"
seed=${TG_SEED:-1}
run="--out run --data $text $tiny --dropout 0.1 --steps 12 --val-every 5 --checkpoint-every 1 --keep 3"

# The points take turns in the first four of these.
command_of() {
    case $1 in
    0) echo "train $run" ;;
    1) echo "train $run --ranks 2 --tp 2 --sp" ;;
    2) echo "train $run --precision bf16 --recompute full --arch llama --dropout 0" ;;
    3) echo "run -n 2 -- $tapegrad train $run" ;;
    4) echo "train $run --checkpoint-every 0" ;;
    esac
}

# An undisturbed run of each kind: its seconds, and the calls of the process that makes most.
for kind in 0 1 2 3 4; do
    mkdir whole$kind
    cd whole$kind || exit 1
    now=$(date +%s%N)
    LD_PRELOAD=$killer TG_KILL_COUNT=$work/calls runs $(command_of $kind)
    rm printed
    cd ..
    echo "$now $(date +%s%N)" | awk '{ print ($2 - $1) / 1e9 }' >seconds$kind
    [ -z "$killer" ] || sort -n calls | tail -n 1 >calls$kind
    rm -f calls
done

# More numbers from 0 to 1 than are needed (Park and Miller's generator).
awk -v s="$seed" -v n="$points" 'BEGIN {
    for (n = 20 * n + 20; n > 0; n--) { s = s * 16807 % 2147483647; print s / 2147483647 }
}' >draws
exec 3<draws

# is_killed PART: starts or resumes the run in cut, and kills it at a drawn moment within that part of the calls or time
# of an undisturbed run. Fails if the run ended before.
is_killed() {
    read -r drawn <&3 || drawn=0.5
    mkdir -p cut
    if [ $how = calls ]; then
        at=$(awk -v part="$drawn" -v of="$1" '{ print 1 + int(part * of * $1) }' calls$kind)
        set -- env LD_PRELOAD="$killer" TG_KILL_AT="$at"
    else
        after=$(awk -v part="$drawn" -v of="$1" '{ print 0.001 + part * of * $1 }' seconds$kind)
        set -- timeout --foreground --preserve-status -s KILL "$after" # ending by itself, it has its own status
    fi
    { ! (cd cut && "$@" "$tapegrad" $(command_of $kind) --resume) >printed 2>&1 </dev/null; } 2>/dev/null
}

# The ranks of a killed launcher may live a moment longer.
is_free() { [ ! -e cut/run/checkpoints/.lock ] || flock -n cut/run/checkpoints/.lock true; }

same_bytes() {
    metrics "$1" >left && metrics "$2" >right && cmp left right && diff -r -x metrics.jsonl "$1" "$2"
}

kills=0 saving=0 going=0 resumed=0 turn=0
while [ $kills -lt "$points" ]; do
    kind=$((turn % 4)) how=time
    [ -z "$killer" ] || [ $((turn / 4 % 2)) = 1 ] || how=calls
    turn=$((turn + 1))
    rm -rf cut
    is_killed 1 || continue # the moment was after its end, so another is drawn
    kills=$((kills + 1))
    eventually is_free
    [ -z "$(find cut \( -name '*tmp*' -o -name '.step-*' \))" ] || saving=$((saving + 1))
    if [ $((kills % 3)) = 0 ] && [ $kills -lt "$points" ] && is_killed 0.5; then
        kills=$((kills + 1)) going=$((going + 1))
        eventually is_free
    fi
    cd cut || exit 1
    runs $(command_of $kind) --resume
    cd ..
    cp cut/printed printed
    ! grep -q "^resumed after step" printed || resumed=$((resumed + 1))
    rm cut/printed
    holds "the same bytes ($how, kind $kind, drawn $drawn)" same_bytes whole$kind/run cut/run
    holds "nothing is left over" test -z "$(find cut \( -name '*tmp*' -o -name '.step-*' \))"
done
# Without checkpoints, killed at each of the calls that put the model in its place: the run begins again, unless it was
# complete, which its config.json shows.
kind=4
for before in $(if [ -n "$killer" ]; then seq 0 14; fi); do
    rm -rf cut
    mkdir cut
    cd cut || exit 1
    { ! env LD_PRELOAD="$killer" TG_KILL_AT=$(($(cat ../calls4) - before)) \
        "$tapegrad" $(command_of 4) --resume >printed 2>&1; } 2>/dev/null
    holds "it is killed, $before calls before the last" test $? = 0
    if [ -e run/config.json ]; then
        refuses 1 "holds a model but no checkpoint" $(command_of 4) --resume
        refuses 1 "'run' holds a run already (metrics.jsonl): choose another --out" $(command_of 4)
    else
        refuses 1 "'run' holds a run already (metrics.jsonl): add --resume to continue it" $(command_of 4)
        runs $(command_of 4) --resume
    fi
    rm printed
    runs generate --model run --prompt a --tokens 2
    rm printed
    cd ..
    holds "the same bytes, $before calls before the last" same_bytes whole4/run cut/run
done
# in_order LINE...: checks that the trace has these calls in this order, with others in between.
in_order() {
    printf '%s\n' "$@" >expected
    awk 'NR == FNR { line[n = NR] = $0; next } at < n && $0 == line[at + 1] { at++ }
        END { if (at < n) print "not in order: " line[at + 1]; exit at < n }' expected trace
}
# A name is synced to the disk before anything that relies on it, in case the power fails.
if [ -n "$killer" ]; then
    LD_PRELOAD=$killer TG_KILL_TRACE=$work/trace runs train --out new --data $text $tiny --steps 2 --val-every 0 \
        --checkpoint-every 1 --record step --record-step 2
    sed -i 's/part-[0-9]*-0$/part/' trace
    holds "the directory's" in_order "mkdir new" "fsync $work" "open new/metrics.jsonl"
    holds "the metrics'" in_order "open new/metrics.jsonl" "fsync $work/new" "rename new/checkpoints/step-0000000001"
    holds "a record's" in_order "fsync $work/step.part" "rename step" "fsync $work"
fi
echo "$kills kills, $saving of them within a save, $going of a run that went on; $resumed runs had a checkpoint"
if [ -n "$killer" ]; then # else it is the machine's speed that decides
    holds "there was something to resume" test $resumed -gt 0
    holds "saves were cut" test $saving -gt 0
fi
finish
