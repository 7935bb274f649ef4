/* Arguments that ops refuse, other than wrong tensors: shapes that do not match, dims and sizes out of range,
 * invalid numbers, option structs without a size, data out of range, and aliasing in place. */
#include "misuse/misuse.h"

#include <tapegrad/ops.h>

static void numbers(misuse_world *b) {
    tg_tape *t = b->t;
    INERT(tg_clamp, ARGUMENT, "lo is 1 and hi is 0; lo must be at most hi", tg_clamp(t, b->x, 1, 0));
    INERT(tg_clamp, ARGUMENT, "lo is nan and hi is 1; lo must be at most hi", tg_clamp(t, b->x, NAN, 1));
    INERT(tg_softplus, ARGUMENT, "beta is 0; it must be finite and not 0", tg_softplus(t, b->x, 0, 20));
    INERT(tg_softplus, ARGUMENT, "beta is inf; it must be finite and not 0", tg_softplus(t, b->x, INFINITY, 20));
    INERT(tg_softplus, ARGUMENT,
          "threshold is NaN; it must be a number (infinity is allowed)", tg_softplus(t, b->x, 1, NAN));
    INERT(tg_dropout, ARGUMENT, "p is 1; it must be at least 0 and less than 1", tg_dropout(t, b->x, 1));
    INERT(tg_dropout, ARGUMENT, "p is -0.1", tg_dropout(t, b->x, -0.1));
    INERT(tg_dropout, ARGUMENT, "p is nan", tg_dropout(t, b->x, NAN));
    INERT(tg_dropout_rows, ARGUMENT, "p is 1", tg_dropout_rows(t, b->x, 1, b->ids));
    INERT(tg_dropout_rows, ARGUMENT, "dropout_rows: input 1: the tensor is NULL", tg_dropout_rows(t, b->x, 0.5, NULL));
    INERT(tg_dropout_rows, DTYPE, "rows is f32; it must be i64", tg_dropout_rows(t, b->x, 0.5, b->x));
    INERT(tg_dropout_rows, SHAPE, "rows has 1 dim and 2 elements; it must have 1 dim",
          tg_dropout_rows(t, tg_transpose(t, b->x, 0, 1), 0.5, b->ids));
    INERT(tg_dropout_rows, STATE, "no key is open; call tg_key_open first, or use tg_dropout",
          tg_dropout_rows(t, b->x, 0.5, b->ids));
    INERT(tg_layer_norm, ARGUMENT, "eps is nan", tg_layer_norm(t, b->x, NULL, NULL, NAN));
    INERT(tg_layer_norm, ARGUMENT, "eps is -1", tg_layer_norm(t, b->x, NULL, NULL, -1));
    INERT(tg_layer_norm, ARGUMENT, "eps is inf", tg_layer_norm(t, b->x, NULL, NULL, INFINITY));
    INERT(tg_group_norm, ARGUMENT, "eps is nan", tg_group_norm(t, b->x, 1, NULL, NULL, NAN));
    INERT(tg_group_norm, ARGUMENT, "groups is 0; it must be 1 or more", tg_group_norm(t, b->x, 0, NULL, NULL, 1e-5));
    INERT(tg_group_norm, SHAPE,
          "3 channels cannot be divided evenly into 2 groups", tg_group_norm(t, b->x, 2, NULL, NULL, 1e-5));
    INERT(tg_group_norm, SHAPE,
          "x has too few dims; it must be [n, c, ..] with 2 or more", tg_group_norm(t, b->v, 1, NULL, NULL, 1e-5));
    INERT(tg_rms_norm, ARGUMENT, "eps is nan", tg_rms_norm(t, b->x, NULL, NAN));
    INERT(tg_rope, ARGUMENT, "base is 0", tg_rope(t, b->cube, 0, 0));
    INERT(tg_rope, ARGUMENT, "base is nan", tg_rope(t, b->cube, NAN, 0));
    INERT(tg_rope_at, ARGUMENT, "base is 0", tg_rope_at(t, b->cube, b->ids, 0));
    INERT(tg_gumbel_softmax, ARGUMENT, "tau is 0", tg_gumbel_softmax(t, b->x, 0, false, 0));
    INERT(tg_gumbel_softmax, ARGUMENT, "tau is nan", tg_gumbel_softmax(t, b->x, NAN, true, 0));
    INERT(tg_gumbel_softmax, ARGUMENT, "tau is inf", tg_gumbel_softmax(t, b->x, INFINITY, true, 0));
    INERT(tg_topk, ARGUMENT, "k is -1", tg_topk(t, b->x, -1, 0, true, NULL));
    INERT(tg_topk, SHAPE, "k is 4; it must be at most 3, the size of dim 1", tg_topk(t, b->x, 4, 1, true, NULL));
    INERT(tg_var, ARGUMENT, "correction is -1; it must be 0 or more", tg_var(t, b->x, TG_ALL_DIMS, -1, false));
    INERT(tg_var, SHAPE, "each group has 6 elements and correction is 6", tg_var(t, b->x, TG_ALL_DIMS, 6, false));
    INERT(tg_std, ARGUMENT, "correction is -1; it must be 0 or more", tg_std(t, b->x, TG_ALL_DIMS, -1, false));
    INERT(tg_std, SHAPE, "each group has 6 elements and correction is 6", tg_std(t, b->x, TG_ALL_DIMS, 6, false));
    INERT(tg_norm, ARGUMENT, "p is nan", tg_norm(t, b->x, NAN, TG_ALL_DIMS, false));
    INERT(tg_smooth_l1, ARGUMENT, "beta is -1", tg_smooth_l1(t, b->x, b->x, -1, NULL));
    INERT(tg_smooth_l1, ARGUMENT, "beta is inf", tg_smooth_l1(t, b->x, b->x, INFINITY, NULL));
    INERT(tg_huber, ARGUMENT, "delta is 0", tg_huber(t, b->x, b->x, 0, NULL));
    INERT(tg_huber, ARGUMENT, "delta is nan", tg_huber(t, b->x, b->x, NAN, NULL));
    INERT(tg_cosine_similarity, ARGUMENT, "eps is -1", tg_cosine_similarity(t, b->x, b->x, 0, -1));
    INERT(tg_cosine_similarity, ARGUMENT, "eps is nan", tg_cosine_similarity(t, b->x, b->x, 0, NAN));
    INERT(tg_l1, ARGUMENT, "reduction is 3", tg_l1(t, b->x, b->x, TG_LOSS(.reduction = TG_LOSS_BATCH_MEAN)));
    INERT(tg_kl_div, ARGUMENT, "reduction is 4", tg_kl_div(t, b->x, b->x, TG_LOSS(.reduction = (tg_loss_reduction)4)));
    INERT(tg_nll, ARGUMENT, "ignore_index is", tg_nll(t, b->x, b->ids, NULL, TG_LOSS(.ignore_index = INT64_MAX)));
    INERT(tg_nll, ARGUMENT, "option log_target is set", tg_nll(t, b->x, b->ids, NULL, TG_LOSS(.log_target = true)));
    INERT(tg_kl_div, ARGUMENT, "option ignore_index is set", tg_kl_div(t, b->x, b->x, TG_LOSS(.ignore_index = 1)));
#define UNUSED(symbol, ...)                                                                                            \
    do {                                                                                                               \
        INERT(symbol, ARGUMENT, "option ignore_index is set", symbol(t, __VA_ARGS__, TG_LOSS(.ignore_index = 1)));     \
        INERT(symbol, ARGUMENT, "option log_target is set", symbol(t, __VA_ARGS__, TG_LOSS(.log_target = true)));      \
    } while (0)
    UNUSED(tg_l1, b->x, b->x);
    UNUSED(tg_smooth_l1, b->x, b->x, 1);
    UNUSED(tg_huber, b->x, b->x, 1);
    UNUSED(tg_bce_with_logits, b->x, b->x, NULL, NULL);
    INERT(tg_full, ARGUMENT, "the value is 0.5", tg_full(t, TG_I32, TG_SHAPE(2), 0.5));
    INERT(tg_full, ARGUMENT, "the value is nan", tg_full(t, TG_I64, TG_SHAPE(2), NAN));
    INERT(tg_full, ARGUMENT, "from 0 to 255", tg_full(t, TG_U8, TG_SHAPE(2), 256));
    INERT(tg_repeat, ARGUMENT, "times is -1; it must be 0 or more", tg_repeat(t, b->x, 0, -1));
    INERT(tg_unfold, ARGUMENT, "size is 0 and step is 1; both must be 1 or more", tg_unfold(t, b->x, 0, 0, 1));
    INERT(tg_unfold, ARGUMENT, "size is 1 and step is -2; both must be 1 or more", tg_unfold(t, b->x, 0, 1, -2));
    INERT(tg_as_strided, SHAPE, "shape has 2 numbers and stride 1 number",
          tg_as_strided(t, b->x, TG_SHAPE(2, 2), TG_SHAPE(1), 0));
    INERT(tg_as_strided, SHAPE, "positions 1 to 7 are read, but x has only 6 elements",
          tg_as_strided(t, b->x, TG_SHAPE(3, 3), TG_SHAPE(2, 1), 1));
    INERT(tg_as_strided, SHAPE, "positions -1 to 2 are read",
          tg_as_strided(t, b->x, TG_SHAPE(4), TG_SHAPE(-1), 2));
    INERT(tg_as_strided, SHAPE, "overflow 64 bits",
          tg_as_strided(t, b->x, TG_SHAPE(3), TG_SHAPE(INT64_MAX), 0));
    INERT(tg_as_strided, SHAPE, "-2", tg_as_strided(t, b->x, TG_SHAPE(-2), TG_SHAPE(1), 0));
    INERT(tg_cummax, SHAPE, "dim is 2, but x has 2 dims", tg_cummax(t, b->x, 2, NULL));
    INERT(tg_cummin, SHAPE, "dim is -3, but x has 2 dims", tg_cummin(t, b->x, -3, NULL));
    INERT(tg_one_hot, ARGUMENT, "classes is -1; it must be 0 or more", tg_one_hot(t, TG_F32, b->ids, -1));
    INERT(tg_masked_select, ARGUMENT, "count is -1; it must be 0 or more", tg_masked_select(t, b->x, b->mask, -1));
    INERT(tg_pad, ARGUMENT, "the value is 0.5", tg_pad(t, b->ids, 0, 1, 1, 0.5));
    INERT(tg_masked_fill, ARGUMENT, "the value is 0.5", tg_masked_fill(t, b->ids, b->mask, 0.5));
    INERT(tg_arange, ARGUMENT,
          "start is 0, stop is 5 and step is 0; they must be finite and step must not be 0",
          tg_arange(t, TG_F32, 0, 5, 0));
    INERT(tg_arange, ARGUMENT, "start is nan, stop is 5 and step is 1", tg_arange(t, TG_F32, NAN, 5, 1));
    INERT(tg_arange, ARGUMENT, "start is 0, stop is inf and step is 1", tg_arange(t, TG_F32, 0, INFINITY, 1));
    INERT(tg_arange, SHAPE, "1e+300 elements; there must be at most 2^53", tg_arange(t, TG_F32, 0, 1e300, 1));
    INERT(tg_arange, ARGUMENT, "the last element is 5e+09", tg_arange(t, TG_I32, 0, 1e10, 5e9));
}

