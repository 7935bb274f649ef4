/* The linear layer whose communication overlaps with products: compared with tg_linear on one rank; the order of its
 * events; deferred weight gradients. */
#include <tapegrad/extend.h>
#include <tapegrad/optim.h>
#include <tapegrad/tensor_parallel.h>

#include "on_ranks.h"
#include "parallel/noting.h"

enum { S = 8, B = 2, IN = 6, OUT = 12, X = 1, W, BIAS, GY, GY2 };

static const char *const op_name = "LinearWithGradAccumulationAndAsyncCommunication";

typedef struct plan {
    bool sp, reduce, bias, fused, strided, frozen;
} plan;

/* Runs the layer on this rank and computes the gradients of leaves[]. */
static tg_status reference(tg_ctx *ctx, tg_tensor *leaf[3], const plan *p) {
    tg_tape *t = tg_tape_new(ctx);
    leaf[0] = grad_leaf(made(ctx, X, TG_SHAPE(S, B, IN)));
    leaf[1] = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
    leaf[2] = p->bias ? grad_leaf(made(ctx, BIAS, TG_SHAPE(OUT))) : NULL;
    tg_tensor *y = tg_linear(t, leaf[0], leaf[1], leaf[2]), *gy = made(ctx, GY, TG_SHAPE(S, B, OUT));
    tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &gy));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

/* A transposition after the layer gives it a gradient that is not row-major. */
static tg_status backward(tg_tape *t, tg_tensor *y, tg_tensor *gy, bool strided) {
    if (strided) {
        y = tg_contiguous(t, tg_transpose(t, y, 0, 2));
        gy = tg_contiguous(t, tg_transpose(t, gy, 0, 2));
    }
    return tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &gy));
}

