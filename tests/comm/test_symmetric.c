/* Symmetric buffers on ranks: they are packed, have one size, and are used again once free. */
#include "on_ranks.h"

#include <tapegrad/comm.h>
#include <tapegrad/tape.h>
#include <tapegrad/transport.h>

static tg_status takes(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    tg_tape *t = tg_tape_new(ctx);
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    /* Each rank asks for another size; all get the smallest. */
    tg_symmetric *s = tg_symmetric_new(c, (size_t)(1024 + 64 * me));
    const tg_dtype dtypes[] = {TG_U8, TG_F64, TG_BF16};
    const tg_shape shapes[] = {TG_SHAPE(5), TG_SHAPE(2, 8), TG_SHAPE(3)};
    tg_tensor *x[3], *y;
    EXPECT(ctx, s && tg_symmetric_take(s, t, dtypes, shapes, 3, x));
    char *p = tg_host_data(x[0]);
    EXPECT(ctx, (char *)tg_host_data(x[1]) == p + 16 && (char *)tg_host_data(x[2]) == p + 16 + 128);
    EXPECT(ctx, tg_ndim(x[1]) == 2 && tg_dtype_of(x[2]) == TG_BF16);
    EXPECT(ctx, !tg_symmetric_take(s, t, dtypes, shapes, 1, &y) && !tg_is_alive(y)); /* still in use */
    for (int i = 0; i < 3; i++) tg_discard(x[i]);
    const tg_shape most = TG_SHAPE(128), more = TG_SHAPE(129);
    EXPECT(ctx, tg_symmetric_take(s, t, &dtypes[1], &most, 1, &y) && (char *)tg_host_data(y) == p);
    tg_tape_reset(t);
    EXPECT(ctx, !tg_symmetric_take(s, t, &dtypes[1], &more, 1, &y));
    EXPECT(ctx, tg_symmetric_take(s, t, &dtypes[1], &most, 1, &y));
    double *v = tg_host_data(y);
    for (int i = 0; i < 128; i++) v[i] = me + 1;
    tg_comm_all_reduce(c, y, y, TG_REDUCE_SUM);
    tg_symmetric_free(s); /* the tensor keeps the memory */
    v = tg_host_data(y);
    EXPECT(ctx, v && v[127] == n * (n + 1) / 2);
    s = tg_symmetric_new(c, 64);
    EXPECT(ctx, tg_symmetric_take(s, t, &dtypes[0], &shapes[0], 1, &x[0]));
    EXPECT(ctx, tg_host_data(x[0]) != v);
    tg_symmetric_free(s);
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(tensors_are_packed_and_taken_again) {
    for (int n = 1; n <= 4 && !ranks_on_gpus(); n++) on_ranks(n, takes, NULL);
}
END_TEST

START_TEST(where_there_is_none_the_caller_does_without) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *plan = tg_comm_plan_new(ctx, 1, 4);
    tg_symmetric *s = tg_symmetric_new(plan, 1 << 20);
    tg_tape *t = tg_tape_new(ctx);
    const tg_dtype dtype = TG_F32;
    const tg_shape shape = TG_SHAPE(4);
    tg_tensor *x;
    ck_assert(s && !tg_symmetric_take(s, t, &dtype, &shape, 1, &x) && !tg_is_alive(x));
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_symmetric_free(s);
    tg_tape_free(t);
    tg_comm_free(plan);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Windows of a transport that moves nothing ---- */

static tg_status call_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    (void)ctx, (void)state, (void)t;
    *request = NULL; /* done */
    return TG_OK;
}
static bool call_test(tg_ctx *ctx, void *state, void *request) { return (void)ctx, (void)state, (void)request, true; }
static tg_status call_wait(tg_ctx *ctx, void *state, void *request) {
    return (void)ctx, (void)state, (void)request, TG_OK;
}
static void call_drop(tg_ctx *ctx, void *state, void *request) { (void)ctx, (void)state, (void)request; }
static tg_status split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                       void **group) {
    (void)ctx, (void)ranks, (void)n, (void)rank, (void)name, (void)all;
    *group = state;
    return TG_OK;
}
static void close_group(tg_ctx *ctx, void *state) { (void)ctx, (void)state; }
static void *window_alloc(tg_ctx *ctx, void *state, size_t bytes, void **window) {
    (void)ctx, (void)state;
    return *window = aligned_alloc(64, bytes);
}
static tg_status window_join(tg_ctx *ctx, void *state, void *window) {
    return (void)ctx, (void)state, (void)window, TG_OK;
}
static void window_free(tg_ctx *ctx, void *window) { (void)ctx, free(window); }

static const tg_comm_ops windows = {.size = sizeof windows,
                                    .name = "windows",
                                    .host = true,
                                    .start = call_start,
                                    .test = call_test,
                                    .wait = call_wait,
                                    .drop = call_drop,
                                    .split = split,
                                    .close = close_group,
                                    .window_alloc = window_alloc,
                                    .window_join = window_join,
                                    .window_free = window_free};

START_TEST(a_window_stays_within_the_limit_of_memory) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .memory = 8192));
    tg_comm *world = tg_comm_new_on(ctx, &windows, NULL, 0, 2);
    tg_tape *t = tg_tape_new(ctx);
    const tg_dtype dtype = TG_U8;
    const tg_shape one = TG_SHAPE(1);
    for (size_t bytes = 4096; bytes <= 16384; bytes *= 4) {
        tg_tensor *x;
        tg_symmetric *s = tg_symmetric_new(world, bytes);
        ck_assert_msg(s != NULL, "%s", tg_ctx_message(ctx));
        ck_assert(tg_symmetric_take(s, t, &dtype, &one, 1, &x) == (bytes < 8192));
        tg_tape_reset(t);
        tg_symmetric_free(s);
    }
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_tape_free(t);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- Refused ---- */

/* Rank 1 is refused and clears its error: it has missed the call, so it does not match the call of the others. */
static tg_status one_is_refused(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    int me = tg_comm_rank(c);
    if (me == 1) REFUSED(ctx, TG_ERR_ARGUMENT, "tg_symmetric_new: bytes is", tg_symmetric_new(c, SIZE_MAX));
    tg_symmetric *s = tg_symmetric_new(c, 64);
    tg_status got = tg_ctx_status(ctx);
    bool named = strstr(tg_ctx_message(ctx), "rank 1 failed") != NULL;
    tg_ctx_clear(ctx);
    EXPECT(ctx, !s && named && got == (me == 1 ? TG_ERR_ABORTED : TG_ERR_REMOTE));
    EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_barrier(c) == TG_OK);
    return TG_OK;
}

START_TEST(a_rank_that_is_refused_has_missed_the_call) {
    for (int n = 2; n <= 3 && !ranks_on_gpus(); n++) on_ranks(n, one_is_refused, NULL);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {tensors_are_packed_and_taken_again, where_there_is_none_the_caller_does_without,
                                  a_window_stays_within_the_limit_of_memory,
                                  a_rank_that_is_refused_has_missed_the_call};
    return tg_check_main("symmetric", tests, sizeof tests / sizeof *tests);
}
