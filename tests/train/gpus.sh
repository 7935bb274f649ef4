#!/bin/sh
# gpus.sh PROGRAM TEXT [mpi]: two ranks that have a GPU each and use NCCL train to the same bits, as threads, as
# processes of `tapegrad run` and, with the third argument, as MPI processes.
launch=$(realpath "$(dirname "$0")/../comm/mpi.sh")
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="--data $text --layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 4 --threads 1 --dropout 0.1 --device cuda"
run="$run --val-every 5 --checkpoint-every 5 --steps 10"

for split in "--tp 2 --sp" "--tp 1" "--pp 2 --micro-batches 4 --schedule zb-h1"; do
    same=same_run
    case $split in *--pp*) same=same_steps ;; esac # messages on their way count in the peaks
    runs train --out threads $run --ranks 2 $split
    holds "threads meet through NCCL with $split" grep -q "^2 ranks (nccl)" printed
    runs run -n 2 -- "$tapegrad" train --out processes $run $split
    holds "processes do with $split" grep -q "^2 ranks (nccl)" printed
    holds "and give the bits of threads" $same threads processes
    if [ $# = 3 ] && command -v mpirun >/dev/null; then
        "$launch" 2 "$tapegrad" train --out mpi $run $split >printed 2>&1 </dev/null
        holds "ranks of MPI do with $split" grep -q "^2 ranks (nccl)" printed
        holds "and give the bits of threads" $same threads mpi
        "$launch" 2 "$tapegrad" train --resume --out mpi --steps 12 --device cuda $split >printed 2>&1 </dev/null
        holds "they go on" test "$(wc -l <mpi/metrics.jsonl)" = 12
    fi
    rm -rf threads processes mpi
done
finish
