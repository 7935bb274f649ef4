#!/bin/sh
# mishaps.sh PROGRAM TEXT: accidents around a run: data of another vocabulary, or none; ranks started with different
# options; an edited config; another directory; hangups and closed pipes; damaged checkpoints; names with control
# characters; clocks that go backward; memory that is short. The tests share the runs that they need.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
head -c 3000 "$text" >book
run="--data book $tiny --steps 20 --val-every 0 --checkpoint-every 10"
runs train $run --out base

# warns TEXT COMMAND...: checks that the program ends with status 0 and prints TEXT to standard error.
warns() {
    expected=$1
    shift
    "$tapegrad" "$@" >out 2>printed </dev/null
    holds "status 0: $*" test $? = 0
    holds "it warns '$expected': $*" grep -qF -e "$expected" printed
}
# silent COMMAND...: checks that the program ends with status 0 and prints nothing to standard error.
silent() {
    "$tapegrad" "$@" >out 2>printed </dev/null
    holds "status 0: $*" test $? = 0
    holds "no word on standard error: $*" test ! -s printed
}

# Models of another vocabulary than the data's.
runs train $run --out wide --vocab 300 --steps 2
refuses 1 "'wide' has a vocabulary of 300 token ids, but text without a tokenizer gives the 256 values of bytes" \
    train --data book --init wide --out x --steps 2
refuses 1 "give the model's tokenizer by --tokenizer, or the ids with --data-format u16" eval --model wide --data book
tr '\n' ' ' <book | sed 's/./&\x00/g' >book.u16
silent eval --model wide --data book.u16 --data-format u16

# Files that are not data.
bzip2 -c book >book.bz2 2>/dev/null || printf 'BZh9' | cat - book >book.bz2
warns "--data 'book.bz2' begins as a file that is compressed by bzip2" eval --model base --data book.bz2
head -c 200 book | tr 'e' '\000' >zeros
warns "--data 'zeros' is not text: byte" eval --model base --data zeros
warns "--val-data 'zeros' is not text: byte" train --data book --val-data zeros --out zeroed $tiny \
    --steps 1 --val-every 0 --checkpoint-every 0
warns "decompress it first (bunzip2)" train --data book.bz2 --out zipped $tiny --steps 1 --val-every 0 --checkpoint-every 0
silent eval --model base --data book

# The two files of a model must belong together.
cp -r base edited
sed -i 's/"layer_norm_epsilon": [^,]*/"layer_norm_epsilon": 0.5/' edited/config.json
warns "\"layer_norm_epsilon\" is 0.5, was 1e-5" eval --model edited --data book
warns "'edited/config.json' is not the config that" generate --model edited --prompt a --tokens 1
runs train $run --out other --seed 2 --steps 2
cp base/config.json other/config.json
warns "'other/model.safetensors' does not hold the weights that 'other/config.json' was saved with" \
    train --data book --init other --out begun --steps 1 --batch 4 --val-every 0 --checkpoint-every 0
sed -i 's/tapegrad.config/somebody.config/; s/tapegrad\.xxh64/somebody.xxh64/g' edited/model.safetensors
silent eval --model edited --data book # as files of before, or of another program

# A model in several files, and a run that has not ended.
mkdir sharded
cp base/config.json sharded
echo '{}' >sharded/model.safetensors.index.json
refuses 1 "'sharded/model.safetensors.index.json': key \"weight_map\": expected an object, found nothing" \
    eval --model sharded --data book
cp base/model.safetensors sharded/model-00001-of-00001.safetensors
grep -aoE '"[a-z_0-9.]+":\{"dtype"' base/model.safetensors | cut -d'"' -f2 |
    sed 's/.*/"&": "model-00001-of-00001.safetensors"/' | paste -sd, |
    sed 's/.*/{"weight_map": {&}}/' >sharded/model.safetensors.index.json
silent eval --model sharded --data book
cp -r base going
rm going/config.json
warns "its newest checkpoint is taken, 'going/checkpoints/step-0000000020'" generate --model going --prompt a --tokens 1
warns "the run in 'going' has not ended" eval --model going --data book
cp out going.loss
silent eval --model base --data book
holds "the loss is that of the checkpoint" cmp out going.loss

# Ranks that were started differently. $TAPEGRAD_RANK is the rank's number.
# differ TEXT COMMAND: ranks run a shell command that differs between them, and rank 1 prints TEXT.
differ() {
    "$tapegrad" run -n 2 -- sh -c "$2" >out 2>printed </dev/null
    holds "status 1: $2" test $? = 1
    holds "rank 1 says '$1': $2" grep -qF -e "rank 1: $1" printed
    holds "nothing is left: $2" test ! -e x
    rm -rf x
}
train="exec '$tapegrad' train --out x $run"
differ "--lr is 0.002 on this rank, but 0.001 on rank 0; start all ranks with the same options" \
    "$train --lr 0.00\$((TAPEGRAD_RANK + 1))"
