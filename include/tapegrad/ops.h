/* Ops, in groups. A line here says the shapes; the function in src/ops has the full comment.
 *
 * Every op records a node on the tape t, runs at once, and returns a tensor that the tape owns: it lives until the tape
 * is reset. On error the context records it, and the op returns an inert tensor. Wrong shapes fail with TG_ERR_SHAPE,
 * wrong dtypes with TG_ERR_DTYPE, and placements that do not match with TG_ERR_PLACEMENT (placement.h).
 *
 * Shapes broadcast as in NumPy if the line says so. Negative dims count from the end. Float ops take float32, float64,
 * bfloat16 and float16, and compute 16-bit types in float32. All tensor operands of an op have one dtype unless the
 * line says otherwise. A tensor operand that "may be NULL" is optional; options (opts) may always be NULL.
 */
#ifndef TAPEGRAD_OPS_H
#define TAPEGRAD_OPS_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Unary: y has x's shape ---- */
TG_API tg_tensor *tg_neg(tg_tape *t, tg_tensor *x);        /* -x */
TG_API tg_tensor *tg_abs(tg_tape *t, tg_tensor *x);        /* |x|, gradient 0 at 0 */
TG_API tg_tensor *tg_exp(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_log(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_sqrt(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_rsqrt(tg_tape *t, tg_tensor *x);      /* 1 / sqrt(x) */
TG_API tg_tensor *tg_reciprocal(tg_tape *t, tg_tensor *x); /* 1 / x */
TG_API tg_tensor *tg_square(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_sin(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_cos(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_tanh(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_sigmoid(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_erf(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_tan(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_asin(tg_tape *t, tg_tensor *x); /* asin and acos: NaN outside of [-1, 1] */
TG_API tg_tensor *tg_acos(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_atan(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_sinh(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_cosh(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_log1p(tg_tape *t, tg_tensor *x); /* log(1 + x), exact for small x */
TG_API tg_tensor *tg_expm1(tg_tape *t, tg_tensor *x); /* e^x - 1, exact for small x */
TG_API tg_tensor *tg_sign(tg_tape *t, tg_tensor *x);  /* sign, floor, ceil and round: gradient 0, like PyTorch's */
TG_API tg_tensor *tg_floor(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_ceil(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_round(tg_tape *t, tg_tensor *x);     /* halves to even */
TG_API tg_tensor *tg_relu(tg_tape *t, tg_tensor *x);      /* gradient 0 at 0 */
TG_API tg_tensor *tg_silu(tg_tape *t, tg_tensor *x);      /* x sigmoid(x) */
TG_API tg_tensor *tg_gelu(tg_tape *t, tg_tensor *x);      /* x Phi(x), by erf */
TG_API tg_tensor *tg_gelu_tanh(tg_tape *t, tg_tensor *x); /* GPT-2's approximation */
TG_API tg_tensor *tg_leaky_relu(tg_tape *t, tg_tensor *x, double slope);     /* slope x for x <= 0 */
TG_API tg_tensor *tg_elu(tg_tape *t, tg_tensor *x, double alpha);            /* alpha (e^x - 1) for x <= 0 */
TG_API tg_tensor *tg_softplus(tg_tape *t, tg_tensor *x, double beta, double threshold); /* log(1 + e^(beta x)) / beta */
TG_API tg_tensor *tg_pow_scalar(tg_tape *t, tg_tensor *x, double p);
TG_API tg_tensor *tg_clamp(tg_tape *t, tg_tensor *x, double lo, double hi); /* gradient 1 in [lo, hi]; integers too */
TG_API tg_tensor *tg_scale(tg_tape *t, tg_tensor *x, double a);             /* a x */
TG_API tg_tensor *tg_add_scalar(tg_tape *t, tg_tensor *x, double b);        /* x + b; integer x needs integer b */
TG_API tg_tensor *tg_cast(tg_tape *t, tg_tensor *x, tg_dtype dtype);        /* rounds to nearest even */
TG_API tg_tensor *tg_detach(tg_tape *t, tg_tensor *x);                      /* the same bytes, no gradient */

/* ---- Binary: a and b broadcast ---- */
TG_API tg_tensor *tg_add(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_sub(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_mul(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_div(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_pow(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_atan2(tg_tape *t, tg_tensor *a, tg_tensor *b); /* the angle of (b, a) */
TG_API tg_tensor *tg_fmod(tg_tape *t, tg_tensor *a, tg_tensor *b);  /* a - b trunc(a / b), with the sign of a */
TG_API tg_tensor *tg_lerp(tg_tape *t, tg_tensor *a, tg_tensor *b, tg_tensor *w); /* a + w (b - a); all broadcast */
TG_API tg_tensor *tg_lerp_scalar(tg_tape *t, tg_tensor *a, tg_tensor *b, double w);
TG_API tg_tensor *tg_maximum(tg_tape *t, tg_tensor *a, tg_tensor *b); /* equal elements get half of the gradient each */
TG_API tg_tensor *tg_minimum(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_eq(tg_tape *t, tg_tensor *a, tg_tensor *b); /* comparisons: bool, no gradient */
TG_API tg_tensor *tg_ne(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_lt(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_le(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_gt(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_ge(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_where(tg_tape *t, tg_tensor *c, tg_tensor *a, tg_tensor *b); /* c bool; all broadcast */
TG_API tg_tensor *tg_masked_fill(tg_tape *t, tg_tensor *x, tg_tensor *mask, double value); /* mask bool, broadcasts */

/* ---- In place: the result is written into a's memory, and a new handle for it is returned. The handle a is invalid
 * from then on, unless a belongs to the context. Fails with TG_ERR_STATE on a view, if views of a are alive, and,
 * except in no-grad mode, on a leaf that requires a gradient. b broadcasts to a. ---- */
TG_API tg_tensor *tg_add_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_sub_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_mul_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_relu_(tg_tape *t, tg_tensor *a);
TG_API tg_tensor *tg_copy_(tg_tape *t, tg_tensor *a, tg_tensor *b); /* writes b into a */

/* ---- Reductions over dims (TG_DIMS(0, -1) or TG_ALL_DIMS). keepdim keeps the reduced dims with size 1. ---- */
TG_API tg_tensor *tg_sum(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_mean(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_var(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim); /* / (n - correction) */
TG_API tg_tensor *tg_std(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim); /* sqrt(var) */
TG_API tg_tensor *tg_prod(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* (sum |x|^p)^(1/p) for any p, also infinite; for p < 0 it is 0 if an element is 0; gradient 0 at 0 */
TG_API tg_tensor *tg_norm(tg_tape *t, tg_tensor *x, double p, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_max(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim); /* ties share the gradient evenly */
TG_API tg_tensor *tg_min(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_logsumexp(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_argmax(tg_tape *t, tg_tensor *x, int dim, bool keepdim); /* int64; the first of equal elements */
TG_API tg_tensor *tg_argmin(tg_tape *t, tg_tensor *x, int dim, bool keepdim);
TG_API tg_tensor *tg_any(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim); /* bool -> bool; so does tg_all */
TG_API tg_tensor *tg_all(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* The median along dim: the lower one of an even number of elements, and NaN if an element is NaN. *index (may be NULL)
 * receives its position, int64. */
TG_API tg_tensor *tg_median(tg_tape *t, tg_tensor *x, int dim, bool keepdim, tg_tensor **index);

/* ---- Along a dim. Sorting keeps the order of equal elements; NaN is greater than any number. ---- */
TG_API tg_tensor *tg_cumsum(tg_tape *t, tg_tensor *x, int dim); /* inclusive; integers give int64 */
TG_API tg_tensor *tg_cumprod(tg_tape *t, tg_tensor *x, int dim);
/* x sorted in ascending or descending order. *index (may be NULL), int64: the position of each element in x */
TG_API tg_tensor *tg_sort(tg_tape *t, tg_tensor *x, int dim, bool descending, tg_tensor **index);
/* the k largest elements in descending order, or the k smallest in ascending order: [.., k, ..]; *index as in
 * tg_sort */
TG_API tg_tensor *tg_topk(tg_tape *t, tg_tensor *x, int64_t k, int dim, bool largest, tg_tensor **index);

/* ---- Linear algebra ---- */
/* [.., m, k] x [.., k, n] -> [.., m, n], ndim >= 2. Leading dims broadcast; any strides, so transposing costs
 * nothing. */
TG_API tg_tensor *tg_matmul(tg_tape *t, tg_tensor *a, tg_tensor *b);
/* x [.., in], w [out, in], b [out] or NULL -> [.., out]: x w^T + b */
TG_API tg_tensor *tg_linear(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_relu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);      /* fused activation */
TG_API tg_tensor *tg_linear_gelu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);      /* erf */
TG_API tg_tensor *tg_linear_gelu_tanh(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_silu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);

TG_API tg_tensor *tg_outer(tg_tape *t, tg_tensor *a, tg_tensor *b); /* [m], [n] -> [m, n] */
TG_API tg_tensor *tg_dot(tg_tape *t, tg_tensor *a, tg_tensor *b);   /* [n], [n] -> scalar */
/* "bij,bjk->bik": one letter per dim; dims that the result does not have are summed; no ellipsis */
TG_API tg_tensor *tg_einsum(tg_tape *t, const char *equation, tg_tensor *a, tg_tensor *b);

typedef struct tg_solve_opts {
    size_t size;
    bool upper;     /* reads the upper triangle of a; else the lower one */
    bool transpose; /* solves a^T x = b */
    bool unit;      /* takes the diagonal of a as ones */
} tg_solve_opts;

#define TG_SOLVE(...) (&(tg_solve_opts){.size = sizeof(tg_solve_opts), __VA_ARGS__})

/* Solves a x = b for x: triangular a [.., n, n], b [.., n, k] with the same leading dims -> [.., n, k]. */
TG_API tg_tensor *tg_triangular_solve(tg_tape *t, tg_tensor *a, tg_tensor *b, const tg_solve_opts *opts);
/* The lower triangular l of a = l l^T, for symmetric a [.., n, n]. TG_ERR_DATA if a is not positive definite; on the
 * CPU the message names the leading minor. A GPU reports the error later, like all errors in data. */
TG_API tg_tensor *tg_cholesky(tg_tape *t, tg_tensor *a);

/* ---- Shape. Views share memory; tg_reshape copies only if the strides require it. ---- */
TG_API tg_tensor *tg_reshape(tg_tape *t, tg_tensor *x, tg_shape shape); /* one dim may be -1 */
TG_API tg_tensor *tg_view(tg_tape *t, tg_tensor *x, tg_shape shape);    /* fails if tg_reshape would copy */
TG_API tg_tensor *tg_permute(tg_tape *t, tg_tensor *x, tg_dims order);
TG_API tg_tensor *tg_transpose(tg_tape *t, tg_tensor *x, int d0, int d1);
TG_API tg_tensor *tg_expand(tg_tape *t, tg_tensor *x, tg_shape shape);  /* -1 keeps a dim; new dims come first */
TG_API tg_tensor *tg_squeeze(tg_tape *t, tg_tensor *x, int dim);        /* removes a dim of size 1 */
TG_API tg_tensor *tg_unsqueeze(tg_tape *t, tg_tensor *x, int dim);
TG_API tg_tensor *tg_slice(tg_tape *t, tg_tensor *x, int dim, int64_t start, int64_t stop,
                          int64_t step); /* start <= stop <= size; negative: from the end; step > 0 */
TG_API tg_tensor *tg_select(tg_tape *t, tg_tensor *x, int dim, int64_t index); /* removes dim */
TG_API tg_tensor *tg_contiguous(tg_tape *t, tg_tensor *x);              /* x itself if it is contiguous */
TG_API tg_tensor *tg_concat(tg_tape *t, tg_tensor *const *x, int n, int dim);
TG_API tg_tensor *tg_stack(tg_tape *t, tg_tensor *const *x, int n, int dim);
/* out[n] are views: out[i] is [.., sizes[i], ..]. The sizes must sum to that of dim. */
TG_API tg_status tg_split(tg_tape *t, tg_tensor *x, int dim, const int64_t *sizes, int n, tg_tensor **out);
/* out[n] are views of ceil(size / n) indices of dim each; the last ones have the rest and may be empty. */
TG_API tg_status tg_chunk(tg_tape *t, tg_tensor *x, int dim, int n, tg_tensor **out);
/* adds `before` and `after` elements of `value` at the ends of dim */
TG_API tg_tensor *tg_pad(tg_tape *t, tg_tensor *x, int dim, int64_t before, int64_t after, double value);
TG_API tg_tensor *tg_flip(tg_tape *t, tg_tensor *x, tg_dims dims); /* reverses the order along dims */
TG_API tg_tensor *tg_roll(tg_tape *t, tg_tensor *x, int64_t shift, int dim); /* cyclic */
TG_API tg_tensor *tg_repeat(tg_tape *t, tg_tensor *x, int dim, int64_t times); /* [.., times n, ..] */
/* a view of the windows of `size` elements along dim, `step` apart: [.., windows, .., size] */
TG_API tg_tensor *tg_unfold(tg_tape *t, tg_tensor *x, int dim, int64_t size, int64_t step);
TG_API tg_tensor *tg_tril(tg_tape *t, tg_tensor *x, int64_t k); /* x [.., m, n]; 0 above diagonal k */
TG_API tg_tensor *tg_triu(tg_tape *t, tg_tensor *x, int64_t k);
/* x [n]: the matrix with x on diagonal k. x [m, n]: a view of its diagonal k. */
TG_API tg_tensor *tg_diag(tg_tape *t, tg_tensor *x, int64_t k);

/* ---- Indexing. Indices are int64 or int32; one that is out of range fails with TG_ERR_DATA. ---- */
TG_API tg_tensor *tg_gather(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index); /* result: index's shape */
/* x with src added at index along dim. index and src have one shape, no larger than x's except along dim. */
TG_API tg_tensor *tg_scatter_add(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src);
/* x with src written at index along dim, otherwise like tg_scatter_add. If several elements go to one place, the
 * last in row-major order counts. */
TG_API tg_tensor *tg_scatter(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src);
TG_API tg_tensor *tg_index_select(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index); /* index [n]: dim becomes n */
TG_API tg_tensor *tg_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids); /* [v, h], ids [..] -> [.., h] */
/* The `count` elements of x where mask (bool, broadcasts to x) is true, in row-major order: [count]. If mask is true
 * for another number of elements it fails with TG_ERR_DATA. */
TG_API tg_tensor *tg_masked_select(tg_tape *t, tg_tensor *x, tg_tensor *mask, int64_t count);

/* ---- New tensors: their dtype stands right after the tape; TG_DTYPE_DEFAULT is the context's ---- */
TG_API tg_tensor *tg_arange(tg_tape *t, tg_dtype dtype, double start, double stop, double step);
TG_API tg_tensor *tg_full(tg_tape *t, tg_dtype dtype, tg_shape shape, double value);
/* ids [..] -> [.., classes]: 1 at each id, 0 elsewhere */
TG_API tg_tensor *tg_one_hot(tg_tape *t, tg_dtype dtype, tg_tensor *ids, int64_t classes);

/* ---- Networks ---- */
TG_API tg_tensor *tg_softmax(tg_tape *t, tg_tensor *x, int dim);
TG_API tg_tensor *tg_log_softmax(tg_tape *t, tg_tensor *x, int dim);
/* normalize over the last dim; w, b [h], may be NULL */
TG_API tg_tensor *tg_layer_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps);
TG_API tg_tensor *tg_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, double eps);
/* x [n, c, ..], normalized over groups of adjacent channels; w, b [c], may be NULL */
TG_API tg_tensor *tg_group_norm(tg_tape *t, tg_tensor *x, int64_t groups, tg_tensor *w, tg_tensor *b, double eps);
/* x [n, c, ..], normalized for each channel over all other dims; w, b [c], may be NULL. In training mode it uses the
 * statistics of the batch, and updates running_mean and running_var [c] in place: r := (1 - momentum) r + momentum s,
 * where s of the variance is unbiased (divided by n - 1). In evaluation mode it uses the running statistics. They must
 * not require a gradient, and may have a wider dtype than x, since 16-bit types lose small steps. If both are NULL the
 * statistics of the batch are used in both modes. */
TG_API tg_tensor *tg_batch_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_tensor *running_mean,
                                tg_tensor *running_var, double momentum, double eps);
/* rms_norm(x + residual, w). *sum (may be NULL) receives x + residual. x and residual have one shape. */
TG_API tg_tensor *tg_residual_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *residual, tg_tensor *w, double eps,
                                       tg_tensor **sum);
TG_API tg_tensor *tg_dropout(tg_tape *t, tg_tensor *x, double p); /* identity in evaluation mode */
TG_API tg_tensor *tg_gumbel(tg_tape *t, tg_tensor *x); /* noise -ln(-ln(u)), shape and dtype of x; no gradient */
/* softmax((x + gumbel) / tau). If hard is true: its largest element as one-hot, with the gradient of the soft
 * result. */
TG_API tg_tensor *tg_gumbel_softmax(tg_tape *t, tg_tensor *x, double tau, bool hard, int dim);
/* x [.., s, d] with even d: rotates the pair (i, i + d/2) at position p = offset + s by the angle p base^(-2i/d)
 * (rotary embedding of Su et al., RoFormer, 2021, in the layout of GPT-NeoX) */
TG_API tg_tensor *tg_rope(tg_tape *t, tg_tensor *x, double base, int64_t offset);
TG_API tg_tensor *tg_swiglu(tg_tape *t, tg_tensor *gate, tg_tensor *up); /* silu(gate) up */
TG_API tg_tensor *tg_glu(tg_tape *t, tg_tensor *x, int dim); /* a sigmoid(b) for the halves a, b of x along dim */

typedef struct tg_attention_opts {
    size_t size;
    bool causal;    /* query i attends to keys j <= p, where p = i + sk - sq */
    double scale;   /* factor of the scores; 0: 1 / sqrt(dk) */
    double dropout; /* probability of dropping a probability, in training mode */
    int64_t left, right;  /* window: keys p - left <= j <= p + right; 0 or -1: no bound on that side */
    tg_tensor *mask;      /* broadcasts to [b, h, sq, sk]; bool: false hides a key; float: is added to the scores */
    tg_tensor *sink;      /* [h]: an additional logit in each row's denominator; it adds no row of values */
    tg_tensor *lengths;   /* int64 [b]: keys j >= lengths[b] are padding and hidden */
    tg_tensor *starts_q;  /* int64 [n + 1]: n sequences are packed along sq (b = 1), each attends to itself only */
    tg_tensor *starts_k;  /* int64 [n + 1]: the same along sk; required with starts_q */
} tg_attention_opts;

enum { TG_WINDOW_ZERO = -2147483647 }; /* value of left or right for a bound of 0 */
#define TG_ATTENTION(...) (&(tg_attention_opts){.size = sizeof(tg_attention_opts), __VA_ARGS__})

/* softmax(scale q k^T) v: q [b, h, sq, dk], k [b, g, sk, dk], v [b, g, sk, dv] -> [b, h, sq, dv]; g divides h. The
 * result of a query to which all keys are hidden is 0. A float mask and sink have q's dtype or float32, and get
 * gradients. */
TG_API tg_tensor *tg_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, const tg_attention_opts *opts);

/* ---- Convolutions and pooling. Elements [0] of options are for h, [1] for w; with one dim only [0] counts. ---- */
typedef struct tg_conv_opts {
    size_t size;
    int64_t stride[2];   /* distance of windows; 0: 1 */
    int64_t padding[2];  /* number of zeros at each end */
    int64_t dilation[2]; /* distance of the elements of a window; 0: 1 */
    int64_t groups;      /* number of groups of adjacent channels that are convolved separately; 0: 1 */
} tg_conv_opts;

#define TG_CONV(...) (&(tg_conv_opts){.size = sizeof(tg_conv_opts), __VA_ARGS__})

/* x [n, c, l], w [o, c / groups, k], b [o], may be NULL -> [n, o, windows] */
TG_API tg_tensor *tg_conv1d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);
/* x [n, c, h, w], w [o, c / groups, kh, kw], b [o], may be NULL -> [n, o, windows, windows] */
TG_API tg_tensor *tg_conv2d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);

typedef struct tg_pool_opts {
    size_t size;
    int64_t stride[2];   /* distance of windows; 0: the window's size */
    int64_t padding[2];  /* at each end, at most half of the window; -infinity for max_pool, zeros for avg_pool */
    int64_t dilation[2]; /* max_pool: as in tg_conv_opts */
    bool exclude_padding; /* avg_pool: divides by the number of elements of x in the window, not by its size */
} tg_pool_opts;

#define TG_POOL(...) (&(tg_pool_opts){.size = sizeof(tg_pool_opts), __VA_ARGS__})

/* Pool windows of k, or h x w, elements that fit into x. max_pool: the gradient goes to the first of equal elements,
 * and a window with a NaN gives NaN. */
TG_API tg_tensor *tg_max_pool1d(tg_tape *t, tg_tensor *x, int64_t k, const tg_pool_opts *opts);
TG_API tg_tensor *tg_max_pool2d(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts);
TG_API tg_tensor *tg_avg_pool1d(tg_tape *t, tg_tensor *x, int64_t k, const tg_pool_opts *opts);
TG_API tg_tensor *tg_avg_pool2d(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts);

/* ---- Losses ---- */
typedef enum tg_loss_reduction {
    TG_LOSS_MEAN,
    TG_LOSS_SUM,
    TG_LOSS_NONE,
    TG_LOSS_BATCH_MEAN, /* tg_kl_div only: the sum divided by the size of dim 0 */
} tg_loss_reduction;

/* How label smoothing a distributes the target over K classes. */
typedef enum tg_smoothing {
    TG_SMOOTHING_TORCH,              /* a / K on every class, and 1 - a in addition on the target */
    TG_SMOOTHING_MEGATRON,           /* a / (K - 1) on each wrong class, 1 - a on the target */
    TG_SMOOTHING_MEGATRON_PARTITION, /* on several ranks, Megatron-Core's result: K and the mean are those of this
                                        rank's part; otherwise TG_SMOOTHING_MEGATRON */
} tg_smoothing;

typedef struct tg_cross_entropy_opts {
    size_t size;
    int64_t ignore_index; /* target of rows without a loss; 0: -100; TG_IGNORE_ZERO: class 0 */
    double label_smoothing;      /* in [0, 1] */
    tg_loss_reduction reduction; /* TG_LOSS_MEAN: over the rows that are not ignored */
    tg_smoothing smoothing_kind; /* other than 0 only with label_smoothing */
    tg_tensor *weight; /* tg_cross_entropy only: weight of each class, [v], no gradient; NULL: all 1 */
} tg_cross_entropy_opts;

enum { TG_IGNORE_ZERO = -2147483647 };
#define TG_CROSS_ENTROPY(...) (&(tg_cross_entropy_opts){.size = sizeof(tg_cross_entropy_opts), __VA_ARGS__})

/* logits [.., v], target [..] int64 -> scalar, or [..] with TG_LOSS_NONE; float32, or float64 for float64 logits */
TG_API tg_tensor *tg_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, const tg_cross_entropy_opts *opts);
/* cross_entropy(x w^T, target), x [.., h], w [v, h]. Only chunks of rows of the logits exist in memory. */
TG_API tg_tensor *tg_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                          const tg_cross_entropy_opts *opts);
TG_API tg_tensor *tg_mse(tg_tape *t, tg_tensor *x, tg_tensor *y); /* mean of (x - y)^2; one shape */

/* Options of the losses below. */
typedef struct tg_loss_opts {
    size_t size;
    tg_loss_reduction reduction;
    int64_t ignore_index; /* tg_nll: as in tg_cross_entropy_opts */
    bool log_target;      /* tg_kl_div: y contains logarithms */
} tg_loss_opts;

#define TG_LOSS(...) (&(tg_loss_opts){.size = sizeof(tg_loss_opts), __VA_ARGS__})

/* x and y have one shape -> scalar, or this shape with TG_LOSS_NONE; float32, or float64 for float64 inputs. */
TG_API tg_tensor *tg_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts); /* |x - y| */
/* (x - y)^2 / (2 beta) if |x - y| < beta, else |x - y| - beta / 2 */
TG_API tg_tensor *tg_smooth_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, double beta, const tg_loss_opts *opts);
/* (x - y)^2 / 2 if |x - y| < delta, else delta (|x - y| - delta / 2) */
TG_API tg_tensor *tg_huber(tg_tape *t, tg_tensor *x, tg_tensor *y, double delta, const tg_loss_opts *opts);
/* -w (pw y log sigmoid(x) + (1 - y) log(1 - sigmoid(x))); w and pw broadcast to x, may be NULL */
TG_API tg_tensor *tg_bce_with_logits(tg_tape *t, tg_tensor *x, tg_tensor *y, tg_tensor *w, tg_tensor *pw,
                                     const tg_loss_opts *opts);
TG_API tg_tensor *tg_kl_div(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts); /* y (log y - x) */
/* -w[target] x[target]: log-probabilities x [.., v], target [..] int64, w [v], may be NULL; the mean is weighted by
 * w */
TG_API tg_tensor *tg_nll(tg_tape *t, tg_tensor *x, tg_tensor *target, tg_tensor *w, const tg_loss_opts *opts);
/* sum(x y) / (max(|x|, eps) max(|y|, eps)) along dim, which is removed; x and y have one shape */
TG_API tg_tensor *tg_cosine_similarity(tg_tape *t, tg_tensor *x, tg_tensor *y, int dim, double eps);

#ifdef __cplusplus
}
#endif

#endif