static tg_status column(void *arg, tg_ctx *ctx, tg_comm *world) {
    const plan *p = arg;
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_tensor *whole[3];
    RUN(reference(ctx, whole, p));
    tg_tensor *x = grad_leaf(p->sp ? part(ctx, X, TG_SHAPE(S, B, IN), 0, r, n) : made(ctx, X, TG_SHAPE(S, B, IN)));
    tg_tensor *w = grad_leaf(part(ctx, W, TG_SHAPE(OUT, IN), 0, r, n));
    tg_tensor *b = p->bias ? grad_leaf(part(ctx, BIAS, TG_SHAPE(OUT), 0, r, n)) : NULL;
    tg_linear_grad_opts o = {
        TG_LINEAR_GRAD_DEFAULTS, .sequence_parallel = p->sp, .allreduce_dgrad = p->reduce, .fused_wgrad = p->fused};
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *y = p->frozen ? tg_linear_with_frozen_weight(t, x, w, b, world, &o)
                             : tg_linear_with_grad_accumulation(t, x, w, b, world, &o);
    tg_tensor *full = tg_linear(t, whole[0], whole[1], whole[2]);
    EXPECT(ctx, off(y, full, 2, r, n) < 1e-12);
    RUN(backward(t, y, part(ctx, GY, TG_SHAPE(S, B, OUT), 2, r, n), p->strided));
    EXPECT(ctx, off(tg_grad_of(x), tg_grad_of(whole[0]), p->sp ? 0 : -1, r, n) < 1e-10);
    EXPECT(ctx, p->frozen ? !tg_has_grad(w) : off(tg_grad_of(w), tg_grad_of(whole[1]), 0, r, n) < 1e-10);
    if (b) EXPECT(ctx, off(tg_grad_of(b), tg_grad_of(whole[2]), 0, r, n) < 1e-10);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(column_against_one_rank) {
    for (int n = 1; n <= 4; n *= 2)
        for (int i = 0; i < 32; i++) {
            plan p = {.sp = i & 1,
                      .reduce = !(i & 1),
                      .bias = i & 2,
                      .fused = i & 4,
                      .strided = i & 8,
                      .frozen = i & 16 && !(i & 4)};
            on_ranks(n, column, &p);
        }
}
END_TEST

/* Without communication the input's gradient is this rank's share; the shares sum to the whole. */
static tg_status shares(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int n = tg_comm_size(world), r = tg_comm_rank(world);
    tg_tensor *whole[3];
    RUN(reference(ctx, whole, &(plan){0}));
    tg_tensor *x = grad_leaf(made(ctx, X, TG_SHAPE(S, B, IN)));
    tg_tensor *w = grad_leaf(part(ctx, W, TG_SHAPE(OUT, IN), 0, r, n));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *y = tg_linear_with_grad_accumulation(t, x, w, NULL, NULL, NULL);
    RUN(backward(t, y, part(ctx, GY, TG_SHAPE(S, B, OUT), 2, r, n), false));
    tg_tensor *g = tg_grad_of(x);
    tg_comm_all_reduce(world, g, g, TG_REDUCE_SUM);
    EXPECT(ctx, off(g, tg_grad_of(whole[0]), -1, 0, 1) < 1e-10);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(shares_sum_to_the_whole) { on_ranks(3, shares, NULL); }
END_TEST

/* ---- Kept memory, and refused calls ---- */

static int64_t saved(const tg_tensor *y) { return tg_node_saved_bytes(tg_node_of(y)); }

static tg_status keeping(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_tensor *x = grad_leaf(made(ctx, X, TG_SHAPE(S, B, IN))), *w = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
    tg_tape *t = tg_tape_new(ctx);
    tg_linear_grad_opts *sp = TG_LINEAR_GRAD(.sequence_parallel = true);
    tg_tensor *rows = tg_scale(t, x, 1);
    EXPECT(ctx, saved(tg_linear_with_grad_accumulation(t, rows, w, NULL, world, sp)) == 8 * S * B * IN);
    tg_tensor *cold = made(ctx, W, TG_SHAPE(OUT, IN)); /* the context's own memory needs nothing in addition */
    EXPECT(ctx, saved(tg_linear_with_frozen_weight(t, rows, cold, NULL, world, sp)) == 0);
    EXPECT(ctx, saved(tg_linear_with_grad_accumulation(t, rows, cold, NULL, world, sp)) == 0);
    REFUSED(ctx, TG_ERR_ARGUMENT, "a frozen weight has no gradient",
            tg_linear_with_frozen_weight(t, rows, w, NULL, world, TG_LINEAR_GRAD(.fused_wgrad = true)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "are both set",
            tg_linear_with_grad_accumulation(t, rows, w, NULL, world,
                                             TG_LINEAR_GRAD(.sequence_parallel = true, .allreduce_dgrad = true)));
    tg_tensor *many = tg_zeros(ctx, TG_F64, TG_SHAPE((int64_t)1 << 62, 0));
    REFUSED(ctx, TG_ERR_SHAPE, "the number of rows of all ranks is too large",
            tg_linear_with_grad_accumulation(t, many, tg_zeros(ctx, TG_F64, TG_SHAPE(3, 0)), NULL, world, sp));
    REFUSED(ctx, TG_ERR_ARGUMENT, "communicator is NULL",
            tg_linear_with_grad_accumulation(t, rows, w, NULL, NULL, TG_LINEAR_GRAD(.allreduce_dgrad = true)));
    REFUSED(
        ctx, TG_ERR_STATE, "expected a leaf, or fused_wgrad false",
        tg_linear_with_grad_accumulation(t, rows, tg_scale(t, w, 2), NULL, world, TG_LINEAR_GRAD(.fused_wgrad = true)));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(inputs_are_kept_and_wrong_calls_are_refused) { on_ranks(2, keeping, NULL); }
END_TEST

/* The gathered rows are in the buffer "mpu", which must not be in use meanwhile. */
static tg_status buffered(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_tensor *x = grad_leaf(made(ctx, X, TG_SHAPE(S, B, IN))), *w = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
    tg_tape *t = tg_tape_new(ctx);
    tg_linear_grad_opts *sp = TG_LINEAR_GRAD(.sequence_parallel = true);
    tg_memory_info m = TG_MEMORY_INFO();
    tg_tensor *y = tg_linear_with_grad_accumulation(t, x, w, NULL, world, sp);
    tg_memory_query(ctx, &m);
    EXPECT(ctx, m.by_category[TG_MEM_BUFFER] >= 8 * 2 * S * B * IN);
    tg_tensor *lease = tg_lease(t, "mpu", TG_F64, TG_SHAPE(3));
    EXPECT(ctx, tg_is_alive(lease));
    tg_tensor *loss = tg_sum(t, y, TG_ALL_DIMS, false);
    tg_discard(lease);
    RUN(tg_backward(t, loss));
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(rows_lie_in_the_named_buffer) {
    on_ranks(2, buffered, NULL);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_comm *c = tg_comm_plan_new(ctx, 0, 2);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = made(ctx, X, TG_SHAPE(S, IN)), *w = made(ctx, W, TG_SHAPE(OUT, IN));
    tg_lease(t, "mpu", TG_F64, TG_SHAPE(3));
    tg_linear_with_grad_accumulation(t, x, w, NULL, c, TG_LINEAR_GRAD(.sequence_parallel = true));
    ck_assert(tg_ctx_status(ctx) == TG_ERR_STATE);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "is still open and is requested again by op LinearWith"), "%s",
                  tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_tape_free(t);
    tg_comm_free(c);
    tg_ctx_free(ctx);
}
END_TEST

/* The weight's gradient is accumulated in place: no memory of its size is allocated, and none at all from the second
 * step on. */
static tg_status lean(void *arg, tg_ctx *ctx, tg_comm *world) {
    enum { WIDE = 512 };
    (void)arg;
    tg_tensor *x = grad_leaf(tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(4, WIDE), 1)),
              *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(WIDE, WIDE), 1);
    tg_tensor *main = tg_zeros(ctx, TG_F64, TG_SHAPE(WIDE, WIDE));
    tg_set_main_grad(w, main);
    tg_tape *t = tg_tape_new(ctx);
    int64_t allocations = 0;
    for (int step = 0; step < 5; step++) {
        bool sp = step & 1;
        tg_memory_info m = TG_MEMORY_INFO();
        tg_tensor *y = tg_linear_with_grad_accumulation(
            t, x, w, NULL, world, TG_LINEAR_GRAD(.sequence_parallel = sp, .allreduce_dgrad = !sp, .fused_wgrad = true));
        tg_tensor *loss = tg_sum(t, y, TG_ALL_DIMS, false);
        tg_memory_query(ctx, &m);
        int64_t before = m.live;
        tg_memory_reset_peak(ctx);
        tg_backward(t, loss);
        tg_memory_query(ctx, &m);
        EXPECT(ctx, step < 2 || m.peak - before < 8 * WIDE * WIDE / 4);
        RUN(end_steady_step(t, step, &allocations));
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(no_second_weight_and_no_allocation) { on_ranks(2, lean, NULL); }
END_TEST

/* ---- The order of events ---- */

/* The calls of the transport, and the products of a device. */
static struct {
    int n;
    const char *what[32];
} events;
static tg_status (*true_gemm)(tg_ctx *ctx, const tg_gemm *g);

static void note(const char *what) { events.what[events.n++ & 31] = what; }

static tg_status noted_gemm(tg_ctx *ctx, const tg_gemm *g) {
    note("product");
    return true_gemm(ctx, g);
}

static const char *const *names_of(const tg_transfer *call) {
    static const char *const names[][2] = {{"all_reduce", "end all_reduce"},
                                           {"all_gather", "end all_gather"},
                                           {"reduce_scatter", "end reduce_scatter"},
                                           {"broadcast", "end broadcast"},
                                           {"message", "end message"}};
    return names[call->kind];
}

static void check_events(const char *const *expected, int n) {
    for (int i = 0; i < n || i < events.n; i++)
        ck_assert_msg(i < n && i < events.n && !strcmp(events.what[i], expected[i]),
                      "event %d of %d is %s, expected %s", i, events.n, i < events.n ? events.what[i] : "none",
                      i < n ? expected[i] : "none");
    events.n = 0;
}

START_TEST(communication_runs_in_parallel_with_products) {
    static tg_device_ops device;
    tg_ctx *plain = tg_ctx_new(NULL);
    device = *tg_ctx_ops(plain);
    true_gemm = device.gemm;
    device.gemm = noted_gemm;
    tg_ctx_free(plain);
    tg_ctx *ctx = tg_ctx_new_on(&device, TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_comm *c = tg_comm_new_on(ctx, &noting, NULL, 0, 2);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(made(ctx, X, TG_SHAPE(S, IN))), *w = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
    tg_tensor *b = grad_leaf(made(ctx, BIAS, TG_SHAPE(OUT)));

    /* x is a result, so the op that made it reads its gradient after this one has run. */
    tg_tensor *y =
        tg_linear_with_grad_accumulation(t, tg_square(t, x), w, b, c, TG_LINEAR_GRAD(.allreduce_dgrad = true));
    check_events((const char *[]){"product"}, 1);
    tg_tensor *gy = made(ctx, GY, TG_SHAPE(S, OUT));
    ck_assert(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &gy)) == TG_OK);
    check_events((const char *[]){"product", "all_reduce", "product", "end all_reduce"}, 4);
    tg_tape_reset(t);

    y = tg_linear_with_grad_accumulation(t, tg_square(t, x), w, b, c, TG_LINEAR_GRAD(.sequence_parallel = true));
    check_events((const char *[]){"all_gather", "end all_gather", "product"}, 3);
    gy = made(ctx, GY, TG_SHAPE(2 * S, OUT));
    ck_assert(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &gy)) == TG_OK);
    check_events(
        (const char *[]){"all_gather", "product", "end all_gather", "reduce_scatter", "product", "end reduce_scatter"},
        6);
    tg_tape_reset(t);

    /* Chunks: this rank's own rows are sent while they are multiplied, and those of the other rank when they are there.
     * In backward the addends for the other rank are sent first. */
    y = tg_linear_with_grad_accumulation(t, tg_square(t, x), w, b, c,
                                         TG_LINEAR_GRAD(.sequence_parallel = true, .chunks = 2));
    check_events((const char *[]){"message", "product", "message", "product", "end message", "product", "end message",
                                  "product"},
                 8);
    ck_assert(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &gy)) == TG_OK);
    check_events((const char *[]){"all_gather", "product", "message", "product", "message", "product", "end message",
                                  "product", "end message", "end all_gather", "product"},
                 11);
    tg_tape_reset(t);

    /* Deferred weight gradients: the next rows are sent while a product runs. */
    tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE);
    for (int i = 0; i < 3; i++) {
        y = tg_linear_with_grad_accumulation(t, tg_square(t, x), w, b, c,
                                             TG_LINEAR_GRAD(.sequence_parallel = true, .deferred = d));
        events.n = 0;
        ck_assert(tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &gy)) == TG_OK);
        check_events((const char *[]){"product", "reduce_scatter", "end reduce_scatter"}, 3);
    }
    ck_assert_int_eq(tg_wgrads_count(d), 3);
    ck_assert(tg_wgrads_run(d) == TG_OK);
    check_events((const char *[]){"all_gather", "end all_gather", "all_gather", "product", "end all_gather",
                                  "all_gather", "product", "end all_gather", "product"},
                 9);
    tg_wgrads_free(d);
    tg_tape_free(t);
    tg_comm_free(c);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Deferred weight gradients ---- */