/* ---- Shapes and dims ---- */

static void equations(misuse_world *b) {
    tg_tape *t = b->t;
    INERT(tg_einsum, ARGUMENT, "equation is NULL", tg_einsum(t, NULL, b->x, b->x));
    INERT(tg_einsum, ARGUMENT, "one operand", tg_einsum(t, "", b->x, b->x));
    INERT(tg_einsum, ARGUMENT, "one operand", tg_einsum(t, "ij", b->x, b->x));
    INERT(tg_einsum, ARGUMENT, "character 2", tg_einsum(t, "ij->ij", b->x, b->x));
    INERT(tg_einsum, ARGUMENT, "character 5", tg_einsum(t, "ij,ij,ij->", b->x, b->x));
    INERT(tg_einsum, ARGUMENT, "character 5", tg_einsum(t, "ij,ij-", b->x, b->x));
    INERT(tg_einsum, ARGUMENT, "character 7", tg_einsum(t, "ij,ij->->", b->x, b->x));
    INERT(tg_einsum, ARGUMENT, "ellipsis", tg_einsum(t, "ij,...j->i", b->x, b->x));
    INERT(tg_einsum, ARGUMENT,
          "label i occurs twice in the result; it may occur once", tg_einsum(t, "ij,ij->ii", b->x, b->x));
    INERT(tg_einsum, ARGUMENT, "label k of the result occurs in neither operand", tg_einsum(t, "ij,ij->k", b->x, b->x));
    INERT(tg_einsum, SHAPE, "more than 8 dims", tg_einsum(t, "abcdefghi,a->", b->x, b->v));
    INERT(tg_einsum, SHAPE, "more than 8 dims", tg_einsum(t, "abcdefgh,ijklmnop", b->x, b->v));
    INERT(tg_einsum, SHAPE,
          "operand 0 has 2 dims but 1 label in the equation; the counts must be equal",
          tg_einsum(t, "i,ij->", b->x, b->x));
    INERT(tg_einsum, SHAPE,
          "label i has size 2 in one place and 3 in another; the sizes must be equal",
          tg_einsum(t, "ij,i->", b->x, b->v));
    INERT(tg_einsum, SHAPE,
          "label i has size 2 in one place and 3 in another; the sizes must be equal",
          tg_einsum(t, "ii,j->", b->x, b->v));
    INERT(tg_outer, SHAPE, "inputs have 2 and 1 dim; both must be vectors", tg_outer(t, b->x, b->v));
    INERT(tg_dot, SHAPE, "inputs have 1 and 2 dims; both must be vectors", tg_dot(t, b->v, b->x));
}

