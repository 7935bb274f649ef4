"""The rows of ops.py: for each op how it is called here and in PyTorch, and on which inputs."""

import torch
from torch.nn import functional as F


def fill(o):
    tg, row, N, U, I, M = o.tg, o.row, o.N, o.U, o.I, o.M
    dims, shape, handles, ALL = o.dims, o.shape, o.handles, o.ALL_DIMS
    some = ([N(7)], [N(3, 5)], [N(2, 3, 4)], [N()], [N(64, 33)])
    positive = ([U(0.1, 3, 7)], [U(0.1, 3, 3, 5)], [U(0.1, 3, 64, 33)])
    inner = ([U(-0.9, 0.9, 7)], [U(-0.9, 0.9, 3, 5)])

    # Unary
    for name in ("neg", "abs", "exp", "square", "sin", "cos", "tanh", "sigmoid", "erf", "atan", "sinh", "cosh", "expm1",
                 "sign", "floor", "ceil", "round", "trunc", "asinh", "exp2", "erfc"):
        row(name, getattr(tg, name), getattr(torch, name), *some)
    for name in ("log", "sqrt", "rsqrt", "reciprocal", "log1p", "log2", "log10"):
        row(name, getattr(tg, name), getattr(torch, name), *positive)
    for name in ("tan", "asin", "acos", "atanh"):
        row(name, getattr(tg, name), getattr(torch, name), *inner)
    row("acosh", tg.acosh, torch.acosh, [U(1.1, 9, 7)], [U(1.1, 9, 3, 5)])
    for name in ("relu", "silu", "gelu", "mish", "softsign", "hardswish"):
        row(name, getattr(tg, name), getattr(F, name), *some)
    # The gradient of F.hardsigmoid has the factor 1/6 in float32 only.
    row("hardsigmoid", tg.hardsigmoid, lambda x: F.relu6(x + 3) / 6, *some)
    row("gelu_tanh", tg.gelu_tanh, lambda x: F.gelu(x, approximate="tanh"), *some)
    for name in ("isnan", "isinf", "isfinite", "logical_not"):
        f, g = getattr(tg, name), getattr(torch, name)
        row(name, lambda x, f=f: f(tg.log(x)), lambda x, g=g: g(x.log()), *some)
        row(name, lambda x, f=f: f(tg.log(tg.relu(x))), lambda x, g=g: g(x.relu().log()), *some)
    row("log_sigmoid", tg.log_sigmoid, F.logsigmoid, *some)
    row("hardtanh", lambda x: tg.hardtanh(x, -1, 0.5), lambda x: F.hardtanh(x, -1, 0.5), *some)
    row("bitwise_not", tg.bitwise_not, torch.bitwise_not, [M(7)], [M(3, 5)], [I(90, 3, 5)])
    row("leaky_relu", lambda x: tg.leaky_relu(x, 0.1), lambda x: F.leaky_relu(x, 0.1), *some)
    row("elu", lambda x: tg.elu(x, 0.7), lambda x: F.elu(x, 0.7), *some)
    row("softplus", lambda x: tg.softplus(x, 2, 3), lambda x: F.softplus(x, 2, 3), *some)
    row("pow_scalar", lambda x: tg.pow_scalar(x, 2.5), lambda x: x**2.5, *positive)
    # At an element that equals a bound our gradient is 1 and PyTorch's is 0. No input equals these bounds.
    row("clamp", lambda x: tg.clamp(x, -1.01, 0.51), lambda x: x.clamp(-1.01, 0.51), *some)
    row("scale", lambda x: tg.scale(x, 1.25), lambda x: x * 1.25, *some)
    row("add_scalar", lambda x: tg.add_scalar(x, 1.25), lambda x: x + 1.25, *some)
    row("cast", lambda x: tg.cast(x, 2), lambda x: x.double(), *some)
    row("detach", tg.detach, torch.detach, *some)

    # Binary
    pairs = ([N(3, 5), N(3, 5)], [N(3, 5), N(5)], [N(2, 1, 4), N(3, 1)], [N(64, 33), N()])
    apart = ([N(3, 5), U(0.5, 2, 3, 5)], [N(3, 5), U(0.5, 2, 5)], [N(2, 1, 4), U(0.5, 2, 3, 1)])
    for name in ("add", "sub", "mul", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"):
        row(name, getattr(tg, name), getattr(torch, name), *pairs)
    for name in ("div", "atan2", "fmod", "remainder"):
        row(name, getattr(tg, name), getattr(torch, name), *apart)
    for name, mode in (("floor_divide", "floor"), ("trunc_divide", "trunc")):
        row(name, getattr(tg, name), lambda a, b, m=mode: torch.div(a, b, rounding_mode=m), *apart)
    for name in ("remainder", "floor_divide", "trunc_divide"):  # integers of both signs
        g = torch.remainder if name == "remainder" else lambda a, b, m=name[:5]: torch.div(a, b, rounding_mode=m)
        for least in (-9, 1):
            row(name, lambda a, b, f=getattr(tg, name), k=least: f(tg.add_scalar(a, -40), tg.add_scalar(b, k)),
                lambda a, b, g=g, k=least: g(a - 40, b + k), [I(90, 40, 5), I(9, 40, 1)])
    for name in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"):
        row(name, getattr(tg, name), getattr(torch, name), [M(3, 5), M(3, 5)], [M(3, 5), M(5)],
            [I(5, 3, 5), I(5, 5)])
    row("pow", tg.pow, torch.pow, [U(0.5, 2, 3, 5), N(3, 5)], [U(0.5, 2, 3, 5), N(5)])
    row("lerp", tg.lerp, torch.lerp, [N(3, 5), N(3, 5), U(0, 1, 3, 5)], [N(3, 5), N(5), U(0, 1, 3, 1)])
    row("lerp_scalar", lambda a, b: tg.lerp_scalar(a, b, 0.3), lambda a, b: torch.lerp(a, b, 0.3), *pairs[:3])
    row("where", tg.where, torch.where, [M(3, 5), N(3, 5), N(3, 5)], [M(5), N(3, 1), N(3, 5)])
    row("masked_fill", lambda x, m: tg.masked_fill(x, m, 2), lambda x, m: x.masked_fill(m, 2), [N(3, 5), M(3, 5)],
        [N(3, 5), M(5)])

    # In place
    for name in ("add_", "sub_", "mul_"):
        row(name, lambda a, b, f=getattr(tg, name): f(tg.scale(a, 1), b),
            lambda a, b, f=name: getattr(a * 1, f)(b), [N(3, 5), N(3, 5)], [N(3, 5), N(5)])
    row("relu_", lambda a: tg.relu_(tg.scale(a, 1)), lambda a: (a * 1).relu_(), *some)
    row("copy_", lambda a, b: tg.copy_(tg.scale(a, 1), b), lambda a, b: (a * 1).copy_(b), [N(3, 5), N(3, 5)])

    # Reductions
    cases = ([N(3, 5)], [N(2, 3, 4)], [N(64, 33)])
    for name in ("sum", "mean"):
        f, g = getattr(tg, name), getattr(torch, name)
        row(name, lambda x, f=f: f(x, dims(-1), False), lambda x, g=g: g(x, -1), *cases)
        row(name, lambda x, f=f: f(x, dims(0, 1), True), lambda x, g=g: g(x, (0, 1), keepdim=True), *cases)
        row(name, lambda x, f=f: f(x, ALL, False), lambda x, g=g: g(x), *cases)
    for name in ("var", "std"):
        f, g = getattr(tg, name), getattr(torch, name)
        row(name, lambda x, f=f: f(x, dims(-1), 1, False), lambda x, g=g: g(x, -1), *cases)
        row(name, lambda x, f=f: f(x, dims(0, 1), 0, True),
            lambda x, g=g: g(x, (0, 1), correction=0, keepdim=True), *cases)
    row("prod", lambda x: tg.prod(x, dims(1), False), lambda x: x.prod(1), [N(3, 5)], [N(2, 3, 4)])
    for p in (0.0, 0.5, 1.0, 2.0, 3.5, -1.0, -2.5, float("inf"), float("-inf")):
        row("norm", lambda x, p=p: tg.norm(x, p, dims(-1), False), lambda x, p=p: torch.linalg.vector_norm(x, p, -1),
            *cases)
    for name, g in (("max", torch.amax), ("min", torch.amin), ("logsumexp", torch.logsumexp)):
        f = getattr(tg, name)
        row(name, lambda x, f=f: f(x, dims(-1), False), lambda x, g=g: g(x, -1), *cases)
        row(name, lambda x, f=f: f(x, dims(0, 1), True), lambda x, g=g: g(x, (0, 1), keepdim=True), *cases)
    scans_and_order(o, cases)
    for name in ("argmax", "argmin"):
        row(name, lambda x, f=getattr(tg, name): f(x, 1, False), lambda x, g=getattr(torch, name): g(x, 1), *cases)
    for name in ("any", "all"):
        row(name, lambda x, f=getattr(tg, name): f(x, dims(1), False), lambda x, g=getattr(torch, name): g(x, 1),
            [M(4, 2)], [M(2, 3, 4)])

    # Linear algebra
    row("matmul", tg.matmul, torch.matmul, [N(3, 4), N(4, 5)], [N(2, 3, 4), N(4, 5)], [N(2, 1, 3, 4), N(5, 4, 2)],
        [N(33, 130), N(130, 17)])
    row("linear", tg.linear, F.linear, [N(3, 4), N(5, 4), N(5)], [N(2, 3, 66), N(5, 66), N(5)])
    for name, g in (("relu", F.relu), ("gelu", F.gelu), ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
                    ("silu", F.silu)):
        row("linear_" + name, getattr(tg, "linear_" + name), lambda x, w, b, g=g: g(F.linear(x, w, b)),
            [N(3, 4), N(5, 4), N(5)])
    row("outer", tg.outer, torch.outer, [N(3), N(4)])
    row("dot", tg.dot, torch.dot, [N(7), N(7)])
    for equation, *inputs in (("bij,bjk->bik", N(2, 3, 4), N(2, 4, 5)), ("ijk,kjl->li", N(2, 3, 4), N(4, 3, 2)),
                              ("ij,ij->ji", N(3, 4), N(3, 4)), ("ij,kl->k", N(2, 3), N(4, 2)),
                              ("ii,ij->ij", N(3, 3), N(3, 2))):
        row("einsum", lambda a, b, e=equation: tg.einsum(e.encode(), a, b),
            lambda a, b, e=equation: torch.einsum(e, a, b), inputs)
    for upper in (False, True):
        row("triangular_solve", lambda a, b, u=upper: tg.triangular_solve(a, b, tg.opts("solve", upper=u)),
            lambda a, b, u=upper: torch.linalg.solve_triangular(a, b, upper=u), [U(0.5, 1.5, 4, 4), N(4, 3)],
            [U(0.5, 1.5, 2, 3, 3), N(2, 3, 2)])
    row("triangular_solve", lambda a, b: tg.triangular_solve(a, b, tg.opts("solve", unit=True, transpose=True)),
        lambda a, b: torch.linalg.solve_triangular(a.mT, b, upper=True, unitriangular=True), [N(4, 4), N(4, 3)])

    def positive_definite(x):
        return x @ x.mT + 4 * torch.eye(x.shape[-1], dtype=x.dtype)

    def our_positive_definite(x):
        n = tg.tg_dim(x, -1)
        eye = tg.diag(tg.full(tg.tg_dtype_of(x), shape(n), 4), 0)
        return tg.add(tg.matmul(x, tg.transpose(x, -1, -2)), eye)

    row("cholesky", lambda x: tg.cholesky(our_positive_definite(x)),
        lambda x: torch.linalg.cholesky(positive_definite(x)), [N(4, 4)], [N(2, 3, 3)], [N(24, 24)])

    # Shape
    row("reshape", lambda x: tg.reshape(x, shape(3, -1)), lambda x: x.reshape(3, -1), [N(2, 3, 4)], [N(6, 5)])
    row("view", lambda x: tg.view(tg.contiguous(x), shape(4, 6)), lambda x: x.contiguous().view(4, 6), [N(2, 3, 4)])
    row("permute", lambda x: tg.permute(x, dims(2, 0, 1)), lambda x: x.permute(2, 0, 1), [N(2, 3, 4)])
    row("transpose", lambda x: tg.transpose(x, 0, -1), lambda x: x.transpose(0, -1), [N(2, 3, 4)])
    row("expand", lambda x: tg.expand(x, shape(2, 3, -1)), lambda x: x.expand(2, 3, -1), [N(3, 4)], [N(1, 4)])
    row("squeeze", lambda x: tg.squeeze(x, 1), lambda x: x.squeeze(1), [N(3, 1, 2)])
    row("unsqueeze", lambda x: tg.unsqueeze(x, 1), lambda x: x.unsqueeze(1), [N(3, 2)])
    row("slice", lambda x: tg.slice(x, 1, 1, 5, 2), lambda x: x[:, 1:5:2], [N(3, 6)])
    row("select", lambda x: tg.select(x, 1, -2), lambda x: x.select(1, -2), [N(3, 6)])
    for k, d0, d1 in ((0, 0, 1), (1, 2, 0), (-1, -2, -1)):
        row("diagonal", lambda x, k=k, a=d0, b=d1: tg.diagonal(x, k, a, b),
            lambda x, k=k, a=d0, b=d1: torch.diagonal(x, k, a, b), [N(4, 3, 5)])
    row("slice_scatter", lambda x, s: tg.slice_scatter(x, s, 1, 1, 5, 2), lambda x, s: x.slice_scatter(s, 1, 1, 5, 2),
        [N(3, 6), N(3, 2)])
    row("select_scatter", lambda x, s: tg.select_scatter(x, s, 1, -2), lambda x, s: x.select_scatter(s, 1, -2),
        [N(3, 6), N(3)])
    for falling in (False, True):
        row("argsort", lambda x, d=falling: tg.argsort(x, 1, d),
            lambda x, d=falling: x.argsort(dim=1, descending=d, stable=True), [N(3, 7)], [I(5, 3, 20)])
    row("contiguous", tg.contiguous, lambda x: x.contiguous(), *some)
    row("concat", lambda a, b: tg.concat(handles([a, b]), 2, 1), lambda a, b: torch.cat((a, b), 1), [N(3, 2), N(3, 4)])
    row("stack", lambda a, b: tg.stack(handles([a, b]), 2, 1), lambda a, b: torch.stack((a, b), 1), [N(3, 2), N(3, 2)])

    def split(x):
        out = handles(2)
        tg.split(x, 1, (o.ctypes.c_int64 * 2)(2, 3), 2, out)
        return list(out)

    row("split", split, lambda x: x.split((2, 3), 1), [N(3, 5)])

    def chunk(x):
        out = handles(2)
        tg.chunk(x, 1, 2, out)
        return list(out)

    row("chunk", chunk, lambda x: x.chunk(2, 1), [N(3, 5)])
    row("pad", lambda x: tg.pad(x, -1, 1, 2, 0.5), lambda x: F.pad(x, (1, 2), value=0.5), [N(3, 5)])
    row("flip", lambda x: tg.flip(x, dims(0, -1)), lambda x: x.flip((0, -1)), [N(3, 5)])
    row("roll", lambda x: tg.roll(x, 2, 1), lambda x: x.roll(2, 1), [N(3, 5)])
    row("repeat", lambda x: tg.repeat(x, 1, 3), lambda x: x.repeat(1, 3), [N(3, 5)])
    row("unfold", lambda x: tg.unfold(x, 1, 3, 2), lambda x: x.unfold(1, 3, 2), [N(3, 8)])
    for size, stride, offset in (((4, 3), (2, 1), 1), ((2, 3), (0, 5), 0), ((), (), 7), ((2, 2, 2), (1, 4, 1), 2)):
        row("as_strided", lambda x, s=size, k=stride, o=offset: tg.as_strided(x, shape(*s), shape(*k), o),
            lambda x, s=size, k=stride, o=offset: x.contiguous().as_strided(s, k, o), [N(3, 4)])
    row("tril", lambda x: tg.tril(x, 1), lambda x: x.tril(1), [N(4, 5)], [N(2, 3, 3)])
    row("triu", lambda x: tg.triu(x, -1), lambda x: x.triu(-1), [N(4, 5)], [N(2, 3, 3)])
    row("diag", lambda x: tg.diag(x, 1), lambda x: x.diag(1), [N(4)], [N(4, 5)])

    # Indexing, makers
    row("gather", lambda x, i: tg.gather(x, 1, i), lambda x, i: x.gather(1, i), [N(3, 5), I(5, 3, 4)])
    row("scatter_add", lambda x, i, s: tg.scatter_add(x, 1, i, s), lambda x, i, s: x.scatter_add(1, i, s),
        [N(3, 5), I(5, 3, 4), N(3, 4)])
    row("scatter", lambda x, i, s: tg.scatter(x, 1, i, s), lambda x, i, s: x.scatter(1, i, s),
        [N(1, 5), I(1, 1, 1), N(1, 1)], [N(3, 5), I(5, 3, 1), N(3, 1)])
    row("masked_scatter", tg.masked_scatter, torch.masked_scatter, [N(3, 5), M(3, 5), N(15)], [N(3, 5), M(5), N(4, 4)])
    for count, size in ((6, (2, 3)), (5, (5,)), (0, (0, 3))):
        row("nonzero", lambda x, k=count: tg.nonzero(tg.add_scalar(x, 1), k), lambda x: (x + 1).nonzero(),
            [I(9, *size)])
    row("nonzero", lambda x: tg.nonzero(tg.slice(tg.one_hot(5, x, 5), 2, 1, 5, 2), 0),
        lambda x: F.one_hot(x, 5)[..., 1::2].nonzero(), [I(1, 3, 2)])
    row("nonzero", lambda x: tg.nonzero(tg.one_hot(5, x, 5), 6), lambda x: F.one_hot(x, 5).nonzero(), [I(5, 3, 2)])
    for name, reduce in (("scatter_mean", "mean"), ("scatter_prod", "prod"), ("scatter_max", "amax"),
                         ("scatter_min", "amin")):
        for own in (True, False):
            row(name, lambda x, i, s, f=getattr(tg, name), o=own: f(x, 1, i, s, o),
                lambda x, i, s, r=reduce, o=own: x.scatter_reduce(1, i, s, r, include_self=o),
                [N(3, 5), I(5, 3, 9), N(3, 9)], [N(4, 3), I(3, 2, 5), N(2, 5)])
            # Ties share the gradient.
            row(name, lambda x, i, s, f=getattr(tg, name), o=own: f(tg.round(x), 0, i, tg.round(s), o),
                lambda x, i, s, r=reduce, o=own: x.round().scatter_reduce(0, i, s.round(), r, include_self=o),
                [N(4), I(4, 20), N(20)])
    row("index", lambda x, i: tg.index(x, dims(0), handles([i]), 1), lambda x, i: x[i], [N(6, 3), I(6, 2, 4)])
    row("index", lambda x, i, j: tg.index(x, dims(0, 1), handles([i, j]), 2), lambda x, i, j: x[i, j],
        [N(6, 3), I(6, 4), I(3, 4)], [N(6, 3, 2), I(6, 2, 1), I(3, 4)])
    row("index", lambda x, i, j: tg.index(x, dims(1, 2), handles([i, j]), 2), lambda x, i, j: x[:, i, j],
        [N(2, 6, 3, 2), I(6, 4), I(3, 4)])
    row("index", lambda x, i, j: tg.index(x, dims(2, 0), handles([j, i]), 2), lambda x, i, j: x[i, :, j],
        [N(2, 6, 3, 2), I(2, 4), I(3, 4)])
    row("index", lambda x, i: tg.index(x, dims(1), handles([tg.add_scalar(i, -5)]), 1), lambda x, i: x[:, i - 5],
        [N(3, 5), I(10, 8)])
    # PyTorch does not say which of several elements remains, so this row has one row of src for each place.
    row("index_put", lambda x, s: tg.index_put(x, dims(0), s, handles([tg.arange(5, 0, 8, 2)]), 1, False),
        lambda x, s: x.index_put((torch.arange(0, 8, 2),), s), [N(8, 3), N(4, 3)], [N(8), N()])
    row("index_put", lambda x, s, i, j: tg.index_put(x, dims(0, 1), s, handles([i, j]), 2, True),
        lambda x, s, i, j: x.index_put((i, j), s, True), [N(6, 3), N(8), I(6, 8), I(3, 8)],
        [N(6, 3, 2), N(4, 2), I(6, 4), I(3, 4)])
    row("index_select", lambda x, i: tg.index_select(x, 1, i), lambda x, i: x.index_select(1, i), [N(3, 5), I(5, 4)])
    row("embedding", tg.embedding, lambda w, i: F.embedding(i, w), [N(6, 3), I(6, 2, 4)])
    row("masked_select", lambda x: tg.masked_select(x, tg.gt(x, tg.full(tg.tg_dtype_of(x), shape(), -9)), 15),
        lambda x: x.masked_select(x > -9), [N(3, 5)])
    row("arange", lambda: tg.arange(5, 2, 11, 3), lambda: torch.arange(2, 11, 3), [])
    row("full", lambda: tg.full(1, shape(2, 3), 1.5), lambda: torch.full((2, 3), 1.5), [])
    row("one_hot", lambda i: tg.one_hot(5, i, 6), lambda i: F.one_hot(i, 6), [I(6, 4)])

    networks(o)
    losses(o)


def rope(x, positions=None):
    s, d = x.shape[-2:]
    if positions is None:
        positions = torch.arange(2, 2 + s)
    at = positions.double()[..., None] * 100.0 ** (-torch.arange(0, d, 2) / d).double()
    at = at[:, None] if positions.dim() == 2 else at  # positions of each batch element, alike in all heads
    cos, sin, (u, v) = at.cos().to(x.dtype), at.sin().to(x.dtype), x.chunk(2, -1)
    return torch.cat((u * cos - v * sin, v * cos + u * sin), -1)


def scaled_rope(x):
    """rope_with of 4 elements of each row, with the frequencies of Llama 3."""
    s, d = x.shape[-2], 4
    base, factor, low, high, original = 100.0, 8.0, 1.0, 4.0, 64.0
    f = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    turns = original * f / (2 * torch.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    f = (1 - smooth) * f / factor + smooth * f
    at = torch.outer(torch.arange(2, 2 + s, dtype=torch.float64), f)
    cos, sin, (u, v) = at.cos().to(x.dtype), at.sin().to(x.dtype), x[..., :d].chunk(2, -1)
    return torch.cat((u * cos - v * sin, v * cos + u * sin, x[..., d:]), -1)


def rms_norm(x, w):
    return F.rms_norm(x, (x.shape[-1],), w, 1e-5)


def networks(o):
    tg, row, N, U, I = o.tg, o.row, o.N, o.U, o.I
    cases = ([N(3, 5)], [N(2, 3, 4)], [N(16, 65)])
    row("softmax", lambda x: tg.softmax(x, -1), lambda x: x.softmax(-1), *cases)
    row("softmax", lambda x: tg.softmax(x, 0), lambda x: x.softmax(0), *cases)
    row("log_softmax", lambda x: tg.log_softmax(x, 1), lambda x: x.log_softmax(1), *cases)
    row("layer_norm", lambda x, w, b: tg.layer_norm(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b, 1e-5), [N(3, 5), N(5), N(5)], [N(16, 65), N(65), N(65)])
    row("rms_norm", lambda x, w: tg.rms_norm(x, w, 1e-5), rms_norm, [N(3, 5), N(5)], [N(16, 65), N(65)])
    row("group_norm", lambda x, w, b: tg.group_norm(x, 2, w, b, 1e-5),
        lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5), [N(2, 4, 3), N(4), N(4)], [N(2, 4, 2, 3), N(4), N(4)])
    row("batch_norm", lambda x, w, b: tg.batch_norm(x, w, b, None, None, 0.1, 1e-5),
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, 1e-5), [N(4, 3, 2), N(3), N(3)],
        [N(2, 3, 4, 3), N(3), N(3)])

    def followed(x, m, v):
        y = tg.batch_norm(x, None, None, m, v, 0.1, 1e-5)
        return [y, m, v]

    row("batch_norm", followed, lambda x, m, v: [F.batch_norm(x, m, v, None, None, True, 0.1, 1e-5), m, v],
        [N(4, 3, 2), N(3, frozen=True), U(0.5, 2, 3, frozen=True)])
    row("residual_rms_norm", lambda x, r, w: tg.residual_rms_norm(x, r, w, 1e-5, None),
        lambda x, r, w: rms_norm(x + r, w), [N(3, 5), N(3, 5), N(5)])
    row("dropout", lambda x: tg.dropout(x, 0), lambda x: F.dropout(x, 0.0), *cases)

    def keyed_dropout(x, rows):
        ctx = tg.tg_tape_ctx(tg.tape)
        tg.tg_draws_step(ctx, 0)  # the key of the call before may be opened again
        tg.tg_key_open(ctx, 0)
        y = tg.dropout_rows(x, 0, rows)
        tg.tg_key_close(ctx)
        return y

    row("dropout_rows", keyed_dropout, lambda x, rows: F.dropout(x, 0.0), [N(3, 5), I(9, 3)], [N(64, 33), I(64, 64)])
    row("rope", lambda x: tg.rope(x, 100, 2), rope, [N(2, 3, 4)], [N(2, 2, 5, 8)])
    row("rope_at", lambda x, at: tg.rope_at(x, at, 100), rope, [N(2, 3, 4), I(50, 3)], [N(2, 2, 5, 8), I(50, 5)],
        [N(2, 3, 5, 8), I(50, 2, 5)])
    llama3 = {"base": 100, "offset": 2, "dims": 4, "kind": 2, "factor": 8, "original": 64}
    row("rope_with", lambda x: tg.rope_with(x, tg.opts("rope", **llama3)), scaled_rope, [N(2, 3, 5)], [N(2, 2, 5, 8)])
    row("swiglu", tg.swiglu, lambda a, b: F.silu(a) * b, [N(3, 5), N(3, 5)])
    row("glu", lambda x: tg.glu(x, -1), lambda x: F.glu(x, -1), [N(3, 6)], [N(2, 3, 4)], [N(64, 34)])
    for causal in (False, True):
        row("attention", lambda q, k, v, c=causal: tg.attention(q, k, v, tg.opts("attention", causal=c)),
            lambda q, k, v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c, enable_gqa=True),
            [N(2, 4, 5, 8), N(2, 2, 5, 8), N(2, 2, 5, 8)], [N(1, 2, 33, 16), N(1, 2, 33, 16), N(1, 2, 33, 16)])
    masks(o)
    windows(o)