typedef struct wait_plan {
    int batches, limit, sp, fused;
} wait_plan;

static tg_status count_hook(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    (void)t, (void)x, (void)grad;
    ++*(int *)user;
    return TG_OK;
}

/* Micro-batches of different lengths, each with its own tape that is freed before the drain. */
static tg_status micro_batches(tg_ctx *ctx, tg_comm *world, tg_tensor *w, tg_tensor *b, const wait_plan *p,
                               tg_wgrads *d) {
    for (int i = 0; i < p->batches; i++) {
        tg_tape *t = tg_tape_new(ctx);
        tg_shape shape = TG_SHAPE(4 + 4 * i, B, IN);
        tg_tensor *x = grad_leaf(made(ctx, X + i, shape));
        tg_linear_grad_opts o = {TG_LINEAR_GRAD_DEFAULTS,
                                 .sequence_parallel = p->sp,
                                 .allreduce_dgrad = !p->sp,
                                 .fused_wgrad = p->fused,
                                 .deferred = d};
        tg_tensor *y = tg_linear_with_grad_accumulation(t, tg_square(t, x), w, b, world, &o);
        tg_tensor *loss = tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
        tg_backward(t, loss);
        tg_tape_free(t);
        tg_drop(x);
    }
    return tg_ctx_status(ctx);
}

