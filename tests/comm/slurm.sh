#!/bin/sh
# slurm.sh COMMAND...: runs a command under a Slurm of its own, of one node, which is this machine: munged, slurmctld and
# slurmd run as this user on ports that are free, and end with the command. Skipped if Slurm is not installed.
PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd srun sbatch; do
    command -v $program >/dev/null || {
        echo "there is no $program here: skipped"
        exit 77
    }
done
slurm=$(mktemp -d) || exit 1
daemons=
end() {
    for pid in $daemons; do kill "$pid" 2>/dev/null; done
    # shellcheck disable=SC2086 # process ids
    [ -z "$daemons" ] || wait $daemons 2>/dev/null
    rm -rf "$slurm"
}
trap end EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
fails() {
    echo "$1"
    tail -n 20 "$slurm"/*.log
    exit 1
}

mkdir -m 700 "$slurm/munge" "$slurm/state" "$slurm/spool"
head -c 1024 /dev/urandom >"$slurm/munge/key"
chmod 400 "$slurm/munge/key"
free_ports() {
    python3 -c 'import socket
s = [socket.socket() for i in range(2)]
for each in s: each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in s))'
}
ports=$(free_ports)
name=$(hostname)
cat >"$slurm/slurm.conf" <<EOF
ClusterName=test
SlurmctldHost=$name(127.0.0.1)
SlurmctldPort=${ports% *}
SlurmdPort=${ports#* }
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$slurm/munge/socket
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd.pid
SlurmctldParameters=enable_configless
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=$name NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
EOF
export SLURM_CONF="$slurm/slurm.conf"

munged --foreground --force --key-file="$slurm/munge/key" --socket="$slurm/munge/socket" --pid-file="$slurm/munge/pid" \
    --log-file="$slurm/munge/log" --seed-file="$slurm/munge/seed" >"$slurm/munged.log" 2>&1 &
daemons=$!
slurmctld -D -i >"$slurm/slurmctld.log" 2>&1 &
daemons="$! $daemons"
slurmd -D >"$slurm/slurmd.log" 2>&1 &
daemons="$! $daemons"
tries=0
until [ "$(sinfo -h -o %T 2>/dev/null)" = idle ]; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || fails "Slurm does not start"
    sleep 0.1
done
"$@"
