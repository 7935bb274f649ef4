#!/bin/sh
# launchers.sh PROGRAM TEXT CLUSTER.md LAUNCHER...: the job scripts of docs/cluster.md, each run as it stands there, with the
# options of a small run after its own. Ranks that several launchers have started give the bits of threads. LAUNCHER is run,
# mpirun, torchrun or slurm-cpu; the last two also with -cuda, for ranks that have a GPU each. Without the last two's
# programs they are skipped.
document=$(realpath "$3") here=$(realpath "$(dirname "$0")")
# shellcheck source=tests/train/check.sh disable=SC2086
. "$here/check.sh"
shift 3
venvs=${TG_VENVS:-${XDG_CACHE_HOME:-$HOME/.cache}/tapegrad}
PATH=$(dirname "$tapegrad"):$venvs/venv-python/bin:$PATH
export PATH
run="--layers 2 --hidden 32 --heads 4 --seq-len 16 --batch 8 --threads 1 --steps 6 --checkpoint-every 0"
cp "$text" book.txt
unset SLURM_CONF

# script NAME: writes the job script that the document calls NAME.
script() {
    awk -v name="$1" '$0 == "```sh " name { on = 1; next } /^```/ { on = 0 } on' "$document" >"$1"
    chmod +x "$1"
    holds "the document has $1" test -s "$1"
}

# trains LAUNCHER RANKS COMMAND...: the command trains, with the bits of so many threads on the same device.
trains() {
    launcher=$1 ranks=$2
    shift 2
    rm -rf run
    "$@" >printed 2>&1 </dev/null
    holds "$launcher trains" test $? = 0
    holds "$launcher says by what" grep -q "^rank 0 of $ranks, .*started by " printed
    holds "$launcher gives the bits of threads" same_run "$device-$ranks" run
}

for launcher in "$@"; do
    device=cpu
    case $launcher in *-cuda) device=cuda run="$run --device cuda" ;; esac
    for ranks in 2 4; do
        [ -e $device-$ranks ] || [ $device-$ranks = cuda-4 ] ||
            runs train --data book.txt --out $device-$ranks $run --tp 2 --ranks $ranks
    done
    name=$launcher
    case $launcher in
    torchrun-cuda) name=torchrun ;;
    slurm-cuda) name=slurm-cpu ;;
    esac
    script "$name.sh"
    case $launcher in
    run) trains run 4 ./run.sh $run ;;
    mpirun)
        command -v mpirun >/dev/null || {
            echo "there is no mpirun here: its script is skipped"
            continue
        }
        # shellcheck source=tests/comm/mpi_environment.sh
        . "$here/../comm/mpi_environment.sh"
        trains mpirun 4 ./mpirun.sh $run
        ;;
    torchrun | torchrun-cuda)
        command -v torchrun >/dev/null || {
            echo "there is no torchrun here: skipped"
            exit 77
        }
        trains torchrun 2 ./torchrun.sh $run
        if [ $device = cuda ]; then
            holds "ranks with a GPU each use NCCL" grep -q "^2 ranks (nccl)" printed
            continue
        fi
        holds "ranks of one node share memory" grep -q "^2 ranks (shm)" printed
        TG_MPI_NODES=2 trains "torchrun on two nodes" 2 ./torchrun.sh $run
        holds "ranks of two nodes use TCP" grep -q "^2 ranks (tcp)" printed
        # The variables that torchrun sets on two nodes of a rank each.
        for rank in 0 1; do
            RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 \
                MASTER_PORT=$((20000 + $$ % 9000)) "$tapegrad" train --data book.txt --out nodes $tiny --steps 2 \
                >nodes-$rank 2>&1 &
        done
        wait
        holds "a command for two nodes says so" \
            grep -q "^train further: torchrun --nnodes 2 --nproc_per_node 1 --no_python " nodes-0
        ;;
    slurm-cpu | slurm-cuda)
        # sbatch: the job's output is in a file of its own.
        cat >submit.sh <<'EOF'
#!/bin/sh
rm -f slurm-*.out
sbatch --wait ./slurm-cpu.sh "$@"
status=$?
cat slurm-*.out
exit $status
EOF
        chmod +x submit.sh
        "$here/../comm/slurm.sh" true >printed 2>&1
        [ $? != 77 ] || {
            cat printed # what is missing
            continue
        }
        trains Slurm 2 "$here/../comm/slurm.sh" ./submit.sh $run
        if [ $device = cuda ]; then
            holds "tasks with a GPU each use NCCL" grep -q "^2 ranks (nccl)" printed
            continue
        fi
        TG_MPI_NODES=2 trains "Slurm with two nodes" 2 "$here/../comm/slurm.sh" ./submit.sh $run
        holds "ranks of two nodes use TCP" grep -q "^2 ranks (tcp)" printed
        ;;
    esac
done
finish