static tg_status waiting(void *arg, tg_ctx *ctx, tg_comm *world) {
    const wait_plan *p = arg;
    tg_tensor *w[2], *b[2];
    int fired = 0, now = p->limit == TG_NONE || p->limit > p->batches ? p->batches : p->limit;
    for (int i = 0; i < 2; i++) {
        w[i] = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
        b[i] = grad_leaf(made(ctx, BIAS, TG_SHAPE(OUT)));
    }
    tg_wgrads *d = tg_wgrads_new(ctx, p->limit);
    tg_on_accumulated(w[1], count_hook, &fired);
    RUN(micro_batches(ctx, world, w[0], b[0], p, NULL));
    RUN(micro_batches(ctx, world, w[1], b[1], p, d));
    EXPECT(ctx, tg_wgrads_count(d) == now && fired == (now ? 0 : p->batches));
    EXPECT(ctx, off(tg_grad_of(b[1]), tg_grad_of(b[0]), -1, 0, 1) == 0);
    RUN(tg_wgrads_run(d));
    EXPECT(ctx, tg_wgrads_count(d) == 0 && fired == (now ? 1 : p->batches));
    double apart = off(tg_grad_of(w[1]), tg_grad_of(w[0]), -1, 0, 1);
    EXPECT(ctx, now == p->batches ? apart == 0 : apart < 1e-10);
    RUN(tg_wgrads_run(d)); /* nothing is deferred, so nothing happens */
    EXPECT(ctx, fired == (now ? 1 : p->batches) && off(tg_grad_of(w[1]), tg_grad_of(w[0]), -1, 0, 1) == apart);
    tg_wgrads_free(d);
    return tg_ctx_status(ctx);
}

