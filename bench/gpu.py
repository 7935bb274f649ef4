"""Measures speed and memory on a GPU and prints them as Markdown: ours next to PyTorch's, if `import torch` finds CUDA,
and next to the rates at which the GPU copies and multiplies. scripts/gpu-check calls it.

The peer is the program that ours is compared with, bench/peer.py. The programs of several rows are started together.
After all have warmed up, the rows are measured one by one: our program and the peer in turn, and each round begins
with the other one. Figures are medians of the rounds. A time is measured by the host's clock, around a number of
queued calls and one wait for the device. --rehearse uses tiny sizes, runs on the emulator too, and takes our program
as its own peer: it shows that everything runs, and compares with no target.
"""

import argparse
import dataclasses
import pathlib
import queue
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]

# The vendor's dense bf16 rates, the denominators of MFU.
PEAKS = {"H200": 989.4e12, "H100 80GB HBM3": 989.4e12, "A100": 312e12}

SMALL = {"layers": 12, "heads": 12, "hidden": 768, "vocab": 50304}
XL = {"layers": 48, "heads": 25, "hidden": 1600, "vocab": 50304}
TINY = {"layers": 2, "heads": 2, "hidden": 32, "vocab": 64}
POSITIONS = 1024

NOTES = """
Rows in bytes/s count the bytes that must move once: copy 2 n; norm 2 n, its gradient 3 n; loss n, its gradient 2 n,
where n is the size of the one large array in bf16. AdamW moves 30 bytes per parameter here (it reads the float32
gradient, both moments and the master, and writes the moments, the master and the bf16 parameter), and 28 in the peer
(float32 parameters). Attention is causal and counts 2 b h T^2 d FLOPs forward and 5 b h T^2 d backward; a product of
n x n matrices counts 2 n^3. A token of GPT-2 counts 6 N + 6 L h T FLOPs (N without the position embeddings); MFU is
their rate divided by the vendor's dense bf16 rate, 989.4 TFLOP/s for the H100 SXM and the H200. The host's time is
measured from the first call of a step to the return of the last one, with nothing queued before and one sequence of 64
tokens, so that the host does not wait for the device; of a captured step it is the one call that replays it. The peak
is the most bytes in use at once: ours includes the workspaces of kernels, PyTorch's is max_memory_allocated. PyTorch's
GPT-2 uses torch.compile, autocast over float32 weights, fused AdamW and scaled_dot_product_attention. Both have a
vocabulary padded to 50304.
"""


@dataclasses.dataclass
class Row:
    title: str
    program: str
    options: dict
    work: float = 0  # FLOPs or bytes of one call
    unit: str = "TFLOP/s"
    calls: int = 10
    peer: tuple = None  # more options of the peer; None: this row has no peer
    rounds: int = 5
    asks: tuple = ()  # the questions, "peak" and "host", that are asked after the rounds
    flags: tuple = ()  # more options of both

    def rate(self, ms):
        return self.work / ms * 1e3


def main():
    options = parse()
    bench = Bench(options)
    failed = 0
    for name in options.parts or PARTS:
        part, seconds = PARTS[name]
        bench.deadline = min(bench.end, time.monotonic() + (seconds if not options.rehearse else 600))
        failed += not part(bench)
    print(NOTES)
    sys.exit(1 if failed else 0)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; none: all")
    parser.add_argument("--program", default=str(ROOT / "build/bench/tapegrad-bench"))
    parser.add_argument("--gpu", default="", help="its name, for MFU and the aims that are an H200's")
    parser.add_argument("--limit", type=float, default=1e6, help="seconds for all of it")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    for name in options.parts:
        if name not in PARTS:
            parser.error(f"no part {name}; there are {', '.join(PARTS)}")
    return options


# ---- Measuring ----


class Late(Exception):
    """A program has not answered before the deadline."""


