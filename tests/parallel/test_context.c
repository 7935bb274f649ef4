/* Attention over a divided sequence, in every way of exchange, against one rank in float64: results, gradients, and the
 * weights that dropout drops. */
#include "parallel/context_cases.h"
#include "parallel/cp/cp.h"

enum { STEPS = 2 };

typedef struct job {
    context_case c;
    int tp;
} job;

static tg_status rows_of(const context_case *c, int n, int rank, int64_t *rows) {
    const int64_t one[] = {0, c->s};
    bool apart = c->sequences && !c->o.cut_as_one;
    return tg_context_cut(apart ? c->starts : one, apart ? c->sequences : 1, n, rank, rows);
}

static tg_status compare(tg_ctx *ctx, const tg_parallel *p, const context_case *c, tg_tensor *y, tg_tensor *whole_y,
                         context_leaves *l, context_leaves *whole) {
    int64_t rows[256], n = c->s / tg_parallel_size(p, TG_CP);
    int tp = tg_parallel_size(p, TG_TP), r = tg_parallel_rank(p, TG_TP);
    RUN(rows_of(c, tg_parallel_size(p, TG_CP), tg_parallel_rank(p, TG_CP), rows));
    RUN(tg_ctx_status(ctx));
    RUN(tg_ctx_status(tg_ctx_of(whole_y)));
    double by = context_off(y, whole_y, rows, n, r * c->h / tp, c->h / tp);
    if (!(by <= 1e-10)) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "result differs by %g", by);
    for (int i = 0; i < 3; i++) {
        int heads = (i ? c->g : c->h) / tp;
        by = context_off(tg_grad_of(l->x[i]), tg_grad_of(whole->x[i]), rows, n, r * heads, heads);
        if (!(by <= 1e-10)) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "gradient of input %d differs by %g", i, by);
    }
    if (!l->sink) return TG_OK;
    tg_tensor *g = tg_parallel_size(p, TG_CP) > 1 ? tg_grad_share(l->sink) : tg_grad_of(l->sink);
    tg_comm_all_reduce(tg_parallel_comm(p, TG_CP), g, g, TG_REDUCE_SUM);
    by = off(g, tg_grad_of(whole->sink), 0, r, tp);
    return by <= 1e-10 ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "gradient of the sink differs by %g", by);
}

/* Runs a case twice on the ranks and on one rank, so that dropout draws twice. */
static tg_status case_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    const context_case *c = &j->c;
    int64_t rows[256], all[256];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->tp, .cp = tg_comm_size(world) / j->tp));
    alone one = alone_open();
    RUN(rows_of(c, tg_parallel_size(p, TG_CP), tg_parallel_rank(p, TG_CP), rows));
    RUN(rows_of(c, 1, 0, all));
    tg_tape *t = tape_on_nans(ctx);
    tg_status s = tg_ctx_status(ctx);
    for (int step = 0; step < STEPS && s == TG_OK; step++) {
        context_leaves l = context_open(ctx, p, c, rows, c->s / tg_parallel_size(p, TG_CP));
        context_leaves whole = context_open(one.ctx, one.p, c, all, c->s);
        tg_tensor *y = context_run(t, &l, c, tg_parallel_comm(p, TG_CP));
        tg_tensor *whole_y = context_run(one.t, &whole, c, tg_parallel_comm(one.p, TG_CP));
        s = compare(ctx, p, c, y, whole_y, &l, &whole);
        tg_tape_reset(t);
        tg_tape_reset(one.t);
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    alone_close(ctx, &one);
    return s;
}

static void run(const context_case *given, int cp, int tp) {
    job j = {.c = *given, .tp = tp};
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60, .check = true);
    context_sizes(&j.c);
    tg_status s = run_ranks(cp * tp, case_rank, &j,
                            TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%s, cp %d, tp %d: %s: %s", given->name, cp, tp, tg_status_name(s), message);
}

/* ---- All kinds ---- */

