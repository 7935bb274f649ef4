/* Recomputation with collectives in the function, and with inputs that are distributed over the ranks. */
#include <tapegrad/extend.h>
#include <tapegrad/megatron.h>
#include <tapegrad/ranks.h>

#include "device_ranks.h"

#include "on_ranks.h"

enum { ROWS = 5, COLUMNS = 7, N = ROWS * COLUMNS };

typedef struct block {
    tg_comm *c;
    tg_tensor *w;
    int runs;
} block;

/* A column and a row layer in one, all-reduced in both directions. */
static tg_status parallel_block(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    block *b = state;
    b->runs++;
    tg_tensor *h = tg_tanh(t, tg_linear(t, tg_copy_to_tp(t, in[0], b->c), b->w, NULL));
    h = tg_dropout(t, h, 0.25);
    tg_tensor *y = tg_reduce_from_tp(t, tg_matmul(t, h, b->w), b->c);
    out[0] = tg_add(t, tg_dropout(t, y, 0.25), in[0]);
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_status squares(tg_tape *t, tg_tensor *y) {
    return tg_backward(t, tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false));
}

static int64_t saved(tg_ctx *ctx) {
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    return m.by_category[TG_MEM_SAVED];
}

typedef enum how { PLAIN, RECOMPUTED, DISTRIBUTED, REPLAYED, HOWS } how;

/* Runs three blocks in sequence and computes the gradients of x and w. */
static tg_status blocks(tg_ctx *ctx, tg_comm *c, how how, double *gx, double *gw, int64_t *bytes) {
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(ROWS, COLUMNS))),
              *w = grad_leaf(part(ctx, 2, TG_SHAPE(4 * n, COLUMNS), 0, me, n));
    tg_tape *t = tg_tape_new(ctx);
    block b[3];
    tg_rng_set(ctx, NULL, &(tg_rng){.seed = 11});
    tg_tensor *y = tg_tanh(t, x); /* a result, whose memory may be freed */
    for (int i = 0; i < 3; i++) {
        b[i] = (block){.c = c, .w = w};
        tg_tensor *in = y;
        if (how == PLAIN) RUN(parallel_block(&b[i], t, &in, 1, &y, 1));
        if (how == RECOMPUTED) RUN(tg_recompute(t, parallel_block, &b[i], &in, 1, &y, 1, NULL));
        if (how == DISTRIBUTED)
            RUN(tg_recompute(t, parallel_block, &b[i], &in, 1, &y, 1, TG_RECOMPUTE(.distribute = c)));
        if (how != REPLAYED) continue;
        tg_replay *r = tg_replay_open(t);
        RUN(tg_replay_run(r, parallel_block, &b[i], &in, 1, &y, 1, TG_RECOMPUTE(.distribute = c)));
        RUN(tg_replay_close(r, y));
    }
    *bytes = saved(ctx);
    RUN(squares(t, y));
    for (int i = 0; i < 3; i++) EXPECT(ctx, b[i].runs == (how == PLAIN ? 1 : 2));
    RUN(tg_read_f64(tg_grad_of(x), gx, N));
    RUN(tg_read_f64(tg_grad_of(w), gw, 4 * COLUMNS));
    tg_tape_free(t);
    tg_drop(x), tg_drop(w);
    return tg_ctx_status(ctx);
}

static tg_status every_way(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    double gx[N], gw[4 * COLUMNS], hx[N], hw[4 * COLUMNS];
    int64_t bytes[HOWS];
    tg_comm *c = tg_comm_split(world, 0, 0, "tp", TG_TP);
    RUN(blocks(ctx, c, PLAIN, gx, gw, &bytes[PLAIN]));
    for (int h = RECOMPUTED; h < HOWS; h++) {
        RUN(blocks(ctx, c, (how)h, hx, hw, &bytes[h]));
        for (int i = 0; i < N; i++) EXPECT(ctx, fabs(hx[i] - gx[i]) <= 1e-14);
        for (int i = 0; i < 4 * COLUMNS; i++) EXPECT(ctx, fabs(hw[i] - gw[i]) <= 1e-14);
    }
    /* tanh saves its result, so the first input stays; a part of the other two remains. */
    int n = tg_comm_size(world), most = (N + n - 1) / n, left = N - tg_comm_rank(world) * most;
    int64_t own = (left > most ? most : left < 0 ? 0 : left) * 8, whole = (N * 8 + 63) / 64 * 64;
    int64_t one = own ? (own + 63) / 64 * 64 : 64;
    EXPECT(ctx, n == 1 || bytes[RECOMPUTED] - bytes[DISTRIBUTED] == 2 * (whole - one));
    tg_comm_free(c);
    return tg_ctx_status(ctx);
}

