"""The rows of tapegrad-bench in PyTorch, which do the same work in the same order. The program prints "ready", and then
makes one measurement for each line of standard input. bench/run.py and, on a GPU, bench/gpu.py run it in turn with
our program.

GPT-2 is written here, with scaled_dot_product_attention, so that no library on top of PyTorch is measured.
"""

import argparse
import ctypes
import glob
import pathlib
import resource
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

WARM_UP = 3
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def main():
    options = parse()
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    torch.set_default_device(options.device)
    measure, host = ROWS[options.row](options)
    for _ in range(WARM_UP):
        measure()
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    print("ready", flush=True)
    for line in sys.stdin:
        question = line.strip()
        answer = {"peak": lambda: peak(options), "host": host, "rss": resident}.get(question, measure)()
        print(f"{answer:.9g}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="GPT-2 in bf16: autocast over float32 weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--calls", type=int, default=1)
    for name, default in {"batch": 4, "seq-len": 64, "layers": 12, "heads": 12, "hidden": 768, "vocab": 50257,
                          "rows": 1024, "columns": 1024, "inner": 1024}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--form", choices=["nn", "nt", "tn"], default="nn",
                        help="which operand of a product is stored transposed (t) or not (n)")
    parser.add_argument("--library", choices=PRODUCTS, default="torch",
                        help="whose product: PyTorch's own choice, oneDNN's, or that of the OpenBLAS in NumPy's wheel")
    parser.add_argument("--tuned", action="store_true",
                        help="fused AdamW, and gradients kept from step to step; run it under an allocator that keeps "
                             "its pages. Without it: the defaults of AdamW and zero_grad")
    parser.add_argument("--compile", action="store_true", help="torch.compile of the model")
    return parser.parse_args()


def finish(options):
    if options.device == "cuda":
        torch.cuda.synchronize()


def peak(options):
    return torch.cuda.max_memory_allocated() if options.device == "cuda" else 0


def resident():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def per_call(once, options, scale=1e3):
    """Returns two functions: one measures the mean time of options.calls calls that are queued one after the other, the
    other the host's time for one call, without waiting for the device. scale: units per second."""

    def measure():
        finish(options)
        begun = time.perf_counter()
        for _ in range(options.calls):
            once()
        finish(options)
        return (time.perf_counter() - begun) * scale / options.calls

    def host():
        finish(options)
        begun = time.perf_counter()
        once()
        return (time.perf_counter() - begun) * scale

    return measure, host


# ---- chain: nanoseconds an op ----


def chain(options):
    ops, chains = 1000, 20
    x = torch.ones(1, requires_grad=True)
    a, b = torch.full((1,), 0.999), torch.full((1,), 0.001)

    def one():
        y = x
        for _ in range(ops // 2):
            y = y * a + b
        y.backward()
        x.grad = None

    options.calls = chains
    return per_call(one, options, 1e9 / ops)


# ---- mlp: microseconds a training step ----


def mlp(options):
    steps, width = 100, 16
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True if options.tuned else None)
    x, y = torch.randn(1, width), torch.randn(1, 1)

    def step():  # gradients are freed: with so few elements this is faster than setting them to zero and adding
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    options.calls = steps
    return per_call(step, options, 1e6)


# ---- gpt2: milliseconds a training step ----


class Layer(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.hidden, self.heads = hidden, heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.mix = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    def attention(self, x):
        batch, length, _ = x.shape
        parts = self.qkv(x).split(self.hidden, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.mix(y.transpose(1, 2).reshape(batch, length, self.hidden))


class GPT2(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.vocab = options.vocab
        self.wte = nn.Embedding(options.vocab, options.hidden)
        self.wpe = nn.Embedding(max(1024, options.seq_len), options.hidden)
        self.layers = nn.ModuleList(Layer(options.hidden, options.heads) for _ in range(options.layers))
        self.ln_f = nn.LayerNorm(options.hidden)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, ids, target):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, self.vocab), target.view(-1))


def gpt2_parts(options):
    model = GPT2(options)
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if options.tuned else None)
    ids, target = torch.randint(options.vocab, (2, options.batch, options.seq_len))

    def gradients():
        with torch.autocast(options.device, torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = run(ids, target)
        loss.backward()

    return optimizer, gradients


def gpt2(options):
    optimizer, gradients = gpt2_parts(options)

    def step():
        gradients()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not options.tuned or options.device == "cuda")

    return per_call(step, options)


def adamw(options):
    optimizer, gradients = gpt2_parts(options)
    gradients()
    return per_call(optimizer.step, options)


# ---- Generation: milliseconds a token ----


def decode(options):
    """transformers' generate with its key-value cache, on GPT-2 of random weights."""
    here = pathlib.Path(__file__).resolve().parent
    sys.path[:] = [p for p in sys.path if pathlib.Path(p).resolve() != here]  # it has a tokenizers.py of its own
    import transformers

    prompt, tokens = 16, options.calls
    config = transformers.GPT2Config(n_layer=options.layers, n_head=options.heads, n_embd=options.hidden,
                                     vocab_size=options.vocab)
    model = transformers.GPT2LMHeadModel(config).to(DTYPES[options.dtype]).eval()
    ids = torch.randint(options.vocab, (options.batch, prompt))

    def generate(n):
        begun = time.perf_counter()
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=n,
                           min_new_tokens=n, pad_token_id=0)
        return time.perf_counter() - begun

    def measure():
        first = generate(1)
        return 1e3 * (generate(1 + tokens) - first) / tokens

    return measure, None


