/* Properties of NCCL only: a communicator made with the caller's exchange function, refused arguments, and
 * collectives that run while a product is computed. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include <tapegrad/nccl.h>
#include <tapegrad/backward.h>
#include <tapegrad/tensor_parallel.h>

#include "cuda_emulator/control.h"
#include "on_ranks.h"

/* ---- With the caller's exchange function ---- */

enum { RANKS = 4, ROOM = 256 };

typedef struct exchange {
    pthread_barrier_t all;
    char data[ROOM];
} exchange;

typedef struct party {
    exchange *b;
    int rank;
} party;

static int share(void *user, void *data, size_t bytes) {
    const party *s = user;
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
    party s = {arg, me};
    tg_comm *c = tg_comm_nccl_new_by(ctx, me, RANKS, share, &s);
    EXPECT(ctx, !strcmp(tg_comm_transport(c), "nccl") && tg_comm_size(c) == RANKS && tg_comm_rank(c) == me);
    EXPECT(ctx, sum_of_ranks(ctx, c, me) == 6 && tg_comm_barrier(c) == TG_OK);
    tg_comm *half = tg_comm_split(c, me % 2, -me, "half", TG_TP);
    EXPECT(ctx, tg_comm_size(half) == 2 && tg_comm_rank(half) == (me < 2) && !strcmp(tg_comm_name(half), "half"));
    EXPECT(ctx, sum_of_ranks(ctx, half, me) == (me % 2 ? 4 : 2));
    tg_comm_free(half);
    tg_comm *some = tg_comm_split(c, me < 2 ? -1 : 0, 0, "some", TG_TP);
    bool refused =
        tg_ctx_status(ctx) == TG_ERR_UNSUPPORTED && strstr(tg_ctx_message(ctx), "only if all its ranks take part");
    if (me >= 2) tg_ctx_clear(ctx);
    EXPECT(ctx, me < 2 ? !some : refused);
    tg_comm_free(c);
    return tg_ctx_status(ctx);
}

/* Other ranks cannot compare its calls, but its own errors are reported as usual. */
START_TEST(ranks_meet_by_the_callers_exchange) {
    exchange b;
    pthread_barrier_init(&b.all, NULL, RANKS);
    on_ranks(RANKS, by_exchange, &b);
    pthread_barrier_destroy(&b.all);
}
END_TEST

static int breaks(void *user, void *data, size_t bytes) { return (void)user, (void)data, (void)bytes, 7; }

static tg_status refusals(void *arg, tg_ctx *ctx, tg_comm *host) {
    (void)arg;
    REFUSED(ctx, TG_ERR_IO, "the caller's broadcast returned 7", tg_comm_nccl_new_by(ctx, 0, 2, breaks, NULL));
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

START_TEST(invalid_calls_are_refused) { on_ranks(1, refusals, NULL); }
END_TEST

static tg_status host_memory_moves(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    REFUSED(ctx, TG_ERR_ARGUMENT, "expected one that moves host memory", tg_comm_nccl_new(world));
    return tg_ctx_status(ctx);
}

/* A communicator of NCCL cannot be made over NCCL. */
START_TEST(its_host_is_a_host) { on_ranks(2, host_memory_moves, NULL); }
END_TEST

/* ---- Waits for NCCL ---- */

/* Rank 0 waits for NCCL to take a call, while its GPU waits for a call that rank 1 has yet to make. After that wait it
 * computes, and then comes to the barrier for which rank 1 waits, so the two are in no deadlock. */
static tg_status late_for_a_barrier(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int me = tg_comm_rank(world);
    const double one = 1;
    tg_comm *other = tg_comm_split(world, 0, 0, "other", TG_MAX_AXES);
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(1), &one);
    if (me == 1) tg_comm_barrier(other);
    for (int i = 0; i < 2; i++) tg_comm_all_reduce(world, x, x, TG_REDUCE_SUM);
    if (me == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        tg_comm_barrier(other);
    }
    EXPECT(ctx, tg_item(x) == 4);
    tg_drop(x);
    tg_comm_free(other);
    return tg_ctx_status(ctx);
}

START_TEST(a_wait_for_nccl_that_is_over_blocks_no_rank) { on_ranks(2, late_for_a_barrier, NULL); }
END_TEST

/* ---- Dtypes that NCCL lacks ---- */

