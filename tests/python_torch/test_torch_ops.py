"""Every op of the table: values and gradients as PyTorch has them, without a fallback, also of repeated calls."""

import pytest
import torch
from torch.nn import functional as F

import tapegrad.torch as tt

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def positive(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=generator) + 0.5


def inner(*shape):
    """Numbers in (-0.9, 0.9)."""
    return 1.8 * torch.rand(*shape, dtype=torch.float64, generator=generator) - 0.9


def index(high, *shape):
    return torch.randint(high, shape, generator=generator)


X, Y, P, I = normal(3, 4), normal(3, 4), positive(3, 4), inner(3, 4)
MASK = X > 0
IMAGE = normal(2, 4, 7, 9)
UNARY = {
    **{
        name: X
        for name in (
            'neg abs exp sin cos tanh sigmoid erf erfc asinh sinh cosh expm1 sign floor ceil round relu silu trunc exp2 '
            'isnan isinf atan square'
        ).split()
    },
    **{name: P for name in 'log sqrt rsqrt reciprocal log1p log2 log10'.split()},
    **{name: I for name in 'tan asin acos atanh'.split()},
}
CASES = {name: (getattr(torch, name, None) or getattr(F, name), x) for name, x in UNARY.items()}


def case(name, function, *inputs):
    CASES[name] = function, *inputs


# The inputs that take no gradient, by the first word of a case.
FIXED = {'batch_norm': (3, 4), 'bce': (1, 2), 'cross_entropy': (2,)}

# ---- Pointwise ----