differ "--seed is 1 on this rank, but 0 on rank 0" "$train --seed \$TAPEGRAD_RANK"
differ "--out is x1 on this rank, but x on rank 0" "exec '$tapegrad' train $run --out x\${TAPEGRAD_RANK#0}"
mkdir near far
cp book near/file
tail -c 2900 "$text" >far/file
differ "the number of tokens in --data" "case \$TAPEGRAD_RANK in 0) cd near ;; *) cd far ;; esac
    exec '$tapegrad' train $run --data file --out ../x"
cp book far/file
printf X | dd of=far/file conv=notrunc 2>/dev/null
differ "the checksum of --data is" "case \$TAPEGRAD_RANK in 0) cd near ;; *) cd far ;; esac
    exec '$tapegrad' eval --model ../base --data file"
differ "TG_MPI_NODES is 2 on this rank, but not given on rank 0; start all ranks with the same environment" \
    "[ \$TAPEGRAD_RANK = 0 ] || export TG_MPI_NODES=2; $train"
cp "$tapegrad" another
echo >>another
differ "the checksum of the program's files is" "[ \$TAPEGRAD_RANK = 0 ] || exec ./another train --out x $run; $train"
differ "--tokens is 1 on this rank, but 0 on rank 0" \
    "exec '$tapegrad' generate --model base --tp 2 --prompt a --tokens \$TAPEGRAD_RANK"

# From another directory, and after the whole tree was moved.
mkdir tree
cp book tree
(cd tree && "$tapegrad" train $run --out run --steps 10 >/dev/null 2>&1)
cp -r tree/run elsewhere
runs train --resume --out tree/run --steps 12
cp -r elsewhere here
mv tree moved
runs train --resume --out here --steps 12 # there is a book in this directory
mv book tome
refuses 1 "the checkpoint's --data is 'book', given in the directory '$work/tree'; there is no such file there" \
    train --resume --out elsewhere --steps 12
runs train --resume --out elsewhere --steps 12 --data tome
mv tome book

# Several paths, and files that have become token files, of a run that was begun in another directory.
mkdir begun
cp book begun/one
cp book 'begun/two 2'
seq 99 | sed 's/.*/{"text": "some text, which is number &"}/' >begun/lines.jsonl
evaluates() { sed -n "s/^evaluate: .* --data //p" printed; }
(cd begun && "$tapegrad" train $run --data one 'two*' --out several --steps 4 --checkpoint-every 2 >printed 2>&1 &&
    "$tapegrad" train $run --data lines.jsonl --out cached --steps 4 --checkpoint-every 2 >/dev/null 2>&1)
cp begun/printed .
holds "the data are named as they were given" test "$(evaluates)" = "one 'two*'"
for steps in 6 8; do
    runs train --resume --out begun/several --steps $steps
    holds "several paths lead to where they led" test "$(evaluates)" = "$work/begun/one '$work/begun/two*'"
    runs train --resume --out begun/cached --steps $steps
    holds "so does the path in the next command" test "$(evaluates)" = "$work/begun/lines.jsonl"
    holds "which works" sh -c "$(sed -n 's/^evaluate: //p' printed) >/dev/null"
done
(cd begun && "$tapegrad" train --resume --out cached --steps 10 >printed 2>&1)
cp begun/printed .
holds "in the first directory it is named as it was given" test "$(evaluates)" = lines.jsonl

# A hangup saves like other signals, and a closed pipe does not end a run.
$interruptible "$tapegrad" run -n 2 -- "$tapegrad" train $run --out hung --steps 1000000 --checkpoint-every 0 >printed 2>&1 &
child=$!
holds "the run starts" while_alive $child test -s hung/metrics.jsonl
kill -s HUP $child
wait $child
holds "SIGHUP ends it with status 129" test $? = 129
holds "it leaves a checkpoint" test -n "$(ls hung/checkpoints)"
"$tapegrad" run -n 1 -- "$tapegrad" train $run --out piped --log-every 1 2>printed | head -n 1 >out
until_there piped/config.json
holds "the run continues without a reader" same_run piped base
holds "the warning is printed once" test "$(grep -c 'cannot write to standard output (Broken pipe)' printed)" = 1
if [ -e /dev/full ]; then
    "$tapegrad" train $run --out full >/dev/full 2>printed
    holds "a full output fails no run" test $? = 0
fi

# A damaged checkpoint: the message names the newest undamaged one, and the command to resume from it.
runs train $run --out hurt --steps 30 --keep 9
for file in state.json rank-00000.safetensors index.json model.safetensors; do
    rm -rf x
    cp -r hurt damaged
    size=$(wc -c <damaged/checkpoints/step-0000000030/$file)
    printf '\377' | dd of=damaged/checkpoints/step-0000000030/$file bs=1 seek=$((size - 2)) conv=notrunc 2>/dev/null
    : >damaged/checkpoints/step-0000000020/state.json
    refuses 1 "; the newest whole checkpoint is that of step 10: add --resume-step 10 to go on from it" \
        train --resume --out damaged --steps 40
    [ $file = model.safetensors ] || rm -r damaged