/* Bytes of integers of 16 bits can be moved, but not added; the communicator can be used after a refusal. */
static tg_status of_16_bits(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int me = tg_comm_rank(world);
    static const struct {
        tg_dtype dtype;
        const char *sum, *part;
    } cases[] = {
        {TG_I16, "all_reduce: NCCL does not reduce i16; cast to i32 first", "reduce_scatter: NCCL does not reduce i16"},
        {TG_U16, "all_reduce: NCCL does not reduce u16; cast to i32 first",
         "reduce_scatter: NCCL does not reduce u16"}};
    for (int i = 0; i < 2; i++) {
        tg_tensor *x = tg_zeros(ctx, cases[i].dtype, TG_SHAPE(2)), *part = tg_zeros(ctx, cases[i].dtype, TG_SHAPE(1));
        tg_tensor *all = tg_zeros(ctx, cases[i].dtype, TG_SHAPE(4));
        double mine[2] = {1 + me, 3 + me}, v[4];
        RUN(tg_write_f64(x, mine, 2));
        REFUSED(ctx, TG_ERR_UNSUPPORTED, cases[i].sum, tg_comm_all_reduce(world, x, x, TG_REDUCE_SUM));
        REFUSED(ctx, TG_ERR_UNSUPPORTED, cases[i].part, tg_comm_reduce_scatter(world, part, x, TG_REDUCE_MAX));
        tg_comm_all_gather(world, all, x);
        RUN(tg_read_f64(all, v, 4));
        EXPECT(ctx, v[0] == 1 && v[1] == 3 && v[2] == 2 && v[3] == 4);
    }
    EXPECT(ctx, sum_of_ranks(ctx, world, me) == 1);
    return tg_ctx_status(ctx);
}

START_TEST(integers_of_16_bits_are_moved_and_not_reduced) { on_ranks(2, of_16_bits, NULL); }
END_TEST

/* NCCL has no booleans. A sum is the maximum of their bytes, so that true and true is true. */
static tg_status of_booleans(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    static const struct {
        tg_reduce_op op;
        double expected[4];
    } cases[] = {{TG_REDUCE_SUM, {0, 1, 1, 1}}, {TG_REDUCE_MAX, {0, 1, 1, 1}}, {TG_REDUCE_MIN, {0, 0, 0, 1}}};
    double mine[4] = {0, tg_comm_rank(world), !tg_comm_rank(world), 1}, v[4];
    for (int i = 0; i < 3; i++) {
        tg_tensor *x = tg_zeros(ctx, TG_BOOL, TG_SHAPE(4));
        RUN(tg_write_f64(x, mine, 4));
        tg_comm_all_reduce(world, x, x, cases[i].op);
        RUN(tg_read_f64(x, v, 4));
        EXPECT(ctx, !memcmp(v, cases[i].expected, sizeof v));
    }
    return tg_ctx_status(ctx);
}

START_TEST(booleans_stay_booleans) { on_ranks(2, of_booleans, NULL); }
END_TEST

/* ---- Overlap ---- */

enum { EVENTS = 4096 };

static struct {
    atomic_bool on;
    int n;
    char what[EVENTS][40];
    const void *stream[EVENTS];
} trace;

/* Operations of rank 0's GPU, in order. */
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