static void broadcasts(misuse_world *b) {
    tg_tape *t = b->t;
    tg_tensor *(*const fn[])(tg_tape *, tg_tensor *, tg_tensor *) = {
        tg_add, tg_sub, tg_mul, tg_div, tg_pow, tg_maximum, tg_minimum, tg_eq, tg_ne, tg_lt, tg_le, tg_gt, tg_ge};
    tg_tensor *odd = tg_zeros(b->ctx, TG_F32, TG_SHAPE(5));
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++) INERT(tg_add, SHAPE, "do not broadcast", fn[i](t, b->x, odd));
    INERT(tg_where, SHAPE, "do not broadcast", tg_where(t, b->mask, b->x, odd));
    INERT(tg_masked_select, SHAPE, "does not broadcast", tg_masked_select(t, odd, b->mask, 1));
    INERT(tg_masked_select, SHAPE,
          "count is 7; it must be at most 6, the number of elements of input 0", tg_masked_select(t, b->x, b->mask, 7));
    INERT(tg_masked_fill, SHAPE, "broadcast", tg_masked_fill(t, odd, b->mask, 0));
    INERT(tg_matmul, SHAPE, "a has 3 columns but b has 2 rows; they must be equal", tg_matmul(t, b->x, b->x));
    INERT(tg_matmul, SHAPE, "a has 2 dims and b has 1; both must have 2 or more", tg_matmul(t, b->x, b->v));
    INERT(tg_linear, SHAPE, "x has 5 columns but w has 3; they must be equal", tg_linear(t, odd, b->x, NULL));
    INERT(tg_linear, SHAPE, "w [out, in]", tg_linear(t, b->x, b->v, NULL));
    INERT(tg_linear, SHAPE, "b must be a vector of 2 elements, one for each row of w", tg_linear(t, b->x, b->x, b->v));
    INERT(tg_mse, SHAPE, "x and y have different shapes; they must be equal", tg_mse(t, b->x, b->v));
    INERT(tg_l1, SHAPE, "x and y have different shapes; they must be equal", tg_l1(t, b->x, b->v, NULL));
    INERT(tg_cosine_similarity, SHAPE,
          "x and y have different shapes; they must be equal", tg_cosine_similarity(t, b->x, b->v, 0, 1e-8));
    INERT(tg_bce_with_logits, SHAPE, "does not broadcast", tg_bce_with_logits(t, b->x, b->x, odd, NULL, NULL));
    INERT(tg_nll, SHAPE, "w must be a vector of 3 elements, one for each class", tg_nll(t, b->x, b->ids, odd, NULL));
    INERT(tg_nll, SHAPE,
          "target must have the shape of input 0 without its last dim", tg_nll(t, b->cube, b->ids, NULL, NULL));
    INERT(tg_swiglu, SHAPE, "gate and up have different shapes; they must be equal", tg_swiglu(t, b->x, b->v));
    INERT(tg_layer_norm, SHAPE,
          "w must be a vector of 3 elements, the size of the last dim of x", tg_layer_norm(t, b->x, odd, NULL, 1e-5));
    INERT(tg_layer_norm, SHAPE,
          "b must be a vector of 3 elements, the size of the last dim of x", tg_layer_norm(t, b->x, NULL, odd, 1e-5));
    INERT(tg_group_norm, SHAPE,
          "w must be a vector of 3 elements, one for each channel of x", tg_group_norm(t, b->x, 1, odd, NULL, 1e-5));
    INERT(tg_rms_norm, SHAPE,
          "w must be a vector of 3 elements, the size of the last dim of x", tg_rms_norm(t, b->x, odd, 1e-5));
    INERT(tg_rope, SHAPE, "even d", tg_rope(t, b->x, 10000, 0));
    INERT(tg_rope_at, SHAPE, "positions must be a vector of 3 elements", tg_rope_at(t, b->cube, b->ids, 10000));
    INERT(tg_gather, SHAPE, "index has 1 dim; it must have 2, as input 0 does", tg_gather(t, b->x, 0, b->ids));
    INERT(tg_scatter_add, SHAPE,
          "index has 1 dim; it must have 2, as input 0 does", tg_scatter_add(t, b->x, 0, b->ids, b->v));
    INERT(tg_scatter, SHAPE, "index has 1 dim; it must have 2, as input 0 does", tg_scatter(t, b->x, 0, b->ids, b->v));
    INERT(tg_embedding, SHAPE, "table has 1 dim; it must be [v, h]", tg_embedding(t, b->v, b->ids));
    INERT(tg_concat, SHAPE, "input 1 has 1 dim", tg_concat(t, (tg_tensor *[]){b->x, b->v}, 2, 0));
    INERT(tg_stack, SHAPE,
          "input 1 has size 5 in dim 0; it must be 3, as in input 0", tg_stack(t, (tg_tensor *[]){b->v, odd}, 2, 0));
    tg_drop(odd);
}

/* Every op that takes a dim or dims, with values out of range at both ends. */
#define ONE_DIM(d) (tg_dims){1, {d}}