static void on_checking_ranks(int n, tg_rank_fn fn) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60, .check = true);
    tg_status s =
        run_ranks(n, fn, NULL, TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%d ranks: %s: %s", n, tg_status_name(s), message);
}

START_TEST(functions_with_collectives_are_recomputed) {
    for (int n = 1; n <= 4; n++) {
        on_ranks(n, every_way, NULL);
        on_checking_ranks(n, every_way);
    }
}
END_TEST

/* ---- Derivatives on the tape ---- */

/* Recorded gradients of x and w, and the gradient by w of the square of the first, of a function with distributed
 * inputs. */
static tg_status derivatives(tg_ctx *ctx, tg_parallel *p, bool recomputed, double *got) {
    tg_comm *c = tg_parallel_comm(p, TG_TP);
    int n = tg_comm_size(c);
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(ROWS, COLUMNS))), *y, *g[2], *gg;
    tg_tensor *w = grad_leaf(part(ctx, 2, TG_SHAPE(4 * n, COLUMNS), 0, tg_comm_rank(c), n)), *in[] = {x, w};
    RUN(tg_place(p, x, TG_TP, TG_I));
    RUN(tg_place(p, w, TG_TP, TG_SHARD(0)));
    tg_tape *t = tg_tape_new(ctx);
    block b = {.c = c, .w = w};
    tg_rng_set(ctx, NULL, &(tg_rng){.seed = 11});
    tg_tensor *h = tg_tanh(t, x);
    if (recomputed)
        RUN(tg_recompute(t, parallel_block, &b, &h, 1, &y, 1, NULL));
    else
        RUN(parallel_block(&b, t, &h, 1, &y, 1));
    tg_tensor *loss = tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
    RUN(tg_grad(t, &loss, 1, in, 2, g, TG_GRAD(.create_graph = true)));
    tg_tensor *sum = tg_sum(t, tg_square(t, g[0]), TG_ALL_DIMS, false);
    RUN(tg_grad(t, &sum, 1, &w, 1, &gg, TG_GRAD(.create_graph = true)));
    RUN(tg_read_f64(g[0], got, N));
    RUN(tg_read_f64(g[1], got + N, 4 * COLUMNS));
    RUN(tg_read_f64(gg, got + N + 4 * COLUMNS, 4 * COLUMNS));
    tg_tape_free(t);
    tg_drop(x), tg_drop(w);
    return tg_ctx_status(ctx);
}

static tg_status derivatives_both_ways(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { ALL = N + 8 * COLUMNS };
    (void)arg;
    double want[ALL], got[ALL];
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = tg_comm_size(world)));
    RUN(derivatives(ctx, p, false, want));
    RUN(derivatives(ctx, p, true, got));
    for (int i = 0; i < ALL; i++) EXPECT(ctx, fabs(got[i] - want[i]) <= 1e-12 * (1 + fabs(want[i])));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(derivatives_of_functions_with_collectives) {
    for (int n = 1; n <= 3; n++) on_ranks(n, derivatives_both_ways, NULL);
}
END_TEST

/* ---- A rank that no gradient reaches ---- */

static tg_status copies(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = tg_copy_to_tp(t, in[0], state);
    out[1] = tg_square(t, in[0]);
    return tg_ctx_status(tg_tape_ctx(t));
}

