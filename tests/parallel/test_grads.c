/* Gradients over data-parallel ranks: buckets, tg_grads_finalize and norms are compared with one rank and the whole
 * batch. */
#include <math.h>
#include <string.h>
#include <time.h>

#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>
#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/megatron.h>
#include <tapegrad/ranks.h>

#include "device_ranks.h"

#include "check_main.h"

enum { ROWS = 12, IN = 5, HIDDEN = 7 };

/* Two linear layers. b2 is used only if `wide` is true, and "unused" never. */
typedef struct model {
    tg_tensor *w1, *b1, *w2, *b2, *unused;
    tg_tensor *all[5];
} model;

static model make(tg_ctx *ctx, const tg_parallel *p) {
    model m = {tg_param_new(ctx, "w1", TG_DTYPE_DEFAULT, TG_SHAPE(HIDDEN, IN), 0.5),
               tg_param_new(ctx, "b1", TG_DTYPE_DEFAULT, TG_SHAPE(HIDDEN), 0.5),
               tg_param_new(ctx, "w2", TG_DTYPE_DEFAULT, TG_SHAPE(1, HIDDEN), 0.5),
               tg_param_new(ctx, "b2", TG_DTYPE_DEFAULT, TG_SHAPE(1), 0.5),
               tg_param_new(ctx, "unused", TG_DTYPE_DEFAULT, TG_SHAPE(3), 0.5),
               {NULL}};
    tg_tensor *all[] = {m.w1, m.b1, m.w2, m.b2, m.unused};
    memcpy(m.all, all, sizeof all);
    for (int i = 0; p && i < 5; i++) tg_place(p, all[i], TG_DP, TG_R);
    return m;
}

static void fill(double *x, double *y) {
    for (int i = 0; i < ROWS * IN; i++) x[i] = sin(1.3 * i);
    for (int i = 0; i < ROWS; i++) y[i] = cos(0.7 * i);
}

/* Computes the sum of squared errors of rows [first, end). */
static void backward(tg_ctx *ctx, tg_tape *t, const model *m, int first, int end, bool bias) {
    double x[ROWS * IN], y[ROWS];
    fill(x, y);
    tg_tensor *in = tg_from_host(ctx, TG_F64, TG_SHAPE(end - first, IN), x + first * IN);
    tg_tensor *to = tg_from_host(ctx, TG_F64, TG_SHAPE(end - first, 1), y + first);
    tg_tensor *h = tg_tanh(t, tg_linear(t, in, m->w1, m->b1));
    tg_tensor *e = tg_sub(t, tg_linear(t, h, m->w2, bias ? m->b2 : NULL), to);
    tg_backward(t, tg_sum(t, tg_square(t, e), TG_ALL_DIMS, false));
    tg_tape_reset(t);
    tg_drop(in);
    tg_drop(to);
}

typedef struct gradients {
    double g[5][HIDDEN * IN];
    bool has[5];
    double norm;
} gradients;

static void read(tg_ctx *ctx, const model *m, gradients *out) {
    *out = (gradients){0};
    for (int i = 0; i < 5; i++) {
        out->has[i] = tg_has_grad(m->all[i]);
        if (out->has[i]) tg_read_f64(tg_grad_of(m->all[i]), out->g[i], tg_numel(m->all[i]));
    }
    tg_optim *o = tg_adamw_new(ctx, m->all, 5, NULL);
    out->norm = tg_optim_clip(o, 0);
    tg_optim_free(o);
}

static void whole(gradients *out, double scale) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = TG_F64, .seed = 3));
    tg_tape *t = tg_tape_new(ctx);
    model m = make(ctx, NULL);
    backward(ctx, t, &m, 0, 4, true);
    backward(ctx, t, &m, 4, ROWS, false);
    read(ctx, &m, out);
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < HIDDEN * IN; j++) out->g[i][j] *= scale;
    out->norm *= scale;
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_tape_free(t);
    tg_ctx_free(ctx);
}

typedef struct setting {
    int64_t bucket; /* elements; -2: no buckets */
    bool tokens, idle; /* idle: the last rank has no rows */
    gradients want;
} setting;

static tg_status compare(tg_ctx *ctx, const gradients *got, const gradients *want) {
    for (int i = 0; i < 5; i++) {
        if (got->has[i] != want->has[i])
            return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "parameter %d: has %d", i, got->has[i]);
        for (int j = 0; j < HIDDEN * IN; j++)
            if (!(fabs(got->g[i][j] - want->g[i][j]) < 1e-10))
                return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "parameter %d, element %d: %.17g, one rank has %.17g", i, j,
                                   got->g[i][j], want->g[i][j]);
    }
    if (!(fabs(got->norm - want->norm) < 1e-10))
        return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "norm %.17g, one rank has %.17g", got->norm, want->norm);
    return TG_OK;
}

