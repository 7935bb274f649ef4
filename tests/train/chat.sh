#!/bin/sh
# chat.sh PROGRAM TEXT: conversations with small models that the test trains, with and without a chat template.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"

runs train --data "$text" --out bytes $tiny --seq-len 256 --steps 3

# talk OPTION...: sends the lines of `typed` to the model, in `model`; answers are in `printed`, what is said in `said`.
talk() {
    "$tapegrad" chat --model "$model" --threads 1 --temperature 0 "$@" <typed >printed 2>said
    status=$?
}
# talks STATUS WHAT OPTION...: checks the status.
talks() {
    want=$1 what=$2
    shift 2
    talk "$@"
    holds "$what: status $status, expected $want: $(cat said)" test $status = "$want"
}
says() { holds "says '$1', found: $(cat said)" grep -qF -e "$1" said; }

# A model of bytes, without a template.
model=bytes
printf 'hello\n\nhow are you?\n' >typed
talks 0 "two messages" --tokens 5
says 'has no chat template'
says 'the answer ended after 5 tokens'
cp printed once
echo '[]' >no_tools.json
refuses 1 "--tools is for a chat template, and 'bytes' has none; give --template FILE" chat --model bytes --tools no_tools.json
refuses 1 "--variables is for a chat template, and 'bytes' has none" chat --model bytes --variables '{}'
talks 0 "again" --tokens 5
holds "the same answers" cmp once printed
printf 'hello\n/save one.json\nhow are you?\n' >typed
talks 0 "saving" --tokens 5
holds "two messages are saved" test "$(grep -c '"role"' one.json)" = 2
printf '/load one.json\nhow are you?\n/save two.json\n' >typed
talks 0 "loading" --tokens 5
printf 'how are you?\n/save three.json\n' >typed
talks 0 "going on" --tokens 5 --load one.json
holds "the conversation goes on from a file" cmp two.json three.json
holds "four messages" test "$(grep -c '"role"' three.json)" = 4
printf 'a\n/system Be brief.\n/system\n/reset\n//b\n/save four.json\n' >typed
talks 0 "commands" --tokens 3
holds "the system prompt is printed" grep -q '^Be brief.$' printed
holds "the system prompt stays, the first turn does not" test "$(grep -c '"role"' four.json)" = 3
holds "a message may begin with /" grep -qF '"content": "/b"' four.json
printf '/no\n' >typed
talks 1 "an unknown command"
says "there is no command '/no'"
printf '/save\n/load x\n/load bytes/config.json\n/help\n' >typed
talks 1 "commands without files"
says "/save needs the name of a file"
says "'x'"
says "is not a JSON array of messages"
holds "/help lists /reset" grep -q '^/reset' printed
seq 40 | sed 's/.*/a message with some words: &/' >typed
talks 0 "a long conversation" --tokens 4
says 'the context of 256 tokens is full: the model no longer gets the oldest 2 messages'
printf '%0300d\nshort\n' 0 >typed
talks 1 "a message that is too long" --tokens 4
says 'expected at most 252'
holds "the next message gets an answer" test "$(wc -l <printed)" -ge 1
printf 'a\nb\n' >typed
talks 0 "two short messages" --tokens 4
tail -n 1 printed >once
printf 'a\n%0300d\nb\n' 0 >typed
talks 1 "a message that is too long, between them" --tokens 4
tail -n 1 printed >again
holds "it displaces no turn" cmp once again
printf 'a\377\nb\n' >typed
talks 1 "a message that is not UTF-8" --tokens 4
says 'the message is not UTF-8'
holds "the next one gets an answer" test "$(wc -l <printed)" -ge 1

# Ctrl-C stops an answer, of a model whose answers take seconds.
cat "$text" "$text" >twice
runs train --data twice --data-format text --val-fraction 0 --out far --layers 1 --hidden 16 --heads 2 --seq-len 8192 --batch 1 \
    --threads 1 --steps 1
mkfifo typing
"$tapegrad" chat --model far --threads 1 --tokens 100000 <typing >printed 2>said &
chat=$!
exec 9>typing
echo 'go on' >&9
holds "the answer begins" while_alive $chat test -s printed
kill -INT $chat
printf '/system\n' >&9
exec 9>&-
holds "the program ends with its input" wait $chat
holds "it goes on after Ctrl-C" grep -q 'there is no system prompt' printed
if command -v python3 >/dev/null; then
    python3 "$(dirname "$0")/terminal.py" "$tapegrad" chat --model far --tokens 100000 >printed 2>&1
    holds "on a terminal" test $? = 0
    holds "what was typed is what is saved" grep -qF '"content": "héllo 世"' typed.json
fi

# A model with a tokenizer and a template.
if "$tapegrad" tokenizer train --data "$text" --to words --vocab 300 --special '<end>' '<user>' '<assistant>' >printed 2>&1; then
    pass
    runs tokenize --tokenizer words --data "$text" --to ids --format u16
    runs train --data ids --data-format u16 --out model $tiny --seq-len 64 --vocab 300 --steps 3
    cp words/*.json model
    model=model
    cat >model/chat_template.jinja <<'END'
{%- for m in messages -%}
{%- if m.role == 'system' and strict %}{{ raise_exception('no system prompts') }}{% endif -%}
<{{ m.role }}>{{ m.content }}<end>
{%- endfor -%}
{%- if add_generation_prompt %}<assistant>{% endif -%}
END
    printf 'hello\n' >typed
    talks 0 "by a template" --tokens 5
    holds "says nothing of a template" sh -c '! grep -q template said'
    cp printed once
    cp model/chat_template.jinja same.jinja
    talks 0 "by a file" --tokens 5 --template same.jinja
    holds "the same template" cmp once printed
    talks 0 "with a system prompt" --tokens 5 --system 'Be brief.'
    talks 1 "refused by the template" --tokens 5 --system 'Be brief.' --variables '{"strict": true}'
    says "the model's chat template, line 2, column 58: the template refuses the conversation: no system prompts"
    printf '{{ x' >bad.jinja
    talks 1 "a malformed template" --template bad.jinja
    says "bad.jinja, line 1, column 1: the end of the tag, }}, is missing"
    printf '{}' >tools.json
    talks 1 "malformed tools" --tools tools.json
    says "'tools.json' is not a JSON array of tools"
else
    grep -q libtapegrad-text printed || wrong "tokenizer train"
fi

# The model's file is mapped: if it becomes shorter, the conversation ends with an error.
runs train --data "$text" --out mapped $tiny --arch llama --seq-len 64 --steps 2
mkfifo lines
"$tapegrad" chat --model mapped --threads 1 --tokens 3 <lines >answers 2>said &
child=$!
exec 3>lines
echo one >&3
while_alive $child test -s answers
: >mapped/model.safetensors
echo two >&3
exec 3>&-
wait $child
holds "the conversation ends with status 1" test $? = 1
says "'mapped/model.safetensors' has become shorter"

refuses 2 "--model DIR, the model, is missing" chat
refuses 2 "--variables '{' is not a JSON object: string or '}' expected" chat --model no/such --variables '{'
refuses 2 "--variables '[1]' is not a JSON object: it is another value" chat --model no/such --variables '[1]'
refuses 1 "no/such" chat --model no/such
refuses 1 "cannot open 'none.json'" chat --model bytes --load none.json
finish
