/* Experts whose grid equals the dense one (ep 1, etp = tp): parameters, values, gradients, the clipping norm and
 * sharded state equal one rank's. */
#include <stdlib.h>
#include <unistd.h>

#include <tapegrad/io.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/checkpoint.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/megatron.h>

#include "on_ranks.h"

enum { ROWS = 8, H = 12, F = 24, X = 1 };

typedef struct grid {
    int ranks, tp, cp;
    const char *order;
    bool one; /* the experts' grid is the dense one */
} grid;

static const grid grids[] = {{2, 2, 1, NULL, true},       {4, 2, 1, NULL, true},    {2, 1, 1, NULL, true},
                             {4, 2, 2, NULL, true},       {8, 2, 2, NULL, true},    {4, 2, 2, "cp-tp-dp", false},
                             {4, 2, 2, "cp-dp-tp", true}, {4, 2, 1, "dp-tp", true}, {8, 2, 2, "tp-dp-cp", true}};
enum { GRIDS = sizeof grids / sizeof *grids };

/* ---- An expert ---- */

typedef struct expert {
    tg_module *box, *up, *down;
    tg_tensor *params[3]; /* weight and bias of up, weight of down */
} expert;

static const tg_module_ops box_ops = {.size = sizeof(tg_module_ops), .kind = "box"};

static expert expert_new(const tg_parallel *p) {
    expert e = {.box = tg_module_new(tg_parallel_ctx(p), &box_ops, NULL),
                .up = tg_nn_column_linear(p, H, F, TG_PARALLEL_LINEAR(.expert = true, .std = 0.3)),
                .down = tg_nn_row_linear(p, F, H, TG_PARALLEL_LINEAR(.expert = true, .std = 0.3, .no_bias = true))};
    tg_module_add_child(e.box, "up", e.up);
    tg_module_add_child(e.box, "down", e.down);
    tg_module_params(e.box, e.params, 3);
    return e;
}

/* Does around the layers what a dispatcher of tokens does: copies x to every etp rank, and sums their results. */
static tg_tensor *expert_run(const expert *e, const tg_parallel *p, tg_tape *t, tg_tensor *x) {
    tg_comm *etp = tg_parallel_comm(p, TG_ETP);
    tg_tensor *h = tg_tanh(t, tg_module_forward(e->up, t, tg_copy_to_tp(t, x, etp)));
    return tg_reduce_from_tp(t, tg_module_forward(e->down, t, h), etp);
}

static double clip_norm(tg_ctx *ctx, expert *e) {
    tg_optim *o = tg_adamw_new(ctx, e->params, 3, NULL);
    double norm = tg_optim_clip(o, 0);
    tg_optim_free(o);
    return norm;
}

/* ---- One rank ---- */

typedef struct alone {
    tg_ctx *ctx;
    tg_comm *self;
    tg_parallel *p;
    tg_tape *t;
    expert e;
    tg_tensor *x, *y;
    double norm;
} alone;

static alone alone_open(void) {
    alone a = {.ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7))};
    a.self = tg_comm_self_new(a.ctx);
    a.p = tg_parallel_new(a.self, NULL);
    a.t = tg_tape_new(a.ctx);
    a.e = expert_new(a.p);
    a.x = grad_leaf(made(a.ctx, X, TG_SHAPE(ROWS, H)));
    a.y = expert_run(&a.e, a.p, a.t, a.x);
    tg_tensor *loss = tg_sum(a.t, tg_square(a.t, a.y), TG_ALL_DIMS, false);
    tg_backward_with(a.t, &loss, 1, TG_BACKWARD(.retain = true));
    a.norm = clip_norm(a.ctx, &a.e);
    return a;
}

static tg_status alone_close(tg_ctx *ctx, alone *a) {
    if (tg_ctx_status(a->ctx) != TG_OK) tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the one rank: %s", tg_ctx_message(a->ctx));
    tg_module_free(a->e.box);
    tg_tape_free(a->t);
    tg_parallel_free(a->p);
    tg_comm_free(a->self);
    tg_ctx_free(a->ctx);
    return tg_ctx_status(ctx);
}

/* ---- Comparison with one rank ---- */

/* The dim of each parameter that etp shards. */
static const int cut[3] = {0, 0, 1};