case('acosh', torch.acosh, P + 1)
case('mish', F.mish, X)
case('gelu', F.gelu, X)
case('gelu tanh', lambda x: F.gelu(x, approximate='tanh'), X)
case('leaky_relu', lambda x: F.leaky_relu(x, 0.2), X)
case('elu', lambda x: F.elu(x, 0.7), X)
case('selu', F.selu, X)
case('celu', lambda x: F.celu(x, 0.5), X)
case('softplus', lambda x: F.softplus(x, 2, 1), X)
case('hardtanh', F.hardtanh, torch.cat([X, torch.tensor([[-1.0, 1, 0, 2]])]))
case('hardswish', F.hardswish, X)
case('relu6 at its bounds', F.relu6, torch.tensor([0, 6, -1, 7.0]))
case('clamp at its bounds', lambda x: x.clamp(0, 1), torch.tensor([0, 1, -1, 0.5]))
case('clamp_max', lambda x: x.clamp_max(0.1), X)
case('clamp of integers', lambda x: x.clamp(1, 3), index(6, 9))
case('clamp by tensors', torch.clamp, X, Y - 1, Y + 1)
case('sinc', torch.sinc, torch.tensor([0, 0.5, -1, 2.0], dtype=torch.float64))
case('norms of 0', lambda x: x.norm() + x.norm(p=3, dim=0).sum(), torch.zeros(2, 3, dtype=torch.float64))
case('add of a large integer', lambda x: x + (2**53 + 1), index(9, 3))
case('masked_fill by a large integer', lambda x: x.masked_fill(x > 4, 2**63 - 1), index(9, 5))
case('any and all of bytes', lambda x: x.any(0) + x.all(), index(2, 3, 2).to(torch.uint8))
case('add', lambda a, b: torch.add(a, b, alpha=3) + 2, X, Y[0])
case('subtractions', lambda a, b: torch.sub(a, b, alpha=2) - 1 + (5 - a) - (a - b), X, Y)
case('integers with floats', lambda a, b: a * b + b * 2 - 7 // (b + 1), X, index(5, 4))
case('a bool with a float', lambda a, m: a * m + m, X, MASK)
case('bool products', lambda a, b: a * b, MASK, Y > 0)
case('div', lambda a, b: a / b + 1 / b + a / 3, X, P)
case('div of integers', lambda a, b: a / b, index(9, 6), index(9, 6) + 1)
case('floor division', lambda a: a // 3 + torch.div(a, 2, rounding_mode='trunc'), index(20, 9) - 10)
case('remainder', lambda a, b: a % b + a % 2, X, P)
case('fmod', torch.fmod, X, P)
case('pow', lambda a, b: a**b + a**2.5 + 2**b + b**2, P, X)
case('maximum of equal numbers', lambda a, b: torch.maximum(a, b) * torch.minimum(a, 2 * b), X, X.clone())
case('atan2', torch.atan2, X, Y)
case('lerp', lambda a, b, w: torch.lerp(a, b, w) + torch.lerp(a, b, 0.3), X, Y, P)
case('comparisons', lambda a, b: (a < b) | (a > 1) ^ (a == b) & ~(b <= 0) | (a != a) | (a >= b), X, Y)
case('comparison of integers with a float', lambda a: a < 2.5, index(5, 6))
case(
    'logical',
    lambda a, b: torch.logical_and(a, b) | torch.logical_or(a, b) | torch.logical_xor(a, b) | torch.logical_not(a),
    index(2, 6),
    MASK[0, 0],
)
case('bits', lambda a, b: ~a & b | a ^ b | 4, index(9, 4), index(9, 4))
case('where', lambda m, a, b: torch.where(m, a, b) + torch.where(m, a, 1.0) + torch.where(m, 0, b), MASK, X, Y)
case(
    'masked_fill',
    lambda a, m, v: a.masked_fill(m, -2.0) + a.masked_fill(m, v),
    X,
    MASK,
    torch.tensor(3.0, dtype=torch.float64),
)
case('casts', lambda a, i: a.float().double() + i.to(torch.float64) + (a > 0).double(), X, index(5, 4))
case(
    'constants of a shape',
    lambda a: a + torch.zeros_like(a) + torch.ones_like(a) * torch.full_like(a, 3) + a.new_full((4,), 2),
    X,
)

# ---- Reductions ----

case('sum', lambda a: a.sum() * a.sum(0) + a.sum(-1, keepdim=True), X)
case('sum of integers and bools', lambda a, m: a.sum(0) + m.sum(), index(9, 3, 2), MASK)
case('mean', lambda a: a.mean() + a.mean((0, 1)) + a.mean(1, keepdim=True), X)
case(
    'var and std',
    lambda a: a.var() + a.var(0) + a.std(1, unbiased=False, keepdim=True) + torch.var_mean(a, 1, keepdim=True)[1],
    X,
)
case('prod', lambda a: a.prod() + a.prod(1), P[:, :3])
case(
    'amax of equal numbers',
    lambda a: a.amax(0) + a.amin(1).sum() + a.max() + a.min(),
    torch.tensor([[1.0, 2, 2], [1, 1, 2]]),
)
case(
    'max with its place',
    lambda a: a.max(1)[0] * a.min(1, keepdim=True)[0].sum() + a.max(1)[1] + a.min(0)[1].sum(),
    torch.tensor([[1.0, 2, 2], [1, 1, 2]]),
)
case('argmax', lambda a: a.argmax(1) + a.argmin() + a.argmax(), X)
case('any and all', lambda a, m: m.any(0) | m.all(1, keepdim=True) | a.any() | m.all(), index(2, 5), MASK)
case('logsumexp', lambda a: torch.logsumexp(a, (0, 1)) + torch.logsumexp(a, -1), X)
case('norm', lambda a: torch.linalg.vector_norm(a, 3, 1) + a.norm(), X)
case('running sums', lambda a, i: a.cumsum(1) * a.cumprod(0) + i.cumsum(0), X, index(5, 4))
case(
    'running extrema',
    lambda a: a.cummax(1)[0] * a.cummin(0)[0] + a.cummax(1)[1] - a.cummin(0)[1],
    torch.tensor([[1.0, 3, 3, 2], [2, 1, 5, 5], [2, 4, 1, float('nan')]], dtype=torch.float64),
)
case('running extrema of integers', lambda i: i.cummax(1)[0] + i.cummin(0)[1], index(5, 4, 6))
case('running extrema of a scalar', lambda a: a.cummax(0)[0] + a.cummin(0)[1], X[0, 0])
case('sort', lambda a: a.sort(1, descending=True)[0] * a.argsort(0), X)
case('topk', lambda a: a.topk(2, 1)[0] + a.topk(2, 1, largest=False)[1], X)
case('median', lambda a: a.median(1)[0], X)
case('softmax', lambda a: a.softmax(0) * a.log_softmax(1), X)

# ---- Products ----

case('mm', lambda a, b: a @ b.t(), X, Y)
case('addmm', lambda c, a, b: torch.addmm(c, a, b.t(), beta=0.5, alpha=2), normal(3), X, Y)
case('bmm', lambda a, b, c: torch.baddbmm(c, a, b, alpha=0.3) + a @ b, normal(2, 3, 4), normal(2, 4, 5), normal(5))
case('linear', lambda x, w, b: F.linear(x, w, b), normal(2, 3, 4), normal(5, 4), normal(5))
case('dot and mv', lambda a, x: a.mv(x) + x.dot(x), X, Y[0])
case('einsum', lambda a, b: torch.einsum('ij,kj->ik', a, b), X, Y)

# ---- Shapes ----

case(
    'views', lambda a: a.view(2, 6).t().unsqueeze(1).squeeze(1).reshape(3, 4) + a.permute(1, 0).flatten().view(3, 4), X
)
case('expand', lambda a: a[:1].expand(5, 4) + a[0].expand(5, -1), X)
case('slices', lambda a: a[1:, ::2] + a[-2:, :2] + a[0, 1] + a[:9, 2:][1], X)
case(
    'cat',
    lambda a, i: torch.cat([a, a[:, :1], i[:, None]], 1) + torch.cat([a, torch.zeros(3, 2, dtype=a.dtype)], -1),
    X,
    index(5, 3),
)
case('stack', lambda a, b: torch.stack([a, b], 1), X, Y)
case('split', lambda a: a.split(3, 1)[0] * a.split([1, 3], 1)[1] + a.chunk(2)[0][:1, :3] + a.unbind(1)[0][:, None], X)
case('pad', lambda a: F.pad(a, (1, 2, -1, 3), value=0.5), X)
case('reflection', lambda a: F.pad(a, (2, 1, 1, 2), mode='reflect'), IMAGE)
case('reflection along three dims', lambda a: F.pad(a, (1, 0, 2, 1, 0, 1), mode='reflect'), normal(1, 2, 2, 4, 3))
case('reflection of lines', lambda a: F.pad(a, (2, 1), mode='reflect'), X)
case(
    'replication',
    lambda a: F.pad(a, (2, 3, 0, 8), mode='replicate') + F.pad(a[0], (2, 3), mode='replicate')[:, -1:],
    IMAGE,
)
case('replication along three dims', lambda a: F.pad(a, (1, 0, 2, 1, 0, 3), mode='replicate'), normal(1, 2, 2, 4, 3))
case('as_strided', lambda a: a.as_strided((4, 3), (2, 1), 1) * a.as_strided((3,), (0,), 5), X)
case('as_strided of a view', lambda a: a[1:, 1:].as_strided((2, 2), (5, 1)) + a.t().as_strided((2, 1), (1, 1)), X)
case(
    'as_strided of channels that are last',
    lambda a: F.relu(a.contiguous(memory_format=torch.channels_last)).as_strided((3, 4), (1, 2), 3),
    IMAGE,
)
case('flip and roll', lambda a: a.flip(0, 1) + a.roll(2, 1) + a.roll((1, -1), (0, 1)) + a.roll(3), X)
case('repeat', lambda a: a.repeat(2, 1, 3) + a.repeat_interleave(3, 1), X)
case('triangles', lambda a: a.tril(1) + a.triu(-1), X)
case('diagonal', lambda a: a.diagonal(1, 0, 2), normal(3, 2, 4))
case('unfold', lambda a: a.unfold(1, 2, 1), X)


def _writes(a, b):
    y = a.clone()
    y[1:, :2] = b[1:, 2:]
    y[0] += 1
    y[:, 3].mul_(b[:, 0])
    return y


case('writes to parts', _writes, X, Y)

# ---- Indexing ----

I3, I4 = index(3, 2, 5), index(4, 2, 5)
case('index', lambda a, i: a[i] * 2, X, I3)
case('negative index', lambda a, i: a[:, i - 4], X, I4)
case('two indices', lambda a, i, j: a[i, j], X, I3, I4)
case('indices that are not adjacent', lambda a, i, j: a[i, :, j], normal(3, 2, 4), I3, I4)
case('indices in the middle', lambda a, i, j: a[:, i, j], normal(2, 3, 4), I3, I4)
case('index_select', lambda a, i: a.index_select(1, i), X, I4[0])
case('gather', lambda a, i: a.gather(1, i), X, index(4, 3, 2))
case('scatter', lambda a, b, i: a.scatter(1, i, b), X, Y[:, :2], torch.tensor([[2, 0], [1, 3], [0, 1]]))
case('scatter of a number', lambda a, i: a.scatter(1, i, 7.0), X, torch.tensor([[2, 0], [1, 3], [0, 1]]))
case('scatter_add', lambda a, b, i: a.scatter_add(1, i, b), X, Y[:, :2], index(4, 3, 2))
I9 = index(4, 3, 9)
for reduce in ('sum', 'prod', 'mean', 'amax', 'amin'):
    case(
        f'scatter_reduce {reduce}',
        lambda a, b, i, r=reduce: (
            a.scatter_reduce(1, i, b, r) * a.scatter_reduce(1, i, b, r, include_self=False)
            + a.scatter_reduce(0, i[:2, :3] % 3, b[:2, :3], r)
        ),
        X,
        normal(3, 9),
        I9,
    )
case('scatter_reduce prod with zeros', lambda a, b, i: a.scatter_reduce(1, i, b.relu(), 'prod'), X, normal(3, 9), I9)
case('index_add', lambda a, b, i: a.index_add(0, i, b, alpha=2), X, normal(5, 4), index(3, 5))


def _put(a, b, i, m):
    y = a.clone()
    y[:, i] = b
    y[m] = 0.5
    return y.index_put((i,), y[0], accumulate=True)


case('index_put', _put, normal(4, 4), normal(4, 2), torch.tensor([2, 0]), normal(4, 4) > 0)
case('masked_scatter', lambda a, m, b: a.masked_scatter(m, b), X, MASK, Y)
case('embedding', lambda w, i: F.embedding(i, w, padding_idx=1), normal(5, 3), index(5, 2, 6))
BAGS = torch.tensor([0, 3, 3, 7])
case(
    'bags',
    lambda w, i: F.embedding_bag(i, w, BAGS) + F.embedding_bag(i, w, BAGS, padding_idx=1),
    normal(5, 3),
    index(5, 9),
)
case(
    'sums of bags',
    lambda w, i, p: F.embedding_bag(i, w, BAGS, mode='sum', per_sample_weights=p, include_last_offset=True),
    normal(5, 3),
    index(5, 7),
    positive(7),
)

# ---- Networks ----

case('layer_norm', lambda x, w, b: F.layer_norm(x, (4,), w, b) + F.layer_norm(x, (3, 4)), X, normal(4), normal(4))
case('rms_norm', lambda x, w: F.rms_norm(x, (4,), w, 1e-6) + F.rms_norm(x, (4,)), X, normal(4))
case(
    'norms over several dims',
    lambda x, w, b: F.rms_norm(x, (3, 4), w, 1e-6) + F.layer_norm(x, (3, 4), w, b),
    normal(2, 3, 4),
    normal(3, 4),
    normal(3, 4),
)
case('group_norm', lambda x, w, b: F.group_norm(x, 2, w, b), IMAGE, normal(4), normal(4))
case('instance_norm', lambda x, w, b: F.instance_norm(x, weight=w, bias=b), IMAGE, normal(4), normal(4))
case(
    'batch_norm',
    lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b),
    IMAGE,
    normal(4),
    normal(4),
    torch.zeros(4, dtype=torch.float64),
    torch.ones(4, dtype=torch.float64),
)
case('glu', lambda x: F.glu(x, 1), X)
Q, K = normal(2, 4, 3, 8), normal(2, 2, 5, 8)
case('attention', lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), Q, K, normal(2, 2, 5, 8))
case('causal attention', lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.2), Q)
case(
    'attention with a mask',
    lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
    Q,
    torch.ones(3, 3, dtype=torch.bool).tril(),
)
case('attention with a bias', lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m), Q, normal(1, 4, 3, 3))
case('max_pool2d', lambda x: F.max_pool2d(x, 3, 2, 1) + F.max_pool2d(x, (2, 3), 2, ceil_mode=True).sum(), IMAGE)
case(
    'avg_pool2d',
    lambda x: (
        F.avg_pool2d(x, 3, 2, 1)
        + F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        + F.avg_pool2d(x, 3, 2, 1, divisor_override=5)
    ),
    IMAGE,
)
case('avg_pool1d', lambda x: F.avg_pool1d(x, 3, 2, 1), normal(2, 4, 9))
case(
    'adaptive pools',
    lambda x: F.adaptive_avg_pool2d(x, (3, 4)) + F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, (3, 4)),
    IMAGE,
)
case('max pools with places', lambda x: F.adaptive_max_pool2d(x, (3, 4), return_indices=True)[1] * x.sum(), IMAGE)
case('pools in three dims', lambda x: F.max_pool3d(x, 2, 1) + F.avg_pool3d(x, 2, 1), normal(1, 2, 3, 4, 5))
case('grid_sample', lambda x, g: F.grid_sample(x, g, align_corners=False), IMAGE, inner(2, 3, 4, 2))
case(
    'bicubic grid_sample',
    lambda x, g: (
        F.grid_sample(x, g, 'bicubic', 'border', align_corners=False)
        + F.grid_sample(x, 2 * g, 'bicubic', 'reflection', align_corners=True)
        + F.grid_sample(x, 1.5 * g, 'bicubic', align_corners=False)
    ),
    IMAGE,
    inner(2, 3, 4, 2),
)
case('conv2d', lambda x, w, b: F.conv2d(x, w, b, 2, 1, groups=2), IMAGE, normal(6, 2, 3, 3), normal(6))
case('conv3d', lambda x, w: F.conv3d(x, w, padding=1), normal(1, 2, 3, 4, 5), normal(3, 2, 2, 2, 2))
case('conv1d', lambda x, w: F.conv1d(x, w, dilation=2), normal(2, 4, 9), normal(6, 4, 3))
case(
    'conv_transpose2d',
    lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, output_padding=1, groups=2),
    IMAGE,
    normal(4, 3, 3, 3),
    normal(6),
)
case('conv_transpose1d', lambda x, w: F.conv_transpose1d(x, w, stride=3, dilation=2), normal(2, 4, 5), normal(4, 3, 3))
case(
    'conv_transpose3d',
    lambda x, w, b: F.conv_transpose3d(x, w, b, (2, 1, 3), 1, output_padding=(1, 0, 2), groups=2, dilation=(1, 2, 1)),
    normal(1, 4, 3, 4, 2),
    normal(4, 3, 3, 2, 2),
    normal(6),
)
case(
    'convolutions without a batch',
    lambda x, w: F.conv2d(x, w)[:, :3, :3] + F.conv_transpose2d(x, w)[:, :3, :3],
    IMAGE[0],
    normal(4, 4, 2, 2),
)
case('fold', lambda x: F.fold(x, (4, 5), (2, 3), padding=1, stride=(2, 1)), normal(2, 12, 15))
case('fold without a batch', lambda x: F.fold(x, (3, 3), 2), normal(8, 4))
case(
    'bilinear',
    lambda x: (
        F.interpolate(x, (5, 12), mode='bilinear') + F.interpolate(x, (5, 12), mode='bilinear', align_corners=True)
    ),
    IMAGE,
)
case(
    'bicubic',
    lambda x: (
        F.interpolate(x, scale_factor=2, mode='bicubic') + F.interpolate(x, (14, 18), mode='bicubic', antialias=True)
    ),
    IMAGE,
)
case('nearest', lambda x: F.interpolate(x, scale_factor=2), IMAGE)

