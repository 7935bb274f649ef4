/* Recorded derivatives have the placements of backward's gradients, whatever the ops in between require. Programs
 * that use them give one rank's numbers or are refused. */
#include "on_ranks.h"

#include <tapegrad/derivatives.h>
#include <tapegrad/parallel.h>
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/megatron.h>
#include <tapegrad/ranks.h>

enum { ROWS = 8, COLS = 4, RANKS = 4 };

static const char *place_of(const tg_tensor *x, char text[64]) {
    tg_placement_text(x, text, 64);
    return text;
}

#define LIES(x, want)                                                                                                  \
    do {                                                                                                               \
        char lies_[64];                                                                                                \
        if (strcmp(place_of(x, lies_), want))                                                                          \
            return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s:%d: %s is \"%s\", expected \"%s\"", __FILE__, __LINE__, #x,   \
                               lies_, want);                                                                           \
    } while (0)

/* ---- Gradients whose own gradients are local to a rank ---- */

/* x [rows, 4] and ids [rows] are rows of this rank, w [4, 4] is R. */
typedef tg_tensor *(*rows_fn)(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *ids);

static const tg_loss_opts *summed(void) {
    static const tg_loss_opts o = {TG_LOSS_DEFAULTS, .reduction = TG_LOSS_SUM};
    return &o;
}
#define ROWS_OP(name, made_of)                                                                                         \
    static tg_tensor *name(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *ids) {                                   \
        (void)w, (void)ids;                                                                                            \
        return made_of;                                                                                                \
    }
ROWS_OP(squares, tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false))
ROWS_OP(embedded, tg_mul(t, tg_embedding(t, w, ids), x))
ROWS_OP(selected, tg_mul(t, tg_index_select(t, w, 0, ids), x))
ROWS_OP(gathered, tg_gather(t, x, 1, tg_unsqueeze(t, ids, 1)))
ROWS_OP(windows, tg_unfold(t, x, 1, 2, 1))
ROWS_OP(every_other, tg_slice(t, x, 1, 0, 4, 2))
ROWS_OP(product, tg_tanh(t, tg_linear(t, x, w, NULL)))
ROWS_OP(huber, tg_huber(t, x, tg_square(t, x), 1, summed()))
ROWS_OP(bce, tg_bce_with_logits(t, x, tg_sigmoid(t, tg_detach(t, x)), NULL, NULL, summed()))
ROWS_OP(kl, tg_kl_div(t, tg_log_softmax(t, x, 1), tg_softmax(t, tg_square(t, x), 1), summed()))
ROWS_OP(entropy, tg_cross_entropy(t, tg_linear(t, x, w, NULL), ids, TG_CROSS_ENTROPY(.reduction = TG_LOSS_SUM)))
ROWS_OP(head, tg_linear_cross_entropy(t, x, w, ids, TG_CROSS_ENTROPY(.reduction = TG_LOSS_SUM)))

static tg_tensor *joined(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *ids) {
    (void)w, (void)ids;
    return tg_concat(t, (tg_tensor *[]){x, tg_square(t, x)}, 2, 0);
}

static tg_tensor *gated(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *ids) {
    tg_tensor *part[2] = {x, x};
    tg_chunk(t, joined(t, x, w, ids), 0, 2, part);
    return tg_mul(t, part[0], part[1]);
}

static tg_tensor *apart(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *ids) {
    return tg_reshape(t, joined(t, x, w, ids), TG_SHAPE(2, -1, COLS));
}

static const struct {
    const char *name;
    rows_fn fn;
} ops[] = {{"sum", squares},    {"embedding", embedded}, {"index_select", selected}, {"gather", gathered},
           {"unfold", windows}, {"slice", every_other},  {"linear", product},        {"huber", huber},
           {"bce", bce},        {"kl_div", kl},          {"cross_entropy", entropy}, {"linear_cross_entropy", head},
           {"concat", joined},  {"chunk", gated},        {"reshape", apart}};

typedef struct job {
    int op;
    bool opaque; /* the rows are opaque */
    double x[RANKS][ROWS * COLS], w[RANKS][COLS * COLS];
} job;

