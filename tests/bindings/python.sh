#!/bin/sh
# python.sh MODULE SOURCE PROGRAM.py ARGUMENT...: runs the program with a Python that has the module: TG_TEST_PYTHON,
# that of scripts/test --python, scripts/bench or scripts/parity, or the system's. Skipped if none has it.
set -eu
module=$1 source=$2
shift 2
for python in "${TG_TEST_PYTHON:-}" "$source"/build/venv-python/bin/python "$source"/build/venv-parity/bin/python python3; do
    command -v "$python" >/dev/null || continue
    "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))' "$module" || continue
    exec "$python" -B "$@"
done
echo "skipped: no Python here has $module; scripts/test --python installs it, or TG_TEST_PYTHON names one that has it"
exit 77
