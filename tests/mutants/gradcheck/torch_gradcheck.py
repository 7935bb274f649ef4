#!/usr/bin/env python3
"""torch_gradcheck.py: measures which mistakes like those of the lists here PyTorch's gradcheck, slow and fast, finds.

PyTorch computes each op; its gradients are PyTorch's own, made wrong in one way for one input within a
torch.autograd.Function. Prints a table in Markdown: for every class of mistake how many were seeded (those that change
the gradient at that point) and how many each mode found with its default tolerances.
"""
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def uniform(lo, hi, *shape):
    return lo + (hi - lo) * torch.rand(*shape)


# name: function, and its inputs
OPS = {
    **{f: (getattr(torch, f), [(-2, 2, (3, 3))]) for f in ('exp sin cos tanh sigmoid erf atan sinh cosh expm1').split()},
    **{f: (getattr(torch, f), [(0.3, 3, (3, 3))]) for f in ('log sqrt rsqrt reciprocal log1p square').split()},
    **{f: (getattr(torch, f), [(-0.8, 0.8, (3, 3))]) for f in ('tan asin acos').split()},
    **{f: (getattr(F, f), [(0.2, 2, (3, 3))]) for f in ('silu gelu elu softplus relu leaky_relu').split()},
    'add': (torch.add, [(-2, 2, (3, 3)), (-2, 2, (3,))]),
    'mul': (torch.mul, [(-2, 2, (3, 3)), (-2, 2, (3, 3))]),
    'mul, stretched': (torch.mul, [(-2, 2, (3, 3)), (-2, 2, (3, 1))]),
    'div': (torch.div, [(-2, 2, (3, 3)), (0.5, 2, (3, 3))]),
    'pow': (torch.pow, [(0.3, 2, (3, 3)), (-2, 2, (3, 3))]),
    'atan2': (torch.atan2, [(-2, 2, (3, 3)), (0.5, 2, (3, 3))]),
    'lerp': (torch.lerp, [(-2, 2, (3, 3)), (-2, 2, (3, 3)), (-2, 2, (3, 3))]),
    'sum': (lambda x: x.sum(-1), [(-2, 2, (3, 3))]),
    'mean': (lambda x: x.mean(-1), [(-2, 2, (3, 3))]),
    'var': (lambda x: x.var(-1), [(-2, 2, (3, 3))]),
    'std': (lambda x: x.std(-1), [(-2, 2, (3, 3))]),
    'prod': (lambda x: x.prod(-1), [(0.5, 2, (3, 3))]),
    'norm': (lambda x: x.norm(dim=-1), [(0.5, 2, (3, 3))]),
    'logsumexp': (lambda x: x.logsumexp(-1), [(-2, 2, (3, 3))]),
    'matmul': (torch.matmul, [(-2, 2, (3, 3)), (-2, 2, (3, 3))]),
    'linear': (F.linear, [(-2, 2, (4, 3)), (-2, 2, (3, 3)), (-2, 2, (3,))]),
    'transpose': (lambda x: x.t() * 1, [(-2, 2, (3, 3))]),
    'gather': (lambda x: x[[2, 0, 2]], [(-2, 2, (3, 3))]),
    'softmax': (lambda x: x.softmax(-1), [(-2, 2, (3, 3))]),
    'log_softmax': (lambda x: x.log_softmax(-1), [(-2, 2, (3, 3))]),
    'layer_norm': (lambda x, w, b: F.layer_norm(x, (3,), w, b), [(-2, 2, (3, 3)), (-2, 2, (3,)), (-2, 2, (3,))]),
    'group_norm': (lambda x: F.group_norm(x, 2), [(-2, 2, (3, 4, 3))]),
    'attention': (F.scaled_dot_product_attention, [(-1, 1, (1, 2, 3, 3))] * 3),
    'cross_entropy': (lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1])), [(-2, 2, (3, 3))]),
    'mse': (F.mse_loss, [(-2, 2, (3, 3)), (-2, 2, (3, 3))]),
    'huber': (F.huber_loss, [(-2, 2, (3, 3)), (-2, 2, (3, 3))]),
    'kl_div': (lambda x, y: F.kl_div(x, y, reduction='sum'), [(-2, -0.1, (3, 3)), (0.1, 1, (3, 3))]),
    'cosine_similarity': (F.cosine_similarity, [(-2, 2, (3, 3)), (-2, 2, (3, 3))]),
}


def gradients(fn, xs, gy):
    with torch.enable_grad():
        xs = [x.detach().requires_grad_() for x in xs]
        return list(torch.autograd.grad(fn(*xs), xs, gy))


def first_wrong(g):
    g = g.clone(memory_format=torch.contiguous_format)
    g.view(-1)[0] *= 1.5
    return g


