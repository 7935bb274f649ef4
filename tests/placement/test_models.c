/* Ordinary programs over ranks in which only leaves and parameters are placed: the rule accepts them, and they give one
 * rank's values and gradients. */
#include "placement/programs.h"

#include <tapegrad/megatron.h>
#include <tapegrad/recompute.h>

#define I            TG_I
#define R            TG_R
#define V            TG_V
#define S(d)         TG_SHARD(d)
#define SHAPE        TG_SHAPE
#define L(at, ...)   leaf(w, at, SHAPE(__VA_ARGS__))
#define C(at, ...)   constant(w, at, SHAPE(__VA_ARGS__))
#define LINEAR(x, y) tg_linear(t, x, y, NULL)
#define ALL          TG_ALL_DIMS

/* ---- Data parallel: w R, the batch opaque or a shard ---- */

/* The mean of each rank's rows, scaled by 1/n; the roots sum to the mean of all. */
static tg_tensor *dp_opaque(p_world *w) {
    tg_tape *t = w->t;
    int n = tg_comm_size(w->tp);
    tg_tensor *x = C(V, 4 * w->m, 3), *h = tg_tanh(t, tg_linear(t, x, L(R, 5, 3), L(R, 5)));
    tg_tensor *loss = tg_mean(t, tg_square(t, tg_linear(t, h, L(R, 2, 5), L(R, 2))), ALL, false);
    return tg_scale(t, loss, 1.0 / n);
}

static tg_tensor *dp_shard(p_world *w) {
    tg_tape *t = w->t;
    tg_tensor *x = C(S(0), 4 * w->m, 3), *h = tg_tanh(t, tg_linear(t, x, L(R, 5, 3), L(R, 5)));
    tg_tensor *sum = tg_sum(t, tg_square(t, tg_linear(t, h, L(R, 2, 5), L(R, 2))), ALL, false);
    return tg_scale(t, sum, 1.0 / (8 * w->m));
}

/* Parameters are shards that are gathered for use; their gradients are reduced and scattered. */
static tg_tensor *dp_sharded_parameters(p_world *w) {
    tg_tape *t = w->t;
    tg_tensor *x = C(S(0), 4 * w->m, 3), *w1 = tg_all_gather(t, L(S(0), 2 * w->m, 3), 0, w->tp);
    tg_tensor *w2 = tg_all_gather(t, L(S(1), 2, 2 * w->m), 1, w->tp);
    return tg_sum(t, tg_square(t, LINEAR(tg_linear_gelu(t, x, w1, NULL), w2)), ALL, false);
}

/* Each rank counts the tokens that its mask leaves: the sum over ranks of sums, divided by that of counts. */
static tg_tensor *dp_unequal_counts(p_world *w) {
    tg_tape *t = w->t;
    tg_tensor *x = C(S(0), 4 * w->m, 3), *m = C(S(0), 4 * w->m), *kept = tg_square(t, m);
    tg_tensor *loss = tg_sum(t, tg_square(t, tg_linear(t, x, L(R, 2, 3), L(R, 2))), TG_DIMS(1), false);
    tg_tensor *count = tg_reduce_from_tp(t, tg_sum(t, kept, ALL, false), w->tp);
    return tg_div(t, tg_sum(t, tg_mul(t, loss, kept), ALL, false), count);
}

/* ---- Tensor parallel ---- */

static tg_tensor *tp_mlp(p_world *w) {
    tg_tape *t = w->t;
    tg_tensor *x = L(I, 4, 3),
              *h = tg_linear_gelu(t, tg_copy_to_tp(t, x, w->tp), L(S(0), 4 * w->m, 3), L(S(0), 4 * w->m));
    tg_tensor *y = tg_reduce_from_tp(t, LINEAR(h, L(S(1), 3, 4 * w->m)), w->tp);
    return tg_add(t, x, tg_add(t, y, L(I, 3)));
}

static tg_tensor *tp_gathered(p_world *w) {
    tg_tape *t = w->t;
    tg_tensor *y = tg_linear(t, tg_copy_to_tp(t, L(I, 4, 3), w->tp), L(S(0), 2 * w->m, 3), L(S(0), 2 * w->m));
    return tg_softmax(t, tg_gather_from_tp(t, y, w->tp), -1);
}

/* An R root is seeded with 1/n; the same value after r_to_i is I. */
static tg_tensor *replicated_root(p_world *w) {
    tg_tape *t = w->t;
    return tg_mean(t, tg_square(t, tg_linear(t, L(R, 4, 3), L(R, 2, 3), L(R, 2))), ALL, false);
}

static tg_tensor *r_to_i_before_loss(p_world *w) {
    tg_tape *t = w->t;
    tg_tensor *y = tg_r_to_i(t, tg_linear(t, L(R, 4, 3), L(R, 2, 3), L(R, 2)), w->tp);
    return tg_mean(t, tg_square(t, tg_mul(t, y, L(I, 2))), ALL, false);
}

