#!/bin/sh
# awkward.sh PROGRAM TEXT: data of awkward names, padding and directories, and programs that a signal ends while they read.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
run="$tiny --steps 4 --val-every 0 --checkpoint-every 0"
same() { cmp -s "$1/model.safetensors" "$2/model.safetensors"; }
head -c 6000 "$text" >a.txt
runs train --data a.txt --out whole $run

# ---- Names of datasets ----
echo "notes about a.txt" >a.txt.idx
runs train --data a.txt --out beside $run
holds "a text with a file of its name and .idx is a text" same whole beside
mkdir named named/folder
cp a.txt named/folder/text
echo "notes about the folder" >named/folder.idx
runs train --data named/folder --out in_folder $run
holds "a folder with a file of its name and .idx is a folder" same whole in_folder
if "$tapegrad" tokenizer train --data a.txt --to words --vocab 300 >printed 2>&1; then
    runs tokenize --tokenizer words --data a.txt --to ids.bin
    for name in ids ids.bin ids.idx; do
        rm -rf as_ids
        runs train --data $name --vocab 300 --out as_ids $run
        holds "'$name' names a dataset" grep -q "vocabulary 300" printed
    done
    cp ids.bin more.bin
    cp ids.idx more.idx
    runs train --data ids.idx more --vocab 300 --out of_two $run
    holds "the bytes of a dataset are those of its tokens" \
        grep -qF "2 files, $(wc -c <ids.bin | awk '{ printf "%.1f", 2 * $1 / 1000 }') kB" printed
    mkdir alone
    cp ids.idx alone/ids.idx
    refuses 1 "cannot open 'alone/ids.bin'" train --data alone/ids.idx --vocab 300 --out x $run
fi
cp a.txt.idx plain.idx
refuses 1 "--seq-len + 1 = 17" train --data plain.idx --out x $tiny --steps 4 --val-fraction 0.1

# ---- A byte order mark before JSONL ----
printf '{"text": "one and two"}\n{"text": "three and four"}\n' >plain.jsonl
(printf '\357\273\277'; cat plain.jsonl) >marked.jsonl
runs eval --model whole --data plain.jsonl
cp printed expected
runs eval --model whole --data marked.jsonl
holds "a byte order mark is no part of the first line" cmp printed expected
if [ -d words ]; then
    runs tokenize --tokenizer words --data plain.jsonl --to plain.bin
    runs tokenize --tokenizer words --data marked.jsonl --to marked.bin
    holds "nor for tapegrad tokenize" cmp plain.bin marked.bin
fi

# ---- Directories that cannot be listed ----
refuses 1 "--data 'none/*.txt': cannot list the directory 'none': No such file or directory" \
    train --data 'none/*.txt' --out x $run
if [ "$(id -u)" != 0 ]; then
    mkdir -m 0 closed
    refuses 1 "cannot list the directory 'closed': Permission denied" train --data 'closed/*.txt' --out x $run
fi

# ---- Padding and frames that are skipped ----
can_read() { "$tapegrad" eval --model whole --data "$1" >printed 2>&1 || ! grep -q "was built without" printed; }
if command -v gzip >/dev/null && gzip -c a.txt >packed && can_read packed; then
    head -c 1500 /dev/zero >zeros
    cat packed zeros >padded
    runs train --data padded --out unpadded $run
    holds "zeros after a member are ignored" same whole unpadded
    holds "and said" grep -q "warning: 'padded' ends with 1500 zero bytes, which are ignored" printed
    (cat padded; echo more) >dirty
    refuses 1 "'dirty' is damaged: other bytes follow the zeros after its end" train --data dirty --out x $run
fi
if command -v zstd >/dev/null && zstd -qc a.txt >packed && can_read packed; then
    (printf '\120\052\115\030\004\000\000\000\001\002\003\004'; cat packed) >framed # 4 bytes that are skipped
    runs train --data framed --out unframed $run
    holds "a frame that is skipped may come first" same whole unframed
fi

# ---- Signals ----
mkdir temporary
mkfifo endless
for ending in INT:130 TERM:143 HUP:129; do
    signal=${ending%:*}
    TMPDIR=$work/temporary $interruptible "$tapegrad" eval --model whole --data - <endless >printed 2>&1 &
    child=$!
    exec 3>endless
    cat a.txt >&3
    is_reading() { ls temporary/*/data-000.bin* >/dev/null 2>&1; }
    while_alive $child is_reading
    holds "it reads" is_reading
    kill -$signal $child
    wait $child
    holds "SIG$signal ends eval" test $? = "${ending#*:}"
    exec 3>&-
    holds "no token file is left" test -z "$(ls temporary)"
done
$interruptible "$tapegrad" train --data - --out reading $run <endless >printed 2>&1 &
child=$!
exec 3>endless
cat a.txt >&3
is_reading() { ls reading/data/data-000.bin* >/dev/null 2>&1; }
while_alive $child is_reading
kill -INT $child
wait $child
holds "SIGINT ends train while it reads" test $? = 130
exec 3>&-
holds "its token files are removed" test ! -e reading/data
runs train --data a.txt --out reading $run
holds "the directory can be used again" same whole reading

finish
