/* One rank on every GPU of this machine (at most 8) or of the emulator, over NCCL. The ranks meet, collectives deliver
 * the right values in every dtype of models, and the ranks end. Also a world of one rank on the first GPU, made and
 * split by NCCL: that is all that one GPU can show. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

#include "core/context.h"
#include "comm/nccl/world.h"

enum { MOST = 8, EACH = 4096 };

static const tg_dtype dtypes[] = {TG_F32, TG_BF16, TG_F16};

static int count_gpus(void) {
    int n = 0;
    char name[16];
    while (n < MOST) {
        snprintf(name, sizeof name, "cuda:%d", n);
        tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = name, .threads = 1));
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

static int alone(void *user, void *data, size_t bytes) { return (void)user, (void)data, (void)bytes, 0; }

/* An all-reduce as NCCL's transport gets it; a communicator of one rank would not call the transport. */
static tg_status sum_of_one(tg_ctx *ctx, tg_comm *world, void *group) {
    tg_tensor *x = filled(ctx, TG_F32, EACH, 5), *y = tg_zeros(ctx, TG_F32, TG_SHAPE(EACH));
    void *request = NULL;
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    tg_transfer t = {.size = sizeof t, .kind = TG_ALL_REDUCE, .dtype = TG_F32, .op = TG_REDUCE_SUM, .count = EACH,
                     .src = tg_data(x), .dst = tg_data(y)};
    tg_call_entry entry = tg_transfer_entry(&t, 1);
    t.record = tg_recorder_post(world->recorder, &entry);
    tg_status s = tg_nccl_transport.start(ctx, group, &t, &request);
    if (s == TG_OK) s = tg_nccl_transport.wait(ctx, group, request);
    if (request) tg_nccl_transport.drop(ctx, group, request);
    if (s == TG_OK && !holds(y, 0, 5, 1, 0)) s = tg_ctx_fail(ctx, TG_ERR_INTERNAL, "all_reduce of one rank");
    tg_drop(x), tg_drop(y);
    return s;
}

static tg_status window_of_one(tg_ctx *ctx, tg_comm *world) {
    void *window = NULL, *data = tg_nccl_transport.window_alloc(ctx, world->state, 1 << 20, &window);
    if (!data) return tg_ctx_fail(ctx, TG_ERR_MEMORY, "ncclMemAlloc of 1 MiB");
    tg_status s = tg_nccl_transport.window_join(ctx, world->state, window);
    if (s == TG_OK) s = sum_of_one(ctx, world, world->state);
    tg_nccl_transport.window_free(ctx, window);
    return s;
}

/* The life of a communicator in NCCL itself: created, split, with a window, finalized. */
static tg_status one_rank(tg_ctx *ctx) {
    void *part = NULL;
    tg_comm *world = tg_ctx_status(ctx) == TG_OK ? tg_nccl_world(ctx, NULL, 0, 1, alone, NULL) : NULL;
    tg_status s = world ? sum_of_one(ctx, world, world->state) : tg_ctx_status(ctx);
    if (s == TG_OK) s = tg_nccl_transport.split(ctx, world->state, &(int){0}, 1, 0, "part", true, &part);
    if (s == TG_OK) s = sum_of_one(ctx, world, part);
    if (s == TG_OK) s = window_of_one(ctx, world);
    if (part) tg_nccl_transport.close(ctx, part);
    tg_comm_free(world);
    return s == TG_OK ? tg_ctx_status(ctx) : s;
}

static bool check_one_rank(void) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "cuda", .threads = 1, .deadline = 60));
    tg_status s = one_rank(ctx);
    printf(s == TG_OK ? "1 rank by itself over NCCL\n" : "FAIL 1 rank by itself: %s\n", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
    return s == TG_OK;
}

int main(void) {
    int n = count_gpus();
    int alone_good = n && check_one_rank();
    tg_status s = n ? tg_ranks_run(n, rank, NULL,
                                   TG_RANKS(.config = TG_CONFIG(.device = "cuda", .threads = 1, .deadline = 60)))
                    : TG_ERR_DEVICE;
    int passed = alone_good + (s == TG_OK);
    printf("%d passed, %d failed\n", passed, 2 - passed);
    return passed == 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
