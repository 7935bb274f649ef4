"""Runs programs that measure in turn, for bench/run.py.

All programs of a comparison stay alive and measure in turn, once per round, and each round begins with another one, so
that other load of the machine affects all of them equally. Between two measurements there is a pause, because some
libraries' threads spin for some milliseconds after their work; in the pause they go to sleep. Figures are medians; a
ratio is the median of the rounds' ratios.
"""

import contextlib
import dataclasses
import glob
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEEP_PAGES = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
PAUSE = 0.25  # seconds


@dataclasses.dataclass(frozen=True)
class Command:
    """A program to measure: a row of tapegrad-bench (`peer` empty), or of bench/peer.py, which is PyTorch (`peer` is
    "tuned" or "as installed"). `build`: the tapegrad-bench of another build."""

    program: str
    options: tuple
    peer: str = ""
    build: str = ""

    def argv(self, binary):
        """binary: tapegrad-bench and options for all its rows."""
        if not self.peer:
            return [self.build or binary[0], self.program, *self.options, *binary[1:]]
        tuned = ["--tuned"] if self.peer == "tuned" else []
        return [sys.executable, str(ROOT / "bench/peer.py"), self.program, *self.options, *tuned]

    def environment(self):
        tuned = {"LD_PRELOAD": jemalloc(), "MALLOC_CONF": KEEP_PAGES} if self.peer == "tuned" else {}
        return os.environ | tuned


def command(program, peer="", build="", **options):
    """Returns a Command: command("gpt2", seq_len=64) has the option --seq-len 64. The value True makes a flag."""
    words = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return Command(program, tuple(words), peer, build)


def jemalloc():
    found = sorted(glob.glob("/usr/lib/*/libjemalloc.so.2") + glob.glob("/usr/lib*/libjemalloc.so.2"))
    return found[0] if found else sys.exit("libjemalloc.so.2 is missing: install libjemalloc2")


class Program:
    """A program that answers each line of input with a number."""

    def __init__(self, argv, env):
        self.name = " ".join(argv)
        self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        self.process.stdin.close()
        if self.process.wait() and error is None:  # its last figures are worthless
            sys.exit(f"{self.name} ended with status {self.process.returncode}")

    def line(self):
        text = self.process.stdout.readline()
        if not text:
            sys.exit(f"{self.name} ended with status {self.process.wait()}")
        return text

    def ask(self, question=""):
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return float(self.line())


class Measured(dict):
    """The times of each command, round by round, and the answers to questions at the end, as [command, question]."""

    def median(self, one):
        return statistics.median(self[one])

    def ratio(self, over, under, scale=1):
        """Returns the median of the rounds' ratios. The times of several commands are added."""
        return statistics.median(scale * a / b for a, b in zip(self.total(over), self.total(under)))

    def quartiles(self, over, under):
        """Returns the quartiles of the rounds' ratios."""
        low, _, high = statistics.quantiles([a / b for a, b in zip(self[over], self[under])], n=4)
        return low, high

    def total(self, commands):
        commands = commands if isinstance(commands, (tuple, list)) else [commands]
        return [sum(times) for times in zip(*(self[c] for c in commands))]


@contextlib.contextmanager
def neighbors(count, priority):
    """Runs `count` programs that never sleep, at `priority` (0: an ordinary program's, 19: the lowest)."""
    loops = [subprocess.Popen(["nice", "-n", str(priority), sys.executable, "-c", "while True: pass"])
             for _ in range(count)]
    try:
        time.sleep(PAUSE)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure_next_to(binary, commands, rounds, neighborhoods):
    """Measures each command in every round next to each of the `neighborhoods`, which map names to the (count,
    priority) of neighbors(). Returns a `Measured` for each name."""
    found = {name: Measured({c: [] for c in commands}) for name in neighborhoods}
    with contextlib.ExitStack() as stack:
        programs = started(stack, binary, commands)
        for i in range(rounds):
            for name, (count, priority) in neighborhoods.items():
                with neighbors(count, priority):
                    ask_in_turn(programs, commands, i, found[name])
    return found


def started(stack, binary, commands):
    programs = [stack.enter_context(Program(c.argv(binary), c.environment())) for c in commands]
    for p in programs:
        if p.line() != "ready\n":
            sys.exit(f"{p.name} did not get ready")
    return programs


def ask_in_turn(programs, commands, first, found):
    for k in range(len(programs)):
        one = (first + k) % len(programs)
        time.sleep(PAUSE)
        found[commands[one]].append(programs[one].ask())


def measure(binary, commands, rounds, ask=()):
    commands = list(dict.fromkeys(commands))
    with contextlib.ExitStack() as stack:
        programs = started(stack, binary, commands)
        found = Measured({c: [] for c in commands})
        for i in range(rounds):
            ask_in_turn(programs, commands, i, found)
        for question in ask:
            for c, p in zip(commands, programs):
                found[c, question] = p.ask(question)
        return found