static tg_status parameters_lie(tg_ctx *ctx, const tg_parallel *p, const grid *g, const expert *e, const alone *a) {
    int r = tg_parallel_rank(p, TG_ETP);
    for (int i = 0; i < 3; i++) {
        int dim = -2, stride = -2;
        EXPECT(ctx, off(e->params[i], a->e.params[i], cut[i], r, g->tp) == 0);
        EXPECT(ctx, tg_global_shape(e->params[i]).dim[cut[i]] == tg_dim(a->e.params[i], cut[i]));
        EXPECT(ctx, tg_tp_attributes(e->params[i], &dim, &stride) == (g->tp > 1));
        EXPECT(ctx, dim == (g->tp > 1 ? cut[i] : -1) && stride == 1);
        EXPECT(ctx, tg_is_tp_duplicate(p, e->params[i]) == (g->tp == 1 && r > 0));
        tg_placement etp = tg_placement_of(e->params[i], TG_ETP), edp = tg_placement_of(e->params[i], TG_EDP);
        EXPECT(ctx, g->tp == 1 || (etp.kind == TG_VARYING && etp.dim == cut[i]));
        EXPECT(ctx, tg_parallel_size(p, TG_EDP) == 1 || edp.kind == TG_REPLICATED);
        if (!g->one) continue;
        EXPECT(ctx, tg_placement_of(e->params[i], TG_TP).kind == etp.kind);
        EXPECT(ctx, tg_parallel_size(p, TG_DP) == 1 || tg_placement_of(e->params[i], TG_DP).kind == TG_REPLICATED);
        EXPECT(ctx, tg_parallel_size(p, TG_CP) == 1 || tg_placement_of(e->params[i], TG_CP).kind == TG_REPLICATED);
    }
    return TG_OK;
}

/* A shard over edp, which may be two axes, has the rows of this rank's position there. */
static tg_status rows_lie(tg_ctx *ctx, const tg_parallel *p, const alone *a) {
    tg_tensor *w[2];
    for (int i = 0; i < 2; i++)
        w[i] = tg_param_new_placed(i ? a->p : p, "w", TG_F64, TG_SHAPE(8, 3), 1, TG_PLACES({TG_EDP, TG_SHARD(0)}));
    EXPECT(ctx, off(w[0], w[1], 0, tg_parallel_rank(p, TG_EDP), tg_parallel_size(p, TG_EDP)) == 0);
    tg_drop(w[0]), tg_drop(w[1]);
    return tg_ctx_status(ctx);
}

/* Rows of x on dp and cp, which together are edp. If there are two grids, tokens enter the experts' grid as after a
 * dispatch. */
static tg_tensor *tokens(tg_ctx *ctx, const tg_parallel *p, const grid *g) {
    int n = tg_parallel_size(p, TG_EDP), r = tg_parallel_rank(p, TG_EDP);
    tg_tensor *x = grad_leaf(part(ctx, X, TG_SHAPE(ROWS, H), 0, r, n));
    tg_place(p, x, TG_ETP, TG_I);
    tg_place(p, x, TG_EDP, TG_SHARD(0));
    if (g->one) return x;
    tg_place(p, x, TG_TP, TG_I);
    tg_place(p, x, TG_CP, TG_I);
    tg_place(p, x, TG_DP, TG_I);
    return x;
}

static tg_status trained(void *arg, tg_ctx *ctx, tg_comm *world) {
    const grid *g = arg;
    alone a = alone_open();
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = g->tp, .cp = g->cp, .order = g->order));
    int r = tg_parallel_rank(p, TG_ETP), d = tg_parallel_rank(p, TG_EDP), n = tg_parallel_size(p, TG_EDP);
    expert e = expert_new(p);
    tg_tape *t = tg_tape_new(ctx);
    RUN(parameters_lie(ctx, p, g, &e, &a));
    RUN(rows_lie(ctx, p, &a));
    tg_tensor *x = tokens(ctx, p, g), *y = expert_run(&e, p, t, x);
    EXPECT(ctx, off(y, a.y, n > 1 ? 0 : -1, d, n) < 1e-12);
    tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
    RUN(tg_grads_finalize(p, e.params, 3, NULL));
    for (int i = 0; i < 3; i++)
        EXPECT(ctx, off(tg_grad_of(e.params[i]), tg_grad_of(a.e.params[i]), cut[i], r, g->tp) < 1e-11);
    EXPECT(ctx, off(tg_grad_of(x), tg_grad_of(a.x), n > 1 ? 0 : -1, d, n) < 1e-11);
    EXPECT(ctx, fabs(clip_norm(ctx, &e) - a.norm) < 1e-10 * a.norm);
    /* An output that is gathered over the group of the layer. */
    tg_tensor *all = tg_parallel_linear_apply(e.up, t, tg_copy_to_tp(t, x, tg_parallel_comm(p, TG_ETP)), NULL, 1);
    EXPECT(ctx, tg_dim(all, -1) == F && (g->tp == 1 || tg_placement_of(all, TG_ETP).kind == TG_INVARIANT));
    tg_module_free(e.box);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return alone_close(ctx, &a);
}

