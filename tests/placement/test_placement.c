/* The rule of placements, op by op: the placements that every op gives for placed inputs, and those that it refuses.
 * The grid of the context is set by hand, so no ranks run. docs/placements.md has the rule. */
#include <stdio.h>

#include <tapegrad/tapegrad.h>

#include "base/text.h"
#include "../check_main.h"
#include "placement/placing.h"
#include "parallel/parallel.h"
#include "placement/placement_losses.h"
#include "placement/placement_rows.h"
#include "placement/placed_calls.h"

static tg_ctx *ctx;
static tg_tape *t;
static const tg_parallel groups; /* only the context knows its ranks */
#define GROUPS (&groups)

static void begin_sizes(int tp, int dp, int cp) {
    const int sizes[PLACING_AXES] = {tp, dp, cp};
    ctx = tg_ctx_new(TG_CONFIG(.seed = 5, .threads = 1, .dtype = TG_F64));
    t = tg_tape_new(ctx);
    tg_grid *g = tg_grid_open(ctx);
    g->owner = GROUPS;
    for (int i = 0; i < PLACING_AXES; i++) {
        g->size[placing_axis[i]] = sizes[i];
        if (sizes[i] > 1) g->axes |= 1u << placing_axis[i];
    }
    ctx->run.has_peers = g->axes != 0;
}

static void begin(void) { begin_sizes(2, 2, 2); }

static void end(void) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_grid_clear(ctx);
    tg_ctx_free(ctx);
}

/* ---- Ops by name ---- */

static tg_tensor *split_of(tg_tensor *x, int dim, int n) {
    tg_tensor *out[8];
    int64_t size[8];
    for (int i = 0; i < n; i++) size[i] = tg_dim(x, dim) / n;
    tg_split(t, x, dim, size, n, out);
    return out[n - 1];
}

static tg_tensor *uneven_split_of(tg_tensor *x) {
    tg_tensor *out[2];
    tg_split(t, x, 0, (const int64_t[]){1, tg_dim(x, 0) - 1}, 2, out);
    return out[0];
}