/* Only rank 0 has the rows that use b2; the others have two micro-batches of the rest. */
static tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    const setting *s = arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    int n = tg_parallel_size(p, TG_DP) - s->idle, r = tg_parallel_rank(p, TG_DP);
    tg_tape *t = tg_tape_new(ctx);
    model m = make(ctx, p);
    tg_flat *b = s->bucket == -2 ? NULL : tg_flat_new(p, m.all, 5, TG_FLAT(.bucket = s->bucket));
    tg_tensor *tokens = tg_zeros(ctx, TG_F64, TG_SHAPE());
    double mine = r == n ? 0 : r == 0 ? 4 + (n == 1 ? 8 : 0) : 8.0 / (n - 1);
    tg_write_f64(tokens, &mine, 1);
    for (int step = 0; step < 3; step++) { /* the same each time: nothing of the previous step remains */
        gradients got;
        int width = n > 1 ? 8 / (n - 1) : 8, first = n > 1 ? 4 + (r - 1) * width : 4;
        tg_flat_set_reduce(b, r == 0 && n > 1);
        if (r == 0) backward(ctx, t, &m, 0, 4, true);
        if (r < n && (r > 0 || n == 1)) {
            backward(ctx, t, &m, first, first + width / 2, false);
            tg_flat_set_reduce(b, true);
            backward(ctx, t, &m, first + width / 2, first + width, false);
        }
        tg_grads_finalize(p, m.all, 5, TG_FINALIZE(.tokens = s->tokens ? tokens : NULL));
        read(ctx, &m, &got);
        if (tg_ctx_status(ctx) != TG_OK || compare(ctx, &got, &s->want) != TG_OK) break;
        for (int i = 0; i < 5; i++) tg_zero_grad(m.all[i]);
    }
    tg_flat_free(b);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static void on_ranks(int n, tg_rank_fn fn, void *arg) {
    char message[1024] = "";
    tg_status s = run_ranks(n, fn, arg, TG_RANKS(.config = TG_CONFIG(.dtype = TG_F64, .seed = 3, .check = true),
                                                    .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%s", message);
}

START_TEST(data_parallel_gradients_are_one_ranks) {
    static const int64_t buckets[] = {-2, 1, 40, TG_AUTO, INT64_MAX};
    for (int tokens = 0; tokens < 2; tokens++) {
        setting s = {.tokens = tokens};
        whole(&s.want, tokens ? 1.0 / ROWS : 1);
        for (size_t i = 0; i < sizeof buckets / sizeof *buckets; i++) {
            s.bucket = buckets[i];
            on_ranks(1, train, &s);
            on_ranks(2, train, &s);
            on_ranks(3, train, &s);
            s.idle = true;
            on_ranks(2, train, &s);
            on_ranks(4, train, &s);
            s.idle = false;
        }
    }
}
END_TEST

/* One rank fails in a step while the other's sums have begun; then the same step is complete. */
static tg_status fail_and_train(void *arg, tg_ctx *ctx, tg_comm *world) {
    const setting *s = arg;
    gradients got;
    tg_parallel *p = tg_parallel_new(world, NULL);
    int r = tg_parallel_rank(p, TG_DP);
    tg_tape *t = tg_tape_new(ctx);
    model m = make(ctx, p);
    tg_flat *b = tg_flat_new(p, m.all, 5, TG_FLAT(.bucket = s->bucket));
    tg_comm_barrier(world); /* a failure would otherwise reach a rank that still makes its model */
    if (r) tg_ctx_fail(ctx, TG_ERR_IO, "the dog ate the batch");
    backward(ctx, t, &m, 0, 4, true);
    tg_grads_finalize(p, m.all, 5, NULL);
    bool reported = r ? tg_ctx_status(ctx) == TG_ERR_IO : strstr(tg_ctx_message(ctx), "the dog ate the batch") != NULL;
    if (!reported) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the failure was not reported");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_parallel_recover(p);
    for (int i = 0; i < 5; i++) tg_zero_grad(m.all[i]);
    backward(ctx, t, &m, r ? 4 : 0, r ? ROWS : 4, !r);
    tg_grads_finalize(p, m.all, 5, NULL);
    read(ctx, &m, &got);
    if (tg_ctx_status(ctx) == TG_OK) compare(ctx, &got, &s->want);
    tg_tape_free(t);
    tg_parallel_free(p); /* before the buckets, which then only own gradients */
    tg_flat_free(b);
    return tg_ctx_status(ctx);
}

START_TEST(buckets_begin_anew_after_a_failure) {
    static const int64_t buckets[] = {1, 40, TG_AUTO};
    setting s = {0};
    whole(&s.want, 1);
    for (size_t i = 0; i < sizeof buckets / sizeof *buckets; i++) {
        s.bucket = buckets[i];
        on_ranks(2, fail_and_train, &s);
    }
}
END_TEST

/* ---- Several sets of buckets ---- */

enum { OBJECTS = 3, EACH = 4 };

/* Parameter i gets the gradient 10^i from each rank that uses it; the gradient of the last one used comes first. */
typedef struct use {
    const char *order[2]; /* parameters that each rank uses, in order */
    double want[OBJECTS];
} use;

static tg_tensor *of_use(tg_tape *t, tg_tensor *const *w, tg_tensor *ones, const char *order) {
    static const double slope[OBJECTS] = {1, 10, 100};
    tg_tensor *sum = NULL;
    for (; *order; order++) {
        int i = *order - 'a';
        tg_tensor *y = tg_scale(t, tg_mul(t, w[i], ones), slope[i]);
        sum = sum ? tg_add(t, sum, y) : y;
    }
    return tg_sum(t, sum, TG_ALL_DIMS, false);
}

static tg_status use_objects(void *arg, tg_ctx *ctx, tg_comm *world) {
    const use *u = arg;
    static const double one[EACH] = {1, 1, 1, 1};
    tg_parallel *p = tg_parallel_new(world, NULL);
    const char *order = u->order[tg_comm_rank(world)];
    tg_tensor *w[OBJECTS], *ones = tg_from_host(ctx, TG_F64, TG_SHAPE(EACH), one);
    tg_flat *b[OBJECTS];
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < OBJECTS; i++) {
        w[i] = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(EACH), 0.5);
        tg_place(p, w[i], TG_DP, TG_R);
        b[i] = tg_flat_new(p, &w[i], 1, NULL);
    }
    for (int step = 0; step < 2 && tg_ctx_status(ctx) == TG_OK; step++) {
        if (*order) tg_backward(t, of_use(t, w, ones, order));
        tg_tape_reset(t);
        tg_grads_finalize(p, w, OBJECTS, NULL);
        for (int i = 0; i < OBJECTS && tg_ctx_status(ctx) == TG_OK; i++) {
            double g[EACH] = {0};
            if (tg_has_grad(w[i])) tg_read_f64(tg_grad_of(w[i]), g, EACH);
            if (g[0] != u->want[i])
                tg_ctx_fail(ctx, TG_ERR_INTERNAL, "\"%s\" and \"%s\": gradient %d is %g, expected %g", u->order[0],
                            u->order[1], i, g[0], u->want[i]);
            tg_zero_grad(w[i]);
        }
    }
    for (int i = 0; i < OBJECTS; i++) tg_flat_free(b[i]);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Their buckets have one size, so that signatures do not distinguish them. */
START_TEST(buckets_of_several_objects_start_in_one_order) {
    static const use uses[] = {
        {{"abc", "abc"}, {2, 20, 200}}, {{"abc", "cba"}, {2, 20, 200}}, {{"bca", "acb"}, {2, 20, 200}},
        {{"abc", "ab"}, {2, 20, 100}},  {{"ba", "bc"}, {1, 20, 100}},   {{"a", "b"}, {1, 10, 0}},
        {{"abc", ""}, {1, 10, 100}},    {{"cba", ""}, {1, 10, 100}},    {{"", "b"}, {0, 10, 0}},
    };
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) on_ranks(2, use_objects, (void *)&uses[i]);
}
END_TEST