START_TEST(experts_are_one_ranks) {
    for (int i = 0; i < GRIDS; i++) on_ranks(grids[i].ranks, trained, (void *)&grids[i]);
}
END_TEST

/* ---- Sharded state ---- */

typedef struct job {
    const grid *g;
    const char *from, *to;
} job;

static tg_status load_and_save(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = j->g->tp, .cp = j->g->cp, .order = j->g->order));
    if (j->from) tg_rng_set(ctx, NULL, &(tg_rng){.seed = 99}); /* other weights until they are loaded */
    expert e = expert_new(p);
    tg_shards *s = tg_shards_new(p);
    tg_shards_add_module(s, "expert", e.box);
    if (j->from) RUN(tg_shards_load(s, j->from));
    RUN(tg_shards_save(s, j->to));
    tg_shards_free(s);
    tg_module_free(e.box);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Reads the file that one rank has saved. */
static long slurp(const char *dir, char *out, size_t room) {
    char path[512];
    snprintf(path, sizeof path, "%s/rank-00000.safetensors", dir);
    FILE *f = fopen(path, "rb");
    long n = f ? (long)fread(out, 1, room, f) : -1;
    if (f) fclose(f);
    return n;
}

static void empty(const char *dir) {
    char command[600];
    snprintf(command, sizeof command, "rm -f %s/*", dir);
    ck_assert(system(command) == 0);
}

START_TEST(any_grid_loads_their_state) {
    static const grid one = {1, 1, 1, NULL, true};
    char dir[3][64] = {"/tmp/tapegrad-experts-XXXXXX", "/tmp/tapegrad-experts-XXXXXX", "/tmp/tapegrad-experts-XXXXXX"};
    static char want[1 << 15], got[1 << 15];
    for (int i = 0; i < 3; i++) ck_assert(mkdtemp(dir[i]) != NULL);
    on_ranks(1, load_and_save, &(job){&one, NULL, dir[0]});
    long n = slurp(dir[0], want, sizeof want);
    ck_assert(n > (2 * H + 1) * F * 8 && n < (long)sizeof want);
    for (int i = 0; i < GRIDS; i++) {
        for (int k = 0; k < 3; k++) empty(dir[k]);
        on_ranks(grids[i].ranks, load_and_save, &(job){&grids[i], NULL, dir[0]});
        on_ranks(1, load_and_save, &(job){&one, dir[0], dir[1]});
        ck_assert_int_eq(slurp(dir[1], got, sizeof got), n);
        ck_assert_msg(!memcmp(got, want, (size_t)n), "grid %d saves another state", i);
        on_ranks(grids[i].ranks, load_and_save, &(job){&grids[i], dir[1], dir[2]});
        empty(dir[1]);
        on_ranks(1, load_and_save, &(job){&one, dir[2], dir[1]});
        ck_assert_int_eq(slurp(dir[1], got, sizeof got), n);
        ck_assert_msg(!memcmp(got, want, (size_t)n), "grid %d loads another state", i);
    }
    for (int i = 0; i < 3; i++) {
        empty(dir[i]);
        rmdir(dir[i]);
    }
}
END_TEST

/* ---- One axis with two names ---- */

static tg_status two_names(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(4, 3)), *y = tg_zeros(ctx, TG_F64, TG_SHAPE(4, 3));
    tg_place(p, x, TG_ETP, TG_SHARD(0));
    EXPECT(ctx, tg_placement_of(x, TG_TP).kind == TG_VARYING && tg_placement_of(x, TG_ETP).kind == TG_VARYING);
    REFUSED(ctx, TG_ERR_STATE, "was placed on axis tp already", tg_place(p, x, TG_TP, TG_SHARD(1)));
    REFUSED(ctx, TG_ERR_STATE, "was placed on axis tp, which is etp here, already", tg_place(p, x, TG_ETP, TG_I));
    tg_place(p, x, TG_EDP, TG_R);
    EXPECT(ctx, tg_place(p, x, TG_EDP, TG_R) == TG_OK && tg_place(p, x, TG_TP, TG_SHARD(0)) == TG_OK);
    REFUSED(ctx, TG_ERR_STATE, "was placed on axis dp, which is edp here, already", tg_place(p, x, TG_EDP, TG_P));
    EXPECT(ctx, tg_placement_of(x, TG_DP).kind == TG_REPLICATED && tg_placement_of(x, TG_EDP).kind == TG_REPLICATED);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *z = tg_assume_placement(t, y, p, TG_ETP, TG_SHARD(1));
    z = tg_assume_placement(t, z, p, TG_EDP, TG_R);
    EXPECT(ctx, tg_placement_of(z, TG_TP).dim == 1 && tg_placement_of(z, TG_DP).kind == TG_REPLICATED);
    tg_tape_free(t);
    REFUSED(ctx, TG_ERR_ARGUMENT, "a shard on etp and on tp, but etp includes tp here",
            tg_param_new_placed(p, "w", TG_F64, TG_SHAPE(8), 0,
                                TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_ETP, TG_SHARD(0)})));
    tg_drop(x), tg_drop(y);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

