/* Every op with every wrong pair of tape and tensor as each of its operands; and operands of a wrong dtype. The
 * other operands are tensors of the world. */
#include "misuse/misuse.h"

#include <tapegrad/ops.h>

#define UNARY(symbol) OP(symbol, symbol(t, x))
#define BINARY(symbol)                \
    do {                              \
        OP(symbol, symbol(t, x, b->x)); \
        OP(symbol, symbol(t, b->x, x)); \
    } while (0)
#define TERNARY(symbol, p, q, r)         \
    do {                                 \
        OP(symbol, symbol(t, x, q, r));  \
        OP(symbol, symbol(t, p, x, r));  \
        OP(symbol, symbol(t, p, q, x));  \
    } while (0)

static void unary(misuse_world *b) {
    UNARY(tg_neg);
    UNARY(tg_abs);
    UNARY(tg_exp);
    UNARY(tg_log);
    UNARY(tg_sqrt);
    UNARY(tg_rsqrt);
    UNARY(tg_reciprocal);
    UNARY(tg_square);
    UNARY(tg_sin);
    UNARY(tg_cos);
    UNARY(tg_tanh);
    UNARY(tg_sigmoid);
    UNARY(tg_erf);
    UNARY(tg_tan);
    UNARY(tg_asin);
    UNARY(tg_acos);
    UNARY(tg_atan);
    UNARY(tg_sinh);
    UNARY(tg_cosh);
    UNARY(tg_log1p);
    UNARY(tg_expm1);
    UNARY(tg_sign);
    UNARY(tg_floor);
    UNARY(tg_ceil);
    UNARY(tg_round);
    UNARY(tg_relu);
    UNARY(tg_silu);
    UNARY(tg_gelu);
    UNARY(tg_gelu_tanh);
    UNARY(tg_erfc);
    UNARY(tg_asinh);
    UNARY(tg_acosh);
    UNARY(tg_atanh);
    UNARY(tg_log2);
    UNARY(tg_log10);
    UNARY(tg_exp2);
    UNARY(tg_trunc);
    UNARY(tg_mish);
    UNARY(tg_log_sigmoid);
    UNARY(tg_softsign);
    UNARY(tg_hardsigmoid);
    UNARY(tg_hardswish);
    UNARY(tg_isnan);
    UNARY(tg_isinf);
    UNARY(tg_isfinite);
    UNARY(tg_logical_not);
    UNARY(tg_bitwise_not);
    OP(tg_hardtanh, tg_hardtanh(t, x, -1, 1));
    OP(tg_leaky_relu, tg_leaky_relu(t, x, 0.1));
    OP(tg_elu, tg_elu(t, x, 1));
    OP(tg_softplus, tg_softplus(t, x, 1, 20));
    OP(tg_pow_scalar, tg_pow_scalar(t, x, 2));
    OP(tg_clamp, tg_clamp(t, x, 0, 1));
    OP(tg_scale, tg_scale(t, x, 2));
    OP(tg_add_scalar, tg_add_scalar(t, x, 2));
    OP(tg_cast, tg_cast(t, x, TG_F64));
    VIEW(tg_detach, tg_detach(t, x));
}

static void binary(misuse_world *b) {
    BINARY(tg_add);
    BINARY(tg_sub);
    BINARY(tg_mul);
    BINARY(tg_div);
    BINARY(tg_pow);
    BINARY(tg_atan2);
    BINARY(tg_fmod);
    BINARY(tg_maximum);
    BINARY(tg_minimum);
    BINARY(tg_eq);
    BINARY(tg_ne);
    BINARY(tg_lt);
    BINARY(tg_le);
    BINARY(tg_gt);
    BINARY(tg_ge);
    BINARY(tg_remainder);
    BINARY(tg_floor_divide);
    BINARY(tg_trunc_divide);
    BINARY(tg_logical_and);
    BINARY(tg_logical_or);
    BINARY(tg_logical_xor);
    BINARY(tg_bitwise_and);
    BINARY(tg_bitwise_or);
    BINARY(tg_bitwise_xor);
    BINARY(tg_mse);
    BINARY(tg_swiglu);
    BINARY(tg_matmul);
    BINARY(tg_outer);
    BINARY(tg_dot);
    OP(tg_einsum, tg_einsum(t, "ij,ij->", x, b->x));
    OP(tg_einsum, tg_einsum(t, "ij,ij->", b->x, x));
    TERNARY(tg_where, b->mask, b->x, b->x);
    TERNARY(tg_lerp, b->x, b->x, b->x);
    OP(tg_lerp_scalar, tg_lerp_scalar(t, x, b->x, 0.5));
    OP(tg_lerp_scalar, tg_lerp_scalar(t, b->x, x, 0.5));
    OP(tg_masked_fill, tg_masked_fill(t, x, b->mask, 0));
    OP(tg_masked_fill, tg_masked_fill(t, b->x, x, 0));
}