def scans_and_order(o, cases):
    tg, row = o.tg, o.row

    def both(f):
        """Returns a function of x that gives the results of f and their positions."""
        def run(x):
            places = o.handles(1)
            return [f(x, places), places[0]]
        return run

    for name in ("cumsum", "cumprod"):
        for dim in (-1, 0):
            row(name, lambda x, f=getattr(tg, name), d=dim: f(x, d), lambda x, g=getattr(torch, name), d=dim: g(x, d),
                *cases)
    for name in ("cummax", "cummin"):
        for dim in (-1, 0):
            row(name, both(lambda x, places, f=getattr(tg, name), d=dim: f(x, d, places)),
                lambda x, g=getattr(torch, name), d=dim: g(x, d), *cases)
    for falling in (False, True):
        row("sort", both(lambda x, places, d=falling: tg.sort(x, 0, d, places)),
            lambda x, d=falling: torch.sort(x, dim=0, descending=d, stable=True), *cases)
        # Long rows of 16 bits have equal elements, of which PyTorch may take any. They are left out.
        row("topk", lambda x, d=falling: tg.topk(x, 2, -1, d, None), lambda x, d=falling: x.topk(2, -1, d)[0],
            *cases[:2])
    row("median", lambda x: tg.median(x, 1, False, None), lambda x: x.median(1)[0], *cases)
    # Random numbers of two libraries cannot be compared. Multiplied by 0 they show that they are finite, have x's shape
    # and have no gradient.
    row("gumbel", lambda x: tg.scale(tg.gumbel(x), 0), lambda x: x.detach() * 0, *cases)
    row("gumbel_softmax", lambda x: tg.scale(tg.gumbel_softmax(x, 1, False, -1), 0), lambda x: x * 0, *cases)