/* log sum exp over a sharded dim, from primitives. */
static tg_tensor *logsumexp_of_shards(p_world *w) {
    tg_tape *t = w->t;
    tg_tensor *x = L(S(1), 4, 3 * w->m);
    tg_tensor *own = tg_as_opaque(t, tg_detach(t, x), w->tp);
    if (tg_comm_size(w->tp) == 1) own = tg_detach(t, x);
    tg_tensor *m = tg_all_reduce_max(t, tg_max(t, own, TG_DIMS(1), true), w->tp);
    tg_tensor *sum = tg_reduce_from_tp(t, tg_sum(t, tg_exp(t, tg_sub(t, x, m)), TG_DIMS(1), true), w->tp);
    return tg_add(t, tg_log(t, sum), m);
}

/* ---- Experts: rows go to the ranks that own the experts ---- */

static tg_tensor *experts(p_world *w) {
    tg_tape *t = w->t;
    int n = w->m;
    tg_tensor *x = L(S(0), 4 * n * n, 3), *gate = tg_sigmoid(t, LINEAR(x, L(R, 1, 3)));
    tg_tensor *there = tg_all_to_all(t, tg_as_opaque(t, x, w->tp), NULL, NULL, w->tp);
    tg_tensor *weight = L(S(0), 2 * n, 3), *own = weight; /* its two rows on every rank */
    if (tg_comm_size(w->tp) > 1) own = tg_as_opaque(t, weight, w->tp);
    tg_tensor *y;
    if (tg_comm_size(w->tp) > 1) {
        y = LINEAR(there, own);
        y = tg_as_shard(t, tg_all_to_all(t, y, NULL, NULL, w->tp), 0, w->tp);
    } else { /* rows for expert e are block e of every rank's rows */
        tg_tensor *rows = tg_reshape(t, x, TG_SHAPE(n, n, 4, 3)), *all = tg_reshape(t, weight, TG_SHAPE(1, n, 2, 3));
        y = tg_reshape(t, tg_matmul(t, rows, tg_transpose(t, all, 2, 3)), TG_SHAPE(4 * n * n, 2));
    }
    return tg_mul(t, y, gate);
}

/* ---- Context parallel: keys and values in a ring, or gathered ---- */

static tg_tensor *attend(p_world *w, tg_tensor *q, tg_tensor *k, tg_tensor *v, bool ring) {
    tg_tape *t = w->t;
    int n = tg_comm_size(w->tp);
    if (!ring || n == 1) {
        k = tg_all_gather(t, k, 2, w->tp);
        v = tg_all_gather(t, v, 2, w->tp);
        return tg_attention(t, q, k, v, NULL);
    }
    tg_tensor *sum = NULL, *scores = NULL, *kk = tg_as_opaque(t, k, w->tp), *vv = tg_as_opaque(t, v, w->tp);
    tg_tensor *qq = tg_scale(t, tg_as_opaque(t, q, w->tp), 1 / sqrt(3));
    for (int i = 0; i < n; i++) { /* values are small, so no maximum is subtracted */
        tg_tensor *e = tg_exp(t, tg_matmul(t, qq, tg_transpose(t, kk, 2, 3)));
        tg_tensor *part = tg_matmul(t, e, vv), *weight = tg_sum(t, e, TG_DIMS(3), true);
        sum = sum ? tg_add(t, sum, part) : part;
        scores = scores ? tg_add(t, scores, weight) : weight;
        if (i + 1 < n) kk = tg_shift(t, kk, w->tp), vv = tg_shift(t, vv, w->tp);
    }
    return tg_as_shard(t, tg_div(t, sum, scores), 2, w->tp);
}

static tg_tensor *cp_ring(p_world *w) {
    tg_tensor *q = L(S(2), 2, 2, 2 * w->m, 3), *k = L(S(2), 2, 2, 2 * w->m, 3), *v = L(S(2), 2, 2, 2 * w->m, 3);
    return attend(w, q, k, v, true);
}

static tg_tensor *cp_gathered(p_world *w) {
    tg_tensor *q = L(S(2), 2, 2, 2 * w->m, 3), *k = L(S(2), 2, 2, 2 * w->m, 3), *v = L(S(2), 2, 2, 2 * w->m, 3);
    return attend(w, q, k, v, false);
}

/* ---- A GPT: tp, with and without sequence parallelism, together with dp ---- */

enum { BLOCKS = 2, HEAD = 2, SEQ = 8 };

typedef struct gpt {
    p_world *w;
    bool sp, tied;
    tg_placement batch; /* placement of ids and targets on dp */
    double dropout;     /* draws of shards are those of one rank; of opaque batches they cannot be */
    int64_t hidden, ffn, vocab;
} gpt;

