#!/bin/bash
# run.sh BUILD LIST [WORD]: seeds each fault of LIST in the project's sources, and checks that the named program finds it.
# WORD selects the mutants whose name contains it; TG_TEST_SHARE_cuda_mutants=N runs every N-th one, and TG_TEST_TURN
# chooses which. A mutant is a paragraph of LIST:
#
#   mutant WHAT           its name
#   file PATH             the source or header that is changed
#   unit NAME             the source that is compiled with it, if that is another file
#   run PROGRAM [TEST]    the program of BUILD that must find it; TEST is its argument and the name of Check's test case
#   with NAME=VALUE...    environment of the program
#   found PATTERN         extended regular expression that its output must match; it must also fail
#   - LINE                lines that the file has exactly once (of the first and last line a part is enough) ...
#   + LINE                ... and the lines that replace them
#
# The unchanged program, with the same settings, must pass without a message of the emulator. The changed source is
# compiled with BUILD's own command, less optimized, and linked before everything else, so that it replaces the member
# of the archive or of the shared library.
set -uo pipefail
build=$(realpath "$1") list=$(realpath "$2") word=${3-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$build" || exit 1
passed=0 failed=0
limit=240
share=${TG_TEST_SHARE_cuda_mutants:-1} nth=${TG_TEST_TURN:-0}
# Leaks are off because of fibers that a failed kernel abandons. A shared library has the seeded globals twice.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0

wrong() {
    failed=$((failed + 1))
    echo "wrong: $mutant: $1"
    if [ -s "$work/log" ]; then tail -n "${2-15}" "$work/log" | cut -c1-300 | sed 's/^/    /'; fi
}

# edited OLD NEW FILE: prints the file with OLD replaced by NEW.
edited() {
    awk 'function whole(name, text, line, newline) {
             while ((getline line < name) > 0) {
                 text = text newline line
                 newline = "\n"
             }
             return text
         }
         BEGIN {
             old = whole(ARGV[1]); new = whole(ARGV[2]); text = whole(ARGV[3])
             at = index(text, old)
             if (old == "" || !at || index(substr(text, at + 1), old)) exit 1
             print substr(text, 1, at - 1) new substr(text, at + length(old))
         }' "$@"
}

# command_of END TARGET: prints the command with this end that makes TARGET or a part of it.
command_of() {
    local key=${2//\//_}
    [ -e "$work/$key.commands" ] || ninja -C "$build" -t commands "$2" >"$work/$key.commands" || return 1
    awk -v end="$1" 'substr($0, length($0) - length(end) + 1) == end { print; exit }' "$work/$key.commands"
}

compiled() {
    local source from command
    case $unit in
    *.cu) source=/$(basename "$unit").cpp ;;
    *) source=/$unit ;;
    esac
    command=$(command_of "$source" "$program") || return 1
    [ -n "$command" ] || { echo "nothing compiles $source" && return 1; }
    from=$root/$unit
    [ "$unit" != "$file" ] || from=$work/$file
    [[ $unit != *.cu ]] || { echo "#include \"$from\"" >"$work/unit.cpp" && from=$work/unit.cpp; }
    eval "${command%% -MD *} -O0 -g0 -U_FORTIFY_SOURCE -w -iquote '$work/src' -o '$work/mutated.o' -c '$from'"
}

linked() {
    local command
    command=$(tail -n 1 "$work/${program//\//_}.commands")
    eval "${command/ -o $program / -o \'$work/mutated\' \'$work/mutated.o\' -Wl,-S -Wl,-rpath,\'$build/src\' }"
}

# run_of PROGRAM: runs it with the mutant's test and settings and a time limit; its output and its status are in log.
run_of() {
    (
        cd "$root" || exit 1
        # shellcheck disable=SC2086
        TG_TEST_DEVICE=cuda TG_EMULATOR_STRICT=on env $with ${test:+CK_RUN_CASE=$test} CK_FORK=no \
            timeout -k 5 $limit "$1" $test >"$work/log"
        status=$?
        echo "status $status" >>"$work/log"
        exit $status
    ) 2>"$work/log.err"
    local status=$?
    cat "$work/log.err" >>"$work/log"
    return $status
}

# Runs the unchanged program, which must print no errors; once for all mutants with the same settings.
silent() {
    local key="$program $test $with"
    if ! grep -qsxF -- "$key" "$work/silent"; then
        run_of "$build/$program" || return 1
        ! grep -q 'cuda emulator:\|Checks: 0,' "$work/log" || return 1
        echo "$key" >>"$work/silent"
        cp "$work/log" "$work/said.$(printf %s "$key" | cksum | cut -d' ' -f1)"
    fi
    ! grep -Eq -- "$found" "$work/said.$(printf %s "$key" | cksum | cut -d' ' -f1)"
}

# Writes the changed file below $work. Done for all mutants, also for those that do not run: it takes no time.
applies() {
    : >"$work/log"
    rm -rf "$work/src" "$work/mutated" "$work/mutated.o"
    mkdir -p "$work/$(dirname "$file")"
    edited "$work/old" "$work/new" "$root/$file" >"$work/$file" && return
    wrong "its lines are not in $file exactly once"
    return 1
}

mutant_one() {
    silent || { wrong "without it, $program $test fails or is not silent" && return; }
    : >"$work/log"
    compiled >"$work/log" 2>&1 || { wrong "does not compile" && return; }
    linked >"$work/log" 2>&1 || { wrong "does not link" && return; }
    run_of "$work/mutated"
    case $? in
    0) wrong "not found: $program $test passes" ;;
    124 | 137) wrong "no end within $limit s" ;;
    *) if grep -Eq -- "$found" "$work/log"; then
        passed=$((passed + 1))
        echo "found: $mutant"
    else
        wrong "$program $test fails, but does not say '$found'"
    fi ;;
    esac
}

# Runs the mutant of the paragraph that has ended.
conclude() {
    if [ -n "$mutant" ] && [[ $mutant == *"$word"* ]]; then
        if applies && [ $((nth % share)) = 0 ]; then mutant_one; fi
        nth=$((nth + 1))
    fi
    mutant='' file='' unit='' program='' test='' with='' found=''
    : >"$work/old"
    : >"$work/new"
}

mutant=''
conclude
while IFS= read -r line || [ -n "$line" ]; do
    rest=${line#* }
    case $line in
    '') conclude ;;
    \#*) ;;
    mutant\ *) mutant=$rest ;;
    file\ *) file=$rest unit=$rest ;;
    unit\ *) unit=$rest ;;
    run\ *)
        program=${rest%% *}
        test=${rest#"$program"}
        test=${test# }
        ;;
    with\ *) with=$rest ;;
    found\ *) found=$rest ;;
    -*) printf '%s\n' "${line:2}" >>"$work/old" ;;
    +*) printf '%s\n' "${line:2}" >>"$work/new" ;;
    *)
        echo "wrong: $list: '$line'"
        failed=$((failed + 1))
        ;;
    esac
done <"$list"
conclude
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
