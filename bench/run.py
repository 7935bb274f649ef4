"""Measures speed and memory on the CPU and prints them as a table: the library next to the newest PyTorch, to libraries
of matrix products, and to the least that the work can cost, with the target of each ratio. scripts/bench calls it.
"""

import argparse
import datetime
import os
import pathlib
import re
import subprocess
import sys

import before
import table
from measure import KEEP_PAGES, ROOT, measure, measure_next_to


def main():
    options = parse()
    limit = limit_peers(options.isa)
    out = Report()
    head(out, options, limit)
    bench = Bench(options)
    out.print("| | ours | reference | ratio | target | |")
    out.print("| --- | ---: | ---: | ---: | ---: | --- |")
    for row in before.rows(bench, options.before) if options.before else rows(bench, options.rows):
        out.print(text_of(row, bench))
    out.print()
    out.print(before.NOTES if options.before else table.NOTES)
    if options.save:
        out.save("before" if options.before else "cpu")


def rows(bench, names):
    for name in names or table.ROWS:
        yield from table.ROWS[name](bench)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(table.ROWS)}; none: all")
    parser.add_argument("--program", default=str(ROOT / "build/bench/tapegrad-bench"))
    parser.add_argument("--before", metavar="PROGRAM",
                        help="compare with the tapegrad-bench of another build instead, such as one of an older commit")
    parser.add_argument("--isa",
                        help="kernels, ours and PyTorch's: portable, avx2, avx512, avx512_bf16, amx; default: the best")
    parser.add_argument("--rounds", type=int, help="measurements of each program")
    parser.add_argument("--save", action="store_true", help="write the table to bench/results too")
    options = parser.parse_args()
    for name in options.rows:
        if name not in table.ROWS:
            parser.error(f"no row {name}; there are {', '.join(table.ROWS)}")
    if options.before and options.rows:
        parser.error("--before has rows of its own")
    least = 2 if options.before else 1  # quartiles need two
    if options.rounds is not None and options.rounds < least:
        parser.error(f"--rounds is {options.rounds}, expected at least {least}")
    if options.save and options.rows:
        parser.error("--save is for the whole table")
    return options


# For each --isa, what PyTorch's own kernels, oneDNN, MKL and OpenBLAS may use, so that like is compared with like.
PEERS_ISA = {
    "portable": ("default", "SSE41", "SSE4_2", "Nehalem"),
    "avx2": ("avx2", "AVX2", "AVX2", "Haswell"),
    "avx512": ("avx512", "AVX512_CORE", "AVX512", "SkylakeX"),
    "avx512_bf16": ("avx512", "AVX512_CORE_BF16", "AVX512", "Cooperlake"),
}


def limit_peers(isa):
    """Sets the variables for peers, in the environment that they inherit, and removes those of the caller that make
    OpenBLAS choose other kernels. Returns what the report says of it."""
    for name in [name for name in os.environ if name.startswith("OPENBLAS_")]:
        del os.environ[name]
    if isa not in PEERS_ISA:
        return ""
    own, onednn, mkl, openblas = PEERS_ISA[isa]
    os.environ |= {"ATEN_CPU_CAPABILITY": own, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl,
                   "OPENBLAS_CORETYPE": openblas}
    return f", oneDNN with {onednn}, OpenBLAS for {openblas}"


def isa(options):
    return ["--isa", options.isa] if options.isa else []


class Bench:
    """What rows need to measure: the options, and properties of the CPU."""

    def __init__(self, options):
        flags = re.search(r"^flags\s*:(.*)$", read("/proc/cpuinfo"), re.M)
        flags = flags[1].split() if flags else []
        self.binary, self.rounds = [options.program, *isa(options)], options.rounds
        self.avx512 = "avx512f" in flags and options.isa not in ("portable", "avx2")
        self.bf16 = "avx512_bf16" in flags and options.isa in (None, "avx512_bf16", "amx")
        self.threads = min(2, len(os.sched_getaffinity(0)))

    def measure(self, commands, rounds=11, ask=()):
        return measure(self.binary, commands, self.rounds or rounds, ask)

    def measure_next_to(self, commands, neighborhoods, rounds=11):
        return measure_next_to(self.binary, commands, self.rounds or rounds, neighborhoods)

    def target(self, targets):
        """Returns the target that applies to this CPU. A pair is (with AVX-512, with AVX2 only)."""
        return (targets[0] if self.avx512 else targets[1]) if isinstance(targets, tuple) else targets


def text_of(row, bench):
    target = bench.target(row.target)
    if target is None or row.ratio is None:
        verdict, wanted = "", ""
    else:
        wanted = f"{'at most' if row.most else 'at least'} {target:g}"
        kept = row.ratio <= target if row.most else row.ratio >= target
        verdict = "PASS" if kept else f"short by {abs(row.ratio / target - 1):.0%}"
    if row.bf16 and not bench.bf16:
        verdict = "reported: no AVX512-BF16"
    ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
    return f"| {row.title} | {figure(row.ours)} | {figure(row.other)} | {ratio} | {wanted} | {verdict} |"


def figure(value):
    return value if isinstance(value, str) else f"{value:.4g}"


class Report:
    """Prints lines and keeps them for --save."""

    def __init__(self):
        self.lines = []

    def print(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def save(self, name):
        path = ROOT / "bench/results" / f"{datetime.date.today()}-{name}.md"
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        part.replace(path)
        print(f"saved as {path.relative_to(ROOT)}", file=sys.stderr)


# ---- The head of the results ----


def read(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def cpu_name():
    found = re.search(r"^model name\s*:\s*(.+)$", read("/proc/cpuinfo"), re.M)
    return found[1] if found else os.uname().machine


def output_of(*argv):
    try:
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def head(out, options, limit):
    version = 'import torch; print(torch.__version__, "with", torch.backends.cpu.get_cpu_capability())'
    changed = " with changes" if output_of("git", "status", "--porcelain", "--untracked-files=no") else ""
    out.print("# Speed and memory on a CPU")
    out.print()
    out.print(f"- {datetime.datetime.now().astimezone().isoformat(timespec='minutes')}, commit "
              f"{output_of('git', 'rev-parse', '--short', 'HEAD') or 'unknown'}{changed}")
    out.print(f"- {cpu_name()}, {os.cpu_count()} cores")
    out.print(f"- ours: {output_of(options.program, '--about', *isa(options))}")
    if options.before:
        out.print(f"- before: {output_of(options.before, '--about', *isa(options))}")
        out.print()
        return
    out.print(f"- peer: PyTorch {output_of(sys.executable, '-c', version)}{limit}; tuned: fused AdamW, gradients kept, "
              f"jemalloc ({KEEP_PAGES}); as installed: the defaults, and the system's malloc")
    out.print()


if __name__ == "__main__":
    main()