static void in_place(misuse_world *b) {
    BINARY(tg_add_);
    BINARY(tg_sub_);
    BINARY(tg_mul_);
    BINARY(tg_copy_);
    UNARY(tg_relu_);
}

static void reductions(misuse_world *b) {
    OP(tg_sum, tg_sum(t, x, TG_ALL_DIMS, false));
    OP(tg_mean, tg_mean(t, x, TG_ALL_DIMS, false));
    OP(tg_var, tg_var(t, x, TG_ALL_DIMS, 1, false));
    OP(tg_max, tg_max(t, x, TG_ALL_DIMS, false));
    OP(tg_min, tg_min(t, x, TG_ALL_DIMS, false));
    OP(tg_logsumexp, tg_logsumexp(t, x, TG_ALL_DIMS, false));
    OP(tg_argmax, tg_argmax(t, x, 0, false));
    OP(tg_argmin, tg_argmin(t, x, 0, false));
    OP(tg_std, tg_std(t, x, TG_ALL_DIMS, 1, false));
    OP(tg_prod, tg_prod(t, x, TG_ALL_DIMS, false));
    OP(tg_norm, tg_norm(t, x, 2, TG_ALL_DIMS, false));
    OP(tg_any, tg_any(t, x, TG_ALL_DIMS, false));
    OP(tg_all, tg_all(t, x, TG_ALL_DIMS, false));
    tg_tensor *index = b->x;
    OP(tg_cumsum, tg_cumsum(t, x, 0));
    OP(tg_cumprod, tg_cumprod(t, x, 0));
    MISUSE_OP(tg_cummax, MISUSE_HANDLES, misuse_inert(tg_cummax(t, x, 0, &index)) && misuse_inert(index));
    MISUSE_OP(tg_cummin, MISUSE_HANDLES, misuse_inert(tg_cummin(t, x, 0, &index)) && misuse_inert(index));
    MISUSE_OP(tg_sort, MISUSE_HANDLES, misuse_inert(tg_sort(t, x, 0, false, &index)) && misuse_inert(index));
    MISUSE_OP(tg_topk, MISUSE_HANDLES, misuse_inert(tg_topk(t, x, 1, 0, true, &index)) && misuse_inert(index));
    MISUSE_OP(tg_median, MISUSE_HANDLES, misuse_inert(tg_median(t, x, 0, false, &index)) && misuse_inert(index));
}

