/* The one rule of placements, op by op: what every op makes of inputs that lie so, and what it refuses. The grid of the
 * context is set by hand, so no ranks are needed. docs/placements.md has the rule. */
#include <stdio.h>

#include <tapegrad/tapegrad.h>

#include "../check_main.h"
#include "core/core.h"
#include "parallel/parallel.h"
#include "parallel/placement_losses.h"
#include "parallel/placing.h"

static tg_ctx *ctx;
static tg_tape *t;
static const tg_parallel groups; /* whose ranks are told to the context alone */
#define GROUPS (&groups)

static void begin_sizes(int tp, int dp, int cp) {
    const int sizes[PLACING_AXES] = {tp, dp, cp};
    ctx = tg_ctx_new(TG_CONFIG(.seed = 5, .threads = 1, .dtype = TG_F64));
    t = tg_tape_new(ctx);
    ctx->parallel = GROUPS;
    for (int i = 0; i < PLACING_AXES; i++) {
        ctx->grid.size[placing_axis[i]] = sizes[i];
        if (sizes[i] > 1) ctx->grid.axes |= 1u << placing_axis[i];
    }
}

static void begin(void) { begin_sizes(2, 2, 2); }

static void end(void) {
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_tape_free(t);
    ctx->parallel = NULL;
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

/* A result that a table can look at: outputs are otherwise of the op alone. */
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
    X(layer_norm, tg_layer_norm(t, x[0], x[1], x[2], 1e-5))                                                            \
    X(rms_norm, tg_rms_norm(t, x[0], x[1], 1e-5))                                                                      \
    X(group_norm, tg_group_norm(t, x[0], 1, x[1], x[2], 1e-5))                                                         \
    X(rms_plain, tg_rms_norm(t, x[0], NULL, 1e-5))                                                                     \
    X(rope, tg_rope(t, x[0], 10000, 0))                                                                                \
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
    X(embedding, tg_embedding(t, x[0], x[1]))                                                                          \
    LOSS_CALLS(X)                                                                                                      \
    X(attention, tg_attention(t, x[0], x[1], x[2], NULL))                                                              \
    X(causal, tg_attention(t, x[0], x[1], x[2], TG_ATTENTION(.causal = true)))                                         \
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

/* ---- The table: op, inputs, the result's placements or what the refusal says ---- */

typedef struct row {
    const char *op, *in, *out; /* out: "R/V0", what is I at the end left out; or "!text" */
} row;

static const row families[] = {
    /* Values that are the same on every rank. */
    {"tanh", "I[2, 3]", "I"},
    {"tanh", "R[2, 3]", "R"},
    {"tanh", "R-[2, 3]", "I"},
    {"add", "R[2, 3] I-[2, 3]", "R"},
    {"add", "R[2, 3] R-[3]", "R"},
    {"add", "I[2, 3] R-[3]", "I"},
    {"add", "I[2, 3] R[2, 3]", "!tg_copy_to_tp"},
    {"linear_bias", "R[4, 3] R[2, 3] I[2]", "!a share of it"},
    {"lt", "I[2, 3] R[2, 3]", "I"}, /* no gradient flows */
    {"detach", "R[2, 3]", "I"},
    {"argmax_0", "R[2, 3]", "I"},
    {"to_i64", "R[2, 3]", "I"},
    /* Unary and pointwise. */
    {"tanh", "V1[2, 3]", "V1"},
    {"tanh", "V[2, 3]", "V"},
    {"tanh", "V0:z[4, 3]", "V0:z"},
    {"tanh", "P[2, 3]", "!reduce"},
    {"tanh", "P-[2, 3]", "!reduce"},
    {"neg", "P[2, 3]", "P"},
    {"scale", "P[2, 3]", "P"},
    {"detach", "P[2, 3]", "P"},
    {"contiguous", "P[2, 3]", "P"},
    {"contiguous", "V0[2, 3]", "V1"},
    {"to_f32", "P[2, 3]", "P"},
    {"to_i64", "P[2, 3]", "!reduce"},
    {"clamp", "P[2, 3]", "!reduce"},
    {"add_scalar", "P[2, 3]", "!reduce"},
    /* Sums and products. */
    {"add", "P[2, 3] P[2, 3]", "P"},
    {"add", "P[2, 3] P[3]", "P"},
    {"add", "P[2, 3] R[2, 3]", "!tg_i_to_p"},
    {"add", "P[2, 3] I-[2, 3]", "!tg_i_to_p"},
    {"add", "P[2, 3] I[2, 3]", "!tg_i_to_p"},
    {"mul", "P[2, 3] R[2, 3]", "P"},
    {"mul", "R[3] P[2, 3]", "P"},
    {"mul", "P[2, 3] I-[2, 3]", "P"},
    {"mul", "P[2, 3] I[2, 3]", "!tg_copy_to_tp"},
    {"mul", "P[2, 3] P[2, 3]", "!not linear"},
    {"mul", "P[2, 3] V-[2, 3]", "!reduce what is P first"},
    {"mul", "P[2, 3] V0[2, 3]", "!reduce what is P first"},
    {"div", "P[2, 3] R[2, 3]", "P"},
    {"div", "R[2, 3] P[2, 3]", "!not linear"},
    {"div", "P[2, 3] P-[2, 3]", "!not linear"},
    {"maximum", "P[2, 3] R-[2, 3]", "!not linear"},
    {"where", "I[2, 3]b P[2, 3] P[2, 3]", "P"},
    {"where", "I[2, 3]b P[2, 3] R[2, 3]", "!not linear"},
    {"where", "V[2, 3]b P[2, 3] P[2, 3]", "!reduce what is P first"},
    {"fill_0", "P[2, 3] I[2, 3]b", "P"},
    {"fill_9", "P[2, 3] I[2, 3]b", "!not linear"},
    {"fill_0", "I[2, 3] V[2, 3]b", "!tg_copy_to_tp"},
    {"fill_9", "V0[2, 3] V0[2, 3]b", "V0"},
    {"dropout", "P[2, 3]", "P"},
    {"dropout", "V0[2, 3]", "V0"},
    {"swiglu", "R[2, 3] P[2, 3]", "P"},
    {"swiglu", "P[2, 3] R[2, 3]", "!not linear"},
    /* Shards that meet. */
    {"add", "V0[2, 3] V0[2, 3]", "V0"},
    {"add", "V0[2, 3] V1[2, 3]", "!different parts"},
    {"add", "V0:z[4, 3] V0[4, 3]", "!layout"},
    {"add", "V0:s2[4, 3] V0[4, 3]", "!layout"},
    {"add", "V1[2, 3] V0[3]", "V1"},
    {"add", "V0[2, 3] R[3]", "V0"},
    {"add", "V0[2, 3] R[1, 3]", "V0"},
    {"add", "V0[2, 3] I[3]", "!tg_copy_to_tp"},
    {"add", "V0-[2, 3] I[3]", "!tg_copy_to_tp"},
    {"add", "V0[2, 3] I-[3]", "V0"},
    {"add", "V0[2, 3] R[2, 3]", "!tg_shard"},
    {"add", "V0[1, 3] R[3, 1]", "!whole dim meets a shard"},
    {"add", "V0[1, 3] V0[4, 3]", "!differ in size"},
    {"add", "V0[2, 3] R/V0[1, 3]", "!whole dim meets a shard"}, /* of global size 2 */
    {"swiglu", "V0[1, 3] R[1, 3]", "!does not stretch"},
    {"mul", "V0[2, 3] V[2, 3]", "V"},
    {"mul", "V[2, 3] R[3]", "V"},
    {"mul", "V-[2, 3] I[3]", "!tg_copy_to_tp"},
    {"lt", "V0[2, 3] I[1, 3]", "V0"},
    /* Products of matrices. */
    {"matmul", "V0[4, 3] R[3, 2]", "V0"},
    {"matmul", "R[4, 3] V1[3, 2]", "V1"},
    {"matmul", "V1[4, 3] V0[3, 2]", "P"},
    {"matmul", "V1:s3[4, 3] V0:s3[3, 2]", "P"},
    {"matmul", "V1:s3[4, 3] V0[3, 2]", "!summed"},
    {"matmul", "V1[4, 3] R[3, 2]", "!summed"},
    {"matmul", "V0[4, 3] V1[3, 2]", "!different parts"},
    {"matmul", "V0[4, 3] V0[3, 2]", "!different parts"},
    {"matmul", "V0[2, 4, 3] R[3, 2]", "V0"},
    {"matmul", "V0[2, 4, 3] V0[2, 3, 5]", "V0"},
    {"matmul", "V0[2, 4, 3] R[2, 3, 5]", "!whole dim meets a shard"},
    {"matmul", "V0[2, 4, 3] R[1, 3, 5]", "V0"},
    {"matmul", "P[4, 3] R[3, 2]", "P"},
    {"matmul", "P[4, 3] P[3, 2]", "!not linear"},
    {"linear", "R[4, 3] V0[2, 3]", "V1"},
    {"linear", "I[4, 3] V0[2, 3]", "!tg_copy_to_tp"},
    {"linear", "V0-[4, 3] I[2, 3]", "!declare the parameter R"},
    {"linear", "V0-[4, 3] R[2, 3]", "V0"},
    {"linear", "V1[4, 3] V1[2, 3]", "P"},
    {"linear", "V1[4, 3] V0[2, 3]", "!different parts"},
    {"linear", "V0[4, 3] V0[2, 3]", "!different parts"},
    {"linear", "R[4, 3] V0:s2[2, 3]", "V1:s2"},
    {"linear_bias", "V1[4, 3] V1[2, 3] R[2]", "!added once on every rank"},
    {"linear_bias", "V1[4, 3] V1[2, 3] I-[2]", "!added once on every rank"},
    {"linear_bias", "R[4, 3] V0[2, 3] V0[2]", "V1"},
    {"linear_bias", "R[4, 3] V0[2, 3] R[2]", "!whole dim meets a shard"},
    {"linear_bias", "P[4, 3] R[2, 3] P[2]", "P"},
    {"linear_bias", "P[4, 3] R[2, 3] R[2]", "!not linear"},
    {"linear_relu", "V1[4, 3] V1[2, 3]", "!whole of the dim"},
    {"linear_relu", "R[4, 3] V0[2, 3]", "V1"},
    {"linear_relu", "P[4, 3] R[2, 3]", "!not linear"},
    /* Reductions. */
    {"sum_0", "V0[4, 3]", "P"},
    {"sum_0", "V1[4, 3]", "V0"},
    {"sum_1", "V0:z[4, 3]", "V0:z"},
    {"sum_keep", "V1[4, 3]", "V1"},
    {"sum_all", "V1[4, 3]", "P"},
    {"sum_all", "V[4, 3]", "V"},
    {"sum_all", "P[4, 3]", "P"},
    {"sum_0", "V0[4, 3]b", "P"},
    {"mean_0", "V0[4, 3]", "!1 over the global count"},
    {"mean_0", "V1[4, 3]", "V0"},
    {"mean_1", "P[4, 3]", "P"},
    {"max_0", "V0[4, 3]", "!whole of the dim"},
    {"max_0", "V1[4, 3]", "V0"},
    {"max_0", "P[4, 3]", "!not linear"},
    {"var_1", "V0[4, 3]", "V0"},
    {"var_1", "V1[4, 3]", "!whole of the dim"},
    {"logsumexp_0", "V0[4, 3]", "!whole of the dim"},
    {"logsumexp_0", "V1[4, 3]", "V1"},
    {"argmax_0", "V1[4, 3]", "V0"},
    {"std_1", "V0[4, 3]", "V0"},
    {"std_1", "V1[4, 3]", "!whole of the dim"},
    {"prod_0", "V0[4, 3]", "!whole of the dim"},
    {"prod_0", "V1[4, 3]", "V0"},
    {"norm_0", "P[4, 3]", "!not linear"},
    {"norm_0", "V1[4, 3]", "V0"},
    {"argmin_0", "V1[4, 3]", "V0"},
    {"softmax_1", "V1[4, 3]", "!tg_gather_from"},
    {"softmax_1", "V0[4, 3]", "V0"},
    {"softmax_0", "V0[4, 3]", "!whole of the dim"},
    {"softmax_0", "V1[4, 3]", "V1"},
    {"rms_plain", "V0[4, 3]", "V0"},
    {"rms_plain", "V1[4, 3]", "!whole of the dim"},
    {"rms_norm", "V0[4, 3] R[3]", "V0"},
    {"rms_norm", "V0[4, 3] I[3]", "!declare the parameter R"},
    {"rms_norm", "R[4, 3] V0[3]", "!whole of the dim"},
    {"rms_norm", "R[4, 3] P[3]", "P"},
    {"layer_norm", "R[4, 3] P[3] P[3]", "P"},
    {"layer_norm", "R[4, 3] R[3] P[3]", "!not linear"},
    {"layer_norm", "V0:s2[4, 3] R[3] R[3]", "V0:s2"},
    {"group_norm", "V0[4, 3] R[3] R[3]", "V0"},
    {"group_norm", "V1[4, 3] V0[3] V0[3]", "!whole of the dim"},
    {"group_norm", "V0[4, 3] I[3] R[3]", "!declare the parameter R"},
    {"group_norm", "R[4, 3] P[3] P[3]", "P"},
    {"rope", "V0[2, 3, 4, 2]", "V0"},
    {"rope", "V1[2, 3, 4, 2]", "V1"},
    {"rope", "V2[2, 3, 4, 2]", "!whole of the dim"},
    {"rope", "V3[2, 3, 4, 2]", "!whole of the dim"},
    {"rope", "P[2, 3, 4, 2]", "P"},
    /* Reading at indices. */
    {"embedding", "V0[4, 3] I[2]i", "!tg_vocab_parallel_embedding"},
    {"embedding", "V1[4, 3] I[2]i", "V1"},
    {"embedding", "V1[4, 3] I[2, 5]i", "V2"},
    {"embedding", "R[4, 3] V0[2]i", "V0"},
    {"embedding", "I[4, 3] V0[2]i", "!declare the parameter R"},
    {"embedding", "P[4, 3] I[2]i", "P"},
    {"gather_0", "V1[4, 3] V1[2, 3]i", "V1"},
    {"gather_0", "V1[4, 3] I[2, 3]i", "!whole dim meets a shard"},
    {"gather_0", "V1[4, 3] V1[2, 2]i", "!whole of the dim"}, /* not all columns */
    {"gather_0", "V0[4, 3] I[2, 3]i", "!whole of the dim"},
    {"gather_0", "R[4, 3] V0[2, 3]i", "V0"},
    {"gather_1", "P[4, 3] I[4, 2]i", "P"},
    {"index_0", "V1[4, 3] I[5]i", "V1"},
    {"index_0", "V0[4, 3] I[5]i", "!whole of the dim"},
    {"index_0", "R[4, 3] V0[5]i", "V0"},
    {"scatter_0", "V1[4, 3] V1[2, 3]i V1[2, 3]", "V1"},
    {"scatter_0", "V1[4, 3] I[2, 3]i V1[2, 3]", "!whole dim meets a shard"},
    {"scatter_0", "R[4, 3] V0[2, 3]i V0[2, 3]", "!whole of the dim"},
    {"scatter_0", "P[4, 3] I[2, 3]i P[2, 3]", "P"},
    {"scatter_0", "R[4, 3] I[2, 3]i P[2, 3]", "!not linear"},
    LOSS_ROWS
    /* Attention. */
    {"attention", "V0[2, 4, 3, 2] V0[2, 4, 3, 2] V0[2, 4, 3, 2]", "V0"},
    {"causal", "V1[2, 4, 3, 2] V1[2, 4, 3, 2] V1[2, 4, 3, 2]", "V1"},
    {"causal", "V1[2, 4, 3, 2] V1[2, 2, 3, 2] V1[2, 2, 3, 2]", "V1"}, /* grouped queries */
    {"causal", "V1[2, 4, 3, 2] R[2, 1, 3, 2] R[2, 1, 3, 2]", "V1"},   /* one head of keys for all */
    {"causal", "V1[2, 4, 3, 2] R[2, 2, 3, 2] R[2, 2, 3, 2]", "!whole dim meets a shard"},
    {"causal", "V1[2, 4, 3, 2] R[2, 1, 3, 2] V1[2, 1, 3, 2]", "!whole dim meets a shard"},
    {"causal", "R[2, 1, 3, 2] V1[2, 1, 3, 2] V1[2, 1, 3, 2]", "!does not stretch"},
    {"causal", "V0[1, 4, 3, 2] R[1, 4, 3, 2] R[1, 4, 3, 2]", "!does not stretch"},
    {"attention", "V2[2, 4, 3, 2] R[2, 4, 3, 2] R[2, 4, 3, 2]", "V2"},
    {"attention", "V2:z[2, 4, 2, 2] R[2, 4, 3, 2] R[2, 4, 3, 2]", "V2:z"},
    {"causal", "V2[2, 4, 3, 2] R[2, 4, 3, 2] R[2, 4, 3, 2]", "!whole of the dim"},
    {"attention", "V2[2, 4, 3, 2] V2[2, 4, 3, 2] V2[2, 4, 3, 2]", "!whole of the dim"},
    {"attention", "V3[2, 4, 3, 2] V3[2, 4, 3, 2] R[2, 4, 3, 2]", "!whole of the dim"},
    {"attention", "R[2, 4, 3, 2] R[2, 4, 3, 2] V3[2, 4, 3, 2]", "V3"},
    {"attention", "R[2, 4, 3, 2] R[2, 4, 3, 2] P[2, 4, 3, 2]", "P"},
    {"attention", "P[2, 4, 3, 2] R[2, 4, 3, 2] R[2, 4, 3, 2]", "!not linear"},
    /* In place. */
    {"add_", "V0[2, 3] R[3]", "V0"},
    {"add_", "R[1, 3] V0[1, 3]", "!does not stretch"}, /* [1, 3] cannot become [2, 3] */
    {"add_", "P[2, 3] P[2, 3]", "P"},
    {"mul_", "P[2, 3] R[2, 3]", "P"},
    {"relu_", "P[2, 3]", "!not linear"},
    {"relu_", "V1[2, 3]", "V1"},
    {"copy_", "R[2, 3] P[2, 3]", "P"},
    {"copy_", "P[2, 3] P[2, 3]", "P"},
    {"copy_", "P[2, 3] R[2, 3]", "!not linear"},
    {"copy_", "V0[2, 3] V0[2, 3]", "V0"},
    {"copy_", "V0[2, 3] R[3]", "V0"},
    {"copy_", "V0[2, 3] R[2, 3]", "!whole dim meets a shard"},
    {"buffer_add_", "I-[3] V-[3]", "!would become tp V"},
    {"buffer_add_", "V-[3] V-[3]", "V"},
    {"buffer_add_", "R-[3] I-[3]", "R"},
};

static const row shapes[] = {
    {"transpose", "V0[4, 3]", "V1"},
    {"transpose", "V1:z[4, 2]", "V0:z"},
    {"transpose", "P[4, 3]", "P"},
    {"rotate", "V0[2, 3, 4]", "V1"},
    {"rotate", "V2[2, 3, 4]", "V0"},
    {"grow_0", "V1[1, 3]", "V1"},
    {"grow_0", "V0[1, 3]", "!whole of the dim"},
    {"grow_0", "R[1, 3]", "R"},
    {"new_dim", "V1[2, 3]", "V2"},
    {"squeeze_1", "V2[2, 1, 3]", "V1"},
    {"squeeze_1", "V1[2, 1, 3]", "!whole of the dim"},
    {"unsqueeze_0", "V1[2, 3]", "V2"},
    {"slice_0", "V1[4, 3]", "V1"},
    {"slice_0", "V0[4, 3]", "!whole of the dim"},
    {"slice_0", "P[4, 3]", "P"},
    {"slice_all", "V0[4, 3]", "V0"},
    {"select_0", "V1[4, 3]", "V0"},
    {"select_1", "V1[4, 1]", "!whole of the dim"},
    {"select_1", "V0[4, 1]", "V0"},
    {"pad_0", "V1[4, 3]", "V1"},
    {"pad_0", "V0[4, 3]", "!whole of the dim"},
    {"pad_0", "P[4, 3]", "P"},
    {"pad_9", "P[4, 3]", "!not linear"},
    {"stack_0", "V0[2, 3] V0[2, 3]", "V1"},
    {"stack_1", "V0[2, 3] V0[2, 3]", "V0"},
    {"stack_0", "V0[2, 3] R[2, 3]", "!whole dim meets a shard"},
    {"stack_0", "V0[1, 3] R[1, 3]", "!does not stretch"},
    {"stack_0", "P[2, 3] P[2, 3]", "P"},
    {"stack_0", "P[2, 3] R[2, 3]", "!not linear"},
    {"concat_0", "V1[2, 3] V1[4, 3]", "V1"},
    {"concat_0", "V0[2, 3] V0[2, 3]", "V0:s2"},
    {"concat_0", "V0[2, 3] V0[2, 3] V0[2, 3]", "V0:s3"},
    {"concat_0", "V0[2, 3] V0[4, 3]", "!equal contiguous shards"},
    {"concat_0", "V0:s2[2, 3] V0:s2[2, 3]", "!equal contiguous shards"},
    {"concat_0", "V0[2, 3] R[2, 3]", "!equal contiguous shards"},
    {"concat_0", "R[2, 3] V0[2, 3]", "!equal contiguous shards"},
    {"concat_0", "V0[2, 3] V1[2, 3]", "!equal contiguous shards"},
    {"concat_0", "V1[2, 3] V0[2, 3]", "!whole of the dim"},
    {"concat_0", "V0/V0[2, 3] V0/V0[2, 3]", "!equal contiguous shards"},
    {"concat_0", "V0:z[2, 3]", "V0:z"}, /* of one */
    {"concat_1", "V[2, 3] V0[2, 3]", "V"},
    {"concat_0", "P[2, 3] P[2, 3]", "P"},
    {"concat_0", "P[2, 3] R[2, 3]", "!not linear"},
    {"split_2", "V0:s2[4, 3]", "V0"},
    {"split_3", "V0:s3[6, 3]", "V0"},
    {"split_3", "V0:s2[6, 3]", "!TG_SHARD_STRIDED"},
    {"split_2", "V0[4, 3]", "!pieces of every rank's shard"},
    {"split_2", "V0:z[4, 3]", "!pieces of every rank's shard"},
    {"split_2", "V0:s2/V0[4, 3]", "!pieces of every rank's shard"},
    {"split_1", "V0:z[4, 3]", "V0:z"},
    {"split_dim1", "V0:z[4, 4]", "V0:z"},
    {"split_uneven", "V0:s2[4, 3]", "!pieces of every rank's shard"},
    {"split_uneven", "V1[4, 3]", "V1"},
    {"split_2", "P[4, 3]", "P"},
    /* reshape: alone or first in its group of dims */
    {"to_24", "V0[24]", "V0"},
    {"to_24", "V0:z[24]", "V0:z"},
    {"to_2_12", "V0[24]", "V0"},
    {"to_2_12", "V0:z[24]", "V0:z"},
    {"to_3_8", "V0:z[24]", "!cut the chunks"},
    {"to_24", "V0[2, 12]", "V0"},
    {"to_24", "V0:z[2, 12]", "V0:z"},
    {"to_24", "V0:s2[2, 12]", "V0:s2"},
    {"to_8_3", "V0[4, 6]", "V0"},
    {"to_8_3", "V0:s4[4, 6]", "V0:s4"},
    {"to_4_6", "V0:s8[8, 3]", "!cut the chunks"},
    {"to_2_3_4", "V0[2, 12]", "V0"},
    {"to_2_3_4", "V1[2, 12]", "V1"},
    {"to_2_3_4", "V2[2, 3, 4]", "V2"},
    {"to_2_12", "V0[2, 3, 4]", "V0"},
    {"to_2_12", "V1[2, 3, 4]", "V1"},
    {"to_1_24", "V0[24]", "V1"},
    {"to_24", "V1[1, 24]", "V0"},
    {"to_24", "V0[24, 1]", "V0"},
    {"to_24", "V1[24, 1]", "!no counterpart"},
    {"to_24", "V0[1, 24]", "V0"},
    {"to_2_1_12", "V1[2, 12]", "V2"},
    {"named_1", "V1[2, 12]", "V1"},
    {"named_1", "V0[2, 12]", "V0"}, /* the name is of another group */
    {"named_1", "V0[24]", "!cut the chunks"},
    /* behind other dims, and back */
    {"to_24", "V1[2, 12]", "V0:s2"},
    {"to_24", "V1:s3[2, 12]", "V0:s6"},
    {"to_24", "V1[2, 3, 4]", "V0:s2"},
    {"to_24", "V2[2, 3, 4]", "V0:s6"},
    {"to_2_12", "V2[2, 3, 4]", "V1:s3"},
    {"to_24", "V1:z[2, 12]", "!joined behind"},
    {"to_24", "V1/V1[2, 12]", "!joined behind"},
    {"to_24", "V0/V1[2, 12]", "!joined behind"},
    {"to_24", "V0/V0[2, 12]", "V0/V0"},
    {"to_24", "V1/V0[1, 24]", "!joined behind"}, /* a shard of size 1 is before it */
    {"to_2_12", "V0:s2[24]", "V1"},
    {"to_3_8", "V0:s3[24]", "V1"},
    {"to_2_12", "V0:s4[24]", "!cut the chunks"},
    {"to_4_6", "V0:s2[24]", "V0:s2"},
    {"to_2_3_4", "V0:s6[24]", "V2"},
    {"to_2_3_4", "V0:s2[24]", "V1"},
    {"named_2", "V0:s6[24]", "V2"},
    {"named_2", "V0:s12[24]", "V2:s2"},
    {"named_2", "V0:s2[24]", "!cut the chunks"},
    {"to_24", "P[2, 12]", "P"},
    {"to_24", "V[2, 12]", "V"},
};

static const row axes[] = {
    {"matmul", "V1/V0[4, 3] V0/R[3, 2]", "P/V0"},
    {"matmul", "V1/V1[4, 3] V0/V0[3, 2]", "P/P"},
    {"matmul", "V1/V1[4, 3] ^V0/V0[3, 2]", "!layout"}, /* order of axes */
    {"matmul", "^V1/V1[4, 3] ^V0/V0[3, 2]", "P/P"},
    {"add", "V0/V0[2, 3] V0/V0[2, 3]", "V0/V0"},
    {"add", "V0/V0[2, 3] ^V0/V0[2, 3]", "!order of axes"},
    {"tanh", "P/V0[2, 3]", "!on axis tp"},
    {"tanh", "V0/P[2, 3]", "!on axis dp"},
    {"neg", "P/V0[2, 3]", "P/V0"},
    {"mul", "P/R[2, 3] R/V0[2, 3]", "!on axis dp"},
    {"mul", "P/R[3] R/V0[2, 3]", "P/V0"},
    {"mul", "P/R[1, 3] R/V0[2, 3]", "P/V0"},
    {"add", "V0/R[2, 3] R/V0[1, 3]", "!whole dim meets a shard"},
    {"add", "R/R/V0[2, 3] R/R/R[3]", "R/R/V0"},
    {"sum_all", "V0/V1[2, 3]", "P/P"},
    {"sum_0", "V0/V1[2, 3]", "P/V0"},
    {"sum_0", "V0/V0[2, 3]", "P/P"},
    {"add", "I/R[2, 3] R/I[2, 3]", "!on axis tp"},
    {"add", "R/I[2, 3] R/I-[2, 3]", "R/I"},
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
    for (const char *s = r->in; *s;) {
        placing_leaf l = placing_parse(&s);
        x[n++] = placing_make(ctx, GROUPS, &l);
    }
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s(%s): %s", r->op, r->in, tg_ctx_message(ctx));
    for (int i = 0; i < TG_LEN(calls); i++)
        if (strcmp(calls[i].name, r->op) == 0) return calls[i].call(x, n);
    ck_abort_msg("no op %s", r->op);
    return NULL;
}

/* "R/I" and "R" are one text. */
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
            ck_assert_msg(s == TG_ERR_PLACEMENT, "%s(%s) is accepted as %s; %s", r->op, r->in, result_text(y), message);
            ck_assert_msg(strstr(message, r->out + 1), "%s(%s) says: %s", r->op, r->in, message);
            tg_ctx_clear(ctx);
        } else {
            ck_assert_msg(s == TG_OK, "%s(%s) is refused: %s", r->op, r->in, message);
            ck_assert_msg(same_text(result_text(y), r->out), "%s(%s) is %s, expected %s", r->op, r->in, result_text(y),
                          r->out);
        }
        end();
    }
}

START_TEST(families_of_ops) { check_rows(families, TG_LEN(families)); }
END_TEST
START_TEST(ops_on_shapes) { check_rows(shapes, TG_LEN(shapes)); }
END_TEST
START_TEST(several_axes) { check_rows(axes, TG_LEN(axes)); }
END_TEST

int main(void) {
    const TTest *const tests[] = {families_of_ops, ops_on_shapes, several_axes};
    return tg_check_main("placement", tests, TG_LEN(tests));
}
