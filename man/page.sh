#!/bin/sh
# page.sh PROGRAM COMMAND PART >PAGE: prints the manual page of a subcommand, made of `tapegrad COMMAND --help` and of
# the sections in the file PART, which may be empty. COMMAND tapegrad: prints that of the program.
set -eu
program=$1 command=$2 part=$3
version=$("$program" --version | cut -d ' ' -f 2)

# Escapes a line of text for troff: no line is a request, and hyphens do not break.
escape='function escape(s) {
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    gsub(/\047/, "\\(aq", s)
    return s ~ /^\./ ? "\\&" s : s
}'

summary=$("$program" --help | awk -v c="$command" '$1 == c && !seen++ { sub(/^ *[a-z]+ +/, ""); print }')
if [ "$command" = tapegrad ]; then
    printf '.TH TAPEGRAD 1 "" "tapegrad %s" "Tapegrad"\n' "$version"
    printf '.SH NAME\ntapegrad \\- train and run GPT language models\n.SH SYNOPSIS\n.B tapegrad\nCOMMAND [OPTION...]\n'
    "$program" --help | awk "$escape"'
        NR == 1 { print ".SH COMMANDS" }
        /^  [a-z]/ { name = $1; sub(/^ *[a-z]+ +/, ""); printf ".TP\n.BR tapegrad\\-%s (1)\n%s\n", name, escape($0) }'
else
    title=$(printf %s "$command" | tr '[:lower:]' '[:upper:]')
    printf '.TH TAPEGRAD\\-%s 1 "" "tapegrad %s" "Tapegrad"\n' "$title" "$version"
    printf '.SH NAME\ntapegrad\\-%s \\- %s\n' "$command" "$summary"
    "$program" "$command" --help | awk -v command="$command" "$escape"'
        NR == 1 {
            sub(/^usage: tapegrad [a-z]+ ?/, "")
            printf ".SH SYNOPSIS\n.B tapegrad %s\n%s\n.SH DESCRIPTION\n", command, escape($0)
            next
        }
        /^  --/ {
            if (!options++) print ".SH OPTIONS"
            name = $1
            value = ""
            sub(/^ *[^ ]+ ?/, "")
            if (name !~ /\[no-\]/ && name != "--help") { value = $1; sub(/^ *[^ ]+ */, "") }
            sub(/^ +/, "")
            printf ".TP\n.B %s%s\n", escape(name), value == "" ? "" : " \\fI" escape(value) "\\fR"
        }
        NF { sub(/^ +/, ""); print escape($0) }'
fi
cat "$part"