# ---- Losses ----

TARGET = index(4, 3)
for reduction in ('mean', 'sum', 'none'):
    case(
        f'cross_entropy {reduction}',
        lambda x, t, w, r=reduction: F.cross_entropy(x, t, w, ignore_index=1, label_smoothing=0.1, reduction=r),
        X,
        TARGET,
        positive(4),
    )
    case(f'mse {reduction}', lambda a, b, r=reduction: F.mse_loss(a, b, reduction=r), X, Y)
    case(
        f'huber {reduction}',
        lambda a, b, r=reduction: (
            F.huber_loss(a, b, reduction=r)
            + F.smooth_l1_loss(a, b, beta=0.3, reduction=r)
            + F.l1_loss(a, b, reduction=r)
        ),
        X,
        Y,
    )
    case(
        f'bce {reduction}',
        lambda a, b, w, r=reduction: F.binary_cross_entropy_with_logits(a, b, w, reduction=r),
        X,
        I.abs(),
        P,
    )
case('kl_div', lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction='batchmean'), X, Y)
case(
    'losses that broadcast',
    lambda a, b: F.huber_loss(a, b) + F.smooth_l1_loss(a, b, beta=0.3, reduction='none') + F.mse_loss(a, b),
    X,
    normal(4),
)
case('distances', lambda a, b: torch.cdist(a, b, 3) + torch.cdist(a, b), X, Y)
case('distances of pairs', lambda a: torch.pdist(a, 3) * torch.pdist(a), normal(5, 4))
case('cosine_similarity', lambda a, b: F.cosine_similarity(a, b, dim=1), X, Y)


