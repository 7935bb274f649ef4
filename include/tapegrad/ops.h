/* Ops, in groups. A comment here gives the formula, and the shapes if the result does not have the shape of x. [.., h]
 * is a shape of any number of dims, the last of size h. The functions in src/ops have the full comments.
 *
 * Every op records a node on the tape t, runs at once, and returns a tensor that the tape owns: it lives until the tape
 * is reset. On error the context records it, and the op returns an inert tensor. Wrong shapes fail with TG_ERR_SHAPE,
 * wrong dtypes with TG_ERR_DTYPE, and placements that do not match with TG_ERR_PLACEMENT (placement.h).
 *
 * Shapes broadcast as in NumPy if the comment says so. Negative dims count from the end. A tensor operand that "may be
 * NULL" is optional; options (opts) may always be NULL.
 *
 * An op takes floats (float32, float64, bfloat16, float16) unless the comment of the op or of its group says more:
 * "numbers" are floats and integers (int64, int32, uint8), and "any dtype" includes bool. All tensor operands of an op
 * have one dtype unless the comment says otherwise, and so has the result. 16-bit floats are computed in float32.
 * Only floats have gradients.
 */
#ifndef TAPEGRAD_OPS_H
#define TAPEGRAD_OPS_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Unary: the result has x's shape. Numbers: neg, abs, square, sign, relu, clamp, add_scalar. Any dtype: cast,
 * detach. Angles are in radians. ---- */
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
TG_API tg_tensor *tg_sign(tg_tape *t, tg_tensor *x);  /* -1, 0 or 1; sign, floor, ceil and round have gradient 0 */
TG_API tg_tensor *tg_floor(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_ceil(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_round(tg_tape *t, tg_tensor *x);     /* halves to even */
TG_API tg_tensor *tg_relu(tg_tape *t, tg_tensor *x);      /* gradient 0 at 0 */
TG_API tg_tensor *tg_silu(tg_tape *t, tg_tensor *x);      /* x sigmoid(x) */
TG_API tg_tensor *tg_gelu(tg_tape *t, tg_tensor *x);      /* x (1 + erf(x / sqrt 2)) / 2 */
TG_API tg_tensor *tg_gelu_tanh(tg_tape *t, tg_tensor *x); /* GPT-2's approximation of gelu by tanh */
TG_API tg_tensor *tg_leaky_relu(tg_tape *t, tg_tensor *x, double slope);     /* x for x > 0, else slope x */
TG_API tg_tensor *tg_elu(tg_tape *t, tg_tensor *x, double alpha);            /* x for x > 0, else alpha (e^x - 1) */
/* log(1 + e^(beta x)) / beta; x itself where beta x > threshold, which is commonly 20 */
TG_API tg_tensor *tg_softplus(tg_tape *t, tg_tensor *x, double beta, double threshold);
TG_API tg_tensor *tg_pow_scalar(tg_tape *t, tg_tensor *x, double p);        /* x^p; NaN for x < 0 and fractional p */
TG_API tg_tensor *tg_clamp(tg_tape *t, tg_tensor *x, double lo, double hi); /* limits x; gradient 1 in [lo, hi] */
TG_API tg_tensor *tg_scale(tg_tape *t, tg_tensor *x, double a);             /* a x */
TG_API tg_tensor *tg_add_scalar(tg_tape *t, tg_tensor *x, double b);        /* x + b; integer x needs integer b */
TG_API tg_tensor *tg_cast(tg_tape *t, tg_tensor *x, tg_dtype dtype);        /* rounds to nearest even */
TG_API tg_tensor *tg_detach(tg_tape *t, tg_tensor *x);                      /* the same bytes, no gradient */

/* ---- Binary: a and b broadcast. Numbers: add, sub, mul, maximum, minimum. Any dtype: comparisons, where,
 * masked_fill. ---- */
TG_API tg_tensor *tg_add(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_sub(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_mul(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_div(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_pow(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_atan2(tg_tape *t, tg_tensor *a, tg_tensor *b); /* the angle of the point (b, a) */
TG_API tg_tensor *tg_fmod(tg_tape *t, tg_tensor *a, tg_tensor *b);  /* a - b trunc(a / b), with the sign of a */
TG_API tg_tensor *tg_lerp(tg_tape *t, tg_tensor *a, tg_tensor *b, tg_tensor *w); /* a + w (b - a); w broadcasts too */
TG_API tg_tensor *tg_lerp_scalar(tg_tape *t, tg_tensor *a, tg_tensor *b, double w);
TG_API tg_tensor *tg_maximum(tg_tape *t, tg_tensor *a, tg_tensor *b); /* equal elements get half the gradient each */
TG_API tg_tensor *tg_minimum(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_eq(tg_tape *t, tg_tensor *a, tg_tensor *b); /* comparisons: bool, no gradient */
TG_API tg_tensor *tg_ne(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_lt(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_le(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_gt(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_ge(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_where(tg_tape *t, tg_tensor *c, tg_tensor *a, tg_tensor *b); /* a where c (bool) is true, else b */
/* value where mask (bool) is true, else x; x and mask broadcast */
TG_API tg_tensor *tg_masked_fill(tg_tape *t, tg_tensor *x, tg_tensor *mask, double value);

/* ---- In place: the result is written into a's memory, and a new handle for it is returned. The handle a is invalid
 * from then on, unless a belongs to the context. b broadcasts to a. Numbers; tg_copy_: any dtype.
 *
 * TG_ERR_STATE: a is a view or not contiguous; other handles on its bytes are alive (views, tg_keep); b shares bytes
 * with it; or, except in no-grad mode, a is a leaf that requires a gradient, or belongs to the context and b needs a
 * gradient. ---- */
TG_API tg_tensor *tg_add_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_sub_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_mul_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_relu_(tg_tape *t, tg_tensor *a);
TG_API tg_tensor *tg_copy_(tg_tape *t, tg_tensor *a, tg_tensor *b); /* writes b into a */

/* ---- Reductions over dims, such as TG_DIMS(0, -1) or TG_ALL_DIMS. The reduced dims are removed; keepdim keeps them
 * with size 1. Numbers: max, min. Any dtype: sum and prod, which give int64 for integers and bools; argmax, argmin,
 * median. The maximum, minimum or median of no elements fails with TG_ERR_SHAPE. ---- */
TG_API tg_tensor *tg_sum(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_mean(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* The variance of n elements, divided by n - correction: 1 for the unbiased estimate, 0 for a population. n must be
 * greater than correction, which is 0 or more. tg_std is the root of the variance. */
TG_API tg_tensor *tg_var(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim);
TG_API tg_tensor *tg_std(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim);
TG_API tg_tensor *tg_prod(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* (sum |x|^p)^(1/p). p INFINITY: the greatest |x|; -INFINITY: the least; 0: the number of elements that are not 0. For
 * p < 0 it is 0 if an element is 0. The gradient at x = 0 is 0. */
TG_API tg_tensor *tg_norm(tg_tape *t, tg_tensor *x, double p, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_max(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim); /* equal elements share the gradient */
TG_API tg_tensor *tg_min(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_logsumexp(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim); /* log(sum e^x) */
TG_API tg_tensor *tg_argmax(tg_tape *t, tg_tensor *x, int dim, bool keepdim); /* int64; the first of equal elements */
TG_API tg_tensor *tg_argmin(tg_tape *t, tg_tensor *x, int dim, bool keepdim);
TG_API tg_tensor *tg_any(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim); /* any and all: bool -> bool */
TG_API tg_tensor *tg_all(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* The median along dim: the lower one of an even number of elements, and NaN if an element is NaN. *index
 * (index may be NULL) receives its position along dim, int64. */
TG_API tg_tensor *tg_median(tg_tape *t, tg_tensor *x, int dim, bool keepdim, tg_tensor **index);

/* ---- Along a dim: any dtype. Sorting keeps the order of equal elements; NaN is greater than any number. A device
 * without a sort fails with TG_ERR_UNSUPPORTED. ---- */
TG_API tg_tensor *tg_cumsum(tg_tape *t, tg_tensor *x, int dim); /* inclusive; integers and bools: int64 */
TG_API tg_tensor *tg_cumprod(tg_tape *t, tg_tensor *x, int dim); /* as tg_cumsum */
/* x sorted in ascending or descending order. *index (index may be NULL) receives the position that each element had in
 * x along dim, int64. */
TG_API tg_tensor *tg_sort(tg_tape *t, tg_tensor *x, int dim, bool descending, tg_tensor **index);
/* the k largest elements in descending order, or the k smallest in ascending order: [.., k, ..]; index as in tg_sort */
TG_API tg_tensor *tg_topk(tg_tape *t, tg_tensor *x, int64_t k, int dim, bool largest, tg_tensor **index);

/* ---- Linear algebra ---- */
/* [.., m, k] times [.., k, n] -> [.., m, n], ndim >= 2. Leading dims broadcast. Any strides: a transposed view is not
 * copied. */
TG_API tg_tensor *tg_matmul(tg_tape *t, tg_tensor *a, tg_tensor *b);
/* x [.., in], w [out, in], b [out] or NULL -> [.., out]: x w^T + b */
TG_API tg_tensor *tg_linear(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_relu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);      /* relu of it, one op */
TG_API tg_tensor *tg_linear_gelu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);      /* the same with tg_gelu */
TG_API tg_tensor *tg_linear_gelu_tanh(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_silu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);

TG_API tg_tensor *tg_outer(tg_tape *t, tg_tensor *a, tg_tensor *b); /* [m], [n] -> [m, n] */
TG_API tg_tensor *tg_dot(tg_tape *t, tg_tensor *a, tg_tensor *b);   /* [n], [n] -> scalar */
/* Contracts a and b by an equation such as "bij,bjk->bik": one letter per dim; dims that the result lacks are summed.
 * An ellipsis is refused. Without "->" the result has the letters that occur once, in alphabetical order. */
TG_API tg_tensor *tg_einsum(tg_tape *t, const char *equation, tg_tensor *a, tg_tensor *b);

typedef struct tg_solve_opts {
    size_t size;
    bool upper;     /* reads the upper triangle of a; false: the lower one */
    bool transpose; /* solves a^T x = b */
    bool unit;      /* takes the diagonal of a as ones */
} tg_solve_opts;

#define TG_SOLVE(...) (&(tg_solve_opts){.size = sizeof(tg_solve_opts), __VA_ARGS__})

/* Solves a x = b for x: triangular a [.., n, n], b [.., n, k] with the same leading dims -> [.., n, k]. */
TG_API tg_tensor *tg_triangular_solve(tg_tape *t, tg_tensor *a, tg_tensor *b, const tg_solve_opts *opts);
/* The lower triangular l of a = l l^T, for symmetric a [.., n, n]. TG_ERR_DATA if a is not positive definite; on the
 * CPU the message names the leading minor that is not positive. A GPU reports the error later, like all errors in
 * data. */
TG_API tg_tensor *tg_cholesky(tg_tape *t, tg_tensor *a);

/* ---- Shape: any dtype. All give views, which share the memory of x, except tg_concat, tg_stack, tg_pad, tg_flip,
 * tg_roll, tg_repeat, tg_tril, tg_triu and tg_diag of a vector. ---- */
TG_API tg_tensor *tg_reshape(tg_tape *t, tg_tensor *x, tg_shape shape); /* one dim may be -1; copies if it must */
TG_API tg_tensor *tg_view(tg_tape *t, tg_tensor *x, tg_shape shape);    /* fails if tg_reshape would copy */
TG_API tg_tensor *tg_permute(tg_tape *t, tg_tensor *x, tg_dims order);   /* dim i is dim order[i] of x */
TG_API tg_tensor *tg_transpose(tg_tape *t, tg_tensor *x, int d0, int d1); /* exchanges two dims */
TG_API tg_tensor *tg_expand(tg_tape *t, tg_tensor *x, tg_shape shape);  /* -1 keeps a dim; new dims come first */
TG_API tg_tensor *tg_squeeze(tg_tape *t, tg_tensor *x, int dim);        /* removes a dim of size 1 */
TG_API tg_tensor *tg_unsqueeze(tg_tape *t, tg_tensor *x, int dim);      /* adds a dim of size 1; -1: at the end */
TG_API tg_tensor *tg_slice(tg_tape *t, tg_tensor *x, int dim, int64_t start, int64_t stop,
                          int64_t step); /* start <= stop <= size; negative: from the end; step > 0; INT64_MAX: size */
TG_API tg_tensor *tg_select(tg_tape *t, tg_tensor *x, int dim, int64_t index); /* one index of dim; removes dim */
TG_API tg_tensor *tg_contiguous(tg_tape *t, tg_tensor *x);              /* x itself if it is row-major; else a copy */
TG_API tg_tensor *tg_concat(tg_tape *t, tg_tensor *const *x, int n, int dim); /* the other sizes are equal */
TG_API tg_tensor *tg_stack(tg_tape *t, tg_tensor *const *x, int n, int dim);  /* of one shape, along a new dim */
/* out[n] are views: out[i] is [.., sizes[i], ..]. The sizes must sum to that of dim. */
TG_API tg_status tg_split(tg_tape *t, tg_tensor *x, int dim, const int64_t *sizes, int n, tg_tensor **out);
/* out[n] are views of ceil(size / n) indices of dim each; the last ones have the rest and may be empty. */
TG_API tg_status tg_chunk(tg_tape *t, tg_tensor *x, int dim, int n, tg_tensor **out);
/* adds `before` and `after` elements of `value` at the ends of dim */
TG_API tg_tensor *tg_pad(tg_tape *t, tg_tensor *x, int dim, int64_t before, int64_t after, double value);
TG_API tg_tensor *tg_flip(tg_tape *t, tg_tensor *x, tg_dims dims); /* reverses the order along dims */
TG_API tg_tensor *tg_roll(tg_tape *t, tg_tensor *x, int64_t shift, int dim); /* cyclic; shift > 0: toward the end */
TG_API tg_tensor *tg_repeat(tg_tape *t, tg_tensor *x, int dim, int64_t times); /* [.., times n, ..] */
/* a view of the windows of `size` elements along dim, `step` apart: [.., windows, .., size] */
TG_API tg_tensor *tg_unfold(tg_tape *t, tg_tensor *x, int dim, int64_t size, int64_t step);
TG_API tg_tensor *tg_tril(tg_tape *t, tg_tensor *x, int64_t k); /* x [.., m, n]; 0 above diagonal k */
TG_API tg_tensor *tg_triu(tg_tape *t, tg_tensor *x, int64_t k); /* 0 below it; k 0: the main one, k > 0: above it */
/* x [n]: the matrix with x on diagonal k and 0 elsewhere. x [m, n]: a view of its diagonal k. */
TG_API tg_tensor *tg_diag(tg_tape *t, tg_tensor *x, int64_t k);

/* ---- Indexing: any dtype; tg_scatter_add: numbers. Indices are int64 or int32, and have no gradient. One outside
 * [0, size of dim) fails with TG_ERR_DATA. ---- */
/* The elements of x at index along dim, in index's shape. index has as many dims as x, and is no larger except along
 * dim. */
TG_API tg_tensor *tg_gather(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index);
/* A copy of x with src added at index along dim. index and src have one shape, no larger than x's except along dim. */
TG_API tg_tensor *tg_scatter_add(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src);
/* A copy of x with src written at index along dim, otherwise like tg_scatter_add. If several elements go to one place,
 * the last in row-major order counts. */
TG_API tg_tensor *tg_scatter(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src);
TG_API tg_tensor *tg_index_select(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index); /* index [n]: dim becomes n */
TG_API tg_tensor *tg_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids); /* [v, h], ids [..] -> [.., h] */
/* The `count` elements of x where mask (bool, broadcasts to x) is true, in row-major order: [count]. If mask is true
 * for another number of elements it fails with TG_ERR_DATA. */
TG_API tg_tensor *tg_masked_select(tg_tape *t, tg_tensor *x, tg_tensor *mask, int64_t count);

/* ---- New tensors: their dtype stands right after the tape; TG_DTYPE_DEFAULT is the context's ---- */
/* start + i step before stop: [ceil((stop - start) / step)], or empty */
TG_API tg_tensor *tg_arange(tg_tape *t, tg_dtype dtype, double start, double stop, double step);
TG_API tg_tensor *tg_full(tg_tape *t, tg_dtype dtype, tg_shape shape, double value);
/* ids [..] -> [.., classes]: 1 at each id, 0 elsewhere */
TG_API tg_tensor *tg_one_hot(tg_tape *t, tg_dtype dtype, tg_tensor *ids, int64_t classes);

/* ---- Networks ---- */
TG_API tg_tensor *tg_softmax(tg_tape *t, tg_tensor *x, int dim);
TG_API tg_tensor *tg_log_softmax(tg_tape *t, tg_tensor *x, int dim);
/* (x - mean) / sqrt(variance + eps) w + b over the last dim, with the variance divided by h; w, b [h], may be NULL. eps
 * of this and the next norms is finite and 0 or more. */
TG_API tg_tensor *tg_layer_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps);
/* x / sqrt(mean of x^2 + eps) w over the last dim; w [h], may be NULL */
TG_API tg_tensor *tg_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, double eps);
/* x [n, c, ..], normalized over each of `groups` groups of adjacent channels, a divisor of c; w, b [c], may be NULL */
TG_API tg_tensor *tg_group_norm(tg_tape *t, tg_tensor *x, int64_t groups, tg_tensor *w, tg_tensor *b, double eps);
/* x [n, c, ..], normalized for each channel over all other dims; w, b [c], may be NULL. In training mode it uses the
 * statistics of the batch, and updates running_mean and running_var [c] in place: r := (1 - momentum) r + momentum s,
 * where s of the variance is unbiased (divided by n - 1). momentum is in [0, 1]. In evaluation mode it uses the running
 * statistics. They must not require a gradient, and may be float32 where x has 16 bits, which lose small steps. If both
 * are NULL the statistics of the batch are used in both modes. */
TG_API tg_tensor *tg_batch_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_tensor *running_mean,
                                tg_tensor *running_var, double momentum, double eps);
/* rms_norm(x + residual, w). *sum (sum may be NULL) receives x + residual. x and residual have one shape. */
TG_API tg_tensor *tg_residual_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *residual, tg_tensor *w, double eps,
                                       tg_tensor **sum);
/* Sets each element to 0 with probability p, 0 <= p < 1, and divides the others by 1 - p. In evaluation mode: x. */
TG_API tg_tensor *tg_dropout(tg_tape *t, tg_tensor *x, double p);
TG_API tg_tensor *tg_gumbel(tg_tape *t, tg_tensor *x); /* noise -log(-log(u)), u uniform, shape of x; no gradient */
/* softmax((x + tg_gumbel(x)) / tau) along dim, tau > 0. hard: 1 at its largest element and 0 elsewhere, with the
 * gradient of the soft result. */
TG_API tg_tensor *tg_gumbel_softmax(tg_tape *t, tg_tensor *x, double tau, bool hard, int dim);
/* x [.., s, d] with even d: rotates the pair (i, i + d/2) at position p = offset + s by the angle p base^(-2i/d)
 * (rotary embedding of Su et al., RoFormer, 2021, in the layout of GPT-NeoX) */
TG_API tg_tensor *tg_rope(tg_tape *t, tg_tensor *x, double base, int64_t offset);
TG_API tg_tensor *tg_swiglu(tg_tape *t, tg_tensor *gate, tg_tensor *up); /* silu(gate) up; one shape */
TG_API tg_tensor *tg_glu(tg_tape *t, tg_tensor *x, int dim); /* a sigmoid(b) for the halves a, b of x along dim */

typedef struct tg_attention_opts {
    size_t size;
    bool causal;    /* query i attends to keys j <= p, where p = i + sk - sq */
    double scale;   /* factor of the scores; 0: 1 / sqrt(dk) */
    double dropout; /* in [0, 1): dropout of the probabilities, in training mode */
    int64_t left, right;  /* window: keys p - left <= j <= p + right. 0 or -1: no bound. TG_WINDOW_ZERO: a bound of 0 */
    tg_tensor *mask;      /* broadcasts to [b, h, sq, sk]; bool: false hides a key; float: is added to the scores */
    tg_tensor *sink;      /* [h]: an additional logit in each row's denominator; it adds no row of values */
    tg_tensor *lengths;   /* int64 [b]: keys j >= lengths[b] are padding and hidden; not with starts */
    /* int64 [n + 1]: n sequences are packed along sq (b = 1), each of which attends to itself only. Sequence i has the
     * rows from starts_q[i] to starts_q[i + 1] - 1. The first entry is 0, the last is sq. */
    tg_tensor *starts_q;
    tg_tensor *starts_k;  /* int64 [n + 1]: the same along sk; required with starts_q */
} tg_attention_opts;

enum { TG_WINDOW_ZERO = -2147483647 }; /* for left and right, where 0 means no bound */
#define TG_ATTENTION(...) (&(tg_attention_opts){.size = sizeof(tg_attention_opts), __VA_ARGS__})

/* softmax(scale q k^T) v: q [b, h, sq, dk], k [b, g, sk, dk], v [b, g, sk, dv] -> [b, h, sq, dv]; g divides h:
 * adjacent heads of q share a head of k and v. The scores are never stored as a whole (Dao et al., arXiv 2205.14135).
 * The result of a query to which all keys are hidden is 0. A float mask and sink have q's dtype or float32, and get
 * gradients. */
TG_API tg_tensor *tg_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, const tg_attention_opts *opts);

/* ---- Convolutions and pooling. Elements [0] of options are for h, [1] for w; with one dim [1] must be 0. An option
 * that an op does not use fails with TG_ERR_ARGUMENT. ---- */
typedef struct tg_conv_opts {
    size_t size;
    int64_t stride[2];   /* distance between the starts of windows; 0: 1 */
    int64_t padding[2];  /* number of zeros at each end */
    int64_t dilation[2]; /* distance between the elements of a window; 0: 1 */
    int64_t groups;      /* number of groups of adjacent channels that are convolved separately; 0: 1 */
} tg_conv_opts;

#define TG_CONV(...) (&(tg_conv_opts){.size = sizeof(tg_conv_opts), __VA_ARGS__})

/* For each window that fits into x and its padding: the sum of its products with w, plus b (a cross-correlation, as in
 * PyTorch). x [n, c, l], w [o, c / groups, k], b [o], may be NULL -> [n, o, windows] */
TG_API tg_tensor *tg_conv1d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);
/* x [n, c, h, w], w [o, c / groups, kh, kw], b [o], may be NULL -> [n, o, windows, windows] */
TG_API tg_tensor *tg_conv2d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);

typedef struct tg_pool_opts {
    size_t size;
    int64_t stride[2];   /* distance between the starts of windows; 0: the window's size */
    int64_t padding[2];  /* at each end, at most half of the window; -infinity for max_pool, zeros for avg_pool */
    int64_t dilation[2]; /* max_pool only: as in tg_conv_opts */
    bool exclude_padding; /* avg_pool only: divides by the number of elements of x in the window, not by its size */
} tg_pool_opts;

#define TG_POOL(...) (&(tg_pool_opts){.size = sizeof(tg_pool_opts), __VA_ARGS__})

/* Take the maximum or the mean of each window of k, or h x w, elements that fits into x and its padding: x [n, c, l] ->
 * [n, c, windows], or x [n, c, h, w] -> [n, c, windows, windows]. max_pool: the gradient goes to the first of equal
 * elements, and a window with a NaN gives NaN. */
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

/* How label smoothing by an amount a distributes the target over K classes. A kind other than 0 fails with
 * TG_ERR_ARGUMENT if label_smoothing is 0. */
typedef enum tg_smoothing {
    TG_SMOOTHING_TORCH,              /* a / K on every class, and 1 - a in addition on the target */
    TG_SMOOTHING_MEGATRON,           /* a / (K - 1) on each wrong class, 1 - a on the target */
    TG_SMOOTHING_MEGATRON_PARTITION, /* as TG_SMOOTHING_MEGATRON, but if the vocabulary is sharded, K and the mean over
                                        classes are those of this rank's part, as in Megatron-Core */
} tg_smoothing;

typedef struct tg_cross_entropy_opts {
    size_t size;
    int64_t ignore_index; /* target of rows without a loss; 0: -100; TG_IGNORE_ZERO: class 0 */
    double label_smoothing;      /* in [0, 1] */
    tg_loss_reduction reduction; /* TG_LOSS_MEAN: over the rows that are not ignored */
    tg_smoothing smoothing_kind; /* must be 0 if label_smoothing is 0 */
    tg_tensor *weight; /* tg_cross_entropy only: weight of each class, [v], no gradient; NULL: all 1 */
} tg_cross_entropy_opts;

enum { TG_IGNORE_ZERO = -2147483647 };
#define TG_CROSS_ENTROPY(...) (&(tg_cross_entropy_opts){.size = sizeof(tg_cross_entropy_opts), __VA_ARGS__})

/* logits [.., v], target [..] int64 -> scalar, or [..] with TG_LOSS_NONE; float32, or float64 for float64 logits */
TG_API tg_tensor *tg_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, const tg_cross_entropy_opts *opts);
/* cross_entropy(x w^T, target), x [.., h], w [v, h]. Only the logits of some rows are in memory at a time. opts.weight
 * fails with TG_ERR_UNSUPPORTED. */
TG_API tg_tensor *tg_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                          const tg_cross_entropy_opts *opts);
TG_API tg_tensor *tg_mse(tg_tape *t, tg_tensor *x, tg_tensor *y); /* mean of (x - y)^2, a scalar; one shape */

/* Options of the losses below. */
typedef struct tg_loss_opts {
    size_t size;
    tg_loss_reduction reduction;
    int64_t ignore_index; /* as in tg_cross_entropy_opts. Losses other than tg_nll refuse it (TG_ERR_ARGUMENT). */
    bool log_target;      /* y contains logarithms. Losses other than tg_kl_div refuse it (TG_ERR_ARGUMENT). */
} tg_loss_opts;

#define TG_LOSS(...) (&(tg_loss_opts){.size = sizeof(tg_loss_opts), __VA_ARGS__})

/* x and y have one shape -> scalar, or this shape with TG_LOSS_NONE; float32, or float64 for float64 inputs. The
 * comments give the loss of one element. y gets a gradient too if it requires one. */
TG_API tg_tensor *tg_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts); /* |x - y| */
/* (x - y)^2 / (2 beta) if |x - y| < beta, else |x - y| - beta / 2; beta >= 0 */
TG_API tg_tensor *tg_smooth_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, double beta, const tg_loss_opts *opts);
/* (x - y)^2 / 2 if |x - y| < delta, else delta (|x - y| - delta / 2); delta > 0 */
TG_API tg_tensor *tg_huber(tg_tape *t, tg_tensor *x, tg_tensor *y, double delta, const tg_loss_opts *opts);
/* -w (pw y log sigmoid(x) + (1 - y) log(1 - sigmoid(x))), y in [0, 1]; w and pw broadcast to x; NULL: 1 */
TG_API tg_tensor *tg_bce_with_logits(tg_tape *t, tg_tensor *x, tg_tensor *y, tg_tensor *w, tg_tensor *pw,
                                     const tg_loss_opts *opts);
/* y (log y - x) for log-probabilities x; 0 where y is 0. TG_LOSS_MEAN divides by the number of elements. */
TG_API tg_tensor *tg_kl_div(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts);
/* -w[target] x[target] -> scalar or [..]: log-probabilities x [.., v], target [..] int64, w [v]; w NULL: 1. The mean
 * divides by the sum of w[target]. */
TG_API tg_tensor *tg_nll(tg_tape *t, tg_tensor *x, tg_tensor *target, tg_tensor *w, const tg_loss_opts *opts);
/* sum(x y) / (max(|x|, eps) max(|y|, eps)) along dim, which is removed; x and y have one shape */
TG_API tg_tensor *tg_cosine_similarity(tg_tape *t, tg_tensor *x, tg_tensor *y, int dim, double eps);

#ifdef __cplusplus
}
#endif

#endif
