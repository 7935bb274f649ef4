#!/bin/sh
# docs.sh PROGRAM SOURCE: documents and code agree. docs/ops.md is the program's own table, test cases and functions
# that design.md names exist, gradcheck.md explains each cause of a failure, README's programs are those of
# examples/readme, README has at most 120 lines, and links lead to files.
set -eu
program=$(realpath "$1")
cd "$2"
shown=$(mktemp) # the lines of an example
trap 'rm -f "$shown"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
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

causes=$(sed -n '/The class of a failure/,/const char \*cause/p' include/tapegrad/gradcheck.h | grep -o '"[a-z]*"' |
    tr -d '"')
[ "$(echo "$causes" | wc -l)" -ge 20 ] || complain "gradcheck.h does not list the causes where this test reads them"
for cause in $causes; do
    grep -q "^| \`$cause\` |" docs/gradcheck.md || complain "docs/gradcheck.md does not explain the cause $cause"
    grep -rq "\"$cause\"" src/gradcheck || complain "gradcheck.h names the cause $cause, which is not there"
done

# shellcheck source=scripts/lib.sh
for package in $(bash -c 'source scripts/lib.sh; echo "${build_needs[@]}"'); do
    grep -q "^apt install.* $package" docs/dependencies.md || complain "docs/dependencies.md does not install $package"
done

# part FILE: the lines of an example that README has, without the indentation of the first one.
part() {
    sed -n '/^ *\(\/\* begin \*\/\|# begin\)$/,/^ *\(\/\* end \*\/\|# end\)$/p' "$1" | sed '1d;$d' |
        awk 'NR == 1 { match($0, /[^ ]/); n = RSTART } { print substr($0, n) }'
}
for example in examples/readme/*; do
    part "$example" >"$shown"
    awk 'NR == FNR { want = want $0 "\n"; next } { have = have $0 "\n" } END { exit !(length(want) > 99 && index(have, "\n" want "```")) }' \
        "$shown" README.md || complain "README does not have the program of $example"
    [ "$(wc -l <"$shown")" -le 12 ] || complain "README's program of $example has more than 12 lines"
done

[ "$(wc -l <README.md)" -le 120 ] || complain "README.md has more than 120 lines"

for document in README.md CHANGELOG.md docs/*.md; do
    for link in $(sed '/^```/,/^```$/d' "$document" | grep -o '](\([^)]*\))' | sed 's/](\(.*\))/\1/; s/#.*//' | grep -v '^http' || true); do
        [ -e "$(dirname "$document")/$link" ] || complain "$document links to $link, which is not there"
    done
done
exit $bad