static const context_case cases[] = {
    {.name = "causal", .o = CASE_OPTS(.causal = true)},
    {.name = "all keys", .o = CASE_OPTS(.causal = false)},
    {.name = "grouped, dv is not dk", .g = 2, .dk = 5, .dv = 3, .o = CASE_OPTS(.causal = true, .scale = 0.7)},
    {.name = "one head of keys", .g = 1, .o = CASE_OPTS(.causal = true)},
    {.name = "a window within a chunk", .o = CASE_OPTS(.causal = true, .left = 2)},
    {.name = "a window over chunks", .o = CASE_OPTS(.causal = true, .left = 17)},
    {.name = "a window, all later keys", .o = CASE_OPTS(.left = 9)},
    {.name = "only itself", .o = CASE_OPTS(.causal = true, .left = 0)},
    {.name = "a sink", .g = 2, .o = CASE_OPTS(.causal = true, .left = 20), .sink = true},
    {.name = "a soft cap", .g = 2, .o = CASE_OPTS(.causal = true, .softcap = 0.6)},
    {.name = "a soft cap, a window, a sink, dropout",
     .o = CASE_OPTS(.causal = true, .left = 20, .softcap = 0.4, .dropout = 0.2),
     .sink = true},
    {.name = "dropout", .o = CASE_OPTS(.causal = true, .dropout = 0.3)},
    {.name = "dropout, all keys, grouped", .g = 2, .o = CASE_OPTS(.dropout = 0.5), .sink = true},
    {.name = "packed, a soft cap", .o = CASE_OPTS(.causal = true, .softcap = 0.5), .starts = {0, 24, 48},
     .sequences = 2},
    {.name = "packed", .o = CASE_OPTS(.causal = true), .starts = {0, 24, 24, 48}, .sequences = 3, .g = 2},
    {.name = "packed, a window and a sink",
     .o = CASE_OPTS(.causal = true, .left = 7),
     .s = 72,
     .starts = {0, 24, 72},
     .sequences = 2,
     .sink = true},
    {.name = "packed, all keys", .o = CASE_OPTS(.left = 5), .s = 72, .starts = {0, 48, 72}, .sequences = 2},
    {.name = "cut as one", .o = CASE_OPTS(.causal = true, .cut_as_one = true), .starts = {0, 1, 13, 13, 48},
     .sequences = 4, .g = 2},
    {.name = "cut as one, one sequence", .o = CASE_OPTS(.causal = true, .cut_as_one = true), .starts = {0, 48},
     .sequences = 1},
    {.name = "cut as one, rows", .b = 2, .o = CASE_OPTS(.causal = true, .cut_as_one = true),
     .starts = {0, 5, 41, 48}, .second = {0, 0, 24, 48}, .sequences = 3},
    {.name = "cut as one, windows within and over chunks", .b = 2,
     .o = CASE_OPTS(.causal = true, .left = 11, .cut_as_one = true), .starts = {0, 3, 45, 48},
     .second = {0, 7, 10, 48}, .sequences = 3, .sink = true},
    {.name = "cut as one, a window over chunks that are not neighbors", .s = 96,
     .o = CASE_OPTS(.causal = true, .left = 40, .softcap = 0.5, .cut_as_one = true), .starts = {0, 2, 90, 96},
     .sequences = 3},
    {.name = "cut as one, all keys", .b = 2, .o = CASE_OPTS(.left = 20, .cut_as_one = true), .starts = {0, 31, 48},
     .second = {0, 1, 48}, .sequences = 2},
    {.name = "cut as one, dropout", .b = 2, .o = CASE_OPTS(.causal = true, .dropout = 0.3, .cut_as_one = true),
     .starts = {0, 9, 48}, .second = {0, 40, 48}, .sequences = 2, .sink = true},
};

/* Runs all cases in one way of exchange. Numbers of ranks that do not divide the heads are left out. */
static void run_cases(tg_cp_kind kind, int inner, int cp, int tp) {
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        context_case c = cases[i];
        c.o.kind = kind;
        c.o.inner = inner;
        if (tp == 2 && c.g == 1) continue;
        run(&c, cp, tp);
    }
}

START_TEST(a_ring_equals_one_rank) {
    for (int cp = 1; cp <= 4; cp++) run_cases(TG_CP_RING, TG_AUTO, cp, 1);
}
END_TEST

START_TEST(gathered_keys_equal_one_rank) {
    for (int cp = 2; cp <= 4; cp++) run_cases(TG_CP_GATHER, TG_AUTO, cp, 1);
}
END_TEST

