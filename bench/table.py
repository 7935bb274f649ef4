"""The rows of bench/run.py: which programs are compared, and the target of their ratio. A target (A, B) is A with
AVX-512 and B with AVX2 only.
"""

import dataclasses
import subprocess
import sys
import time

from measure import command

NOTES = """The programs of a comparison measure in turn. Figures are medians, and ratios are medians of the rounds'
ratios. Two threads are used unless a row says otherwise. The floor of a step consists of its products, batched products
of attention, element-wise passes and one AdamW pass, called directly on buffers of the same sizes; its attention
computes all scores, while that of the step skips the tiles above the diagonal. OpenBLAS is NumPy's. oneDNN is called
through the op that torch.compile uses on the CPU, which copies a transposed first operand in each call (in bf16
PyTorch's own product, which is oneDNN's too, does not); the fastest counts. Rates of memory are the bytes that must
move, relative to those that memcpy moves in the same time; 16 MiB fit into the last cache of many CPUs. In bf16 the
peer's step is autocast over float32 weights; ours has bf16 weights with float32 masters. The bytes of a node are
everything that grows with the tape in resident memory except the tensors' own bytes: the node, the handle of its result
in this and the last step, its storage, and the allocator's descriptor. docs/performance.md explains the results of
kernels."""


@dataclasses.dataclass
class Row:
    title: str
    ours: object
    other: object
    ratio: float
    target: object = None
    most: bool = False  # true: the target is an upper bound of the ratio
    bf16: bool = False


def alone(bench, title, *ours):
    """Returns a row without a peer, for bf16 without AVX512-BF16: there PyTorch takes minutes and ours seconds."""
    m = bench.measure(ours, 3)
    return Row(title, sum(map(m.median, ours)), "", None, bf16=True)


# ---- Steps of GPT-2 124M ----

LENGTHS = (64, 256)
TUNED = {("f32", 64): (1.9, 1.15), ("f32", 256): (1.5, 1.15), ("bf16", 64): 1.35, ("bf16", 256): 1.3}
INSTALLED = {("f32", 64): (2.5, 1.5)}


def steps(bench):
    for dtype, bf16 in (("f32", False), ("bf16", True)):
        for length in LENGTHS:
            asked = {"dtype": dtype, "seq_len": length, "threads": bench.threads}
            ours, floor = command("gpt2", **asked), command("floor", **asked)
            tuned = command("gpt2", "tuned", **asked)
            name = f"GPT-2 124M {dtype}, B4 T{length}, ms a step"
            title = f"{name}: tuned PyTorch / ours"
            if bf16 and not bench.bf16:
                yield alone(bench, title, ours)
                continue
            others = [tuned, floor]
            if (dtype, length) in INSTALLED:
                others.append(command("gpt2", "as installed", **asked))
            m = bench.measure([ours, *others])
            mine = m.median(ours)
            yield Row(title, mine, m.median(tuned), m.ratio(tuned, ours), TUNED[dtype, length], bf16=bf16)
            if len(others) > 2:
                yield Row(f"{name}: PyTorch as installed / ours", mine, m.median(others[2]), m.ratio(others[2], ours),
                          INSTALLED[dtype, length])
            yield Row(f"{name}: ours / the floor", mine, m.median(floor), m.ratio(ours, floor), 1.10, most=True,
                      bf16=bf16)


def threads(bench):
    one, two = (command("gpt2", threads=n) for n in (1, 2))
    m = bench.measure([one, two])
    yield Row("GPT-2 124M f32, B4 T64, ms a step: 1 thread / 2", m.median(two), m.median(one), m.ratio(one, two), 1.65)


# ---- Small programs ----


def small(bench):
    """PyTorch's step frees its gradients: for such small tensors this is faster than zeroing them and adding."""
    for title, program, target in (("chain of 1,000 ops of one element, ns an op", "chain", 25),
                                ("MLP 16-16-16-1, batch 1, us a step", "mlp", 40)):
        ours, peer = (command(program, p, threads=bench.threads) for p in ("", "tuned"))
        m = bench.measure([ours, peer])
        yield Row(f"{title}: PyTorch / ours", m.median(ours), m.median(peer), m.ratio(peer, ours), target)