/* Roots that are the squares of both gradients. */
static tg_status squared(tg_tape *t, tg_tensor *const *g, tg_comm *tp, tg_tensor **roots, int *n) {
    *n = 0;
    for (int i = 0; i < 2; i++) {
        bool share = tg_placement_of(g[i], TG_TP).kind == TG_PARTIAL;
        tg_tensor *root = tg_sum(t, tg_square(t, share ? tg_all_reduce(t, g[i], tp) : g[i]), TG_ALL_DIMS, false);
        if (tg_requires_grad(root)) roots[(*n)++] = root;
    }
    return tg_ctx_status(tg_ctx_of(g[0]));
}

static tg_status twice(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    int n = tg_comm_size(world), r = tg_comm_rank(world), n_roots;
    int64_t all[ROWS] = {2, 0, 3, 1, 1, 3, 3, 0};
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_tape *t = tape_on_nans(ctx);
    tg_placement rows = j->opaque ? TG_V : TG_SHARD(0);
    tg_tensor *x = part(ctx, 1, TG_SHAPE(ROWS, COLS), 0, r, n), *w = made(ctx, 2, TG_SHAPE(COLS, COLS));
    tg_tensor *ids = tg_from_host(ctx, TG_I64, TG_SHAPE(ROWS / n), all + r * ROWS / n);
    RUN(tg_place(p, x, TG_TP, rows));
    RUN(tg_place(p, w, TG_TP, TG_R));
    RUN(tg_place(p, ids, TG_TP, rows));
    tg_tensor *in[2] = {x, w}, *plain[2], *g[2], *roots[2], *h[2];
    for (int i = 0; i < 2; i++) tg_set_requires_grad(in[i], true);
    tg_tensor *y = ops[j->op].fn(t, x, w, ids);
    tg_tensor *loss = tg_numel(y) == 1 ? y : tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
    if (tg_placement_of(loss, TG_TP).kind == TG_PARTIAL) loss = tg_reduce_from_tp(t, loss, tp);
    RUN(tg_grad(t, &loss, 1, in, 2, plain, TG_GRAD(.retain = true, .allow_unused = true)));
    RUN(tg_grad(t, &loss, 1, in, 2, g, TG_GRAD(.create_graph = true, .allow_unused = true)));
    for (int i = 0; i < 2; i++) {
        char want[64];
        LIES(g[i], place_of(plain[i], want));
        EXPECT(ctx, off(g[i], plain[i], -1, 0, 1) < 1e-12);
    }
    RUN(squared(t, g, tp, roots, &n_roots));
    EXPECT(ctx, n_roots > 0);
    RUN(tg_grad(t, roots, n_roots, in, 2, h, TG_GRAD(.allow_unused = true)));
    if (n > 1) h[1] = tg_all_reduce(t, h[1], tp);
    RUN(tg_read_f64(h[0], j->x[r], tg_numel(h[0])));
    RUN(tg_read_f64(h[1], j->w[r], tg_numel(h[1])));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static void compare(const job *j, const job *one, int n) {
    int rows = ROWS / n * COLS;
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < rows; i++)
            ck_assert_msg(fabs(j->x[r][i] - one->x[0][r * rows + i]) < 1e-11, "%s, %d ranks: %.15g of x, one has %.15g",
                          ops[j->op].name, n, j->x[r][i], one->x[0][r * rows + i]);
        for (int i = 0; i < COLS * COLS; i++)
            ck_assert_msg(fabs(j->w[r][i] - one->w[0][i]) < 1e-11, "%s, %d ranks: %.15g of w, one has %.15g",
                          ops[j->op].name, n, j->w[r][i], one->w[0][i]);
    }
}

START_TEST(gradients_of_gradients_of_rows) {
    static job one, many;
    for (int op = 0; op < (int)(sizeof ops / sizeof *ops); op++)
        for (int opaque = 0; opaque < 2; opaque++) {
            one.op = many.op = op;
            many.opaque = opaque;
            on_ranks(1, twice, &one);
            for (int n = 2; n <= RANKS; n += 2) {
                on_ranks(n, twice, &many);
                compare(&many, &one, n);
            }
        }
}
END_TEST

/* ---- Penalties on gradients ---- */

