#!/bin/sh
# files.sh PROGRAM TEXT: unusable data, directories and disks are refused with status 1 and one line that names file,
# offset and what was expected; files that existed before are unchanged.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--out x $tiny --steps 3"

: >empty
head -c 16 "$text" >short
head -c 200 "$text" >little
printf 'ab\001\377' >ids
head -c 1001 "$text" >odd
head -c 1000 "$text" >even
refuses 1 "cannot open 'none': No such file" train --data none $run
mkdir nothing
refuses 1 "the directory 'nothing' has no files" train --data nothing $run
refuses 1 "is a device, pipe or socket" train --data /dev/zero $run
refuses 1 "'empty' is empty" train --data empty $run
refuses 1 "'/proc/cpuinfo' says that it has 0 bytes but gives more" train --data /proc/cpuinfo $run
refuses 1 "tokens to train on, expected at least --seq-len + 1 = 500000001" train --data "$text" $run --seq-len 500000000
refuses 1 "'short' has 16 tokens to train on, expected at least --seq-len + 1 = 17" \
    train --data short $run --val-fraction 0
refuses 1 "or --val-fraction 0" train --data little $run
refuses 1 "'odd' has 1001 bytes, expected a multiple of 2 (u16): 1 byte left over at offset 1000" \
    train --data odd --data-format u16 --vocab 300 $run
refuses 1 "expected a multiple of 4 (u32)" train --data odd --data-format u32 --vocab 300 $run
refuses 1 "'ids': token 1 at offset 2 is 65281, expected less than 30000" \
    train --data ids --data-format u16 --vocab 30000 $run
refuses 1 "expected less than 100 (the vocabulary)" train --data "$text" --vocab 100 $run

printf '\0\0\0\0' >order
refuses 1 "--order 'order' has 4 bytes, expected 96" train --data "$text" $run --order order
refuses 1 "'/dev/zero' is a device, pipe or socket, expected a regular file" \
    train --data "$text" $run --order /dev/zero
mkfifo pipe
for command in "train --data $text $run --order pipe" "train --data pipe $run" "gradcheck --replay pipe"; do
    refuses 1 "'pipe' is a device, pipe or socket, expected a regular file" $command
done
head -c 88 /dev/zero >order
printf '\0\0\0\0\0\0\0\100' >>order
refuses 1 "(sequence 3 of step 3) is not in the data, expected 0 to" train --data "$text" $run --order order

refuses 1 "cannot make the directory '/proc/x'" train --data "$text" --out /proc/x
refuses 1 "cannot make the directory 'odd/x': Not a directory" train --data "$text" --out odd/x
refuses 1 "cannot make the directory 'odd/checkpoints'" train --data "$text" --out odd
refuses 1 "cannot open 'none/config.json'" train --data "$text" --out x --init none

# A complete run, and errors that must not change it.
runs train --data "$text" --out whole $tiny --steps 20 --checkpoint-every 10 --val-every 10
cp -r whole before
refuses 1 "'whole' holds a run already" train --data "$text" --out whole
refuses 1 "has done 20 steps, more than --steps 10" train --resume --out whole --steps 10
refuses 1 "--hidden is 32, but the run in --out was begun with 16" train --resume --out whole --hidden 32
refuses 1 "--data is not what the run began with" train --resume --out whole --data even
refuses 1 "--seq-len 17 is more than the model's 16 positions" train --data "$text" --out x --init whole --seq-len 17
refuses 1 "--seq-len 17 is more than the model's 16 positions" eval --model whole --data even --seq-len 17
refuses 1 "'odd' has 1001 bytes" eval --model whole --data odd --data-format u16
refuses 1 "expected less than 256" eval --model whole --data even --data-format u16
head -c 1 even >one
refuses 1 "has one token" eval --model whole --data one
refuses 2 "id 2, at character 3, is not a whole number from 0 to 255" generate --model whole --prompt-ids 1,256
runs train --resume --out whole
holds "resuming a run that has ended changes nothing" same_run whole before

# An order may grow, and change after the steps done, but not before. offsets N BYTE: prints N offsets.
offsets() { for _ in $(seq "$1"); do printf '\000%b\000\000\000\000\000\000' "$2"; done; }
offsets 8 '\001' >order
runs train --data "$text" --out ordered $tiny --steps 2 --val-every 0 --order order
cp -r ordered unordered
offsets 8 '\002' >>order
runs train --resume --out ordered --steps 4
(offsets 7 '\001'; offsets 9 '\002') >order
refuses 1 "'order' is not the one that the run began with: the offsets of steps 1 to 2 differ" \
    train --resume --out unordered --steps 4
