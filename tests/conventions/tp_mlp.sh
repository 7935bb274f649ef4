#!/bin/sh
# tp_mlp.sh TAPEGRAD TP_MLP PAGE SOURCE: examples/tp_mlp.c prints what PAGE shows, on any number of threads and
# processes, and its wrong variant fails with the message that PAGE quotes, whichever rank finds the error first.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM # dash runs no EXIT trap if a signal ends it
bad=0

# quoted TEXT: the block of PAGE that follows the first line with TEXT.
quoted() { awk -v text="$1" 'index($0, text) { seen = 1 } seen && /^```$/ { if (n++) exit; next } n == 1' "$page"; }

# same WHAT: the words of `want` and `got`; file and line are there where the program has debug information.
same() {
    tr -s ' \n' '  ' <"$work/got" >"$work/words"
    tr -s ' \n' '  ' <"$work/want" >"$work/wanted"
    grep -q 'called from tp_mlp.c:' "$work/words" || sed -i 's/, called from .*//' "$work/words" "$work/wanted"
    cmp -s "$work/words" "$work/wanted" && return
    bad=1
    echo "$1 prints:"
    cat "$work/got"
    echo "the page says:"
    cat "$work/want"
}
tapegrad=$1 mlp=$2 page=$3 source=$4

quoted 'print the same:' >"$work/want"
[ "$(wc -l <"$work/want")" = 4 ]
for n in 1 2 4; do
    "$mlp" $n >"$work/got" 2>&1
    same "tp_mlp $n"
    "$tapegrad" run -n $n -- "$mlp" >"$work/got" 2>&1
    same "tapegrad run -n $n -- tp_mlp"
done

quoted "\`tp_mlp 2 wrong\`" >"$work/want"
[ -s "$work/want" ]
# Without debug information `got` has no line, so the page's line is compared with the source too.
line=$(grep -n 'tg_add(t, o, w\[3\])' "$source" | cut -d: -f1)
if ! grep -q "called from tp_mlp.c:$line)" "$work/want"; then
    echo "the page names another line than $line of tp_mlp.c"
    bad=1
fi
for try in 1 2 3 4 5 6 7 8 9 10; do
    if "$mlp" 2 wrong >"$work/got" 2>&1; then
        echo "tp_mlp 2 wrong ends well"
        bad=1
    fi
    same "tp_mlp 2 wrong, try $try"
done
exit $bad
