#!/bin/sh
# docs.sh PROGRAM SOURCE: documents and code agree. docs/ops.md is the program's own table, test cases and functions
# that design.md names exist, README's program is examples/mlp.c, README has at most 120 lines, and links lead to
# files.
set -eu
program=$(realpath "$1")
cd "$2"
bad=0
complain() {
    echo "$*"
    bad=1
}

"$program" ops --markdown | cmp -s - docs/ops.md || complain "docs/ops.md is old: tapegrad ops --markdown >docs/ops.md"

for name in $(grep -o '`[a-z0-9]*_[a-z0-9_]*_[a-z0-9_]*`' docs/design.md | tr -d '\`' | sort -u); do
    case $name in
    tg_*) where='include src' ;;
    *) where='tests' ;;
    esac
    # shellcheck disable=SC2086 # two directories
    grep -rqw "$name" $where || complain "docs/design.md names $name, which is not there"
done

sed -n '/^```c$/,/^```$/p' README.md | sed '1d' | sed '/^```$/,$d' >"${TMPDIR:-/tmp}/readme.$$"
grep -v '^/\* The README' examples/mlp.c | cmp -s - "${TMPDIR:-/tmp}/readme.$$" || complain "README's program is not examples/mlp.c"
rm -f "${TMPDIR:-/tmp}/readme.$$"

[ "$(wc -l <README.md)" -le 120 ] || complain "README.md has more than 120 lines"

for document in README.md CHANGELOG.md docs/*.md; do
    for link in $(sed '/^```/,/^```$/d' "$document" | grep -o '](\([^)#]*\))' | sed 's/](\(.*\))/\1/' | grep -v '^http' || true); do
        [ -e "$(dirname "$document")/$link" ] || complain "$document links to $link, which is not there"
    done
done
exit $bad