def masks(o):
    tg, row, N, M = o.tg, o.row, o.N, o.M

    def with_sink(q, k, v, sink):
        scores = torch.cat(((q @ k.mT) / q.shape[-1] ** 0.5, sink[:, None, None].expand(*q.shape[:3], 1)), -1)
        return scores.softmax(-1)[..., :-1] @ v

    def in_window(q, k, v):
        away = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=(away <= 0) & (away >= -2))

    heads = [N(2, 2, 5, 8), N(2, 2, 5, 8), N(2, 2, 5, 8)]
    row("attention", lambda q, k, v, m: tg.attention(q, k, v, tg.opts("attention", mask=m)),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), [*heads, N(2, 2, 5, 5)],
        [*heads, N(5, 5)])
    row("attention", lambda q, k, v, s: tg.attention(q, k, v, tg.opts("attention", sink=s)), with_sink, [*heads, N(2)])
    row("attention", lambda q, k, v: tg.attention(q, k, v, tg.opts("attention", causal=True, left=2)), in_window, heads)

    def capped(q, k, v):
        scores = 1.5 * torch.tanh(2 * (q @ k.mT) / 1.5) + torch.full((5, 5), -torch.inf).triu(1)
        return scores.softmax(-1) @ v

    row("attention", lambda q, k, v: tg.attention(q, k, v, tg.opts("attention", causal=True, scale=2, softcap=1.5)),
        capped, heads)

    # Fewer queries than keys, and values of another size.
    uneven = [N(2, 2, 3, 8), N(2, 2, 7, 8), N(2, 2, 7, 6)]
    row("attention", lambda q, k, v: tg.attention(q, k, v, tg.opts("attention", scale=0.7)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.7), uneven)
    row("attention", lambda q, k, v: tg.attention(q, k, v, tg.opts("attention", causal=True)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(3, 7).tril(4) > 0), uneven)
    row("attention", lambda q, k, v, m: tg.attention(q, k, v, tg.opts("attention", mask=m)),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m), [*uneven, M(2, 2, 3, 7)],
        [*uneven, M(3, 7)])
    lengths = torch.tensor((2, 6))
    row("attention", lambda q, k, v: tg.attention(q, k, v, tg.opts("attention", lengths=tg.arange(5, 2, 10, 4))),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.arange(7) < lengths[:, None, None, None]), uneven)


