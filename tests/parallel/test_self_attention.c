/* tg_nn_self_attention on several ranks, compared with plain ops on one rank: results, gradients, the norm, and how
 * parameters are placed. */
#include "parallel/self_attention_cases.h"

/* Every two values of two options occur together in some case. */
static const attention_case cases[] = {
    {4, 0, 1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1}, {1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0},
    {2, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0}, {2, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0},
    {4, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1}, {1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 1},
    {4, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 1, 1, 0}, {1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0},
    {2, 1, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 1}, {4, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1},
};
enum { CASES = sizeof cases / sizeof *cases, OPTIONS = sizeof *cases / sizeof(int) };

static const int *options(int i) { return (const int *)&cases[i]; }

START_TEST(every_pair_of_options_has_a_case) {
    const int kv = 0, rope = 5, packed = 12, cross = 13, heads[] = {4, 2, 1};
    for (int a = 0; a < OPTIONS; a++)
        for (int b = a + 1; b < OPTIONS; b++)
            for (int x = 0; x < (a == kv ? 3 : 2); x++)
                for (int y = 0; y < 2; y++) {
                    int found = 0, want = a == kv ? heads[x] : x;
                    if (x && y && (a == rope || a == packed) && b == cross) continue;
                    for (int i = 0; i < CASES; i++) found += options(i)[a] == want && options(i)[b] == y;
                    ck_assert_msg(found, "no case has option %d with value %d and option %d with value %d", a, want, b,
                                  y);
                }
}
END_TEST

typedef struct job {
    attention_case c;
    attention_grid g;
} job;

/* A layer, its inputs, and the optimizer that measures the norm of its gradients. */
typedef struct layer {
    tg_ctx *ctx;
    const tg_parallel *p;
    tg_module *m;
    tg_tape *t;
    tg_tensor *x, *memory, *starts, *seed, *y;
    attention_rows rows, of_memory;
    tg_tensor *params[16]; /* those of the layer, and the memory */
    int n;
} layer;

static layer open_layer(tg_ctx *ctx, const tg_parallel *p, const job *j) {
    const attention_case *c = &j->c;
    int64_t b = c->packed ? 1 : B;
    int parts = tg_is_sequence_parallel(p) ? j->g.tp : 1;
    layer l = {.ctx = ctx, .p = p, .m = attention_new(p, c, &j->g), .t = tg_tape_new(ctx)};
    attention_fill(p, l.m);
    l.rows = attention_rows_of(p, c);
    l.of_memory.n = MEMORY / parts;
    for (int i = 0; i < l.of_memory.n; i++)
        l.of_memory.row[i] = i + (parts > 1 ? tg_parallel_rank(p, TG_TP) * l.of_memory.n : 0);
    l.x = grad_leaf(attention_place(p, attention_input(ctx, 1, b, l.rows.row, l.rows.n), true));
    l.seed = attention_place(p, attention_input(ctx, 2, b, l.rows.row, l.rows.n), true);
    if (c->cross)
        l.memory = grad_leaf(attention_place(p, attention_input(ctx, 3, b, l.of_memory.row, l.of_memory.n), false));
    if (c->packed) l.starts = tg_from_host(ctx, TG_I64, TG_SHAPE(3), attention_starts);
    for (int a = 0; l.starts && a < 3; a++) tg_place(p, l.starts, (tg_axis[]){TG_TP, TG_CP, TG_DP}[a], TG_I);
    l.n = tg_module_params(l.m, l.params, 16);
    if (l.memory) l.params[l.n++] = l.memory; /* under context parallelism its gradient is a sum over ranks too */
    return l;
}

static void close_layer(layer *l) {
    tg_tape_free(l->t);
    tg_module_free(l->m);
}

/* Runs the layer in the way that the ranks do, or in plain ops. */
static tg_status step(layer *l, const attention_case *c, bool plain) {
    tg_tensor *in[2] = {l->x, c->cross ? l->memory : l->starts};
    if (plain) l->y = plain_attention(c, l->t, l->m, l->x, l->memory);
    else tg_module_call(l->m, l->t, in, c->cross || c->packed ? 2 : 1, &l->y, 1);
    tg_backward_with(l->t, &l->y, 1, TG_BACKWARD(.seeds = &l->seed, .retain = true));
    tg_wgrads_drain(l->m);
    return tg_grads_finalize(l->p, l->params, l->n, NULL);
}

/* Returns whether a parameter is placed as attention.h says. */
static bool is_placed(const layer *l, tg_tensor *x, const char *path) {
    tg_placement tp = tg_placement_of(x, TG_TP), cp = tg_placement_of(x, TG_CP);
    if (tg_parallel_size(l->p, TG_CP) > 1 && cp.kind != TG_REPLICATED) return false;
    if (tg_parallel_size(l->p, TG_TP) == 1) return true;
    if (!strcmp(path, "out.weight")) return tp.kind == TG_VARYING && tp.dim == 1;
    if (!strcmp(path, "out.bias"))
        return tp.kind == (tg_is_sequence_parallel(l->p) ? TG_REPLICATED : TG_INVARIANT);
    if (strstr(path, "norm")) return tp.kind == TG_REPLICATED;
    return tp.kind == TG_VARYING && tp.layout == TG_CONTIGUOUS && tp.dim == 0;
}

