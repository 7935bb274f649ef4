#!/bin/sh
# launched.sh PROGRAM TEXT: messages to users of ranks: one message for all processes, a command that resumes, options
# without effect are refused; and of runs that start in one directory at once, one wins and keeps it.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--data $text $tiny --steps 6 --val-every 0"

# refused TEXT COMMAND...: processes end with status 2 and leave no x; the message is there once, with the launcher's.
refused() {
    expected=$1
    shift
    "$tapegrad" run -n 3 -- "$tapegrad" "$@" >/dev/null 2>printed </dev/null
    status=$?
    holds "status 2: $*" test $status = 2
    holds "$expected: once" test "$(grep -cF -e "$expected" printed)" = 1
    holds "one says where help is: $*" test "$(grep -c '^Try ' printed)" = 1
    holds "nothing is left of $*" test ! -e x
}
refused "did you mean --steps?" train $run --out x --stpes 3
refused "--ranks is for ranks that are threads" train $run --out x --ranks 3
refused "--comm threads: under \`tapegrad run\`" train $run --out x --comm threads
holds "nobody speaks for another" test "$(grep -v '^tapegrad run: ' printed | grep -c 'rank 1')" = 0

# A step that cannot be taken is told by one of them.
"$tapegrad" run -n 2 -- "$tapegrad" train $run --out mad --steps 30 --lr 1e6 --clip 0 --warmup 0 >/dev/null 2>printed
holds "each bad step is told once" test -z "$(grep -o 'step [0-9]*: the' printed | sort | uniq -d)"
holds "and what to do" test "$(grep -c 'such steps in a row; try a lower --lr' printed)" = 1

# Made by threads, gone on with by processes: --comm is not of the run.
runs train $run --out threads --ranks 2 --comm threads
holds "--comm is not saved" test "$(cat threads/checkpoints/*/state.json | grep -c '"comm"')" = 0
"$tapegrad" run -n 2 -- "$tapegrad" train --resume --out threads --comm threads >printed 2>&1
holds "--comm threads is refused on resuming" grep -q "^tapegrad train: --comm threads: under" printed
runs run -n 2 -- "$tapegrad" train --resume --out threads --steps 9
holds "two processes are one run" grep -q '^2 ranks (shm): tp 1, dp 2' printed
holds "which goes on" test "$(wc -l <threads/metrics.jsonl)" = 9

# All of them see the newest checkpoint, and none in what somebody has laid beside it.
cp -r threads/checkpoints/step-0000000009 threads/checkpoints/step-0000000010.bak
runs run -n 2 -- "$tapegrad" train --resume --out threads --steps 11

# The way to go on that an interrupted run prints is one. Tapegrad is looked for in PATH.
mkdir bin
ln -s "$tapegrad" bin/tapegrad
cut="cut, it's"
$interruptible "$tapegrad" run -n 2 -- "$tapegrad" train $run --out "$cut" --tp 2 --steps 1000000 --checkpoint-every 0 >printed 2>&1 &
launcher=$!
holds "it starts" while_alive $launcher test -s "$cut/metrics.jsonl"
kill -s INT $launcher
wait $launcher
holds "interrupted, it ends so" test $? = 130
holds "and has not failed" test "$(grep -c '^tapegrad' printed)" = 0
again=$(sed -n 's/^interrupted after step [0-9]*; to go on: //p' printed)
done=$(wc -l <"$cut/metrics.jsonl")
holds "it says how to go on" test "$again" = "tapegrad run -n 2 -- tapegrad train --resume --out 'cut, it'\\''s'"
(PATH="$work/bin:$PATH" && eval "$again --steps $((done + 5)) --warmup 0") >printed 2>&1
holds "that works" test "$(wc -l <"$cut/metrics.jsonl")" = $((done + 5))
$interruptible "$tapegrad" train $run --out with --steps 1000000 --device cpu --comm threads >printed 2>&1 &
child=$!
holds "it starts" while_alive $child test -s with/metrics.jsonl
kill -s INT $child
wait $child
holds "with what no checkpoint keeps" grep -q "; to go on: tapegrad train --resume --out with --device cpu --comm threads$" \
    printed

# A program finds the signals as they would be without the launcher.
env --default-signal sh -c 'grep "^Sig[BIC]" /proc/self/status' >left
env --default-signal "$tapegrad" run -n 1 -- sh -c 'grep "^Sig[BIC]" /proc/self/status' >right
holds "signals" cmp left right
env --ignore-signal=INT sh -c 'grep "^SigIgn" /proc/self/status' >left
env --ignore-signal=INT "$tapegrad" run -n 1 -- sh -c 'grep "^SigIgn" /proc/self/status' >right
holds "a signal that is ignored" cmp left right

# Cores are shared out between processes.
cores=$(nproc)
runs run -n 2 -- "$tapegrad" train $run --out shared --threads 0
share=$((cores > 2 ? cores / 2 : 1))
holds "$share of $cores cores for each of two" grep -q "tokens, $share threads, " printed

# What would do nothing, or fail in the first step.
refuses 2 "--sp needs --tp N of 2 or more" train $run --out x --sp
refuses 2 "--sp needs --tp N of 2 or more" train $run --out x --sp --ranks 2
refuses 2 "--recompute distributed needs --tp N of 2 or more" train $run --out x --recompute distributed
refuses 2 "--sp needs --tp N of 2 or more" inspect --sp
refuses 2 "--recompute distributed needs" inspect --recompute distributed
refuses 1 "--seq-len 15 is not divisible by --tp 2" train $run --out x --seq-len 15 --ranks 2 --tp 2 --sp
refuses 2 "there is no option --no-steps" train $run --out x --no-steps

# --sp is kept, and can be taken back; without tensor-parallel ranks it means nothing.
runs train $run --out sp --ranks 2 --tp 2 --sp
runs train --resume --out sp --steps 8
holds "--sp is kept" grep -q "tp 2 with sequence parallelism" printed
runs train --resume --out sp --steps 10 --no-sp
holds "--no-sp takes it back" grep -q "^2 ranks (threads): tp 2, dp 1" printed
runs train --resume --out sp --steps 12
holds "for good" grep -q "^2 ranks (threads): tp 2, dp 1" printed
runs train --resume --out sp --steps 14 --sp
runs train --resume --out sp --steps 16 --ranks 1 --tp 1

# Ranks that were processes, of which one goes on alone.
runs run -n 2 -- "$tapegrad" train $run --out apart --tp 2
refuses 2 "the run was made with --tp 2, and --ranks is 1: give --ranks 2, or another multiple, or --tp 1" \
    train --resume --out apart --steps 8

# A run that fails before its first line leaves nothing in the way of the next.
mkdir old
refuses 1 "--seq-len 15 is not divisible" train $run --out old --seq-len 15 --ranks 2 --tp 2 --sp
head -c 12 "$text" >short
refuses 1 "short" train $run --data short --out old
runs train $run --out old

# Two runs begin in one new directory: one of them wins, and its run is whole.
race() {
    rm -rf both
    "$tapegrad" train $run --steps 3 --out both >first 2>&1 &
    one=$!
    "$tapegrad" train $run --steps 3 --out both >second 2>&1 &
    two=$!
    wait $one
    one=$?
    wait $two
    two=$?
    cat first second >printed
    [ $((one + two)) = 1 ] && grep -q "is in use by another run\|holds a run already" printed &&
        [ -s both/model.safetensors ] && [ "$(wc -l <both/metrics.jsonl)" = 3 ] && [ -d both/checkpoints/step-0000000003 ]
}
for i in $(seq 12); do
    holds "race $i has one winner" race
done
finish