/* A parameter is dropped while its buckets remain; new ones get its handle. */
static tg_status reuse(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { HANDLES = 5000 };
    static const double one[EACH] = {1, 1, 1, 1};
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *ones = tg_from_host(ctx, TG_F64, TG_SHAPE(EACH), one), *w[2];
    for (int i = 0; i < 2; i++)
        tg_place(p, w[i] = tg_param_new(ctx, "old", TG_DTYPE_DEFAULT, TG_SHAPE(EACH), 0.5), TG_DP, TG_R);
    tg_flat *b = tg_flat_new(p, w, 2, NULL), *again = NULL;
    tg_tensor *gone = w[0], *same = NULL;
    tg_drop(gone);
    for (int i = 0; i < HANDLES && same != gone; i++)
        same = tg_param_new(ctx, "new", TG_DTYPE_DEFAULT, TG_SHAPE(EACH), 0.5);
    if (same != gone) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the handle was not given again");
    tg_place(p, same, TG_DP, TG_R);
    if (*(const bool *)arg) again = tg_flat_new(p, &same, 1, NULL);
    w[0] = same;
    for (int step = 0; step < 2; step++) {
        double g[2][EACH];
        if (step == 0 || tg_comm_rank(world) == 0) tg_backward(t, of_use(t, w, ones, "ab"));
        tg_tape_reset(t);
        tg_grads_finalize(p, w, 2, NULL);
        for (int i = 0; i < 2; i++) tg_read_f64(tg_grad_of(w[i]), g[i], EACH), tg_zero_grad(w[i]);
        double ranks = step == 0 ? 2 : 1;
        if (tg_ctx_status(ctx) == TG_OK && (g[0][0] != ranks || g[1][0] != 10 * ranks))
            tg_ctx_fail(ctx, TG_ERR_INTERNAL, "step %d: gradients %g and %g of %g ranks", step, g[0][0], g[1][0],
                        ranks);
    }
    tg_flat_free(b);
    tg_flat_free(again);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(buckets_of_a_dropped_parameter_claim_no_other) {
    for (int again = 0; again < 2; again++) on_ranks(2, reuse, &(bool){again});
}
END_TEST

/* ---- Refusals ---- */

static bool refused(tg_ctx *ctx, tg_status s, const char *says) {
    bool as_expected = tg_ctx_status(ctx) == s && strstr(tg_ctx_message(ctx), says);
    if (!as_expected) return false;
    tg_ctx_clear(ctx);
    return true;
}

/* A step completes all sums, and reports it before it starts another one. */
static void what_is_in_buckets(tg_ctx *ctx, tg_parallel *p, tg_tape *t, const model *m) {
    tg_comm_info before = TG_COMM_INFO(), after = TG_COMM_INFO();
    for (int i = 0; i < 5; i++) tg_zero_grad(m->all[i]);
    tg_flat *b = tg_flat_new(p, m->all, 4, TG_FLAT(.bucket = 1));
    tg_flat_set_reduce(b, false);
    backward(ctx, t, m, 0, 4, true);
    tg_comm_query(tg_parallel_world(p), &before);
    tg_grads_finalize(p, m->all, 3, NULL);
    ck_assert(refused(ctx, TG_ERR_STATE, "b2 f64[1] is in a tg_flat but not in params"));
    tg_grads_finalize(p, m->all + 4, 1, NULL);
    ck_assert(refused(ctx, TG_ERR_STATE, "is in a tg_flat but not in params"));
    tg_comm_query(tg_parallel_world(p), &after);
    ck_assert_int_eq(before.calls[TG_ALL_REDUCE], after.calls[TG_ALL_REDUCE]);
    tg_set_requires_grad(m->b2, false); /* frozen: it cannot be listed */
    tg_grads_finalize(p, m->all, 3, NULL);
    ck_assert(refused(ctx, TG_ERR_STATE, "b2 f64[1] is in a tg_flat, and was frozen after a backward"));
    tg_zero_grad(m->b2);
    ck_assert_int_eq(tg_grads_finalize(p, m->all, 3, NULL), TG_OK);
    tg_set_requires_grad(m->b2, true);
    for (int i = 0; i < 5; i++) tg_zero_grad(m->all[i]);
    tg_flat_set_reduce(b, true);
    backward(ctx, t, m, 0, 4, true);
    ck_assert_ptr_null(tg_flat_new(p, m->all + 4, 1, NULL));
    ck_assert(refused(ctx, TG_ERR_STATE, "sums of this step have started"));
    tg_flat_set_reduce(b, false);
    backward(ctx, t, m, 0, 4, true);
    ck_assert(tg_ctx_status(ctx) != TG_OK && strstr(tg_ctx_message(ctx), "after the sum of its bucket had started"));
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    tg_flat_free(b);
    ck_assert(refused(ctx, TG_ERR_STATE, "sums of this step have started, and other ranks wait for them"));
}

/* On a plan no rank waits for another, so that an error of one rank can be examined and cleared. */
START_TEST(gradients_that_are_not_whole_are_not_used) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = TG_F64));
    tg_comm *world = tg_comm_plan_new(ctx, 0, 2);
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    model m = make(ctx, p);
    tg_optim *o = tg_adamw_new(ctx, m.all, 5, NULL);
    ck_assert_int_eq(tg_grads_finalize(p, m.all, 5, NULL), TG_OK); /* a rank that had nothing to do */
    backward(ctx, t, &m, 0, 4, true);
    tg_tensor *twice[] = {m.w1, m.b1, m.w1};
    tg_grads_finalize(p, twice, 3, NULL);
    ck_assert(refused(ctx, TG_ERR_ARGUMENT, "parameter 2 is given twice"));
    ck_assert_int_eq(tg_grads_finalize(p, m.all, 5, NULL), TG_OK);
    tg_grads_finalize(p, m.all, 5, NULL);
    ck_assert(refused(ctx, TG_ERR_STATE, "no backward has run since the last call"));
    tg_flat *b = tg_flat_new(p, m.all, 4, TG_FLAT(.bucket = 1));
    ck_assert_ptr_nonnull(b);
    ck_assert_ptr_null(tg_flat_new(p, m.all, 4, TG_FLAT(.bucket = 1)));
    ck_assert(refused(ctx, TG_ERR_STATE, "is in a tg_flat already"));
    backward(ctx, t, &m, 0, 4, true);
    backward(ctx, t, &m, 0, 4, true);
    ck_assert_msg(refused(ctx, TG_ERR_CALLBACK, "after the sum of its bucket had started") ||
                      refused(ctx, TG_ERR_STATE, "after the sum of its bucket had started"),
                  "%s", tg_ctx_message(ctx));
    tg_flat_free(b);
    ck_assert(refused(ctx, TG_ERR_STATE, "call tg_grads_finalize first"));
    what_is_in_buckets(ctx, p, t, &m);
    tg_tensor *stray = tg_param_new(ctx, "stray", TG_DTYPE_DEFAULT, TG_SHAPE(2), 1);
    ck_assert_ptr_null(tg_flat_new(p, &stray, 1, NULL));
    ck_assert(refused(ctx, TG_ERR_PLACEMENT, "R on dp"));
    tg_optim_free(o);
    tg_tape_free(t);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- The count of tokens ---- */