static void shapes(misuse_world *b) {
    const int64_t halves[] = {1, 1};
    tg_tensor *out[2] = {b->x, b->x};
    VIEW(tg_reshape, tg_reshape(t, x, TG_SHAPE(-1)));
    VIEW(tg_view, tg_view(t, x, TG_SHAPE(-1)));
    VIEW(tg_permute, tg_permute(t, x, TG_DIMS(1, 0)));
    VIEW(tg_transpose, tg_transpose(t, x, 0, 1));
    VIEW(tg_expand, tg_expand(t, x, TG_SHAPE(4, 2, 3)));
    VIEW(tg_squeeze, tg_squeeze(t, x, 0));
    VIEW(tg_unsqueeze, tg_unsqueeze(t, x, 0));
    VIEW(tg_slice, tg_slice(t, x, 0, 0, 1, 1));
    VIEW(tg_select, tg_select(t, x, 0, 0));
    VIEW(tg_contiguous, tg_contiguous(t, x));
    MISUSE_OP(tg_split, MISUSE_HANDLES - 1,
           tg_split(t, x, 0, halves, 2, out) != TG_OK && misuse_inert(out[0]) && misuse_inert(out[1]));
    MISUSE_OP(tg_chunk, MISUSE_HANDLES - 1,
           tg_chunk(t, x, 0, 2, out) != TG_OK && misuse_inert(out[0]) && misuse_inert(out[1]));
    VIEW(tg_unfold, tg_unfold(t, x, 0, 1, 1));
    OP(tg_as_strided, tg_as_strided(t, x, TG_SHAPE(2, 2), TG_SHAPE(1, 1), 0));
    OP(tg_flip, tg_flip(t, x, TG_DIMS(0)));
    OP(tg_roll, tg_roll(t, x, 1, 0));
    OP(tg_repeat, tg_repeat(t, x, 0, 2));
    OP(tg_tril, tg_tril(t, x, 0));
    OP(tg_triu, tg_triu(t, x, 0));
    VIEW(tg_diag, tg_diag(t, x, 0));
    OP(tg_pad, tg_pad(t, x, 0, 1, 1, 0));
    OP(tg_concat, tg_concat(t, (tg_tensor *[]){x, b->x}, 2, 0));
    OP(tg_concat, tg_concat(t, (tg_tensor *[]){b->x, x}, 2, 0));
    OP(tg_stack, tg_stack(t, (tg_tensor *[]){x, b->x}, 2, 0));
    OP(tg_stack, tg_stack(t, (tg_tensor *[]){b->x, x}, 2, 0));
}

static void indexing(misuse_world *b) {
    OP(tg_gather, tg_gather(t, x, 0, b->ids));
    OP(tg_gather, tg_gather(t, b->x, 0, x));
    OP(tg_scatter_add, tg_scatter_add(t, x, 0, b->ids, b->x));
    OP(tg_scatter_add, tg_scatter_add(t, b->x, 0, x, b->x));
    OP(tg_scatter_add, tg_scatter_add(t, b->x, 0, b->ids, x));
    OP(tg_scatter, tg_scatter(t, x, 0, b->ids, b->x));
    OP(tg_scatter, tg_scatter(t, b->x, 0, x, b->x));
    OP(tg_scatter, tg_scatter(t, b->x, 0, b->ids, x));
    OP(tg_masked_scatter, tg_masked_scatter(t, x, b->mask, b->x));
    OP(tg_masked_scatter, tg_masked_scatter(t, b->x, x, b->x));
    OP(tg_masked_scatter, tg_masked_scatter(t, b->x, b->mask, x));
    OP(tg_nonzero, tg_nonzero(t, x, 1));
    OP(tg_argsort, tg_argsort(t, x, 0, false));
    VIEW(tg_diagonal, tg_diagonal(t, x, 0, 0, 1));
    OP(tg_slice_scatter, tg_slice_scatter(t, x, b->x, 0, 0, INT64_MAX, 1));
    OP(tg_slice_scatter, tg_slice_scatter(t, b->x, x, 0, 0, INT64_MAX, 1));
    OP(tg_select_scatter, tg_select_scatter(t, x, b->v, 0, 0));
    OP(tg_select_scatter, tg_select_scatter(t, b->x, x, 0, 0));
    OP(tg_scatter_mean, tg_scatter_mean(t, x, 0, b->ids, b->v, true));
    OP(tg_scatter_mean, tg_scatter_mean(t, b->v, 0, x, b->v, true));
    OP(tg_scatter_mean, tg_scatter_mean(t, b->v, 0, b->ids, x, true));
    OP(tg_scatter_prod, tg_scatter_prod(t, x, 0, b->ids, b->v, true));
    OP(tg_scatter_prod, tg_scatter_prod(t, b->v, 0, x, b->v, true));
    OP(tg_scatter_prod, tg_scatter_prod(t, b->v, 0, b->ids, x, true));
    OP(tg_scatter_max, tg_scatter_max(t, x, 0, b->ids, b->v, true));
    OP(tg_scatter_max, tg_scatter_max(t, b->v, 0, x, b->v, true));
    OP(tg_scatter_max, tg_scatter_max(t, b->v, 0, b->ids, x, true));
    OP(tg_scatter_min, tg_scatter_min(t, x, 0, b->ids, b->v, true));
    OP(tg_scatter_min, tg_scatter_min(t, b->v, 0, x, b->v, true));
    OP(tg_scatter_min, tg_scatter_min(t, b->v, 0, b->ids, x, true));
    OP(tg_index, tg_index(t, x, TG_DIMS(0), &b->ids, 1));
    OP(tg_index, tg_index(t, b->x, TG_DIMS(0), &x, 1));
    OP(tg_index_put, tg_index_put(t, x, TG_DIMS(0), b->x, &b->ids, 1, true));
    OP(tg_index_put, tg_index_put(t, b->x, TG_DIMS(0), x, &b->ids, 1, true));
    OP(tg_index_put, tg_index_put(t, b->x, TG_DIMS(0), b->x, &x, 1, true));
    OP(tg_index_select, tg_index_select(t, x, 0, b->ids));
    OP(tg_index_select, tg_index_select(t, b->x, 0, x));
    OP(tg_masked_select, tg_masked_select(t, x, b->mask, 1));
    OP(tg_masked_select, tg_masked_select(t, b->x, x, 1));
    OP(tg_one_hot, tg_one_hot(t, TG_F32, x, 4));
    OP(tg_embedding, tg_embedding(t, x, b->ids));
    OP(tg_embedding, tg_embedding(t, b->x, x));
}