def windows(o):
    tg, row, N = o.tg, o.row, o.N

    def conv(name, f, theirs, inputs, **more):
        row(name, lambda x, w, b: f(x, w, b, tg.opts("conv", **more)),
            lambda x, w, b: theirs(x, w, b, **{k: v[: x.dim() - 2] if isinstance(v, tuple) else v
                                               for k, v in more.items()}), inputs)

    conv("conv1d", tg.conv1d, F.conv1d, [N(2, 3, 9), N(4, 3, 3), N(4)])
    conv("conv1d", tg.conv1d, F.conv1d, [N(2, 4, 9), N(6, 2, 3), N(6)], stride=(2,), padding=(2,), dilation=(2,),
         groups=2)
    conv("conv2d", tg.conv2d, F.conv2d, [N(2, 3, 6, 5), N(4, 3, 3, 2), N(4)])
    conv("conv2d", tg.conv2d, F.conv2d, [N(2, 4, 6, 7), N(4, 2, 3, 3), N(4)], stride=(2, 1), padding=(1, 2),
         dilation=(1, 2), groups=2)
    conv("conv2d", tg.conv2d, F.conv2d, [N(2, 6, 6, 7), N(6, 1, 3, 3), N(6)], padding=(1, 1), groups=6)
    conv("conv2d", tg.conv2d, F.conv2d, [N(2, 8, 3, 4), N(5, 8, 1, 1), N(5)])
    conv("conv2d", tg.conv2d, F.conv2d, [N(3, 16, 14, 14), N(8, 16, 3, 3), N(8)], padding=(1, 1))
    row("max_pool1d", lambda x: tg.max_pool1d(x, 3, tg.opts("pool", stride=(2,), padding=(1,))),
        lambda x: F.max_pool1d(x, 3, 2, 1), [N(2, 3, 9)])
    row("max_pool2d", lambda x: tg.max_pool2d(x, 2, 2, None), lambda x: F.max_pool2d(x, 2), [N(2, 3, 6, 5)])
    row("max_pool2d", lambda x: tg.max_pool2d(x, 3, 2, tg.opts("pool", stride=(2, 1), padding=(1, 1), dilation=(2, 1))),
        lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 1), (2, 1)), [N(2, 3, 8, 5)])
    row("avg_pool1d", lambda x: tg.avg_pool1d(x, 3, tg.opts("pool", stride=(2,), padding=(1,))),
        lambda x: F.avg_pool1d(x, 3, 2, 1), [N(2, 3, 9)])
    row("avg_pool2d", lambda x: tg.avg_pool2d(x, 2, 3, None), lambda x: F.avg_pool2d(x, (2, 3)), [N(2, 3, 6, 5)])
    for exclude in (False, True):
        row("avg_pool2d", lambda x, e=exclude: tg.avg_pool2d(x, 3, 2, tg.opts("pool", stride=(1, 2), padding=(1, 1),
                                                                           exclude_padding=e)),
            lambda x, e=exclude: F.avg_pool2d(x, (3, 2), (1, 2), (1, 1), count_include_pad=not e), [N(2, 3, 5, 6)])
    transposed_and_deep(o, conv)
    adaptive(o)
    columns(o)
    places_and_distances(o)
    resizing(o)
    pads_and_shuffles(o)


