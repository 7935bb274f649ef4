#!/bin/sh
# diff.sh PROGRAM TEXT: what `tapegrad train --record` writes, and how `tapegrad diff` compares two recorded steps.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
tr '\n' ' ' <"$text" >plain
run="--data plain $tiny --steps 3 --checkpoint-every 0"

# records NAME OPTION...: makes a run that records its second step.
records() {
    name=$1
    shift
    rm -rf "$name"
    runs train $run --out "$name" --record "$name.rec" --record-step 2 "$@"
}

# ends STATUS TEXT COMMAND...: checks that the program ends with STATUS and prints TEXT.
ends() {
    want=$1 expected=$2
    shift 2
    "$tapegrad" "$@" >printed 2>&1 </dev/null
    status=$?
    if [ $status != "$want" ]; then
        wrong "status $status, expected $want: tapegrad $*"
    elif ! grep -qF -e "$expected" printed; then
        wrong "it does not say '$expected': tapegrad $*"
    else
        pass
    fi
}

# Equal runs.
records a
runs train $run --out plainly
holds "recording does not change the model" cmp a/model.safetensors plainly/model.safetensors
records b --threads 2
holds "each run writes one file" test "$(echo *.rec*)" = "a.rec b.rec"
ends 0 "the runs are equal: " diff a.rec b.rec
ends 0 "the runs are equal: " diff a.rec a.rec --all
ends 0 '"differing": 0,' diff a.rec b.rec --json

"$tapegrad" diff a.rec b.rec >/dev/full 2>printed
holds "the status is 2 if equality cannot be printed" test $? = 2
holds "the reason is printed" grep -q "^tapegrad diff: cannot write to standard output" printed

# Different runs.
records c --lr 1.001e-3
ends 1 "the first that differs is op 1 of " diff a.rec c.rec
holds "the first difference is named" grep -q "^  input 0, transformer.wte.weight f32\[256, 16\], differs already" printed
holds "the size of the difference is printed" grep -Eq '^  result 0, f32\[16, 4, 16\]: .* elements differ, the most by [0-9]+ ulp, at \[' printed
holds "the number of different ops is printed" grep -Eq '^[0-9]+ of the [0-9]+ ops differ, the most by [0-9]+ ulp, in op [0-9]+$' printed
ends 0 "the runs are equal within " diff a.rec c.rec --ulp 9000000000000000000
holds "tensors that are not equal are counted" grep -Eq '^[0-9]+ tensors differ in their bytes, by no more than --ulp' printed
ends 1 "gradient of input 0, transformer.wte.weight f32[256, 16]" diff a.rec c.rec --all
holds "forward ops come before backward ops" sh -c 'sed -n "/the backward of/,\$p" printed | grep -c "^op" >n && [ "$(cat n)" -gt 9 ] &&
    ! sed -n "/the backward of/,\$p" printed | grep "^op" | grep -v "the backward of"'
ends 1 '"pass": "backward",' diff a.rec c.rec --all --json
records d --record-values 0
ends 2 "with other elements recorded" diff a.rec d.rec
records e --record-values 0 --lr 1.001e-3
ends 1 "of 4096 elements differ, the most by " diff d.rec e.rec --all
records few --record-values 1 --lr 1.001e-3
records one --record-values 1
ends 1 " of 1 elements differ of those that are recorded" diff few.rec one.rec --all
records half --precision fp16 --loss-scale 8 --record-step 1
records halves --precision fp16 --loss-scale 16 --record-step 1
ends 1 "the first that differs is op " diff half.rec halves.rec
holds "the scaled loss is the first difference" grep -q "^the first that differs is op [0-9]* of [0-9]*, mul " printed
holds "its inputs are compared" grep -q "^  input 1, f32\[\], differs already" printed

# Runs of different programs.
records deep --layers 2
ends 2 "the runs are of different programs: op " diff a.rec deep.rec
records again --recompute full
ends 2 "the runs are of different programs: " diff a.rec again.rec
records wide --hidden 32
ends 2 "input 0 is transformer.wte.weight f32[256, 16], and transformer.wte.weight f32[256, 32]" diff a.rec wide.rec
ends 2 "the runs are of different programs" diff a.rec half.rec
ends 0 "the runs are equal" diff again.rec again.rec