/* Returns a result that a row can examine, since other outputs belong to the op. */
#define CALLS(X)                                                                                                       \
    X(tanh, tg_tanh(t, x[0]))                                                                                          \
    X(neg, tg_neg(t, x[0]))                                                                                            \
    X(scale, tg_scale(t, x[0], 3))                                                                                     \
    X(add_scalar, tg_add_scalar(t, x[0], 1))                                                                           \
    X(clamp, tg_clamp(t, x[0], -1, 1))                                                                                 \
    X(to_f32, tg_cast(t, x[0], TG_F32))                                                                                \
    X(to_i64, tg_cast(t, x[0], TG_I64))                                                                                \
    X(detach, tg_detach(t, x[0]))                                                                                      \
    X(contiguous, tg_contiguous(t, tg_transpose(t, x[0], 0, 1)))                                                       \
    X(add, tg_add(t, x[0], x[1]))                                                                                      \
    X(sub, tg_sub(t, x[0], x[1]))                                                                                      \
    X(mul, tg_mul(t, x[0], x[1]))                                                                                      \
    X(div, tg_div(t, x[0], x[1]))                                                                                      \
    X(maximum, tg_maximum(t, x[0], x[1]))                                                                              \
    X(lt, tg_lt(t, x[0], x[1]))                                                                                        \
    X(where, tg_where(t, x[0], x[1], x[2]))                                                                            \
    X(fill_0, tg_masked_fill(t, x[0], x[1], 0))                                                                        \
    X(fill_9, tg_masked_fill(t, x[0], x[1], 9))                                                                        \
    X(swiglu, tg_swiglu(t, x[0], x[1]))                                                                                \
    X(dropout, tg_dropout(t, x[0], 0.5))                                                                               \
    X(matmul, tg_matmul(t, x[0], x[1]))                                                                                \
    X(outer, tg_outer(t, x[0], x[1]))                                                                                  \
    X(dot, tg_dot(t, x[0], x[1]))                                                                                      \
    X(heads, tg_einsum(t, "bqh,bkh->bqk", x[0], x[1]))                                                                 \
    X(swapped_sum, tg_einsum(t, "ij,ji->", x[0], x[1]))                                                                \
    X(lone, tg_einsum(t, "ij,jk->k", x[0], x[1]))                                                                      \
    X(trace, tg_einsum(t, "ii,j->j", x[0], x[1]))                                                                      \
    X(linear, tg_linear(t, x[0], x[1], NULL))                                                                          \
    X(linear_bias, tg_linear(t, x[0], x[1], x[2]))                                                                     \
    X(linear_relu, tg_linear_relu(t, x[0], x[1], NULL))                                                                \
    X(sum_0, tg_sum(t, x[0], TG_DIMS(0), false))                                                                       \
    X(sum_1, tg_sum(t, x[0], TG_DIMS(1), false))                                                                       \
    X(sum_keep, tg_sum(t, x[0], TG_DIMS(0), true))                                                                     \
    X(sum_all, tg_sum(t, x[0], TG_ALL_DIMS, false))                                                                    \
    X(mean_0, tg_mean(t, x[0], TG_DIMS(0), false))                                                                     \
    X(mean_1, tg_mean(t, x[0], TG_DIMS(1), false))                                                                     \
    X(max_0, tg_max(t, x[0], TG_DIMS(0), false))                                                                       \
    X(var_1, tg_var(t, x[0], TG_DIMS(1), 0, false))                                                                    \
    X(logsumexp_0, tg_logsumexp(t, x[0], TG_DIMS(0), true))                                                            \
    X(argmax_0, tg_argmax(t, x[0], 0, false))                                                                          \
    X(std_1, tg_std(t, x[0], TG_DIMS(1), 0, false))                                                                    \
    X(prod_0, tg_prod(t, x[0], TG_DIMS(0), false))                                                                     \
    X(norm_0, tg_norm(t, x[0], 2, TG_DIMS(0), false))                                                                  \
    X(argmin_0, tg_argmin(t, x[0], 0, false))                                                                          \
    X(softmax_0, tg_softmax(t, x[0], 0))                                                                               \
    X(softmax_1, tg_softmax(t, x[0], 1))                                                                               \
    X(cumsum_0, tg_cumsum(t, x[0], 0))                                                                                 \
    X(cumprod_0, tg_cumprod(t, x[0], 0))                                                                               \
    X(sort_0, tg_sort(t, x[0], 0, false, NULL))                                                                        \
    X(topk_0, tg_topk(t, x[0], 1, 0, true, NULL))                                                                      \
    X(median_0, tg_median(t, x[0], 0, false, NULL))                                                                    \
    X(gumbel, tg_gumbel(t, x[0]))                                                                                      \
    X(layer_norm, tg_layer_norm(t, x[0], x[1], x[2], 1e-5))                                                            \
    X(rms_norm, tg_rms_norm(t, x[0], x[1], 1e-5))                                                                      \
    X(group_norm, tg_group_norm(t, x[0], 1, x[1], x[2], 1e-5))                                                         \
    X(batch_norm, tg_batch_norm(t, x[0], x[1], x[2], NULL, NULL, 0.1, 1e-5))                                           \
    X(batch_followed, tg_batch_norm(t, x[0], NULL, NULL, x[1], x[2], 0.1, 1e-5))                                       \
    X(conv1d, tg_conv1d(t, x[0], x[1], NULL, NULL))                                                                    \
    X(conv1d_bias, tg_conv1d(t, x[0], x[1], x[2], NULL))                                                               \
    X(conv1d_groups, tg_conv1d(t, x[0], x[1], NULL, TG_CONV(.groups = 2)))                                             \
    X(conv2d, tg_conv2d(t, x[0], x[1], NULL, TG_CONV(.padding = {1, 1})))                                              \
    X(max_pool, tg_max_pool1d(t, x[0], 2, NULL))                                                                       \
    X(avg_pool, tg_avg_pool2d(t, x[0], 2, 2, NULL))                                                                    \
    X(adaptive, tg_adaptive_avg_pool(t, x[0], TG_SHAPE(2)))                                                            \
    X(im2col, tg_im2col(t, x[0], 2, 2, NULL))                                                                          \
    X(col2im, tg_col2im(t, x[0], TG_SHAPE(3, 3), 2, 2, NULL))                                                          \
    X(conv_transpose, tg_conv_transpose1d(t, x[0], x[1], NULL, NULL))                                                  \
    X(max_positions, tg_max_pool2d_with_indices(t, x[0], 2, 2, NULL, NULL))                                            \
    X(resized, tg_upsample_linear(t, x[0], TG_SHAPE(9), NULL))                                                         \
    X(mirrored, tg_reflection_pad(t, x[0], (const int64_t[]){1, 2}, 2))                                                \
    X(solve, tg_triangular_solve(t, x[0], x[1], NULL))                                                                 \
    X(cholesky, tg_cholesky(t, x[0]))                                                                                  \
    X(rms_plain, tg_rms_norm(t, x[0], NULL, 1e-5))                                                                     \
    X(rope, tg_rope(t, x[0], 10000, 0))                                                                                \
    X(rope_with, tg_rope_with(t, x[0], TG_ROPE(.dims = 4)))                                                            \
    X(transpose, tg_transpose(t, x[0], 0, 1))                                                                          \
    X(rotate, tg_permute(t, x[0], TG_DIMS(2, 0, 1)))                                                                   \
    X(grow_0, tg_expand(t, x[0], TG_SHAPE(4, -1)))                                                                     \
    X(new_dim, tg_expand(t, x[0], TG_SHAPE(4, -1, -1)))                                                                \
    X(squeeze_1, tg_squeeze(t, x[0], 1))                                                                               \
    X(unsqueeze_0, tg_unsqueeze(t, x[0], 0))                                                                           \
    X(slice_0, tg_slice(t, x[0], 0, 1, 2, 1))                                                                          \
    X(slice_all, tg_slice(t, x[0], 0, 0, INT64_MAX, 1))                                                                \
    X(select_0, tg_select(t, x[0], 0, 0))                                                                              \
    X(select_1, tg_select(t, x[0], 1, 0))                                                                              \
    X(pad_0, tg_pad(t, x[0], 0, 1, 1, 0))                                                                              \
    X(pad_9, tg_pad(t, x[0], 0, 1, 1, 9))                                                                              \
    X(flip_0, tg_flip(t, x[0], TG_DIMS(0)))                                                                            \
    X(roll_0, tg_roll(t, x[0], 1, 0))                                                                                  \
    X(repeat_0, tg_repeat(t, x[0], 0, 2))                                                                              \
    X(unfold_0, tg_unfold(t, x[0], 0, 2, 1))                                                                           \
    X(tril, tg_tril(t, x[0], 0))                                                                                       \
    X(diag, tg_diag(t, x[0], 0))                                                                                       \
    X(masked_select, tg_masked_select(t, x[0], x[1], 0))                                                               \
    X(one_hot, tg_one_hot(t, TG_F32, x[0], 4))                                                                         \
    X(concat_0, tg_concat(t, x, n, 0))                                                                                 \
    X(concat_1, tg_concat(t, x, n, 1))                                                                                 \
    X(stack_0, tg_stack(t, x, n, 0))                                                                                   \
    X(stack_1, tg_stack(t, x, n, 1))                                                                                   \
    X(split_2, split_of(x[0], 0, 2))                                                                                   \
    X(split_3, split_of(x[0], 0, 3))                                                                                   \
    X(split_1, split_of(x[0], 0, 1))                                                                                   \
    X(split_dim1, split_of(x[0], 1, 2))                                                                                \
    X(split_uneven, uneven_split_of(x[0]))                                                                             \
    X(gather_0, tg_gather(t, x[0], 0, x[1]))                                                                           \
    X(gather_1, tg_gather(t, x[0], 1, x[1]))                                                                           \
    X(index_0, tg_index_select(t, x[0], 0, x[1]))                                                                      \
    X(scatter_0, tg_scatter_add(t, x[0], 0, x[1], x[2]))                                                               \
    X(write_0, tg_scatter(t, x[0], 0, x[1], x[2]))                                                                     \
    X(embedding, tg_embedding(t, x[0], x[1]))                                                                          \
    LOSS_CALLS(X)                                                                                                      \
    X(attention, tg_attention(t, x[0], x[1], x[2], NULL))                                                              \
    X(causal, tg_attention(t, x[0], x[1], x[2], TG_ATTENTION(.causal = true)))                                         \
    X(biased, tg_attention(t, x[0], x[1], x[2], TG_ATTENTION(.mask = x[3])))                                           \
    X(sunk, tg_attention(t, x[0], x[1], x[2], TG_ATTENTION(.sink = x[3])))                                             \
    X(padded, tg_attention(t, x[0], x[1], x[2], TG_ATTENTION(.lengths = x[3])))                                        \
    X(windowed, tg_attention(t, x[0], x[1], x[2], TG_ATTENTION(.left = 1)))                                            \
    X(add_, tg_add_(t, tg_scale(t, x[0], 1), x[1]))                                                                    \
    X(mul_, tg_mul_(t, tg_scale(t, x[0], 1), x[1]))                                                                    \
    X(relu_, tg_relu_(t, tg_scale(t, x[0], 1)))                                                                        \
    X(copy_, tg_copy_(t, tg_scale(t, x[0], 1), x[1]))                                                                  \
    X(buffer_add_, tg_add_(t, x[0], x[1]))                                                                             \
    X(to_24, tg_reshape(t, x[0], TG_SHAPE(24)))                                                                        \
    X(to_2_12, tg_reshape(t, x[0], TG_SHAPE(2, 12)))                                                                   \
    X(to_3_8, tg_view(t, x[0], TG_SHAPE(3, 8)))                                                                        \
    X(to_4_6, tg_reshape(t, x[0], TG_SHAPE(4, 6)))                                                                     \
    X(to_8_3, tg_reshape(t, x[0], TG_SHAPE(8, 3)))                                                                     \
    X(to_2_3_4, tg_reshape(t, x[0], TG_SHAPE(2, 3, 4)))                                                                \
    X(to_1_24, tg_reshape(t, x[0], TG_SHAPE(1, 24)))                                                                   \
    X(to_2_1_12, tg_reshape(t, x[0], TG_SHAPE(2, 1, 12)))                                                              \
    X(named_1, tg_reshape_shard(t, x[0], TG_SHAPE(2, 1, 12), 1))                                                       \
    X(named_2, tg_reshape_shard(t, x[0], TG_SHAPE(2, 3, 4), -1))                                                       \
    X(to_5, tg_reshape(t, x[0], TG_SHAPE(5)))