static tg_status two_axes(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = 2));
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(4, 3));
    REFUSED(ctx, TG_ERR_UNSUPPORTED, "a zigzag shard over edp is not supported",
            tg_place(p, x, TG_EDP, TG_SHARD_ZIGZAG(0)));
    tg_tape *t = tg_tape_new(ctx);
    REFUSED(ctx, TG_ERR_UNSUPPORTED, "a zigzag shard over edp is not supported",
            tg_assume_placement(t, x, p, TG_EDP, TG_SHARD_ZIGZAG(0)));
    tg_tape_free(t);
    tg_place(p, x, TG_EDP, TG_SHARD(0));
    EXPECT(ctx, tg_placement_of(x, TG_DP).order == 0 && tg_placement_of(x, TG_CP).order == 1);
    EXPECT(ctx, tg_global_shape(x).dim[0] == 16);
    REFUSED(ctx, TG_ERR_ARGUMENT, "a shard on edp and on cp",
            tg_param_new_placed(p, "w", TG_F64, TG_SHAPE(8), 0,
                                TG_PLACES({TG_EDP, TG_SHARD(0)}, {TG_CP, TG_SHARD(0)})));
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* A placement on edp, which is dp and cp here, places a leaf on the axes where it is not placed so already. */
static tg_status one_axis_is_placed(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = 2));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_zeros(ctx, TG_F64, TG_SHAPE(4, 3)), *y = tg_zeros(ctx, TG_F64, TG_SHAPE(4, 3));
    RUN(tg_place(p, x, TG_DP, TG_R));
    RUN(tg_place(p, x, TG_EDP, TG_R));
    EXPECT(ctx, tg_placement_of(x, TG_CP).kind == TG_REPLICATED);
    RUN(tg_place(p, y, TG_DP, TG_SHARD(0)));
    RUN(tg_place(p, y, TG_EDP, TG_SHARD(0)));
    EXPECT(ctx, tg_global_shape(y).dim[0] == 4 * tg_comm_size(world));
    tg_add(t, x, x);
    RUN(tg_place(p, x, TG_EDP, TG_R));
    REFUSED(ctx, TG_ERR_STATE, "it is R there, and cannot become I", tg_place(p, x, TG_EDP, TG_I));
    tg_tape_free(t);
    tg_drop(x), tg_drop(y);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(etp_is_tp_there) {
    on_ranks(4, two_names, NULL);
    on_ranks(4, two_axes, NULL);
    for (int n = 2; n <= 4; n += 2) on_ranks(n, one_axis_is_placed, NULL); /* 2: dp has one rank */
}
END_TEST

/* Replication acts on the dense grid only: a parameter on the experts' grid would otherwise be summed over both. */
static tg_status replicated(void *arg, tg_ctx *ctx, tg_comm *world) {
    const tg_parallel_opts *o = arg;
    tg_parallel *p = tg_parallel_new(world, o);
    expert e = expert_new(p);
    tg_module *norm = tg_nn_rms_norm(ctx, H, 1e-6);
    tg_module_add_child(e.box, "norm", norm);
    RUN(tg_module_replicate(e.box, p));
    for (int i = 0; i < 3; i++)
        EXPECT(ctx, tg_placement_of(e.params[i], TG_DP).kind == (o->ep > 1 ? TG_INVARIANT : TG_REPLICATED));
    EXPECT(ctx, tg_placement_of(tg_module_find(norm, "weight"), TG_DP).kind == TG_REPLICATED);
    tg_module_free(e.box);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(replication_leaves_them_alone) {
    on_ranks(4, replicated, TG_PARALLEL(.tp = 2, .ep = 2));
    on_ranks(4, replicated, TG_PARALLEL(.tp = 2));
}
END_TEST

int main(void) {
    const TTest *const tests[] = {experts_are_one_ranks, any_grid_loads_their_state, etp_is_tp_there,
                                  replication_leaves_them_alone};
    return tg_check_main("experts", tests, sizeof tests / sizeof *tests);
}
