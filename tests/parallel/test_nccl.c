/* What is NCCL's own: a communicator by the caller's exchange, what it refuses, and collectives beside products. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include <tapegrad/nccl.h>

#include "cuda_double/control.h"
#include "parallel/on_ranks.h"

/* ---- By the caller's exchange ---- */

enum { RANKS = 4, ROOM = 256 };

typedef struct board {
    pthread_barrier_t all;
    char data[ROOM];
} board;

typedef struct seat {
    board *b;
    int rank;
} seat;

static int share(void *user, void *data, size_t bytes) {
    const seat *s = user;
    if (bytes > ROOM) return 1;
    if (s->rank == 0) memcpy(s->b->data, data, bytes);
    pthread_barrier_wait(&s->b->all);
    memcpy(data, s->b->data, bytes);
    pthread_barrier_wait(&s->b->all);
    return 0;
}

static double sum_of_ranks(tg_ctx *ctx, tg_comm *c, double mine) {
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &mine);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    double sum = tg_item(x);
    tg_drop(x);
    return sum;
}

static tg_status by_exchange(void *arg, tg_ctx *ctx, tg_comm *host) {
    int me = tg_comm_rank(host);
    seat s = {arg, me};
    tg_comm *c = tg_comm_nccl_new_by(ctx, me, RANKS, share, &s);
    EXPECT(ctx, !strcmp(tg_comm_transport(c), "nccl") && tg_comm_size(c) == RANKS && tg_comm_rank(c) == me);
    EXPECT(ctx, sum_of_ranks(ctx, c, me) == 6 && tg_comm_barrier(c) == TG_OK);
    tg_comm *half = tg_comm_split(c, me % 2, -me, "half", TG_TP);
    EXPECT(ctx, tg_comm_size(half) == 2 && tg_comm_rank(half) == (me < 2) && !strcmp(tg_comm_name(half), "half"));
    EXPECT(ctx, sum_of_ranks(ctx, half, me) == (me % 2 ? 4 : 2));
    tg_comm_free(half);
    tg_comm *some = tg_comm_split(c, me < 2 ? -1 : 0, 0, "some", TG_TP);
    bool refused = tg_ctx_status(ctx) == TG_ERR_UNSUPPORTED && strstr(tg_ctx_message(ctx), "needs all of them at once");
    if (me >= 2) tg_ctx_clear(ctx);
    EXPECT(ctx, me < 2 ? !some : refused);
    tg_comm_free(c);
    return tg_ctx_status(ctx);
}

/* Nobody else can compare its calls, but its own errors are told as ever. */
START_TEST(ranks_meet_by_the_callers_exchange) {
    board b;
    pthread_barrier_init(&b.all, NULL, RANKS);
    on_ranks(RANKS, by_exchange, &b);
    pthread_barrier_destroy(&b.all);
}
END_TEST

static int breaks(void *user, void *data, size_t bytes) { return (void)user, (void)data, (void)bytes, 7; }

static tg_status refusals(void *arg, tg_ctx *ctx, tg_comm *host) {
    (void)arg;
    REFUSED(ctx, TG_ERR_IO, "the caller's broadcast answered 7", tg_comm_nccl_new_by(ctx, 0, 2, breaks, NULL));
    REFUSED(ctx, TG_ERR_ARGUMENT, "rank 2 of 2", tg_comm_nccl_new_by(ctx, 2, 2, breaks, NULL));
    REFUSED(ctx, TG_ERR_ARGUMENT, "broadcast is NULL", tg_comm_nccl_new_by(ctx, 0, 2, NULL, NULL));
    setenv("NCCL_COMM_ID", "127.0.0.1:4000", 1);
    REFUSED(ctx, TG_ERR_STATE, "NCCL_COMM_ID", tg_comm_nccl_new_by(ctx, 0, 2, breaks, NULL));
    REFUSED(ctx, TG_ERR_STATE, "NCCL_COMM_ID", tg_comm_nccl_new(host));
    unsetenv("NCCL_COMM_ID");
    tg_comm *one = tg_comm_nccl_new_by(ctx, 0, 1, breaks, NULL);
    EXPECT(ctx, !strcmp(tg_comm_transport(one), "self"));
    tg_comm_free(one);
    return tg_ctx_status(ctx);
}

