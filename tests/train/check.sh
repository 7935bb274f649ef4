# Sourced by the tests of the program, which are called with its path and that of an English text. Each check prints
# what it found wrong; the last line counts them.
# shellcheck shell=sh disable=SC2034
set -u
tapegrad=$(realpath "$1") text=$(realpath "$2")
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
cd "$work" || exit 1
export LC_ALL=C
passed=0 failed=0

# turn: succeeds. If TG_TEST_SHARE_name=N is set for the script of that name, it succeeds in one of N calls, which
# TG_TEST_TURN chooses.
share=$(printenv "TG_TEST_SHARE_$(basename "$0" .sh)" || echo 1)
calls=${TG_TEST_TURN:-0}
turn() {
    calls=$((calls + 1))
    [ $((calls % share)) = 0 ]
}

# A model whose steps take almost no time.
tiny="--layers 1 --hidden 16 --heads 2 --seq-len 16 --batch 4 --threads 1"

pass() { passed=$((passed + 1)); }

# wrong WHAT: reports a failed check, and what the program printed, if it was kept.
wrong() {
    failed=$((failed + 1))
    echo "wrong: $*"
    if [ -s printed ]; then sed 's/^/    /' printed | head -n 20; fi
}

# holds WHAT COMMAND...: checks that the command succeeds; WHAT is the statement that it proves.
holds() {
    what=$1
    shift
    if "$@"; then pass; else wrong "$what"; fi
}

# runs COMMAND...: checks that the program ends with status 0; its output is in `printed`.
runs() {
    "$tapegrad" "$@" >printed 2>&1 </dev/null
    status=$?
    if [ $status = 0 ]; then pass; else wrong "status $status: tapegrad $*"; fi
}

# refuses STATUS TEXT COMMAND...: checks that the program ends with STATUS, prints one line "tapegrad COMMAND: ..." with
# TEXT to stderr (and how to get help, for status 2), and leaves no run in x.
refuses() {
    want=$1 expected=$2
    shift 2
    "$tapegrad" "$@" >/dev/null 2>printed </dev/null
    status=$?
    if [ $status != "$want" ]; then
        wrong "status $status, expected $want: tapegrad $*"
    elif ! head -n 1 printed | grep -q "^tapegrad $1: "; then
        wrong "the message does not begin with 'tapegrad $1: '"
    elif ! head -n 1 printed | grep -qF -e "$expected"; then
        wrong "the message does not say '$expected': tapegrad $*"
    elif [ "$(grep -c . printed)" != "$want" ]; then
        wrong "expected $want line(s): tapegrad $*"
    elif [ -e x ]; then
        wrong "it leaves x: tapegrad $*"
        rm -rf x
    else
        pass
    fi
}

# metrics DIR: prints the lines of metrics.jsonl without values that depend on the clock.
metrics() { sed 's/"tokens_per_s": [^,]*, "seconds": [^,]*, //' "$1/metrics.jsonl"; }

# number KEY FILE: prints the numbers of that key, one a line.
number() { sed -n "s/.*\"$1\": \([-+.0-9e]*\).*/\1/p" "$2"; }

# Used before a command with `&` that will be interrupted: a shell makes such commands ignore SIGINT, and nohup SIGHUP.
interruptible="env --default-signal=INT,HUP"

# while_alive PID COMMAND...: waits until the command succeeds, as long as that child lives.
while_alive() {
    child_of_test=$1
    shift
    until "$@"; do
        if ! kill -0 "$child_of_test" 2>/dev/null; then
            "$@"
            return
        fi
        sleep 0.02
    done
}

# less A B, near A B E: fail if one of the words is no number, such as the message of a program that failed.
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 == a && b + 0 == b && a < b) }'; }
near() { awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN { d = a - b; exit !(a + 0 == a && b + 0 == b && d < e && -d < e) }'; }

# same_weights DIR OTHER: checks that the weights have the same bits; the stages of a pipeline have a file each.
same_weights() {
    for weights in "$1"/model*.safetensors; do
        cmp "$weights" "$2/${weights##*/}" || return 1
    done
}

same_run() {
    metrics "$1" >left && metrics "$2" >right && cmp left right &&
        same_weights "$1" "$2" && cmp "$1/config.json" "$2/config.json"
}

# eventually COMMAND...: succeeds if the command succeeds within a minute.
eventually() {
    for _ in $(seq 3000); do
        if "$@"; then return; fi
        sleep 0.02
    done
    return 1
}
until_there() { eventually test -s "$1"; }

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
    exit
}

# same_steps DIR OTHER: checks that the bits are the same; peaks may differ, because a graph has its own memory.
same_steps() {
    for key in loss val_loss grad_norm; do
        number $key "$1/metrics.jsonl" >left
        number $key "$2/metrics.jsonl" >right
        [ -s left ] && cmp left right || return 1
    done
    same_weights "$1" "$2"
}
