/* Sums of gradients in several rounds of a step (tg_grads_reduce, zero 2 and 3), and failures with any zero. */
#include "zero_model.h"

/* ---- Rounds ---- */

/* With a round of sums in each micro-batch the sum over ranks is the inner one, so that it rounds differently. A
 * parameter that is used in some micro-batches, or by some ranks, counts as used. */
START_TEST(rounds_add_up) {
    for (uses u = NO_RANK; u <= BY_MICRO; u++)
        for (int zero = 2; zero <= most_of(&(setting){.uses = u}); zero++)
            for (int n = 1; n <= 3; n++) {
                setting s = usual;
                s.rounds = true;
                s.dtype = TG_F64;
                s.micros = 3;
                s.uses = u;
                double most = compare(&s, n, zero);
                ck_assert_msg(most > 0 || n < 3, "the sums have the same bits, so this test compares nothing");
                ck_assert_msg(most < 1e-12, "zero %d, %d ranks, uses %d differ by %g", zero, n, u, most);
            }
}
END_TEST

START_TEST(rounds_of_a_16_bit_wire_stay_close) {
    setting s = usual;
    s.rounds = true;
    s.micros = 3;
    s.wire = TG_BF16;
    for (int zero = 2; zero <= MOST; zero++) ck_assert(compare(&s, 3, zero) < 0.02);
}
END_TEST