static void dims(misuse_world *b) {
    tg_tape *t = b->t;
    for (int i = 0; i < 4; i++) {
        const int d = (const int[]){2, -3, INT32_MAX, INT32_MIN}[i];
        const int64_t halves[] = {1, 1};
        tg_tensor *out[2];
        const char *says = "it must be from -2 to 1";
        INERT(tg_sum, SHAPE, says, tg_sum(t, b->x, ONE_DIM(d), false));
        INERT(tg_mean, SHAPE, says, tg_mean(t, b->x, ONE_DIM(d), true));
        INERT(tg_var, SHAPE, says, tg_var(t, b->x, ONE_DIM(d), 1, false));
        INERT(tg_max, SHAPE, says, tg_max(t, b->x, ONE_DIM(d), false));
        INERT(tg_min, SHAPE, says, tg_min(t, b->x, ONE_DIM(d), false));
        INERT(tg_logsumexp, SHAPE, says, tg_logsumexp(t, b->x, ONE_DIM(d), false));
        INERT(tg_argmax, SHAPE, says, tg_argmax(t, b->x, d, false));
        INERT(tg_argmin, SHAPE, says, tg_argmin(t, b->x, d, false));
        INERT(tg_std, SHAPE, says, tg_std(t, b->x, ONE_DIM(d), 1, false));
        INERT(tg_prod, SHAPE, says, tg_prod(t, b->x, ONE_DIM(d), false));
        INERT(tg_norm, SHAPE, says, tg_norm(t, b->x, 2, ONE_DIM(d), false));
        INERT(tg_any, SHAPE, says, tg_any(t, b->mask, ONE_DIM(d), false));
        INERT(tg_all, SHAPE, says, tg_all(t, b->mask, ONE_DIM(d), false));
        INERT(tg_cosine_similarity, SHAPE, says, tg_cosine_similarity(t, b->x, b->x, d, 1e-8));
        INERT(tg_softmax, SHAPE, says, tg_softmax(t, b->x, d));
        INERT(tg_gumbel_softmax, SHAPE, says, tg_gumbel_softmax(t, b->x, 1, true, d));
        INERT(tg_cumsum, SHAPE, says, tg_cumsum(t, b->x, d));
        INERT(tg_cumprod, SHAPE, says, tg_cumprod(t, b->x, d));
        INERT(tg_sort, SHAPE, says, tg_sort(t, b->x, d, false, NULL));
        INERT(tg_topk, SHAPE, says, tg_topk(t, b->x, 1, d, true, NULL));
        INERT(tg_median, SHAPE, says, tg_median(t, b->x, d, false, NULL));
        INERT(tg_log_softmax, SHAPE, says, tg_log_softmax(t, b->x, d));
        INERT(tg_permute, SHAPE, says, tg_permute(t, b->x, (tg_dims){2, {0, d}}));
        INERT(tg_transpose, SHAPE, says, tg_transpose(t, b->x, d, 0));
        INERT(tg_transpose, SHAPE, says, tg_transpose(t, b->x, 0, d));
        INERT(tg_squeeze, SHAPE, says, tg_squeeze(t, b->x, d));
        INERT(tg_slice, SHAPE, says, tg_slice(t, b->x, d, 0, 1, 1));
        INERT(tg_select, SHAPE, says, tg_select(t, b->x, d, 0));
        INERT(tg_concat, SHAPE, says, tg_concat(t, &b->x, 1, d));
        FAILS(tg_split, SHAPE, says, tg_split(t, b->x, d, halves, 2, out));
        FAILS(tg_chunk, SHAPE, says, tg_chunk(t, b->x, d, 2, out));
        INERT(tg_flip, SHAPE, says, tg_flip(t, b->x, ONE_DIM(d)));
        INERT(tg_roll, SHAPE, says, tg_roll(t, b->x, 1, d));
        INERT(tg_repeat, SHAPE, says, tg_repeat(t, b->x, d, 2));
        INERT(tg_unfold, SHAPE, says, tg_unfold(t, b->x, d, 1, 1));
        INERT(tg_pad, SHAPE, says, tg_pad(t, b->x, d, 1, 1, 0));
        INERT(tg_index_select, SHAPE, says, tg_index_select(t, b->x, d, b->ids));
        if (d == 2) continue; /* the result has three dims */
        INERT(tg_unsqueeze, SHAPE, "it must be from -3 to 2", tg_unsqueeze(t, b->x, d == -3 ? -4 : d));
        INERT(tg_stack, SHAPE, "it must be from -3 to 2", tg_stack(t, &b->x, 1, d == -3 ? -4 : d));
    }
    INERT(tg_sum, SHAPE, "listed twice", tg_sum(t, b->x, TG_DIMS(0, -2), false));
    INERT(tg_sum, SHAPE, "more than 8 dims", tg_sum(t, b->x, TG_DIMS(0, 0, 0, 0, 0, 0, 0, 0, 0), false));
    INERT(tg_sum, SHAPE, "more than 8 dims", tg_sum(t, b->x, (tg_dims){.n = INT32_MAX}, false));
    INERT(tg_permute, SHAPE, "order lists 1 dim; it must list all 2 dims of x", tg_permute(t, b->x, TG_DIMS(0)));
    INERT(tg_permute, SHAPE, "twice", tg_permute(t, b->x, TG_DIMS(0, 0)));
    INERT(tg_permute, SHAPE,
          "order lists 9 dims; it must list all 2 dims of x", tg_permute(t, b->x, TG_DIMS(0, 1, 0, 1, 0, 1, 0, 1, 0)));
    INERT(tg_gather, SHAPE, "out of range", tg_gather(t, b->v, 1, b->ids));
    INERT(tg_scatter_add, SHAPE, "out of range", tg_scatter_add(t, b->v, -2, b->ids, b->v));
    INERT(tg_scatter, SHAPE, "out of range", tg_scatter(t, b->v, -2, b->ids, b->v));
    INERT(tg_scatter_prod, SHAPE, "index and src have different shapes",
          tg_scatter_prod(t, b->v, 0, b->ids, b->x, true));
    INERT(tg_scatter_mean, DTYPE, "x is i64; it must have a float dtype",
          tg_scatter_mean(t, b->ids, 0, b->ids, b->ids, true));
    INERT(tg_scatter_mean, DTYPE, "x is f32 and src is i64; they must have one dtype",
          tg_scatter_mean(t, b->v, 0, b->ids, b->ids, true));
    INERT(tg_scatter_max, DTYPE, "x is i64 and src is f32; they must have one dtype",
          tg_scatter_max(t, b->ids, 0, b->ids, b->v, true));
}

