#!/bin/sh
# generate.sh PROGRAM TEXT: prompts from files, several samples, stop strings, JSON, a draft model, a tokenizer. What a
# prompt gives does not depend on the other prompts, and a draft model changes no greedy token.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"

train="train --data $text --seq-len 32 --batch 8 --lr 1e-2 --checkpoint-every 0 --threads 1"
runs $train --out large --layers 2 --hidden 32 --heads 2 --steps 120
runs $train --out small --layers 1 --hidden 16 --heads 2 --steps 120
runs train --data "$text" --out wide $tiny --vocab 300 --steps 3

# says FILE OPTION...: stores what generate prints.
says() {
    file=$1
    shift
    "$tapegrad" generate --threads 1 "$@" >"$file" 2>printed </dev/null || wrong "generate $*"
}

# ---- Prompts of a file ----

printf 'The \nYou may\n\nLicensed under the Apache\n' >prompts
says all --model large --prompt-file prompts --tokens 30 --samples 2 --json
holds "three prompts with two samples are six lines" test "$(wc -l <all)" = 6
says one_at_a_time --model large --prompt-file prompts --tokens 30 --samples 2 --json --rows 1 --chunk 3
holds "rows and chunks change nothing" cmp all one_at_a_time
says many --model large --prompt-file prompts --tokens 30 --samples 2 --json --threads 2
holds "nor do threads" cmp all many
says alone --model large --prompt 'The ' --tokens 30 --samples 2 --json
head -n 2 all >first
holds "the first prompt alone gives the same" cmp alone first
printf '{"prompt": "The "}\n{"prompt": "You may", "id": 7}\n{"ids": [76, 105]}\n' >prompts.jsonl
says lines --model large --prompt-file prompts.jsonl --tokens 30 --json
sed -n '1p;3p' all | grep '"sample":0' >expected
head -n 2 lines >given
holds "JSON lines are the same prompts" cmp given expected
(printf '\357\273\277'; cat prompts) >marked
says marks --model large --prompt-file marked --tokens 30 --samples 2 --json
holds "a byte order mark is no part of the first prompt" cmp all marks
(printf '\357\273\277'; cat prompts.jsonl) >marked
says marks --model large --prompt-file marked --tokens 30 --json
holds "nor of the first line of JSON" cmp lines marks
"$tapegrad" generate --threads 1 --model large --prompt-file - --tokens 30 --samples 2 --json <prompts >piped
holds "standard input is a file" cmp all piped
says titled --model large --prompt-file prompts --tokens 5 --samples 2
holds "several continuations have titles" grep -qx -e '--- prompt 3, sample 2 ---' titled
holds "and begin with their prompts" grep -q '^You may' titled
says plain --model large --prompt 'The ' --tokens 30
"$tapegrad" generate --threads 1 --model large --prompt 'The ' --tokens 30 --json >printed
text_of() { python3 -c 'import json, sys; print(sys.argv[1] + json.loads(sys.stdin.readline())["text"])' "$1"; }
if command -v python3 >/dev/null; then
    text_of 'The ' <printed >joined
    holds "the text of JSON is what is printed" cmp plain joined
fi

# ---- Ends ----

says greedy --model large --prompt 'The ' --tokens 60 --temperature 0
letter=$(tail -c +5 greedy | tr -d ' \n' | cut -c 2)
if [ -n "$letter" ]; then
    says stopped --model large --prompt 'The ' --tokens 60 --temperature 0 --stop "$letter"
    holds "the text ends before the stop string" test "$(tail -c +5 stopped | grep -cF "$letter")" = 0
    says stopped --model large --prompt 'The ' --tokens 60 --temperature 0 --stop "[\"never\", \"$letter\"]" --json
    holds "the line has the reason" grep -q '"finish":"stop_text"' stopped
fi
says length --model large --prompt 'The ' --tokens 3 --json --logprobs 2
holds "so is the number of tokens" grep -q '"finish":"length"' length
holds "there are three log-probabilities" sh -c "grep -o '\"logprobs\":\[[^]]*\]' length | tr ',' '\n' | grep -c -- - | grep -qx 3"
holds "and two likeliest tokens for each" test "$(grep -o '"logprob":' length | wc -l)" = 6
says nothing --model large --prompt-file prompts --tokens 0
holds "without tokens the prompts are printed" grep -qx 'You may' nothing
says nothing --model large --prompt 'The ' --tokens 0 --json --samples 2 --logprobs 3
printf '%s\n' '{"prompt":0,"sample":0,"finish":"length","ids":[],"text":"","logprobs":[],"top_logprobs":[]}' \
    '{"prompt":0,"sample":1,"finish":"length","ids":[],"text":"","logprobs":[],"top_logprobs":[]}' >expected