static tg_status compare_params(const layer *l, const layer *one) {
    for (int i = 0; i < tg_module_param_count(l->m); i++) {
        const char *path;
        tg_tensor *x = tg_module_param(l->m, i, &path), *whole = tg_module_find(one->m, path);
        int r = tg_parallel_rank(l->p, TG_TP), n = tg_parallel_size(l->p, TG_TP);
        EXPECT(l->ctx, whole != NULL);
        EXPECT(l->ctx, is_placed(l, x, path));
        EXPECT(l->ctx, is_part(x, whole, TG_TP, r, n, 0));
        tg_placement at = tg_placement_of(x, TG_TP);
        double most = off(tg_grad_of(x), tg_grad_of(whole), at.kind == TG_VARYING && n > 1 ? at.dim : -1, r, n);
        if (!(most <= 1e-10))
            return tg_ctx_fail(l->ctx, TG_ERR_INTERNAL, "the gradient of %s differs by %g", path, most);
    }
    return TG_OK;
}

/* Returns the norm of the gradients over all ranks. */
static double norm_of(const layer *l) {
    tg_optim *o = tg_adamw_new(l->ctx, l->params, l->n, TG_ADAMW(.lr = 0.01));
    tg_optim_set_clip(o, 1);
    tg_optim_step(o);
    double norm = tg_optim_norm(o);
    tg_optim_free(o);
    return norm;
}

static tg_status case_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    alone a = alone_open();
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->g.tp, .cp = j->g.cp, .sequence_parallel = j->g.sp));
    layer l = open_layer(ctx, p, j), one = open_layer(a.ctx, a.p, j);
    RUN(step(&l, &j->c, false));
    tg_status alone_s = step(&one, &j->c, true);
    if (alone_s) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "one rank: %s", tg_ctx_message(a.ctx));
    EXPECT(ctx, attention_off(l.y, one.y, l.rows.row, l.rows.n) <= 1e-10);
    EXPECT(ctx, attention_off(tg_grad_of(l.x), tg_grad_of(one.x), l.rows.row, l.rows.n) <= 1e-10);
    RUN(compare_params(&l, &one));
    if (l.memory) {
        tg_tensor *g = tg_grad_of(l.memory);
        EXPECT(ctx, attention_off(g, tg_grad_of(one.memory), l.of_memory.row, l.of_memory.n) <= 1e-10);
    }
    EXPECT(ctx, fabs(norm_of(&l) - norm_of(&one)) <= 1e-10);
    close_layer(&l);
    close_layer(&one);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

static void run(attention_case c, attention_grid g) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60, .check = true);
    if (g.cp > 1 && c.packed) c.dropout = 0; /* refused */
    if (g.cp > 1 && c.cross) c.causal = c.window = 0; /* a rank does not have all queries */
    if (c.cross) g.kind = TG_CP_RING;
    job j = {c, g};
    tg_status s = run_ranks(g.tp * g.cp, case_rank, &j,
                            TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "kv %d, case %d, tp %d%s, cp %d, kind %d: %s: %s", c.kv, c.wide, g.tp, g.sp ? " sp" : "",
                  g.cp, (int)g.kind, tg_status_name(s), message);
}

static void run_cases(attention_grid g) {
    for (int i = 0; i < CASES; i++) run(cases[i], g);
}

START_TEST(one_rank_computes_the_plain_ops) { run_cases((attention_grid){.tp = 1, .cp = 1}); }
END_TEST

START_TEST(heads_are_divided_over_ranks) {
    for (int tp = 2; tp <= 4; tp += 2)
        for (int sp = 0; sp < 2; sp++) run_cases((attention_grid){.tp = tp, .cp = 1, .sp = sp});
}
END_TEST

START_TEST(projections_have_their_own_options) {
    run_cases((attention_grid){.tp = 2, .cp = 1, .sp = true, .chunks = true});
    run_cases((attention_grid){.tp = 4, .cp = 1, .deferred = true});
}
END_TEST

START_TEST(sequences_are_divided_over_ranks) {
    const tg_cp_kind kinds[] = {TG_CP_RING, TG_CP_GATHER};
    for (int k = 0; k < 2; k++) run_cases((attention_grid){.tp = 1, .cp = 2, .kind = kinds[k]});
    run_cases((attention_grid){.tp = 2, .cp = 2, .sp = true});
    run_cases((attention_grid){.tp = 2, .cp = 2, .kind = TG_CP_ULYSSES});
}
END_TEST

int main(void) {
    const TTest *const tests[] = {every_pair_of_options_has_a_case, one_rank_computes_the_plain_ops,
                                  heads_are_divided_over_ranks, projections_have_their_own_options,
                                  sequences_are_divided_over_ranks};
    return tg_check_main("self_attention", tests, sizeof tests / sizeof *tests);
}