#define X(name, expr)                                                                                                  \
    static tg_tensor *call_##name(tg_tensor **x, int n) {                                                              \
        (void)x, (void)n;                                                                                              \
        return expr;                                                                                                   \
    }
CALLS(X)
#undef X

static const struct {
    const char *name;
    tg_tensor *(*call)(tg_tensor **x, int n);
} calls[] = {
#define X(name, expr) {#name, call_##name},
    CALLS(X)
#undef X
};

/* ---- Running a row ---- */

static const char *result_text(tg_tensor *y) {
    static _Thread_local char text[96];
    size_t at = 0, end = 0;
    for (int i = 0; i < PLACING_AXES; i++) {
        tg_placement p = tg_placement_of(y, placing_axis[i]);
        char one[24];
        tg_placement_name(p, one, sizeof one);
        tg_text(text, sizeof text, &at, "%s%s", i ? "/" : "", one);
        if (p.kind != TG_INVARIANT || i == 0) end = at;
    }
    text[end] = 0;
    return text;
}

static tg_tensor *run(const row *r) {
    tg_tensor *x[8];
    int n = 0;
    for (const char *s = r->input; *s;) {
        placing_leaf l = placing_parse(&s);
        x[n++] = placing_make(ctx, GROUPS, &l);
    }
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s(%s): %s", r->op, r->input, tg_ctx_message(ctx));
    for (int i = 0; i < TG_LEN(calls); i++)
        if (strcmp(calls[i].name, r->op) == 0) return calls[i].call(x, n);
    ck_abort_msg("no op %s", r->op);
    return NULL;
}

