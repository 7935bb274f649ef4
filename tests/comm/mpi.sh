#!/bin/sh
# mpi.sh RANKS PROGRAM...: runs a program under mpirun, on one node without a network, as root too. Only rank 0
# prints. Skipped if there is no mpirun.
command -v mpirun >/dev/null || {
    echo "there is no mpirun here: skipped"
    exit 77
}
# shellcheck source=tests/comm/mpi_environment.sh
. "$(dirname "$0")/mpi_environment.sh"
ranks=$1
shift
# Runs at the same time would remove each other's session directory.
OMPI_MCA_orte_tmpdir_base=$(mktemp -d) || exit 1
export OMPI_MCA_orte_tmpdir_base
trap 'rm -rf "$OMPI_MCA_orte_tmpdir_base"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
mpirun -n "$ranks" "$@"
