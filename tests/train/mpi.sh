#!/bin/sh
# mpi.sh PROGRAM TEXT TP_MLP: MPI ranks, on one node and as if each had a node of its own, train to the bits of thread
# ranks, and write their record when one of them is lost. TP_MLP is examples/tp_mlp.c.
command -v mpirun >/dev/null || {
    echo "there is no mpirun here: skipped"
    exit 77
}
launch=$(realpath "$(dirname "$0")/../comm/mpi.sh") mlp=$(realpath "$3")
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--data $text --layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 8 --threads 1 --dropout 0.1"
run="$run --val-every 10 --checkpoint-every 10 --steps 20"

# over RANKS NODES PROGRAM...: runs a program under mpirun; its output is in `printed`.
over() {
    ranks=$1
    export TG_MPI_NODES="$2"
    shift 2
    "$launch" "$ranks" "$@" >printed 2>&1 </dev/null
}

# Losses, model, and every byte of the checkpoints except the options.
options() { find "$1/checkpoints" -name state.json | sort | xargs sed '/"out":/d; /"ranks":/d; /"xxh64":/d'; }
same_files() {
    options "$1" >left && options "$2" >right && cmp left right &&
        same_run "$1" "$2" && diff -r -x state.json "$1/checkpoints" "$2/checkpoints"
}

for ranks in 2 4; do
    for split in "--pp 2 --schedule zb-h1 --micro-batches 4" "--tp 2" "--tp $ranks --sp"; do
        same=same_files
        case $split in *--pp*) same=same_steps ;; esac # messages on their way count in the peaks
        rm -rf threads
        runs train --out threads $run --ranks $ranks $split
        for nodes in 1 2 $ranks; do
            if [ $nodes = 2 ] && [ $ranks = 2 ]; then continue; fi
            rm -rf mpi
            holds "$ranks ranks of MPI on $nodes nodes train with $split" \
                over $ranks $nodes "$tapegrad" train --out mpi $run $split
            holds "$ranks ranks of MPI on $nodes nodes give the bits of threads with $split" $same threads mpi
            meet=mpi
            if [ $nodes = 1 ]; then meet=shm; fi
            holds "they meet by $meet" grep -q "^$ranks ranks ($meet)" printed
        done
    done
done

holds "they resume from the checkpoint" over 2 2 "$tapegrad" train --resume --comm mpi --out mpi --steps 25 --tp 2
holds "stages resume from it" over 2 2 "$tapegrad" train --resume --comm mpi --out mpi --steps 27 --tp 1 --pp 2
holds "the metrics have all steps" test "$(wc -l <mpi/metrics.jsonl)" = 27
over 2 2 "$tapegrad" train --out x $run --ranks 2
holds "--ranks is refused under a launcher" grep -q -e "--ranks is for ranks that are threads" printed
over 2 2 "$tapegrad" train --out x $run --tp 3
holds "sizes that are not divisible are refused" grep -q "tp" printed
refuses 2 "needs mpirun" train --data "$text" --out x --comm mpi

# One rank is killed: mpirun ends the others, which print their record of calls.
waits_in_tp='^  [0-9]*  tp#[0-9]* [a-z_]* .*  \(started\|failed in [0-9.]* us\)  '
for nodes in 1 2; do
    rm -rf lost
    TG_MPI_NODES=$nodes "$launch" 2 "$tapegrad" train --out lost $run --tp 2 --steps 1000000 --checkpoint-every 0 \
        >printed 2>&1 </dev/null &
    launcher=$!
    until_there lost/metrics.jsonl
    for pid in $(pgrep -P "$(pgrep -P $launcher mpirun)"); do
        tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=1 && victim=$pid
    done
    kill -KILL "$victim"
    wait $launcher
    holds "the job fails, on $nodes nodes" test $? != 0
    holds "a survivor leaves its record, on $nodes nodes" grep -q "^rank 0 of 2: .*, calls [1-9]" printed
    holds "and its last call, on $nodes nodes" grep -q "$waits_in_tp" printed
done

# The example.
for ranks in 2 4; do
    "$mlp" $ranks >expected
    holds "tp_mlp prints four losses" test "$(wc -l <expected)" = 4
    for nodes in 1 $ranks; do
        holds "tp_mlp on $ranks ranks of MPI, $nodes nodes" over $ranks $nodes "$mlp"
        holds "prints what threads print" cmp expected printed
    done
done
over 2 2 "$mlp" wrong
holds "a wrong program fails" test $? = 1
holds "the error is printed" grep -q "on axis tp its inputs are P, I" printed
finish
