/* Ops: one prototype each, grouped; one line of shapes here, the full comment at the function in src/autograd/ops.
 *
 * Every op records on the tape t, runs at once, and returns a tensor that the tape owns (an inert one on error).
 * Shapes broadcast as in NumPy where a line says "broadcasts". Negative dims count from the end. Float ops take
 * float32, float64, bfloat16 and float16 (16-bit ones compute in float32); all tensor operands have one dtype unless
 * said.
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
TG_API tg_tensor *tg_asin(tg_tape *t, tg_tensor *x); /* NaN outside of [-1, 1], as acos */
TG_API tg_tensor *tg_acos(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_atan(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_sinh(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_cosh(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_log1p(tg_tape *t, tg_tensor *x); /* log(1 + x), exact for small x */
TG_API tg_tensor *tg_expm1(tg_tape *t, tg_tensor *x); /* e^x - 1, exact for small x */
TG_API tg_tensor *tg_sign(tg_tape *t, tg_tensor *x);  /* steps: gradient 0 everywhere, as PyTorch's */
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
TG_API tg_tensor *tg_add_scalar(tg_tape *t, tg_tensor *x, double b);        /* x + b; of integers b is one too */
TG_API tg_tensor *tg_cast(tg_tape *t, tg_tensor *x, tg_dtype dtype);        /* rounds to nearest even */
TG_API tg_tensor *tg_detach(tg_tape *t, tg_tensor *x);                      /* the same bytes, no gradient */

/* ---- Binary: a and b broadcast ---- */
TG_API tg_tensor *tg_add(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_sub(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_mul(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_div(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_pow(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_atan2(tg_tape *t, tg_tensor *a, tg_tensor *b); /* the angle of (b, a) */
TG_API tg_tensor *tg_fmod(tg_tape *t, tg_tensor *a, tg_tensor *b);  /* a - b trunc(a / b): a's sign */
TG_API tg_tensor *tg_lerp(tg_tape *t, tg_tensor *a, tg_tensor *b, tg_tensor *w); /* a + w (b - a); all broadcast */
TG_API tg_tensor *tg_lerp_scalar(tg_tape *t, tg_tensor *a, tg_tensor *b, double w);
TG_API tg_tensor *tg_maximum(tg_tape *t, tg_tensor *a, tg_tensor *b); /* ties: half the gradient each */
TG_API tg_tensor *tg_minimum(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_eq(tg_tape *t, tg_tensor *a, tg_tensor *b); /* comparisons: bool, no gradient */
TG_API tg_tensor *tg_ne(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_lt(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_le(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_gt(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_ge(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_where(tg_tape *t, tg_tensor *c, tg_tensor *a, tg_tensor *b); /* c bool; all broadcast */
TG_API tg_tensor *tg_masked_fill(tg_tape *t, tg_tensor *x, tg_tensor *mask, double value); /* mask bool, broadcasts */

/* ---- In place: write into a's bytes and return a's new handle; the old one is refused from then on, unless it is the
 * context's. Refused: on a view, with live views, and, but in no-grad mode, on a leaf that needs a gradient. b
 * broadcasts to a. ---- */
TG_API tg_tensor *tg_add_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_sub_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_mul_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_relu_(tg_tape *t, tg_tensor *a);
TG_API tg_tensor *tg_copy_(tg_tape *t, tg_tensor *a, tg_tensor *b); /* a := b */

/* ---- Reductions over dims (TG_DIMS(0, -1), TG_ALL_DIMS); keepdim leaves them with size 1 ---- */
TG_API tg_tensor *tg_sum(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_mean(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_var(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim); /* / (n - correction) */
TG_API tg_tensor *tg_std(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim); /* sqrt(var) */
TG_API tg_tensor *tg_prod(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* (sum |x|^p)^(1/p), any p or an infinity; p < 0: 0 where an element is 0; gradient 0 at 0 */
TG_API tg_tensor *tg_norm(tg_tape *t, tg_tensor *x, double p, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_max(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim); /* ties share the gradient evenly */
TG_API tg_tensor *tg_min(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_logsumexp(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_argmax(tg_tape *t, tg_tensor *x, int dim, bool keepdim); /* int64, the first of equals */
TG_API tg_tensor *tg_argmin(tg_tape *t, tg_tensor *x, int dim, bool keepdim);
TG_API tg_tensor *tg_any(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim); /* of bool, to bool */
TG_API tg_tensor *tg_all(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* The median along dim, of an even number the lower one, a NaN where there is one; *index (may be NULL): where it is */
TG_API tg_tensor *tg_median(tg_tape *t, tg_tensor *x, int dim, bool keepdim, tg_tensor **index);

/* ---- Along a dim. Equal elements stay in their order; NaN is greater than any number. ---- */
TG_API tg_tensor *tg_cumsum(tg_tape *t, tg_tensor *x, int dim); /* each element and all before it; integers: int64 */
TG_API tg_tensor *tg_cumprod(tg_tape *t, tg_tensor *x, int dim);
/* x in rising order, or falling where descending; *index (may be NULL), int64: where each element stood */
TG_API tg_tensor *tg_sort(tg_tape *t, tg_tensor *x, int dim, bool descending, tg_tensor **index);
/* the k greatest, in falling order, or the k smallest, in rising order: [.., k, ..] */
TG_API tg_tensor *tg_topk(tg_tape *t, tg_tensor *x, int64_t k, int dim, bool largest, tg_tensor **index);

/* ---- Linear algebra ---- */
/* [.., m, k] x [.., k, n] -> [.., m, n]; leading dims broadcast; any strides: transposes cost nothing. ndim >= 2 */
TG_API tg_tensor *tg_matmul(tg_tape *t, tg_tensor *a, tg_tensor *b);
/* x [.., in], w [out, in], b [out] or NULL -> [.., out]: x w^T + b */
TG_API tg_tensor *tg_linear(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_relu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);      /* fused activation */
TG_API tg_tensor *tg_linear_gelu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);      /* erf */
TG_API tg_tensor *tg_linear_gelu_tanh(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_silu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);

TG_API tg_tensor *tg_outer(tg_tape *t, tg_tensor *a, tg_tensor *b); /* [m], [n] -> [m, n] */
TG_API tg_tensor *tg_dot(tg_tape *t, tg_tensor *a, tg_tensor *b);   /* [n], [n] -> scalar */
/* "bij,bjk->bik": a letter a dim, summed where the result has it not; no ellipsis */
TG_API tg_tensor *tg_einsum(tg_tape *t, const char *equation, tg_tensor *a, tg_tensor *b);

typedef struct tg_solve_opts {
    size_t size;
    bool upper;     /* a's upper triangle is read; else the lower one */
    bool transpose; /* a^T x = b */
    bool unit;      /* a's diagonal counts as ones */
} tg_solve_opts;

#define TG_SOLVE(...) (&(tg_solve_opts){.size = sizeof(tg_solve_opts), __VA_ARGS__})

/* x of a x = b: triangular a [.., n, n], b [.., n, k] of the same leading dims -> [.., n, k]. opts may be NULL. */
TG_API tg_tensor *tg_triangular_solve(tg_tape *t, tg_tensor *a, tg_tensor *b, const tg_solve_opts *opts);
/* lower l of a = l l^T, a [.., n, n] symmetric; TG_ERR_DATA where a is not positive definite,
 * which names the leading minor; a device tells later, as of all errors in data, and without the minor */
TG_API tg_tensor *tg_cholesky(tg_tape *t, tg_tensor *a);

/* ---- Shape. Views share bytes: reshape copies only where the strides force it. ---- */
TG_API tg_tensor *tg_reshape(tg_tape *t, tg_tensor *x, tg_shape shape); /* one dim may be -1 */
TG_API tg_tensor *tg_view(tg_tape *t, tg_tensor *x, tg_shape shape);    /* refuses where reshape would copy */
TG_API tg_tensor *tg_permute(tg_tape *t, tg_tensor *x, tg_dims order);
TG_API tg_tensor *tg_transpose(tg_tape *t, tg_tensor *x, int d0, int d1);
TG_API tg_tensor *tg_expand(tg_tape *t, tg_tensor *x, tg_shape shape);  /* -1 keeps a dim; new dims in front */
TG_API tg_tensor *tg_squeeze(tg_tape *t, tg_tensor *x, int dim);        /* of size 1 */
TG_API tg_tensor *tg_unsqueeze(tg_tape *t, tg_tensor *x, int dim);
TG_API tg_tensor *tg_slice(tg_tape *t, tg_tensor *x, int dim, int64_t start, int64_t stop,
                          int64_t step); /* start <= stop <= size, counted from the end where negative; step > 0 */
TG_API tg_tensor *tg_select(tg_tape *t, tg_tensor *x, int dim, int64_t index); /* dim goes */
TG_API tg_tensor *tg_contiguous(tg_tape *t, tg_tensor *x);              /* x itself where it already is */
TG_API tg_tensor *tg_concat(tg_tape *t, tg_tensor *const *x, int n, int dim);
TG_API tg_tensor *tg_stack(tg_tape *t, tg_tensor *const *x, int n, int dim);
/* out[i] is [.., sizes[i], ..]: views. The sizes add up to dim's. */
TG_API tg_status tg_split(tg_tape *t, tg_tensor *x, int dim, const int64_t *sizes, int n, tg_tensor **out);
/* The same in n parts of ceil(size / n) elements; the last ones have what is left, perhaps nothing. */
TG_API tg_status tg_chunk(tg_tape *t, tg_tensor *x, int dim, int n, tg_tensor **out);
/* before and after: elements of `value` added at each end of dim */
TG_API tg_tensor *tg_pad(tg_tape *t, tg_tensor *x, int dim, int64_t before, int64_t after, double value);
TG_API tg_tensor *tg_flip(tg_tape *t, tg_tensor *x, tg_dims dims); /* backwards along dims */
TG_API tg_tensor *tg_roll(tg_tape *t, tg_tensor *x, int64_t shift, int dim); /* what falls off comes in again */
TG_API tg_tensor *tg_repeat(tg_tape *t, tg_tensor *x, int dim, int64_t times); /* [.., times n, ..] */
/* the windows of `size` elements of dim, step apart: [.., windows, .., size], a view */
TG_API tg_tensor *tg_unfold(tg_tape *t, tg_tensor *x, int dim, int64_t size, int64_t step);
TG_API tg_tensor *tg_tril(tg_tape *t, tg_tensor *x, int64_t k); /* of [.., m, n]: diagonal k and below, 0 above */
TG_API tg_tensor *tg_triu(tg_tape *t, tg_tensor *x, int64_t k);
/* [n]: the matrix with x on diagonal k; [m, n]: its diagonal k, a view */
TG_API tg_tensor *tg_diag(tg_tape *t, tg_tensor *x, int64_t k);

/* ---- Indexing: int64 or int32 indices; out of range is TG_ERR_DATA ---- */
TG_API tg_tensor *tg_gather(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index); /* y of index's shape */
/* x with src added at index along dim; index and src have one shape, dims no larger than x's but for dim */
TG_API tg_tensor *tg_scatter_add(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src);
/* x with src written at index along dim, else as scatter_add; of several on one element, the last in row-major order */
TG_API tg_tensor *tg_scatter(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src);
TG_API tg_tensor *tg_index_select(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index); /* index [n]: dim becomes n */
TG_API tg_tensor *tg_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids); /* [v, h], ids [..] -> [.., h] */
/* The count elements of x where mask (bool, broadcasts to x) holds, in row-major order: [count]. Another number of them
 * is TG_ERR_DATA. */
TG_API tg_tensor *tg_masked_select(tg_tape *t, tg_tensor *x, tg_tensor *mask, int64_t count);

/* ---- Makers: the dtype of the result stands right after the tape; TG_DTYPE_DEFAULT is the context's ---- */
TG_API tg_tensor *tg_arange(tg_tape *t, tg_dtype dtype, double start, double stop, double step);
TG_API tg_tensor *tg_full(tg_tape *t, tg_dtype dtype, tg_shape shape, double value);
/* ids [..] -> [.., classes]: 1 at each id, 0 elsewhere */
TG_API tg_tensor *tg_one_hot(tg_tape *t, tg_dtype dtype, tg_tensor *ids, int64_t classes);

/* ---- Networks ---- */
TG_API tg_tensor *tg_softmax(tg_tape *t, tg_tensor *x, int dim);
TG_API tg_tensor *tg_log_softmax(tg_tape *t, tg_tensor *x, int dim);
/* over the last dim; w, b [h] or NULL */
TG_API tg_tensor *tg_layer_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps);
TG_API tg_tensor *tg_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, double eps);
/* x [n, c, ..], over groups of neighbouring channels; w, b [c] or NULL */
TG_API tg_tensor *tg_group_norm(tg_tape *t, tg_tensor *x, int64_t groups, tg_tensor *w, tg_tensor *b, double eps);
/* x [n, c, ..], by channel over all the rest; w, b [c] or NULL. In training mode by the batch's own statistics, and
 * running_mean and running_var [c], buffers that need no gradient, move towards them: r := (1 - momentum) r + momentum
 * s, in place, s of the variance unbiased (over n - 1), which the batch's own is not. In evaluation mode by these. Both
 * NULL: by the batch's in either mode. They may be wider than x: 16 bits lose small steps. */
TG_API tg_tensor *tg_batch_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_tensor *running_mean,
                                tg_tensor *running_var, double momentum, double eps);
/* rms_norm(x + residual, w); *sum (may be NULL) receives x + residual. No broadcasting. */
TG_API tg_tensor *tg_residual_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *residual, tg_tensor *w, double eps,
                                       tg_tensor **sum);
TG_API tg_tensor *tg_dropout(tg_tape *t, tg_tensor *x, double p); /* identity in evaluation mode */
TG_API tg_tensor *tg_gumbel(tg_tape *t, tg_tensor *x); /* noise -ln(-ln(u)) of x's shape and dtype, without gradient */
/* softmax((x + gumbel) / tau); hard: its greatest as one-hot, with the gradient of the soft one */
TG_API tg_tensor *tg_gumbel_softmax(tg_tape *t, tg_tensor *x, double tau, bool hard, int dim);
/* x [.., s, d], even d: rotates the pairs (i, i + d/2) of position offset + s by theta base^(-2i/d) (NeoX layout) */
TG_API tg_tensor *tg_rope(tg_tape *t, tg_tensor *x, double base, int64_t offset);
TG_API tg_tensor *tg_swiglu(tg_tape *t, tg_tensor *gate, tg_tensor *up); /* silu(gate) up */
TG_API tg_tensor *tg_glu(tg_tape *t, tg_tensor *x, int dim); /* a sigmoid(b) of x's halves along dim, of even size */

typedef struct tg_attention_opts {
    size_t size;
    bool causal;    /* query i sees keys j <= p; p = i + sk - sq */
    double scale;   /* of the scores; 0: 1 / sqrt(dk) */
    double dropout; /* of the probabilities, in training mode */
    int64_t left, right;  /* a window: keys j >= p - left, and j <= p + right; 0 or -1: no bound */
    tg_tensor *mask;      /* broadcasts to [b, h, sq, sk]; bool: true may be seen; else it is added to the scores */
    tg_tensor *sink;      /* [h]: a logit more in each row's denominator, without a value */
    tg_tensor *lengths;   /* int64 [b]: keys j < lengths[b] are seen, the others are padding */
    tg_tensor *starts_q;  /* int64 [n + 1]: n sequences packed along sq, b 1; each sees itself only. With starts_k */
    tg_tensor *starts_k;
} tg_attention_opts;

enum { TG_WINDOW_ZERO = -2147483647 }; /* left or right: a bound of 0 */
#define TG_ATTENTION(...) (&(tg_attention_opts){.size = sizeof(tg_attention_opts), __VA_ARGS__})

/* q [b, h, sq, dk], k [b, g, sk, dk], v [b, g, sk, dv] -> [b, h, sq, dv]; g divides h. opts may be NULL. A query that
 * sees no key gives zeros. mask and sink: of q's dtype or float32, and with a gradient. */
TG_API tg_tensor *tg_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, const tg_attention_opts *opts);

/* ---- Convolutions and pools: [0] is of h, [1] of w; of one dim [0] alone ---- */
typedef struct tg_conv_opts {
    size_t size;
    int64_t stride[2];   /* between windows; 0: 1 */
    int64_t padding[2];  /* zeros at each end */
    int64_t dilation[2]; /* between the elements of a window; 0: 1 */
    int64_t groups;      /* of neighbouring channels, which see nothing of the others; 0: 1 */
} tg_conv_opts;

#define TG_CONV(...) (&(tg_conv_opts){.size = sizeof(tg_conv_opts), __VA_ARGS__})

/* x [n, c, l], w [o, c / groups, k], b [o] or NULL -> [n, o, windows]; opts may be NULL */
TG_API tg_tensor *tg_conv1d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);
/* x [n, c, h, w], w [o, c / groups, kh, kw], b [o] or NULL -> [n, o, windows, windows] */
TG_API tg_tensor *tg_conv2d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);

typedef struct tg_pool_opts {
    size_t size;
    int64_t stride[2];   /* 0: the window's size */
    int64_t padding[2];  /* at each end, at most half of the window: -infinity, or zeros */
    int64_t dilation[2]; /* max_pool: as in tg_conv_opts */
    bool exclude_padding; /* avg_pool: divides by the elements of x in the window, not by its size */
} tg_pool_opts;

#define TG_POOL(...) (&(tg_pool_opts){.size = sizeof(tg_pool_opts), __VA_ARGS__})

/* Windows of k, or h x w, elements that fit. Ties: the gradient goes to the first; NaN wins. opts may be NULL. */
TG_API tg_tensor *tg_max_pool1d(tg_tape *t, tg_tensor *x, int64_t k, const tg_pool_opts *opts);
TG_API tg_tensor *tg_max_pool2d(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts);
TG_API tg_tensor *tg_avg_pool1d(tg_tape *t, tg_tensor *x, int64_t k, const tg_pool_opts *opts);
TG_API tg_tensor *tg_avg_pool2d(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts);

/* ---- Losses ---- */
typedef enum tg_loss_reduction {
    TG_LOSS_MEAN,
    TG_LOSS_SUM,
    TG_LOSS_NONE,
    TG_LOSS_BATCH_MEAN, /* kl_div: the sum divided by the size of dim 0 */
} tg_loss_reduction;

/* What label smoothing a means, of K classes. */
typedef enum tg_smoothing {
    TG_SMOOTHING_TORCH,              /* a / K on every class, the rest on the target */
    TG_SMOOTHING_MEGATRON,           /* a / (K - 1) on each wrong class */
    TG_SMOOTHING_MEGATRON_PARTITION, /* Megatron-Core's own result on several ranks: K and the mean of this rank's part;
                                        else TG_SMOOTHING_MEGATRON */
} tg_smoothing;

typedef struct tg_cross_entropy_opts {
    size_t size;
    int64_t ignore_index; /* 0: -100; TG_IGNORE_ZERO: class 0 itself */
    double label_smoothing; /* in [0, 1] */
    tg_loss_reduction reduction; /* mean: over the rows that are not ignored */
    tg_smoothing smoothing_kind;
    tg_tensor *weight; /* tg_cross_entropy alone: of each class, [v], without gradient, or NULL: all 1 */
} tg_cross_entropy_opts;

enum { TG_IGNORE_ZERO = -2147483647 };
#define TG_CROSS_ENTROPY(...) (&(tg_cross_entropy_opts){.size = sizeof(tg_cross_entropy_opts), __VA_ARGS__})

/* logits [.., v], target [..] int64 -> scalar, or [..] float32 (float64) with TG_LOSS_NONE */
TG_API tg_tensor *tg_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, const tg_cross_entropy_opts *opts);
/* cross_entropy(x w^T, target), x [.., h], w [v, h]: the logits exist in chunks of rows only */
TG_API tg_tensor *tg_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                          const tg_cross_entropy_opts *opts);
TG_API tg_tensor *tg_mse(tg_tape *t, tg_tensor *x, tg_tensor *y); /* mean (x - y)^2, one shape */

/* Of the losses below. */
typedef struct tg_loss_opts {
    size_t size;
    tg_loss_reduction reduction;
    int64_t ignore_index; /* nll: as in tg_cross_entropy_opts */
    bool log_target;      /* kl_div: y holds logarithms */
} tg_loss_opts;

#define TG_LOSS(...) (&(tg_loss_opts){.size = sizeof(tg_loss_opts), __VA_ARGS__})

/* x and y of one shape -> scalar, or their shape with TG_LOSS_NONE; float32 (float64). opts may be NULL. */
TG_API tg_tensor *tg_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts); /* |x - y| */
/* (x - y)^2 / (2 beta) within beta, |x - y| - beta / 2 beyond */
TG_API tg_tensor *tg_smooth_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, double beta, const tg_loss_opts *opts);
/* (x - y)^2 / 2 within delta, delta (|x - y| - delta / 2) beyond */
TG_API tg_tensor *tg_huber(tg_tape *t, tg_tensor *x, tg_tensor *y, double delta, const tg_loss_opts *opts);
/* -w (pw y log sigmoid(x) + (1 - y) log(1 - sigmoid(x))); w and pw broadcast to x, or NULL */
TG_API tg_tensor *tg_bce_with_logits(tg_tape *t, tg_tensor *x, tg_tensor *y, tg_tensor *w, tg_tensor *pw,
                                     const tg_loss_opts *opts);
TG_API tg_tensor *tg_kl_div(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts); /* y (log y - x) */
/* -w[target] x[target]: log-probabilities x [.., v], target [..] int64, w [v] or NULL; the mean is weighted */
TG_API tg_tensor *tg_nll(tg_tape *t, tg_tensor *x, tg_tensor *target, tg_tensor *w, const tg_loss_opts *opts);
/* sum(x y) / (max(|x|, eps) max(|y|, eps)) along dim, which goes; one shape */
TG_API tg_tensor *tg_cosine_similarity(tg_tape *t, tg_tensor *x, tg_tensor *y, int dim, double eps);

#ifdef __cplusplus
}
#endif

#endif
