/* Sharded state of a run whose optimizer's state is divided over data-parallel ranks (tg_flat, zero above 0): it is the
 * state of a run in which it is not, any number of ranks loads it, and training goes on with the same bits. */
#define _GNU_SOURCE
#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/io.h>

#include "state.h"

enum { PARAMS = 4, ROWS = 24, COLUMNS = 11 };

typedef struct grid {
    int ranks, tp, zero;
} grid;

typedef struct run {
    tg_ctx *ctx;
    tg_parallel *p;
    tg_tape *t;
    tg_tensor *x[PARAMS], *const *leaf;
    tg_module *m;
    tg_flat *flat;
    tg_optim *o;
    tg_average *a;
    tg_shards *s;
} run;

/* Parameters of two dtypes, sharded over tp or not. Padding rows of the first are not saved. */
static void make_params(run *r) {
    int k = 0;
#define PARAM(name, dtype, shape, ...) r->x[k] = filled(r->p, name, k, dtype, shape, TG_PLACES(__VA_ARGS__), 1), k++
    PARAM("table", TG_BF16, TG_SHAPE(ROWS, COLUMNS), {TG_TP, TG_SHARD(0)}, {TG_DP, TG_R});
    PARAM("column", TG_F32, TG_SHAPE(5, ROWS), {TG_TP, TG_SHARD(1)}, {TG_DP, TG_R});
    PARAM("bias", TG_F32, TG_SHAPE(70), {TG_TP, TG_I}, {TG_DP, TG_R});
    PARAM("gain", TG_BF16, TG_SHAPE(3), {TG_TP, TG_R}, {TG_DP, TG_R});
    r->m = tg_module_new(r->ctx, &box, NULL);
    for (int i = 0; i < k; i++) tg_module_add_param(r->m, tg_name(r->x[i]), r->x[i]);
}

static run run_open(tg_ctx *ctx, tg_comm *world, const grid *g) {
    run r = {.ctx = ctx, .p = tg_parallel_new(world, TG_PARALLEL(.tp = g->tp)), .t = tg_tape_new(ctx)};
    make_params(&r);
    r.flat = tg_flat_new(r.p, r.x, PARAMS, TG_FLAT(.bucket = 150, .zero = g->zero));
    tg_flat_leaves(r.flat, &r.leaf);
    r.o = tg_adamw_new(ctx, r.leaf, PARAMS, TG_ADAMW(.lr = 1e-2));
    r.a = tg_ema_new(ctx, r.leaf, PARAMS, 0.5);
    r.s = tg_shards_new(r.p);
    tg_shards_add_module(r.s, "model", r.m);
    tg_shards_add_optim(r.s, "optim", r.o);
    tg_shards_add_average(r.s, "ema", r.a);
    tg_shards_set_rows(r.s, "model.table", ROWS - 5);
    return r;
}

static void run_close(run *r) {
    tg_shards_free(r->s);
    tg_average_free(r->a);
    tg_optim_free(r->o);
    tg_flat_free(r->flat);
    tg_module_free(r->m);
    tg_tape_free(r->t);
    tg_parallel_free(r->p);
}

/* Factors of the squares of parameter i: 0 but on the first of the ranks over which its gradient is summed. So the sum
 * is exact, whatever their number. */
static tg_tensor *factors(const run *r, int i, int step) {
    double v[ROWS * COLUMNS];
    bool first = !tg_parallel_rank(r->p, TG_DP) && (strcmp(tg_name(r->x[i]), "gain") || !tg_parallel_rank(r->p, TG_TP));
    for (int k = 0; k < tg_numel(r->x[i]); k++) v[k] = first ? i + 2 * step + 1 : 0;
    tg_tensor *x = tg_from_host(r->ctx, TG_F64, tg_shape_of(r->x[i]), v);
    tg_placement tp = tg_placement_of(r->x[i], TG_TP);
    tg_place(r->p, x, TG_DP, TG_V);
    tg_place(r->p, x, TG_TP, tp.kind == TG_REPLICATED ? TG_V : tp);
    return x;
}

static tg_status train(run *r, int step) {
    for (int i = 0; i < PARAMS; i++) {
        tg_tensor *f = factors(r, i, step), *scale = tg_cast(r->t, f, tg_dtype_of(r->x[i]));
        tg_tensor *root = tg_sum(r->t, tg_mul(r->t, tg_square(r->t, r->x[i]), scale), TG_ALL_DIMS, false);
        RUN(tg_backward(r->t, root));
        tg_drop(f);
    }
    tg_tape_reset(r->t);
    RUN(tg_grads_finalize(r->p, r->x, PARAMS, NULL));
    RUN(tg_optim_step(r->o));
    RUN(tg_flat_gather(r->flat));
    RUN(tg_average_update(r->a));
    return tg_optim_zero_grad(r->o);
}

