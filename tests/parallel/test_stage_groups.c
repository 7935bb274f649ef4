/* Groups of two pipeline stages: edges, messages that become leaves (tg_recv), and shared parameters. */
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/mappings.h>
#include <tapegrad/optim.h>

#include "on_ranks.h"

/* ---- Edges ---- */

/* Sends the number of each stage once around the ring of a direction. */
static tg_status around(tg_ctx *ctx, tg_parallel *p, bool down) {
    int n = tg_parallel_size(p, TG_PP), me = tg_parallel_rank(p, TG_PP), from = (me + (down ? n - 1 : 1)) % n;
    tg_comm *out = tg_parallel_edge(p, down, true), *in = tg_parallel_edge(p, down, false);
    double mine = me + 10 * down;
    tg_tape *t = tg_tape_new(ctx);
    EXPECT(ctx, tg_comm_size(out) == 2 && tg_comm_size(in) == 2);
    EXPECT(ctx, tg_comm_rank(out) == !down && tg_comm_rank(in) == down);
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &mine), *y = tg_recv(t, in, TG_F64, TG_SHAPE(1), !down);
    tg_comm_send(out, x, down);
    EXPECT(ctx, tg_item(y) == from + 10 * down);
    tg_drop(x);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status edges(void *arg, tg_ctx *ctx, tg_comm *world) {
    const tg_parallel_opts *o = arg;
    tg_parallel *p = tg_parallel_new(world, o);
    tg_comm *all[4];
    for (int i = 0; i < 4; i++) all[i] = tg_parallel_edge(p, i & 1, i & 2);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++) EXPECT(ctx, all[i] != all[k] || o->pp == 1);
    if (o->pp == 1) EXPECT(ctx, !all[0]);
    for (int round = 0; round < 2 && o->pp > 1; round++) {
        RUN(around(ctx, p, true));
        RUN(around(ctx, p, false));
        if (round) break;
        RUN(tg_comm_barrier(world));
        RUN(tg_parallel_recover(p)); /* the groups are formed anew, at the same addresses */
        for (int i = 0; i < 4; i++) EXPECT(ctx, all[i] == tg_parallel_edge(p, i & 1, i & 2));
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(each_stage_has_edges_to_its_neighbors) {
    on_ranks(2, edges, TG_PARALLEL(.pp = 1));
    on_ranks(2, edges, TG_PARALLEL(.pp = 2));
    on_ranks(3, edges, TG_PARALLEL(.pp = 3));
    on_ranks(4, edges, TG_PARALLEL(.pp = 4, .vp = 2));
    on_ranks(4, edges, TG_PARALLEL(.pp = 2, .tp = 2));
    on_ranks(4, edges, TG_PARALLEL(.pp = 2, .order = "pp-dp"));
}
END_TEST

/* Both ranks of a group call it by its stages. */
static bool is_called(const tg_comm *c, const char *what, int stage, int n) {
    char name[64];
    snprintf(name, sizeof name, "%s %d-%d", what, stage, (stage + 1) % n);
    return !strcmp(tg_comm_name(c), name);
}

static bool edges_have_names(const tg_parallel *p) {
    int n = tg_parallel_size(p, TG_PP), me = tg_parallel_rank(p, TG_PP), before = (me + n - 1) % n;
    return is_called(tg_parallel_edge(p, true, true), "activations", me, n) &&
           is_called(tg_parallel_edge(p, true, false), "activations", before, n) &&
           is_called(tg_parallel_edge(p, false, true), "gradients", before, n) &&
           is_called(tg_parallel_edge(p, false, false), "gradients", me, n);
}

/* Three of six ranks are lost, so each of the others is a stage of its own now. Rank 1 was in the first stage, and is
 * between the first and the last one. */
static tg_status lose_half(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int rank = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 3));
    EXPECT(ctx, tg_parallel_rank(p, TG_PP) == rank / 2 && (tg_parallel_embedding(p) == NULL) == (rank / 2 == 1));
    EXPECT(ctx, edges_have_names(p));
    if (rank < 3) {
        if (tg_comm_barrier(world) == TG_OK) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "no rank is missing");
        tg_ctx_clear(ctx);
        RUN(tg_parallel_recover(p));
        tg_comm *ends = tg_parallel_embedding(p);
        EXPECT(ctx, tg_parallel_rank(p, TG_PP) == rank && tg_parallel_size(p, TG_DP) == 1);
        EXPECT(ctx, rank == 1 ? !ends : ends && tg_comm_size(ends) == 2 && tg_comm_rank(ends) == rank / 2);
        if (ends) RUN(tg_comm_barrier(ends));
        EXPECT(ctx, edges_have_names(p));
    }
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_recovery_moves_ranks_to_other_stages) { on_ranks(6, lose_half, NULL); }
END_TEST

