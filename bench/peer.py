"""PyTorch's side of the bench's rows: the same work in the same order, one measurement for each line of standard input
after it has printed "ready". bench/run.py runs it beside ours.

GPT-2 is written here, with scaled_dot_product_attention, so that no library around PyTorch is measured.
"""

import argparse
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

VOCAB, HIDDEN, HEADS, POSITIONS = 50257, 768, 12, 1024
WARM_UP = 3


def main():
    options = parse()
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    measure = {"chain": chain, "gpt2": gpt2}[options.row](options)
    for _ in range(WARM_UP):
        measure()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(f"{measure():.9g}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("row", choices=["chain", "gpt2"])
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: autocast over float32 weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tuned", action="store_true",
                        help="fused AdamW, gradients kept from step to step; run it under an allocator that keeps its "
                             "pages. Else as installed: the defaults of AdamW and zero_grad")
    return parser.parse_args()


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

    def measure():
        begun = time.perf_counter()
        for _ in range(chains):
            one()
        return (time.perf_counter() - begun) * 1e9 / (ops * chains)

    return measure


# ---- gpt2: milliseconds a training step ----


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.mix = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))

    def attention(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(HIDDEN, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.mix(y.transpose(1, 2).reshape(batch, length, HIDDEN))


class GPT2(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.ln_f = nn.LayerNorm(HIDDEN)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)

    def forward(self, ids, target):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, VOCAB), target.view(-1))


def gpt2(options):
    model = GPT2(options.layers)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if options.tuned else None)
    ids, target = torch.randint(VOCAB, (2, options.batch, options.seq_len))

    def measure():
        begun = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bf16"):
            loss = model(ids, target)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=not options.tuned)
        return 1e3 * (time.perf_counter() - begun)

    return measure


if __name__ == "__main__":
    main()
