/* One rank on every GPU of this machine (at most 8) or of the emulator, over NCCL. The ranks meet, collectives deliver
 * the right values in every dtype of models, and the ranks end. Also a world of one rank, made and split by NCCL: that
 * is all that one GPU can show. And contexts on the first and on the last GPU in one thread, and then in another: each
 * call runs on the GPU of its context. And a context that cannot be made. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/memory.h>
#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

#include "core/context.h"
#include "comm/nccl/world.h"

enum { MOST = 8, EACH = 4096 };

static const tg_dtype dtypes[] = {TG_F32, TG_BF16, TG_F16};

static tg_ctx *context_on(int gpu) {
    char name[16];
    snprintf(name, sizeof name, "cuda:%d", gpu);
    return tg_ctx_new(TG_CONFIG(.device = name, .threads = 1, .deadline = 60));
}

static int count_gpus(void) {
    int n = 0;
    while (n < MOST) {
        tg_ctx *ctx = context_on(n);
        bool there = tg_ctx_status(ctx) == TG_OK;
        if (!there && n == 0) printf("FAIL: %s\n", tg_ctx_message(ctx));
        tg_ctx_free(ctx);
        if (!there) break;
        n++;
    }
    return n;
}

static double value(int rank, int64_t i) { return (double)((i + 3 * rank) % 17) - 8; }

static tg_tensor *filled(tg_ctx *ctx, tg_dtype dtype, int64_t n, int rank) {
    double *v = malloc((size_t)n * sizeof *v);
    tg_tensor *x = tg_zeros(ctx, dtype, TG_SHAPE(n));
    for (int64_t i = 0; v && i < n; i++) v[i] = value(rank, i);
    if (v) tg_write_f64(x, v, n);
    free(v);
    return x;
}

/* Makes the GPU of ctx the current one of the thread. */
static void make_current(tg_ctx *ctx) { tg_drop(tg_zeros(ctx, TG_F32, TG_SHAPE(1))); }

/* Checks that the data at `at` are rank `from`'s (from < 0: the sum over all n) from position `first` on. */
static bool holds(tg_tensor *x, int64_t at, int from, int n, int64_t first) {
    int64_t all = tg_numel(x);
    double *v = malloc((size_t)all * sizeof *v);
    bool ok = v && tg_read_f64(x, v, all) == TG_OK;
    for (int64_t i = 0; ok && i < EACH; i++) {
        double want = 0;
        for (int r = from < 0 ? 0 : from; r < (from < 0 ? n : from + 1); r++) want += value(r, first + i);
        ok = v[at + i] == want; /* small integers are exact in any dtype and order */
    }
    free(v);
    return ok;
}

static tg_status collectives(tg_ctx *ctx, tg_comm *c, tg_dtype dtype) {
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    const char *wrong = NULL;
    tg_tensor *x = filled(ctx, dtype, EACH, me), *y = tg_zeros(ctx, dtype, TG_SHAPE(EACH));
    tg_tensor *wide = filled(ctx, dtype, EACH * n, me), *all = tg_zeros(ctx, dtype, TG_SHAPE(EACH * n));
    tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM);
    if (!holds(y, 0, -1, n, 0)) wrong = "all_reduce";
    tg_comm_all_gather(c, all, x);
    for (int r = 0; r < n; r++)
        if (!holds(all, EACH * r, r, n, 0)) wrong = "all_gather";
    tg_comm_reduce_scatter(c, y, wide, TG_REDUCE_SUM);
    if (!holds(y, 0, -1, n, (int64_t)EACH * me)) wrong = "reduce_scatter";
    tg_comm_all_to_all(c, all, wide, NULL, NULL);
    for (int r = 0; r < n; r++)
        if (!holds(all, EACH * r, r, n, (int64_t)EACH * me)) wrong = "all_to_all";
    tg_comm_broadcast(c, x, n - 1);
    if (!holds(x, 0, n - 1, n, 0)) wrong = "broadcast";
    tg_drop(x), tg_drop(y), tg_drop(wide), tg_drop(all);
    return wrong ? tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s of %s: other values than the ranks'", wrong,
                               tg_dtype_name(dtype))
                 : tg_ctx_status(ctx);
}

