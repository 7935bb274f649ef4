/* Collectives in flight: bytes that a collective still reads are not changed by gradients, in-place ops, the host or
 * the optimizer's step, and bytes that it still fills are not read. One rank is late, so that the data move after the
 * others have gone on. */
#include <math.h>
#include <stdatomic.h>
#include <time.h>

#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/megatron.h>

#include "on_ranks.h"

enum { RANKS = 2, LATE = 1, N = 64 };

static atomic_bool gone_on;

static tg_status note(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    (void)user, (void)t, (void)x, (void)grad;
    atomic_store(&gone_on, true);
    return TG_OK;
}

/* Waits until the other rank has continued, or must have: it does not always report it. */
static void be_late(const tg_comm *c) {
    enum { MOST = 2000 };
    const struct timespec nap = {.tv_nsec = 1000000}, while_it_goes_on = {.tv_nsec = 20000000};
    for (int i = 0; tg_comm_rank(c) == LATE && i < MOST && !atomic_load(&gone_on); i++) nanosleep(&nap, NULL);
    if (tg_comm_rank(c) == LATE) nanosleep(&while_it_goes_on, NULL);
}

/* add gives one gradient to both of its inputs. An all-reduce reads it for one of them while square adds to that of
 * the other. */
static tg_status shared_gradient(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = RANKS));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_tensor *a = tg_param_new(ctx, "a", TG_DTYPE_DEFAULT, TG_SHAPE(N), 1),
              *b = tg_param_new(ctx, "b", TG_DTYPE_DEFAULT, TG_SHAPE(N), 1);
    tg_place(p, b, TG_TP, TG_R);
    tg_on_accumulated(b, note, NULL);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = tg_tanh(t, a), *c = tg_neg(t, b), *squares = tg_square(t, c);
    tg_tensor *y = tg_square(t, tg_add(t, tg_copy_to_tp(t, x, tp), c));
    tg_tensor *loss = tg_add(t, tg_sum(t, y, TG_ALL_DIMS, false), tg_sum(t, squares, TG_ALL_DIMS, false));
    be_late(tp);
    tg_backward(t, loss);
    double va[N], vb[N], g[N];
    RUN(tg_read_f64(a, va, N));
    RUN(tg_read_f64(b, vb, N));
    RUN(tg_read_f64(tg_grad_of(a), g, N));
    for (int i = 0; i < N; i++) {
        double h = tanh(va[i]);
        EXPECT(ctx, fabs(g[i] - 2 * (h - vb[i]) * (1 - h * h)) < 1e-12);
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_gradient_that_is_read_is_not_added_into) {
    atomic_store(&gone_on, false);
    on_ranks(RANKS, shared_gradient, NULL);
}
END_TEST

typedef enum writer { RELU, WRITE, WRAPPED, WRITERS } writer; /* WRAPPED: memory of the caller */

static tg_status overwritten(void *arg, tg_ctx *ctx, tg_comm *world) {
    writer w = *(const writer *)arg;
    int me = tg_comm_rank(world);
    double v[N], nothing[N] = {0}, all[RANKS * N];
    for (int i = 0; i < N; i++) v[i] = -1 - i - me * N;
    tg_tensor *x = w == WRAPPED ? tg_wrap(ctx, TG_F64, TG_SHAPE(N), NULL, v, NULL, NULL)
                                : tg_from_host(ctx, TG_F64, TG_SHAPE(N), v);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *z = tg_neg(t, tg_neg(t, x)); /* a temporary, which may be overwritten */
    be_late(world);
    tg_tensor *y = tg_gather_from_sp(t, w == RELU ? z : x, world, NULL);
    atomic_store(&gone_on, true);
    if (w == RELU)
        tg_relu_(t, z);
    else
        RUN(tg_write_f64(x, nothing, N));
    RUN(tg_read_f64(y, all, RANKS * N));
    for (int i = 0; i < RANKS * N; i++) EXPECT(ctx, all[i] == -1 - i);
    tg_tape_free(t);
    tg_drop(x); /* before v */
    return tg_ctx_status(ctx);
}

