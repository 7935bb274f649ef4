#!/usr/bin/env python3
"""dlpack_layout.py SOURCE COMPILER...: compiles dlpack_layout.c with DLPack's own header, which PyTorch brings."""
import importlib.util
import pathlib
import subprocess
import sys

source, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
include = pathlib.Path(importlib.util.find_spec('torch').origin).parent / 'include'
sys.exit(subprocess.run(compiler + ['-std=gnu11', '-fsyntax-only', '-Wall', '-Wextra', '-Werror',
                                    '-DDLPACK_H=<ATen/dlpack.h>', f'-I{source}/include', f'-I{source}/src', '-isystem',
                                    include, source / 'tests/bindings/dlpack_layout.c']).returncode)
