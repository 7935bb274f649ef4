/* Failures of context parallelism: programs that are refused, a rank that fails, and allocations that fail. */
#include <tapegrad/extend.h>

#include "parallel/context_cases.h"
#include "unit/counted_allocator.h"

/* ---- Refusals ---- */

static tg_tensor *placed(tg_ctx *ctx, const tg_parallel *p, tg_shape shape, tg_placement on_cp) {
    tg_tensor *x = tg_zeros(ctx, TG_F64, shape);
    tg_place(p, x, TG_CP, on_cp);
    return grad_leaf(x);
}

static tg_status refused_inputs(tg_ctx *ctx, const tg_parallel *p, tg_tape *t) {
    tg_comm *cp = tg_parallel_comm(p, TG_CP);
    const tg_shape shape = TG_SHAPE(1, 4, 4, 2), odd = TG_SHAPE(1, 4, 3, 2), three = TG_SHAPE(1, 3, 4, 2);
    tg_tensor *x = placed(ctx, p, shape, TG_SHARD_ZIGZAG(2)), *even = placed(ctx, p, shape, TG_SHARD(2));
    tg_tensor *own = placed(ctx, p, shape, TG_V), *y = placed(ctx, p, three, TG_SHARD_ZIGZAG(2));
    tg_tensor *sink = placed(ctx, p, TG_SHAPE(4), TG_I);
    const int64_t whole[] = {0, 8};
    tg_tensor *starts = tg_from_host(ctx, TG_I64, TG_SHAPE(2), whole);
    tg_place(p, starts, TG_CP, TG_I);
    REFUSED(ctx, TG_ERR_PLACEMENT, "input 1 must be V2:z on this axis; cut the sequence with tg_shard_as",
            tg_context_attention(t, x, even, x, cp, NULL));
    REFUSED(ctx, TG_ERR_PLACEMENT, "input 0 must be V2:z", tg_context_attention(t, own, x, x, cp, NULL));
    REFUSED(ctx, TG_ERR_PLACEMENT, "declare the sink R",
            tg_context_attention(t, x, x, x, cp, TG_CONTEXT_ATTENTION(.sink = sink)));
    REFUSED(ctx, TG_ERR_SHAPE, "must have the same even number of rows",
            tg_context_attention(t, tg_zeros(ctx, TG_F64, odd), tg_zeros(ctx, TG_F64, odd), tg_zeros(ctx, TG_F64, odd),
                                 cp, NULL));
    REFUSED(ctx, TG_ERR_SHAPE, "q has 3 heads and k has 3, and 2 ranks exchange heads",
            tg_context_attention(t, y, y, y, cp, TG_CONTEXT_ATTENTION(.kind = TG_CP_ULYSSES)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "inner is 3; it must divide the 2 ranks of group \"cp\"",
            tg_context_attention(t, x, x, x, cp, TG_CONTEXT_ATTENTION(.kind = TG_CP_HIERARCHY, .inner = 3)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "only TG_CP_HIERARCHY has groups of ranks",
            tg_context_attention(t, x, x, x, cp, TG_CONTEXT_ATTENTION(.inner = 2)));
    REFUSED(ctx, TG_ERR_ARGUMENT, "left is -2", tg_context_attention(t, x, x, x, cp, TG_CONTEXT_ATTENTION(.left = -2)));
    REFUSED(ctx, TG_ERR_UNSUPPORTED, "dropout of packed sequences that are each cut by itself",
            tg_context_attention(t, x, x, x, cp, TG_CONTEXT_ATTENTION(.starts = starts, .dropout = 0.5)));
    return tg_ctx_status(ctx);
}

static tg_tensor *indices(tg_ctx *ctx, const tg_parallel *p, tg_shape shape, const int64_t *v) {
    tg_tensor *x = tg_from_host(ctx, TG_I64, shape, v);
    tg_place(p, x, TG_CP, TG_I);
    return x;
}

/* Starts of sequences that are cut as one. On a GPU the host finds wrong values later. */
static tg_status refused_starts_of_whole(tg_ctx *ctx, const tg_parallel *p, tg_tape *t) {
    static const struct {
        int64_t starts[6];
        const char *says;
    } wrong[] = {
        {{1, 3, 8, 0, 3, 8}, "starts[0, 0] is invalid; the first element of a row must be 0, the last 8"},
        {{0, 3, 8, 0, 9, 8}, "starts[1, 2] is invalid"},
        {{0, 3, 8, 0, 3, 7}, "starts[1, 2] is invalid"},
        {{0, 3, 9, 0, 3, 8}, "starts[0, 2] is invalid"},
    };
    tg_tensor *x = placed(ctx, p, TG_SHAPE(2, 4, 4, 2), TG_SHARD_ZIGZAG(2));
    tg_comm *cp = tg_parallel_comm(p, TG_CP);
    for (int i = 0; i < 4 && !ranks_on_gpus(); i++)
        REFUSED(ctx, TG_ERR_DATA, wrong[i].says,
                tg_context_attention(t, x, x, x, cp,
                                     TG_CONTEXT_ATTENTION(.starts = indices(ctx, p, TG_SHAPE(2, 3), wrong[i].starts),
                                                          .cut_as_one = true)));
    tg_tensor *vector = indices(ctx, p, TG_SHAPE(3), wrong[0].starts);
    REFUSED(ctx, TG_ERR_SHAPE, "starts is i64[3] and the batch size is 2; starts must have m + 1 elements for m packed",
            tg_context_attention(t, x, x, x, cp, TG_CONTEXT_ATTENTION(.starts = vector, .cut_as_one = true)));
    REFUSED(ctx, TG_ERR_SHAPE, "the batch size must be 1, or set cut_as_one",
            tg_context_attention(t, x, x, x, cp, TG_CONTEXT_ATTENTION(.starts = vector)));
    return tg_ctx_status(ctx);
}

/* On a GPU the host finds such errors later. */
static tg_status refused_starts(tg_ctx *ctx, const tg_parallel *p, tg_tape *t) {
    static const struct {
        int64_t starts[3];
        const char *says;
    } wrong[] = {
        {{0, 6, 8}, "starts[1] is 6; it must be a multiple of 4, twice the number of ranks"},
        {{4, 4, 8}, "starts[0] is invalid; the first element must be 0, the last 8"},
        {{0, 8, 4}, "starts[2] is invalid"},
        {{0, 4, 4}, "starts[2] is invalid"},
    };
    tg_tensor *x = placed(ctx, p, TG_SHAPE(1, 4, 4, 2), TG_SHARD_ZIGZAG(2));
    for (int i = 0; i < 4; i++) {
        tg_tensor *starts = indices(ctx, p, TG_SHAPE(3), wrong[i].starts);
        REFUSED(ctx, TG_ERR_DATA, wrong[i].says,
                tg_context_attention(t, x, x, x, tg_parallel_comm(p, TG_CP),
                                     TG_CONTEXT_ATTENTION(.kind = TG_CP_ULYSSES, .starts = starts)));
    }
    return tg_ctx_status(ctx);
}

/* Programs that would compute something else than one rank does. */
static tg_status refused_programs(tg_ctx *ctx, const tg_parallel *p, tg_tape *t) {
    tg_tensor *x = placed(ctx, p, TG_SHAPE(1, 4, 4, 2), TG_SHARD_ZIGZAG(2));
    tg_tensor *rows = placed(ctx, p, TG_SHAPE(4, 2), TG_SHARD_ZIGZAG(0));
    tg_tensor *labels = tg_zeros(ctx, TG_I64, TG_SHAPE(4)), *at = tg_arange(t, TG_I64, 0, 4, 1);
    tg_place(p, labels, TG_CP, TG_SHARD(0));
    REFUSED(ctx, TG_ERR_PLACEMENT, "the op needs the whole of the dim that is sharded",
            tg_attention(t, x, x, x, TG_ATTENTION(.causal = true)));
    REFUSED(ctx, TG_ERR_PLACEMENT, "the op needs the whole of the dim that is sharded", tg_rope(t, rows, 10000, 0));
    REFUSED(ctx, TG_ERR_PLACEMENT, "one input has the whole of a dim that is sharded in another",
            tg_rope_at(t, rows, at, 10000));
    REFUSED(ctx, TG_ERR_PLACEMENT, "the operands are not sharded alike along the dim that is summed",
            tg_cross_entropy(t, rows, labels, TG_CROSS_ENTROPY(.reduction = TG_LOSS_SUM)));
    REFUSED(ctx, TG_ERR_PLACEMENT, "tg_shard_as: `to` is R, expected a shard",
            tg_shard_as(t, rows, TG_R, tg_parallel_comm(p, TG_CP)));
    return tg_ctx_status(ctx);
}

static tg_status refused_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    (void)arg;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = 2));
    tg_tape *t = tg_tape_new(ctx);
    RUN(refused_inputs(ctx, p, t));
    if (!ranks_on_gpus()) RUN(refused_starts(ctx, p, t));
    RUN(refused_starts_of_whole(ctx, p, t));
    RUN(refused_programs(ctx, p, t));
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