/* The gradient of an R tensor is a share. The square of a share is not the square of the gradient, and is refused. */
static tg_status penalty(void *arg, tg_ctx *ctx, tg_comm *world) {
    double(*out)[2] = arg;
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 1));
    tg_comm *dp = tg_parallel_comm(p, TG_DP);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = part(ctx, 1, TG_SHAPE(ROWS, 2), 0, r, n), *g;
    tg_tensor *w = tg_param_new_placed(p, "w", TG_F64, TG_SHAPE(1, 2), 0, TG_PLACES({TG_DP, TG_R}));
    RUN(tg_write_f64(w, (double[]){0.5, -0.25}, 2));
    tg_tensor *loss = tg_sum(t, tg_square(t, tg_linear(t, x, w, NULL)), TG_ALL_DIMS, false);
    RUN(tg_grad(t, &loss, 1, &w, 1, &g, TG_GRAD(.create_graph = true)));
    LIES(g, n == 1 ? "" : "dp P");
    if (n > 1) REFUSED(ctx, TG_ERR_PLACEMENT, "not linear in exactly", tg_square(t, g));
    g = tg_all_reduce(t, g, dp);
    RUN(tg_backward(t, tg_sum(t, tg_square(t, g), TG_ALL_DIMS, false)));
    RUN(tg_grads_finalize(p, &w, 1, NULL));
    RUN(tg_read_f64(tg_grad_of(w), out[r], 2));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* The gradient of a shard is a shard, also if every rank has the same numbers. */
