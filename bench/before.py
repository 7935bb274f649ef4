"""The rows of `bench/run.py --before`, which compare two builds of the library."""

from measure import command
from table import Row

NOTES = """The two builds measure in turn. Times are medians. The reference is the build given by --before. The ratio is
the median of the rounds' ratios: above 1, the library has become faster. The numbers in parentheses are the quartiles
of these ratios. Kernels use one thread; training steps use two unless a row says otherwise."""

SMALL_GPT = {"layers": 3, "heads": 4, "hidden": 128, "vocab": 2048, "batch": 8, "seq_len": 128, "calls": 10}
PRODUCT = {"rows": 512, "inner": 768, "columns": 3072}


def compared(threads):
    """Yields, for each row, its title, the row of tapegrad-bench, and the options."""
    for op in ("chain", "mlp"):
        yield f"{op}", op, {}
    yield "tape of 100,000 ops", "tape", {"rows": 100_000}
    yield "GPT of 3 layers", "gpt2", {"threads": threads, **SMALL_GPT}
    yield "GPT-2 124M f32, T64, 1 thread", "gpt2", {"threads": 1, "seq_len": 64}
    for dtype in ("f32", "bf16"):
        for length in (64, 256):
            yield f"GPT-2 124M {dtype}, T{length}", "gpt2", {"threads": threads, "seq_len": length, "dtype": dtype}
    for kernel in ("adamw", "copy", "gelu", "softmax", "norm", "norm-grad", "loss", "loss-grad", "attention",
                   "attention-grad", "linear", "read"):
        yield kernel, kernel, {}
    for form in ("nn", "nt", "tn"):
        yield f"product {form}", "gemm", {"form": form, **PRODUCT}


def rows(bench, build):
    for title, program, options in compared(bench.threads):
        old, new = command(program, build=build, **options), command(program, **options)
        m = bench.measure([old, new])
        low, high = m.quartiles(old, new)
        title = f"{title}: before / ours ({low:.3f} to {high:.3f})"
        yield Row(title, m.median(new), m.median(old), m.ratio(old, new))