def last_left_out(g):
    g = g.clone(memory_format=torch.contiguous_format)
    g.view(-1)[-1] = 0
    return g


def of_another(grads, i):
    others = [g for k, g in enumerate(grads) if k != i and g.shape == grads[i].shape]
    return others[0] if others else grads[i]


def elsewhere(fn, xs, gy, i):
    """As if another value had been saved: this input a little off."""
    return gradients(fn, [x * 1.01 if k == i else x for k, x in enumerate(xs)], gy)[i]


HELD = {}


def added(grads, i):
    HELD[i] = HELD.get(i, 0) + grads[i]
    return HELD[i]


# class: the wrong gradient of input i
MISTAKES = {
    'none: false alarms': lambda fn, xs, gy, gs, i: gs[i],
    'sign': lambda fn, xs, gy, gs, i: -gs[i],
    'factor 2': lambda fn, xs, gy, gs, i: 2 * gs[i],
    'factor 1.01': lambda fn, xs, gy, gs, i: 1.01 * gs[i],
    'factor 1.001': lambda fn, xs, gy, gs, i: 1.001 * gs[i],
    'factor 1.0001': lambda fn, xs, gy, gs, i: 1.0001 * gs[i],
    'zero': lambda fn, xs, gy, gs, i: torch.zeros_like(gs[i]),
    'transpose': lambda fn, xs, gy, gs, i: gs[i].transpose(-1, -2) if gs[i].dim() > 1 and gs[i].shape[-1] ==
    gs[i].shape[-2] else gs[i],
    'input': lambda fn, xs, gy, gs, i: of_another(gs, i),
    'places': lambda fn, xs, gy, gs, i: gs[i].roll(1, -1),
    'sum': lambda fn, xs, gy, gs, i: gs[i] * 0 + gs[i].flatten()[0],
    'term': lambda fn, xs, gy, gs, i: gs[i] - gs[i].mean(-1, keepdim=True),
    'constant 1e-4': lambda fn, xs, gy, gs, i: gs[i] + 1e-4 * gy.abs().mean(),
    'part, the first': lambda fn, xs, gy, gs, i: first_wrong(gs[i]),
    'part, the last': lambda fn, xs, gy, gs, i: last_left_out(gs[i]),
    'formula, saved 1 % off': lambda fn, xs, gy, gs, i: elsewhere(fn, xs, gy, i),
    'ADD for WRITE': lambda fn, xs, gy, gs, i: added(gs, i),
    'cotangent left out': lambda fn, xs, gy, gs, i: gradients(fn, xs, torch.ones_like(gy))[i],
}


def wrong_function(fn, mistake, i):
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *xs):
            ctx.save_for_backward(*xs)
            return fn(*xs)

        @staticmethod
        def backward(ctx, gy):
            xs = ctx.saved_tensors
            grads = gradients(fn, xs, gy)
            grads[i] = mistake(fn, xs, gy, grads, i)
            return tuple(grads)
    return Wrong.apply


def differs(fn, mistake, xs, i):
    gy = torch.randn_like(fn(*xs))
    HELD.clear()
    gs = gradients(fn, xs, gy)
    HELD[i] = gs[i]  # what memory holds
    wrong = mistake(fn, xs, gy, gs, i)
    HELD.clear()
    return not torch.allclose(wrong, gs[i], rtol=1e-6, atol=1e-9)


MODES = [{'fast_mode': False}, {'fast_mode': True}, {'fast_mode': False, 'rtol': 1e-6, 'atol': 1e-9}]


def found(fn, xs, mode):
    HELD.clear()
    try:
        return not torch.autograd.gradcheck(fn, xs, raise_exception=False, **mode)
    except RuntimeError:
        return True


def main():
    print(f'PyTorch {torch.__version__}, {len(OPS)} ops, eps 1e-6; the modes with the usual atol 1e-5 and rtol 1e-3\n')
    print('| mistake | seeded | slow mode finds | fast mode finds | slow mode, atol 1e-9, rtol 1e-6 |')
    print('| --- | --- | --- | --- | --- |')
    total = [0] * 4
    for name, mistake in MISTAKES.items():
        row = [0] * 4
        for fn, specs in OPS.values():
            torch.manual_seed(1)
            xs = [uniform(lo, hi, *shape).requires_grad_() for lo, hi, shape in specs]
            for i in range(len(xs)):
                if not name.startswith('none') and not differs(fn, mistake, [x.detach() for x in xs], i):
                    continue
                wrong = wrong_function(fn, mistake, i)
                row = [a + b for a, b in zip(row, [1] + [found(wrong, xs, mode) for mode in MODES])]
        print('|', name, '|', ' | '.join(map(str, row)), '|', flush=True)
        total = total if name.startswith('none') else [a + b for a, b in zip(total, row)]
    print('| all |', ' | '.join(map(str, total)), '|')


main()
