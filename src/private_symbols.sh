#!/bin/sh
# private_symbols.sh SOURCE MAP DEPFILE: writes the linker's version script. It gives the version TAPEGRAD_PRIVATE to what
# the headers in SOURCE mark with TG_PRIVATE_API; public functions have no version.
set -eu
export LC_ALL=C
headers=$(find "$1" -name '*.h' | sort)
printf '%s: %s\n' "$2" "$(echo "$headers" | tr '\n' ' ')" >"$3"
{
    echo 'TAPEGRAD_PRIVATE {'
    # shellcheck disable=SC2086 # paths without spaces
    sed -n 's/^\(extern \)\{0,1\}TG_PRIVATE_API [^(;]*\(tg_[a-z0-9_]*\)[(;].*/    \2;/p' $headers | sort -u
    echo '};'
} >"$2"