# Each rank writes a file.
rm -f ./*.rec.*
records ranks --ranks 2
holds "each rank writes a file" test "$(echo ranks.rec*)" = "ranks.rec.0 ranks.rec.1"
ends 0 "the runs are equal" diff ranks.rec.0 ranks.rec.0
ends 1 "differs" diff ranks.rec.0 ranks.rec.1
records parts --ranks 2 --tp 2 --sp
records others --ranks 2 --tp 2 --sp --threads 2
ends 0 "the runs are equal" diff parts.rec.0 others.rec.0
ends 0 "the runs are equal" diff parts.rec.1 others.rec.1

# Two runs whose records have one name: the record of the run that ends last remains.
"$tapegrad" train $run --out second --record same.rec --steps 300 --record-step 290 >printed 2>&1 &
second=$!
holds "the run has begun its record" while_alive $second sh -c 'ls same.rec.part* >/dev/null 2>&1'
runs train $run --out sister --record same.rec
wait $second
holds "both runs succeed" test $? = 0
ends 0 "the runs are equal" diff same.rec same.rec
holds "no other file remains" test "$(echo same.rec*)" = same.rec

# Files that are not records.
head -c 4000 a.rec >torn.rec
ends 2 "its end is missing" diff torn.rec a.rec
sed '$d' a.rec >endless.rec
ends 2 "its end is missing" diff a.rec endless.rec
sed 's/"hash":"[0-7]/"hash":"@/; s/"hash":"[89a-f]/"hash":"0/; s/@/8/' a.rec >changed.rec
ends 2 "it was changed or damaged" diff a.rec changed.rec
sed '3d' a.rec >shorter.rec
ends 2 "it was changed or damaged" diff a.rec shorter.rec
: >empty.rec
ends 2 "its first line is not the header of a record" diff empty.rec a.rec
ends 2 "its first line is not the header of a record" diff a.rec plain
ends 2 "its first line is not the header of a record" diff a.rec a/model.safetensors
sed '1s/"tapegrad_record":1/"tapegrad_record":9/' a.rec >later.rec
ends 2 "has format 9, expected 1" diff a.rec later.rec
ends 2 "cannot open 'none': No such file" diff none a.rec
ends 2 "'.' is a directory, expected a regular file" diff . a.rec
mkfifo pipe
ends 2 "'pipe' is a device, pipe or socket, expected a regular file" diff pipe a.rec
piped() {
    cat a.rec | "$tapegrad" diff /dev/stdin a.rec >printed 2>&1
    [ $? = 2 ] && grep -q "'/dev/stdin' is a device, pipe or socket" printed
}
holds "a pipe is refused" piped
ends 2 "expected two FILEs" diff a.rec
ends 2 "'c.rec' is one word too many; expected FILE FILE" diff a.rec b.rec c.rec

# Runs that record nothing.
refuses 2 "--capture replays a step without them; leave one out" train $run --out x --record y --capture
refuses 2 "are for --record FILE" train $run --out x --record-step 2
refuses 2 "--record-step 4: the run ends at --steps 3" train $run --out x --record y --record-step 4
refuses 1 "cannot write 'none/y': No such file" train $run --out x --record none/y
ln -s /dev/null nowhere
for file in pipe nowhere; do
    refuses 1 "cannot write '$file': it is a device, pipe or socket" train $run --out x --record $file
done
holds "the pipe remains" test -p pipe
holds "the link remains" test -h nowhere
refuses 1 "made a" train $run --out x --record y --record-step 3 --find-nan --precision fp16 --loss-scale 1e12
holds "no file of the run remains" test "$(echo y*)" = "y*"
runs train $run --out resumed --checkpoint-every 2 --record first.rec
"$tapegrad" train --resume --out resumed --record y --record-step 2 >printed 2>&1
holds "a step before the resumed one is refused" grep -q "the run goes on after step 3" printed
runs train --resume --out resumed --steps 4 --record fourth.rec
ends 1 "ops differ" diff first.rec fourth.rec
finish