START_TEST(waiting_gradients_are_the_same) {
    static const int limits[] = {TG_NONE, 0, 1, 2, 100};
    for (int batches = 1; batches <= 3; batches++)
        for (int l = 0; l < 5; l++)
            for (int i = 0; i < 4; i++) {
                wait_plan p = {batches, limits[l], i & 1, i >> 1};
                on_ranks(2, waiting, &p);
            }
}
END_TEST

/* One layer within a recomputation, twice on a tape, and once more undeferred: the hook runs after all of it. */
typedef struct inner {
    tg_tensor *w;
    tg_wgrads *d;
} inner;

static tg_status inner_layer(void *state, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    const inner *s = state;
    (void)n_in, (void)n_out;
    out[0] =
        tg_square(t, tg_linear_with_grad_accumulation(t, in[0], s->w, NULL, NULL, TG_LINEAR_GRAD(.deferred = s->d)));
    return TG_OK;
}

static tg_status recomputed(tg_ctx *ctx, inner *s, tg_tensor *x) {
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *h[3];
    for (int i = 0; i < 2; i++) {
        tg_tensor *in = tg_scale(t, x, 1 + i);
        tg_recompute(t, inner_layer, s, &in, 1, &h[i], 1, NULL);
    }
    h[2] = tg_linear(t, x, s->w, NULL);
    tg_tensor *loss = tg_sum(t, tg_add(t, tg_mul(t, h[0], h[1]), h[2]), TG_ALL_DIMS, false);
    tg_backward(t, loss);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(waiting_in_a_recomputation) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .check = true));
    tg_tensor *x = made(ctx, X, TG_SHAPE(S, IN));
    int fired = 0;
    inner a = {grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN))), NULL},
          b = {grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN))), tg_wgrads_new(ctx, TG_NONE)};
    tg_on_accumulated(b.w, count_hook, &fired);
    ck_assert(recomputed(ctx, &a, x) == TG_OK && recomputed(ctx, &b, x) == TG_OK);
    ck_assert_int_eq(tg_wgrads_count(b.d), 2);
    ck_assert_int_eq(fired, 0);
    ck_assert(tg_wgrads_run(b.d) == TG_OK);
    ck_assert_int_eq(fired, 1);
    ck_assert_double_le(off(tg_grad_of(b.w), tg_grad_of(a.w), -1, 0, 1), 1e-10);
    tg_wgrads_free(b.d);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}
