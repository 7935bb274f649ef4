"""Ours, the floor and PyTorch in one run; scripts/bench calls it.

All programs of a row stay alive and measure in turn, once a round each, and each round begins with another, so that
what the machine does besides falls on all alike. Figures are medians; a ratio is the median of the rounds' ratios.
"""

import argparse
import contextlib
import dataclasses
import datetime
import glob
import os
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEEP_PAGES = "dirty_decay_ms:-1,muzzy_decay_ms:-1"


@dataclasses.dataclass
class Row:
    name: str
    unit: str
    program: str
    options: tuple = ()
    floor: bool = False
    rounds: int = 11


def gpt2_row(dtype, threads):
    plural = "" if threads == 1 else "s"
    return Row(f"GPT-2 124M {dtype}, {threads} thread{plural}", "ms a step", "gpt2",
               ("--dtype", dtype, "--threads", str(threads)), floor=True)


ROWS = {"chain": Row("chain of one element", "ns an op", "chain"),
        **{f"gpt2-{d}-{n}": gpt2_row(d, n) for d in ("f32", "bf16") for n in (1, 2)}}


def main():
    options = parse()
    out = Report()
    head(out, options)
    widths = "{:<28} {:>12} {:>12} {:>8}"
    out.print(widths.format("name", "ours", "peer", "ratio"))
    for name in options.rows or ROWS:
        row = ROWS[name]
        ours, floor, peer = measure(row, options)
        out.print(widths.format(row.name, *figures(ours, peer)) + f"  PyTorch / ours ({row.unit})")
        if row.floor:
            out.print(widths.format("  over its floor", *figures(ours, floor, over=True)) + "  ours / floor")
    if options.save:
        out.save()


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; none: all")
    parser.add_argument("--program", default=str(ROOT / "build/bench/tapegrad-bench"))
    parser.add_argument("--rounds", type=int, help="measurements of each program")
    parser.add_argument("--as-installed", action="store_true",
                        help="PyTorch with its defaults and the system's malloc; else tuned: fused AdamW, gradients "
                             "kept from step to step, jemalloc that keeps its pages")
    parser.add_argument("--save", action="store_true", help="write the table to bench/results too")
    options = parser.parse_args()
    for name in options.rows:
        if name not in ROWS:
            parser.error(f"no row {name}; there are {', '.join(ROWS)}")
    return options


class Report:
    """Prints lines, and keeps them."""

    def __init__(self):
        self.lines = []

    def print(self, line=""):
        print(line, flush=True)
        self.lines.append(line)

    def save(self):
        cpu = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
        path = ROOT / "bench/results" / f"{datetime.date.today()}-{cpu}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        print(f"saved as {path.relative_to(ROOT)}", file=sys.stderr)


# ---- Measuring ----


class Program:
    """A program that measures once for each line it is sent."""

    def __init__(self, argv, env):
        self.name = " ".join(map(str, argv))
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.times = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def line(self):
        text = self.process.stdout.readline()
        if not text:
            sys.exit(f"{self.name} ended with status {self.process.wait()}")
        return text

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.times.append(float(self.line()))


def environment(**more):
    """The caller's, but for what would tell a BLAS which machine it is on."""
    return {k: v for k, v in os.environ.items() if k not in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")} | more


def peer_command(row, options):
    argv = [sys.executable, ROOT / "bench/peer.py", row.program, *row.options]
    if options.as_installed:
        return argv, environment()
    return argv + ["--tuned"], environment(LD_PRELOAD=jemalloc(), MALLOC_CONF=KEEP_PAGES)


def jemalloc():
    found = sorted(glob.glob("/usr/lib/*/libjemalloc.so.2") + glob.glob("/usr/lib*/libjemalloc.so.2"))
    return found[0] if found else sys.exit("libjemalloc.so.2 is missing: install libjemalloc2, or use --as-installed")


def measure(row, options):
    """The times of ours, the floor (none where the row has no floor) and the peer, round by round."""
    commands = [([options.program, row.program, *row.options], environment()),
                ([options.program, "floor", *row.options], environment()) if row.floor else None,
                peer_command(row, options)]
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(Program(*c)) if c else None for c in commands]
        alive = [p for p in programs if p]
        for p in alive:
            if p.line() != "ready\n":
                sys.exit(f"{p.name} did not get ready")
        for i in range(options.rounds or row.rounds):
            for k in range(len(alive)):
                alive[(i + k) % len(alive)].measure()
        return [p.times if p else None for p in programs]


def figures(ours, other, over=False):
    ratios = [a / b if over else b / a for a, b in zip(ours, other)]
    return (f"{statistics.median(ours):.4g}", f"{statistics.median(other):.4g}", f"{statistics.median(ratios):.2f}")


# ---- What was measured ----


def cpu_name():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1] if found else os.uname().machine


def output_of(*argv):
    try:
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def head(out, options):
    version = 'import torch; print(torch.__version__, "with", torch.backends.cpu.get_cpu_capability())'
    changed = " with changes" if output_of("git", "status", "--porcelain", "--untracked-files=no") else ""
    manner = "as installed" if options.as_installed else f"fused AdamW, gradients kept, jemalloc ({KEEP_PAGES})"
    out.print(f"date      {datetime.datetime.now().astimezone().isoformat(timespec='minutes')}")
    out.print(f"commit    {output_of('git', 'rev-parse', '--short', 'HEAD') or 'unknown'}{changed}")
    out.print(f"cpu       {cpu_name()}, {os.cpu_count()} cores")
    out.print(f"ours      {output_of(options.program, '--about')}")
    out.print(f"peer      PyTorch {output_of(sys.executable, '-c', version)}; {manner}")
    out.print("GPT-2     batch 4, 64 tokens; forward, backward, AdamW; bf16: autocast there, bf16 weights with float32")
    out.print("          masters here")
    out.print()


if __name__ == "__main__":
    main()
