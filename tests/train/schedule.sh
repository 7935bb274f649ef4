#!/bin/sh
# schedule.sh PROGRAM TEXT: tapegrad schedule prints the costs of a plan, reads lists from files, refuses wrong ones with
# the items that are wrong, and writes a picture that is whole.
# shellcheck source=tests/train/check.sh disable=SC2154
. "$(dirname "$0")/check.sh"

# row STAGE: prints the costs of a stage: idle, bubble, peak, waiting, sends, receives.
row() { awk -v s="$1" '$1 == s && NF == 7 { print $2, $3, $4, $5, $6, $7 }' printed; }

runs schedule --kind zb-h1 --stages 4 --micros 8
holds "ZB-H1 takes 27" grep -qx "makespan 27, ideal 24, bubble 0.1111" printed
holds "its first stage keeps 4 micro-batches" test "$(row 0)" = "3 0.1111 4 1 8 8"
holds "and so does its last" test "$(row 3)" = "3 0.1111 4 4 8 8"
runs schedule --kind zb-h1 --stages 4 --micros 8 --backward 1.2 --weight 0.9
holds "its idle time is 3 (F + B - W)" test "$(row 2)" = "3.9 0.1359 4 3 16 16"
runs schedule --kind interleaved --stages 8 --micros 16
holds "interleaved stages have 2 chunks" grep -qx "makespan 58.5, ideal 48, bubble 0.1795" printed
holds "and a stage between sends each result" test "$(row 1)" = "10.5 0.1795 21 0 64 64"
runs schedule --kind forward --stages 2 --micros 3 --hop 0.5
holds "a message takes its time" grep -qx "makespan 4.5, ideal 3, bubble 0.3333" printed
runs schedule --stages 2 --micros 4 --parts 3,4.5
holds "larger parts take longer" grep -qx "makespan 63, ideal 54, bubble 0.2857" printed
holds "and leave the smaller one idle" test "$(row 0)" = "27 0.4286 2 0 4 4"
runs schedule --kind interleaved --stages 2 --chunks 2 --micros 2 --parts 1,1,1,3
holds "parts are counted chunk by chunk" grep -q "^stage 1 .*F1.1 *- *-" printed
refuses 1 "--parts is '1,x', expected 2 numbers from 0" schedule --stages 2 --parts 1,x
refuses 1 "--parts is '1', expected 2 numbers" schedule --stages 2 --parts 1
refuses 1 "--parts is '1,', expected 2 numbers" schedule --stages 2 --parts 1,
refuses 1 "--parts has more than 2 numbers" schedule --stages 2 --parts 1,2,3
runs schedule --stages 1 --micros 2 --weight 0
holds "W may take no time" grep -qx "makespan 4, ideal 4, bubble 0.0000" printed

refuses 1 "cannot open 'y'" schedule --file y
mkfifo pipe
refuses 1 "'pipe' is a device, pipe or socket" schedule --svg pipe
refuses 1 "cannot create" schedule --svg none/z.svg

# refuses_file TEXT CONTENT: checks that a file with this content, in which \n ends a line, is refused with TEXT.
refuses_file() {
    printf %b "$2" >lists
    refuses 1 "$1" schedule --file lists
}
refuses_file "'lists' has no items" '# nothing\n\n'
refuses_file "'lists' has no items" 'stage 0 .. --\n...\n'
refuses_file "lists:2: 'G1' is not an item; expected F, B or W and a micro-batch" 'F0 B0\nF0 G1\n'
refuses_file "lists:1: 'F0.' is not an item" 'F0. B0\n'
refuses_file "lists:1: 'F0.256' is not an item" 'F0.256\n'
refuses_file "lists:1: 'F1234567890' is not an item" 'F1234567890\n'
refuses_file "lists:1: 'Fx\\x1b' is not an item" 'Fx\0033\n'
refuses_file "lists:1: 'F\\xed\\xa0\\x80' is not an item" 'F\0355\0240\0200\n'
refuses_file "lists:2: expected 'stage 1', because stages are in order" 'stage 0 F0 B0\nstage 2 F0 B0\n'
refuses_file "'lists' is not a text: it has a zero byte" 'F0 \0000 B0\n'
refuses_file "'lists' has 4097 stages, expected at most 4096" "$(yes 'F0 B0' | head -n 4097)"
refuses_file "the list of stage 1 has no B0" 'F0 B0\nF0\n'
refuses_file "items wait for each other: B0 (item 1 of stage 0) waits for B0 (item 2 of stage 1)" 'F0 B0 F1 B1\nF0 F1 B0 B1\n'

printf 'F0 F1\nF0 F1\n' >forwards
runs schedule --file forwards --forward 2 --hop 1
holds "lists of forwards take their times" grep -qx "makespan 7, ideal 4, bubble 0.4286" printed
refuses 1 "--weight is the time of backwards, and 'forwards' has none" schedule --file forwards --weight 2
printf 'F0 B0\n' >alone
refuses 1 "--hop is the time of messages between stages, and 'alone' has none" schedule --file alone --hop 1

for kind in gpipe 1f1b interleaved zb-h1 forward; do
    runs schedule --kind $kind --svg z.svg
    holds "the picture of $kind is whole" test "$(head -c 4 z.svg)$(tail -n 1 z.svg)" = "<svg</svg>"
    grep '^stage [0-9]' printed >rows
    sed 1d printed >by_kind
    runs schedule --file rows
    sed 1d printed >by_file
    holds "the rows of $kind can be read" cmp by_kind by_file
done
holds "no other file is left" test "$(echo z.svg*)" = z.svg
finish