START_TEST(data_that_a_gather_reads_are_not_overwritten) {
    for (writer w = RELU; w < WRITERS; w++) {
        if (w == WRAPPED && ranks_on_gpus()) continue;
        atomic_store(&gone_on, false);
        on_ranks(RANKS, overwritten, &w);
    }
}
END_TEST

/* ---- Gradients and optimizers ---- */

static bool all_are(tg_tensor *x, double v) {
    double got[N];
    bool same = tg_read_f64(x, got, N) == TG_OK;
    for (int i = 0; i < N; i++) same = same && got[i] == v;
    return same;
}

static void fill(tg_tensor *x, double v) {
    double all[N];
    for (int i = 0; i < N; i++) all[i] = v;
    tg_write_f64(x, all, N);
}

/* Adds g to each element of w's gradient. */
static void give(tg_ctx *ctx, tg_tensor *w, double g) {
    tg_tape *t = tg_tape_new(ctx);
    tg_backward(t, tg_scale(t, tg_sum(t, w, TG_ALL_DIMS, false), g));
    tg_tape_free(t);
}

/* What happens to a gradient while a sum reads it, and where it is stored. */
typedef struct gradient_case {
    enum { ADDED, WRITTEN, DIVIDED } then;
    enum { ITS_OWN, MAIN_GRAD, CALLERS } input;
} gradient_case;

static tg_status gradient_read(void *arg, tg_ctx *ctx, tg_comm *world) {
    const gradient_case *k = arg;
    double bytes[N] = {0};
    const double four = 4;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = RANKS));
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(N), 1), *sum = tg_zeros(ctx, TG_F64, TG_SHAPE(N));
    if (k->input == MAIN_GRAD) tg_set_main_grad(w, tg_zeros(ctx, TG_F64, TG_SHAPE(N)));
    if (k->input == CALLERS) tg_set_main_grad(w, tg_wrap(ctx, TG_F64, TG_SHAPE(N), NULL, bytes, NULL, NULL));
    give(ctx, w, 1);
    be_late(world);
    tg_comm_all_reduce(world, sum, tg_grad_of(w), TG_REDUCE_SUM);
    atomic_store(&gone_on, true);
    if (k->then == WRITTEN) tg_zero_grad(w);
    if (k->then == DIVIDED)
        tg_grads_finalize(p, &w, 1, TG_FINALIZE(.tokens = tg_from_host(ctx, TG_F64, TG_SHAPE(), &four)));
    else
        give(ctx, w, 100);
    EXPECT(ctx, all_are(sum, RANKS));
    EXPECT(ctx, all_are(tg_grad_of(w), k->then == ADDED ? 101 : k->then == WRITTEN ? 100 : 0.25));
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_gradient_that_is_read_waits_for_its_next_writer) {
    gradient_case k;
    for (int i = 0; i < 9; i++) {
        k.then = i % 3, k.input = i / 3;
        if (k.input == CALLERS && ranks_on_gpus()) continue;
        atomic_store(&gone_on, false);
        on_ranks(RANKS, gradient_read, &k);
    }
}
END_TEST

/* A step of SGD with momentum 1/2 and rate 1, from a gradient of 1 and a parameter of 0, while a collective reads or
 * fills a tensor of the optimizer: its value is 3 on the late rank, which sends it, and 7 on the other. */
typedef struct step_case {
    tg_dtype dtype;
    enum { PARAM, MASTER, MOMENTUM } of;
    bool fills, made_after; /* the optimizer is made after the collective has begun */
    double want;            /* expected parameter if `fills` */
} step_case;

static tg_optim *sgd(tg_ctx *ctx, tg_tensor *w) {
    return tg_sgd_new(ctx, &w, 1, TG_SGD(.lr = 1, .momentum = 0.5));
}