def transposed_and_deep(o, conv):
    tg, row, N = o.tg, o.row, o.N
    conv("conv_transpose1d", tg.conv_transpose1d, F.conv_transpose1d, [N(2, 3, 5), N(3, 4, 3), N(4)])
    conv("conv_transpose1d", tg.conv_transpose1d, F.conv_transpose1d, [N(2, 4, 5), N(4, 3, 3), N(6)], stride=(3,),
         padding=(1,), dilation=(2,), groups=2, output_padding=(2,))
    conv("conv_transpose2d", tg.conv_transpose2d, F.conv_transpose2d, [N(2, 3, 4, 5), N(3, 2, 3, 2), N(2)])
    conv("conv_transpose2d", tg.conv_transpose2d, F.conv_transpose2d, [N(2, 4, 4, 3), N(4, 3, 3, 2), N(6)],
         stride=(2, 3), padding=(1, 0), dilation=(1, 2), groups=2, output_padding=(1, 2))
    conv("conv_transpose2d", tg.conv_transpose2d, F.conv_transpose2d, [N(2, 2, 3, 3), N(2, 2, 3, 2), N(2)],
         stride=(1, 2), padding=(2, 1), dilation=(4, 1), output_padding=(3, 1))
    conv("conv_transpose2d", tg.conv_transpose2d, F.conv_transpose2d, [N(1, 16, 8, 8), N(16, 8, 4, 4), N(8)],
         stride=(2, 2), padding=(1, 1))
    conv("conv_transpose3d", tg.conv_transpose3d, F.conv_transpose3d, [N(2, 3, 2, 3, 4), N(3, 2, 2, 3, 2), N(2)])
    conv("conv_transpose3d", tg.conv_transpose3d, F.conv_transpose3d, [N(1, 4, 3, 2, 3), N(4, 3, 3, 2, 2), N(6)],
         stride=(2, 3, 1), padding=(1, 0, 1), dilation=(1, 2, 2), groups=2, output_padding=(1, 2, 1))
    conv("conv_transpose3d", tg.conv_transpose3d, F.conv_transpose3d, [N(1, 2, 3, 2, 2), N(2, 2, 2, 2, 1), N(2)],
         padding=(2, 0, 0), dilation=(4, 1, 1), output_padding=(3, 0, 0))
    conv("conv3d", tg.conv3d, F.conv3d, [N(2, 3, 4, 5, 3), N(4, 3, 2, 3, 2), N(4)])
    conv("conv3d", tg.conv3d, F.conv3d, [N(1, 4, 5, 4, 6), N(4, 2, 3, 2, 2), N(4)], stride=(2, 1, 2),
         padding=(1, 0, 2), dilation=(1, 2, 2), groups=2)

    def pool(name, ours, theirs, size, case, **more):
        names = {"stride": "stride", "padding": "padding", "dilation": "dilation", "ceil_mode": "ceil_mode",
                 "exclude_padding": "count_include_pad", "divisor": "divisor_override"}
        given = {names[k]: (not v if k == "exclude_padding" else v) for k, v in more.items()}
        row(name, lambda x: ours(x, *size, tg.opts("pool", **more)),
            lambda x: theirs(x, size, **given), case)

    def both(f):
        def run(x, *args):
            index = o.handles(1)
            return [f(x, *args, index), index[0]]
        return run

    def with_indices(f):
        return lambda x, size, **more: f(x, size, return_indices=True, **more)

    for more in ({}, {"stride": (1, 2, 1), "padding": (1, 0, 1)}, {"ceil_mode": True, "stride": (2, 2, 2)}):
        pool("avg_pool3d", tg.avg_pool3d, F.avg_pool3d, (2, 3, 2), [N(2, 2, 5, 4, 6)], **more)
        pool("avg_pool3d", tg.avg_pool3d, F.avg_pool3d, (2, 3, 2), [N(2, 2, 5, 4, 6)], exclude_padding=True,
             **more)
        pool("max_pool3d", tg.max_pool3d, F.max_pool3d, (2, 3, 2), [N(2, 2, 5, 4, 6)], **more)
        pool("max_pool3d_with_indices", both(tg.max_pool3d_with_indices), with_indices(F.max_pool3d), (2, 3, 2),
             [N(2, 2, 5, 4, 6)], **more)
    pool("avg_pool3d", tg.avg_pool3d, F.avg_pool3d, (2, 1, 2), [N(1, 2, 3, 4, 4)], divisor=3)
    for more in ({"stride": (2, 1), "padding": (1, 1), "dilation": (2, 1)}, {"stride": (2, 3), "ceil_mode": True}):
        pool("max_pool2d", tg.max_pool2d, F.max_pool2d, (3, 2), [N(2, 3, 8, 6)], **more)
        pool("max_pool2d_with_indices", both(tg.max_pool2d_with_indices), with_indices(F.max_pool2d), (3, 2),
             [N(2, 3, 8, 6)], **more)
    for more in ({"ceil_mode": True}, {"ceil_mode": True, "exclude_padding": True}, {"divisor": 5}):
        pool("avg_pool2d", tg.avg_pool2d, F.avg_pool2d, (3, 2), [N(2, 3, 7, 6)], stride=(2, 3), padding=(1, 1),
             **more)