class Program:
    """A program that answers each line that it reads with a number."""

    def __init__(self, argv):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.lines = queue.Queue()
        self.errors = []
        self.readers = [threading.Thread(target=self.read, daemon=True),
                        threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True)]
        for reader in self.readers:
            reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def line(self, deadline):
        try:
            return self.lines.get(timeout=max(0.1, deadline - time.monotonic()))
        except queue.Empty:
            raise Late from None

    def ask(self, question, deadline):
        """Returns the answer; None if the program has ended."""
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
        except OSError:
            return None
        text = self.line(deadline)
        return None if text is None else float(text)

    def why(self):
        """Returns why the program has ended: the last line of its standard error, or its status."""
        self.readers[1].join(1)
        lines = [line.strip() for line in self.errors if line.strip()]
        return lines[-1] if lines else f"ended with status {self.process.poll()}"

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    def __init__(self, options):
        self.options, self.tiny = options, options.rehearse
        self.end = time.monotonic() + options.limit
        self.deadline = self.end  # of the current part
        self.torch = not self.tiny and has_torch()
        self.copy = self.gemm = None  # rates of a copy and of a product on this GPU, once they are measured
        print(f"peer: {'PyTorch ' + self.torch if self.torch else 'itself' if self.tiny else 'none'}\n", flush=True)

    def arguments(self, row):
        sizes = [word for name, n in row.options.items() for word in ("--" + name, str(n))]
        calls = str(1 if self.tiny else row.calls)
        return [row.program, "--device", "cuda", "--dtype", "bf16", "--calls", calls, *sizes, *row.flags]

    def commands(self, row):
        ours = [self.options.program, *self.arguments(row)]
        if row.peer is None or not (self.torch or self.tiny):
            return [ours]
        if self.tiny:
            return [ours, ours]
        return [ours, [sys.executable, str(ROOT / "bench/peer.py"), *self.arguments(row), *row.peer]]

    def group(self, rows):
        """Measures the rows. Returns a list of (row, results): ours and the peer's, if there is one. A result is (ms,
        {question: answer}), or the reason for which there is none."""
        started = [[Program(c) for c in self.commands(row)] for row in rows]
        try:
            peer_deadline = time.monotonic() + 0.6 * (self.deadline - time.monotonic())
            reasons = [[self.ready(p, peer_deadline if i else self.deadline) for i, p in enumerate(programs)]
                       for programs in started]
            return [(row, self.measure(row, programs, r)) for row, programs, r in zip(rows, started, reasons)]
        finally:
            for programs in started:
                for p in programs:
                    p.close()

    @staticmethod
    def ready(p, deadline):
        """Waits until the program is ready. Returns None if it is, or why it is not. Peers get less time, because our
        program can be measured without them."""
        try:
            return None if p.line(deadline) == "ready" else p.why()
        except Late:
            return "not ready in time"

    def measure(self, row, programs, reasons):
        """Returns the results of the programs. reasons: why each is not ready, or None."""
        results = list(reasons)
        alive = [i for i, reason in enumerate(reasons) if reason is None]
        times = [[] for _ in programs]
        answers = [{} for _ in programs]
        try:
            for n in range(2 if self.tiny else row.rounds):
                for k in range(len(alive)):
                    i = alive[(n + k) % len(alive)]
                    times[i].append(programs[i].ask("", self.deadline))
            for i in alive:
                for question in row.asks:
                    several = [programs[i].ask(question, self.deadline) for _ in range(5)]
                    answers[i][question] = None if None in several else statistics.median(several)
        except Late:
            pass
        for i in alive:
            whole = times[i] and None not in times[i]
            results[i] = (statistics.median(times[i]), answers[i]) if whole else \
                programs[i].why() if None in times[i] else "time ran out"
        return results

    def aim(self, text, value, least=None, most=None):
        """Returns text that says whether a target is met. A rehearsal judges none."""
        if self.tiny or value is None:
            return f"{text}: not judged"
        met = value >= least if least is not None else value <= most
        gap = "" if met else f" (gap: {value / (least if least is not None else most):.2f} of it)"
        return f"{text}: {'PASS' if met else 'not met'}{gap}"


def has_torch():
    code = "import torch; assert torch.cuda.is_available(); print(torch.__version__)"
    try:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                              timeout=120).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


# ---- Tables ----


def table(*head):
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head), flush=True)


