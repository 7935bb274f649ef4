/* Any allocation of a save, a load or a check of sharded state may fail: a rank reports it, nothing leaks, and the
 * state in the directory stays whole. */
#define _GNU_SOURCE
#include <tapegrad/ranks.h>

#include "state.h"
#include "unit/counted_allocator.h"

enum { RANKS = 2 };

typedef struct job {
    const char *dir;
    bool background, load;
} job;

/* Saves a parameter that is shared out over tp, one that both ranks have, and an optimizer's range of it; or loads
 * them. */
static tg_status work(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.tp = RANKS));
    if (!p) return tg_ctx_status(ctx);
    int64_t begin = tg_parallel_rank(p, TG_TP) * 10, n = tg_parallel_rank(p, TG_TP) ? 14 : 10;
    tg_tensor *a = filled(p, "a", 0, TG_F32, TG_SHAPE(8, 3), TG_PLACES({TG_TP, TG_SHARD(0)}), 1);
    tg_tensor *b = filled(p, "b", 1, TG_F32, TG_SHAPE(8, 3), TG_PLACES({TG_TP, TG_R}), 1);
    tg_tensor *range = tg_zeros(ctx, TG_F32, TG_SHAPE(n));
    tg_shards *s = tg_shards_new(p);
    tg_shards_add_tensor(s, "a", a);
    tg_shards_add_tensor(s, "b", b);
    tg_shards_add_range(s, "b.m", range, b, begin, begin + n);
    tg_shards_add_rng(s);
    if (j->load)
        tg_shards_load(s, j->dir);
    else
        tg_save_finish(tg_shards_save_begin(s, j->dir, TG_SAVE(.background = j->background)));
    tg_status status = tg_ctx_status(ctx);
    tg_shards_free(s);
    tg_drop(a);
    tg_drop(b);
    tg_drop(range);
    tg_parallel_free(p);
    return status;
}

/* Saves a tensor from one rank. */
static tg_status alone(void *arg, tg_ctx *ctx, tg_comm *world) {
    tg_parallel *p = tg_parallel_new(world, NULL);
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(3));
    tg_shards *s = tg_shards_new(p);
    tg_shards_add_tensor(s, "x", x);
    tg_shards_save(s, arg);
    tg_shards_free(s);
    tg_drop(x);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* Checks that the state is whole, with memory that fails at call number `at`. */
static tg_status check_whole(const char *dir, counted *memory) {
    char report[2000];
    int damaged = 0;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, memory}));
    tg_status s = tg_shards_verify(ctx, dir, report, sizeof report, &damaged);
    if (s == TG_OK) ck_assert_msg(!damaged, "%s", report);
    tg_ctx_free(ctx);
    return s;
}

static int fail_each(job *j) {
    int at = 1;
    for (tg_status s = TG_ERR_MEMORY; s != TG_OK; at++) {
        counted memory = {.fail_at = at}, enough = {0};
        const tg_config *config =
            TG_CONFIG(.threads = 1, .deadline = 60, .allocator = {counted_alloc, counted_free, &memory});
        s = tg_ranks_run(RANKS, work, j, TG_RANKS(.config = config));
        ck_assert_msg(s == TG_OK || s == TG_ERR_MEMORY || s == TG_ERR_REMOTE, "%d: %s", at, tg_status_name(s));
        ck_assert_msg(memory.held == 0, "%lld blocks after call %d failed", (long long)memory.held, at);
        ck_assert_int_eq(check_whole(j->dir, &enough), TG_OK);
    }
    return at;
}

START_TEST(any_allocation_of_ranks_may_fail) {
    char dir[256];
    job jobs[] = {{.background = false}, {.background = true}, {.load = true}};
    on_ranks(RANKS, work, &(job){in_root(dir, "state"), false, false});
    for (int i = 0; i < 3; i++) {
        jobs[i].dir = dir;
        ck_assert_int_gt(fail_each(&jobs[i]), 50);
    }
}
END_TEST

START_TEST(any_allocation_of_a_check_may_fail) {
    char dir[256];
    int at = 1;
    on_ranks(RANKS, work, &(job){in_root(dir, "checked"), false, false});
    for (tg_status s = TG_ERR_MEMORY; s != TG_OK; at++) {
        counted memory = {.fail_at = at};
        s = check_whole(dir, &memory);
        ck_assert_msg(s == TG_OK || s == TG_ERR_MEMORY, "%d: %s", at, tg_status_name(s));
        ck_assert_int_eq(memory.held, 0);
    }
    ck_assert_int_gt(at, 20);
}
END_TEST

/* Saves with n files of earlier saves in the directory, and returns the number of allocations. */
static int64_t allocations_with_files(const char *dir, int n) {
    counted memory = {0};
    for (int i = 0; i < n; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/rank-%05d-1.safetensors", dir, i);
        FILE *f = fopen(path, "w");
        ck_assert(f && fclose(f) == 0);
    }
    const tg_config *config = TG_CONFIG(.threads = 1, .allocator = {counted_alloc, counted_free, &memory});
    tg_status s = tg_ranks_run(1, alone, (void *)dir, TG_RANKS(.config = config));
    ck_assert_msg(s == TG_OK, "%s", tg_status_name(s));
    return memory.calls;
}

/* When files of earlier saves are removed, the new state is there. A lack of memory must not be reported any more. */
START_TEST(the_removal_of_earlier_files_takes_no_memory) {
    char dir[256];
    allocations_with_files(in_root(dir, "earlier"), 0);
    int64_t few = allocations_with_files(dir, 1);
    ck_assert_int_eq(allocations_with_files(dir, 30), few);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {any_allocation_of_ranks_may_fail, any_allocation_of_a_check_may_fail,
                                  the_removal_of_earlier_files_takes_no_memory};
    return state_main("save memory", tests, sizeof tests / sizeof *tests);
}
