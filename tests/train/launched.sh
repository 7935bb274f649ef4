#!/bin/sh
# launched.sh PROGRAM TEXT: messages to users of ranks: one message for all processes, a command that resumes, options
# without effect are refused; and of runs that start in one directory at once, one wins and keeps it.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--data $text $tiny --steps 6 --val-every 0"

# refused TEXT COMMAND...: processes end with status 2 and leave no x. They print TEXT once, and the launcher prints its
# own message.
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
holds "no rank prints errors of another one" test "$(grep -v '^tapegrad run: ' printed | grep -c 'rank 1')" = 0

# Only one of the ranks reports a skipped step.
"$tapegrad" run -n 2 -- "$tapegrad" train $run --out mad --steps 30 --lr 1e6 --clip 0 --warmup 0 >/dev/null 2>printed
holds "skipped steps are reported" grep -q 'step [0-9]*: the' printed
holds "each skipped step is reported once" test -z "$(grep -o 'step [0-9]*: the' printed | sort | uniq -d)"
holds "the remedy is printed" test "$(grep -c 'such steps in a row; try a lower --lr' printed)" = 1

# Begun by threads and resumed by processes: --comm is not an option of the run.
runs train $run --out threads --ranks 2 --comm threads
holds "--comm is not saved" test "$(cat threads/checkpoints/*/state.json | grep -c '"comm"')" = 0
"$tapegrad" run -n 2 -- "$tapegrad" train --resume --out threads --comm threads >printed 2>&1
holds "--comm threads is refused on resuming" grep -q "^tapegrad train: --comm threads: under" printed
runs run -n 2 -- "$tapegrad" train --resume --out threads --steps 9
holds "two processes are one run" grep -q '^2 ranks (shm): tp 1, dp 2' printed
holds "the run continues" test "$(wc -l <threads/metrics.jsonl)" = 9

# All ranks find the newest checkpoint, and ignore other directories next to it.
cp -r threads/checkpoints/step-0000000009 threads/checkpoints/step-0000000010.bak
runs run -n 2 -- "$tapegrad" train --resume --out threads --steps 11

# The command that an interrupted run prints works. The program is searched for in PATH.
mkdir bin
ln -s "$tapegrad" bin/tapegrad
cut="cut, it's"
$interruptible "$tapegrad" run -n 2 -- "$tapegrad" train $run --out "$cut" --tp 2 --steps 1000000 --checkpoint-every 0 >printed 2>&1 &
launcher=$!
holds "the run starts" while_alive $launcher test -s "$cut/metrics.jsonl"
kill -s INT $launcher
wait $launcher
holds "the interrupted run ends with status 130" test $? = 130
holds "no error is printed" test "$(grep -c '^tapegrad' printed)" = 0
again=$(sed -n 's/^interrupted after step [0-9]*; to go on: //p' printed)
done=$(wc -l <"$cut/metrics.jsonl")
holds "the command to resume is printed" test "$again" = "$tapegrad run -n 2 -- $tapegrad train --resume --out 'cut, it'\\''s'"
(PATH="$work/bin:$PATH" && eval "$again --steps $((done + 5)) --warmup 0") >printed 2>&1
holds "the command works" test "$(wc -l <"$cut/metrics.jsonl")" = $((done + 5))
$interruptible "$tapegrad" train $run --out with --steps 1000000 --device cpu --comm threads >printed 2>&1 &
child=$!
holds "the run starts" while_alive $child test -s with/metrics.jsonl
kill -s INT $child
wait $child
holds "the command has options that checkpoints do not keep" grep -q "; to go on: $tapegrad train --resume --out with --device cpu --comm threads$" \
    printed

# A program has the same signal settings as without the launcher.
env --default-signal sh -c 'grep "^Sig[BIC]" /proc/self/status' >left
env --default-signal "$tapegrad" run -n 1 -- sh -c 'grep "^Sig[BIC]" /proc/self/status' >right
holds "signal settings are the same" cmp left right
env --ignore-signal=INT sh -c 'grep "^SigIgn" /proc/self/status' >left
env --ignore-signal=INT "$tapegrad" run -n 1 -- sh -c 'grep "^SigIgn" /proc/self/status' >right
holds "an ignored signal stays ignored" cmp left right

# Two signals that come before the launcher has passed on the first one: both reach the ranks.
cat >ranks.sh <<'END'
trap 'echo >interrupted' INT
trap 'echo >terminated' TERM
echo >ready
until [ -e interrupted ] && [ -e terminated ] || [ -e enough ]; do sleep 0.02; done
END
$interruptible "$tapegrad" run -n 1 -- sh ranks.sh >printed 2>&1 &
launcher=$!
until_there ready
kill -s STOP $launcher
kill -s TERM $launcher
kill -s INT $launcher
kill -s CONT $launcher
holds "both signals are passed on" eventually test -e interrupted -a -e terminated
echo >enough
wait $launcher

# Processes share the cores.
cores=$(nproc)
runs run -n 2 -- "$tapegrad" train $run --out shared --threads 0
share=$((cores > 2 ? cores / 2 : 1))
holds "$share of $cores cores for each of two" grep -q "tokens, $share thread" printed

# Options that would do nothing, or fail in the first step.
refuses 2 "--sp needs --tp N of 2 or more" train $run --out x --sp
refuses 2 "--sp needs --tp N of 2 or more" train $run --out x --sp --ranks 2
refuses 2 "--recompute distributed needs --tp N of 2 or more" train $run --out x --recompute distributed
refuses 2 "--sp needs --tp N of 2 or more" inspect --sp
refuses 2 "--recompute distributed needs" inspect --recompute distributed
refuses 1 "--seq-len 15 is not divisible by --tp 2" train $run --out x --seq-len 15 --ranks 2 --tp 2 --sp
refuses 2 "there is no option --no-steps" train $run --out x --no-steps

# --sp is kept, and can be revoked; without tensor-parallel ranks it has no effect.
runs train $run --out sp --ranks 2 --tp 2 --sp
runs train --resume --out sp --steps 8
holds "--sp is kept" grep -q "tp 2 with sequence parallelism" printed
runs train --resume --out sp --steps 10 --no-sp
holds "--no-sp revokes it" grep -q "^2 ranks (threads): tp 2, dp 1" printed
runs train --resume --out sp --steps 12
holds "--no-sp is kept" grep -q "^2 ranks (threads): tp 2, dp 1" printed
runs train --resume --out sp --steps 14 --sp
runs train --resume --out sp --steps 16 --ranks 1 --tp 1

# A run of several processes is resumed by one.
runs run -n 2 -- "$tapegrad" train $run --out apart --tp 2
refuses 2 "the run was made with --tp 2, and --ranks is 1: give --ranks 2, or another multiple, or --tp 1" \
    train --resume --out apart --steps 8

# A run that fails before its first line does not prevent the next one.
mkdir old
refuses 1 "--seq-len 15 is not divisible" train $run --out old --seq-len 15 --ranks 2 --tp 2 --sp
head -c 12 "$text" >short
refuses 1 "short" train $run --data short --out old
runs train $run --out old

# Two runs begin in one new directory: one of them wins, and its run is complete.
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
    refused="is in use by another run\|holds a run already\|was removed by another process"
    [ $((one + two)) = 1 ] && grep -q "$refused" printed &&
        [ -s both/model.safetensors ] && [ "$(wc -l <both/metrics.jsonl)" = 3 ] && [ -d both/checkpoints/step-0000000003 ]
}
for i in $(seq 12); do
    holds "race $i has one winner" race
done
finish