def line(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def figure(result):
    return f"{result[0]:.4g}" if isinstance(result, tuple) else "-"


def ratio(results):
    """Returns the peer's time divided by ours."""
    if len(results) < 2 or not all(isinstance(r, tuple) for r in results):
        return "-"
    return f"{results[1][0] / results[0][0]:.2f}"


def failures(results):
    """Prints which programs failed. Returns whether ours was measured."""
    for who, result in zip(("ours", "the peer"), results):
        if isinstance(result, str):
            print(f"\n{who}: {result}", flush=True)
    return isinstance(results[0], tuple)


# ---- Parts ----


def kernels(bench):
    """Measures the copy and the product first, because other rates are given as shares of theirs."""
    rows, columns, square, logits = (16, 64, 32, 16) if bench.tiny else (1 << 18, 1024, 8192, 8192)
    gpt = {**(TINY if bench.tiny else SMALL), "batch": 1, "seq-len": 16 if bench.tiny else 64}
    n, v = 2.0 * rows * columns, 2.0 * logits * gpt["vocab"]
    flat, sizes = {"rows": rows, "columns": columns}, {"rows": logits, "vocab": gpt["vocab"]}
    done = bench.group([
        Row("copy", "copy", flat, 2 * n, "GB/s", 20, ()),
        Row(f"product of {square} x {square}", "gemm", dict.fromkeys(("rows", "columns", "inner"), square),
            2.0 * square ** 3, calls=10, peer=()),
        Row("layer norm", "norm", flat, 2 * n, "GB/s", 20, ()),
        Row("layer norm, backward", "norm-grad", flat, 3 * n, "GB/s", 20, ()),
        Row("softmax and loss", "loss", sizes, v, "GB/s", 20, ()),
        Row("softmax and loss, backward", "loss-grad", sizes, 2 * v, "GB/s", 20, ()),
        Row("AdamW of GPT-2", "adamw", gpt, 30.0 * parameters(gpt), "GB/s", 10, ("--tuned",))])
    bench.copy, bench.gemm = (best(done[i]) for i in (0, 1))
    table("kernel", "ours, ms", "peer, ms", "peer / ours", "rate", "share of the machine's", "aim")
    whole = True
    for row, results in done:
        rate = row.rate(results[0][0]) if isinstance(results[0], tuple) else None
        top = bench.gemm if row.program == "gemm" else bench.copy
        share = rate / top if rate and top else None
        aim = "" if row.program in ("copy", "gemm") else bench.aim("85 % of the copy", share, least=0.85)
        line(row.title, figure(results[0]), figure(results[1]) if len(results) > 1 else "-", ratio(results),
             rate_text(rate, row.unit), "-" if share is None else f"{share:.2f}", aim)
    for _, results in done:
        whole &= failures(results)
    print()
    return whole


def best(pair):
    """Returns the highest rate that a program has reached."""
    row, results = pair
    return max((row.rate(r[0]) for r in results if isinstance(r, tuple)), default=None)


def rate_text(rate, unit):
    if rate is None:
        return "-"
    return f"{rate / (1e12 if unit == 'TFLOP/s' else 1e9):.4g} {unit}"


def attention(bench):
    rows = []
    for length in (16, 32) if bench.tiny else (1024, 2048, 4096, 8192):
        batch, heads, size = (1, 2, 16) if bench.tiny else (32768 // length, 12, 64)
        sizes = {"batch": batch, "heads": heads, "hidden": heads * size, "seq-len": length}
        flops = 2.0 * batch * heads * length ** 2 * size
        rows += [Row(f"T {length}, forward", "attention", sizes, flops, calls=10, peer=()),
                 Row(f"T {length}, backward", "attention-grad", sizes, 2.5 * flops, calls=5, peer=())]
    done = bench.group(rows)
    table("attention, head 64, 12 heads, 32768 tokens", "ours, ms", "peer, ms", "peer / ours", "rate",
          "share of the product's")
    for row, results in done:
        rate = row.rate(results[0][0]) if isinstance(results[0], tuple) else None
        line(row.title, figure(results[0]), figure(results[1]) if len(results) > 1 else "-", ratio(results),
             rate_text(rate, row.unit), f"{rate / bench.gemm:.2f}" if rate and bench.gemm else "-")
    whole = True
    for _, results in done:
        whole &= failures(results)
    print()
    return whole


def parameters(gpt):
    h = gpt["hidden"]
    return gpt["vocab"] * h + POSITIONS * h + gpt["layers"] * (12 * h * h + 13 * h) + 2 * h


def flops_of_token(gpt, length):
    return 6.0 * (parameters(gpt) - POSITIONS * gpt["hidden"]) + 6.0 * gpt["layers"] * gpt["hidden"] * length


def step_row(title, gpt, batch, length, **more):
    return Row(title, "gpt2", {**gpt, "batch": batch, "seq-len": length}, flops_of_token(gpt, length) * batch * length,
               **more)


def gpt2(bench):
    """GPT-2 124M with batch 32 and 1024 tokens, next to torch.compile; then the host's time with a very small batch."""
    gpt, batch, length = (TINY, 2, 16) if bench.tiny else (SMALL, 32, 1024)
    compiled = ("--tuned", "--compile")
    (row, results), = bench.group([step_row(f"GPT-2 124M, B {batch}, T {length}", gpt, batch, length, calls=4,
                                            peer=compiled, asks=("peak",))])
    short = 16 if bench.tiny else 64
    (_, hosts), (_, captured) = bench.group(
        [step_row("host", gpt, 1, short, calls=4, peer=("--tuned",), rounds=1, asks=("host",)),
         step_row("captured", gpt, 1, short, calls=4, rounds=1, asks=("host",), flags=("--capture",))])
    table("GPT-2 124M bf16", "ours", "peer", "ratio", "aim")
    speed = [batch * length / r[0] * 1e3 if isinstance(r, tuple) else None for r in results] + [None]
    memory = [r[1].get("peak") if isinstance(r, tuple) else None for r in results] + [None]
    host, replay = ([1e3 * r[1]["host"] if isinstance(r, tuple) and r[1].get("host") else None for r in of] + [None]
                    for of in (hosts, captured))
    against = speed[0] / speed[1] if speed[0] and speed[1] else None
    aims = [bench.aim("1.10 of torch.compile", against, least=1.10)]
    if "H200" in bench.options.gpu:
        aims.append(bench.aim("505000 tokens/s", speed[0], least=505e3))
    line("tokens/s", number(speed[0]), number(speed[1]), number(against), "; ".join(aims))
    mfu_line(bench, row, results)
    share = memory[0] / memory[1] if memory[0] and memory[1] else None
    line("peak, MiB", number(memory[0], 2 ** -20), number(memory[1], 2 ** -20), number(share),
         bench.aim("0.75 of torch's", share, most=0.75))
    line("host, us a step, eager", number(host[0]), number(host[1]), "-", "")
    line("host, us a step, captured", number(replay[0]), "-", "-", bench.aim("100 us", replay[0], most=100))
    whole = failures(results) & failures(hosts) & failures(captured)
    print()
    return whole


def xl(bench):
    """GPT-2 1558M, without a peer: its target is a share of the GPU's rate."""
    gpt, batch, length = (TINY, 1, 16) if bench.tiny else (XL, 8, 1024)
    (row, results), = bench.group([step_row(f"GPT-2 1558M, B {batch}, T {length}", gpt, batch, length, calls=2,
                                            rounds=3, asks=("peak",))])
    table(f"GPT-2 1558M bf16, B {batch}, T {length}", "ours", "peer", "ratio", "aim")
    ours = results[0] if isinstance(results[0], tuple) else None
    line("tokens/s", number(batch * length / ours[0] * 1e3 if ours else None), "-", "-", "")
    mfu_line(bench, row, results, least=0.50)
    line("peak, MiB", number(ours[1].get("peak") if ours else None, 2 ** -20), "-", "-", "")
    whole = failures(results)
    print()
    return whole


def mfu_line(bench, row, results, least=None):
    rates = [row.rate(r[0]) if isinstance(r, tuple) else None for r in results] + [None]
    vendor = next((p for name, p in PEAKS.items() if name in bench.options.gpu), None)
    shares = [r / vendor if r and vendor else None for r in rates]
    line("MFU", number(shares[0]), number(shares[1]), "-",
         bench.aim(f"{least:.0%}", shares[0], least=least) if least else "")
    of = [r / bench.gemm if r and bench.gemm else None for r in rates]
    line("share of the measured product's rate", number(of[0]), number(of[1]), "-", "")


def number(x, scale=1):
    return "-" if x is None else f"{x * scale:.4g}" if abs(x * scale) < 1e4 else f"{x * scale:.0f}"


# The parts, and the seconds that each may take. After that its missing results are left out, and the next part begins.
PARTS = {"kernels": (kernels, 70), "gpt2": (gpt2, 150), "xl": (xl, 50), "attention": (attention, 70)}


if __name__ == "__main__":
    main()