holds "and so are lines of JSON" cmp nothing expected

# ---- A draft model ----

says fast --model large --draft small --prompt 'The ' --tokens 60 --temperature 0
holds "a draft model changes no greedy token" cmp greedy fast
says stats --model large --draft large --prompt 'The ' --tokens 40 --temperature 0 --stats
holds "a model accepts all that it proposes itself" grep -q '(100 %)' printed
says drawn --model large --draft small --prompt 'The ' --tokens 200 --draft-tokens 7
holds "draws slide past the positions" test "$(wc -m <drawn)" -ge 200

# ---- A tokenizer ----

if "$tapegrad" tokenizer train --data "$text" --to bpe --vocab 300 >printed 2>&1; then
    cp bpe/tokenizer*.json wide
    says words --model wide --prompt 'Licensed' --tokens 20 --samples 2 --json
    holds "a model with a tokenizer continues text" grep -q '"text":' words
    "$tapegrad" generate --model wide --prompt 'Licensed' --tokens 50 --temperature 2 >printed 2>&1
    if command -v iconv >/dev/null; then
        holds "what is printed is UTF-8" iconv -f UTF-8 -t UTF-8 -o converted printed
    fi
    rm wide/tokenizer*.json
    says given --model wide --tokenizer bpe --prompt 'Licensed' --tokens 20 --samples 2 --json
    holds "so does one with --tokenizer" cmp words given
    says given --model wide --tokenizer bpe/tokenizer.json --prompt 'Licensed' --tokens 20 --samples 2 --json
    holds "which may be a file" cmp words given
    refuses 1 "the tokenizer 'bpe' has 300 ids, but the model has a vocabulary of 256" \
        generate --model large --tokenizer bpe --prompt a
    refuses 1 "cannot open 'missing'" generate --model wide --tokenizer missing --prompt a
fi

# Without a tokenizer there is no text to print.
printf '{"ids": [76, 105]}\n' >ids.jsonl
says from_file --model wide --prompt-file ids.jsonl --tokens 5
says from_options --model wide --prompt-ids 76,105 --tokens 5
holds "a model without a tokenizer prints ids" grep -q '^76,105,' from_file
holds "ids of a file are those of the options" cmp from_options from_file

# ---- Refusals ----

generate="generate --model large"
refuses 2 "--prompt TEXT or --prompt-ids IDS is missing" $generate
refuses 2 "not several" $generate --prompt a --prompt-file prompts
refuses 2 "--logprobs is printed with --json alone" $generate --prompt a --logprobs 1
refuses 1 "--logprobs 257: the vocabulary of the model in 'large' has only 256 ids" \
    $generate --prompt a --json --logprobs 257
refuses 2 "--stop is '[1]'" $generate --prompt a --stop '[1]'
refuses 2 "--stop is '[\"\"]'" $generate --prompt a --stop '[""]'
refuses 2 "--samples is '0'" $generate --prompt a --samples 0
refuses 2 "--draft-tokens is '12'" $generate --prompt a --draft large --draft-tokens 12
refuses 2 "--draft-tokens is for --draft DIR" $generate --prompt a --draft-tokens 3
refuses 1 "a draft model needs the same vocabulary" $generate --prompt a --draft wide
refuses 1 "--stop is text, but" generate --model wide --prompt-ids 1 --stop a
refuses 2 "or the model's tokenizer by --tokenizer" generate --model wide --prompt a
printf '{"prompt": "a"\n' >bad.jsonl
refuses 1 "line 1 of 'bad.jsonl' is not JSON" $generate --prompt-file bad.jsonl
printf '{"prompt": 3}\n' >bad.jsonl
refuses 1 "line 1 of 'bad.jsonl' has no prompt" $generate --prompt-file bad.jsonl
: >empty
refuses 1 "'empty' has no prompts" $generate --prompt-file empty
refuses 1 "cannot open 'missing'" $generate --prompt-file missing
finish