static tg_tensor *weight_of(const gpt *g, tg_placement tp, tg_shape shape) {
    return leaf_at(g->w, shape, P_AT({TG_TP, tp}, {TG_DP, R}));
}
/* Activations next to the residual stream: shards of the sequence under sequence parallelism. */
static tg_placement stream(const gpt *g) { return g->sp ? R : I; }

static tg_tensor *enter(const gpt *g, tg_tensor *x) {
    return g->sp ? tg_all_gather(g->w->t, x, 0, g->w->tp) : tg_copy_to_tp(g->w->t, x, g->w->tp);
}
static tg_tensor *leave(const gpt *g, tg_tensor *x) {
    return g->sp ? tg_reduce_scatter(g->w->t, x, 0, g->w->tp) : tg_reduce_from_tp(g->w->t, x, g->w->tp);
}

/* [s, b, local] to [b, heads, s, hd] */
static tg_tensor *heads_of(const gpt *g, tg_tensor *x) {
    tg_tape *t = g->w->t;
    tg_shape four = TG_SHAPE(tg_dim(x, 0), tg_dim(x, 1), tg_dim(x, 2) / HEAD, HEAD);
    return tg_permute(t, tg_reshape_shard(t, x, four, 2), TG_DIMS(1, 2, 0, 3));
}

static tg_tensor *self_attention(const gpt *g, tg_tensor *x) {
    tg_tape *t = g->w->t;
    tg_tensor *qkv[3], *all = tg_linear(t, x, weight_of(g, TG_SHARD_STRIDED(0, 3), SHAPE(3 * g->hidden, g->hidden)),
                                        weight_of(g, TG_SHARD_STRIDED(0, 3), SHAPE(3 * g->hidden)));
    int64_t size = tg_dim(all, -1) / 3;
    tg_split(t, all, -1, (const int64_t[]){size, size, size}, 3, qkv);
    tg_tensor *q = tg_rms_norm(t, heads_of(g, qkv[0]), weight_of(g, R, SHAPE(HEAD)), 1e-5);
    tg_tensor *o = tg_attention(t, tg_rope(t, q, 100, 0), tg_rope(t, heads_of(g, qkv[1]), 100, 0), heads_of(g, qkv[2]),
                                TG_ATTENTION(.causal = true));
    o = tg_permute(t, o, TG_DIMS(2, 0, 1, 3));
    o = tg_reshape(t, o, TG_SHAPE(tg_dim(o, 0), tg_dim(o, 1), size));
    return leave(g, tg_linear(t, o, weight_of(g, S(1), SHAPE(g->hidden, g->hidden)), NULL));
}

static tg_tensor *gated_mlp(const gpt *g, tg_tensor *x) {
    tg_tape *t = g->w->t;
    tg_tensor *half[2];
    tg_tensor *both = tg_linear(t, x, weight_of(g, TG_SHARD_STRIDED(0, 2), SHAPE(2 * g->ffn, g->hidden)), NULL);
    int64_t size = tg_dim(both, -1) / 2;
    tg_split(t, both, -1, (const int64_t[]){size, size}, 2, half);
    tg_tensor *down = weight_of(g, S(1), SHAPE(g->hidden, g->ffn));
    return leave(g, tg_linear(t, tg_swiglu(t, half[0], half[1]), down, NULL));
}

static tg_tensor *block(const gpt *g, tg_tensor *x) {
    tg_tape *t = g->w->t;
    tg_tensor *n1 = tg_rms_norm(t, x, weight_of(g, stream(g), SHAPE(g->hidden)), 1e-5);
    tg_tensor *a = tg_add(t, self_attention(g, enter(g, n1)), weight_of(g, stream(g), SHAPE(g->hidden)));
    x = tg_add(t, x, tg_dropout(t, a, g->dropout));
    tg_tensor *n2 = tg_rms_norm(t, x, weight_of(g, stream(g), SHAPE(g->hidden)), 1e-5);
    return tg_add(t, x, tg_dropout(t, gated_mlp(g, enter(g, n2)), g->dropout));
}

