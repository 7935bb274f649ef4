/* Metrics: means, perplexity, hits among the greatest logits, and their sums over ranks. */
#include <math.h>

#include <tapegrad/metrics.h>
#include <tapegrad/ops.h>
#include <tapegrad/parallel.h>

#include "on_ranks.h"
#include "unit/world.h"

START_TEST(a_mean_is_of_all_values) {
    begin();
    tg_metric *m = tg_metric_new(ctx);
    ck_assert(isnan(tg_metric_mean(m)) && tg_metric_count(m) == 0);
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2, 2), (double[4]){1, 2, 3, 6});
    tg_tensor *loss = tg_full(t, TG_F32, TG_SHAPE(), 0.5);
    tg_metric_add(m, x, 1);
    tg_metric_add(m, loss, 12);
    tg_metric_add(m, tg_transpose(t, x, 0, 1), 2);
    tg_metric_add(m, tg_gt(t, x, tg_full(t, TG_F64, TG_SHAPE(), 2.5)), 1);
    ck_assert(tg_metric_count(m) == 4 + 12 + 8 + 4);
    ck_assert(tg_metric_sum(m) == 12 + 6 + 24 + 2);
    ck_assert(tg_metric_mean(m) == 44. / 28 && tg_metric_perplexity(m) == exp(44. / 28));
    tg_metric_reset(m);
    ck_assert(tg_metric_count(m) == 0 && tg_metric_sum(m) == 0);
    tg_metric_free(m);
    end();
}
END_TEST

/* 2^25 values of 1 and one of 0.5: neither number could be a float32. */
START_TEST(sums_and_counts_have_64_bits) {
    begin();
    tg_metric *m = tg_metric_new(ctx);
    tg_tensor *one = tg_full(t, TG_F32, TG_SHAPE(), 1), *half = tg_full(t, TG_F32, TG_SHAPE(), 0.5);
    tg_metric_add(m, one, INT64_C(1) << 25);
    tg_metric_add(m, half, 1);
    ck_assert(tg_metric_count(m) == (1 << 25) + 1 && tg_metric_sum(m) == (1 << 25) + 0.5);
    ck_assert(tg_metric_add(m, tg_full(t, TG_F32, TG_SHAPE(2), 1), INT64_MAX) == TG_ERR_ARGUMENT);
    ck_says("fewer than 2^63 values");
    tg_ctx_clear(ctx);
    ck_assert(tg_metric_count(m) == (1 << 25) + 1);
    tg_metric_free(m);
    end();
}
END_TEST

enum { ROWS = 6, CLASSES = 4 };
static const double logits[ROWS][CLASSES] = {{1, 4, 2, 3}, {1, 4, 2, 3},   {5, 5, 5, 5},
                                             {5, 5, 5, 5}, {NAN, 1, 2, 3}, {0, NAN, -1, -INFINITY}};
static const int64_t targets[ROWS] = {1, 0, 0, 2, 0, 0};
/* The rank of each target, worked out by hand: a NaN comes before all numbers, and a target of NaN is never found. */
static const int rank[ROWS] = {1, 4, 1, 3, CLASSES + 1, 2};

static double hits(tg_tensor *x, tg_tensor *y, int k, int64_t ignore, int64_t *count) {
    tg_metric *m = tg_metric_new(ctx);
    tg_metric_add_hits(m, t, x, y, k, ignore);
    double sum = tg_metric_sum(m);
    *count = tg_metric_count(m);
    tg_metric_free(m);
    return sum;
}

START_TEST(hits_are_those_worked_out_by_hand) {
    begin();
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(ROWS, CLASSES), logits);
    tg_tensor *y = tg_from_host(ctx, TG_I64, TG_SHAPE(ROWS), targets);
    for (int k = 1; k <= CLASSES; k++)
        for (int ignore = -1; ignore < 3; ignore++) {
            int64_t count;
            double want = 0, valid = 0;
            for (int i = 0; i < ROWS; i++)
                if (targets[i] != ignore) valid++, want += rank[i] <= k;
            ck_assert(hits(x, y, k, ignore, &count) == want && count == valid);
            tg_tensor *cube = tg_reshape(t, tg_cast(t, x, TG_F32), TG_SHAPE(2, 3, CLASSES));
            ck_assert(hits(cube, tg_reshape(t, y, TG_SHAPE(2, 3)), k, ignore, &count) == want && count == valid);
        }
    ck_assert_int_eq(tg_is_grad_on(t), true);
    end();
}
END_TEST

/* A target that is ignored may be any number. */
START_TEST(ignored_targets_may_be_out_of_range) {
    begin();
    int64_t count;
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(2, CLASSES), logits);
    tg_tensor *y = tg_from_host(ctx, TG_I64, TG_SHAPE(2), (int64_t[]){1, -100});
    ck_assert(hits(x, y, 1, -100, &count) == 1 && count == 1);
    end();
}
END_TEST

/* Rank r adds the values 1 to r + 1. */
static tg_status rank_adds(void *arg, tg_ctx *c, tg_comm *world) {
    (void)arg;
    tg_metric *m = tg_metric_new(c);
    tg_tape *tape = tg_tape_new(c);
    int r = tg_comm_rank(world), n = tg_comm_size(world);
    for (int i = 1; i <= r + 1; i++) tg_metric_add(m, tg_full(tape, TG_F64, TG_SHAPE(), i), 1);
    EXPECT(c, tg_metric_reduce(m, NULL) == TG_OK && tg_metric_count(m) == r + 1);
    EXPECT(c, tg_metric_reduce(m, world) == TG_OK);
    EXPECT(c, tg_metric_count(m) == n * (n + 1) / 2 && tg_metric_sum(m) == n * (n + 1) * (n + 2) / 6);
    tg_metric_free(m);
    tg_tape_free(tape);
    return tg_ctx_status(c);
}

START_TEST(ranks_are_summed_once) {
    for (int n = 1; n <= 3; n++) on_ranks(n, rank_adds, NULL);
}
END_TEST

/* Rank 1 has an error when it calls tg_metric_reduce, which is therefore not made. Its next call must not be taken for
 * that one, although the error was cleared. */
static tg_status rank_misses(void *arg, tg_ctx *c, tg_comm *world) {
    (void)arg;
    tg_metric *m = tg_metric_new(c);
    bool failed = tg_comm_rank(world) == 1;
    if (failed) {
        EXPECT(c, tg_metric_add(m, NULL, 1) == TG_ERR_ARGUMENT && tg_metric_reduce(m, world) == TG_ERR_ARGUMENT);
        tg_ctx_clear(c);
    }
    tg_status s = tg_metric_reduce(m, world);
    bool right = s != TG_OK && strstr(tg_ctx_message(c), "rank 1 failed");
    tg_metric_free(m); /* over NCCL this waits for calls of the group, which has ended */
    tg_ctx_clear(c);
    return right ? TG_OK : TG_ERR_INTERNAL;
}

START_TEST(a_rank_that_misses_a_reduction_is_reported) { on_ranks(2, rank_misses, NULL); }
END_TEST

int main(void) {
    const TTest *tests[] = {a_mean_is_of_all_values, sums_and_counts_have_64_bits, hits_are_those_worked_out_by_hand,
                            ignored_targets_may_be_out_of_range, ranks_are_summed_once,
                            a_rank_that_misses_a_reduction_is_reported};
    return tg_check_main("metrics", tests, sizeof tests / sizeof *tests);
}