static void layouts(misuse_world *b) {
    tg_tape *t = b->t;
    tg_tensor *full8 = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 1, 1, 1, 1, 1, 1, 1));
    const int64_t swapped[] = {1, 2};
    static float data[6];
    tg_tensor *columns = tg_wrap(b->ctx, TG_F32, TG_SHAPE(2, 3), swapped, data, NULL, NULL);
    const tg_shape nine = TG_SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 6);
    INERT(tg_reshape, SHAPE,
          "the new shape has 4 elements but the tensor has 6; they must be equal", tg_reshape(t, b->x, TG_SHAPE(4)));
    INERT(tg_reshape, SHAPE,
          "dim 1 is -1; it must be 0 or more, or -1 in at most one dim",
          tg_reshape(t, b->x, TG_SHAPE(-1, -1)));
    INERT(tg_reshape, SHAPE,
          "dim 0 is -2; it must be 0 or more, or -1 in at most one dim",
          tg_reshape(t, b->x, TG_SHAPE(-2, -3)));
    INERT(tg_reshape, SHAPE, "the new shape has 9 dims; it must have from 0 to 8", tg_reshape(t, b->x, nine));
    INERT(tg_reshape, SHAPE,
          "more elements than 64 bits can count", tg_reshape(t, b->x, TG_SHAPE(INT64_MAX, INT64_MAX)));
    INERT(tg_reshape, SHAPE,
          "the new shape has 0 elements without its dim -1 and the tensor has 6", tg_reshape(t, b->x, TG_SHAPE(0, -1)));
    INERT(tg_view, SHAPE, "use tg_reshape", tg_view(t, columns, TG_SHAPE(6)));
    INERT(tg_view, SHAPE, "the new shape has 9 dims; it must have from 0 to 8", tg_view(t, b->x, nine));
    INERT(tg_view, SHAPE,
          "the new shape has 7 elements but the tensor has 6; they must be equal", tg_view(t, b->x, TG_SHAPE(7)));
    INERT(tg_expand, SHAPE, "does not expand", tg_expand(t, b->x, TG_SHAPE(2, 4)));
    INERT(tg_expand, SHAPE, "the new shape has 1 dim; it must have from 2 to 8", tg_expand(t, b->x, TG_SHAPE(3)));
    INERT(tg_expand, SHAPE, "the new shape has 9 dims; it must have from 2 to 8", tg_expand(t, b->x, nine));
    INERT(tg_expand, SHAPE, "dim 0 is -5; it must be 0 or more", tg_expand(t, b->x, TG_SHAPE(-5, 2, 3)));
    INERT(tg_expand, SHAPE, "or -1 in a dim that x has", tg_expand(t, b->x, TG_SHAPE(-1, 2, 3)));
    INERT(tg_expand, SHAPE, "overflows", tg_expand(t, b->x, TG_SHAPE(INT64_MAX, 2, 3)));
    INERT(tg_squeeze, SHAPE, "dim 0 has size 2; it must be 1", tg_squeeze(t, b->x, 0));
    INERT(tg_unsqueeze, SHAPE,
          "x already has 8 dims, the most that are allowed; unsqueeze adds one", tg_unsqueeze(t, full8, 0));
    INERT(tg_stack, SHAPE,
          "the inputs already have 8 dims, the most that are allowed; stack adds one", tg_stack(t, &full8, 1, 0));
    INERT(tg_slice, ARGUMENT, "step is 0; it must be 1 or more", tg_slice(t, b->x, 0, 0, 1, 0));
    INERT(tg_slice, ARGUMENT, "step is -1; it must be 1 or more", tg_slice(t, b->x, 0, 1, 0, -1));
    INERT(tg_slice, SHAPE, "start 0 and stop 3 do not fit dim 0 of size 2", tg_slice(t, b->x, 0, 0, 3, 1));
    INERT(tg_slice, SHAPE, "of size 2", tg_slice(t, b->x, 0, INT64_MIN, 1, 1));
    INERT(tg_slice, SHAPE, "of size 2", tg_slice(t, b->x, 0, 0, INT64_MIN, 1));
    INERT(tg_slice, SHAPE, "of size 2", tg_slice(t, b->x, 0, 2, 1, 1));
    INERT(tg_select, SHAPE, "index 2 is out of range for dim 0 of size 2", tg_select(t, b->x, 0, 2));
    INERT(tg_select, SHAPE, "of size 2", tg_select(t, b->x, 0, -3));
    INERT(tg_select, SHAPE, "of size 2", tg_select(t, b->x, 0, INT64_MIN));
    INERT(tg_pad, ARGUMENT,
          "before is -1 and after is 0; both must be 0 or more (tg_slice removes elements)",
          tg_pad(t, b->x, 0, -1, 0, 0));
    INERT(tg_pad, SHAPE, "overflows", tg_pad(t, b->x, 0, INT64_MAX, 1, 0));
    INERT(tg_pad, SHAPE, "overflows", tg_pad(t, b->x, 0, INT64_MAX / 2, 0, 0));
    INERT(tg_flip, SHAPE, "listed twice", tg_flip(t, b->x, TG_DIMS(0, -2)));
    INERT(tg_repeat, SHAPE, "overflows", tg_repeat(t, b->x, 0, INT64_MAX));
    INERT(tg_repeat, SHAPE, "overflows", tg_repeat(t, b->x, 1, INT64_MAX / 3));
    INERT(tg_repeat, SHAPE, "x already has 8 dims, the most that are allowed", tg_repeat(t, full8, 0, 2));
    INERT(tg_unfold, SHAPE,
          "x already has 8 dims, the most that are allowed; unfold adds one", tg_unfold(t, full8, 0, 1, 1));
    INERT(tg_unfold, SHAPE,
          "size is 9223372036854775807, but dim 1 has only 3 elements", tg_unfold(t, b->x, 1, INT64_MAX, 1));
    INERT(tg_tril, SHAPE,
          "x has 1 dim; it must be a matrix or a batch of matrices (2 or more dims)", tg_tril(t, b->v, 0));
    INERT(tg_triu, SHAPE,
          "x has 1 dim; it must be a matrix or a batch of matrices (2 or more dims)", tg_triu(t, b->v, 0));
    INERT(tg_diag, SHAPE, "x has 3 dims; it must be a vector or a matrix", tg_diag(t, b->cube, 0));
    INERT(tg_diag, SHAPE, "overflows", tg_diag(t, b->v, INT64_MIN));
    INERT(tg_diag, SHAPE, "overflows", tg_diag(t, b->v, INT64_MAX));
    INERT(tg_diag, SHAPE, "overflows", tg_diag(t, b->v, INT64_MAX / 2));
    INERT(tg_one_hot, SHAPE, "overflows", tg_one_hot(t, TG_F32, b->ids, INT64_MAX));
    INERT(tg_full, SHAPE, "overflows", tg_full(t, TG_F32, TG_SHAPE(INT64_MAX, 4), 0));
    INERT(tg_full, SHAPE, "expected 0 or more", tg_full(t, TG_F32, TG_SHAPE(-1), 0));
    INERT(tg_full, SHAPE, "expected 0 to 8", tg_full(t, TG_F32, nine, 0));
    INERT(tg_full, MEMORY, "bytes were asked for", tg_full(t, TG_F32, TG_SHAPE((int64_t)1 << 50), 0));
    tg_drop(full8);
    tg_drop(columns);
}