def neighbors(bench):
    """The speed of a step while other programs keep both cores busy, as a share of its speed on a quiet machine. If
    they have the same priority, a fair scheduler gives the step half of the cores, so 0.5 is to be expected."""
    asked = {"layers": 3, "heads": 4, "hidden": 128, "vocab": 2048, "batch": 8, "seq_len": 128, "calls": 10}
    ours, peer = (command("gpt2", p, threads=bench.threads, **asked) for p in ("", "tuned"))
    places = {"quiet": (0, 0), "two loops of priority 19": (2, 19), "two loops of the same priority": (2, 0)}
    found = bench.measure_next_to([ours, peer], places)
    quiet = found.pop("quiet")
    for name, m in found.items():
        kept = {c: quiet.median(c) / m.median(c) for c in (ours, peer)}
        yield Row(f"GPT of 3 layers next to {name}, share of its undisturbed speed: ours, PyTorch's, ours / PyTorch's",
                  kept[ours], kept[peer], kept[ours] / kept[peer], 1)


def start(bench):
    """The time from the start of the program to the end of its first three steps, after which it prints "ready"."""
    tiny = command("gpt2", layers=2, heads=2, hidden=32, vocab=64, seq_len=16, threads=bench.threads)
    times = []
    for _ in range(bench.rounds or 11):
        begun = time.perf_counter()
        with subprocess.Popen(tiny.argv(bench.binary), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            if process.stdout.readline() != b"ready\n":
                sys.exit("the tiny GPT-2 did not get ready")
            times.append(1e3 * (time.perf_counter() - begun))
            process.stdin.close()
    median = sorted(times)[len(times) // 2]
    yield Row("start of the program until three steps of a tiny GPT-2 are done, ms", median, "", median, 50, most=True)


# ---- Kernels over 4 Mi floats, one thread ----

WIDTH, COUNT = 1024, 4 << 20


def kernels(bench):
    flat = {"rows": COUNT // WIDTH, "columns": WIDTH, "calls": 10}
    classes = {"rows": COUNT // WIDTH, "vocab": WIDTH, "calls": 10}
    for title, program, options, target, moved in (("GELU", "gelu", flat, 2, 2), ("softmax", "softmax", flat, 1.3, 2),
                                                ("layer norm", "norm", flat, 1.3, 2),
                                                ("cross-entropy", "loss", classes, 1.3, 1)):
        ours, peer, copy = command(program, **options), command(program, "tuned", **options), command("copy", **flat)
        m = bench.measure([ours, peer, copy], 21)
        yield Row(f"{title}, 4 Mi floats, 1 thread, ms: PyTorch / ours", m.median(ours), m.median(peer),
                  m.ratio(peer, ours), target)
        yield Row(f"{title}, 1 thread: its rate / memcpy's", m.median(ours), m.median(copy),
                  m.ratio(copy, ours, moved / 2), 0.85)
    yield from adamw(bench)


def adamw(bench):
    """AdamW over all parameters of GPT-2. It reads four arrays and writes three; a copy reads one and writes one."""
    ours, peer = command("adamw"), command("adamw", "tuned")
    copy = command("copy", rows=parameters(12) // WIDTH, columns=WIDTH)
    m = bench.measure([ours, peer, copy])
    yield Row("AdamW of 124M, 1 thread, ms: PyTorch's fused / ours", m.median(ours), m.median(peer),
              m.ratio(peer, ours))
    yield Row("AdamW, 1 thread: its rate / memcpy's", m.median(ours), m.median(copy), m.ratio(copy, ours, 7 / 2), 0.85)


# ---- Products ----

HIDDEN, VOCAB, ROWS_OF_STEP, MOST_ROWS = 768, 50257, 256, 512  # rows of logits at once
LAYERS = (("qkv", ROWS_OF_STEP, 3 * HIDDEN, HIDDEN), ("projection", ROWS_OF_STEP, HIDDEN, HIDDEN),
          ("up", ROWS_OF_STEP, 4 * HIDDEN, HIDDEN), ("down", ROWS_OF_STEP, HIDDEN, 4 * HIDDEN),
          ("logits", ROWS_OF_STEP, VOCAB, HIDDEN))


def forms(rows, out, width):
    """The three products of a linear layer, as m, n, k."""
    yield "forward", "nt", rows, out, width
    yield "input's gradient", "nn", rows, width, out
    yield "weight's gradient", "tn", out, width, rows


def products(bench):
    for dtype, libraries, target in (("f32", ("openblas", "onednn"), 0.95), ("bf16", ("torch", "onednn"), 1.0)):
        for layer, *sizes in LAYERS:
            for what, form, m, n, k in forms(*sizes):
                options = {"dtype": dtype, "form": form, "rows": m, "columns": n, "inner": k, "threads": bench.threads,
                           "calls": max(1, int(2e9 / (m * n * k)))}
                title = f"product {dtype}, {layer}, {what} [{m}, {n}, {k}], ms: best of {', '.join(libraries)} / ours"
                yield best(bench, title, "gemm", options, libraries, target, 9)


def best(bench, title, program, options, libraries, target, rounds):
    """Returns a row with our time and that of the fastest library."""
    ours = command(program, **options)
    if options["dtype"] == "bf16" and not bench.bf16:
        return alone(bench, title, ours)
    others = [command(program, "tuned", library=name, **options) for name in libraries]
    m = bench.measure([ours, *others], rounds)
    fastest = min(others, key=m.median)
    return Row(title, m.median(ours), m.median(fastest), m.ratio(fastest, ours), target,
               bf16=options["dtype"] == "bf16")


def generation(bench):
    """Products of a few rows, as in generation, with the weights "down" of 12 layers: 113 MB in float32, which no cache
    holds."""
    options = {"dtype": "f32", "columns": HIDDEN, "inner": 4 * HIDDEN, "layers": 12, "threads": bench.threads}
    ours = command("linear", rows=1, **options)
    read = command("read", rows=12 * HIDDEN, columns=4 * HIDDEN, threads=bench.threads)
    m = bench.measure([ours, read], 21)
    yield Row("linear of 1 row, weights not in cache, ms: its rate / reading's", m.median(ours), m.median(read),
              m.ratio(read, ours), 0.85)
    yield best(bench, "linear of 8 rows, weights not in cache, ms: best of openblas, onednn / ours", "linear",
               options | {"rows": 8}, ("openblas", "onednn"), 1.4, 21)


# Models for generation: layers, heads, hidden size. Tokens of a measurement.
DECODED, TOKENS = {"124M": (12, 12, 768), "350M": (24, 16, 1024)}, 8


def decoding(bench):
    """A token of one, two and four samples, with weights of random numbers. `read` reads as many bytes as a token needs,
    as often: all weights but the table of positions, of which a token takes one row."""
    for name, (layers, heads, hidden) in DECODED.items():
        for dtype, bf16 in (("f32", False), ("bf16", True)):
            size = {"layers": layers, "heads": heads, "hidden": hidden, "dtype": dtype, "threads": bench.threads}
            rows = VOCAB + layers * (12 * hidden + 13) + 2
            read = command("read", rows=rows, columns=hidden, dtype=dtype, threads=bench.threads, calls=TOKENS)
            for batch in (1, 2, 4):
                ours = command("decode", batch=batch, calls=TOKENS, **size)
                peer = command("decode", "as installed", batch=batch, calls=TOKENS, **size)
                m = bench.measure([ours, peer, read], 5)
                title, megabytes = f"GPT-2 {name} {dtype}, batch {batch}", rows * hidden * (2 if bf16 else 4) / 1e6
                yield Row(f"{title}, GB/s of weights: a token's / reading's", megabytes / m.median(ours),
                          megabytes / m.median(read), m.ratio(read, ours), 0.8, bf16=bf16)
                yield Row(f"{title}, tokens a second: ours / transformers'", 1e3 * batch / m.median(ours),
                          1e3 * batch / m.median(peer), m.ratio(peer, ours), 1, bf16=bf16)
    for dtype, bf16 in (("f32", False), ("bf16", True)):
        size = {"seq_len": 512, "dtype": dtype, "threads": bench.threads}
        ours, forward = (command(p, **size) for p in ("prompt", "forward"))
        m = bench.measure([ours, forward], 5)
        yield Row(f"GPT-2 124M {dtype}, a prompt of 512, tokens a second: ours / the forward of training",
                  512e3 / m.median(ours), 512e3 / m.median(forward), m.ratio(forward, ours), 1, bf16=bf16)


def attention(bench):
    for dtype, target in (("f32", 1.8), ("bf16", 1.5)):
        for length in (256, 512, 1024, 2048, 4096):
            options = {"dtype": dtype, "batch": max(1, 1024 // length), "seq_len": length, "threads": bench.threads,
                       "calls": max(1, 4096 // length)}
            ours = [command(p, **options) for p in ("attention", "attention-grad")]
            peer = [command(p, "tuned", **options) for p in ("attention", "attention-grad")]
            title = f"attention {dtype}, T {length}, forward and backward, ms: PyTorch / ours"
            if dtype == "bf16" and not bench.bf16:
                yield alone(bench, title, *ours)
                continue
            m = bench.measure(ours + peer, 7)
            yield Row(title, sum(map(m.median, ours)), sum(map(m.median, peer)), m.ratio(peer, ours), target,
                      bf16=dtype == "bf16")


# ---- Memory ----


def parameters(layers):
    positions = 1024
    return VOCAB * HIDDEN + positions * HIDDEN + layers * (12 * HIDDEN**2 + 13 * HIDDEN) + 2 * HIDDEN


def theory(layers, rows, recompute):
    """Returns the least peak in bytes: 16 per parameter; what a layer saves in float32 without masks and scores, which
    is 64 s b h (Korthikanti et al., arXiv 2205.05198), or with recomputation its input and what one layer saves; the
    inputs of the last norm and of the head; and a chunk of logits."""
    layer, its_input = 64 * rows * HIDDEN, 4 * rows * HIDDEN
    saved = layers * its_input + layer if recompute else layers * layer
    return 16 * parameters(layers) + saved + 2 * its_input + 4 * min(rows, MOST_ROWS) * VOCAB


def memory(bench):
    mega = 1e6
    for length in LENGTHS:
        ours, peer = (command("gpt2", p, seq_len=length, threads=bench.threads) for p in ("", "tuned"))
        again = command("gpt2", seq_len=length, threads=bench.threads, recompute=True)
        m = bench.measure([ours, again], 1, ask=("peak", "rss"))
        n = bench.measure([peer], 1, ask=("rss",))
        for one, what, recompute in ((ours, "", False), (again, " with full recomputation", True)):
            least = theory(12, 4 * length, recompute)
            yield Row(f"peak of a step f32, B4 T{length}{what}, MB: allocator / theory", m[one, "peak"] / mega,
                      least / mega, m[one, "peak"] / least, 1.05, most=True)
        yield Row(f"resident set f32, B4 T{length}, MB: ours / tuned PyTorch's", m[ours, "rss"] / mega,
                  n[peer, "rss"] / mega, m[ours, "rss"] / n[peer, "rss"], 0.70, most=True)


# ---- Scaling ----


def tape(bench):
    sizes = (1000, 10_000, 100_000, 1_000_000)
    commands = [command("tape", rows=n, threads=bench.threads) for n in sizes]
    m = bench.measure(commands, 7, ask=("rss", "peak"))
    times = [m.median(c) for c in commands]
    said = ", ".join(f"{t:.0f}" for t in times)
    yield Row("tapes of 10 k, 100 k, 1 M ops, ns an op: largest / smallest", said, "",
              max(times[1:]) / min(times[1:]), 1.3, most=True)
    yield Row("tapes of 1 k to 1 M ops: largest / smallest", said, "", max(times) / min(times), 1.6, most=True)
    held = [m[c, "rss"] - m[c, "peak"] for c in commands]
    node = (held[3] - held[2]) / (sizes[3] - sizes[2])
    yield Row("bytes of a node with its handles, without the tensor's own", node, "", node, 384, most=True)


def layers(bench):
    """Shallow models take more rounds, because the time of their steps depends little on the number of layers."""
    slopes = []
    for counts, rounds in (((2, 6, 12), 21), ((12, 24, 48), 7)):
        commands = [command("gpt2", layers=n, threads=bench.threads) for n in counts]
        m = bench.measure(commands, rounds)
        times = [m.median(c) for c in commands]
        slopes += [(t2 - t1) / (n2 - n1) for n1, n2, t1, t2 in zip(counts, counts[1:], times, times[1:])]
    yield Row("ms a layer between 2, 6, 12, 24, 48 layers: largest / smallest", ", ".join(f"{s:.1f}" for s in slopes),
              "", max(slopes) / min(slopes), 1.05, most=True)


ROWS = {f.__name__: f for f in (steps, threads, small, neighbors, start, kernels, products, generation, decoding, attention, memory,
                                tape, layers)}