#define LINEAR(symbol)                                     \
    do {                                                   \
        OP(symbol, symbol(t, x, b->x, NULL));              \
        OP(symbol, symbol(t, b->x, x, NULL));              \
        OPTIONAL(symbol, symbol(t, b->x, b->x, x));        \
    } while (0)

static void losses(misuse_world *b) {
    OP(tg_l1, tg_l1(t, x, b->x, NULL));
    OP(tg_l1, tg_l1(t, b->x, x, NULL));
    OP(tg_smooth_l1, tg_smooth_l1(t, x, b->x, 1, NULL));
    OP(tg_smooth_l1, tg_smooth_l1(t, b->x, x, 1, NULL));
    OP(tg_huber, tg_huber(t, x, b->x, 1, NULL));
    OP(tg_huber, tg_huber(t, b->x, x, 1, NULL));
    OP(tg_kl_div, tg_kl_div(t, x, b->x, NULL));
    OP(tg_kl_div, tg_kl_div(t, b->x, x, NULL));
    OP(tg_bce_with_logits, tg_bce_with_logits(t, x, b->x, NULL, NULL, NULL));
    OP(tg_bce_with_logits, tg_bce_with_logits(t, b->x, x, NULL, NULL, NULL));
    OPTIONAL(tg_bce_with_logits, tg_bce_with_logits(t, b->x, b->x, x, NULL, NULL));
    OPTIONAL(tg_bce_with_logits, tg_bce_with_logits(t, b->x, b->x, NULL, x, NULL));
    OP(tg_nll, tg_nll(t, x, b->ids, NULL, NULL));
    OP(tg_nll, tg_nll(t, b->x, x, NULL, NULL));
    OPTIONAL(tg_nll, tg_nll(t, b->x, b->ids, x, NULL));
    OP(tg_cosine_similarity, tg_cosine_similarity(t, x, b->x, 0, 1e-8));
    OP(tg_cosine_similarity, tg_cosine_similarity(t, b->x, x, 0, 1e-8));
}