static tg_status rank(void *arg, tg_ctx *ctx, tg_comm *host) {
    (void)arg;
    tg_comm *world = tg_comm_nccl_new(host);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && tg_ctx_status(ctx) == TG_OK; i++)
        collectives(ctx, world, dtypes[i]);
    tg_comm *half = tg_comm_split(world, tg_comm_rank(world) % 2, 0, "half", TG_DP);
    if (tg_ctx_status(ctx) == TG_OK) collectives(ctx, half, TG_F32);
    if (tg_ctx_status(ctx) != TG_OK)
        printf("FAIL rank %d: %s\n", tg_comm_rank(host), tg_ctx_message(ctx));
    else if (tg_comm_rank(host) == 0)
        printf("%d ranks over %s\n", tg_comm_size(host), tg_comm_transport(world));
    tg_comm_free(half);
    tg_comm_free(world);
    return tg_ctx_status(ctx);
}

/* ---- One rank ---- */

/* The broadcast of a world of one rank; user: the other context. */
static int alone(void *user, void *data, size_t bytes) {
    (void)data, (void)bytes;
    make_current(user);
    return 0;
}

/* An all-reduce as NCCL's transport gets it; a communicator of one rank would not call the transport. */
static tg_status sum_of_one(tg_ctx *ctx, tg_ctx *other, tg_comm *world, void *group) {
    tg_tensor *x = filled(ctx, TG_F32, EACH, 5), *y = tg_zeros(ctx, TG_F32, TG_SHAPE(EACH));
    void *request = NULL;
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    tg_transfer t = {.size = sizeof t, .kind = TG_ALL_REDUCE, .dtype = TG_F32, .op = TG_REDUCE_SUM, .count = EACH,
                     .src = tg_data(x), .dst = tg_data(y)};
    tg_call_entry entry = tg_transfer_entry(&t, 1);
    t.record = tg_recorder_post(world->recorder, &entry);
    make_current(other);
    tg_status s = tg_nccl_transport.start(ctx, group, &t, &request);
    if (s == TG_OK) s = tg_nccl_transport.wait(ctx, group, request);
    if (request) tg_nccl_transport.drop(ctx, group, request);
    if (s == TG_OK && !holds(y, 0, 5, 1, 0)) s = tg_ctx_fail(ctx, TG_ERR_INTERNAL, "all_reduce of one rank");
    tg_drop(x), tg_drop(y);
    return s;
}

static tg_status window_of_one(tg_ctx *ctx, tg_ctx *other, tg_comm *world) {
    make_current(other);
    void *window = NULL, *data = tg_nccl_transport.window_alloc(ctx, world->state, 1 << 20, &window);
    if (!data) return tg_ctx_fail(ctx, TG_ERR_MEMORY, "ncclMemAlloc of 1 MiB");
    tg_status s = tg_nccl_transport.window_join(ctx, world->state, window);
    if (s == TG_OK) s = sum_of_one(ctx, other, world, world->state);
    tg_nccl_transport.window_free(ctx, window);
    return s;
}

/* The life of a communicator in NCCL itself: created, split, with a window, finalized. Before each call the GPU of
 * another context is made the current one. */
static tg_status one_rank(tg_ctx *ctx, tg_ctx *other) {
    void *part = NULL;
    tg_comm *world = tg_ctx_status(ctx) == TG_OK ? tg_nccl_world(ctx, NULL, 0, 1, alone, other) : NULL;
    tg_status s = world ? sum_of_one(ctx, other, world, world->state) : tg_ctx_status(ctx);
    make_current(other);
    if (s == TG_OK) s = tg_nccl_transport.split(ctx, world->state, &(int){0}, 1, 0, "part", true, &part);
    if (s == TG_OK) s = sum_of_one(ctx, other, world, part);
    if (s == TG_OK) s = window_of_one(ctx, other, world);
    if (part) tg_nccl_transport.close(ctx, part);
    tg_comm_free(world);
    return s == TG_OK ? tg_ctx_status(ctx) : s;
}

static bool check_one_rank(int gpus) {
    tg_ctx *ctx = context_on(gpus - 1), *first = context_on(0);
    tg_status s = one_rank(ctx, first);
    printf(s == TG_OK ? "1 rank by itself over NCCL\n" : "FAIL 1 rank by itself: %s\n", tg_ctx_message(ctx));
    tg_ctx_free(first);
    tg_ctx_free(ctx);
    return s == TG_OK;
}

/* ---- Contexts in one thread and in others ---- */

/* Calls what depends on the current GPU: allocations, events, kernels, cuBLASLt, a kernel with more than 48 KiB of
 * shared memory, and copies in parallel with kernels. Before each, makes the GPU of `other` the current one. Returns
 * the sum of all results; -1 after an error. */
