#!/bin/sh
# browser.sh PROGRAM TEXT: Chromium draws the pages without an error, and what they show is there. Skipped where there is no
# Chromium.
# shellcheck source=tests/train/check.sh disable=SC2086
. "$(dirname "$0")/check.sh"
chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || {
    echo "skipped: no chromium, chromium-browser or google-chrome"
    exit 77
}
tr '\n' ' ' <"$text" >plain
run="--data plain $tiny --steps 12 --val-every 6 --checkpoint-every 0"

# draws WIDTH FILE: lets Chromium run the page; `drawn` is the document after that, `said` what it has reported.
draws() {
    "$chromium" --headless=new --no-sandbox --disable-gpu --user-data-dir="$work/profile" --enable-logging=stderr --v=0 \
        --window-size="$1",900 --virtual-time-budget=3000 --dump-dom "file://$work/$2" >drawn 2>said || return 1
    grep CONSOLE said >printed && return 1
    [ -s drawn ]
}
# has TEXT..: each text is in the document.
has() {
    for words in "$@"; do
        grep -qF -e "$words" drawn || {
            echo "missing: $words" >printed
            return 1
        }
    done
}
sections() { grep -o '<section class="card">' drawn | wc -l; }

runs train $run --out one --html --samples 1 --sample-prompt '</script'
runs train $run --out two --lr 3e-3
runs compare one two --html both.html
runs tape one --ranks 2 --tp 2 --html tape.html --batch 2
for width in 400 1400; do
    holds "a page of a run is drawn, $width pixels wide" draws $width one/run.html
    holds "it has its parts" has '<h1>one</h1>' '<h2>Loss</h2>' '<h2>Learning rate</h2>' '<h2>Samples</h2>' \
        '<h2>Time by op</h2>' '<h2>At the peak</h2>' '<h2>Memory over the step</h2>' '<h2>Tape</h2>' \
        '&lt;/script' 'class="curve"' 'class="lane"' '>linear<'
    holds "and no others" test "$(sections)" = 10
    holds "runs compared are drawn, $width pixels wide" draws $width both.html
    holds "they have their parts" has '<h2>Runs</h2>' '>one</text>' '>two</text>'
    holds "a tape over ranks is drawn, $width pixels wide" draws $width tape.html
    holds "it has its parts" has '<h2>Ranks</h2>' '>all_reduce<' '>placement<' 'rank 1, collectives'
done
seq 100000 | sed 's/.*/{"step": &, "loss": 2.&, "grad_norm": 1, "lr": 1e-3, "tokens_per_s": 10, "seconds": &, "tokens": &, "peak_bytes": 1000}/' >long.jsonl
mkdir long && mv long.jsonl long/metrics.jsonl
runs compare long --html long.html
holds "a page of many steps is small" test "$(wc -c <long.html)" -lt 600000
holds "it is drawn" draws 1400 long.html
holds "with the range of each point" has 'the band is their range'
# A page with an error fails the check.
sed 's/^main();$/main(); nothing.here();/' long.html >wrong.html
holds "an error of a page is found" sh -c '! cmp -s long.html wrong.html'
if draws 1400 wrong.html; then wrong "an error of a page was not found"; else pass; fi
finish