/* Compares placements as text: "R/I" equals "R". */
static bool same_text(const char *got, const char *want) {
    size_t n = strlen(got);
    return !strncmp(got, want, n) && (want[n] == 0 || strspn(want + n, "/I") == strlen(want + n));
}

static void check_rows(const row *rows, int n) {
    for (int i = 0; i < n; i++) {
        const row *r = &rows[i];
        begin();
        tg_tensor *y = run(r);
        tg_status s = tg_ctx_status(ctx);
        const char *message = tg_ctx_message(ctx);
        if (*r->out == '!') {
            ck_assert_msg(s == TG_ERR_PLACEMENT, "%s(%s) is accepted as %s; %s", r->op, r->input, result_text(y),
                          message);
            ck_assert_msg(strstr(message, r->out + 1), "%s(%s) says: %s", r->op, r->input, message);
            tg_ctx_clear(ctx);
        } else {
            ck_assert_msg(s == TG_OK, "%s(%s) is refused: %s", r->op, r->input, message);
            ck_assert_msg(same_text(result_text(y), r->out), "%s(%s) is %s, expected %s", r->op, r->input,
                          result_text(y),
                          r->out);
        }
        end();
    }
}

START_TEST(each_family_of_ops_follows_the_rule) { check_rows(families, TG_LEN(families)); }
END_TEST
START_TEST(ops_on_shapes_follow_the_rule) { check_rows(shapes, TG_LEN(shapes)); }
END_TEST
START_TEST(the_rule_holds_on_several_axes) { check_rows(axes, TG_LEN(axes)); }
END_TEST

int main(void) {
    const TTest *const tests[] = {each_family_of_ops_follows_the_rule, ops_on_shapes_follow_the_rule,
                                  the_rule_holds_on_several_axes};
    return tg_check_main("placement", tests, TG_LEN(tests));
}
