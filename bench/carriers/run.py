#!/usr/bin/env python3
"""Measures libraries that can carry messages between ranks, those that are installed here, and prints a table.

`run.py N` runs every library once in each of N rounds (3), so that what else this machine does strikes all of them; the
table has medians. With real-time priority, where that is allowed, other programs do not take part.
"""
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PRIORITY = 'chrt --rr 10 '
MPIRUN = 'mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 --mca pml ob1 --mca btl self,'
# name, source, package of pkg-config or compiler, where, what starts it
ROWS = [
    ('MPI (Open MPI), TCP', 'mpi.c', 'mpicc', '', MPIRUN + 'tcp --mca btl_tcp_if_include lo '),
    ('UCX, TCP', 'ucx.c', 'ucx', 'tcp,self', ''),
    ('libfabric, TCP', 'libfabric.c', 'libfabric', 'tcp;ofi_rxm', ''),
    ('libuv, TCP', 'libuv.c', 'libuv', 'tcp', ''),
    ('Gloo, TCP', 'gloo.cc', '-lgloo -pthread', '', ''),
    ('ZeroMQ, TCP', 'zeromq.c', 'libzmq', 'tcp', ''),
    ('nng, TCP', 'nng.c', '-lnng', 'tcp', ''),
    ('MPI (Open MPI), shared memory', 'mpi.c', 'mpicc', '', MPIRUN + 'vader '),
    ('UCX, shared memory', 'ucx.c', 'ucx', 'posix,cma,self', ''),
    ('libfabric, shared memory', 'libfabric.c', 'libfabric', 'shm', ''),
    ('libuv, Unix socket', 'libuv.c', 'libuv', 'pipe', ''),
    ('ZeroMQ, Unix socket', 'zeromq.c', 'libzmq', 'ipc', ''),
    ('nng, Unix socket', 'nng.c', '-lnng', 'ipc', ''),
]


def build(folder, source, package):
    """Returns the program's path; None if the library is not installed."""
    program = os.path.join(folder, source.split('.')[0])
    if os.path.exists(program):
        return program
    flags, compiler = package, 'cc'
    if package == 'mpicc':
        flags, compiler = '', 'mpicc'
    elif not package.startswith('-'):
        found = subprocess.run(['pkg-config', '--cflags', '--libs', package], capture_output=True, text=True)
        if found.returncode:
            return None
        flags = found.stdout
    harness = os.path.join(folder, 'pingpong.o')
    subprocess.run(['cc', '-O2', '-c', os.path.join(HERE, 'pingpong.c'), '-o', harness], check=True)
    command = ['c++' if source.endswith('.cc') else compiler, '-O2', os.path.join(HERE, source), harness, '-o', program]
    built = subprocess.run(command + shlex.split(flags), capture_output=True, text=True)
    return program if built.returncode == 0 else print(built.stderr, file=sys.stderr)


def run(program, where, starter, *more):
    allowed = subprocess.run(shlex.split(PRIORITY + 'true'), capture_output=True).returncode == 0
    command = shlex.split(starter + PRIORITY * allowed) + [program, where, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300).stdout.strip()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    numbers = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name, source, package, where, starter in ROWS:
                program = build(folder, source, package)
                if not program:
                    continue
                printed = run(program, where, starter).split()
                if len(printed) != 3:
                    sys.exit(f'{name} fails: {" ".join(printed) or "it prints nothing"}')
                numbers.setdefault(name, []).append([float(x) for x in printed])
        print('| carrier | 8 B, us | 128 KiB, us | stream, GB/s | a killed peer |\n| --- | --- | --- | --- | --- |')
        for name, source, package, where, starter in ROWS:
            if name in numbers:
                few, many, speed = (statistics.median(x) for x in zip(*numbers[name]))
                killed = run(build(folder, source, package), where, starter, 'killed') or 'the launcher ends the job'
                print(f'| {name} | {few:.1f} | {many:.0f} | {speed:.2f} | {killed} |', flush=True)


if __name__ == '__main__':
    main()
