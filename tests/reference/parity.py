"""Compares training with PyTorch from the same weights, on the same sequences, with the same hyperparameters.

scripts/parity runs it. The short run compares the loss of every step, for both architectures, in float32 and float64.
It also prints how far the gradient norms differ. The long run (--long) compares the validation loss after 1,000 steps
on English text.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import torch
from torch.nn import functional as F

import hf

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Recipe:
    """The options of a run, for both libraries."""

    steps: int
    batch: int
    seq_len: int
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 30
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    val_fraction: float = 0.0

    def lr_of(self, step):
        """Returns the learning rate: linear warm-up, then a cosine. The first update is step 1."""
        if step <= self.warmup:
            return self.lr * step / self.warmup
        x = (step - self.warmup) / (self.steps - self.warmup)
        return self.min_lr + 0.5 * (math.cos(math.pi * x) + 1) * (self.lr - self.min_lr)

    def train_tokens(self, tokens):
        return len(tokens) - int(self.val_fraction * len(tokens))

    def flags(self):
        """Returns the options as arguments of tapegrad train."""
        named = {f.name.replace("_", "-"): getattr(self, f.name) for f in dataclasses.fields(self)}
        return [str(a) for name, value in named.items() for a in ("--" + name, value)]


# ---- PyTorch's side ----


def batch_at(tokens, offsets, seq_len):
    rows = torch.stack([tokens[o:o + seq_len + 1] for o in offsets])
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, ids, target):
    logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def make_optimizer(model, r):
    params = list(model.parameters())
    groups = [{"params": [p for p in params if p.ndim > 1], "weight_decay": r.weight_decay},
              {"params": [p for p in params if p.ndim == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=r.lr, betas=(r.beta1, r.beta2), eps=r.eps)


def train_torch(model, tokens, order, r):
    """Trains the model. Returns the loss and the gradient norm of each step."""
    optimizer = make_optimizer(model, r)
    curve = []
    for step in range(1, r.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = r.lr_of(step)
        loss = loss_of(model, *batch_at(tokens, order[step - 1], r.seq_len))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), r.clip)
        optimizer.step()
        curve.append((loss.item(), norm.item()))
    return np.array(curve)


def validate_torch(model, tokens, r):
    """Returns the mean loss over the tokens after those of training."""
    first = r.train_tokens(tokens)
    offsets = [first + i * r.seq_len for i in range((len(tokens) - first - 1) // r.seq_len)]
    total = 0.0
    with torch.no_grad():
        for i in range(0, len(offsets), r.batch):
            some = offsets[i:i + r.batch]
            total += loss_of(model, *batch_at(tokens, some, r.seq_len)).item() * len(some)
    return total / len(offsets)


# ---- Tapegrad's side ----


def run_directory(init, precision):
    return init.parent / f"run-{init.name}-{precision}"


def train_tapegrad(program, data, init, order_file, precision, r, val_every):
    """Runs tapegrad train. Returns the lines of its metrics."""
    out = run_directory(init, precision)
    shutil.rmtree(out, ignore_errors=True)
    command = [program, "train", "--data", data, "--init", init, "--order", order_file, "--out", out,
               "--precision", precision, "--lr-schedule", "cosine", "--threads", 2, "--checkpoint-every", 0,
               "--log-every", r.steps, "--val-every", val_every, *r.flags()]
    if val_every:
        command += ["--val-batches", 0]
    subprocess.run([str(a) for a in command], check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


# ---- The comparison ----


def configs(r):
    """Returns the models of the short run. Llama has grouped-query attention."""
    return {"gpt2": hf.gpt2_config(256, 3, 4, 64, r.seq_len),
            "llama": hf.llama_config(256, 3, 4, 2, 64, 160, r.seq_len)}


def draw_order(path, count, r):
    """Draws the offset of each sequence of each step, among `count` tokens, and writes them to path."""
    last = count - r.seq_len - 1
    order = np.random.default_rng(1).integers(0, last, size=(r.steps, r.batch), endpoint=True, dtype=np.int64)
    order.astype("<i8").tofile(path)
    return order


def save_initial(arch, config, work):
    """Saves a model with the random weights with which transformers would begin training."""
    torch.manual_seed(1)
    model = hf.model_of(config)
    model.save_pretrained(work / arch)
    return model


def load_initial(arch, work, precision):
    model = hf.load(work / arch)
    return (hf.double(model) if precision == "fp64" else model).train()


def report(what, error, bar):
    """Prints an error and its limit. Returns whether the error is within it."""
    print(f"{what:<40} {error:10.2e}   bar {bar:.0e}   {'PASS' if error <= bar else 'FAIL'}", flush=True)
    return error <= bar


def compare(arch, precision, bar, tokens, data, work, program, r):
    """Trains one model with both libraries. Returns whether the losses agree at every step."""
    order = draw_order(work / "order", len(tokens), r)
    theirs = train_torch(load_initial(arch, work, precision), tokens, order, r)
    lines = train_tapegrad(program, data, work / arch, work / "order", precision, r, val_every=0)
    ours = np.array([(line["loss"], line["grad_norm"]) for line in lines])
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    error = np.abs(ours - theirs)
    loss_error, norm_error = error[:, 0].max(), (error[:, 1] / theirs[:, 1]).max()
    np.savetxt(work / f"{arch}-{precision}.txt", np.hstack([ours, theirs]), header="loss grad_norm, ours and torch's")
    passed = report(f"{arch} {precision} loss, {r.steps} steps", loss_error, bar)
    print(f"{'':4}from {theirs[0, 0]:.4f} to {theirs[-1, 0]:.4f}; the largest difference at step "
          f"{error[:, 0].argmax() + 1}; gradient norms differ by {norm_error:.1e} of themselves at most")
    return passed


def short(options, work):
    data = ROOT / "LICENSE"
    tokens = torch.tensor(np.frombuffer(data.read_bytes(), dtype=np.uint8).astype(np.int64))
    r = Recipe(steps=options.steps, batch=8, seq_len=64)
    passed = True
    for arch, config in configs(r).items():
        save_initial(arch, config, work)
        for precision, bar in (("fp32", 2e-5), ("fp64", 1e-8)):
            passed &= compare(arch, precision, bar, tokens, data, work, options.tapegrad, r)
    return passed


def long(options, work):
    data = pathlib.Path(options.text)
    tokens = torch.tensor(np.frombuffer(data.read_bytes(), dtype=np.uint8).astype(np.int64))
    r = Recipe(steps=1000, batch=16, seq_len=128, warmup=50, val_fraction=0.05)
    passed = True
    for arch, config in {"gpt2": hf.gpt2_config(256, 4, 4, 128, r.seq_len),
                         "llama": hf.llama_config(256, 4, 4, 2, 128, 384, r.seq_len)}.items():
        save_initial(arch, config, work)
        order = draw_order(work / "order", r.train_tokens(tokens), r)
        model = load_initial(arch, work, "fp32")
        theirs = train_torch(model, tokens, order, r)
        their_val = validate_torch(model, tokens, r)
        lines = train_tapegrad(options.tapegrad, data, work / arch, work / "order", "fp32", r, val_every=r.steps)
        our_val = lines[-1]["val_loss"]
        passed &= report(f"{arch} fp32 validation loss, {r.steps} steps", abs(our_val - their_val), 0.01)
        loaded = validate_torch(hf.load(run_directory(work / arch, "fp32")), tokens, r)
        passed &= report(f"{arch} ours, loaded by transformers", abs(our_val - loaded), 1e-4)
        print(f"{'':4}ours {our_val:.5f}, torch's {their_val:.5f}; training losses differ by "
              f"{max(abs(line['loss'] - t[0]) for line, t in zip(lines, theirs)):.1e} at most")
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tapegrad", required=True, help="the program")
    parser.add_argument("--work", required=True, help="a directory for models, orders and runs")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--text", help="text file for --long")
    parser.add_argument("--long", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(2)
    work = pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    print(f"torch {torch.__version__}")
    return 0 if (long if options.long else short)(options, work) else 1


if __name__ == "__main__":
    sys.exit(main())