enum { COUNTED = 4 };

/* Half of a mask of ones, summed over an axis: P there. */
static tg_tensor *count_of_shards(tg_tape *t, const tg_parallel *p, tg_axis axis) {
    const double ones[COUNTED / 2] = {1, 1};
    tg_tensor *mask = tg_from_host(tg_parallel_ctx(p), TG_F64, TG_SHAPE(COUNTED / 2), ones);
    tg_place(p, mask, axis, TG_SHARD(0));
    return tg_sum(t, mask, TG_ALL_DIMS, false);
}

static void give(tg_tape *t, tg_tensor *w, double g) {
    tg_backward(t, tg_scale(t, tg_sum(t, w, TG_ALL_DIMS, false), g));
}

static tg_status count_shards(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    double g = 0;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(1), 0.5);
    tg_place(p, w, TG_DP, TG_R);
    tg_tape *t = tg_tape_new(ctx);
    give(t, w, 2);
    tg_grads_finalize(p, &w, 1, TG_FINALIZE(.tokens = count_of_shards(t, p, TG_DP)));
    if (tg_ctx_status(ctx) == TG_OK) tg_read_f64(tg_grad_of(w), &g, 1);
    if (tg_ctx_status(ctx) == TG_OK && g != 2.0 / COUNTED)
        tg_ctx_fail(ctx, TG_ERR_INTERNAL, "gradient %g", g);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(shares_of_a_count_are_summed_once) { on_ranks(2, count_shards, NULL); }