/* ---- Lists ---- */

static bool splits_to_nothing(misuse_world *b, const int64_t *sizes, int n) {
    tg_tensor *out[2] = {b->x, b->x};
    tg_status s = tg_split(b->t, b->x, 1, sizes, n, out);
    return s != TG_OK && (n < 1 || misuse_inert(out[0])) && (n < 2 || misuse_inert(out[1]));
}

static void lists(misuse_world *b) {
    const int64_t good[] = {1, 2}, few[] = {1, 1}, negative[] = {4, -1}, huge[] = {INT64_MAX, INT64_MAX};
    INERT(tg_concat, ARGUMENT, "the array of inputs is NULL", tg_concat(b->t, NULL, 2, 0));
    INERT(tg_concat, ARGUMENT, "0 inputs, expected 1 to 65535", tg_concat(b->t, NULL, 0, 0));
    INERT(tg_concat, ARGUMENT, "-1 inputs", tg_concat(b->t, &b->x, -1, 0));
    INERT(tg_concat, ARGUMENT, "65536 inputs, expected 1 to 65535", tg_concat(b->t, &b->x, 65536, 0));
    INERT(tg_stack, ARGUMENT, "the array of inputs is NULL", tg_stack(b->t, NULL, 2, 0));
    INERT(tg_stack, ARGUMENT, "0 inputs", tg_stack(b->t, &b->x, 0, 0));
    FAILS(tg_split, ARGUMENT, "the array of outputs is NULL", tg_split(b->t, b->x, 1, good, 2, NULL));
    GIVES(tg_split, ARGUMENT,
          "sizes is NULL or n is less than 1; give the size of each part", splits_to_nothing(b, NULL, 2));
    GIVES(tg_split, ARGUMENT,
          "sizes is NULL or n is less than 1; give the size of each part", splits_to_nothing(b, good, 0));
    GIVES(tg_split, ARGUMENT, "room for -1 outputs", splits_to_nothing(b, good, -1));
    GIVES(tg_split, SHAPE, "add up to 3", splits_to_nothing(b, few, 2));
    GIVES(tg_split, SHAPE, "add up to 3", splits_to_nothing(b, negative, 2));
    GIVES(tg_split, SHAPE, "add up to 3", splits_to_nothing(b, huge, 2));
    FAILS(tg_chunk, ARGUMENT, "the array of outputs is NULL", tg_chunk(b->t, b->x, 1, 2, NULL));
    FAILS(tg_chunk, ARGUMENT, "n is 0; it must be 1 or more", tg_chunk(b->t, b->x, 1, 0, (tg_tensor *[2]){0}));
    FAILS(tg_chunk, ARGUMENT, "n is -1; it must be 1 or more", tg_chunk(b->t, b->x, 1, -1, (tg_tensor *[2]){0}));
    FAILS(tg_chunk, ARGUMENT, "room for 70000 outputs", tg_chunk(b->t, b->x, 1, 70000, (tg_tensor *[2]){0}));
    FAILS(tg_split, ARGUMENT, "room for 70000 outputs", tg_split(b->t, b->x, 1, good, 70000, (tg_tensor *[2]){0}));
}

/* ---- Options ---- */

static void rope(misuse_world *b) {
    tg_rope_opts zero = {0}, later = {.size = sizeof later + 8};
    INERT(tg_rope_with, ARGUMENT, "size is 0", tg_rope_with(b->t, b->cube, &zero));
    INERT(tg_rope_with, ARGUMENT, "this library knows", tg_rope_with(b->t, b->cube, &later));
    INERT(tg_rope_with, ARGUMENT, "base is -1", tg_rope_with(b->t, b->cube, TG_ROPE(.base = -1)));
    INERT(tg_rope_with, ARGUMENT, "gain is nan", tg_rope_with(b->t, b->cube, TG_ROPE(.gain = NAN)));
    INERT(tg_rope_with, ARGUMENT, "kind is 4", tg_rope_with(b->t, b->cube, TG_ROPE(.kind = (tg_rope_kind)4)));
    INERT(tg_rope_with, ARGUMENT, "low is 2, high 4 and original 0, but only TG_ROPE_LLAMA3 and TG_ROPE_YARN use them",
          tg_rope_with(b->t, b->cube, TG_ROPE(.low = 2)));
    INERT(tg_rope_with, ARGUMENT, "original 8, but only",
          tg_rope_with(b->t, b->cube, TG_ROPE(.kind = TG_ROPE_LINEAR, .factor = 2, .original = 8)));
    INERT(tg_rope_with, ARGUMENT, "original is 0; this kind needs 1 or more",
          tg_rope_with(b->t, b->cube, TG_ROPE(.kind = TG_ROPE_LLAMA3)));
    INERT(tg_rope_with, ARGUMENT, "low is 5 and high 4",
          tg_rope_with(b->t, b->cube, TG_ROPE(.kind = TG_ROPE_YARN, .low = 5, .original = 8)));
    INERT(tg_rope_with, ARGUMENT, "base is 1, with which all pairs rotate alike; TG_ROPE_YARN needs another base",
          tg_rope_with(b->t, b->cube, TG_ROPE(.kind = TG_ROPE_YARN, .base = 1, .original = 8)));
    INERT(tg_rope_with, SHAPE, "dims is 3; it must be an even number from 0 to 4",
          tg_rope_with(b->t, b->cube, TG_ROPE(.dims = 3)));
    INERT(tg_rope_with, SHAPE, "positions must be a vector of 3 elements",
          tg_rope_with(b->t, b->cube, TG_ROPE(.positions = b->ids)));
    DEAD_TENSOR(tg_rope_with, tg_rope_with(b->t, b->cube, TG_ROPE(.positions = x)));
}