def adaptive(o):
    tg, row, shape, N = o.tg, o.row, o.shape, o.N
    for size, f, *cases in (((3,), F.adaptive_avg_pool1d, [N(2, 3, 7)], [N(2, 3, 9)], [N(1, 2, 2)]),
                            ((1, 1), F.adaptive_avg_pool2d, [N(2, 3, 7, 7)], [N(2, 3, 1, 4)]),
                            ((3, 5), F.adaptive_avg_pool2d, [N(2, 3, 7, 6)], [N(2, 3, 6, 10)], [N(1, 2, 2, 3)]),
                            ((2, 3, 2), F.adaptive_avg_pool3d, [N(1, 2, 3, 7, 4)])):
        row("adaptive_avg_pool", lambda x, s=size: tg.adaptive_avg_pool(x, shape(*s)), lambda x, s=size, f=f: f(x, s),
            *cases)


    def adaptive_max(x, size):
        index = o.handles(1)
        return [tg.adaptive_max_pool(x, shape(*size), index), index[0]]

    for size, f, *cases in (((3,), F.adaptive_max_pool1d, [N(2, 3, 7)]),
                            ((3, 5), F.adaptive_max_pool2d, [N(2, 3, 7, 6)], [N(1, 2, 2, 3)]),
                            ((2, 3, 2), F.adaptive_max_pool3d, [N(1, 2, 3, 7, 4)])):
        row("adaptive_max_pool", lambda x, s=size: adaptive_max(x, s),
            lambda x, s=size, f=f: f(x, s, return_indices=True), *cases)


