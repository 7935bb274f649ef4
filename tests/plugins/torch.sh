#!/bin/sh
# torch.sh SOURCE LIBRARY.so: runs torch_orders.py with a Python that has PyTorch: TG_TEST_PYTHON, that of scripts/bench or
# scripts/parity, or the system's. Skipped if none has it.
set -eu
here=$(dirname "$0")
for python in "${TG_TEST_PYTHON:-}" "$1"/build/venv-bench/bin/python "$1"/build/venv-parity/bin/python python3; do
    command -v "$python" >/dev/null || continue
    "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' || continue
    "$python" "$here/torch_orders.py" "$2" torch-first && "$python" "$here/torch_orders.py" "$2" torch-last
    exit
done
echo "skipped: no Python here has PyTorch; scripts/bench installs it, or TG_TEST_PYTHON names one that has it"
exit 77