START_TEST(what_is_refused) { on_ranks(1, refusals, NULL); }
END_TEST

static tg_status host_memory_moves(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    REFUSED(ctx, TG_ERR_ARGUMENT, "expected one that moves host memory", tg_comm_nccl_new(world));
    return tg_ctx_status(ctx);
}

/* NCCL over NCCL is none. */
START_TEST(its_host_is_a_host) { on_ranks(2, host_memory_moves, NULL); }
END_TEST

/* ---- Overlap ---- */

enum { EVENTS = 4096 };

static struct {
    atomic_bool on;
    int n;
    char what[EVENTS][40];
    const void *stream[EVENTS];
} trace;

/* What rank 0's GPU is given, in order. */
static void saw(int device, const void *stream, const char *what) {
    if (device != 0 || !atomic_load(&trace.on) || trace.n == EVENTS) return;
    snprintf(trace.what[trace.n], sizeof trace.what[0], "%s", what);
    trace.stream[trace.n++] = stream;
}

static int after(int from, const char *what, const void *stream, bool there) {
    for (int i = from; i < trace.n; i++)
        if (strstr(trace.what[i], what) && (!stream || (trace.stream[i] == stream) == there)) return i;
    return trace.n;
}

/* A column layer's backward: the all-reduce of the input's gradient runs beside the weight's. */
static tg_status column_backward(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int me = tg_comm_rank(world);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = 2));
    tg_comm *tp = tg_parallel_comm(p, TG_TP);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = grad_leaf(made(ctx, 1, TG_SHAPE(6, 8))), *w = grad_leaf(part(ctx, 2, TG_SHAPE(8, 8), 0, me, 2));
    tg_place(p, x, TG_TP, TG_I);
    tg_place(p, w, TG_TP, TG_SHARD(0));
    const tg_linear_grad_opts *summed = TG_LINEAR_GRAD(.allreduce_dgrad = true);
    tg_tensor *y = tg_linear_with_grad_accumulation(t, tg_tanh(t, x), w, NULL, tp, summed);
    tg_tensor *loss = tg_sum(t, tg_square(t, y), TG_ALL_DIMS, false);
    RUN(tg_comm_barrier(world));
    if (me == 0) double_watch(saw), atomic_store(&trace.on, true);
    RUN(tg_backward(t, loss));
    if (me == 0) atomic_store(&trace.on, false), double_watch(NULL);
    double g[48];
    RUN(tg_read_f64(tg_grad_of(x), g, 48));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_collective_runs_beside_a_product) {
    on_ranks(2, column_backward, NULL);
    int reduce = after(0, "AllReduce", NULL, true);
    ck_assert_msg(reduce < trace.n, "no all-reduce among %d events", trace.n);
    const void *communication = trace.stream[reduce];
    int product = after(reduce, "cublasLtMatmul", communication, false);
    int wait = after(reduce, "a wait for an event", communication, false);
    for (int i = 0; i < trace.n; i++)
        if (getenv("TG_TEST_TRACE")) printf("%p %s\n", trace.stream[i], trace.what[i]);
    ck_assert_msg(product < wait && wait < trace.n,
                  "the all-reduce is event %d, the next product elsewhere %d, the wait for it %d, of %d", reduce,
                  product, wait, trace.n);
    ck_assert_msg(after(0, "a wait for an event", communication, true) < reduce, "the all-reduce waits for its input");
}
END_TEST

int main(void) {
    setenv("TG_TEST_DEVICE", "cuda", 1);
    const TTest *const tests[] = {ranks_meet_by_the_callers_exchange, what_is_refused, its_host_is_a_host,
                                  a_collective_runs_beside_a_product};
    return tg_check_main("nccl", tests, sizeof tests / sizeof *tests);
}