def columns(o):
    tg, row, shape, N = o.tg, o.row, o.shape, o.N
    for kernel, image, channels, more in (((2, 3), (4, 5), 3, {}),
                                          ((3, 2), (7, 6), 2,
                                           {"stride": (2, 1), "padding": (1, 2), "dilation": (2, 1)})):
        opts = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), **more}
        places = [(n + 2 * p - d * (k - 1) - 1) // s + 1
                  for n, k, s, p, d in zip(image, kernel, opts["stride"], opts["padding"], opts["dilation"])]
        row("im2col", lambda x, k=kernel, m=more: tg.im2col(x, *k, tg.opts("conv", **m)),
            lambda x, k=kernel, m=more: F.unfold(x, k, **m), [N(2, channels, *image)])
        row("col2im", lambda x, i=image, k=kernel, m=more: tg.col2im(x, shape(*i), *k, tg.opts("conv", **m)),
            lambda x, i=image, k=kernel, m=more: F.fold(x, i, k, **m),
            [N(2, channels * kernel[0] * kernel[1], places[0] * places[1])])


def places_and_distances(o):
    tg, row, N, U, I = o.tg, o.row, o.N, o.U, o.I
    paddings, modes = ("zeros", "border", "reflection"), ("bilinear", "nearest", "bicubic")
    for align in (False, True):
        for k, padding in enumerate(paddings):
            for m, mode in enumerate(modes):
                row("grid_sampler_2d",
                    lambda x, g, opts={"mode": m, "padding": k, "align_corners": align}: tg.grid_sampler_2d(
                        x, g, tg.opts("grid", **opts)),
                    lambda x, g, opts=(mode, padding, align): F.grid_sample(x, g, *opts),
                    [N(2, 3, 4, 5), U(-2, 2, 2, 3, 4, 2, frozen=m == 1)])
    for p in (0.5, 1.0, 2.0, 3.5, float("inf")):
        row("cdist", lambda a, b, p=p: tg.cdist(a, b, p), lambda a, b, p=p: torch.cdist(a, b, p), [N(3, 4), N(5, 4)],
            [N(2, 3, 4), N(2, 5, 4)])
    for size in (1, 4, 5):
        row("local_response_norm", lambda x, s=size: tg.local_response_norm(x, s, 0.5, 0.75, 1.5),
            lambda x, s=size: F.local_response_norm(x, s, 0.5, 0.75, 1.5), [N(2, 6, 3)], [N(2, 6, 3, 2)])
    row("instance_norm", lambda x, w, b: tg.instance_norm(x, w, b, 1e-5),
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b), [N(2, 3, 7), N(3), N(3)], [N(2, 3, 4, 5), N(3), N(3)])
    for k, mode in enumerate(("sum", "mean", "max")):
        row("embedding_bag", lambda w, i, k=k: tg.embedding_bag(w, i, None, None, tg.opts("bag", mode=k)),
            lambda w, i, m=mode: F.embedding_bag(i, w, mode=m), [N(6, 3), I(6, 4, 5)])
        row("embedding_bag",
            lambda w, i, k=k: tg.embedding_bag(w, i, None, None, tg.opts("bag", mode=k, ignore_index=1)),
            lambda w, i, m=mode: F.embedding_bag(i, w, mode=m, padding_idx=1), [N(6, 3), I(3, 9, 2)])
    offsets = torch.tensor((0, 3, 6, 9))
    for k, mode in enumerate(("sum", "mean")):
        for last in (False, True):
            row("embedding_bag", lambda w, i, k=k, e=last: tg.embedding_bag(
                    w, i, tg.arange(5, 0, 12, 3), None, tg.opts("bag", mode=k, include_last_offset=e)),
                lambda w, i, m=mode, e=last: F.embedding_bag(i, w, offsets, mode=m, include_last_offset=e),
                [N(6, 3), I(6, 9)])
    row("embedding_bag", lambda w, i, s: tg.embedding_bag(w, i, tg.arange(5, 0, 12, 3), s, tg.opts("bag", mode=0)),
        lambda w, i, s: F.embedding_bag(i, w, offsets, mode="sum", per_sample_weights=s), [N(6, 3), I(6, 11), N(11)])