/* Only rank 0 uses its input. */
static tg_status uses(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    const block *b = state;
    out[0] = tg_comm_rank(b->c) == 0 ? tg_square(t, in[0]) : tg_square(t, b->w);
    return tg_ctx_status(tg_tape_ctx(t));
}

static tg_status one_rank_only(void *arg, tg_ctx *ctx, tg_comm *c) {
    const bool *replay = arg;
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(3))), *w = grad_leaf(made(ctx, 2, TG_SHAPE(3))), *y[2], *z;
    tg_tape *t = tg_tape_new(ctx);
    block b = {.c = c, .w = w};
    if (*replay) {
        tg_replay *r = tg_replay_open(t);
        RUN(tg_replay_run(r, copies, c, &x, 1, y, 2, NULL));
        RUN(tg_replay_close(r, NULL));
    } else {
        RUN(tg_recompute(t, copies, c, &x, 1, y, 2, NULL));
    }
    RUN(tg_recompute(t, uses, &b, y, 1, &z, 1, NULL));
    RUN(tg_backward(t, tg_sum(t, z, TG_ALL_DIMS, false)));
    double g[3], v[3];
    RUN(tg_read_f64(tg_grad_of(x), g, 3));
    RUN(tg_read_f64(x, v, 3));
    for (int i = 0; i < 3; i++) EXPECT(ctx, g[i] == 2 * v[i]);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(ranks_meet_in_backward_where_only_one_needs_it) {
    for (int replay = 0; replay < 2; replay++) on_ranks(3, one_rank_only, &(bool){replay});
}
END_TEST

/* ---- Inputs that stay whole, and refused calls ---- */

static tg_status tanh_of(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_tanh(t, in[0]);
    return TG_OK;
}

static tg_status kept_whole(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(4, 3))), *out;
    tg_tape *t = tg_tape_new(ctx);
    const tg_recompute_opts *o = TG_RECOMPUTE(.distribute = c);
    tg_tensor *h = tg_neg(t, x), *view = tg_transpose(t, tg_neg(t, x), 0, 1), *both = tg_tanh(t, x);
    RUN(tg_recompute(t, tanh_of, NULL, &x, 1, &out, 1, o)); /* memory of the caller */
    EXPECT(ctx, tg_storage_state_of(x) == TG_PRESENT);
    RUN(tg_recompute(t, tanh_of, NULL, &view, 1, &out, 1, o)); /* not row-major */
    EXPECT(ctx, tg_storage_state_of(view) == TG_PRESENT);
    RUN(tg_recompute(t, tanh_of, NULL, &both, 1, &out, 1, o)); /* its own node has saved it */
    EXPECT(ctx, tg_storage_state_of(both) == TG_PRESENT);
    RUN(tg_recompute(t, tanh_of, NULL, &h, 1, &out, 1, o));
    EXPECT(ctx, tg_storage_state_of(h) == TG_DISCARDED);
    double v[12], w[12];
    RUN(tg_read_f64(h, v, 12)); /* gathers on every rank */
    RUN(tg_read_f64(x, w, 12));
    for (int i = 0; i < 12; i++) EXPECT(ctx, v[i] == -w[i]);
    RUN(squares(t, out));
    tg_tape_reset(t);
    h = tg_neg(t, x);
    RUN(tg_recompute(t, tanh_of, NULL, &h, 1, &out, 1, o));
    tg_tape_reset(t); /* no backward: the part is freed with the tape */
    EXPECT(ctx, saved(ctx) == 0);
    REFUSED(ctx, TG_ERR_ARGUMENT, ".distribute is set and n_in is 0",
            tg_recompute(t, tanh_of, NULL, NULL, 0, &out, 1, o));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status refuses_shards(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(4, 3))), *out;
    RUN(tg_place(p, x, TG_TP, TG_SHARD(0)));
    tg_tape *t = tg_tape_new(ctx);
    REFUSED(ctx, TG_ERR_PLACEMENT, "differs between the ranks",
            tg_recompute(t, tanh_of, NULL, &x, 1, &out, 1, TG_RECOMPUTE(.distribute = tg_parallel_comm(p, TG_TP))));
    tg_comm *user = tg_comm_split(world, 0, 0, "all", TG_AXIS_USER);
    tg_comm *const no_axis[] = {world, user, tg_parallel_model(p)};
    for (int i = 0; i < 3; i++)
        REFUSED(ctx, TG_ERR_PLACEMENT, "is no axis of the grid",
                tg_recompute(t, tanh_of, NULL, &x, 1, &out, 1, TG_RECOMPUTE(.distribute = no_axis[i])));
    tg_comm_free(user);
    tg_tape_free(t);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(inputs_that_are_kept_whole) {
    for (int n = 2; n <= 4; n++) on_ranks(n, kept_whole, NULL);
    on_ranks(2, refuses_shards, NULL);
}
END_TEST

