#!/bin/sh
# orders.sh N PROGRAM...: runs a program N times, in N of the 128 pairs of the emulator's 8 thread orders and 16 stream
# schedules. Sixteen runs have every schedule once and every order twice; 128 have all pairs. TG_TEST_TURN chooses the
# pairs; .ci/run derives it from the time of the commit. Device memory is hidden from the host in the first order only:
# accesses of the host do not depend on the order of threads, and hiding takes half of the time. The last line counts
# the runs that passed.
n=$1
shift
turn=$((${TG_TEST_TURN:-0} % 128))
passed=0 failed=0 k=0
printed=$(mktemp)
trap 'rm -f "$printed"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
while [ $k -lt "$n" ]; do
    pair=$(((turn * n + k) % 128))
    k=$((k + 1))
    schedule=$((pair % 16))
    order=$(((schedule + pair / 16) % 8))
    case $schedule in
    0) schedule=eager ;;
    1) schedule=lazy ;;
    *) schedule=$((schedule - 1)) ;;
    esac
    guard=off
    [ $order != 0 ] || guard=${TG_EMULATOR_GUARD:-auto}
    if TG_EMULATOR_GUARD=$guard TG_EMULATOR_ORDER=$order TG_EMULATOR_SCHEDULE=$schedule "$@" >"$printed" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "wrong: status $? with TG_EMULATOR_ORDER=$order TG_EMULATOR_SCHEDULE=$schedule"
        tail -n 20 "$printed"
    fi
done
echo "TG_TEST_TURN=$turn, the last: order $order, schedule $schedule"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
