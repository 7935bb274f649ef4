#!/bin/bash
# gpu_check.sh SOURCE BUILD: runs a small part of scripts/gpu-check on the emulator: a step and the benches. Then with
# programs that fail, hang or do not answer: each part has its verdict, and the other parts run.
# shellcheck disable=SC2016 # $programs is for gpu-check
set -u
cd "$1" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

# holds WHAT COMMAND...: checks that the command succeeds.
holds() {
    local what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "wrong: $what"
        cat "$work"/out/*.md "$work/said" 2>/dev/null
    fi
}

# check DIR ARGUMENT...: runs scripts/gpu-check; the output file is $result.
check() {
    local programs=$1
    shift
    rm -rf "$work/out"
    scripts/gpu-check --rehearse --programs "$programs" --out "$work/out" "$@" >"$work/said" 2>&1
    status=$?
    result=$(echo "$work"/out/*.md)
}
says() { grep -qE -- "$1" "$result"; }

check "$2" --only 'a step|bench'
holds 'the check passes' [ $status = 0 ]
holds 'the step passes' says '^\| a step \| passed'
holds 'the benches pass' says '^\| bench \| passed'
for row in 'copy' 'product of' 'layer norm, backward' 'softmax and loss' 'AdamW' 'T 32, backward' 'tokens/s' 'peak' 'host, us a step, eager' \
    'host, us a step, captured'; do
    holds "the benches have the row $row" says "^\\| ${row}[^|]*\\| [0-9]"
done
holds 'programs that were there are not said to be built here' says '^programs  built before this check$'
holds 'nor to be of the commit here' says '^commit    unknown$'
holds 'nothing is judged' [ -z "$(grep -E 'PASS|not met' "$result")" ]

# A build directory of programs that do not work.
mkdir -p "$work/b/tools" "$work/b/bench" "$work/b/tests"
printf '#!/bin/sh\necho the last words\nexit 3\n' >"$work/b/tools/tapegrad"
printf '#!/bin/sh\nread x\n' >"$work/b/bench/tapegrad-bench"
printf '#!/bin/sh\necho 7 passed, 0 failed\n' >"$work/b/tests/good"
printf '#!/bin/sh\nwhile :; do sleep 1; done\n' >"$work/b/tests/hangs"
chmod +x "$work"/b/*/*
printf 'good\tenv "$programs"/tests/good\nhangs\tenv "$programs"/tests/hangs\n' >"$work/b/gpu-tests"
echo abc1234 >"$work/b/commit"
check "$work/b" --limit 30
holds 'programs with a commit are of that commit' says '^commit    abc1234$'
holds 'the check fails with its parts' [ $status = 1 ]
holds 'a part that fails has its status' says '^\| a step \| FAILED: status 3'
holds 'its output is shown' says '^the last words$'
holds 'the next part runs' says '^\| good \| passed .* 7 passed, 0 failed'
holds 'a part that hangs is ended' says '^\| hangs \| FAILED: time ran out'
holds 'a part without time left is reported' says '^\| bench \| (not run: time ran out|FAILED)'
holds 'verdicts are printed too' grep -q '^| hangs | FAILED' "$work/said"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