END_TEST

static tg_status drop_hook(void *user, tg_tape *t, tg_tensor *x, tg_tensor **g) {
    (void)user, (void)t, (void)g;
    tg_drop(x);
    return TG_OK;
}

START_TEST(a_hook_may_drop_the_weight) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_tape *t = tg_tape_new(ctx);
    tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE);
    int fired = 0;
    tg_tensor *w = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
    tg_on_accumulated(w, drop_hook, NULL);
    tg_on_accumulated(w, count_hook, &fired);
    tg_tape_defer(t, d);
    tg_backward(t, tg_sum(t, tg_linear(t, made(ctx, X, TG_SHAPE(S, IN)), w, NULL), TG_ALL_DIMS, false));
    tg_tape_reset(t); /* no node uses the weight any more */
    ck_assert(tg_wgrads_run(d) == TG_OK && fired == 1 && !tg_is_alive(w));
    tg_wgrads_free(d);
    tg_ctx_free(ctx);
}
END_TEST

/* A gradient that is requested now is not deferred; deferred ones detect that their tensors were overwritten. */
START_TEST(waiting_has_limits) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
    tg_tape *t = tg_tape_new(ctx);
    tg_wgrads *d = tg_wgrads_new(ctx, TG_NONE);
    tg_tensor *x = made(ctx, X, TG_SHAPE(S, IN)), *w = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN))), *g;
    tg_tensor *y = tg_linear_with_grad_accumulation(t, x, w, NULL, NULL, TG_LINEAR_GRAD(.deferred = d));
    tg_tensor *loss = tg_sum(t, y, TG_ALL_DIMS, false);
    ck_assert(tg_grad(t, &loss, 1, &w, 1, &g, TG_GRAD(.retain = true)) == TG_OK);
    ck_assert_int_eq(tg_wgrads_count(d), 0);
    ck_assert(tg_backward(t, loss) == TG_OK);
    ck_assert(tg_wgrads_count(d) == 1 && !tg_has_grad(w));
    tg_optim *o = tg_sgd_new(ctx, &w, 1, TG_SGD(.lr = 1));
    ck_assert(tg_optim_step(o) == TG_ERR_STATE);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "call tg_wgrads_drain"), "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_optim_free(o);
    double v[S * IN] = {0};
    ck_assert(tg_write(x, v, sizeof v) == TG_OK);
    ck_assert(tg_wgrads_run(d) == TG_ERR_VERSION);
    ck_assert_msg(strstr(tg_ctx_message(ctx), "call tg_wgrads_run before"), "%s", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    tg_wgrads_free(d);
    d = tg_wgrads_new(ctx, TG_NONE);
    y = tg_linear_with_grad_accumulation(t, x, w, NULL, NULL, TG_LINEAR_GRAD(.deferred = d));
    ck_assert(tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)) == TG_OK);
    tg_drop(w);
    tg_tape_reset(t);
    ck_assert(tg_wgrads_run(d) == TG_ERR_HANDLE);
    tg_ctx_clear(ctx);
    tg_wgrads_free(d);

    /* A freed list accepts nothing. */
    d = tg_wgrads_new(ctx, TG_NONE);
    w = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
    y = tg_linear_with_grad_accumulation(t, x, w, NULL, NULL, TG_LINEAR_GRAD(.deferred = d));
    tg_wgrads_free(d);
    ck_assert(tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)) == TG_OK && tg_has_grad(w));
    tg_tape_free(t);
    tg_ctx_free(ctx);
}
END_TEST

