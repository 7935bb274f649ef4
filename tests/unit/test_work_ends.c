/* Works that fill and read no tensor: they end once, with their wait or with their context, and may then use the
 * context's threads and memory. */
#include "world.h"

#include <stdatomic.h>

#include <tapegrad/device.h>
#include <tapegrad/work.h>

#include "core/work.h"

static tg_status fine(tg_ctx *c, void *self) {
    *(int *)self += 10 * (tg_ctx_status(c) == TG_OK);
    return TG_OK;
}
static void stop(void *self) { *(int *)self += 100; }
static void end_work(void *self) { *(int *)self += 1; }

static void count_part(void *arg, int64_t begin, int64_t end) {
    atomic_fetch_add((atomic_int *)arg, (int)(end - begin));
}

static tg_status runs_threads(tg_ctx *c, void *self) {
    tg_parallel_run(c, 100, count_part, self);
    return TG_OK;
}

START_TEST(a_work_that_ends_with_its_context_may_use_its_threads) {
    static const tg_work_ops ops = {.size = sizeof ops, .wait = runs_threads};
    atomic_int count = 0;
    tg_ctx *two = tg_ctx_new(TG_CONFIG(.threads = 2));
    ck_assert_ptr_nonnull(tg_work_new(two, &ops, &count));
    tg_ctx_free(two);
    ck_assert_int_eq(atomic_load(&count), 100);
}
END_TEST

static tg_status takes_memory(tg_ctx *c, void *self) {
    tg_tensor *x = tg_zeros(c, TG_F32, TG_SHAPE(1000000));
    *(bool *)self = tg_is_alive(x);
    tg_drop(x);
    return tg_ctx_status(c);
}

START_TEST(a_work_that_ends_with_its_context_may_reach_a_new_peak) {
    static const tg_work_ops ops = {.size = sizeof ops, .wait = takes_memory};
    bool taken = false;
    tg_ctx *one = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_memory_set_trace(one, true);
    ck_assert_ptr_nonnull(tg_work_new(one, &ops, &taken));
    tg_ctx_free(one);
    ck_assert(taken);
}
END_TEST

START_TEST(works_end_with_their_wait_or_their_context) {
    static const tg_work_ops waits = {.size = sizeof waits, .wait = fine, .free = end_work},
                             stops = {.size = sizeof stops, .wait = fine, .abort = stop, .free = end_work};
    int waited = 0, left = 0, stopped = 0;
    begin();
    ck_assert(tg_work_wait(tg_work_new(ctx, &waits, &waited)) == TG_OK);
    ck_assert_int_eq(waited, 11);
    ck_assert(tg_work_new(ctx, &waits, &left) && tg_work_new(ctx, &stops, &stopped));
    end();
    ck_assert_int_eq(waited, 11);
    ck_assert_int_eq(left, 11);
    ck_assert_int_eq(stopped, 101);
}
END_TEST

static tg_status add_order(tg_ctx *c, void *self) {
    *(int *)self += 1000 * (tg_ctx_status(c) == TG_OK);
    return TG_OK;
}

/* As before a captured step is replayed: works that fill and read nothing are ordered once, or waited for. */
START_TEST(later_work_runs_after_works_that_fill_nothing) {
    static const tg_work_ops orders = {.size = sizeof orders, .wait = fine, .order = add_order},
                             waits = {.size = sizeof waits, .wait = fine};
    int ordered = 0, waited = 0;
    begin();
    tg_work *w = tg_work_new(ctx, &orders, &ordered);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(tg_works_settle(ctx, NULL, NULL), TG_OK);
    ck_assert_int_eq(ordered, 1000);
    ck_assert_int_eq(tg_work_wait(w), TG_OK);
    ck_assert_int_eq(ordered, 1010);
    w = tg_work_new(ctx, &waits, &waited);
    ck_assert_int_eq(tg_works_settle(ctx, NULL, NULL), TG_OK);
    ck_assert_int_eq(waited, 10);
    ck_assert_int_eq(tg_work_wait(w), TG_OK);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {works_end_with_their_wait_or_their_context,
                            later_work_runs_after_works_that_fill_nothing,
                            a_work_that_ends_with_its_context_may_use_its_threads,
                            a_work_that_ends_with_its_context_may_reach_a_new_peak};
    return tg_check_main("work_ends", tests, sizeof tests / sizeof *tests);
}
