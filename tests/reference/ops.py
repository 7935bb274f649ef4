"""Compares every op of the table with PyTorch: results and gradients, in each float dtype, over shapes and strides.
scripts/compare runs it.

A row (op_rows.py) says how an op is called in both libraries. Both get the same rounded inputs, and the results of both
are compared with PyTorch's in float64. Errors are given in roundings of the dtype: half a unit in the last place of the
largest element. The exit status is 1 if the error of an op is far larger than PyTorch's, or if an op has no row.
"""

import argparse
import ctypes
import math
import sys

import torch
from torch.nn import functional as F

import bindings
from bindings import ALL_DIMS, dims, handles, shape

DTYPES = {"f64": (torch.float64, 2), "f32": (torch.float32, 1), "bf16": (torch.bfloat16, 3), "f16": (torch.float16, 4)}
ROUNDING = {"f64": 2.0**-53, "f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
I64, BOOL = 5, 13
LAYOUTS = ("rows", "transposed", "strided")
# An op that needs ranks and has no row. main() leaves out the mappings between ranks, which need them too.
WITHOUT = {"LinearWithGradAccumulationAndAsyncCommunication": "of ranks"}

tg = None
rows = {}


class Input:
    """An input of a row: floats uniform in [lo, hi), integers in [0, hi) ("index"), or random bools ("mask"). A frozen
    input requires no gradient."""

    def __init__(self, kind, size, lo=0.0, hi=0.0, frozen=False):
        self.kind, self.size, self.lo, self.hi, self.frozen = kind, size, lo, hi, frozen

    def make(self, dtype, generator):
        if self.kind == "index":
            return torch.randint(0, int(self.hi), self.size, generator=generator)
        if self.kind == "mask":
            return torch.rand(self.size, generator=generator) < 0.5
        x = torch.rand(self.size, generator=generator, dtype=torch.float64) * (self.hi - self.lo) + self.lo
        return x.to(dtype)


def N(*size, **more):
    return Input("float", size, -2.0, 2.0, **more)


def U(lo, hi, *size, **more):
    return Input("float", size, lo, hi, **more)


def I(classes, *size):
    return Input("index", size, hi=classes)


def M(*size):
    return Input("mask", size)


def row(name, ours, theirs, *cases):
    """Adds a row: functions that call the op here and in PyTorch. Each case is a list of inputs, which both take."""
    rows.setdefault(name, []).append((ours, theirs, cases))


# ---- Running ----

def lay(x, layout):
    """Returns a leaf that holds x in this layout, and functions that make a view equal to x from such a leaf: one for
    PyTorch's leaf and one for ours."""
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(-1, -2).contiguous(), lambda t: t.transpose(-1, -2), lambda h: tg.transpose(h, -1, -2)
    if layout == "strided" and x.dim() > 0 and x.is_floating_point():
        leaf = torch.stack((x, x), -1).flatten(-2) if x.numel() else x.repeat_interleave(2, -1)
        return leaf, lambda t: t[..., ::2], lambda h: tg.slice(h, -1, 0, 2**63 - 1, 2)
    return x.contiguous(), lambda t: t, lambda h: h


def cotangent(y):
    """Returns a fixed pattern of multiples of 1/8, which every dtype represents exactly."""
    k = torch.arange(y.numel(), dtype=torch.int64)
    return (((k * 37 + 11) % 31 - 15).to(torch.float64) / 8).reshape(y.shape)


def as_list(y):
    return list(y) if isinstance(y, (tuple, list)) else [y]


def run_theirs(f, leaves, views, frozen, dtype):
    """Returns PyTorch's results and gradients in dtype, as float64; None: no gradient."""
    leaves = [x.to(dtype) if x.is_floating_point() else x for x in leaves]
    leaves = [x.clone().requires_grad_(x.is_floating_point() and not fixed) for x, fixed in zip(leaves, frozen)]
    out = as_list(f(*[view(x) for view, x in zip(views, leaves)]))
    roots = [y for y in out if y.requires_grad]
    if roots:
        torch.autograd.backward(roots, [cotangent(y).to(y.dtype) for y in roots])
    return ([y.detach().double() for y in out],
            [x.grad.double() if x.grad is not None else None for x in leaves])


def read(h, size):
    """Returns the elements of our tensor h as a PyTorch tensor of this size."""
    n = tg.tg_numel(h)
    values = (ctypes.c_double * max(n, 1))()
    tg.tg_read_f64(h, ctypes.addressof(values), n)
    return torch.tensor(list(values)[:n], dtype=torch.float64).reshape(size)


def our_dtype(x):
    return {torch.int64: I64, torch.bool: BOOL}.get(x.dtype) or next(n for t, n in DTYPES.values() if t == x.dtype)


def from_torch(ctx, x):
    raw = x.detach().contiguous().reshape(-1).view(torch.uint8)
    return tg.tg_from_host(ctx, our_dtype(x), shape(*x.shape), raw.numpy().ctypes.data if x.numel() else None)


def size_of(h):
    return [tg.tg_dim(h, d) for d in range(tg.tg_ndim(h))]


def run_ours(ctx, f, leaves, views, frozen):
    """Returns our results and gradients, as float64; None: no gradient."""
    tg.tape = tg.tg_tape_new(ctx)
    ours = [from_torch(ctx, x) for x in leaves]
    for h, x, fixed in zip(ours, leaves, frozen):
        if x.is_floating_point() and not fixed:
            tg.tg_set_requires_grad(h, True)
    out = as_list(f(*[view(h) for view, h in zip(views, ours)]))
    if tg.tg_ctx_status(ctx):
        raise RuntimeError(tg.tg_ctx_message(ctx).decode())
    sizes = [size_of(y) for y in out]
    values = [read(y, size) for y, size in zip(out, sizes)]
    roots = [y for y in out if tg.tg_requires_grad(y)]
    if roots:
        seeds = [tg.tg_zeros(ctx, tg.tg_dtype_of(y), shape(*size_of(y))) for y in roots]
        for seed, y in zip(seeds, roots):
            v = cotangent(torch.empty(size_of(y)))
            if v.numel():
                tg.tg_write_f64(seed, v.contiguous().numpy().ctypes.data, v.numel())
        given = handles(seeds)
        address, kept = tg.options("tg_backward_opts", seeds=ctypes.addressof(given))
        tg.tg_backward_with(tg.tape, handles(roots), len(roots), address)
        for seed in seeds:
            tg.tg_drop(seed)
        del kept
    grads = [read(tg.tg_grad_of(h), x.shape) if tg.tg_requires_grad(h) and tg.tg_has_grad(h) else None
             for h, x in zip(ours, leaves)]
    status = tg.tg_ctx_message(ctx) if tg.tg_ctx_status(ctx) else None
    tg.tg_tape_free(tg.tape)
    for h in ours:
        tg.tg_drop(h)
    tg.tg_ctx_clear(ctx)
    if status:
        raise RuntimeError(status.decode())
    return values, grads


# ---- Comparing ----

def distance(got, want, rounding):
    """Returns the largest error, in roundings of the largest element. A missing gradient counts as zeros."""
    if got is None or want is None:
        same = got is None and want is None or not (got if want is None else want).any()
        return 0.0 if same else math.inf
    if got.shape != want.shape:
        return math.inf
    same = (got == want) | (got.isnan() & want.isnan())
    if same.all():
        return 0.0
    finite = want[want.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    far = (got - want).abs()[~same]
    return math.inf if far.isnan().any() or scale == 0 else far.max().item() / (scale * rounding)


def worst(got, want, rounding):
    if len(got) != len(want):
        return math.inf
    return max((distance(a, b, rounding) for a, b in zip(got, want)), default=0.0)


def compare(ctx, ours, theirs, inputs, name, layout, seed):
    """Returns the errors of the results and those of the gradients, each as (ours, PyTorch's). PyTorch's is NaN if it
    lacks the dtype."""
    dtype = DTYPES[name][0]
    generator = torch.Generator().manual_seed(seed)
    laid = [lay(x.make(dtype, generator), layout) for x in inputs]
    leaves, their_views, our_views = zip(*laid) if laid else ((), (), ())
    frozen = [x.frozen for x in inputs]
    want = run_theirs(theirs, leaves, their_views, frozen, torch.float64)
    got = run_ours(ctx, ours, leaves, our_views, frozen)
    try:
        other = run_theirs(theirs, leaves, their_views, frozen, dtype)
    except RuntimeError:  # on the CPU PyTorch does not have every op in 16 bits
        other = None
    errors = []
    for i in range(2):
        errors.append((worst(got[i], want[i], ROUNDING[name]),
                       worst(other[i], want[i], ROUNDING[name]) if other else math.nan))
    return errors


def cell(errors):
    """Returns the text of a table cell: our largest error / PyTorch's."""
    ours = max(e[0] for e in errors)
    other = max((e[1] for e in errors if not math.isnan(e[1])), default=math.nan)
    return f"{ours:.2g}" + ("" if math.isnan(other) else f" / {other:.2g}")


def check(errors, name):
    """Returns whether our errors are not far larger than PyTorch's own in this dtype."""
    limit = 2.0**14 if name == "f64" else 64.0
    return all(a <= max(limit, 8 * b if math.isfinite(b) else limit) for a, b in errors)


def main():
    global tg
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--library", required=True)
    arguments.add_argument("--op", help="compare only this op")
    arguments.add_argument("--out", help="write the table to this file")
    given = arguments.parse_args()
    tg = bindings.Library(given.library)
    import op_rows  # fills `rows`

    op_rows.fill(sys.modules[__name__])
    torch.set_num_threads(1)
    ctx = tg.tg_ctx_new(None)
    names = tg.names()
    names = names[: names.index("CopyToModelParallelRegion")]
    lines, failed, cases = [], 0, 0
    for op in [given.op] if given.op else names:
        if op in WITHOUT:
            continue
        if op not in rows:
            print(f"{op} has no row")
            failed += 1
            continue
        cells = []
        for dtype in DTYPES:
            all_errors = [[], []]
            for ours, theirs, listed in rows[op]:
                for k, inputs in enumerate(listed):
                    for layout in LAYOUTS:
                        try:
                            errors = compare(ctx, ours, theirs, inputs, dtype, layout, 7 + k)
                        except RuntimeError as e:
                            print(f"{op}, {dtype}, case {k}, {layout}: {e}")
                            tg.tg_ctx_clear(ctx)
                            errors = [(math.inf, 0.0)] * 2
                        cases += 1
                        for to, e in zip(all_errors, errors):
                            to.append(e)
                        if not all(check([e], dtype) for e in errors):
                            failed += 1
                            print(f"{op}, {dtype}, case {k}, {layout}: forward {errors[0]}, gradient {errors[1]}")
            cells += [cell(e) for e in all_errors]
        lines.append(f"| `{op}` | " + " | ".join(cells) + " |")
    if given.out:
        with open(given.out, "w") as f:
            f.write(HEAD.format(torch=torch.__version__.split("+")[0], cases=cases) + "\n".join(lines) + "\n")
    print(f"{len(lines)} ops, {cases} comparisons, {failed} failed")
    return 1 if failed else 0


HEAD = """# Comparison with PyTorch

This page compares the results of operations with PyTorch's, value and gradient. Read it when a program gives other
numbers here than there, to see how large a difference is normal for an operation. Operations that need several ranks
are left out.

```
scripts/compare                        # compares every operation; installs PyTorch from PyPI
scripts/compare --op softmax           # one operation
scripts/compare --out docs/pytorch.md  # writes this page
```

The version was PyTorch {torch}, with {cases} comparisons. The comparisons of an operation differ in shapes, strides
(row-major, the last two dims swapped, every second element) and dtypes. Both libraries get the same rounded inputs,
and begin backward with the same gradients of the results. Both results are compared with those of PyTorch in float64.

A cell has our error / PyTorch's error, each the greatest of all comparisons. The unit is one rounding of the dtype
(2^-53, 2^-24, 2^-8 or 2^-11) of the largest element. In float64 our result is compared with PyTorch's, so PyTorch's
error is 0. A cell with one number has our error; PyTorch's CPU lacks the dtype there. Losses of 16-bit tensors are
summed in float32 here.

The gradients of three operations differ on purpose. That of `clamp` at an element that equals a bound is 1 here and 0
in PyTorch. Those of `maximum` and `minimum` where an input is NaN are NaN here; PyTorch passes the gradient on to both
inputs.

| op | f64 forward | gradient | f32 forward | gradient | bf16 forward | gradient | f16 forward | gradient |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""

if __name__ == "__main__":
    sys.exit(main())