static void attention(misuse_world *b) {
    tg_tensor *q = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 3, 2, 4)), *k = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 2, 2, 4));
    tg_tensor *other = tg_zeros(b->ctx, TG_F32, TG_SHAPE(1, 3, 2, 6)),
              *two = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2, 3, 2, 4));
    tg_attention_opts zero = {0}, later = {.size = sizeof later + 8};
    INERT(tg_attention, ARGUMENT, "size is 0", tg_attention(b->t, q, q, q, &zero));
    INERT(tg_attention, ARGUMENT, "this library knows", tg_attention(b->t, q, q, q, &later));
    INERT(tg_attention, ARGUMENT, "scale is nan", tg_attention(b->t, q, q, q, TG_ATTENTION(.scale = NAN)));
    INERT(tg_attention, ARGUMENT, "scale is -2", tg_attention(b->t, q, q, q, TG_ATTENTION(.scale = -2)));
    INERT(tg_attention, ARGUMENT, "dropout is 1", tg_attention(b->t, q, q, q, TG_ATTENTION(.dropout = 1)));
    INERT(tg_attention, ARGUMENT, "dropout is nan", tg_attention(b->t, q, q, q, TG_ATTENTION(.dropout = NAN)));
    INERT(tg_attention, SHAPE, "4 dims", tg_attention(b->t, b->cube, b->cube, b->cube, NULL));
    INERT(tg_attention, SHAPE,
          "q has 3 heads and k has 2; the heads of q must be a multiple of those of k",
          tg_attention(b->t, q, k, k, NULL));
    INERT(tg_attention, SHAPE,
          "k and v must have the same number of heads (dim 1) and the same length (dim 2)",
          tg_attention(b->t, q, q, k, NULL));
    INERT(tg_attention, SHAPE,
          "heads of q have size 4 but heads of k have 6; they must be equal",
          tg_attention(b->t, q, other, other, NULL));
    INERT(tg_attention, SHAPE,
          "q, k and v must have the same batch size (dim 0)", tg_attention(b->t, q, two, two, NULL));
    INERT(tg_attention, ARGUMENT, "left is -2", tg_attention(b->t, q, q, q, TG_ATTENTION(.left = -2)));
    INERT(tg_attention, ARGUMENT, "right is -9", tg_attention(b->t, q, q, q, TG_ATTENTION(.right = -9)));
    INERT(tg_attention, DTYPE,
          "mask is i64; it must be bool, f32 or q's dtype", tg_attention(b->t, q, q, q, TG_ATTENTION(.mask = b->ids)));
    INERT(tg_attention, SHAPE,
          "mask does not broadcast to [1, 3, 2, 2], the shape of the scores",
          tg_attention(b->t, q, q, q, TG_ATTENTION(.mask = other)));
    INERT(tg_attention, DTYPE,
          "sink is i64; it must be f32 or q's dtype", tg_attention(b->t, q, q, q, TG_ATTENTION(.sink = b->ids)));
    INERT(tg_attention, SHAPE,
          "sink must be a vector of 3 elements, one for each head of q",
          tg_attention(b->t, q, q, q, TG_ATTENTION(.sink = q)));
    INERT(tg_attention, DTYPE, "lengths is f32", tg_attention(b->t, q, q, q, TG_ATTENTION(.lengths = q)));
    INERT(tg_attention, ARGUMENT,
          "only one of starts_q and starts_k is given; packing needs both",
          tg_attention(b->t, q, q, q, TG_ATTENTION(.starts_q = b->ids)));
    INERT(tg_attention, ARGUMENT, "lengths and starts are both given; use lengths for padding or starts for packing",
          tg_attention(b->t, q, q, q, TG_ATTENTION(.lengths = b->ids, .starts_q = b->ids, .starts_k = b->ids)));
    tg_drop(q);
    tg_drop(k);
    tg_drop(other);
    tg_drop(two);
}

static void losses(misuse_world *b) {
    tg_cross_entropy_opts zero = {0}, later = {.size = sizeof later + 8};
    tg_tape *t = b->t;
    tg_tensor *scalar = tg_zeros(b->ctx, TG_F32, TG_SHAPE());
    INERT(tg_cross_entropy, ARGUMENT, "size is 0", tg_cross_entropy(t, b->x, b->ids, &zero));
    INERT(tg_cross_entropy, ARGUMENT, "this library knows", tg_cross_entropy(t, b->x, b->ids, &later));
    INERT(tg_cross_entropy, ARGUMENT, "smoothing is 2",
          tg_cross_entropy(t, b->x, b->ids, TG_CROSS_ENTROPY(.label_smoothing = 2)));
    INERT(tg_cross_entropy, ARGUMENT, "smoothing is nan",
          tg_cross_entropy(t, b->x, b->ids, TG_CROSS_ENTROPY(.label_smoothing = NAN)));
    INERT(tg_cross_entropy, ARGUMENT, "smoothing_kind is 3",
          tg_cross_entropy(t, b->x, b->ids, TG_CROSS_ENTROPY(.smoothing_kind = 3)));
    INERT(tg_cross_entropy, ARGUMENT, "reduction is 9",
          tg_cross_entropy(t, b->x, b->ids, TG_CROSS_ENTROPY(.reduction = 9)));
    INERT(tg_cross_entropy, SHAPE, "weight must be a vector of 3 elements, one for each class of input 0",
          tg_cross_entropy(t, b->x, b->ids, TG_CROSS_ENTROPY(.weight = b->x)));
    INERT(tg_cross_entropy, HANDLE, "dropped",
          tg_cross_entropy(t, b->x, b->ids, TG_CROSS_ENTROPY(.weight = b->dropped)));
    INERT(tg_linear_cross_entropy, UNSUPPORTED, "weights of classes are given, which this op does not support",
          tg_linear_cross_entropy(t, b->x, b->x, b->ids, TG_CROSS_ENTROPY(.weight = b->v)));
    INERT(tg_cross_entropy, SHAPE,
          "target must have the shape of input 0 without its last dim", tg_cross_entropy(t, b->cube, b->ids, NULL));
    INERT(tg_cross_entropy, SHAPE, "1 or more dims", tg_cross_entropy(t, scalar, b->ids, NULL));
    INERT(tg_linear_cross_entropy, ARGUMENT, "size is 0", tg_linear_cross_entropy(t, b->x, b->x, b->ids, &zero));
    INERT(tg_linear_cross_entropy, ARGUMENT, "smoothing is -1",
          tg_linear_cross_entropy(t, b->x, b->x, b->ids, TG_CROSS_ENTROPY(.label_smoothing = -1)));
    INERT(tg_linear_cross_entropy, SHAPE,
          "x must be [.., h] and w [v, h] with the same h", tg_linear_cross_entropy(t, b->x, b->cube, b->ids, NULL));
    tg_drop(scalar);
}