def resizing(o):
    tg, row, shape, N = o.tg, o.row, o.shape, o.N
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}

    def resize(name, size, mode, *cases, **more):
        """A scale that is given to both is used by both, and size has what PyTorch computes from it."""
        scale = more.get("scale")
        ours = {key: value for key, value in more.items() if key != "scale"}
        ours.update({f"scale{d}": s for d, s in enumerate(scale or ())})
        theirs = {"scale_factor": scale, "recompute_scale_factor": False} if scale else {"size": size}
        if "align_corners" in more:
            theirs["align_corners"] = more["align_corners"]
        row(name, lambda x: getattr(tg, name)(x, shape(*size), tg.opts("upsample", **ours)),
            lambda x: F.interpolate(x, mode=mode, **theirs), *cases)

    for size in ((7,), (8, 9), (5, 3), (12, 6), (4, 3, 5)):
        case = [N(2, 3, *(4, 3, 2)[: len(size)])]
        resize("upsample_nearest", size, "nearest", case)
        for align in (False, True):
            resize("upsample_linear", size, linear[len(size)], case, align_corners=align)
    resize("upsample_nearest", (9, 5), "nearest", [N(2, 3, 5, 4)], scale=(1.9, 1.3))
    resize("upsample_linear", (9, 5), "bilinear", [N(2, 3, 5, 4)], scale=(1.9, 1.3))
    resize("upsample_linear", (32, 48), "bilinear", [N(1, 2, 16, 16)])


def pads_and_shuffles(o):
    tg, row, N = o.tg, o.row, o.N

    def pad(name, mode, pad, *cases, **more):
        numbers = (o.ctypes.c_int64 * len(pad))(*pad)
        row(name, lambda x: getattr(tg, name)(x, numbers, len(pad), *more.values()),
            lambda x: F.pad(x, pad, mode, **more), *cases)

    pad("constant_pad", "constant", (1, 2, 0, 3), [N(3, 5)], [N(2, 3, 4)], value=0.5)
    pad("constant_pad", "constant", (-1, 2, 1, -2, 0, 1), [N(2, 4, 4)], value=0.0)
    for name, mode in (("reflection_pad", "reflect"), ("replication_pad", "replicate"), ("circular_pad", "circular")):
        pad(name, mode, (2, 1), [N(2, 3, 5)])
        pad(name, mode, (3, 1, 0, 2), [N(2, 3, 4, 5)])
        pad(name, mode, (1, 0, 0, 1, 1, 1), [N(1, 2, 2, 3, 2)])
    pad("replication_pad", "replicate", (3, 4), [N(2, 3, 2)])
    row("pixel_shuffle", lambda x: tg.pixel_shuffle(x, 2), lambda x: F.pixel_shuffle(x, 2), [N(2, 8, 3, 4)],
        [N(4, 2, 2)])
    row("pixel_unshuffle", lambda x: tg.pixel_unshuffle(x, 2), lambda x: F.pixel_unshuffle(x, 2), [N(2, 3, 4, 6)])
    row("channel_shuffle", lambda x: tg.channel_shuffle(x, 3), lambda x: F.channel_shuffle(x, 3), [N(2, 6, 3, 2)])


def kl_div(x, y, reduction):
    loss = F.kl_div(x, y, reduction="none")  # the mean of all elements makes it warn
    return (loss.mean, loss.sum, lambda: loss)[reduction]()


def losses(o):
    tg, row, N, U, I, M = o.tg, o.row, o.N, o.U, o.I, o.M
    reductions = ((0, "mean"), (1, "sum"), (2, "none"))
    for k, name in reductions:
        for s in (0.0, 0.2):
            row("cross_entropy", lambda x, t, k=k, s=s: tg.cross_entropy(
                    x, t, tg.opts("cross_entropy", reduction=k, label_smoothing=s, ignore_index=1)),
                lambda x, t, n=name, s=s: F.cross_entropy(x, t, reduction=n, label_smoothing=s, ignore_index=1),
                [N(6, 5), I(5, 6)])
            row("cross_entropy", lambda x, w, t, k=k, s=s: tg.cross_entropy(
                    x, t, tg.opts("cross_entropy", reduction=k, label_smoothing=s, weight=w, ignore_index=3)),
                lambda x, w, t, n=name, s=s: F.cross_entropy(x, t, w, reduction=n, label_smoothing=s, ignore_index=3),
                [N(6, 5), U(0.5, 2, 5, frozen=True), I(5, 6)])
        row("linear_cross_entropy", lambda x, w, t, k=k: tg.linear_cross_entropy(
                x, w, t, tg.opts("cross_entropy", reduction=k)),
            lambda x, w, t, n=name: F.cross_entropy(x @ w.T, t, reduction=n), [N(6, 5), N(7, 5), I(7, 6)])
        of = {"l1": (tg.l1, F.l1_loss), "smooth_l1": (lambda x, y, p: tg.smooth_l1(x, y, 0.7, p),
                                                      lambda x, y, **m: F.smooth_l1_loss(x, y, beta=0.7, **m)),
              "huber": (lambda x, y, p: tg.huber(x, y, 0.7, p), lambda x, y, **m: F.huber_loss(x, y, delta=0.7, **m))}
        for op, (f, g) in of.items():
            row(op, lambda x, y, f=f, k=k: f(x, y, tg.opts("loss", reduction=k)),
                lambda x, y, g=g, n=name: g(x, y, reduction=n), [N(3, 5), N(3, 5)])
        row("bce_with_logits", lambda x, y, w, p, k=k: tg.bce_with_logits(x, y, w, p, tg.opts("loss", reduction=k)),
            lambda x, y, w, p, n=name: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=p, reduction=n),
            [N(3, 5), U(0, 1, 3, 5), U(0.5, 2, 3, 5, frozen=True), U(0.5, 2, 5, frozen=True)])
        row("kl_div", lambda x, y, k=k: tg.kl_div(x, y, tg.opts("loss", reduction=k)),
            lambda x, y, k=k: kl_div(x, y, k), [N(3, 5), U(0.1, 1, 3, 5)])
        row("nll", lambda x, t, w, k=k: tg.nll(x, t, w, tg.opts("loss", reduction=k, ignore_index=2)),
            lambda x, t, w, n=name: F.nll_loss(x, t, w, reduction=n, ignore_index=2),
            [N(6, 5), I(5, 6), U(0.5, 2, 5, frozen=True)])
    row("kl_div", lambda x, y: tg.kl_div(x, y, tg.opts("loss", reduction=3, log_target=True)),
        lambda x, y: F.kl_div(x, y, reduction="batchmean", log_target=True), [N(3, 5), N(3, 5)])
    row("mse", tg.mse, F.mse_loss, [N(3, 5), N(3, 5)])
    row("cosine_similarity", lambda x, y: tg.cosine_similarity(x, y, 1, 1e-8),
        lambda x, y: F.cosine_similarity(x, y, 1, 1e-8), [N(3, 5), N(3, 5)], [N(2, 3, 4), N(2, 3, 4)])
