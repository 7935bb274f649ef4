/* Ops, in groups. The comment of an op gives the formula of its result, and the shapes if the result does not have the
 * shape of x. In formulas a * b is the product of elements, x @ w is the matrix product, w^T is w with its last two
 * dims exchanged, and x^2 is a power. "x [.., h] -> [..]" means that x has the first shape and the result the second.
 * [.., h] is a shape of any number of dims, the last of size h. The functions in src/ops have the full comments.
 *
 * Every op runs at once, and returns a tensor. If a tensor operand requires a gradient, an op that has a gradient also
 * records nodes on tape t, except in no-grad mode. The tape owns the result, which lives until the tape is reset. If an
 * op fails, the context records the error, and the op returns an inert tensor (tapegrad.h). Further results, such as
 * *index, are inert tensors too. Shapes, dims and numbers that do not fit the shapes of the operands fail with
 * TG_ERR_SHAPE, wrong dtypes with TG_ERR_DTYPE, placements that do not match with TG_ERR_PLACEMENT (placement.h), and
 * other numbers and options out of their ranges with TG_ERR_ARGUMENT. Wrong values in a tensor, such as an index out of
 * range, fail with TG_ERR_DATA. On a GPU the first or second reset of the tape after the op reports this error.
 *
 * Shapes broadcast as in NumPy if the comment says so. Negative dims count from the end. A tensor operand that "may be
 * NULL" is optional; NULL in place of any other one fails with TG_ERR_ARGUMENT. opts may always be NULL, which means
 * that every option has its default.
 *
 * An op takes floats (float32, float64, bfloat16, float16) unless the comment of the op or of its group says more.
 * "Numbers" are floats and integers (of 8 to 64 bits, signed or unsigned), and "any dtype" is numbers and bool. The
 * tensor operands and the result of an op have the same dtype unless the comment says otherwise. 16-bit floats are
 * computed in float32. Integers wrap around. An argument of type double that an op combines with integers or bools, or
 * writes to them, must be a value of their dtype. Only floats have gradients.
 *
 * No op computes with float8 (TG_F8E4M3, TG_F8E5M2, TG_F8E8M0). tg_cast converts from and to these dtypes. tg_detach,
 * tg_contiguous, tg_copy_, tg_reshape, tg_view, tg_permute, tg_transpose, tg_expand, tg_squeeze, tg_unsqueeze,
 * tg_slice, tg_select, tg_split, tg_chunk, tg_concat, tg_stack, tg_flip, tg_gather, tg_index_select and tg_index take
 * float8 too, because they only move elements. */
#ifndef TAPEGRAD_OPS_H
#define TAPEGRAD_OPS_H

#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Unary ops ---- */

/* The result has the shape of x. tg_neg, tg_abs, tg_square, tg_sign, tg_relu, tg_clamp and tg_add_scalar take numbers.
 * tg_cast and tg_detach take any dtype. Angles are in radians. The gradients of tg_sign, tg_floor, tg_ceil, tg_round
 * and tg_trunc are 0. */