/* ---- Data, and aliasing in place ---- */

static void data(misuse_world *b) {
    const int64_t bad[] = {0, 9}, minus[] = {-1, 0};
    tg_tape *t = b->t;
    tg_tensor *ids = tg_from_host(b->ctx, TG_I64, TG_SHAPE(2), bad),
              *low = tg_from_host(b->ctx, TG_I64, TG_SHAPE(2), minus);
    tg_tensor *far = tg_from_host(b->ctx, TG_I64, TG_SHAPE(2), (const int64_t[]){INT64_MIN, INT64_MAX});
    tg_tensor *no_rows = tg_full(t, TG_F32, TG_SHAPE(0, 3), 0);
    INERT(tg_embedding, DATA, "index 9 is out of range; it must be from 0 to 1", tg_embedding(t, b->x, ids));
    INERT(tg_embedding, DATA, "index -1 is out of range; it must be from 0 to 1", tg_embedding(t, b->w, low));
    INERT(tg_embedding, DATA,
          "index -9223372036854775808 is out of range; it must be from 0 to 1", tg_embedding(t, b->x, far));
    INERT(tg_embedding, DATA, "index 0 is out of range; no index is valid, because the dim that it is for has size 0",
          tg_embedding(t, no_rows, ids));
    INERT(tg_index_select, DATA, "index 9 is out of range; it must be from 0 to 1", tg_index_select(t, b->x, 0, ids));
    INERT(tg_index, DATA,
          "index 9 is out of range for dim 1 of x; it must be from -3 to 2",
          tg_index(t, b->x, TG_DIMS(0, 1), (tg_tensor *[]){low, ids}, 2));
    INERT(tg_index, DATA, "index 0 is out of range; no index is valid, because dim 0 of x has size 0",
          tg_index(t, no_rows, TG_DIMS(0), &ids, 1));
    INERT(tg_index_put, DATA,
          "index 9 is out of range for dim 0 of x; it must be from -2 to 1",
          tg_index_put(t, b->x, TG_DIMS(0), b->x, &ids, 1, true));
    INERT(tg_gather, DATA, "index 9 is out of range; it must be from 0 to 2", tg_gather(t, b->v, 0, ids));
    INERT(tg_gather, DATA,
          "index -9223372036854775808 is out of range; it must be from 0 to 2", tg_gather(t, b->v, 0, far));
    tg_tensor *src = tg_zeros(b->ctx, TG_F32, TG_SHAPE(2));
    INERT(tg_scatter_add, DATA,
          "index 9 is out of range; it must be from 0 to 2", tg_scatter_add(t, b->v, 0, ids, src));
    INERT(tg_scatter_add, SHAPE,
          "index and src have different shapes; they must be equal", tg_scatter_add(t, b->v, 0, ids, b->v));
    INERT(tg_scatter, DATA, "index 9 is out of range; it must be from 0 to 2", tg_scatter(t, b->v, 0, ids, src));
    INERT(tg_scatter, SHAPE,
          "index and src have different shapes; they must be equal", tg_scatter(t, b->v, 0, ids, b->v));
    INERT(tg_one_hot, DATA, "index 9 is out of range; it must be from 0 to 3", tg_one_hot(t, TG_F32, ids, 4));
    INERT(tg_one_hot, DATA, "index -1 is out of range; it must be from 0 to 3", tg_one_hot(t, TG_F32, low, 4));
    INERT(tg_masked_select, DATA,
          "the mask selects 2 elements but count is 5; they must be equal", tg_masked_select(t, b->x, b->mask, 5));
    INERT(tg_cross_entropy, DATA,
          "target of row 1 is 9; it must be from 0 to 2, or ignore_index", tg_cross_entropy(t, b->x, ids, NULL));
    INERT(tg_cross_entropy, DATA,
          "target of row 0 is -1; it must be from 0 to 2, or ignore_index", tg_cross_entropy(t, b->x, low, NULL));
    INERT(tg_linear_cross_entropy, DATA,
          "target of row 1 is 9; it must be from 0 to 1, or ignore_index",
          tg_linear_cross_entropy(t, b->x, b->x, ids, NULL));
    tg_drop(ids);
    tg_drop(low);
    tg_drop(far);
    tg_drop(src);
}

static void in_place(misuse_world *b) {
    tg_tape *t = b->t;
    tg_tensor *view = tg_transpose(t, b->x, 0, 1), *y = tg_neg(t, b->x), *part = tg_select(t, y, 0, 0);
    tg_tensor *shared = tg_neg(t, b->x), *kept = tg_keep(shared), *z = tg_neg(t, b->x);
    tg_tensor *(*const fn[])(tg_tape *, tg_tensor *, tg_tensor *) = {tg_add_, tg_sub_, tg_mul_, tg_copy_};
    for (size_t i = 0; i < sizeof fn / sizeof *fn; i++) {
        INERT(tg_add_, STATE, "input 0 is a view", fn[i](t, view, view));
        INERT(tg_add_, STATE, "is a leaf that needs a gradient", fn[i](t, b->w, b->x));
        INERT(tg_add_, STATE, "other live handles share", fn[i](t, y, b->x));
        INERT(tg_add_, STATE, "other live handles share", fn[i](t, shared, b->x));
        INERT(tg_add_, STATE, "shares the overwritten bytes", fn[i](t, z, z));
        INERT(tg_add_, SHAPE, "input 1 does not broadcast to the shape of input 0", fn[i](t, z, b->cube));
        INERT(tg_add_, DTYPE,
              "input 0 is f32 and input 1 is i64; they must have one dtype (tg_cast converts)", fn[i](t, z, b->ids));
        INERT(tg_add_, STATE, "belongs to the context, and the op would overwrite it", fn[i](t, b->x, b->w));
    }
    INERT(tg_relu_, STATE, "input 0 is a view", tg_relu_(t, part));
    INERT(tg_relu_, STATE, "is a leaf that needs a gradient", tg_relu_(t, b->w));
    INERT(tg_relu_, STATE, "other live handles share", tg_relu_(t, y));
    tg_drop(kept);
}

void misuse_arguments(misuse_world *b) {
    numbers(b);
    equations(b);
    broadcasts(b);
    dims(b);
    layouts(b);
    lists(b);
    rope(b);
    attention(b);
    losses(b);
    data(b);
    in_place(b);
}