START_TEST(exchanged_heads_equal_one_rank) {
    for (int cp = 2; cp <= 4; cp += 2) run_cases(TG_CP_ULYSSES, TG_AUTO, cp, 1);
}
END_TEST

START_TEST(a_ring_of_groups_equals_one_rank) { run_cases(TG_CP_HIERARCHY, 2, 4, 1); }
END_TEST

START_TEST(tensor_parallelism_divides_heads_first) {
    for (int i = 0; i < 4; i++) run_cases(context_kinds[i], TG_AUTO, 2, 2);
}
END_TEST

/* ---- Great scores ---- */

/* Scores about -1e300 are finite numbers of float64, so they do not count as those of keys that are hidden. */
static tg_tensor *attend_far(tg_tape *t, context_leaves *l, tg_comm *c, const tg_context_attention_opts *o) {
    tg_tensor *q = tg_exp(t, l->x[0]), *k = tg_neg(t, tg_exp(t, l->x[1]));
    return tg_context_attention(t, q, k, l->x[2], c, o);
}

static tg_status far_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    int64_t rows[256], all[256];
    int n = tg_comm_size(world);
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = n));
    alone one = alone_open();
    context_case c = {.s = 48, .o = CASE_OPTS(.scale = 1e299)};
    context_sizes(&c);
    tg_tape *t = tape_on_nans(ctx);
    RUN(rows_of(&c, n, tg_comm_rank(world), rows));
    RUN(rows_of(&c, 1, 0, all));
    context_leaves l = context_open(ctx, p, &c, rows, c.s / n), whole = context_open(one.ctx, one.p, &c, all, c.s);
    tg_tensor *want = attend_far(one.t, &whole, tg_parallel_comm(one.p, TG_CP), &c.o);
    for (int i = 0; i < 4; i++) {
        c.o.kind = context_kinds[i];
        tg_tensor *y = attend_far(t, &l, tg_parallel_comm(p, TG_CP), &c.o);
        EXPECT(ctx, context_off(y, want, rows, c.s / n, 0, c.h) < 1e-10);
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    return alone_close(ctx, &one);
}

START_TEST(scores_far_below_zero_count) { on_ranks(2, far_rank, NULL); }
END_TEST

/* ---- Samples of the op ---- */

static context_case case_of(const tg_sample *s) {
    const tg_sample_input *q = &s->input[0], *v = &s->input[2], *starts = &s->input[CP_STARTS];
    context_case c = {.name = s->note, .o = ((const tg_cp_params *)s->params)->opts};
    c.b = (int)q->shape.dim[0], c.h = (int)q->shape.dim[1], c.g = (int)v->shape.dim[1];
    c.s = (int)q->shape.dim[2] * s->ranks, c.dk = (int)q->shape.dim[3], c.dv = (int)v->shape.dim[3];
    c.sink = s->input[CP_SINK].kind == TG_SAMPLE_FLOAT;
    if (starts->kind != TG_SAMPLE_STARTS) return c;
    int last = starts->shape.ndim - 1;
    c.sequences = (int)starts->shape.dim[last] - 1;
    for (int row = 0; row <= last; row++)
        for (int i = 0; i <= c.sequences; i++)
            (row ? c.second : c.starts)[i] = (int64_t)starts->hi * i * (1 + row * i) /
                                             (c.sequences * (1 + row * c.sequences));
    return c;
}

START_TEST(samples_equal_one_rank) {
    const tg_op *op = tg_op_find("ContextAttention");
    for (int i = 0; i < op->n_samples; i++) {
        context_case c = case_of(&op->samples[i]);
        if (op->samples[i].ranks > 1) run(&c, op->samples[i].ranks, 1);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_ring_equals_one_rank,
                                  gathered_keys_equal_one_rank,
                                  exchanged_heads_equal_one_rank,
                                  a_ring_of_groups_equals_one_rank,
                                  tensor_parallelism_divides_heads_first,
                                  scores_far_below_zero_count,
                                  samples_equal_one_rank};
    return tg_check_main("context", tests, sizeof tests / sizeof tests[0]);
}