state=unordered/checkpoints/step-0000000002
sed -i '/"order": "[0-9]*"/d; s/\("hash": "[0-9]*"\),/\1/' $state/state.json
"$SEAL" ${state%/*}/step-0000000002
runs train --resume --out unordered --steps 4 # of before orders had a checksum

# Files that are cut short or too long, and flipped bits: the message names the file.
last=checkpoints/step-0000000020
# damaged FILE cut|longer|PART: damages a file of `hurt`, a copy of the run; PART of 7 is the place of a flipped bit.
damaged() {
    rm -rf hurt
    cp -r before hurt
    n=$(wc -c <"hurt/$1")
    case $2 in
    cut) truncate -s -9 "hurt/$1" ;;
    longer) echo >>"hurt/$1" ;;
    *)
        at=$((n * $2 / 7))
        byte=$(od -An -j $at -N 1 -tu1 "hurt/$1")
        # shellcheck disable=SC2059
        printf "\\$(printf %03o $((byte ^ 4)))" | dd of="hurt/$1" bs=1 seek=$at conv=notrunc 2>/dev/null
        ! cmp -s "hurt/$1" "before/$1" || wrong "no bit of $1 has turned"
        ;;
    esac
}
for how in cut longer 0 2 4 6; do
    for file in model.safetensors rank-00000.safetensors index.json state.json config.json; do
        damaged $last/$file $how
        refuses 1 "$file" train --resume --out hurt --steps 30
    done
    damaged model.safetensors $how
    refuses 1 "'hurt/model.safetensors'" eval --model hurt --data even
    refuses 1 "'hurt/model.safetensors'" generate --model hurt --prompt a --tokens 3
    refuses 1 "'hurt/model.safetensors'" train --data "$text" --init hurt --out x --steps 3
done
damaged $last/state.json 0
sed 's/"data-format": "auto"/"data-format": "a"/' before/$last/state.json >hurt/$last/state.json
"$SEAL" hurt/$last
refuses 1 "the checkpoint's --data-format is 'a', expected one of text|u16|u32" train --resume --out hurt
sed 's/"format": 5/"format": 4/' before/$last/state.json >hurt/$last/state.json
refuses 1 "state.json' has format 4, expected 5" train --resume --out hurt
for change in 's/"format": 5/"format": "5"/' 's/"options"/"option"/'; do
    sed "$change" before/$last/state.json >hurt/$last/state.json
    refuses 1 "state.json' is not the state of a run: it has no format, or no options" train --resume --out hurt
done
damaged $last/state.json longer
rm -r hurt/checkpoints/step-0000000020
runs train --resume --out hurt --steps 20
holds "without the damaged checkpoint the run resumes from the previous one" same_run hurt before

# Undamaged files of other checkpoints: of a run of the same shape, and of another step.
runs train --data "$text" --out other $tiny --steps 20 --checkpoint-every 10 --val-every 10 --seed 2
for file in model.safetensors rank-00000.safetensors index.json; do
    damaged $last/$file longer
    cp other/$last/$file hurt/$last/$file
    refuses 1 "$file' is damaged, or of another checkpoint" train --resume --out hurt --steps 30
done
damaged $last/state.json longer
rm -r hurt/$last
mv hurt/checkpoints/step-0000000010 hurt/$last
refuses 1 "step-0000000020' holds the checkpoint of step 10" train --resume --out hurt --steps 30

# A full disk: files of at most a few thousand bytes. The last checkpoint remains, and the run can resume from it.
# shellcheck disable=SC2317 # it is called by holds
full() (
    ulimit -f 8
    failed=0
    refuses 1 "$@"
    [ $failed = 0 ]
)
holds "a new run fails" full "File too large" train --data "$text" --out small $tiny --steps 5 --checkpoint-every 5
holds "no file has a checkpoint's name" test "$(ls small/checkpoints)" = ""
holds "a save fails" full "File too large" train --resume --out whole --steps 40
holds "the old checkpoints remain" test "$(echo whole/checkpoints/*)" = \
    "whole/checkpoints/step-0000000010 whole/checkpoints/step-0000000020"
holds "no temporary file remains" test -z "$(find whole -name '*tmp*')"
echo old >z.svg
holds "a picture fails" full "File too large" schedule --micros 100 --svg z.svg
holds "the old picture remains" test "$(cat z.svg*)" = old
runs train --resume --out whole --steps 40
runs train --resume --out before --steps 40
holds "the resumed run equals an undisturbed one" same_run whole before

# The same on a small disk, if the test may mount one.
mkdir disk
if mount -t tmpfs -o size=256k none disk 2>/dev/null; then
    trap 'umount "$work/disk"; rm -rf "$work"' EXIT
    refuses 1 "No space left on device" \
        train --data "$text" --out disk/run $tiny --steps 20 --keep 100 --checkpoint-every 1 --val-every 10
    holds "a checkpoint is there" test -n "$(find disk/run/checkpoints -name 'step-*')"
    cp -r disk/run freed
    runs train --resume --out freed
    runs train --data "$text" --out never --steps 20 $tiny --val-every 10
    holds "with room again it goes on as if nothing had been" same_run freed never
fi

# Weights that overflow in a precision: there is no next token.
runs train --data "$text" --out wild $tiny --steps 9 --lr 1e6 --min-lr 1e6 --warmup 0 --checkpoint-every 0
refuses 1 "is NaN, expected a finite number" generate --model wild --prompt abc --tokens 3 --precision fp16

# Standard output that cannot be written.
for command in "ops" "ops --json" "train --help" "inspect --layers 1" "eval --model whole --data even" \
    "generate --model whole --prompt a --tokens 9"; do
    "$tapegrad" $command >/dev/full 2>printed
    holds "status 1 on a full output: $command" test $? = 1
    holds "the reason: $command" grep -q "cannot write to standard output" printed
done

# Closed output is lost, and is not written into the run's files.
runs train --data "$text" --out heard $tiny --steps 5 --checkpoint-every 0
"$tapegrad" train --data "$text" --out unheard $tiny --steps 5 --checkpoint-every 0 <&- >&- 2>&-
holds "the status is 0 with closed output" test $? = 0
holds "the metrics are complete" same_run heard unheard
holds "the lock file is empty" test ! -s unheard/checkpoints/.lock
"$tapegrad" train --data "$text" --out unseen $tiny --steps 5 --checkpoint-every 0 >&- 2>printed
holds "the lock file is empty if only standard output is closed" test ! -s unseen/checkpoints/.lock
"$tapegrad" generate --model whole --prompt abc --tokens 5000 2>printed | head -c 3 >three
holds "a closed pipe gets the complete lines" test "$(cat three)" = abc
holds "a closed pipe causes no message" test ! -s printed
finish