START_TEST(wrong_programs_are_refused) { on_ranks(2, refused_rank, NULL); }
END_TEST

/* Dropout draws a number for each weight of the whole matrix, and the number of draws must fit in 63 bits. Device meta
 * records sequences of any length. */
START_TEST(too_many_draws_are_refused) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .dtype = TG_F32, .threads = 1));
    tg_comm *world = tg_comm_plan_new(ctx, 0, 2);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = 2));
    tg_tape *t = tg_tape_new(ctx);
    for (int sharded = 0; sharded < 2; sharded++) {
        tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(1, 8, (int64_t)1 << (30 - sharded), 1));
        tg_place(p, x, TG_CP, sharded ? TG_SHARD_ZIGZAG(2) : TG_I);
        tg_tensor *y =
            sharded ? tg_context_attention(t, x, x, x, tg_parallel_comm(p, TG_CP), TG_CONTEXT_ATTENTION(.dropout = 0.5))
                    : tg_attention(t, x, x, x, TG_ATTENTION(.dropout = 0.5));
        ck_assert(!tg_is_alive(y) && tg_ctx_status(ctx) == TG_ERR_SHAPE);
        ck_assert_msg(strstr(tg_ctx_message(ctx), "one draw for each of 2^63 elements"), "%s", tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
        tg_drop(x);
    }
    tg_tape_free(t);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- A rank that fails ---- */