done
cp -r hurt given
: >given/checkpoints/step-0000000010/state.json
refuses 1 "; the newest whole checkpoint is that of step 30: add --resume-step 30 to go on from it" \
    train --resume --out given --resume-step 10
rm -r given
refuses 1 "'damaged' has no checkpoint of that step" train --resume --out damaged --resume-step 11
refuses 2 "--resume-step is for --resume" train $run --out x --resume-step 11
runs train --resume --out damaged --resume-step 10
holds "later checkpoints are renamed" test -d damaged/checkpoints/step-0000000030.unused
rm -r damaged/checkpoints/*.unused
holds "the bits are the same" same_run damaged hurt

# A refused run leaves nothing in an existing directory.
mkdir there
refuses 1 "expected at least --seq-len + 1" train $run --out there --seq-len 5000
holds "the directory is empty" test -z "$(ls -A there)"

# Processes that a rank's program has started end with it.
"$tapegrad" run -n 2 -- sh -c 'sleep 300 & echo $! >>started' >printed 2>&1
holds "the launcher ends" test $? = 0
holds "both ranks have started one" test "$(wc -l <started)" = 2
for pid in $(cat started); do
    holds "what a rank has started ends" eventually sh -c "! kill -0 $pid 2>/dev/null || grep -q '^State:.*Z' /proc/$pid/status"
done

# Names in files are escaped before they reach the terminal.
cp -r base named
sed -i 's/"model_type": "gpt2"/"model_type": "\\u001b[31mred\\n"/' named/config.json
refuses 1 'model_type is "\x1b[31mred\n"' eval --model named --data book

# Terminals.
if script -qec true /dev/null >/dev/null 2>&1; then # a terminal can be had
    # shown ENVIRONMENT...: stores the output of a terminal with 30 columns.
    shown() {
        rm -rf seen
        env "$@" script -qec "stty cols 30; '$tapegrad' train $run --out seen --steps 50 --log-every 50" /dev/null >printed </dev/null
    }
    shown TERM=xterm
    holds "a line is cleared" grep -q "$(printf '\033\[K')" printed
    holds "lines fit" test "$(tr '\r' '\n' <printed | sed "s/$(printf '\033')\[K//" | awk '/^step/ && length > 29' | wc -l)" = 0
    shown TERM=xterm NO_COLOR=1
    holds "NO_COLOR: no escapes" sh -c '! grep -q "$(printf "\033")" printed'
    holds "NO_COLOR: one line" test "$(grep -c 'step 50/50' printed)" = 1
    shown TERM=dumb
    holds "TERM=dumb: no escapes" sh -c '! grep -q "$(printf "\033")" printed'
    holds "TERM=dumb: plain lines" grep -q '^step 50/50 ' printed
fi

# A clock that goes backward.
if [ -n "${BACKWARD:-}" ]; then
    LD_PRELOAD=$BACKWARD runs train $run --out back --log-every 5
    holds "its rate is not known" grep -q '^step 10/20  .*  ? tokens/s  ETA ?$' printed
    holds "nor in the metrics" grep -q '"tokens_per_s": null' back/metrics.jsonl
    holds "the bits are the same" cmp back/model.safetensors base/model.safetensors
fi

# Memory for JSON that is short: the program writes all members, or ends with an error.
# whole STATUS: compares the file "some" of a command that ended with this status with that of one with enough memory.
whole() {
    if [ "$1" = 0 ]; then cmp some all; else [ "$1" -le 2 ] && [ -s errors ]; fi
}
if [ -n "${JSON_MEMORY:-}" ]; then
    size="--layers 1 --hidden 16 --heads 2 --json"
    "$tapegrad" inspect $size >all
    lacking=0
    for n in 1 2 3 5 8 13 21 34 55 89 144 233 377 610; do
        JSON_FAILS=$n LD_PRELOAD=$JSON_MEMORY "$tapegrad" inspect $size >some 2>errors
        status=$?
        [ $status = 0 ] || lacking=$((lacking + 1))
        holds "inspect prints all members or none (allocation $n)" whole $status
    done
    holds "allocations have failed" test $lacking -ge 10
    runs train $run --steps 1 --out enough
    wc -l <enough/checkpoints/step-0000000001/state.json >all
    for n in 1 2 3 5 8 13 21 34 55 89 144 233 377 610; do
        rm -rf scarce
        JSON_FAILS=$n LD_PRELOAD=$JSON_MEMORY "$tapegrad" train $run --steps 1 --out scarce >/dev/null 2>errors
        status=$?
        [ $status = 0 ] && wc -l <scarce/checkpoints/step-0000000001/state.json >some
        holds "state.json has all members or is an error (allocation $n)" whole $status
    done
fi
finish