TG_API tg_tensor *tg_neg(tg_tape *t, tg_tensor *x);        /* -x */
TG_API tg_tensor *tg_abs(tg_tape *t, tg_tensor *x);        /* |x|; the gradient at 0 is 0 */
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
TG_API tg_tensor *tg_erfc(tg_tape *t, tg_tensor *x); /* 1 - erf(x), accurate for large x */
TG_API tg_tensor *tg_tan(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_asin(tg_tape *t, tg_tensor *x); /* NaN outside [-1, 1] */
TG_API tg_tensor *tg_acos(tg_tape *t, tg_tensor *x); /* NaN outside [-1, 1] */
TG_API tg_tensor *tg_atan(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_asinh(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_acosh(tg_tape *t, tg_tensor *x); /* NaN below 1 */
TG_API tg_tensor *tg_atanh(tg_tape *t, tg_tensor *x); /* NaN outside [-1, 1] */
TG_API tg_tensor *tg_sinh(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_cosh(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_log1p(tg_tape *t, tg_tensor *x); /* log(1 + x), accurate for small x */
TG_API tg_tensor *tg_expm1(tg_tape *t, tg_tensor *x); /* e^x - 1, accurate for small x */
TG_API tg_tensor *tg_log2(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_log10(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_exp2(tg_tape *t, tg_tensor *x); /* 2^x */
TG_API tg_tensor *tg_sign(tg_tape *t, tg_tensor *x);  /* -1, 0 or 1; 0 for NaN */
TG_API tg_tensor *tg_floor(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_ceil(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_round(tg_tape *t, tg_tensor *x);     /* the nearest integer; a half rounds to the even neighbor */
TG_API tg_tensor *tg_trunc(tg_tape *t, tg_tensor *x);     /* removes the fraction: rounds toward 0 */
TG_API tg_tensor *tg_relu(tg_tape *t, tg_tensor *x);      /* max(x, 0); the gradient at 0 is 0 */
TG_API tg_tensor *tg_silu(tg_tape *t, tg_tensor *x);      /* x * sigmoid(x) */
TG_API tg_tensor *tg_gelu(tg_tape *t, tg_tensor *x);      /* x * (1 + erf(x / sqrt(2))) / 2 */
TG_API tg_tensor *tg_gelu_tanh(tg_tape *t, tg_tensor *x); /* GPT-2's approximation of tg_gelu by tanh */
TG_API tg_tensor *tg_mish(tg_tape *t, tg_tensor *x);        /* x * tanh(log(1 + e^x)) */
TG_API tg_tensor *tg_log_sigmoid(tg_tape *t, tg_tensor *x); /* log(sigmoid(x)) */
TG_API tg_tensor *tg_softsign(tg_tape *t, tg_tensor *x);    /* x / (1 + |x|) */
TG_API tg_tensor *tg_hardsigmoid(tg_tape *t, tg_tensor *x); /* max(0, min(x + 3, 6)) / 6 */
TG_API tg_tensor *tg_hardswish(tg_tape *t, tg_tensor *x);   /* x * max(0, min(x + 3, 6)) / 6 */
TG_API tg_tensor *tg_leaky_relu(tg_tape *t, tg_tensor *x, double slope); /* x if x > 0, else slope * x */
TG_API tg_tensor *tg_elu(tg_tape *t, tg_tensor *x, double alpha);        /* x if x > 0, else alpha * (e^x - 1) */
/* log(1 + e^(beta * x)) / beta, but x itself where beta * x > threshold. beta is finite and not 0; 1 is a common
 * beta. 20 is a common threshold, and INFINITY means none. */
TG_API tg_tensor *tg_softplus(tg_tape *t, tg_tensor *x, double beta, double threshold);
TG_API tg_tensor *tg_pow_scalar(tg_tape *t, tg_tensor *x, double p); /* x^p; NaN for finite x < 0 unless p is whole */
/* max(lo, min(x, hi)), with lo <= hi. The gradient is 1 where lo <= x <= hi, and 0 elsewhere. The bounds may be
 * infinite for integers too. */
TG_API tg_tensor *tg_clamp(tg_tape *t, tg_tensor *x, double lo, double hi);
/* The same for floats only, and with the gradient 0 where x is lo or hi. tg_hardtanh(t, x, 0, 6) is the ReLU6 of
 * PyTorch. */
TG_API tg_tensor *tg_hardtanh(tg_tape *t, tg_tensor *x, double lo, double hi);
TG_API tg_tensor *tg_scale(tg_tape *t, tg_tensor *x, double a);      /* a * x */
TG_API tg_tensor *tg_add_scalar(tg_tape *t, tg_tensor *x, double b); /* x + b */
/* Converts x to dtype. TG_DTYPE_DEFAULT means the context's default dtype. The result is a view of x if x has this
 * dtype already.
 * - To a float or float8, numbers are rounded to the nearest value, and ties to even. If the magnitude is too large for
 *   float8, or infinite, the result is 448 in TG_F8E4M3 and infinity in TG_F8E5M2, both with the sign of x.
 * - TG_F8E8M0 has the powers of 2 from 2^-127 to 2^127. Ties, and numbers between the two least ones, are rounded up, 0
 *   becomes 2^-127, and negative or too large numbers become NaN.
 * - From a float or float8 to an integer, the fraction is removed. A number out of range becomes the nearest one in
 *   range, and NaN becomes 0.
 * - To bool, 0 becomes false, and every other value true. */
TG_API tg_tensor *tg_cast(tg_tape *t, tg_tensor *x, tg_dtype dtype);
TG_API tg_tensor *tg_detach(tg_tape *t, tg_tensor *x); /* a view of x that passes no gradient to x */
/* The results of the tests tg_isnan to tg_logical_not are bool, and have no gradient. x has any dtype. */
TG_API tg_tensor *tg_isnan(tg_tape *t, tg_tensor *x);
TG_API tg_tensor *tg_isinf(tg_tape *t, tg_tensor *x);    /* infinity or -infinity */
TG_API tg_tensor *tg_isfinite(tg_tape *t, tg_tensor *x); /* neither NaN nor an infinity */
TG_API tg_tensor *tg_logical_not(tg_tape *t, tg_tensor *x); /* x == 0 */
TG_API tg_tensor *tg_bitwise_not(tg_tape *t, tg_tensor *x); /* inverts each bit; x has integers or bools */

/* ---- Binary ops ---- */

/* a and b broadcast. tg_add, tg_sub, tg_mul, tg_maximum, tg_minimum, tg_remainder, tg_floor_divide and tg_trunc_divide
 * take numbers. The comparisons, the logical ops, tg_where and tg_masked_fill take any dtype. */
TG_API tg_tensor *tg_add(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_sub(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_mul(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_div(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_pow(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_atan2(tg_tape *t, tg_tensor *a, tg_tensor *b); /* the angle of the point with x = b and y = a */
TG_API tg_tensor *tg_fmod(tg_tape *t, tg_tensor *a, tg_tensor *b);  /* a - b * trunc(a / b), which has the sign of a */
/* tg_remainder is a - b * floor(a / b), which has the sign of b. tg_floor_divide is a / b rounded down, and
 * tg_trunc_divide is a / b rounded toward 0; their gradients are 0. Integers of a magnitude above 2^53 lose precision.
 *
 * Where b is 0, tg_remainder gives NaN for floats and 0 for integers. The other two give a / b for floats; for integers
 * they give the greatest value of the dtype if a > 0, the least if a < 0, and 0 if a is 0. */
TG_API tg_tensor *tg_remainder(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_floor_divide(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_trunc_divide(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_lerp(tg_tape *t, tg_tensor *a, tg_tensor *b, tg_tensor *w); /* a + w * (b - a); w broadcasts too */
TG_API tg_tensor *tg_lerp_scalar(tg_tape *t, tg_tensor *a, tg_tensor *b, double w); /* a + w * (b - a) */
/* Where a and b are equal, each of them gets half the gradient. If a or b is NaN, the result is NaN. */
TG_API tg_tensor *tg_maximum(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_minimum(tg_tape *t, tg_tensor *a, tg_tensor *b);
/* Comparisons: the result is bool and has no gradient. */
TG_API tg_tensor *tg_eq(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_ne(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_lt(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_le(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_gt(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_ge(tg_tape *t, tg_tensor *a, tg_tensor *b);
/* Logical ops: every number but 0 counts as true; the result is bool and has no gradient. */
TG_API tg_tensor *tg_logical_and(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_logical_or(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_logical_xor(tg_tape *t, tg_tensor *a, tg_tensor *b);
/* Bitwise ops of integers or bools. */
TG_API tg_tensor *tg_bitwise_and(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_bitwise_or(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_bitwise_xor(tg_tape *t, tg_tensor *a, tg_tensor *b);
/* a where c is true, else b. c is bool; c, a and b broadcast. */
TG_API tg_tensor *tg_where(tg_tape *t, tg_tensor *c, tg_tensor *a, tg_tensor *b);
/* value where mask is true, else x. mask is bool; x and mask broadcast. */
TG_API tg_tensor *tg_masked_fill(tg_tape *t, tg_tensor *x, tg_tensor *mask, double value);

/* ---- Ops in place ---- */

/* These ops write their result into the memory of a. If a belongs to the tape, they return a new handle for the memory,
 * and the old handle a ends. If a belongs to the context, they return a itself. b broadcasts to the shape of a. The ops
 * take numbers, and tg_copy_ any dtype.
 *
 * They fail with TG_ERR_STATE
 * - if a is a view, not contiguous, or read-only (tg_set_read_only);
 * - if other handles on the bytes of a are alive (views, tg_keep, tg_tape_input);
 * - if b shares bytes with a;
 * - if a is a leaf that requires a gradient, except in no-grad mode;
 * - if a belongs to the context and b requires a gradient, except in no-grad mode.
 *
 * If an earlier op has saved the old value of a, a backward that needs this value fails with TG_ERR_VERSION. */
TG_API tg_tensor *tg_add_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_sub_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_mul_(tg_tape *t, tg_tensor *a, tg_tensor *b);
TG_API tg_tensor *tg_relu_(tg_tape *t, tg_tensor *a);
TG_API tg_tensor *tg_copy_(tg_tape *t, tg_tensor *a, tg_tensor *b); /* writes b into a */

/* ---- Reductions ---- */

/* These ops reduce over dims, such as TG_DIMS(0, -1) or TG_ALL_DIMS, or over one dim. The reduced dims are removed from
 * the shape, or kept with size 1 if keepdim is true. tg_max and tg_min take numbers. tg_sum, tg_prod, tg_argmax,
 * tg_argmin and tg_median take any dtype. tg_sum and tg_prod of uint64 return uint64, and of other integers and bools
 * int64.
 *
 * A reduction of no elements gives 0 for tg_sum, and for tg_norm if p is finite and 0 or more. It gives 1 for tg_prod,
 * NaN for tg_mean, -infinity for tg_logsumexp, false for tg_any, and true for tg_all. The other reductions of
 * no elements fail with TG_ERR_SHAPE. */
TG_API tg_tensor *tg_sum(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_mean(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* The sum of (x - mean)^2 over n elements, divided by n - correction. correction 1 gives the unbiased estimate, and 0
 * the variance of a population. correction is 0 or more (TG_ERR_ARGUMENT), and less than n (TG_ERR_SHAPE). tg_std is
 * the square root of tg_var. */
TG_API tg_tensor *tg_var(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim);
TG_API tg_tensor *tg_std(tg_tape *t, tg_tensor *x, tg_dims dims, int correction, bool keepdim);
TG_API tg_tensor *tg_prod(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* (sum of |x|^p)^(1/p). With p = INFINITY it is the greatest |x|, with p = -INFINITY the least |x|, and with p = 0 the
 * number of elements that are not 0. With p < 0 it is 0 if an element is 0. The gradient at x = 0 is 0. */
TG_API tg_tensor *tg_norm(tg_tape *t, tg_tensor *x, double p, tg_dims dims, bool keepdim);
/* If several elements are the maximum or the minimum, they share the gradient equally. If an element is NaN, the result
 * is NaN. */
TG_API tg_tensor *tg_max(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_min(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_logsumexp(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim); /* log(sum of e^x) */
/* The position of the maximum or minimum along dim, int64: that of the first NaN if there is one, and otherwise the
 * first of equal elements. */
TG_API tg_tensor *tg_argmax(tg_tape *t, tg_tensor *x, int dim, bool keepdim);
TG_API tg_tensor *tg_argmin(tg_tape *t, tg_tensor *x, int dim, bool keepdim);
/* Whether any element, or every element, is true. x and the result are bool. */
TG_API tg_tensor *tg_any(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
TG_API tg_tensor *tg_all(tg_tape *t, tg_tensor *x, tg_dims dims, bool keepdim);
/* The median along dim. Of an even number of elements it is the lower one of the two in the middle. It is NaN if an
 * element is NaN. *index (index may be NULL) receives the position of the median along dim, int64. */
TG_API tg_tensor *tg_median(tg_tape *t, tg_tensor *x, int dim, bool keepdim, tg_tensor **index);

/* ---- Sums, products and sorting along a dim ---- */

/* These ops take any dtype. Sorting keeps the order of equal elements, and NaN counts as greater than any number. On a
 * device without a sort, tg_sort, tg_argsort, tg_topk, tg_median, tg_scatter_prod, tg_scatter_max and tg_scatter_min
 * fail with TG_ERR_UNSUPPORTED. */

/* The sum, or the product, of each element and all elements before it along dim. The dtype is that of tg_sum. */
TG_API tg_tensor *tg_cumsum(tg_tape *t, tg_tensor *x, int dim);
TG_API tg_tensor *tg_cumprod(tg_tape *t, tg_tensor *x, int dim);
/* The greatest, or the least, of each element and all elements before it along dim; NaN if one of them is NaN. *index
 * (index may be NULL) receives the position of the result along dim, int64. If several elements are equal to the result
 * or NaN, it is the position of the last one. The gradient goes to the element at this position. */
TG_API tg_tensor *tg_cummax(tg_tape *t, tg_tensor *x, int dim, tg_tensor **index);
TG_API tg_tensor *tg_cummin(tg_tape *t, tg_tensor *x, int dim, tg_tensor **index);
/* x sorted along dim in ascending or descending order. *index (index may be NULL) receives the position that each
 * element of the result has in x along dim, int64. */
TG_API tg_tensor *tg_sort(tg_tape *t, tg_tensor *x, int dim, bool descending, tg_tensor **index);
/* The k largest elements along dim in descending order if `largest` is true, otherwise the k smallest in ascending
 * order. k is from 0 to the size of dim, which becomes k. index is that of tg_sort. */
TG_API tg_tensor *tg_topk(tg_tape *t, tg_tensor *x, int64_t k, int dim, bool largest, tg_tensor **index);
/* The index of tg_sort. */
TG_API tg_tensor *tg_argsort(tg_tape *t, tg_tensor *x, int dim, bool descending);

/* ---- Linear algebra ---- */

/* a @ b: a [.., m, k] and b [.., k, n] -> [.., m, n]. Both have 2 or more dims, and their leading dims broadcast.
 * Operands may have any strides; a transposed view is not copied. */
TG_API tg_tensor *tg_matmul(tg_tape *t, tg_tensor *a, tg_tensor *b);
/* x @ w^T + b: x [.., in], w [out, in] and b [out] -> [.., out]. b may be NULL. */
TG_API tg_tensor *tg_linear(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
/* An activation (tg_relu, tg_gelu, tg_gelu_tanh or tg_silu) applied to x @ w^T + b, in one op. b may be NULL. */
TG_API tg_tensor *tg_linear_relu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_gelu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_gelu_tanh(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_linear_silu(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b);
TG_API tg_tensor *tg_outer(tg_tape *t, tg_tensor *a, tg_tensor *b); /* a [m], b [n] -> [m, n]; a[i] * b[j] */
TG_API tg_tensor *tg_dot(tg_tape *t, tg_tensor *a, tg_tensor *b);   /* a [n], b [n] -> scalar */
/* The distance of each row of a [.., m, k] from each row of b [.., n, k]: [.., m, n], where the leading dims broadcast.
 * It is tg_norm of the difference. p is 0 or more; INFINITY is allowed. The op needs memory for all m * n * k
 * differences. */
TG_API tg_tensor *tg_cdist(tg_tape *t, tg_tensor *a, tg_tensor *b, double p);
/* Contracts a and b by an equation such as "bij,bjk->bik", which has one letter for each dim. Dims whose letter is not
 * in the result are summed. A letter that occurs twice in one operand selects the diagonal of the two dims. Dims with
 * the same letter have the same size. Without "->" the result has the letters that occur once, in alphabetical order.
 * An ellipsis is not supported (TG_ERR_ARGUMENT). */
TG_API tg_tensor *tg_einsum(tg_tape *t, const char *equation, tg_tensor *a, tg_tensor *b);

typedef struct tg_solve_opts {
    size_t size;
    bool upper;     /* true: reads only the upper triangle of a; false: only the lower one */
    bool transpose; /* solves a^T @ x = b instead */
    bool unit;      /* takes every element on the diagonal of a as 1 */
} tg_solve_opts;

#define TG_SOLVE_DEFAULTS .size = sizeof(tg_solve_opts)
#define TG_SOLVE(...) (&(tg_solve_opts){TG_SOLVE_DEFAULTS, __VA_ARGS__})

/* Solves a @ x = b, and returns x. a [.., n, n] is triangular. b [.., n, k] has the same leading dims as a, and x has
 * the shape of b. A 0 on the diagonal gives infinities or NaN, not an error. */
TG_API tg_tensor *tg_triangular_solve(tg_tape *t, tg_tensor *a, tg_tensor *b, const tg_solve_opts *opts);
/* The lower triangular matrix l for which l @ l^T = a. a [.., n, n] is symmetric; otherwise (a + a^T) / 2 takes its
 * place. Fails with TG_ERR_DATA if the matrix is not positive definite. On the CPU the message names the leading minor
 * that is not positive. */
TG_API tg_tensor *tg_cholesky(tg_tape *t, tg_tensor *a);

/* ---- Shape ---- */

/* These ops take any dtype. Most of them return views, which share the memory of x. tg_concat, tg_stack, tg_pad,
 * tg_flip, tg_roll, tg_repeat, tg_as_strided, tg_tril, tg_triu, tg_diag of a vector, tg_slice_scatter and
 * tg_select_scatter return new memory. tg_reshape, tg_contiguous, the shuffles (tg_pixel_shuffle, tg_pixel_unshuffle,
 * tg_channel_shuffle) and the pads of several dims (tg_constant_pad to tg_circular_pad) copy only if they must. */

/* One dim of shape may be -1: it gets the size that keeps the number of elements. This fails if another size is 0.
 * Copies if the strides of x allow no view. */
TG_API tg_tensor *tg_reshape(tg_tape *t, tg_tensor *x, tg_shape shape);
TG_API tg_tensor *tg_view(tg_tape *t, tg_tensor *x, tg_shape shape);      /* tg_reshape, but fails instead of copying */
TG_API tg_tensor *tg_permute(tg_tape *t, tg_tensor *x, tg_dims order);    /* dim i is dim order[i] of x */
TG_API tg_tensor *tg_transpose(tg_tape *t, tg_tensor *x, int d0, int d1); /* exchanges dims d0 and d1 */
/* Broadcasts x to shape. -1 keeps the size of a dim. New dims come first. */
TG_API tg_tensor *tg_expand(tg_tape *t, tg_tensor *x, tg_shape shape);
TG_API tg_tensor *tg_squeeze(tg_tape *t, tg_tensor *x, int dim);   /* removes dim, which must have size 1 */
TG_API tg_tensor *tg_unsqueeze(tg_tape *t, tg_tensor *x, int dim); /* inserts a dim of size 1 at dim; -1 is the end */
/* The elements start, start + step, .. before stop along dim. A negative start or stop counts from the end, and stop
 * INT64_MAX means the size of dim. Counted from the front, 0 <= start <= stop <= size of dim (TG_ERR_SHAPE). step is 1
 * or more (TG_ERR_ARGUMENT). */
TG_API tg_tensor *tg_slice(tg_tape *t, tg_tensor *x, int dim, int64_t start, int64_t stop, int64_t step);
/* Element `index` of dim, which is removed. A negative index counts from the end. */
TG_API tg_tensor *tg_select(tg_tape *t, tg_tensor *x, int dim, int64_t index);
TG_API tg_tensor *tg_contiguous(tg_tape *t, tg_tensor *x); /* x itself if x is contiguous (row-major), else a copy */
/* Joins n >= 1 tensors along dim. Their sizes must be equal in all other dims. */
TG_API tg_tensor *tg_concat(tg_tape *t, tg_tensor *const *x, int n, int dim);
/* Joins n >= 1 tensors of the same shape along a new dim of size n, at dim. */
TG_API tg_tensor *tg_stack(tg_tape *t, tg_tensor *const *x, int n, int dim);
/* Sets out[0] to out[n - 1], with n >= 1, to adjacent parts of x along dim; out[i] has size sizes[i] there, 0 or more.
 * The sum of sizes must be the size of dim. */
TG_API tg_status tg_split(tg_tape *t, tg_tensor *x, int dim, const int64_t *sizes, int n, tg_tensor **out);
/* Sets out[0] to out[n - 1], with n >= 1, to adjacent parts of x along dim. Each part has size ceil(s / n), where s is
 * the size of dim; the last parts may be smaller, or empty, because they have what is left. */
TG_API tg_status tg_chunk(tg_tape *t, tg_tensor *x, int dim, int n, tg_tensor **out);
/* Adds elements with this value along dim: `before` of them in front of x, and `after` of them at its end. Both are 0
 * or more. */
TG_API tg_tensor *tg_pad(tg_tape *t, tg_tensor *x, int dim, int64_t before, int64_t after, double value);
/* Pad the last n / 2 dims; n is even, and 2 or more. pad[0] and pad[1] are the numbers of elements that are added
 * before and after x along the last dim, pad[2] and pad[3] those along the dim before the last, and so on. A negative
 * number removes elements. If none are added, the result is a view. The new elements are
 * - of tg_constant_pad: `value`;
 * - of tg_reflection_pad: elements of x, mirrored at its first and its last element along the dim, which are not
 *   repeated. At each end there are fewer of them than the size of the dim (TG_ERR_SHAPE);
 * - of tg_replication_pad: copies of the first and of the last element of x along the dim;
 * - of tg_circular_pad: elements from the other end of x. At each end there are at most as many of them as the size of
 *   the dim (TG_ERR_SHAPE). */
TG_API tg_tensor *tg_constant_pad(tg_tape *t, tg_tensor *x, const int64_t *pad, int n, double value);
TG_API tg_tensor *tg_reflection_pad(tg_tape *t, tg_tensor *x, const int64_t *pad, int n);
TG_API tg_tensor *tg_replication_pad(tg_tape *t, tg_tensor *x, const int64_t *pad, int n);
TG_API tg_tensor *tg_circular_pad(tg_tape *t, tg_tensor *x, const int64_t *pad, int n);
TG_API tg_tensor *tg_flip(tg_tape *t, tg_tensor *x, tg_dims dims); /* reverses the order along each of dims */
/* Moves every element by `shift` positions along dim, toward the end if shift > 0. Elements that leave one end come in
 * at the other. */
TG_API tg_tensor *tg_roll(tg_tape *t, tg_tensor *x, int64_t shift, int dim);
TG_API tg_tensor *tg_repeat(tg_tape *t, tg_tensor *x, int dim, int64_t times); /* joins `times` copies of x along dim */
/* Moves each group of f^2 adjacent channels into one channel of a larger image: x [.., c * f^2, h, w] ->
 * [.., c, h * f, w * f]. Pixel (i, j) of each f x f square comes from channel i * f + j of its group. f is `factor`, 1
 * or more. tg_pixel_unshuffle is the reverse. */
TG_API tg_tensor *tg_pixel_shuffle(tg_tape *t, tg_tensor *x, int64_t factor);
TG_API tg_tensor *tg_pixel_unshuffle(tg_tape *t, tg_tensor *x, int64_t factor);
/* Reorders the channels of x [n, c, l, ..]: channel j of group i becomes channel j * groups + i. groups divides c. */
TG_API tg_tensor *tg_channel_shuffle(tg_tape *t, tg_tensor *x, int64_t groups);
/* Views the windows of `size` elements along dim at 0, step, 2 * step .. that fit: [.., windows, .., size]. */
TG_API tg_tensor *tg_unfold(tg_tape *t, tg_tensor *x, int dim, int64_t size, int64_t step);
/* Copies elements of x, which are numbered in row-major order: result[i, j, ..] is element number
 * offset + i * stride[0] + j * stride[1] + .. of x. stride has a number for each dim of shape; it may be 0 or negative.
 * An element of x that is read several times gets the sum of the gradients. Fails with TG_ERR_SHAPE if a number is less
 * than 0, or not less than the number of elements of x. */
TG_API tg_tensor *tg_as_strided(tg_tape *t, tg_tensor *x, tg_shape shape, tg_shape stride, int64_t offset);
/* Diagonal k of a matrix is the main diagonal if k is 0, lies above it if k > 0, and below it if k < 0. x of tg_tril
 * and tg_triu is [.., m, n]. */
TG_API tg_tensor *tg_tril(tg_tape *t, tg_tensor *x, int64_t k); /* x, but 0 above diagonal k */
TG_API tg_tensor *tg_triu(tg_tape *t, tg_tensor *x, int64_t k); /* x, but 0 below diagonal k */
/* If x is [n]: the square matrix with x on diagonal k and 0 elsewhere. If x is [m, n]: a view of its diagonal k. */
TG_API tg_tensor *tg_diag(tg_tape *t, tg_tensor *x, int64_t k);
/* A view of diagonal k of the matrices whose rows are along dim d0 of x and whose columns are along d1. The elements of
 * the diagonal are the last dim of the result. */
TG_API tg_tensor *tg_diagonal(tg_tape *t, tg_tensor *x, int64_t k, int d0, int d1);
/* Copies x, and writes src to the elements that tg_slice or tg_select would return for these arguments. src has the
 * shape of that result. */
TG_API tg_tensor *tg_slice_scatter(tg_tape *t, tg_tensor *x, tg_tensor *src, int dim, int64_t start, int64_t stop,
                                   int64_t step);
TG_API tg_tensor *tg_select_scatter(tg_tape *t, tg_tensor *x, tg_tensor *src, int dim, int64_t index);

/* ---- Indexing ---- */

/* These ops take any dtype unless their comments say otherwise. Indices are int64 or int32, and have no gradient. An
 * index must be in [0, size of dim), and for tg_index and tg_index_put in [-size, size) (TG_ERR_DATA). */

/* Reads elements of x. The result has the shape of index: for dim 0 of a matrix, result[i, j] = x[index[i, j], j].
 * index has as many dims as x. In each dim but `dim`, its size is at most that of x. */
TG_API tg_tensor *tg_gather(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index);
/* Copies x and adds src: for dim 0 of a matrix, result[index[i, j], j] += src[i, j]. index and src have one shape, with
 * as many dims as x. In each dim but `dim`, their size is at most that of x. x has numbers. */
TG_API tg_tensor *tg_scatter_add(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src);
/* Does the same, but writes src instead of adding it. If several elements of src go to one place, the last one in
 * row-major order remains. */
TG_API tg_tensor *tg_scatter(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src);
/* Copy x. An element of the copy becomes the mean, product, maximum or minimum of the elements of src that index sends
 * to it; if include_self is true, the element of x is one of them. Elements to which index sends nothing stay as they
 * are. The shapes are those of tg_scatter_add. tg_scatter_mean takes floats, and the others numbers. Several elements
 * that are the maximum or the minimum share the gradient equally. */
TG_API tg_tensor *tg_scatter_mean(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src,
                                  bool include_self);
TG_API tg_tensor *tg_scatter_prod(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src,
                                  bool include_self);
TG_API tg_tensor *tg_scatter_max(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src,
                                 bool include_self);
TG_API tg_tensor *tg_scatter_min(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index, tg_tensor *src,
                                 bool include_self);
/* The slices of x along dim at index [n]. The size of dim becomes n. */
TG_API tg_tensor *tg_index_select(tg_tape *t, tg_tensor *x, int dim, tg_tensor *index);
/* x[i, j, ..] as in NumPy: the elements of x at the positions that n tensors of indices give together. index[k] is for
 * dim dims.dim[k], and may have negative indices, which count from the end. n is the number of dims in `dims`. The
 * tensors of indices broadcast to one shape. In the result this shape takes the place of the indexed dims, or comes
 * first if other dims lie between them. */
TG_API tg_tensor *tg_index(tg_tape *t, tg_tensor *x, tg_dims dims, tg_tensor *const *index, int n);
/* Copies x and writes src to the positions of tg_index. If accumulate is true, adds src there instead, and x must have
 * numbers. src broadcasts to the shape of the result of tg_index. If several elements of src are written to one
 * place, the last one in row-major order remains. */
TG_API tg_tensor *tg_index_put(tg_tape *t, tg_tensor *x, tg_dims dims, tg_tensor *src, tg_tensor *const *index, int n,
                               bool accumulate);
TG_API tg_tensor *tg_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids); /* table [v, h], ids [..] -> [.., h] */

typedef enum tg_bag_mode { TG_BAG_SUM, TG_BAG_MEAN, TG_BAG_MAX } tg_bag_mode;

typedef struct tg_bag_opts {
    size_t size;
    tg_bag_mode mode;          /* TG_BAG_MEAN by default */
    int64_t ignore_index;      /* ids with this value do not count; TG_NONE means that all ids count */
    bool include_last_offset;  /* true: offsets has b + 1 numbers, and the last one is the end of the last bag */
} tg_bag_opts;

#define TG_BAG_DEFAULTS .size = sizeof(tg_bag_opts), .mode = TG_BAG_MEAN, .ignore_index = TG_NONE
#define TG_BAG(...) (&(tg_bag_opts){TG_BAG_DEFAULTS, __VA_ARGS__})

/* The sum, mean or maximum of the rows of table [v, h] whose ids are in a bag, for each of b bags: [b, h]. It is 0 for
 * a bag in which no id counts. table has floats.
 *
 * If offsets is NULL, each row of ids [b, l] is a bag. Otherwise bag i has the elements of ids [n] from number
 * offsets[i] up to the beginning of the next bag. The last bag ends at n or, with include_last_offset, at offsets[b].
 * offsets is int64 [b], or [b + 1] with include_last_offset. Its first number must be 0, and none may be less than the
 * one before it, or greater than n (TG_ERR_DATA). offsets may be empty only if ids is, and not with include_last_offset
 * (TG_ERR_SHAPE). With offsets, TG_BAG_MAX fails with TG_ERR_UNSUPPORTED. Without offsets, include_last_offset fails
 * with TG_ERR_ARGUMENT.
 *
 * weights may be NULL. It has the shape of ids and the dtype of table, and multiplies the rows. With TG_BAG_MEAN and
 * TG_BAG_MAX it must be NULL (TG_ERR_ARGUMENT). */
TG_API tg_tensor *tg_embedding_bag(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_tensor *offsets, tg_tensor *weights,
                                   const tg_bag_opts *opts);
/* The elements of x where mask is true, in row-major order: [count]. mask is bool and broadcasts to x. Fails with
 * TG_ERR_DATA if the number of these elements is not count. */
TG_API tg_tensor *tg_masked_select(tg_tape *t, tg_tensor *x, tg_tensor *mask, int64_t count);
/* Copies x, and replaces its elements where mask is true by those of src, both in row-major order. mask is bool and
 * broadcasts to x. src may have any shape; if it has too few elements, the op fails with TG_ERR_DATA. */
TG_API tg_tensor *tg_masked_scatter(tg_tape *t, tg_tensor *x, tg_tensor *mask, tg_tensor *src);
/* The indices of the elements of x that are not 0, in row-major order: [count, number of dims of x], int64. Fails with
 * TG_ERR_DATA if the number of these elements is not count. */
TG_API tg_tensor *tg_nonzero(tg_tape *t, tg_tensor *x, int64_t count);

/* ---- New tensors: dtype is the result's; TG_DTYPE_DEFAULT means the context's default dtype ---- */

/* The numbers start + i * step, for i = 0, 1, .., that lie before stop: [ceil((stop - start) / step)], or empty if this
 * is negative. step is not 0, and may be negative. For an integer dtype, start and step are integers. dtype is not
 * bool. */
TG_API tg_tensor *tg_arange(tg_tape *t, tg_dtype dtype, double start, double stop, double step);
TG_API tg_tensor *tg_full(tg_tape *t, tg_dtype dtype, tg_shape shape, double value); /* every element is value */
/* 1 at each id, 0 elsewhere: ids [..] -> [.., classes]. ids are int64 or int32, in [0, classes) (TG_ERR_DATA). */
TG_API tg_tensor *tg_one_hot(tg_tape *t, tg_dtype dtype, tg_tensor *ids, int64_t classes);

/* ---- Neural networks ---- */

TG_API tg_tensor *tg_softmax(tg_tape *t, tg_tensor *x, int dim);     /* e^x / (sum of e^x along dim) */
TG_API tg_tensor *tg_log_softmax(tg_tape *t, tg_tensor *x, int dim); /* log of tg_softmax */
/* (x - mean) / sqrt(variance + eps) * w + b. mean and variance are those of the last dim, of size h; the variance is
 * the mean of (x - mean)^2. w and b are [h] and may be NULL, which means 1 and 0. eps is finite and 0 or more, here
 * and in the next norms. */
TG_API tg_tensor *tg_layer_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps);
/* x / sqrt(mean of x^2 + eps) * w. The mean is that of the last dim, of size h. w is [h] and may be NULL. */
TG_API tg_tensor *tg_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, double eps);
/* (x - mean) / sqrt(variance + eps) * w + b for x [n, c, ..]. The c channels form `groups` groups of adjacent ones;
 * groups divides c. mean and variance are those of all elements of a group, separately for each index in dim 0. w and
 * b are [c] and may be NULL. */
TG_API tg_tensor *tg_group_norm(tg_tape *t, tg_tensor *x, int64_t groups, tg_tensor *w, tg_tensor *b, double eps);
/* Normalizes each channel of x [n, c, ..] over all other dims: (x - mean) / sqrt(variance + eps) * w + b. w and b are
 * [c] and may be NULL.
 *
 * running_mean and running_var are both [c], or both NULL (TG_ERR_ARGUMENT). They must not require a gradient. They may
 * be float32 if x has 16 bits, because 16 bits would lose small changes. If they are NULL, mean and variance are those
 * of x in both modes.
 *
 * In training mode mean and variance are those of x. If the op has running_mean and running_var, it then updates both
 * in place: r := (1 - momentum) * r + momentum * s. Here s is the mean of x for running_mean. For running_var s is the
 * unbiased variance of x, whose divisor is the number of elements of a channel minus 1, which must not be 0
 * (TG_ERR_SHAPE). momentum is in [0, 1]. In evaluation mode mean and variance are running_mean and running_var. */
TG_API tg_tensor *tg_batch_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_tensor *running_mean,
                                tg_tensor *running_var, double momentum, double eps);
/* tg_rms_norm of x + residual. *sum (sum may be NULL) receives x + residual. x and residual have the same shape. */
TG_API tg_tensor *tg_residual_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *residual, tg_tensor *w, double eps,
                                       tg_tensor **sum);
/* tg_group_norm with one group for each channel. */
TG_API tg_tensor *tg_instance_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps);
/* x / (k + alpha * m)^beta for x [n, c, ..]. m is the mean of x^2 over the `size` channels around the element's, from
 * size / 2 channels before to (size - 1) / 2 after it. Channels outside x count as zeros. size is 1 or more. */
TG_API tg_tensor *tg_local_response_norm(tg_tape *t, tg_tensor *x, int64_t size, double alpha, double beta, double k);
/* In training mode sets each element to 0 with probability p, 0 <= p < 1, and divides the other elements by 1 - p. In
 * evaluation mode, and if p is 0, returns a view of x. */
TG_API tg_tensor *tg_dropout(tg_tape *t, tg_tensor *x, double p);
/* tg_dropout of rows that other ranks have sent, or that are in another order. Row i of x gets the random numbers that
 * tg_dropout would draw for row rows[i] of a global tensor, so the result does not depend on which rank has a row. rows
 * is int64 [n] for an x with n rows.
 *
 * In training mode with p > 0 a key must be open (tg_key_open; TG_ERR_STATE). The op does not know how many rows the
 * global tensor has, so it takes 2^40 numbers of the key. A rows[i] that is negative, or whose row would need later
 * numbers, fails (TG_ERR_DATA). With TG_RNG_MEGATRON (parallel.h) the op ignores rows and draws as tg_dropout does. */
TG_API tg_tensor *tg_dropout_rows(tg_tape *t, tg_tensor *x, double p, tg_tensor *rows);
/* Noise -log(-log(u)) in the shape of x, where u is uniform in (0, 1). The values of x do not matter, and get no
 * gradient. */
TG_API tg_tensor *tg_gumbel(tg_tape *t, tg_tensor *x);
/* tg_softmax of (x + tg_gumbel(x)) / tau along dim. tau and 1 / tau are finite and above 0. If hard is true, the result
 * is 1 at the largest element of this softmax and 0 elsewhere, and its gradient is that of the softmax. */
TG_API tg_tensor *tg_gumbel_softmax(tg_tape *t, tg_tensor *x, double tau, bool hard, int dim);
/* Rotary embedding (Su et al., RoFormer, 2021, in the layout of GPT-NeoX) of x [.., s, d], with even d. Row r along s
 * has position p = offset + r. Its elements i and i + d/2, for i < d/2, are rotated as a pair by the angle
 * p * base^(-2 * i / d). */
TG_API tg_tensor *tg_rope(tg_tape *t, tg_tensor *x, double base, int64_t offset);
/* tg_rope for rows in another order, such as those of a sharded sequence. Row r has position positions[r], with
 * positions int64 [s]. If positions is [n, s], where n is the size of the first dim of x, row r in element e of this
 * dim has position positions[e, r]. Dim s of x may be sharded if positions is sharded alike. */
TG_API tg_tensor *tg_rope_at(tg_tape *t, tg_tensor *x, tg_tensor *positions, double base);

/* How the frequencies of rotary positions are changed, so that a model that was trained with `original` positions can
 * use more of them. Pair i of n has the plain frequency base^(-i / n). `factor`, `low` and `high` are members of
 * tg_rope_opts. */
typedef enum tg_rope_kind {
    TG_ROPE_PLAIN,  /* the plain frequencies */
    TG_ROPE_LINEAR, /* all frequencies are divided by `factor` (Chen et al., arXiv 2306.15595) */
    /* The frequency of a pair is multiplied by 1 / factor if the pair makes `low` turns or fewer over the original
     * positions, and by 1 if it makes `high` turns or more. Between these limits the multiplier is linear in the number
     * of turns (Llama 3.1, arXiv 2407.21783). */
    TG_ROPE_LLAMA3,
    /* The same limits, but between them the multiplier is linear in i. The i of the pair that makes `high` turns is
     * rounded down, and that of the pair that makes `low` turns is rounded up (YaRN, Peng et al., arXiv 2309.00071). */
    TG_ROPE_YARN,
} tg_rope_kind;

typedef struct tg_rope_opts {
    size_t size;
    double base;          /* finite and greater than 0; 10000 by default; not 1 with TG_ROPE_YARN */
    int64_t offset;       /* position of row 0; must be 0 if positions are given */
    tg_tensor *positions; /* int64 [s] or [n, s], as in tg_rope_at; NULL: offset, offset + 1 and so on */
    int64_t dims;         /* the first `dims` elements of each row are rotated, an even number; TG_AUTO: all */
    tg_rope_kind kind;    /* TG_ROPE_PLAIN by default */
    double factor;        /* finite and greater than 0; 1 by default, as it must be with TG_ROPE_PLAIN */
    /* TG_ROPE_LLAMA3 and TG_ROPE_YARN only (TG_ERR_ARGUMENT). 0 < low < high; 1 and 4 by default. original is 1 or more
     * with these kinds, and 0 with others; 0 by default. */
    double low, high;
    int64_t original;
    double gain;          /* factor of the rotated elements, finite; 1 by default. YaRN uses 0.1 ln(factor) + 1 */
} tg_rope_opts;

#define TG_ROPE_DEFAULTS                                                                                \
    .size = sizeof(tg_rope_opts), .base = 10000, .dims = TG_AUTO, .factor = 1, .low = 1, .high = 4, .gain = 1
#define TG_ROPE(...) (&(tg_rope_opts){TG_ROPE_DEFAULTS, __VA_ARGS__})

/* tg_rope with options: x [.., s, d]. Elements i and i + dims / 2 of each row, for i < dims / 2, are rotated as a pair.
 * The other elements of a row stay as they are. Dim s may be sharded if positions is sharded alike. */
TG_API tg_tensor *tg_rope_with(tg_tape *t, tg_tensor *x, const tg_rope_opts *opts);
TG_API tg_tensor *tg_swiglu(tg_tape *t, tg_tensor *gate, tg_tensor *up); /* silu(gate) * up; both have the same shape */
TG_API tg_tensor *tg_glu(tg_tape *t, tg_tensor *x, int dim); /* a * sigmoid(b); a and b are the halves of x along dim */

/* The names of sizes are those of tg_attention. p = i + sk - sq is the position of query i among the keys, so the last
 * query is at the last key. If sequences are packed, i, j, sq and sk are those of one sequence. */
typedef struct tg_attention_opts {
    size_t size;
    bool causal;    /* query i attends only to keys j <= p */
    double scale;   /* factor of the scores, finite and 0 or more; TG_AUTO means 1 / sqrt(dk) */
    double dropout; /* probability with which training mode drops an attention weight (tg_dropout), in [0, 1) */
    /* Bounds the scores smoothly, before masks: softcap * tanh(score / softcap) takes the place of a score (Gemma 2,
     * arXiv 2408.00118). Finite and greater than 0, or TG_NONE for no bound. */
    double softcap;
    /* Window: query i attends only to keys with p - left <= j <= p + right. Both are 0 or more, or TG_NONE for no bound
     * on that side. */
    int64_t left, right;
    /* Broadcasts to [b, h, sq, sk]. A bool mask hides keys where it is false. A float mask is added to the scores. This
     * tensor and each of the following ones may be NULL. */
    tg_tensor *mask;
    tg_tensor *sink;    /* [h]: e^sink[i] is added to the denominators of the softmaxes of head i */
    /* int64 [b], with values from 0 to sk (TG_ERR_DATA): keys j >= lengths[e] of batch element e are padding, and
     * hidden. Not together with starts_q (TG_ERR_ARGUMENT). */
    tg_tensor *lengths;
    /* int64 [b, m + 1], or [m + 1] if b is 1: m sequences are packed along sq. Each attends only to itself. Sequence n
     * has the rows starts_q[n] to starts_q[n + 1] - 1, or none if the two entries are equal. The first entry is 0, the
     * last is sq, and none is less than the one before it (TG_ERR_DATA). */
    tg_tensor *starts_q;
    tg_tensor *starts_k; /* the same along sk; required with starts_q, and of its shape */
} tg_attention_opts;

#define TG_ATTENTION_DEFAULTS                                                                                          \
    .size = sizeof(tg_attention_opts), .scale = TG_AUTO, .softcap = TG_NONE, .left = TG_NONE, .right = TG_NONE
#define TG_ATTENTION(...) (&(tg_attention_opts){TG_ATTENTION_DEFAULTS, __VA_ARGS__})

/* softmax(scale * q @ k^T) @ v, where scale * q @ k^T are the scores: q [b, h, sq, dk], k [b, g, sk, dk] and v
 * [b, g, sk, dv] -> [b, h, sq, dv]. g divides h, and h / g adjacent heads of q share one head of k and v. If all keys
 * are hidden from a query, its result is 0. A float mask and a sink have the dtype of q or float32, and get gradients.
 * On devices "cpu" and "cuda" the scores are never stored as a whole (Dao et al., arXiv 2205.14135), except in
 * derivatives that are recorded as ops. On device "cuda" dk and dv are at most 256 (TG_ERR_SHAPE). */
TG_API tg_tensor *tg_attention(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, const tg_attention_opts *opts);

/* ---- Convolutions and pooling ---- */

/* In the arrays of the options, element [0] is for the first dim after c, element [1] for the second, and so on. An op
 * with fewer dims needs the default or 0 in the other elements. An option that is set but that the op does not use
 * fails with TG_ERR_ARGUMENT. */
typedef struct tg_conv_opts {
    size_t size;
    int64_t stride[3];   /* distance between the starts of windows, 1 or more; {1, 1, 1} by default */
    int64_t padding[3];  /* number of zeros that are added at each end, 0 or more */
    int64_t dilation[3]; /* distance between the elements of a window, 1 or more; {1, 1, 1} by default */
    int64_t groups; /* number of groups of adjacent channels that are convolved separately, 1 or more; 1 by default */
    /* Transposed convolutions only: number of elements that are added at the end of the result, 0 or more, and less
     * than the stride or the dilation. */
    int64_t output_padding[3];
} tg_conv_opts;

#define TG_CONV_DEFAULTS .size = sizeof(tg_conv_opts), .stride = {1, 1, 1}, .dilation = {1, 1, 1}, .groups = 1
#define TG_CONV(...) (&(tg_conv_opts){TG_CONV_DEFAULTS, __VA_ARGS__})

/* The sum of the products of a window's elements and w, plus b, for each window that fits into x and its padding. This
 * is a cross-correlation, as in PyTorch. x [n, c, l], w [o, c / groups, k] and b [o] -> [n, o, windows]. groups divides
 * c and o. b may be NULL. */
TG_API tg_tensor *tg_conv1d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);
/* The same in two dims: x [n, c, h, w], w [o, c / groups, kh, kw] and b [o] -> [n, o, windows, windows]. */
TG_API tg_tensor *tg_conv2d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);
/* The same in three dims: x [n, c, d, h, w], w [o, c / groups, kd, kh, kw]. The op needs memory for about kd copies of
 * x if the stride along d is 1. */
TG_API tg_tensor *tg_conv3d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);
/* A transposed convolution: the gradient of tg_conv1d with respect to its input, plus b. Element i of x adds its
 * product with w to the window of the result that starts at i * stride - padding. x [n, c, l], w [c, o / groups, k] and
 * b [o] -> [n, o, m] with m = (l - 1) * stride - 2 * padding + dilation * (k - 1) + 1 + output_padding. So padding
 * removes elements at both ends of the result. b may be NULL. */
TG_API tg_tensor *tg_conv_transpose1d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);
/* The same in two dims: x [n, c, h, w], w [c, o / groups, kh, kw]. */
TG_API tg_tensor *tg_conv_transpose2d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);
/* The same in three dims: x [n, c, d, h, w], w [c, o / groups, kd, kh, kw]. */
TG_API tg_tensor *tg_conv_transpose3d(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, const tg_conv_opts *opts);

/* tg_max_pool and tg_avg_pool stand for the functions of 1, 2 and 3 dims. */
typedef struct tg_pool_opts {
    size_t size;
    int64_t stride[3];   /* distance between the starts of windows, 1 or more; TG_AUTO means the size of the window */
    /* Number of elements that are added at each end, at most half of the size of the window. tg_max_pool adds
     * -infinity, tg_avg_pool adds zeros. */
    int64_t padding[3];
    int64_t dilation[3]; /* tg_max_pool only: as in tg_conv_opts */
    /* If elements are left over after the windows that fit, adds one that reaches beyond the padding after x, provided
     * that it starts in x or in the padding before x. tg_avg_pool does not count what lies beyond the padding. */
    bool ceil_mode;
    /* tg_avg_pool without a divisor: divides by the number of elements of x in the window, not by the window's size. */
    bool exclude_padding;
    int64_t divisor; /* tg_avg_pool only: divides by this number, which is not 0; TG_AUTO: as exclude_padding says */
} tg_pool_opts;

#define TG_POOL_DEFAULTS \
    .size = sizeof(tg_pool_opts), .stride = {TG_AUTO, TG_AUTO, TG_AUTO}, .dilation = {1, 1, 1}, .divisor = TG_AUTO
#define TG_POOL(...) (&(tg_pool_opts){TG_POOL_DEFAULTS, __VA_ARGS__})

/* The maximum or the mean of each window that fits into x and its padding. A window has k elements, h rows of w
 * elements, or d such planes. x [n, c, l] -> [n, c, windows], x [n, c, h, w] -> [n, c, windows, windows], and likewise
 * in three dims. In tg_max_pool the gradient goes to the first of equal elements, and a window with a NaN gives NaN. */
TG_API tg_tensor *tg_max_pool1d(tg_tape *t, tg_tensor *x, int64_t k, const tg_pool_opts *opts);
TG_API tg_tensor *tg_max_pool2d(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts);
TG_API tg_tensor *tg_avg_pool1d(tg_tape *t, tg_tensor *x, int64_t k, const tg_pool_opts *opts);
TG_API tg_tensor *tg_avg_pool2d(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts);
TG_API tg_tensor *tg_max_pool3d(tg_tape *t, tg_tensor *x, int64_t d, int64_t h, int64_t w, const tg_pool_opts *opts);
TG_API tg_tensor *tg_avg_pool3d(tg_tape *t, tg_tensor *x, int64_t d, int64_t h, int64_t w, const tg_pool_opts *opts);
/* Return what tg_max_pool2d and tg_max_pool3d return. *index (index may be NULL) receives the position of each maximum
 * in its channel of x, int64: the number of the element in row-major order. */
TG_API tg_tensor *tg_max_pool2d_with_indices(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_pool_opts *opts,
                                             tg_tensor **index);
TG_API tg_tensor *tg_max_pool3d_with_indices(tg_tape *t, tg_tensor *x, int64_t d, int64_t h, int64_t w,
                                             const tg_pool_opts *opts, tg_tensor **index);
/* The mean of each of size.dim[d] windows along dim 2 + d of x [n, c, ..]: [n, c, size..]. x has 1 to 3 dims after c.
 * Window i along a dim with n elements and m windows has the elements floor(i * n / m) to ceil((i + 1) * n / m) - 1. */
TG_API tg_tensor *tg_adaptive_avg_pool(tg_tape *t, tg_tensor *x, tg_shape size);
/* The maximum of each of the windows of tg_adaptive_avg_pool. Each number in size is 1 or more. index is that of
 * tg_max_pool2d_with_indices, and may be NULL. */
TG_API tg_tensor *tg_adaptive_max_pool(tg_tape *t, tg_tensor *x, tg_shape size, tg_tensor **index);
/* The windows of x, which has two dims after [n, c]: [n, c * h * w, windows]. Each window of h x w elements, as in
 * tg_conv2d, becomes a column. */
TG_API tg_tensor *tg_im2col(tg_tape *t, tg_tensor *x, int64_t h, int64_t w, const tg_conv_opts *opts);
/* The reverse: x [n, c * h * w, windows] -> [n, c, size..], where size has two dims. Each column is added to the
 * elements of its window. Elements in the padding are left out. */
TG_API tg_tensor *tg_col2im(tg_tape *t, tg_tensor *x, tg_shape size, int64_t h, int64_t w, const tg_conv_opts *opts);

typedef struct tg_upsample_opts {
    size_t size;
    /* Factors from x to the result along dims 2, 3 and 4, finite and above 0. TG_AUTO: the size in the result, divided
     * by the size in x. Must be TG_AUTO for a dim that x does not have, and if align_corners is set. */
    double scale0, scale1, scale2;
    /* tg_upsample_linear only (TG_ERR_ARGUMENT). true: the first and the last elements of the result lie at those of x.
     * false: element i of the result lies at position (i + 1/2) / scale - 1/2, or at the nearest one within x. */
    bool align_corners;
} tg_upsample_opts;

#define TG_UPSAMPLE_DEFAULTS .size = sizeof(tg_upsample_opts), .scale0 = TG_AUTO, .scale1 = TG_AUTO, .scale2 = TG_AUTO
#define TG_UPSAMPLE(...) (&(tg_upsample_opts){TG_UPSAMPLE_DEFAULTS, __VA_ARGS__})

/* Resize the 1 to 3 dims of x after c: x [n, c, ..] -> [n, c, size..]. Old and new sizes are 1 or more. Element i of
 * tg_upsample_nearest is element floor(i / scale) of x along a dim, at most the last one; the quotient is computed in
 * float32. tg_upsample_linear interpolates between the two neighbors of the position of element i. */
TG_API tg_tensor *tg_upsample_nearest(tg_tape *t, tg_tensor *x, tg_shape size, const tg_upsample_opts *opts);
TG_API tg_tensor *tg_upsample_linear(tg_tape *t, tg_tensor *x, tg_shape size, const tg_upsample_opts *opts);

typedef enum tg_grid_mode { TG_GRID_BILINEAR, TG_GRID_NEAREST, TG_GRID_BICUBIC } tg_grid_mode;
/* What is read outside an image: 0, the nearest element at its border, or the image mirrored at its border. */
typedef enum tg_grid_padding { TG_GRID_ZEROS, TG_GRID_BORDER, TG_GRID_REFLECTION } tg_grid_padding;

typedef struct tg_grid_opts {
    size_t size;
    tg_grid_mode mode;
    tg_grid_padding padding;
    /* Coordinates -1 and 1 are the middles of the first and the last element, instead of their outer borders. */
    bool align_corners;
} tg_grid_opts;

#define TG_GRID_DEFAULTS .size = sizeof(tg_grid_opts)
#define TG_GRID(...) (&(tg_grid_opts){TG_GRID_DEFAULTS, __VA_ARGS__})

/* Reads images x [n, c, h, w] at the places of grid [n, i, j, 2]: [n, c, i, j]. The two numbers of a place are its
 * coordinates along w and along h, where -1 to 1 is the width or the height of the image. x and grid get gradients,
 * except that grid gets none with TG_GRID_NEAREST. */
TG_API tg_tensor *tg_grid_sampler_2d(tg_tape *t, tg_tensor *x, tg_tensor *grid, const tg_grid_opts *opts);

/* ---- Losses ---- */

typedef enum tg_loss_reduction {
    TG_LOSS_MEAN,       /* the mean, a scalar */
    TG_LOSS_SUM,        /* the sum, a scalar */
    TG_LOSS_NONE,       /* one loss for each row or element */
    TG_LOSS_BATCH_MEAN, /* tg_kl_div only: the sum divided by the size of dim 0 */
} tg_loss_reduction;

/* How label smoothing distributes the target over K classes. a is label_smoothing. If K is 1, nothing is smoothed. */
typedef enum tg_smoothing {
    TG_SMOOTHING_TORCH,    /* each class gets a / K, and the target class gets 1 - a in addition */
    TG_SMOOTHING_MEGATRON, /* each wrong class gets a / (K - 1), and the target class gets 1 - a */
    /* As TG_SMOOTHING_MEGATRON, but if the vocabulary is sharded, each rank distributes a over its own classes only, as
     * Megatron-Core does: K is the number of classes on this rank. */
    TG_SMOOTHING_MEGATRON_PARTITION,
} tg_smoothing;

typedef struct tg_cross_entropy_opts {
    size_t size;
    /* Rows with this target are ignored: their loss is 0. The default is -100, which is no class. */
    int64_t ignore_index;
    double label_smoothing;      /* in [0, 1] */
    /* TG_LOSS_MEAN divides by the number of rows that are not ignored, or by the sum of their weights. */
    tg_loss_reduction reduction;
    tg_smoothing smoothing_kind; /* must be TG_SMOOTHING_TORCH if label_smoothing is 0 (TG_ERR_ARGUMENT) */
    /* tg_cross_entropy only: the weight of each class, [v], with the dtype of logits. It must not require a gradient
     * (TG_ERR_ARGUMENT). NULL means that all weights are 1. */
    tg_tensor *weight;
} tg_cross_entropy_opts;

#define TG_CROSS_ENTROPY_DEFAULTS .size = sizeof(tg_cross_entropy_opts), .ignore_index = -100
#define TG_CROSS_ENTROPY(...) (&(tg_cross_entropy_opts){TG_CROSS_ENTROPY_DEFAULTS, __VA_ARGS__})

/* The cross-entropy of each row: -log(softmax(logits)[target]). logits [.., v], target [..] int64 -> scalar, or [..]
 * with TG_LOSS_NONE. The result is float32, or float64 for float64 logits. A target that is neither in [0, v) nor
 * ignore_index fails with TG_ERR_DATA. If all rows are ignored, the mean is NaN and the gradient 0. */
TG_API tg_tensor *tg_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, const tg_cross_entropy_opts *opts);
/* tg_cross_entropy of the logits x @ w^T, where x is [.., h] and w is [v, h]. Only the logits of some rows are in
 * memory at a time, except in recorded derivatives. Fails with TG_ERR_UNSUPPORTED if opts->weight is set. */
TG_API tg_tensor *tg_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                          const tg_cross_entropy_opts *opts);
/* The mean of (x - y)^2 over all elements, a scalar. x and y have the same shape. The result is float32, or float64 for
 * float64 inputs. */
TG_API tg_tensor *tg_mse(tg_tape *t, tg_tensor *x, tg_tensor *y);

/* Options of the losses below. */
typedef struct tg_loss_opts {
    size_t size;
    tg_loss_reduction reduction; /* TG_LOSS_MEAN by default; TG_LOSS_BATCH_MEAN for tg_kl_div only (TG_ERR_ARGUMENT) */
    int64_t ignore_index; /* tg_nll only (TG_ERR_ARGUMENT): as in tg_cross_entropy_opts */
    bool log_target;      /* tg_kl_div only (TG_ERR_ARGUMENT): y contains logarithms */
} tg_loss_opts;

#define TG_LOSS_DEFAULTS .size = sizeof(tg_loss_opts), .ignore_index = -100
#define TG_LOSS(...) (&(tg_loss_opts){TG_LOSS_DEFAULTS, __VA_ARGS__})

/* x and y of these losses have the same shape. The result is a scalar, or has this shape with TG_LOSS_NONE. It is
 * float32, or float64 for float64 inputs. The comments give the loss of one element, or for tg_nll that of one row. y,
 * w and pw get gradients too if they require them. */
TG_API tg_tensor *tg_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts); /* |x - y| */
/* (x - y)^2 / (2 * beta) if |x - y| < beta, else |x - y| - beta / 2. beta is finite and 0 or more. */
TG_API tg_tensor *tg_smooth_l1(tg_tape *t, tg_tensor *x, tg_tensor *y, double beta, const tg_loss_opts *opts);
/* (x - y)^2 / 2 if |x - y| < delta, else delta * (|x - y| - delta / 2). delta is greater than 0. */
TG_API tg_tensor *tg_huber(tg_tape *t, tg_tensor *x, tg_tensor *y, double delta, const tg_loss_opts *opts);
/* -w * (pw * y * log(sigmoid(x)) + (1 - y) * log(1 - sigmoid(x))), with y in [0, 1]. w and pw broadcast to x. NULL in
 * place of w or pw means 1. */
TG_API tg_tensor *tg_bce_with_logits(tg_tape *t, tg_tensor *x, tg_tensor *y, tg_tensor *w, tg_tensor *pw,
                                     const tg_loss_opts *opts);
/* y * (log(y) - x), or 0 where y is 0. x contains logarithms of probabilities. With opts->log_target the loss is
 * e^y * (y - x). TG_LOSS_MEAN divides by the number of elements. */
TG_API tg_tensor *tg_kl_div(tg_tape *t, tg_tensor *x, tg_tensor *y, const tg_loss_opts *opts);
/* -w[target] * x[target] for each row of x [.., v], which contains logarithms of probabilities. target [..] is int64,
 * in [0, v) or ignore_index (TG_ERR_DATA). w is [v]; NULL means that all weights are 1. The result is a scalar, or [..]
 * with TG_LOSS_NONE. TG_LOSS_MEAN divides by the sum of w[target] over all rows that are not ignored. */
TG_API tg_tensor *tg_nll(tg_tape *t, tg_tensor *x, tg_tensor *target, tg_tensor *w, const tg_loss_opts *opts);
/* (sum of x * y) / (max(norm of x, eps) * max(norm of y, eps)), where sum and norms are those along dim, which is
 * removed. eps is finite and 0 or more. x and y have the same shape. The result has the dtype of x. */
TG_API tg_tensor *tg_cosine_similarity(tg_tape *t, tg_tensor *x, tg_tensor *y, int dim, double eps);

#ifdef __cplusplus
}
#endif

#endif