# ---- Kernels: milliseconds a call ----


def normal(options, *shape):
    return torch.randn(*shape, dtype=DTYPES[options.dtype])


def copy(options):
    source = normal(options, options.rows, options.columns)
    target = torch.empty_like(source)
    return per_call(lambda: target.copy_(source), options)


# Products C = A B of A [rows, inner] and B [inner, columns]. Each function returns one that computes the product.


def torch_product(a, b, options):
    c = torch.empty(options.rows, options.columns, dtype=DTYPES[options.dtype])
    return lambda: torch.mm(a, b, out=c)


def onednn_product(a, b, _):
    """Uses the op that torch.compile calls on the CPU: a linear layer with weight B^T, of any strides."""
    weight = b.t()

    def once():
        return torch.ops.mkldnn._linear_pointwise(a, weight, None, "none", [], "")

    torch.testing.assert_close(once(), a @ b, rtol=2e-2, atol=2e-2 * a.shape[1] ** 0.5)
    return once


def openblas_product(a, b, options):
    row_major, plain, transposed = 101, 111, 112  # CBLAS's constants
    if options.dtype != "f32":
        sys.exit("OpenBLAS multiplies float32 here")
    blas = openblas(options.threads)
    c = torch.empty(options.rows, options.columns)
    order = [transposed if x.stride(0) == 1 and x.shape[0] > 1 else plain for x in (a, b)]
    longs = [ctypes.c_int64(v) for v in (options.rows, options.columns, options.inner)]
    lead = [ctypes.c_int64(max(x.stride())) for x in (a, b, c)]
    pointers = [ctypes.c_void_p(x.data_ptr()) for x in (a, b, c)]
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    arguments = (row_major, *order, *longs, one, pointers[0], lead[0], pointers[1], lead[1], zero, pointers[2], lead[2])

    def once():
        blas(*arguments)

    once.keeps = a, b, c
    torch.testing.assert_close((once(), c)[1], a @ b, rtol=1e-3, atol=1e-2)
    return once


def openblas(threads):
    """Returns cblas_sgemm of the OpenBLAS in NumPy's wheel, which has 64-bit sizes."""
    import numpy

    found = glob.glob(str(pathlib.Path(numpy.__file__).parents[1] / "numpy.libs" / "libscipy_openblas64*.so*"))
    if not found:
        sys.exit("this NumPy brings no OpenBLAS")
    library = ctypes.CDLL(found[0])
    library.scipy_openblas_set_num_threads64_(threads)
    return library.scipy_cblas_sgemm64_


PRODUCTS = {"torch": torch_product, "onednn": onednn_product, "openblas": openblas_product}


def operand(options, m, n, transposed):
    return normal(options, n, m).t() if transposed else normal(options, m, n)


def gemm(options):
    a = operand(options, options.rows, options.inner, options.form == "tn")
    b = operand(options, options.inner, options.columns, options.form == "nt")
    return per_call(PRODUCTS[options.library](a, b, options), options)


def linear(options):
    """Multiplies a few rows by many weights one after the other, so that no cache holds the weights."""
    a = normal(options, options.rows, options.inner)
    weights = [normal(options, options.columns, options.inner).t() for _ in range(options.layers)]
    products = [PRODUCTS[options.library](a, w, options) for w in weights]

    def once():
        for product in products:
            product()

    return per_call(once, options)


def forward_of(f):
    """Makes a row that measures, without gradients, the function that f(options) returns with its inputs."""

    def row(options):
        run, inputs = f(options)
        run = torch.compile(run) if options.compile else run

        def once():
            with torch.no_grad():
                run(*inputs)

        return per_call(once, options)

    return row


def backward_of(f):
    """Makes a row that measures only the gradient of the function that f(options) returns with its inputs."""

    def row(options):
        run, inputs = f(options)
        run = torch.compile(run) if options.compile else run
        wanted = [x.requires_grad_() for x in inputs if x.is_floating_point()]
        out = run(*inputs)
        seed = torch.randn_like(out)
        return per_call(lambda: torch.autograd.grad(out, wanted, seed, retain_graph=True), options)

    return row


def gelu(options):
    return F.gelu, [normal(options, options.rows, options.columns)]


def softmax(options):
    return lambda x: F.softmax(x, dim=-1), [normal(options, options.rows, options.columns)]


def norm(options):
    x = normal(options, options.rows, options.columns)
    w, b = normal(options, options.columns), normal(options, options.columns)
    return lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b), [x, w, b]


def loss(options):
    logits = normal(options, options.rows, options.vocab)
    target = torch.arange(options.rows) * 7919 % options.vocab
    return lambda x, y: F.cross_entropy(x, y, reduction="none"), [logits, target]


def attention(options):
    shape = options.batch, options.heads, options.seq_len, options.hidden // options.heads
    inputs = [normal(options, *shape) for _ in range(3)]
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), inputs


ROWS = {"decode": decode, "chain": chain, "mlp": mlp, "gpt2": gpt2, "adamw": adamw, "copy": copy, "gemm": gemm, "linear": linear,
        "gelu": forward_of(gelu), "softmax": forward_of(softmax),
        "norm": forward_of(norm), "norm-grad": backward_of(norm),
        "loss": forward_of(loss), "loss-grad": backward_of(loss),
        "attention": forward_of(attention), "attention-grad": backward_of(attention)}


if __name__ == "__main__":
    main()