END_TEST

/* On a plan, see above. */
/* Only the last stage computes a loss. The first stage gives no count, or a count of 0; both stages divide by the
 * sum. If the sum over all stages is 0 they divide by 1. */
static tg_status count_of_stages(void *arg, tg_ctx *ctx, tg_comm *world) {
    const int *given = arg; /* how the first stage gives no count; 2: nor does the last */
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    bool last = tg_parallel_rank(p, TG_PP) == 1;
    tg_tensor *w = tg_param_new_placed(p, "w", TG_F64, TG_SHAPE(1), 1, TG_PLACES({TG_DP, TG_R}));
    double mine = last && *given < 2 ? 3 + 2 * tg_parallel_rank(p, TG_DP) : 0, g = 0, n = tg_parallel_size(p, TG_DP);
    tg_tensor *count = tg_from_host(ctx, TG_F64, TG_SHAPE(), &mine);
    tg_tape *t = tg_tape_new(ctx);
    tg_backward(t, tg_sum(t, tg_scale(t, w, 7), TG_ALL_DIMS, false));
    tg_grads_finalize(p, &w, 1, TG_FINALIZE(.tokens = last || *given ? count : NULL));
    tg_read_f64(tg_grad_of(w), &g, 1);
    double want = *given == 2 ? 7 : 7 / (n == 1 ? 3.0 : 8.0);
    if (tg_ctx_status(ctx) == TG_OK && !(fabs(g - want) < 1e-12))
        tg_ctx_fail(ctx, TG_ERR_GRADIENT, "the gradient is %g, expected %g", g, want);
    tg_tape_free(t);
    tg_drop(count);
    tg_drop(w);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_count_is_that_of_all_stages) {
    for (int given = 0; given < 3; given++) {
        on_ranks(2, count_of_stages, &given);
        on_ranks(4, count_of_stages, &given);
    }
}
END_TEST