/* A column layer's backward: the all-reduce of the input's gradient runs in parallel with the product of the
 * weight's. */
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
    if (me == 0) emulator_watch(saw), atomic_store(&trace.on, true);
    RUN(tg_backward(t, loss));
    if (me == 0) atomic_store(&trace.on, false), emulator_watch(NULL);
    double g[48];
    RUN(tg_read_f64(tg_grad_of(x), g, 48));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(a_collective_runs_in_parallel_with_a_product) {
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

/* ---- Windows ---- */

enum { PIECE = 96 };

static bool holds(tg_tensor *x, double expected) {
    double v[RANKS * PIECE];
    int64_t n = tg_numel(x);
    if (tg_read_f64(x, v, n) != TG_OK) return false;
    for (int64_t i = 0; i < n; i++)
        if (v[i] != expected) return false;
    return true;
}

static void put(tg_tensor *x, double value) {
    double v[RANKS * PIECE];
    for (int i = 0; i < RANKS * PIECE; i++) v[i] = value;
    tg_write_f64(x, v, tg_numel(x));
}

/* Collectives within the window; the emulator compares the offsets that ranks give. */
static tg_status use_window(tg_ctx *ctx, tg_comm *c, tg_symmetric *s, tg_tape *t) {
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    const tg_dtype dtypes[] = {TG_F32, TG_F32, TG_BF16};
    const tg_shape shapes[] = {TG_SHAPE(n, PIECE), TG_SHAPE(PIECE), TG_SHAPE(PIECE)};
    tg_tensor *x[3], *y;
    EXPECT(ctx, s && tg_symmetric_take(s, t, dtypes, shapes, 3, x));
    EXPECT(ctx, !tg_symmetric_take(s, t, dtypes, shapes, 1, &y));
    put(x[1], me + 1);
    tg_comm_all_reduce(c, x[1], x[1], TG_REDUCE_SUM);
    EXPECT(ctx, holds(x[1], n * (n + 1) / 2));
    tg_comm_all_gather(c, x[0], x[1]);
    EXPECT(ctx, holds(x[0], n * (n + 1) / 2));
    tg_comm_reduce_scatter(c, x[1], x[0], TG_REDUCE_SUM);
    EXPECT(ctx, holds(x[1], n * n * (n + 1) / 2));
    put(x[2], 1);
    tg_comm_all_reduce(c, x[2], x[2], TG_REDUCE_SUM);
    EXPECT(ctx, holds(x[2], n));
    tg_tape_reset(t);
    EXPECT(ctx, tg_symmetric_take(s, t, dtypes, shapes, 1, &y));
    put(y, 2);
    tg_comm_all_reduce(c, y, y, TG_REDUCE_SUM); /* in flight until it is read */
    return tg_ctx_status(ctx);
}

static tg_status with_windows(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int me = tg_comm_rank(world);
    tg_tape *t = tg_tape_new(ctx);
    tg_memory_info m = TG_MEMORY_INFO();
    for (int round = 0; round < 3; round++) { /* each rank asks for another size; all get the smallest */
        tg_symmetric *s = tg_symmetric_new(world, (size_t)(8192 + 100 * me));
        RUN(use_window(ctx, world, s, t));
        tg_memory_query(ctx, &m);
        EXPECT(ctx, m.by_category[TG_MEM_BUFFER] >= 8192);
        tg_symmetric_free(s); /* its tensor keeps the memory */
        tg_tape_reset(t);
        tg_memory_query(ctx, &m);
        EXPECT(ctx, m.by_category[TG_MEM_BUFFER] == 0);
    }
    tg_comm *half = tg_comm_split(world, me % 2, me, "half", TG_TP);
    tg_symmetric *s = tg_symmetric_new(half, 8192), *all = tg_symmetric_new(world, 8192);
    RUN(use_window(ctx, half, s, t));
    tg_comm_free(half);
    tg_symmetric_free(s); /* after its communicator */
    RUN(use_window(ctx, world, all, t));
    tg_symmetric_free(all);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(symmetric_buffers_are_windows) {
    on_ranks(RANKS, with_windows, NULL);
    ck_assert_int_eq(emulator_live("nccl"), 0);
    ck_assert_int_eq(emulator_live("memory"), 0);
    ck_assert_str_eq(emulator_message(), "");
}
END_TEST

static tg_status without_room(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    int me = tg_comm_rank(world);
    tg_tape *t = tg_tape_new(ctx);
    const tg_dtype dtype = TG_F32;
    const tg_shape shape = TG_SHAPE(8);
    tg_tensor *x;
    tg_symmetric *s = tg_symmetric_new(world, me == 1 ? (size_t)1 << 40 : (size_t)1 << 39); /* more than exists */
    EXPECT(ctx, s && !tg_symmetric_take(s, t, &dtype, &shape, 1, &x) && !tg_is_alive(x));
    tg_symmetric_free(s);
    s = tg_symmetric_new(world, me == 1 ? 0 : 4096); /* one rank asks for none, so none gets any */
    EXPECT(ctx, s && !tg_symmetric_take(s, t, &dtype, &shape, 1, &x));
    tg_symmetric_free(s);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(without_memory_for_a_window_there_is_none) { on_ranks(2, without_room, NULL); }
END_TEST

int main(void) {
    setenv("TG_TEST_DEVICE", "cuda", 1);
    const TTest *const tests[] = {ranks_meet_by_the_callers_exchange,
                                  invalid_calls_are_refused,
                                  its_host_is_a_host,
                                  a_wait_for_nccl_that_is_over_blocks_no_rank,
                                  integers_of_16_bits_are_moved_and_not_reduced,
                                  booleans_stay_booleans,
                                  a_collective_runs_in_parallel_with_a_product,
                                  symmetric_buffers_are_windows,
                                  without_memory_for_a_window_there_is_none};
    return tg_check_main("nccl", tests, sizeof tests / sizeof *tests);
}