static tg_tensor *tensor_of(const step_case *k, tg_tensor *w, tg_optim *o) {
    const char *name;
    if (k->of == PARAM) return w;
    return tg_optim_state(o, k->of == MASTER ? tg_optim_state_count(o) - 1 : 0, &name);
}

static tg_status stepped(void *arg, tg_ctx *ctx, tg_comm *world) {
    const step_case *k = arg;
    tg_tensor *w = tg_param_new(ctx, "w", k->dtype, TG_SHAPE(N), 0);
    give(ctx, w, 1);
    tg_optim *o = k->made_after ? NULL : sgd(ctx, w);
    tg_tensor *x = tensor_of(k, w, o), *sum = tg_zeros(ctx, tg_dtype_of(x), TG_SHAPE(N));
    fill(x, tg_comm_rank(world) == LATE ? 3 : 7);
    be_late(world);
    if (k->fills)
        tg_comm_broadcast(world, x, LATE);
    else
        tg_comm_all_reduce(world, sum, x, TG_REDUCE_SUM);
    atomic_store(&gone_on, true);
    if (!o) o = sgd(ctx, w);
    tg_optim_step(o);
    EXPECT(ctx, all_are(sum, k->fills ? 0 : 10));
    if (k->fills) EXPECT(ctx, all_are(w, k->want));
    tg_optim_free(o);
    return tg_ctx_status(ctx);
}

START_TEST(a_step_waits_for_works_that_use_its_tensors) {
    static const step_case cases[] = {
        {TG_BF16, PARAM, true, true, 2},       {TG_F64, PARAM, true, false, 2},  {TG_BF16, PARAM, true, false, 2},
        {TG_BF16, MASTER, true, false, 2},     {TG_F64, PARAM, false, false, 0}, {TG_BF16, MASTER, false, false, 0},
        {TG_F64, MOMENTUM, true, false, -2.5}, {TG_F64, MOMENTUM, false, false, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        atomic_store(&gone_on, false);
        on_ranks(RANKS, stepped, (void *)&cases[i]);
    }
}
END_TEST

/* The loss scale is a state like others: it becomes the late rank's 8 where the other rank has 2. */
static tg_status scale_sent(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    const char *name;
    bool late = tg_comm_rank(world) == LATE;
    tg_tensor *w = tg_param_new(ctx, "w", TG_DTYPE_DEFAULT, TG_SHAPE(N), 0), *sum = tg_zeros(ctx, TG_F64, TG_SHAPE(3));
    tg_optim *o = sgd(ctx, w);
    tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = late ? 8 : 2));
    tg_tensor *x = tg_optim_state(o, tg_optim_state_count(o) - 1, &name);
    be_late(world);
    tg_comm_broadcast(world, x, LATE);
    atomic_store(&gone_on, true);
    EXPECT(ctx, tg_optim_scale(o) == 8);
    tg_comm_all_reduce(world, sum, x, TG_REDUCE_SUM);
    tg_optim_set_scale(o, TG_LOSS_SCALE(.initial = 32));
    double s[3];
    RUN(tg_read_f64(sum, s, 3));
    EXPECT(ctx, s[0] == 8 * RANKS && tg_optim_scale(o) == 32);
    tg_optim_free(o);
    return tg_ctx_status(ctx);
}

START_TEST(a_scale_of_the_loss_that_is_sent_is_waited_for) {
    atomic_store(&gone_on, false);
    on_ranks(RANKS, scale_sent, NULL);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        a_gradient_that_is_read_is_not_added_into, data_that_a_gather_reads_are_not_overwritten,
        a_gradient_that_is_read_waits_for_its_next_writer, a_step_waits_for_works_that_use_its_tensors,
        a_scale_of_the_loss_that_is_sent_is_waited_for};
    return tg_check_main("in_flight", tests, sizeof tests / sizeof *tests);
}