static void networks(misuse_world *b) {
    tg_tensor *q = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 1, 2, 4));
    LINEAR(tg_linear);
    LINEAR(tg_linear_relu);
    LINEAR(tg_linear_gelu);
    LINEAR(tg_linear_gelu_tanh);
    LINEAR(tg_linear_silu);
    OP(tg_softmax, tg_softmax(t, x, -1));
    OP(tg_log_softmax, tg_log_softmax(t, x, -1));
    OP(tg_layer_norm, tg_layer_norm(t, x, NULL, NULL, 1e-5));
    OPTIONAL(tg_layer_norm, tg_layer_norm(t, b->x, x, NULL, 1e-5));
    OPTIONAL(tg_layer_norm, tg_layer_norm(t, b->x, NULL, x, 1e-5));
    OP(tg_group_norm, tg_group_norm(t, x, 1, NULL, NULL, 1e-5));
    OPTIONAL(tg_group_norm, tg_group_norm(t, b->x, 1, x, NULL, 1e-5));
    OPTIONAL(tg_group_norm, tg_group_norm(t, b->x, 1, NULL, x, 1e-5));
    OP(tg_rms_norm, tg_rms_norm(t, x, NULL, 1e-5));
    OPTIONAL(tg_rms_norm, tg_rms_norm(t, b->x, x, 1e-5));
    OP(tg_residual_rms_norm, tg_residual_rms_norm(t, x, b->x, NULL, 1e-5, NULL));
    OP(tg_residual_rms_norm, tg_residual_rms_norm(t, b->x, x, NULL, 1e-5, NULL));
    OPTIONAL(tg_residual_rms_norm, tg_residual_rms_norm(t, b->x, b->x, x, 1e-5, NULL));
    OP(tg_dropout, tg_dropout(t, x, 0.5));
    OP(tg_dropout_rows, tg_dropout_rows(t, x, 0.5, b->ids));
    OP(tg_dropout_rows, tg_dropout_rows(t, b->x, 0.5, x));
    OP(tg_gumbel, tg_gumbel(t, x));
    OP(tg_gumbel_softmax, tg_gumbel_softmax(t, x, 1, true, 0));
    OP(tg_rope, tg_rope(t, x, 10000, 0));
    OP(tg_rope_at, tg_rope_at(t, x, b->ids, 10000));
    OP(tg_rope_with, tg_rope_with(t, x, NULL));
    OP(tg_attention, tg_attention(t, x, q, q, NULL));
    OP(tg_attention, tg_attention(t, q, x, q, NULL));
    OP(tg_attention, tg_attention(t, q, q, x, NULL));
    OPTIONAL(tg_attention, tg_attention(t, q, q, q, TG_ATTENTION(.mask = x)));
    OPTIONAL(tg_attention, tg_attention(t, q, q, q, TG_ATTENTION(.sink = x)));
    OPTIONAL(tg_attention, tg_attention(t, q, q, q, TG_ATTENTION(.lengths = x)));
    OPTIONAL(tg_attention, tg_attention(t, q, q, q, TG_ATTENTION(.starts_q = x, .starts_k = x)));
    OP(tg_cross_entropy, tg_cross_entropy(t, x, b->ids, NULL));
    OP(tg_cross_entropy, tg_cross_entropy(t, b->x, x, NULL));
    OP(tg_linear_cross_entropy, tg_linear_cross_entropy(t, x, b->x, b->ids, NULL));
    OP(tg_linear_cross_entropy, tg_linear_cross_entropy(t, b->x, x, b->ids, NULL));
    OP(tg_linear_cross_entropy, tg_linear_cross_entropy(t, b->x, b->x, x, NULL));
    tg_drop(q);
}

/* Ops without operands have only a tape. */
#define TAPE(symbol, call)                                                                       \
    do {                                                                                         \
        tg_tape *t = NULL;                                                                       \
        QUIET(symbol, misuse_inert(call));                                                          \
        t = b->freed;                                                                            \
        INERT(symbol, HANDLE, "freed", call);                                                    \
        t = b->inert_t;                                                                          \
        INERT(symbol, HANDLE, "could not be made", call);                                        \
    } while (0)

static void makers(misuse_world *b) {
    TAPE(tg_arange, tg_arange(t, TG_F32, 0, 3, 1));
    TAPE(tg_full, tg_full(t, TG_F32, TG_SHAPE(2), 1));
    /* Without a tape they return a tensor that the next op refuses, if that has a tape or a tensor of a context. */
    tg_tensor *made = tg_full(NULL, TG_F32, TG_SHAPE(2, 3), 1), *leased = tg_lease(NULL, "x", TG_F32, TG_SHAPE(2, 3));
    INERT(tg_add, HANDLE, "inert: the call that should have created it was given no tape", tg_add(b->t, made, b->x));
    INERT(tg_add, HANDLE, "inert: the call that should have created it was given no tape", tg_add(b->t, b->x, leased));
    INERT(tg_add, ARGUMENT, "the tape is NULL", tg_add(NULL, made, b->x));
    QUIET(tg_add, misuse_inert(tg_add(NULL, made, leased)));
}

/* ---- Dtypes ---- */