static double compute(tg_ctx *ctx, tg_ctx *other) {
    enum { SIDE = 64, HEAD = 256 };
    double sum = -1;
    float loss = -1;
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = filled(ctx, TG_F32, EACH, 5);
    tg_set_requires_grad(x, true);
    tg_tensor *a = tg_reshape(t, x, TG_SHAPE(SIDE, SIDE)), *q = tg_reshape(t, x, TG_SHAPE(1, 1, EACH / HEAD, HEAD));
    make_current(other);
    tg_tensor *attended = tg_reshape(t, tg_attention(t, q, q, q, NULL), TG_SHAPE(SIDE, SIDE));
    make_current(other);
    tg_tensor *product = tg_matmul(t, a, a);
    make_current(other);
    tg_tensor *y = tg_sum(t, tg_mul(t, product, attended), TG_ALL_DIMS, false);
    make_current(other);
    tg_work_wait(tg_download(y, &loss, sizeof loss));
    make_current(other);
    if (tg_backward(t, y) == TG_OK) tg_read_f64(tg_sum(t, tg_grad_of(x), TG_ALL_DIMS, false), &sum, 1);
    if (tg_ctx_status(ctx) == TG_OK) sum += loss;
    tg_tape_free(t);
    tg_drop(x);
    return tg_ctx_status(ctx) == TG_OK ? sum : -1;
}

typedef struct job {
    tg_ctx *ctx, *other;
    double sum;
} job;

static void *compute_in_thread(void *arg) {
    job *j = arg;
    j->sum = compute(j->ctx, j->other);
    return NULL;
}

/* Computes in a thread whose current GPU is number 0 at first. */
static double in_new_thread(tg_ctx *ctx, tg_ctx *other) {
    pthread_t thread;
    job j = {ctx, other, -1};
    if (pthread_create(&thread, NULL, compute_in_thread, &j) == 0) pthread_join(thread, NULL);
    return j.sum;
}

/* Returns whether tg_memory_left counts the memory of the context's GPU while that of the other context, which has less
 * left, is the current one. */
static bool counts_its_own_memory(tg_ctx *ctx, tg_ctx *other) {
    tg_tensor *x = tg_zeros(other, TG_F32, TG_SHAPE(1 << 22));
    int64_t left = tg_memory_left(ctx);
    make_current(ctx);
    bool same = left == tg_memory_left(ctx);
    tg_drop(x);
    return same;
}

static bool check_threads(int gpus) {
    tg_ctx *first = context_on(0), *last = context_on(gpus - 1);
    double sum = compute(first, last), others[] = {compute(last, first), in_new_thread(last, last),
                                                   compute(first, first), compute(last, last)};
    bool good = tg_ctx_status(first) == TG_OK && tg_ctx_status(last) == TG_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) good &= others[i] == sum;
    good &= counts_its_own_memory(last, first);
    printf(good ? "contexts on GPUs 0 and %d in two threads\n" : "FAIL contexts on GPUs 0 and %d: %s%s\n", gpus - 1,
           tg_ctx_message(first), tg_ctx_message(last));
    tg_ctx_free(first);
    tg_ctx_free(last);
    return good;
}

/* A context on a GPU that does not exist leaves the thread's current GPU as it was. */
static bool check_missing_gpu(int gpus) {
    tg_ctx *last = context_on(gpus - 1), *missing = context_on(1000);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cuda", .threads = 1));
    int current = ctx->run.device_index;
    bool good = tg_ctx_status(missing) == TG_ERR_DEVICE && tg_ctx_status(ctx) == TG_OK && current == gpus - 1;
    printf(good ? "after an error GPU %d is still the current one\n"
                : "FAIL GPU %d is the current one after an error\n", current);
    tg_ctx_free(ctx);
    tg_ctx_free(missing);
    tg_ctx_free(last);
    return good;
}

int main(void) {
    int n = count_gpus();
    int alone_good = n && check_one_rank(n), threads_good = n && check_threads(n), kept = n && check_missing_gpu(n);
    tg_status s = n ? tg_ranks_run(n, rank, NULL,
                                   TG_RANKS(.config = TG_CONFIG(.device = "cuda", .threads = 1, .deadline = 60)))
                    : TG_ERR_DEVICE;
    int passed = alone_good + threads_good + kept + (s == TG_OK);
    printf("%d passed, %d failed\n", passed, 4 - passed);
    return passed == 4 ? EXIT_SUCCESS : EXIT_FAILURE;
}