def weights(y):
    return torch.linspace(0.5, 2, y.numel(), dtype=y.dtype).reshape(y.shape)


def results_of(run, inputs, wanted):
    """The result of a function, the gradients of the inputs at the positions `wanted`, and what is in the others
    then."""
    leaves = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(inputs)]
    y = run(*leaves)
    grads = (
        torch.autograd.grad(y, [leaves[i] for i in wanted], weights(y), allow_unused=True) if y.requires_grad else []
    )
    return [y, *grads, *[x for i, x in enumerate(leaves) if i not in wanted]]


@pytest.mark.parametrize('name', CASES)
def test_op(name):
    function, *inputs = CASES[name]
    tt.reset_report()
    wanted = [i for i, x in enumerate(inputs) if x.is_floating_point() and i not in FIXED.get(name.split()[0], ())]
    ours = tt.backend(function, None)
    for factor in (1, 0.97, 0.94):  # the second run records the calls of ops, and the third repeats them
        given = [x * factor if x.is_floating_point() else x for x in inputs]
        compare(*(results_of(run, given, wanted) for run in (function, ours)))
    assert tt.report() == {}


def compare(theirs, ours):
    for a, b in zip(theirs, ours, strict=True):
        if a is None or b is None:
            assert a is b or not (b if a is None else a).any()
        else:
            assert a.dtype == b.dtype
            torch.testing.assert_close(b, a, rtol=1e-10, atol=1e-12, equal_nan=True)
