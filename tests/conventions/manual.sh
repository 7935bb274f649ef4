#!/bin/sh
# manual.sh PROGRAM COMMAND PAGE: the manual page has every option of the command's --help, or every command of the
# program, and a formatter accepts it without a warning.
set -eu
program=$1 command=$2 page=$3
plain=$(sed 's/\\-/-/g; s/\\fI//g; s/\\fR//g' "$page")
bad=0
complain() {
    echo "$*"
    bad=1
}

# has NAME: whether the page has the name as a whole: --lr is no part of --lr-of.
has() {
    printf '%s\n' "$plain" | awk -v name="$1" '
        {
            for (s = $0; (i = index(s, name)) > 0; s = substr(s, i + 1))
                if (substr(s, i + length(name)) !~ /^[-a-z0-9]/) found = 1
        }
        END { exit !found }'
}

if [ "$command" = tapegrad ]; then
    names=$("$program" --help | awk '/^  [a-z]/ { print "tapegrad-" $1 " (1)" }')
    for name in $("$program" --help | awk '/^  [a-z]/ { print $1 }'); do
        [ -e "$(dirname "$page")/tapegrad-$name.1" ] || complain "tapegrad $name has no page"
    done
else
    names=$("$program" "$command" --help | awk '/^  --/ { print $1 }')
    printf '%s\n' "$plain" | grep -q "^tapegrad-$command - ..*" || complain "$page does not say what $command is"
fi
printf '%s\n' "$names" | grep . | while read -r name; do # a command without options has no names
    has "$name" || complain "$page does not have $name"
    [ $bad = 0 ]
done || bad=1
if command -v groff >/dev/null; then
    said=$(groff -man -Tascii -ww -z "$page" 2>&1) || bad=1
    [ -z "$said" ] || complain "$said"
fi
exit $bad