static void floats_only(misuse_world *b) {
    tg_tensor *(*const fn[])(tg_tape *, tg_tensor *) = {tg_exp,        tg_log,  tg_sqrt, tg_rsqrt,
                                                        tg_reciprocal, tg_sin,  tg_cos,  tg_tanh,
                                                        tg_sigmoid,    tg_silu, tg_gelu, tg_gelu_tanh,
                                                        tg_erf,        tg_tan,  tg_asin, tg_acos,
                                                        tg_atan,       tg_sinh, tg_cosh, tg_log1p,
                                                        tg_expm1,      tg_floor, tg_ceil, tg_round};
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++) {
        INERT(tg_exp, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", fn[i](b->t, b->ids));
        INERT(tg_exp, DTYPE, "input 0 is bool; it must be f32, f64, bf16 or f16", fn[i](b->t, b->mask));
    }
    INERT(tg_mean, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_mean(b->t, b->ids, TG_ALL_DIMS, false));
    INERT(tg_var, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_var(b->t, b->ids, TG_ALL_DIMS, 1, false));
    INERT(tg_std, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_std(b->t, b->ids, TG_ALL_DIMS, 1, false));
    INERT(tg_norm, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_norm(b->t, b->ids, 2, TG_ALL_DIMS, false));
    INERT(tg_any, DTYPE, "input 0 is a mask but is f32; it must be bool", tg_any(b->t, b->x, TG_ALL_DIMS, false));
    INERT(tg_all, DTYPE, "input 0 is a mask but is f32; it must be bool", tg_all(b->t, b->x, TG_ALL_DIMS, false));
    INERT(tg_logsumexp, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_logsumexp(b->t, b->ids, TG_ALL_DIMS, false));
    INERT(tg_softmax, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_softmax(b->t, b->ids, 0));
    INERT(tg_log_softmax, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_log_softmax(b->t, b->ids, 0));
    INERT(tg_layer_norm, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_layer_norm(b->t, b->ids, NULL, NULL, 1e-5));
    INERT(tg_group_norm, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_group_norm(b->t, b->ids, 1, NULL, NULL, 1e-5));
    INERT(tg_rms_norm, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_rms_norm(b->t, b->ids, NULL, 1e-5));
    INERT(tg_dropout, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_dropout(b->t, b->ids, 0.5));
    INERT(tg_gumbel, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_gumbel(b->t, b->ids));
    INERT(tg_gumbel_softmax, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_gumbel_softmax(b->t, b->ids, 1, false, 0));
    INERT(tg_rope, DTYPE, "input 0 is bool; it must be f32, f64, bf16 or f16", tg_rope(b->t, b->mask, 10000, 0));
    INERT(tg_mse, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_mse(b->t, b->ids, b->ids));
    INERT(tg_l1, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_l1(b->t, b->ids, b->ids, NULL));
    INERT(tg_cosine_similarity, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16",
          tg_cosine_similarity(b->t, b->ids, b->ids, 0, 1e-8));
    INERT(tg_swiglu, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_swiglu(b->t, b->ids, b->ids));
    INERT(tg_matmul, DTYPE, "input 0 is bool; it must be f32, f64, bf16 or f16", tg_matmul(b->t, b->mask, b->mask));
    INERT(tg_outer, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_outer(b->t, b->ids, b->ids));
    INERT(tg_dot, DTYPE, "input 0 is i64; it must be f32, f64, bf16 or f16", tg_dot(b->t, b->ids, b->ids));
    INERT(tg_einsum, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_einsum(b->t, "i,i->", b->ids, b->ids));
    INERT(tg_cross_entropy, DTYPE,
          "input 0 is i64; it must be f32, f64, bf16 or f16", tg_cross_entropy(b->t, b->ids, b->ids, NULL));
}