/* ---- Messages as leaves ---- */

/* A received leaf takes part in backward; the caller sends its gradient back. */
static tg_status receive(void *arg, tg_ctx *ctx, tg_comm *world) {
    int r = tg_comm_rank(world);
    tg_tape *t = tg_tape_new(ctx);
    (void)arg;
    if (r == 0) {
        tg_tensor *x = made(ctx, 1, TG_SHAPE(2, 3)), *g = tg_zeros(ctx, TG_F64, TG_SHAPE(2, 3));
        tg_comm_send(world, x, 1);
        tg_comm_recv(world, g, 1);
        tg_tensor *twice = tg_scale(t, x, 2);
        EXPECT(ctx, off(g, twice, -1, 0, 1) == 0);
        tg_drop(x);
        tg_drop(g);
    } else {
        tg_tensor *x = tg_recv(t, world, TG_DTYPE_DEFAULT, TG_SHAPE(2, 3), 0);
        RUN(tg_set_requires_grad(x, true));
        RUN(tg_backward(t, tg_sum(t, tg_square(t, x), TG_ALL_DIMS, false)));
        tg_comm_send(world, tg_grad_of(x), 0);
        tg_tape_reset(t); /* the message keeps the bytes of the gradient */
        REFUSED(ctx, TG_ERR_ARGUMENT, "from is 2, expected 0 to 1", tg_recv(t, world, TG_F64, TG_SHAPE(1), 2));
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

static tg_status unequal(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = made(ctx, 1, TG_SHAPE(3));
    (void)arg;
    if (tg_comm_rank(world) == 0)
        tg_comm_barrier((tg_comm_send(world, x, 1), world));
    else
        tg_item(tg_sum(t, tg_recv(t, world, TG_F64, TG_SHAPE(4), 0), TG_ALL_DIMS, false));
    bool named = tg_ctx_status(ctx) == TG_ERR_MISMATCH && strstr(tg_ctx_message(ctx), "disagree about a message");
    tg_ctx_clear(ctx);
    RUN(tg_comm_recover(world)); /* without it the end of the message in flight, or of the group, is an error again */
    tg_tape_free(t);
    tg_drop(x);
    return named ? TG_OK : tg_ctx_fail(ctx, TG_ERR_INTERNAL, "another error");
}

START_TEST(a_message_becomes_a_leaf) {
    on_ranks(2, receive, NULL);
    on_ranks(2, unequal, NULL);
}
END_TEST

/* ---- Shared parameters ---- */

typedef struct shared {
    int used; /* bit r is set if rank r computes a gradient */
} shared;

/* The gradients of both copies are summed once, and the norm counts them once. The losses are R on dp, so each of its
 * ranks begins backward with its part of 1. */
static tg_status sum_copies(void *arg, tg_ctx *ctx, tg_comm *world) {
    const shared *o = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    int stage = tg_parallel_rank(p, TG_PP);
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(3), 1),
              *own = tg_param_new(ctx, "own", TG_F64, TG_SHAPE(1), 0);
    tg_tensor *params[] = {own, w};
    for (int i = 0; i < 2; i++) RUN(tg_place(p, params[i], TG_DP, TG_R));
    RUN(tg_share(p, w, tg_parallel_embedding(p)));
    tg_tape *t = tg_tape_new(ctx);
    double g[3], sum = 0;
    for (int r = 0; r < 2; r++) sum += o->used >> r & 1 ? r + 1 : 0;
    if (o->used >> stage & 1) RUN(tg_backward(t, tg_scale(t, tg_sum(t, w, TG_ALL_DIMS, false), stage + 1)));
    RUN(tg_backward(t, tg_scale(t, tg_sum(t, own, TG_ALL_DIMS, false), 2)));
    RUN(tg_grads_finalize(p, params, 2, NULL));
    RUN(tg_read_f64(tg_grad_of(w), g, 3));
    for (int i = 0; i < 3; i++) EXPECT(ctx, g[i] == sum);
    tg_optim *optim = tg_sgd_new(ctx, params, 2, TG_SGD(.lr = 1));
    EXPECT(ctx, fabs(tg_optim_clip(optim, 0) - sqrt(3 * sum * sum + 2 * 2 * 2)) < 1e-12);
    REFUSED(ctx, TG_ERR_STATE, "is shared over \"embedding\" already", tg_share(p, w, tg_parallel_embedding(p)));
    tg_optim_free(optim);
    tg_tape_free(t);
    tg_drop(w);
    tg_drop(own);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(copies_are_summed_and_counted_once) {
    for (int used = 0; used < 4; used++) on_ranks(2, sum_copies, &(shared){used});
    on_ranks(4, sum_copies, &(shared){3});
}
END_TEST

/* A declaration ends with its group: the parameter may be shared again, and counts as any other. */
static tg_status share_again(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(3), 1);
    (void)arg;
    for (int i = 0; i < 2; i++) {
        tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
        RUN(tg_share(p, w, tg_parallel_embedding(p)));
        tg_parallel_free(p);
    }
    tg_comm *own = tg_comm_split(world, tg_comm_rank(world), 0, "own", TG_MAX_AXES);
    tg_parallel *p = tg_parallel_new(own, NULL);
    tg_tape *t = tg_tape_new(ctx);
    RUN(tg_backward(t, tg_sum(t, w, TG_ALL_DIMS, false)));
    RUN(tg_grads_finalize(p, &w, 1, NULL));
    tg_optim *optim = tg_sgd_new(ctx, &w, 1, TG_SGD(.lr = 1));
    EXPECT(ctx, fabs(tg_optim_clip(optim, 0) - sqrt(3)) < 1e-12);
    tg_optim_free(optim);
    tg_tape_free(t);
    tg_drop(w);
    tg_parallel_free(p);
    tg_comm_free(own);
    return tg_ctx_status(ctx);
}

START_TEST(a_group_that_ends_shares_nothing) { on_ranks(2, share_again, NULL); }
END_TEST

/* Check mode finds copies that differ: at the start, or later. */
static tg_status differ(void *arg, tg_ctx *ctx, tg_comm *world) {
    bool later = *(const bool *)arg;
    double v[3] = {1, 2, 3};
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.pp = 2));
    tg_tensor *w = tg_param_new(ctx, "w", TG_F64, TG_SHAPE(3), 1);
    if (later) RUN(tg_share(p, w, tg_parallel_embedding(p)));
    if (tg_parallel_rank(p, TG_PP)) RUN(tg_write_f64(w, v, 3));
    if (later) {
        tg_tape *t = tg_tape_new(ctx);
        RUN(tg_backward(t, tg_sum(t, w, TG_ALL_DIMS, false)));
        REFUSED(ctx, TG_ERR_PLACEMENT, "tg_grads_finalize: the values of w", tg_grads_finalize(p, &w, 1, NULL));
        tg_tape_free(t);
    } else {
        REFUSED(ctx, TG_ERR_PLACEMENT, "differ between ranks 0 and 1", tg_share(p, w, tg_parallel_embedding(p)));
    }
    tg_drop(w);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(check_mode_compares_copies) {
    char message[1024];
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60, .check = true);
    for (int later = 0; later < 2; later++) {
        tg_status s = run_ranks(2, differ, &(bool){later},
                                TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
        ck_assert_msg(s == TG_OK, "%s: %s", tg_status_name(s), message);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {each_stage_has_edges_to_its_neighbors, a_recovery_moves_ranks_to_other_stages,
                                  a_message_becomes_a_leaf, copies_are_summed_and_counted_once,
                                  a_group_that_ends_shares_nothing, check_mode_compares_copies};
    return tg_check_main("stage_groups", tests, sizeof tests / sizeof *tests);
}