/* Rank 1 leaves before step `at` of the ring's forward (0) or backward (1). The others must get its error. */
static tg_status failing_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    int64_t rows[CONTEXT_ROWS];
    const int *stage = arg;
    bool fails = tg_comm_rank(world) == 1;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = tg_comm_size(world)));
    context_case c = {.o = CASE_OPTS(.causal = true)};
    context_sizes(&c);
    context_leaves l = context_open_cut(ctx, p, &c, rows);
    tg_tape *t = tg_tape_new(ctx);
    if (fails && *stage == 0) tg_ctx_fail(ctx, TG_ERR_CALLBACK, "this rank has had enough");
    tg_tensor *y = tg_context_attention(t, l.x[0], l.x[1], l.x[2], tg_parallel_comm(p, TG_CP), &c.o);
    if (fails && *stage == 1) tg_ctx_fail(ctx, TG_ERR_CALLBACK, "this rank has had enough");
    tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &l.seed));
    bool reported = strstr(tg_ctx_message(ctx), "this rank has had enough") != NULL;
    tg_tape_free(t);
    tg_parallel_free(p);
    return reported ? TG_ERR_CALLBACK : TG_ERR_INTERNAL;
}

START_TEST(each_rank_gets_the_error_of_one_that_fails) {
    for (int stage = 0; stage < 2; stage++) {
        char message[1024];
        const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .deadline = 60);
        tg_status s = run_ranks(4, failing_rank, &stage,
                                TG_RANKS(.config = config, .message = message, .message_size = sizeof message));
        ck_assert_msg(s == TG_ERR_CALLBACK, "stage %d: %s: %s", stage, tg_status_name(s), message);
    }
}
END_TEST

/* Runs forward and backward of rank 1 of 4, without peers, with memory in which the n-th allocation fails. Returns
 * whether it has failed. */
static bool run_without_memory(tg_cp_kind kind, bool packed, int n) {
    const int64_t starts[] = {0, 7, 16};
    counted memory = {.fail_at = n};
    tg_ctx *ctx = tg_ctx_new(
        TG_CONFIG(.threads = 1, .dtype = TG_BF16, .seed = 3, .allocator = {counted_alloc, counted_free, &memory}));
    tg_comm *world = tg_comm_plan_new(ctx, 1, 4);
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = 4));
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x[3], *seed = tg_zeros(ctx, TG_BF16, TG_SHAPE(1, 4, 4, 8));
    for (int i = 0; i < 3; i++) {
        x[i] = grad_leaf(tg_zeros(ctx, TG_BF16, TG_SHAPE(1, 4, 4, 8)));
        tg_place(p, x[i], TG_CP, TG_SHARD_ZIGZAG(2));
    }
    tg_place(p, seed, TG_CP, TG_SHARD_ZIGZAG(2));
    tg_tensor *y =
        tg_context_attention(t, x[0], x[1], x[2], tg_parallel_comm(p, TG_CP),
                             TG_CONTEXT_ATTENTION(.kind = kind, .causal = true, .dropout = 0.1, .cut_as_one = true,
                                                  .starts = packed ? indices(ctx, p, TG_SHAPE(3), starts) : NULL));
    tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &seed));
    bool failed = memory.calls >= n;
    ck_assert_msg(tg_ctx_status(ctx) == (failed ? TG_ERR_MEMORY : TG_OK), "kind %d, allocation %d: %s", kind, n,
                  tg_ctx_message(ctx));
    tg_tape_free(t);
    tg_parallel_free(p);
    tg_comm_free(world);
    tg_ctx_free(ctx);
    ck_assert_int_eq(memory.held, 0);
    return failed;
}

START_TEST(any_allocation_may_fail) {
    for (int i = 0; i < 8; i++) {
        int n = 1;
        while (run_without_memory(context_kinds[i / 2], i % 2, n)) n++;
        ck_assert_int_gt(n, 5);
    }
}
END_TEST

int main(void) {
    const TTest *const tests[] = {wrong_programs_are_refused, too_many_draws_are_refused,
                                  each_rank_gets_the_error_of_one_that_fails, any_allocation_may_fail};
    return tg_check_main("context_failures", tests, sizeof tests / sizeof tests[0]);
}