/* The losses of all ranks' rows are summed, for any placement of the batch. */
static tg_tensor *run_gpt(const gpt *g) {
    p_world *w = g->w;
    tg_tape *t = w->t;
    tg_tensor *table = weight_of(g, S(0), SHAPE(g->vocab, g->hidden));
    tg_tensor *ids = ids_at(w, SHAPE(SEQ, 2 * w->m), P_AT({TG_DP, g->batch}), g->vocab);
    tg_tensor *target = ids_at(w, SHAPE(SEQ, 2 * w->m), P_AT({TG_DP, g->batch}), g->vocab);
    tg_tensor *x = leave(g, tg_vocab_parallel_embedding(t, table, ids, w->tp));
    tg_tensor *pos = weight_of(g, stream(g), SHAPE(SEQ, 1, g->hidden));
    x = tg_add(t, x, g->sp ? tg_shard(t, pos, 0, w->tp) : pos);
    for (int i = 0; i < BLOCKS; i++) x = block(g, x);
    x = tg_layer_norm(t, x, weight_of(g, stream(g), SHAPE(g->hidden)), weight_of(g, stream(g), SHAPE(g->hidden)), 1e-5);
    tg_tensor *head = g->tied ? table : weight_of(g, S(0), SHAPE(g->vocab, g->hidden));
    tg_tensor *logits = tg_linear(t, enter(g, x), head, NULL);
    tg_tensor *loss = tg_vocab_parallel_cross_entropy(t, logits, target, w->tp, TG_VOCAB(.reduction = TG_LOSS_SUM));
    return tg_scale(t, loss, 0.125);
}

static gpt gpt_of(p_world *w, bool sp, bool tied, tg_placement batch) {
    return (gpt){w, sp, tied, batch, batch.layout == TG_OPAQUE ? 0 : 0.25, 4 * HEAD, 8, 12};
}

#define GPT(name, sp, tied, batch)                                                                                     \
    static tg_tensor *name(p_world *w) {                                                                               \
        gpt g = gpt_of(w, sp, tied, batch);                                                                            \
        return run_gpt(&g);                                                                                            \
    }
GPT(gpt_tied, false, true, P_ALONG(1))
GPT(gpt_untied_shards, false, false, S(1))
GPT(gpt_sp, true, true, P_ALONG(1))
GPT(gpt_sp_shards, true, false, S(1))

/* The output of sequence parallelism is gathered to I, so every rank has the whole gradient. */
static tg_tensor *sp_gathered_to_i(p_world *w) {
    tg_tape *t = w->t;
    tg_tensor *x = tg_rms_norm(t, L(S(0), 2 * w->m, 3), L(R, 3), 1e-5);
    return tg_mul(t, tg_gather_from_sp(t, x, w->tp, TG_SP(.invariant = true)), L(I, 3));
}

/* ---- In a recomputation placements are derived twice ---- */

static tg_status inner(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    p_world *w = state;
    (void)n_in, (void)n_out;
    tg_tensor *h = tg_linear_gelu(t, tg_copy_to_tp(t, in[0], w->tp), in[1], NULL);
    out[0] = tg_reduce_from_tp(t, tg_linear(t, h, in[2], NULL), w->tp);
    return tg_ctx_status(w->ctx);
}

static tg_tensor *recomputed(p_world *w) {
    tg_tensor *in[] = {L(I, 4, 3), L(S(0), 4 * w->m, 3), L(S(1), 3, 4 * w->m)}, *out;
    tg_recompute(w->t, inner, w, in, 3, &out, 1, NULL);
    return tg_add(w->t, out, in[0]);
}

static const struct {
    const char *name;
    p_program program;
} one_axis[] = {
    {"dp, opaque batch", dp_opaque},
    {"dp, sharded batch", dp_shard},
    {"dp, sharded parameters", dp_sharded_parameters},
    {"dp, unequal counts", dp_unequal_counts},
    {"tp, MLP", tp_mlp},
    {"tp, gathered output", tp_gathered},
    {"an R root", replicated_root},
    {"r_to_i", r_to_i_before_loss},
    {"log-sum-exp", logsumexp_of_shards},
    {"experts", experts},
    {"cp, ring", cp_ring},
    {"cp, gathered", cp_gathered},
    {"sp, gathered to I", sp_gathered_to_i},
    {"recomputation", recomputed},
};

static const struct {
    const char *name;
    p_program program;
} gpts[] = {
    {"GPT, tied", gpt_tied},
    {"GPT, untied, sharded batch", gpt_untied_shards},
    {"GPT, sp", gpt_sp},
    {"GPT, sp, untied, sharded batch", gpt_sp_shards},
};

START_TEST(programs_on_one_axis) {
    for (int n = 2; n <= 4; n += 2)
        for (int i = 0; i < TG_LEN(one_axis); i++) p_compare(one_axis[i].name, one_axis[i].program, n, 1, n);
}
END_TEST

START_TEST(gpt_over_tp_and_dp) {
    for (int i = 0; i < TG_LEN(gpts); i++) {
        p_compare(gpts[i].name, gpts[i].program, 2, 1, 2); /* tp */
        p_compare(gpts[i].name, gpts[i].program, 1, 1, 2); /* dp */
        p_compare(gpts[i].name, gpts[i].program, 2, 1, 4);
        p_compare(gpts[i].name, gpts[i].program, 4, 1, 4); /* one head per rank */
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {programs_on_one_axis, gpt_over_tp_and_dp};
    return tg_check_main("models", tests, TG_LEN(tests));
}