typedef struct job {
    grid g;
    const char *from, *to; /* names of directories; from NULL: two steps are made instead */
    int steps;
} job;

static tg_status run_job(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    char dir[256];
    run r = run_open(ctx, world, &j->g);
    if (j->from) RUN(tg_shards_load(r.s, in_root(dir, "%s", j->from)));
    for (int i = 0; i < j->steps; i++) RUN(train(&r, i));
    RUN(tg_shards_save(r.s, in_root(dir, "%s", j->to)));
    run_close(&r);
    return tg_ctx_status(ctx);
}

/* Saves a state again by one rank. Its file is then the same for equal states. */
static void by_one_rank(const char *from, const char *to) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf %s/%s", root, to);
    ck_assert(system(command) == 0);
    on_ranks(1, run_job, &(job){{1, 1, 0}, from, to, 0});
}

static bool same_states(const char *a, const char *b) {
    char x[256], y[256];
    by_one_rank(a, "one-a");
    by_one_rank(b, "one-b");
    return same_state(in_root(x, "one-a"), in_root(y, "one-b"));
}

static const grid grids[] = {{4, 1, 1}, {4, 1, 0}, {3, 1, 1}, {2, 1, 1}, {1, 1, 1}, {4, 2, 1},
                             {2, 2, 1}, {2, 1, 0}, {3, 1, 2}, {4, 2, 2}, {2, 1, 3}, {4, 2, 3}};

/* Loading state of another grid, and saving it, gives the same bytes. */
START_TEST(any_ranks_load_divided_state) {
    on_ranks(4, run_job, &(job){grids[0], NULL, "first", 2});
    on_ranks(4, run_job, &(job){grids[1], NULL, "whole", 2});
    ck_assert(same_states("first", "whole"));
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        for (size_t k = 0; k < sizeof grids / sizeof *grids; k++) {
            if (i && k && (i + k) % 3) continue; /* each with the first one, and some pairs of the others */
            on_ranks(grids[i].ranks, run_job, &(job){grids[i], "first", "between", 0});
            on_ranks(grids[k].ranks, run_job, &(job){grids[k], "between", "again", 0});
            ck_assert_msg(same_states("first", "again"), "grids %zu and %zu", i, k);
        }
}
END_TEST

/* The steps after a load, with the masters and moments that were loaded, are those of a run that was not stopped. */
START_TEST(training_goes_on_with_the_same_bits) {
    on_ranks(4, run_job, &(job){grids[0], NULL, "first", 2});
    on_ranks(4, run_job, &(job){grids[0], "first", "steps", 2});
    for (size_t i = 1; i < sizeof grids / sizeof *grids; i++) {
        on_ranks(grids[i].ranks, run_job, &(job){grids[i], "first", "others", 2});
        ck_assert_msg(same_states("steps", "others"), "grid %zu", i);
    }
}
END_TEST

/* The list keeps no pointer to leaves that have ended. */
static tg_status free_too_early(void *arg, tg_ctx *ctx, tg_comm *world) {
    char dir[256];
    run r = run_open(ctx, world, arg);
    tg_flat_free(r.flat);
    r.flat = NULL;
    REFUSED(ctx, TG_ERR_HANDLE, "was dropped; it must outlive the list", tg_shards_save(r.s, in_root(dir, "never")));
    run_close(&r);
    return tg_ctx_status(ctx);
}

START_TEST(leaves_must_outlive_the_list) { on_ranks(1, free_too_early, (void *)&grids[4]); }
END_TEST

/* A parameter that a module has under two names is one item, whether ranks keep all of it or a range. */
static tg_status tied(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_shard_info info = TG_SHARD_INFO();
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *w = filled(p, "w", 0, TG_F32, TG_SHAPE(6, 4), TG_PLACES({TG_TP, TG_I}, {TG_DP, TG_R}), 1);
    tg_module *m = tg_module_new(ctx, &box, NULL);
    tg_module_add_param(m, "first", w);
    tg_module_add_param(m, "second", w);
    tg_flat *flat = tg_flat_new(p, &w, 1, TG_FLAT(.zero = *(int *)arg));
    tg_shards *s = tg_shards_new(p);
    RUN(tg_shards_add_module(s, "", m));
    RUN(tg_shards_at(s, 0, &info));
    EXPECT(ctx, tg_shards_count(s) == 1 && !strcmp(info.key, "first"));
    tg_shards_free(s);
    tg_flat_free(flat);
    tg_module_free(m);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_parameter_of_two_names_is_saved_once) {
    for (int zero = 0; zero <= 3; zero++) on_ranks(2, tied, &zero);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        any_ranks_load_divided_state,
        training_goes_on_with_the_same_bits,
        leaves_must_outlive_the_list,
        a_parameter_of_two_names_is_saved_once,
    };
    return state_main("zero shards", tests, sizeof tests / sizeof *tests);
}
