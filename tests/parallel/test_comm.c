/* Communicators: every collective against plain loops, on 1 to 4 ranks. */
#include <stdio.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/parallel.h>

#include "check_main.h"

enum { RANKS = 4, N = 100003 };

/* A rank's check: the function returns an error, so that the other ranks are not left waiting. */
#define EXPECT(ctx, truth) \
    do {                   \
        if (!(truth)) return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #truth); \
    } while (0)

static void on_ranks(int n, tg_rank_fn fn, void *arg) {
    char message[1024];
    tg_status s = tg_ranks_run(n, fn, arg, TG_RANKS(.message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_OK, "%d ranks: %s: %s", n, tg_status_name(s), message);
}

static float value(int rank, int64_t i) { return (float)((rank + 1) * 1000 + i % 977) / 7; }

static tg_tensor *vector(tg_ctx *ctx, int64_t n, int rank) {
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(n));
    float *p = tg_host_data(x);
    for (int64_t i = 0; p && i < n; i++) p[i] = value(rank, i);
    return x;
}

static tg_status all_kinds(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tensor *x = vector(ctx, N, me), *y = vector(ctx, N, 9);
    tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM);
    const float *p = tg_host_data(y);
    for (int64_t i = 0; p && i < N; i++) {
        float sum = value(0, i);
        for (int r = 1; r < n; r++) sum += value(r, i);
        EXPECT(ctx, p[i] == sum);
    }
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    const float *q = tg_host_data(x);
    EXPECT(ctx, p && q && !memcmp(p, q, N * sizeof *p));

    tg_tensor *mine = vector(ctx, 1000, me), *all = vector(ctx, 1000 * n, 9), *back = vector(ctx, 1000, 9);
    tg_comm_all_gather(c, all, mine);
    p = tg_host_data(all);
    for (int64_t i = 0; p && i < 1000 * n; i++) EXPECT(ctx, p[i] == value((int)(i / 1000), i % 1000));
    tg_comm_reduce_scatter(c, back, all, TG_REDUCE_AVG);
    p = tg_host_data(back);
    for (int64_t i = 0; p && i < 1000; i++) EXPECT(ctx, p[i] > value(me, i) - .1f && p[i] < value(me, i) + .1f);
    tg_comm_broadcast(c, mine, n - 1);
    p = tg_host_data(mine);
    for (int64_t i = 0; p && i < 1000; i++) EXPECT(ctx, p[i] == value(n - 1, i));

    tg_tensor *send = vector(ctx, 300 * n, me), *recv = vector(ctx, 300 * n, 9);
    tg_comm_all_to_all(c, recv, NULL, send, NULL);
    p = tg_host_data(recv);
    for (int64_t i = 0; p && i < 300 * n; i++) EXPECT(ctx, p[i] == value((int)(i / 300), 300 * me + i % 300));
    tg_comm_all_to_all(c, send, NULL, send, NULL);
    q = tg_host_data(send);
    EXPECT(ctx, p && q && !memcmp(p, q, (size_t)(300 * n) * sizeof *p));

    if (n > 1) {
        tg_tensor *out = vector(ctx, 70000, me), *in = vector(ctx, 70000, 9);
        tg_comm_batch_open(c);
        tg_comm_send(c, out, (me + 1) % n);
        tg_comm_recv(c, in, (me + n - 1) % n);
        tg_comm_batch_close(c);
        p = tg_host_data(in);
        for (int64_t i = 0; p && i < 70000; i++) EXPECT(ctx, p[i] == value((me + n - 1) % n, i));
    }
    for (int i = 0; i < 100; i++) tg_comm_all_reduce(c, y, y, TG_REDUCE_MAX);
    tg_comm *half = tg_comm_split(c, me % 2, -me, "half", TG_TP);
    EXPECT(ctx, half && tg_comm_size(half) == (n + 1 - me % 2) / 2 && tg_comm_axis(half) == TG_TP);
    tg_tensor *one = vector(ctx, 1, me);
    tg_comm_all_reduce(half, one, one, TG_REDUCE_MIN);
    EXPECT(ctx, tg_item(one) == (double)value(me % 2, 0));
    tg_comm_free(half);
    tg_comm_barrier(c);
    return tg_ctx_status(ctx);
}

START_TEST(every_collective) {
    for (int n = 1; n <= RANKS; n++) on_ranks(n, all_kinds, NULL);
}
END_TEST

static tg_status fails_on_one(void *arg, tg_ctx *ctx, tg_comm *c) {
    tg_tensor *x = vector(ctx, 5, 0);
    if (tg_comm_rank(c) == *(int *)arg) return tg_ctx_fail(ctx, TG_ERR_IO, "no such file");
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    tg_item(x);
    return tg_ctx_status(ctx) == TG_ERR_REMOTE && strstr(tg_ctx_message(ctx), "no such file") ? TG_OK : TG_ERR_INTERNAL;
}

START_TEST(a_rank_that_fails) {
    char message[256];
    for (int who = 0; who < 3; who++) {
        tg_status s = tg_ranks_run(3, fails_on_one, &who, TG_RANKS(.message = message, .message_size = sizeof message));
        ck_assert_msg(s == TG_ERR_IO && strstr(message, "no such file"), "%s: %s", tg_status_name(s), message);
        ck_assert(message[5] == '0' + who);
    }
}
END_TEST

static tg_status disagrees(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    tg_tensor *x = vector(ctx, 5 + tg_comm_rank(c) / 2, 0);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    tg_item(x);
    return tg_ctx_status(ctx);
}

START_TEST(ranks_that_disagree) {
    char message[1024];
    tg_status s = tg_ranks_run(3, disagrees, NULL, TG_RANKS(.message = message, .message_size = sizeof message));
    ck_assert_msg(s == TG_ERR_MISMATCH, "%s: %s", tg_status_name(s), message);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {every_collective, a_rank_that_fails, ranks_that_disagree};
    return tg_check_main("comm", tests, sizeof tests / sizeof *tests);
}
