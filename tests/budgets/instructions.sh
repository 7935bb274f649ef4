# For the scripts here: the instructions of a program, by valgrind's callgrind; skips where there is none.
# shellcheck shell=sh
if ! command -v valgrind >/dev/null; then
    echo "skipped: there is no valgrind"
    exit 77
fi
# instructions PROGRAM ARGUMENT...
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 | sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