START_TEST(a_count_is_the_ranks_own) {
    const double four = 4;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.dtype = TG_F64));
    tg_comm *world = tg_comm_plan_new(ctx, 0, 4);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(1), 0.5);
    tg_place(p, w, TG_DP, TG_R);
    tg_tensor *declared = tg_zeros(ctx, TG_F64, TG_SHAPE());
    tg_place(p, declared, TG_DP, TG_R);
    give(t, w, 1);
    tg_grads_finalize(p, &w, 1, TG_FINALIZE(.tokens = count_of_shards(t, p, TG_TP)));
    ck_assert(refused(ctx, TG_ERR_PLACEMENT, "tokens is P on axis tp, so each rank would divide by its share"));
    tg_tensor *summed = tg_reduce_from_tp(t, count_of_shards(t, p, TG_DP), tg_parallel_comm(p, TG_DP));
    tg_grads_finalize(p, &w, 1, TG_FINALIZE(.tokens = summed));
    ck_assert(refused(ctx, TG_ERR_PLACEMENT, "tokens is I on axis dp, the same count on all its ranks"));
    tg_grads_finalize(p, &w, 1, TG_FINALIZE(.tokens = declared));
    ck_assert(refused(ctx, TG_ERR_PLACEMENT, "tokens is R on axis dp"));
    tg_tensor *own[] = {tg_zeros(ctx, TG_F64, TG_SHAPE()), tg_from_host(ctx, TG_F64, TG_SHAPE(), &four),
                        count_of_shards(t, p, TG_DP)};
    for (int i = 0; i < 3; i++) {
        tg_zero_grad(w);
        give(t, w, 1);
        tg_grads_finalize(p, &w, 1, TG_FINALIZE(.tokens = own[i]));
        ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%d: %s", i, tg_ctx_message(ctx));
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Check mode ---- */

/* Ranks begin with different bytes, and rank 1 sends its own late: after the other could have compared them. */
static tg_status compare_in_flight(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_comm *dp = tg_parallel_comm(p, TG_DP);
    const double mine = tg_comm_rank(dp);
    tg_tensor *w[] = {tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(1), 0.5),
                      tg_param_new(ctx, "unused", TG_DTYPE_DEFAULT, TG_SHAPE(1), 0)};
    for (int i = 0; i < 2; i++) tg_place(p, w[i], TG_DP, TG_R);
    tg_write_f64(w[1], &mine, 1);
    if (tg_comm_rank(dp)) nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    tg_comm_broadcast(dp, w[1], 1);
    tg_tape *t = tg_tape_new(ctx);
    give(t, w[0], 1);
    tg_grads_finalize(p, w, 2, NULL);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(parameters_are_compared_once_they_have_come) { on_ranks(2, compare_in_flight, NULL); }
END_TEST

int main(void) {
    const TTest *tests[] = {data_parallel_gradients_are_one_ranks,
                            buckets_begin_anew_after_a_failure,
                            buckets_of_several_objects_start_in_one_order,
                            buckets_of_a_dropped_parameter_claim_no_other,
                            gradients_that_are_not_whole_are_not_used,
                            shares_of_a_count_are_summed_once,
                            a_count_is_that_of_all_stages,
                            a_count_is_the_ranks_own,
                            parameters_are_compared_once_they_have_come};
    return tg_check_main("grads", tests, sizeof tests / sizeof *tests);
}
