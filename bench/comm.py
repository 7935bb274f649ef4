"""Measures all-reduce within a machine: ours among threads, ours among processes, and Open MPI's, in turn.

Each program measures every size once in a round, and the rounds begin with different programs. A ratio is Open MPI's
time divided by ours, the median over the rounds.
"""

import argparse
import os
import pathlib
import statistics
import subprocess

SIZES = ("64 KiB", "256 KiB", "1 MiB", "4 MiB", "64 MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default="build", help="where the programs are, in bench/")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    bench, n = options.build / "bench", str(options.ranks)
    programs = {"threads": start([bench / "tapegrad-bench-comm", "threads", n]),
                "processes": start([bench / "tapegrad-bench-comm", "processes", n])}
    if (bench / "tapegrad-bench-comm-mpi").exists():
        programs["Open MPI"] = start(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", n,
                                      bench / "tapegrad-bench-comm-mpi"])
    report(rounds(programs, options.rounds), options.ranks)
    for p in programs.values():
        p.stdin.close()
        p.wait()


def start(argv):
    return subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1"})


def rounds(programs, count):
    times, names = {name: [] for name in programs}, list(programs)
    for r in range(count + 1):
        for name in names[r % len(names):] + names[:r % len(names)]:
            programs[name].stdin.write("\n")
            programs[name].stdin.flush()
            line = programs[name].stdout.readline().split()
            if len(line) != len(SIZES):
                raise SystemExit(f"{name} has ended")
            if r:  # the first warms up
                times[name].append([float(t) for t in line])
    return times


def report(times, ranks):
    print(f"all-reduce of float32, {ranks} ranks, medians in microseconds; Open MPI / ours")
    print(f"{'':>9}" + "".join(f"{name:>12}" for name in times) +
          "".join(f"{'/ ' + name:>14}" for name in times if name != "Open MPI"))
    for i, size in enumerate(SIZES):
        row = {name: [t[i] for t in rows] for name, rows in times.items()}
        text = "".join(f"{statistics.median(v):12.1f}" for v in row.values())
        for name, v in row.items():
            if name != "Open MPI" and "Open MPI" in row:
                text += f"{statistics.median(m / t for m, t in zip(row['Open MPI'], v)):14.2f}"
        print(f"{size:>9}{text}")


if __name__ == "__main__":
    main()