static void dtypes(misuse_world *b) {
    tg_tensor *d = tg_zeros(b->ctx, TG_F64, TG_SHAPE(2, 3)), *q = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 1, 2, 4));
    tg_tensor *qd = tg_zeros(b->ctx, TG_F64, TG_SHAPE(1, 1, 2, 4));
    tg_tensor *(*const fn[])(tg_tape *, tg_tensor *, tg_tensor *) = {
        tg_add, tg_sub, tg_mul, tg_div, tg_pow, tg_maximum, tg_minimum, tg_eq, tg_lt, tg_mse, tg_swiglu, tg_matmul,
        tg_atan2, tg_fmod, tg_remainder, tg_floor_divide, tg_trunc_divide, tg_logical_and};
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++)
        INERT(tg_add, DTYPE,
              "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)", fn[i](b->t, b->x, d));
    INERT(tg_neg, DTYPE, "input 0 is bool; it must have a float or an integer dtype", tg_neg(b->t, b->mask));
    INERT(tg_bitwise_and, DTYPE, "input 0 is f32; it must have an integer dtype or bool",
          tg_bitwise_and(b->t, b->x, b->x));
    INERT(tg_bitwise_not, DTYPE, "input 0 is f32; it must have an integer dtype or bool", tg_bitwise_not(b->t, b->x));
    INERT(tg_add, DTYPE, "input 0 is bool; it must have a float or an integer dtype", tg_add(b->t, b->mask, b->mask));
    INERT(tg_where, DTYPE, "input 0 is a mask but is f32; it must be bool", tg_where(b->t, b->x, b->x, b->x));
    INERT(tg_where, DTYPE,
          "input 1 is f32 and input 2 is f64; they must have one dtype (tg_cast converts)",
          tg_where(b->t, b->mask, b->x, d));
    INERT(tg_masked_fill, DTYPE, "input 1 is a mask but is f32; it must be bool", tg_masked_fill(b->t, b->x, b->x, 0));
    INERT(tg_masked_select, DTYPE,
          "input 1 is a mask but is f32; it must be bool", tg_masked_select(b->t, b->x, b->x, 1));
    INERT(tg_einsum, DTYPE,
          "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)",
          tg_einsum(b->t, "ij,ij->", b->x, d));
    INERT(tg_one_hot, DTYPE,
          "input 0 holds indices but is f32; it must be i64 or i32", tg_one_hot(b->t, TG_F32, b->v, 4));
    INERT(tg_one_hot, DTYPE, "tensors of dtype f4e2m1 cannot be made", tg_one_hot(b->t, TG_F4E2M1, b->ids, 4));
    INERT(tg_gather, DTYPE, "input 1 holds indices but is f32; it must be i64 or i32", tg_gather(b->t, b->x, 0, b->x));
    INERT(tg_scatter_add, DTYPE,
          "input 1 holds indices but is bool; it must be i64 or i32", tg_scatter_add(b->t, b->x, 0, b->mask, b->x));
    INERT(tg_scatter, DTYPE,
          "input 1 holds indices but is bool; it must be i64 or i32", tg_scatter(b->t, b->x, 0, b->mask, b->x));
    INERT(tg_scatter, DTYPE,
          "input 0 is f32 and input 2 is i64; they must have one dtype (tg_cast converts)",
          tg_scatter(b->t, b->v, 0, b->ids, b->ids));
    INERT(tg_nonzero, SHAPE, "count is 7; it must be at most 6", tg_nonzero(b->t, b->x, 7));
    INERT(tg_nonzero, ARGUMENT, "count is -1; it must be 0 or more", tg_nonzero(b->t, b->x, -1));
    tg_tensor *all = tg_zeros(b->ctx, TG_BOOL, TG_SHAPE(2, 3));
    tg_write_f64(all, (const double[]){1, 1, 1, 1, 1, 1}, 6);
    INERT(tg_nonzero, DATA, "selects 6 elements but count is 5", tg_nonzero(b->t, b->x, 5));
    tg_tensor *empty = tg_zeros(b->ctx, TG_F32, TG_SHAPE(0));
    INERT(tg_masked_scatter, DATA, "the mask selects 6 elements but src has 3; it must have as many or more",
          tg_masked_scatter(b->t, b->x, all, b->v));
    INERT(tg_masked_scatter, DATA, "the mask selects 6 elements but src has 0;",
          tg_masked_scatter(b->t, b->x, all, empty));
    tg_drop(empty);
    tg_drop(all);
    INERT(tg_masked_scatter, DTYPE, "mask is f32 and src is f32; mask must be bool, and src f32, the dtype of x",
          tg_masked_scatter(b->t, b->x, b->x, b->x));
    INERT(tg_select_scatter, SHAPE, "dim 0 and index 2 do not select a part of x with the dims of src",
          tg_select_scatter(b->t, b->x, b->v, 0, 2));
    INERT(tg_index, DTYPE, "input 1 holds indices but is f32; it must be i64 or i32",
          tg_index(b->t, b->x, TG_DIMS(0), &b->v, 1));
    INERT(tg_index, ARGUMENT, "1 index tensor for 2 dims; they must be as many",
          tg_index(b->t, b->x, TG_DIMS(0, 1), &b->ids, 1));
    const int64_t many = (int64_t)1 << 40;
    tg_tensor *huge[] = {tg_expand(b->t, b->ids, TG_SHAPE(1, many, 2)), tg_expand(b->t, b->ids, TG_SHAPE(many, 1, 2))};
    INERT(tg_index, SHAPE, "the indices broadcast to more elements than 64 bits can count",
          tg_index(b->t, b->x, TG_DIMS(0, 1), huge, 2));
    INERT(tg_index, ARGUMENT, "index: n is 1 and index is NULL; expected an array of 1 to 8 indices",
          tg_index(b->t, b->x, TG_DIMS(0), NULL, 1));
    INERT(tg_index, ARGUMENT, "index: n is 9 and index is an array; expected an array of 1 to 8 indices",
          tg_index(b->t, b->x, TG_DIMS(0), &b->ids, 9));
    INERT(tg_index_put, DTYPE, "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)",
          tg_index_put(b->t, b->x, TG_DIMS(0), d, &b->ids, 1, false));
    INERT(tg_index_select, DTYPE,
          "input 1 holds indices but is f32; it must be i64 or i32", tg_index_select(b->t, b->x, 0, b->v));
    INERT(tg_embedding, DTYPE,
          "input 1 holds indices but is f32; it must be i64 or i32", tg_embedding(b->t, b->x, b->v));
    INERT(tg_concat, DTYPE,
          "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)",
          tg_concat(b->t, (tg_tensor *[]){b->x, d}, 2, 0));
    INERT(tg_stack, DTYPE,
          "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)",
          tg_stack(b->t, (tg_tensor *[]){b->x, d}, 2, 0));
    INERT(tg_linear, DTYPE,
          "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)",
          tg_linear(b->t, b->x, d, NULL));
    INERT(tg_attention, DTYPE,
          "input 0 is f32 and input 1 is f64; they must have one dtype (tg_cast converts)",
          tg_attention(b->t, q, qd, q, NULL));
    INERT(tg_cross_entropy, DTYPE, "target is f32; it must be i64", tg_cross_entropy(b->t, b->x, b->v, NULL));
    INERT(tg_nll, DTYPE, "target is f32; it must be i64", tg_nll(b->t, b->x, b->v, NULL, NULL));
    INERT(tg_nll, DTYPE,
          "input 0 is f32 and input 2 is f64; they must have one dtype (tg_cast converts)",
          tg_nll(b->t, b->x, b->ids, d, NULL));
    INERT(tg_bce_with_logits, DTYPE,
          "input 0 is f32 and input 3 is f64; they must have one dtype (tg_cast converts)",
          tg_bce_with_logits(b->t, b->x, b->x, NULL, d, NULL));
    INERT(tg_linear_cross_entropy, DTYPE,
          "target is f32; it must be i64", tg_linear_cross_entropy(b->t, b->x, b->x, b->v, NULL));
    INERT(tg_cast, DTYPE, "no tensor has this dtype", tg_cast(b->t, b->x, TG_F4E2M1));
    INERT(tg_cast, DTYPE, "no tensor has this dtype", tg_cast(b->t, b->x, (tg_dtype)99));
    INERT(tg_full, DTYPE, "tensors of dtype f8e8m0 cannot be made", tg_full(b->t, TG_F8E8M0, TG_SHAPE(2), 1));
    INERT(tg_full, DTYPE, "tensors of dtype ? cannot be made", tg_full(b->t, (tg_dtype)-1, TG_SHAPE(2), 1));
    INERT(tg_arange, DTYPE, "dtype is bool; it must be a float or an integer dtype", tg_arange(b->t, TG_BOOL, 0, 2, 1));
    tg_drop(d);
    tg_drop(q);
    tg_drop(qd);
}

void misuse_ops(misuse_world *b) {
    unary(b);
    binary(b);
    in_place(b);
    reductions(b);
    shapes(b);
    indexing(b);
    losses(b);
    networks(b);
    makers(b);
    floats_only(b);
    dtypes(b);
}