/* Without a grid the library does not know which tensors are equal on all ranks; check mode compares them. */
static tg_status other_inputs(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_tensor *x = grad_leaf(part(ctx, 1, TG_SHAPE(8, 3), 0, tg_comm_rank(world), 2)), *out;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *h = tg_neg(t, x);
    tg_recompute(t, tanh_of, NULL, &h, 1, &out, 1, TG_RECOMPUTE(.distribute = world));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(check_mode_finds_inputs_that_differ) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .deadline = 60, .check = true);
    tg_status s = run_ranks(2, other_inputs, NULL,
                               TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_ERR_PLACEMENT && strstr(message, "differ between ranks 0 and 1"), "%s: %s",
                  tg_status_name(s), message);
}
END_TEST

/* A read that finds no memory for the whole input fails, and the next read gathers the parts. */
static tg_status gathered_later(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    enum { LARGE = 8192, LIMIT = 1 << 20 };
    double v[LARGE];
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(LARGE))), *out;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *h = tg_neg(t, x);
    RUN(tg_recompute(t, tanh_of, NULL, &h, 1, &out, 1, TG_RECOMPUTE(.distribute = c)));
    EXPECT(ctx, tg_storage_state_of(h) == TG_DISCARDED);
    tg_memory_info m = TG_MEMORY_INFO();
    tg_memory_query(ctx, &m);
    tg_tensor *rest = tg_zeros(ctx, TG_U8, TG_SHAPE(LIMIT - m.live - m.workspace - (int64_t)sizeof v / 2));
    REFUSED(ctx, TG_ERR_MEMORY, "out of memory", tg_read_f64(h, v, LARGE));
    tg_drop(rest);
    RUN(tg_read_f64(h, v, LARGE));
    for (int i = 0; i < LARGE; i++) EXPECT(ctx, v[i] == -at(1, i));
    tg_tape_free(t);
    tg_drop(x);
    return tg_ctx_status(ctx);
}

START_TEST(an_input_without_memory_is_gathered_later) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .deadline = 60, .memory = 1 << 20);
    tg_status s = run_ranks(2, gathered_later, NULL,
                            TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%s: %s", tg_status_name(s), message);
}
END_TEST

static tg_status steady(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    double gx[N], gw[4 * COLUMNS];
    tg_memory_info before = TG_MEMORY_INFO(), after = TG_MEMORY_INFO();
    int64_t bytes;
    for (int step = 0; step < 6; step++) {
        if (step == 3) tg_memory_query(ctx, &before);
        RUN(blocks(ctx, c, step % 2 ? DISTRIBUTED : REPLAYED, gx, gw, &bytes));
    }
    tg_memory_query(ctx, &after);
    EXPECT(ctx, after.host_allocations == before.host_allocations && after.live == before.live);
    return TG_OK;
}

START_TEST(a_steady_step_allocates_nothing) { on_ranks(3, steady, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {functions_with_collectives_are_recomputed,
                                  derivatives_of_functions_with_collectives,
                                  ranks_meet_in_backward_where_only_one_needs_it,
                                  inputs_that_are_kept_whole,
                                  check_mode_finds_inputs_that_differ,
                                  an_input_without_memory_is_gathered_later,
                                  a_steady_step_allocates_nothing};
    return tg_check_main("recompute", tests, sizeof tests / sizeof *tests);
}