/* A hook that the list calls. It runs the list, or frees it. */
typedef struct nested {
    tg_wgrads *d;
    bool frees;
    int left; /* the number of entries when the hook ran */
    tg_status status;
} nested;

static tg_status run_again(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    nested *s = user;
    (void)x, (void)grad;
    s->left = tg_wgrads_count(s->d);
    if (s->frees)
        tg_wgrads_free(s->d);
    else
        tg_wgrads_run(s->d);
    return s->status = tg_ctx_status(tg_tape_ctx(t));
}

/* The first of two entries is done when its hook fails, and the second one stays. */
START_TEST(a_hook_neither_runs_nor_frees_the_list_that_calls_it) {
    for (int frees = 0; frees < 2; frees++) {
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64));
        tg_tape *t = tg_tape_new(ctx);
        nested s = {tg_wgrads_new(ctx, TG_NONE), frees, -1, TG_OK};
        tg_tensor *x = made(ctx, X, TG_SHAPE(S, IN)), *w[2];
        for (int i = 0; i < 2; i++) {
            w[i] = grad_leaf(made(ctx, W, TG_SHAPE(OUT, IN)));
            tg_tensor *y = tg_linear_with_grad_accumulation(t, x, w[i], NULL, NULL, TG_LINEAR_GRAD(.deferred = s.d));
            ck_assert(tg_backward(t, tg_sum(t, y, TG_ALL_DIMS, false)) == TG_OK);
        }
        uint64_t hook = tg_on_accumulated(w[0], run_again, &s);
        ck_assert(tg_wgrads_run(s.d) == TG_ERR_STATE && s.status == TG_ERR_STATE);
        ck_assert_msg(strstr(tg_ctx_message(ctx), "the list is running"), "%s", tg_ctx_message(ctx));
        ck_assert_int_eq(s.left, 1);
        tg_ctx_clear(ctx);
        tg_remove_hook(w[0], hook);
        ck_assert(tg_wgrads_count(s.d) == 1 && tg_has_grad(w[0]) && !tg_has_grad(w[1]));
        ck_assert(tg_wgrads_run(s.d) == TG_OK && tg_has_grad(w[1]));
        tg_wgrads_free(s.d);
        tg_tape_free(t);
        tg_ctx_free(ctx);
    }
}
END_TEST

START_TEST(the_op_is_in_the_table) { ck_assert(tg_op_find(op_name) && tg_op_find(op_name)->collective); }
END_TEST

int main(void) {
    const TTest *const tests[] = {
        column_against_one_rank,
        shares_sum_to_the_whole,
        inputs_are_kept_and_wrong_calls_are_refused,
        rows_lie_in_the_named_buffer,
        no_second_weight_and_no_allocation,
        communication_runs_in_parallel_with_products,
        waiting_gradients_are_the_same,
        waiting_in_a_recomputation,
        a_hook_may_drop_the_weight,
        waiting_has_limits,
        a_hook_neither_runs_nor_frees_the_list_that_calls_it,
        the_op_is_in_the_table,
    };
    return tg_check_main("linear", tests, sizeof tests / sizeof *tests);
}