/* Between micro-batches a rank has its parts of the sums only, and rounds allocate nothing in a steady step. */
static tg_status keep_parts(void *arg, tg_ctx *ctx, tg_comm *world) {
    setting s = usual;
    tg_memory_info m[2] = {TG_MEMORY_INFO(), TG_MEMORY_INFO()};
    int64_t least = 0;
    s.zero = *(const int *)arg, s.micros = 3, s.rounds = true;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    model x = model_open(ctx, p, &s);
    for (int step = 0; step < STEPS; step++) {
        tg_memory_query(ctx, &m[step == STEPS - 1]);
        RUN(run_step(ctx, t, p, &x, &s, step));
    }
    tg_memory_query(ctx, &m[0]);
    EXPECT(ctx, m[0].host_allocations == m[1].host_allocations);
    least = m[0].by_category[TG_MEM_GRADIENT];
    for (int i = 0; i < 2; i++) {
        RUN(backward(ctx, t, p, &x, &s, STEPS, i));
        RUN(tg_grads_reduce(p));
        tg_memory_query(ctx, &m[1]);
        EXPECT(ctx, m[1].by_category[TG_MEM_GRADIENT] == least);
    }
    EXPECT(ctx, !tg_has_grad(x.x[0]));
    REFUSED(ctx, TG_ERR_STATE, "its leaf (tg_flat_leaves)", tg_is_alive(tg_grad_of(x.x[0])));
    REFUSED(ctx, TG_ERR_STATE, "is one rank's share of a sum; call tg_grads_finalize", tg_optim_step(x.optim));
    RUN(tg_grads_finalize(p, x.x, PARAMS, NULL));
    RUN(tg_optim_step(x.optim));
    RUN(tg_flat_gather(x.flat));
    model_close(&x);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(rounds_keep_parts_only) {
    for (int zero = 2; zero <= MOST; zero++)
        for (int n = 1; n <= 3; n++) on_ranks(n, keep_parts, &zero);
}
END_TEST

/* A gradient that comes behind its sum is refused, and gradients that are zeroed between rounds are forgotten. */
static tg_status end_rounds(void *arg, tg_ctx *ctx, tg_comm *world) {
    setting s = usual;
    double x[2][ALL];
    s.zero = *(const int *)arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    for (int again = 0; again < 2; again++) {
        RUN(tg_rng_set(ctx, NULL, &(tg_rng){.seed = 3}));
        model m = model_open(ctx, p, &s);
        if (again) {
            RUN(backward(ctx, t, p, &m, &s, 7, 0));
            RUN(tg_grads_reduce(p));
            RUN(tg_optim_zero_grad(m.optim));
        }
        RUN(run_step(ctx, t, p, &m, &s, 0));
        RUN(read_all(&m, x[again]));
        if (again) {
            RUN(backward(ctx, t, p, &m, &s, 1, 0));
            REFUSED(ctx, TG_ERR_STATE, "but the last, or tg_grads_reduce after each of them, and tg_grads_finalize",
                    backward(ctx, t, p, &m, &s, 1, 1));
            tg_tape_reset(t);
            RUN(tg_grads_finalize(p, m.x, PARAMS, NULL));
        }
        model_close(&m);
    }
    EXPECT(ctx, !memcmp(x[0], x[1], sizeof x[0]));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(rounds_end_where_the_caller_says) {
    for (int zero = 2; zero <= MOST; zero++)
        for (int n = 1; n <= 2; n++) on_ranks(n, end_rounds, &zero);
}
END_TEST

/* Between backward, which starts the sums, and tg_grads_finalize there is no gradient to read, and no zeros in its
 * place. */
static tg_status read_between(void *arg, tg_ctx *ctx, tg_comm *world) {
    setting s = usual;
    float g[ALL];
    s.zero = *(const int *)arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    model m = model_open(ctx, p, &s);
    RUN(backward(ctx, t, p, &m, &s, 0, 0));
    REFUSED(ctx, TG_ERR_STATE, "read the sums of the leaves", tg_read(tg_grad_of(m.x[0]), g, numel[0] * sizeof *g));
    REFUSED(ctx, TG_ERR_STATE, "read the sums of the leaves", tg_is_alive(tg_grad_share(m.x[0])));
    RUN(tg_grads_finalize(p, m.x, PARAMS, NULL));
    RUN(tg_read(tg_grad_of(m.leaf[0]), g, tg_numel(m.leaf[0]) * sizeof *g));
    EXPECT(ctx, g[0] != 0);
    model_close(&m);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(gradients_that_were_sent_cannot_be_read) {
    for (int zero = 2; zero <= MOST; zero++) on_ranks(1, read_between, &zero);
}
END_TEST

/* ---- Failures ---- */

static setting divided = {.zero = 1, .micros = 1, .dtype = TG_F32, .uses = ALL_RANKS, .bucket = 100};

/* The last rank fails while sums or gathers are in flight. All ranks recover, and go on. On GPUs the others may have
 * queued their steps behind the sums already, which then run with whatever an aborted sum has left. */
static tg_status fail_and_go_on(void *arg, tg_ctx *ctx, tg_comm *world) {
    const bool in_gather = *(const bool *)arg;
    bool fails = tg_comm_rank(world) == tg_comm_size(world) - 1;
    double x[2][ALL];
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    model m = model_open(ctx, p, &divided);
    RUN(run_step(ctx, t, p, &m, &divided, 0));
    RUN(read_all(&m, x[0]));
    tg_comm_barrier(world);
    if (in_gather) tg_flat_gather(m.flat); /* fails if the last rank recovers already */
    if (fails) tg_ctx_fail(ctx, TG_ERR_IO, "the dog ate the batch");
    if (!in_gather || fails) run_step(ctx, t, p, &m, &divided, 1);
    for (int i = 0; i < 3 && tg_ctx_status(ctx) == TG_OK; i++) tg_comm_barrier(world);
    if (tg_ctx_status(ctx) == TG_OK) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the failure was not reported");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    RUN(tg_parallel_recover(p));
    RUN(tg_flat_gather(m.flat));
    RUN(read_all(&m, x[1]));
    EXPECT(ctx, ranks_on_gpus() || !memcmp(x[0], x[1], sizeof x[0]));
    RUN(run_step(ctx, t, p, &m, &divided, 1));
    model_close(&m);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(ranks_go_on_after_a_failure) {
    for (divided.zero = 1; divided.zero <= MOST; divided.zero++)
        for (int in_gather = 0; in_gather < 2; in_gather++) on_ranks(3, fail_and_go_on, &(bool){in_gather});
}
END_TEST

/* A rank fails before the gather that follows a step. The others cannot read values of different steps before they
 * recover, nor after their first attempt has reported the failure. Not so over NCCL: the calls of a step are only
 * queued there, so the failure may end any of them, and after it the values count as gathered. */
static tg_status gather_alone(void *arg, tg_ctx *ctx, tg_comm *world) {
    double x[ALL];
    if (ranks_on_gpus()) return TG_OK;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    model m = model_open(ctx, p, &divided);
    (void)arg;
    RUN(backward(ctx, t, p, &m, &divided, 0, 0));
    RUN(tg_grads_finalize(p, m.x, PARAMS, NULL));
    RUN(tg_optim_step(m.optim));
    if (tg_comm_rank(world) == 0) tg_ctx_fail(ctx, TG_ERR_IO, "the dog ate the batch");
    tg_flat_gather(m.flat);
    read_all(&m, x);
    bool reported = tg_ctx_status(ctx) != TG_OK, refused = true;
    for (int i = 0; i < PARAMS; i++) {
        tg_ctx_clear(ctx);
        refused &= tg_read_f64(m.x[i], x, numel[i]) != TG_OK;
    }
    tg_ctx_clear(ctx);
    RUN(tg_parallel_recover(p));
    RUN(tg_flat_gather(m.flat));
    RUN(read_all(&m, x));
    EXPECT(ctx, reported && refused);
    model_close(&m);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(values_of_different_steps_stay_unread_after_a_failure) {
    for (divided.zero = 1; divided.zero <= 2; divided.zero++) on_ranks(3, gather_alone, NULL);
}
END_TEST

/* The hook of a gradient: fails at its first call. */
static tg_status fail_once(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    int *calls = user;
    (void)t, (void)grad;
    return (*calls)++ ? TG_OK : tg_ctx_fail(tg_ctx_of(x), TG_ERR_IO, "the dog ate the gradient");
}

/* Backward fails on the last rank when some gradients of the only bucket have arrived. After the recovery all ranks
 * must gather alike again, also those whose backward ended earlier. */
static tg_status fail_in_backward(void *arg, tg_ctx *ctx, tg_comm *world) {
    setting s = divided;
    int calls = 0;
    (void)arg;
    s.bucket = INT64_MAX;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    model m = model_open(ctx, p, &s);
    RUN(run_step(ctx, t, p, &m, &s, 0));
    RUN(read_all(&m, (double[ALL]){0})); /* on GPUs the step may only be queued, and would fail with the next one */
    RUN(tg_comm_barrier(world));
    if (tg_comm_rank(world) == tg_comm_size(world) - 1) tg_on_accumulated(m.x[2], fail_once, &calls);
    run_step(ctx, t, p, &m, &s, 1);
    for (int i = 0; i < 3 && tg_ctx_status(ctx) == TG_OK; i++) tg_comm_barrier(world);
    if (tg_ctx_status(ctx) == TG_OK) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the failure was not reported");
    tg_ctx_clear(ctx);
    tg_tape_reset(t);
    RUN(tg_parallel_recover(p));
    if (s.zero < 3) RUN(tg_flat_gather(m.flat)); /* the recovery may have ended gathers */
    for (int step = 1; step < 3; step++) RUN(run_step(ctx, t, p, &m, &s, step));
    model_close(&m);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(ranks_go_on_after_a_backward_that_fails) {
    for (divided.zero = 1; divided.zero <= MOST; divided.zero++) on_ranks(3, fail_in_backward, NULL);
}
END_TEST

/* The last rank leaves, and with it its parts of the state: the others must begin with a new tg_flat. */
static tg_status lose_one(void *arg, tg_ctx *ctx, tg_comm *world) {
    bool leaves = tg_comm_rank(world) == tg_comm_size(world) - 1;
    double x[2][ALL];
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tape *t = tg_tape_new(ctx);
    model m = model_open(ctx, p, &divided);
    RUN(run_step(ctx, t, p, &m, &divided, 0));
    RUN(read_all(&m, (double[ALL]){0})); /* waits for the gathers */
    if (!leaves) {
        run_step(ctx, t, p, &m, &divided, 1);
        for (int i = 0; i < 3 && tg_ctx_status(ctx) == TG_OK; i++) tg_comm_barrier(world);
        if (tg_ctx_status(ctx) == TG_OK) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the loss was not reported");
        tg_ctx_clear(ctx);
        tg_tape_reset(t);
        RUN(tg_parallel_recover(p));
        REFUSED(ctx, TG_ERR_STATE, "tg_flat_gather: a recovery left other ranks than those over which tg_flat_new",
                tg_flat_gather(m.flat));
        model_close(&m);
        if (divided.zero < 3) { /* the parameters are still whole */
            RUN(read_all(&m, x[0]));
            model_divide(ctx, p, &divided, &m);
            RUN(read_all(&m, x[1]));
            EXPECT(ctx, !memcmp(x[0], x[1], sizeof x[0]));
        } else {
            m = model_open(ctx, p, &divided);
        }
        RUN(run_step(ctx, t, p, &m, &divided, 0));
    }
    model_close(&m);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(ranks_that_are_left_begin_anew) {
    for (divided.zero = 1; divided.zero <= MOST; divided.zero++) on_ranks(3, lose_one, NULL);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        rounds_add_up,
        rounds_of_a_16_bit_wire_stay_close,
        rounds_keep_parts_only,
        rounds_end_where_the_caller_says,
        gradients_that_were_sent_cannot_be_read,
        ranks_go_on_after_a_failure,
        values_of_different_steps_stay_unread_after_a_failure,
        ranks_go_on_after_a_backward_that_fails,
        ranks_that_are_left_begin_anew,
    };
    return tg_check_main("zero rounds", tests, sizeof tests / sizeof *tests);
}
