#!/bin/sh
# tokenizer.sh PROGRAM TEXT: the commands tokenizer and tokenize. A tokenizer is trained, shown and used; what is written does
# not depend on threads; what does not fit is refused, and no half of a file is left.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"

if ! "$tapegrad" tokenizer train --data "$text" --to t --vocab 400 >printed 2>&1 && grep -q 'plugin libtapegrad-text' printed; then
    echo "skipped: this build has no plugin text"
    exit 77
fi
runs tokenizer train --data "$text" --to t --vocab 400
holds "it says how to go on" grep -q 'tapegrad tokenize --tokenizer t' printed
runs tokenizer show t
holds "the number of ids is shown" grep -q '^400 ids' printed
holds "the token that ends a text is shown" grep -q '0  <|endoftext|>  (ends a text)' printed
runs tokenizer train --data "$text" --to special --vocab 330 --special $(seq -f '<s%g>' 41)
echo '{"eos_token": "<s41>"}' >special/tokenizer_config.json
runs tokenizer show special
holds "the 41st special token is shown if it ends a text" grep -q '<s41>  (ends a text)' printed
holds "then none is left out" test -z "$(grep 'and more' printed)"
runs tokenizer show t --text 'the License'
holds "the tokens of a text are shown" grep -q ' ĠLicense$' printed

# ---- Files of ids ----

mkdir texts
head -n 100 "$text" >texts/a.txt
tail -n +101 "$text" >texts/b.txt
runs tokenize --tokenizer t --data texts --to ids
holds "two files are two documents" grep -q '^ids: 2 documents, ' printed
tokens=$(sed -n 's/^ids: 2 documents, \([0-9]*\) tokens.*/\1/p' printed)
holds "each token has two bytes" test "$(stat -c %s ids.bin)" = $((2 * tokens))
runs tokenize --tokenizer t --data texts/a.txt texts/b.txt --to one --threads 1
holds "threads change nothing" cmp ids.bin one.bin
holds "nor the index" cmp ids.idx one.idx
runs tokenize --tokenizer t --data texts --to raw --format u16
holds "raw ids are those of the dataset" cmp ids.bin raw
runs tokenize --tokenizer t --data texts --to wide --format u32
holds "or wider" test "$(stat -c %s wide)" = $((4 * tokens))
runs train --out run --data ids.bin --vocab 400 $tiny --steps 2
holds "the program trains on them" test -s run/metrics.jsonl

printf '%s\n' '{"text": "one"}' '' '{"text": "two<|endoftext|>", "n": 1}' >lines.jsonl
runs tokenize --tokenizer t --data lines.jsonl --to lines --format u16
holds "lines of JSONL are documents" grep -q '^lines: 2 documents' printed
holds "a document that has its end gets no other" test "$(od -An -v -tu2 -w2 lines | grep -c ' 0$')" = 2
runs tokenize --tokenizer t --data lines.jsonl --to literal --format u16 --literal
holds "special tokens may be text" test "$(stat -c %s literal)" -gt "$(stat -c %s lines)"
runs tokenize --tokenizer t --data lines.jsonl --to bare --format u16 --no-ends
holds "documents need no end" test "$(od -An -v -tu2 -w2 bare | grep -c ' 0$')" = 1
runs tokenize --tokenizer t --data texts/a.txt --documents line --to by_line
holds "lines may be documents" grep -q "^by_line: $(head -n 100 "$text" | grep -c .) documents" printed
printf '\357\273\277\n{"text": "one"}\n' >marked.jsonl
runs tokenize --tokenizer t --data marked.jsonl --to marked
holds "a first line that is a byte order mark is empty" grep -q '^marked: 1 document, ' printed
"$tapegrad" tokenize --tokenizer t --data - --to piped --format u16 <texts/a.txt >printed 2>&1
holds "standard input is a document" grep -q '^piped: 1 document, ' printed

# ---- What is refused ----

refuses 1 "cannot open 'none'" tokenize --tokenizer none --data texts --to x
refuses 1 "tokenizer.json" tokenize --tokenizer texts --data texts --to x
refuses 1 "no token 'eos'" tokenize --tokenizer t --data texts --to x --end eos
refuses 1 "which token ends a text: give --end TOKEN, or --no-ends" tokenize --tokenizer t/tokenizer.json --data texts --to x
printf 'a\377' >broken
refuses 1 "'broken': tg_tokenizer_encode: the text is not UTF-8: byte 0xff at offset 1" tokenize --tokenizer t --data broken --to x --format u16
echo '{"text": 3}' >number.jsonl
refuses 1 "--field is for JSONL, and --data has none" tokenize --tokenizer t --data texts --to x --format u16 --field body
refuses 1 "--field is for JSONL, and --data has none" tokenize --tokenizer t --data lines.jsonl --documents file --to x --format u16 --field body
refuses 1 "--field is for JSONL, and --data has no file named so" tokenizer train --data texts --to x --field body
refuses 1 "'number.jsonl' line 1: expected an object with the text \"text\"; --field gives another key" tokenize --tokenizer t --data number.jsonl --to x --format u16
refuses 1 "'broken' line 1: tg_bpe_add: the text is not UTF-8" tokenizer train --data broken --to x
cp texts/a.txt same
cp texts/a.txt same.bin
refuses 1 "--to 'same' would write over 'same', which is read" tokenize --tokenizer t --data texts same --to same --format u16
refuses 1 "--to 'same' would write over 'same.bin', which is read" tokenize --tokenizer t --data same.bin --to same
holds "what is read stays as it is" cmp texts/a.txt same
for tokenizer in t t/tokenizer.json; do
    refuses 1 "would write over 't/tokenizer.json'" tokenize --tokenizer $tokenizer --data texts --to t/tokenizer.json --format u16
done
rm same.bin
runs tokenize --tokenizer t --data same --to same
holds "a dataset has other names than its text" test -s same.bin -a -s same.idx
: >empty
refuses 1 "the files have no text" tokenizer train --data empty --to x
refuses 1 "the files have no text" tokenize --tokenizer t --data empty --to x --format u16
refuses 1 "cannot make the directory 'no/x'" tokenizer train --data empty --to no/x
refuses 1 "cannot make the directory 'empty': File exists" tokenizer train --data "$text" --to empty
refuses 1 "has an anchor at offset 0" tokenizer train --data "$text" --to x --pattern '^a'
refuses 2 "--tokenizer DIR is missing" tokenize --data texts --to x
refuses 2 "--data FILE is missing" tokenize --tokenizer t --to x
refuses 2 "--to FILE is missing" tokenize --tokenizer t --data texts
refuses 2 "--end and --no-ends exclude each other" tokenize --tokenizer t --data texts --to x --end a --no-ends
refuses 2 "expected 'train', or 'show' and a path" tokenizer
refuses 2 "expected 'train', or 'show' and a path" tokenizer show
refuses 2 "--vocab is an option of 'train'" tokenizer show t --vocab 500
refuses 2 "--text is an option of 'show'" tokenizer train --data texts --to x --text a
refuses 2 "--vocab is '256', expected a whole number from 257" tokenizer train --data texts --to x --vocab 256
(ulimit -f 1 && "$tapegrad" tokenize --tokenizer t --data texts --to full --format u16 >printed 2>&1)
holds "a full disk is reported" grep -q "cannot write 'full'" printed
holds "and no half of a file is left" test "$(find . -name 'full*')" = ''
finish