static tg_status penalty_of_shards(void *arg, tg_ctx *ctx, tg_comm *world) {
    double(*out)[2] = arg, all[ROWS * COLS];
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = part(ctx, 1, TG_SHAPE(ROWS, COLS), 0, r, n), *g;
    RUN(tg_place(p, x, TG_TP, TG_SHARD(0)));
    tg_set_requires_grad(x, true);
    tg_tensor *y = tg_all_reduce(t, tg_sum(t, x, TG_DIMS(0), false), tp);
    tg_tensor *loss = tg_sum(t, tg_square(t, y), TG_DIMS(0), false);
    RUN(tg_grad(t, &loss, 1, &x, 1, &g, TG_GRAD(.create_graph = true)));
    LIES(g, n == 1 ? "" : "tp V0");
    tg_tensor *sum = tg_reduce_from_tp(t, tg_sum(t, tg_square(t, g), TG_ALL_DIMS, false), tp);
    out[r][0] = tg_item(sum);
    RUN(tg_backward(t, sum));
    RUN(tg_read_f64(tg_grad_of(x), all, tg_numel(x)));
    out[r][1] = all[0]; /* equal to the rest of its column */
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(penalties_are_one_ranks) {
    static const tg_rank_fn fn[] = {penalty, penalty_of_shards};
    for (int k = 0; k < 2; k++) {
        double one[1][2], many[RANKS][2];
        on_ranks(1, fn[k], one);
        for (int n = 2; n <= RANKS; n += 2) {
            on_ranks(n, fn[k], many);
            for (int r = 0; r < n; r++)
                for (int i = 0; i < 2; i++)
                    ck_assert_msg(fabs(many[r][i] - one[0][i]) < 1e-10 * fabs(one[0][i]), "%d of %d: %.15g, not %.15g",
                                  r, n, many[r][i], one[0][i]);
        }
    }
}
END_TEST

/* ---- Mappings, tangents, padding ---- */

/* An R tensor is used with local data: the derivative of the mapping is a share, and is labeled so. */
static tg_status own_factors(void *arg, tg_ctx *ctx, tg_comm *world) {
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    for (int k = 0; k < 3; k++) {
        tg_tape *t = tg_tape_new(ctx);
        tg_tensor *x = made(ctx, 1, TG_SHAPE(COLS)), *own = made(ctx, 3 + r, TG_SHAPE(COLS)), *plain, *g, *h;
        RUN(tg_place(p, x, TG_TP, TG_I));
        tg_set_requires_grad(x, true);
        tg_tensor *y = tg_mul(t, tg_copy_to_tp(t, tg_square(t, x), tp), own);
        y = k == 0 ? tg_shift(t, y, tp) : k == 1 ? tg_broadcast(t, y, 1, tp) : tg_gather_from(t, y, 0, tp);
        tg_tensor *loss = tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
        RUN(tg_grad(t, &loss, 1, &x, 1, &plain, TG_GRAD(.retain = true)));
        RUN(tg_grad(t, &loss, 1, &x, 1, &g, TG_GRAD(.create_graph = true)));
        LIES(g, "");
        EXPECT(ctx, off(g, plain, -1, 0, 1) < 1e-12);
        loss = tg_sum(t, tg_square(t, g), TG_ALL_DIMS, false);
        RUN(tg_grad(t, &loss, 1, &x, 1, &h, TG_GRAD(.create_graph = true)));
        LIES(h, "");
        tg_tape_free(t);
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(mappings_get_gradients_as_they_are_placed) { on_ranks(3, own_factors, NULL); }
END_TEST

/* d (a b), where a and b are the halves of x, each a shard. */
static tg_status halves(void *arg, tg_ctx *ctx, tg_comm *world) {
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = n));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = made(ctx, 1 + r, TG_SHAPE(2, 2 * COLS)), *v = made(ctx, 5 + r, TG_SHAPE(2, 2 * COLS)), *dy;
    tg_tensor *a[2], *d[2];
    RUN(tg_place(p, x, TG_TP, TG_SHARD_STRIDED(1, 2)));
    RUN(tg_place(p, v, TG_TP, TG_SHARD_STRIDED(1, 2)));
    tg_set_requires_grad(x, true);
    RUN(tg_chunk(t, x, 1, 2, a));
    RUN(tg_chunk(t, v, 1, 2, d));
    tg_tensor *y = tg_mul(t, a[0], a[1]), *want = tg_add(t, tg_mul(t, d[0], a[1]), tg_mul(t, a[0], d[1]));
    RUN(tg_jvp(t, &y, 1, &x, 1, &v, &dy));
    LIES(dy, "tp V1");
    EXPECT(ctx, off(dy, want, -1, 0, 1) < 1e-14);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(tangents_of_parts_of_a_shard) { on_ranks(2, halves, NULL); }
END_TEST

/* Two of 4 columns are padding: the second rank has no class, and its derivatives are 0. */
static tg_status padded(void *arg, tg_ctx *ctx, tg_comm *world) {
    int64_t classes[2] = {0, 1};
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = made(ctx, 1, TG_SHAPE(2, 2)), *target = tg_from_host(ctx, TG_I64, TG_SHAPE(2), classes), *plain, *g;
    RUN(tg_place(p, x, TG_TP, TG_SHARD(1)));
    RUN(tg_place(p, target, TG_TP, TG_I));
    tg_set_requires_grad(x, true);
    tg_tensor *loss = tg_vocab_parallel_cross_entropy(t, x, target, tp, TG_VOCAB(.classes = 2));
    RUN(tg_grad(t, &loss, 1, &x, 1, &plain, TG_GRAD(.retain = true)));
    RUN(tg_grad(t, &loss, 1, &x, 1, &g, TG_GRAD(.create_graph = true)));
    LIES(g, "tp V1");
    EXPECT(ctx, off(g, plain, -1, 0, 1) < 1e-14);
    tg_tensor *sum = tg_sum(t, tg_square(t, g), TG_ALL_DIMS, false), *h;
    RUN(tg_grad(t, &sum, 1, &x, 1, &h, TG_GRAD(.create_graph = true))); /* both ranks communicate in it */
    LIES(h, "tp V1");
    EXPECT(ctx, tg_comm_rank(world) == 0 || off(h, tg_zeros(ctx, TG_F64, TG_SHAPE(2, 2)), -1, 0, 1) == 0);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_rank_of_padding_alone) { on_ranks(2, padded, NULL); }
END_TEST

/* ---- Derivatives that would need another rank ---- */

/* The seed is equal on every rank and requires a gradient, which would be a sum over ranks; no op computes that sum. */
static tg_status needing_seed(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = made(ctx, 1, TG_SHAPE(3)), *seed = made(ctx, 2, TG_SHAPE(3)), *g;
    RUN(tg_place(p, seed, TG_TP, TG_I));
    tg_set_requires_grad(x, true);
    tg_set_requires_grad(seed, true);
    tg_tensor *y = tg_neg(t, x);
    REFUSED(ctx, TG_ERR_PLACEMENT, "I and needs a gradient, expected V",
            tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.seeds = &seed, .create_graph = true)));
    seed = tg_copy_to_tp(t, seed, tg_parallel_comm(p, TG_TP));
    RUN(tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.seeds = &seed, .create_graph = true)));
    LIES(g, "tp V");
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_seed_whose_gradient_is_a_sum) { on_ranks(2, needing_seed, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {
        gradients_of_gradients_of_rows, penalties_are_one_ranks, mappings_get_gradients_as_they_are_placed,
        tangents_of_parts_of_a_shard,   a_rank_of_padding_alone, a_seed_whose_gradient_is_a_sum};
    return tg_check_main("recorded places", tests, sizeof tests / sizeof *tests);
}
