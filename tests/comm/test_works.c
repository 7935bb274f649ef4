/* Works, groups, counters and the flight record of communicators, over threads and processes. */
#include <jansson.h>
#include <tapegrad/ops.h>
#include <tapegrad/transport.h>

#include "comm/worlds.h"
#include "core/work.h"

static bool all_are(tg_tensor *x, double v) {
    const double *p = elements(x);
    for (int64_t i = 0; i < tg_numel(x); i++)
        if (!p || p[i] != v) return false;
    return true;
}

/* ---- In flight ---- */

static tg_status many_at_once(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    enum { CALLS = 100, N = 5000 };
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tensor *x[CALLS];
    for (int i = 0; i < CALLS; i++) {
        x[i] = filled(ctx, N, me + i);
        EXPECT(ctx, tg_comm_all_reduce(c, x[i], x[i], TG_REDUCE_SUM));
        EXPECT(ctx, tg_storage_state_of(x[i]) == TG_IN_FLIGHT);
    }
    for (int i = 0; i < CALLS; i++) { /* in another order on each rank */
        int k = (i * (2 * me + 3) + me) % CALLS;
        k = me % 2 ? CALLS - 1 - i : i;
        EXPECT(ctx, all_are(x[k], n * k + n * (n - 1) / 2));
    }
    return tg_ctx_status(ctx);
}

START_TEST(works_are_read_in_any_order) { each_world(4, many_at_once, NULL); }
END_TEST

/* A rank that computes does not delay the others: the waiting ranks complete the operations that it has posted. */
static tg_status busy_rank(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    if (is_between_nodes(c)) return TG_OK;
    tg_tensor *x = filled(ctx, 300000, me);
    tg_comm_barrier(c);
    tg_work *w = tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    if (me == 0) sleep_past_others(end, 0, n);
    EXPECT(ctx, me || tg_work_test(w)); /* completed by other ranks */
    EXPECT(ctx, all_are(x, n * (n - 1) / 2));
    atomic_store(&end->past[me], true);
    return tg_ctx_status(ctx);
}

START_TEST(waiting_ranks_do_the_work) {
    for (int kind = 0; kind < WORLD_KINDS; kind++)
        for (int n = 2; n <= 4; n++) expect_world((world_kind)kind, n, busy_rank, NULL);
}
END_TEST

/* Handles are freed while their memory is in use. */
static tg_status dropped(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    enum { N = 200000 };
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tape *t = tg_tape_new(ctx);
    for (int i = 0; i < 20; i++) {
        tg_tensor *x = filled(ctx, N, me), *y = filled(ctx, N, 0), *z = filled(ctx, N, 0);
        tg_tensor *s = tg_scale(t, x, 3);
        tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM);
        tg_comm_all_reduce(c, z, s, TG_REDUCE_SUM);
        tg_drop(x);
        tg_tape_reset(t);                             /* s has been freed */
        tg_tensor *over = filled(ctx, N, -1); /* takes their memory if it is free */
        EXPECT(ctx, all_are(y, n * (n - 1) / 2) && all_are(z, 3 * n * (n - 1) / 2));
        tg_drop(y), tg_drop(z), tg_drop(over);
        tg_tensor *gone = filled(ctx, N, me);
        tg_comm_all_reduce(c, gone, gone, TG_REDUCE_SUM);
        tg_drop(gone); /* in flight */
    }
    tg_tape_free(t);
    return tg_ctx_status(ctx);
}

START_TEST(bytes_stay_as_long_as_a_work_needs_them) { each_world(4, dropped, NULL); }
END_TEST

/* A communicator that is freed completes what it has begun. */
static tg_status freed(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_comm *g = tg_comm_split(c, 0, 0, "all", TG_MAX_AXES);
    tg_tensor *x = filled(ctx, 100000, me), *y = filled(ctx, 7, me);
    tg_comm_all_reduce(g, x, x, TG_REDUCE_SUM);
    tg_tensor *z = filled(ctx, 7, me);
    tg_comm_batch_open(g);
    if (n > 1) tg_comm_send(g, y, (me + 1) % n);
    if (n > 1) tg_comm_recv(g, z, (me + n - 1) % n);
    tg_comm_batch_close(g);
    tg_comm_free(g);
    EXPECT(ctx, tg_storage_state_of(x) == TG_PRESENT && all_are(x, n * (n - 1) / 2));
    EXPECT(ctx, all_are(z, (me + n - 1) % n));
    return tg_ctx_status(ctx);
}

START_TEST(a_communicator_ends_with_its_works_done) { each_world(4, freed, NULL); }
END_TEST

/* The number of waiting messages depends on the pace of the ranks: a late step may reach a higher maximum and add
 * one message to a pool. A real leak would add one in each step. */
static tg_status steady(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    /* Hosts may be this many calls ahead of each other's GPUs, whose requests are allocated by the dozen. */
    const int WARM = 10, STEPS = on_gpus ? 120 : 50, DEEPER = on_gpus ? 3 * TG_CALLS : 10;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    int64_t counts[MOST], before = 0;
    tg_tensor *x = filled(ctx, 1000 * n, me), *y = filled(ctx, 1000 * n, me), *part = filled(ctx, 1000, 0),
              *in = filled(ctx, 1000, 0);
    for (int r = 0; r < n; r++) counts[r] = 1000;
    tg_memory_info m = TG_MEMORY_INFO();
    for (int i = 0; i < WARM + STEPS; i++) {
        if (i == WARM) before = tg_memory_query(ctx, &m) == TG_OK ? m.host_allocations : 0;
        tg_comm_all_reduce(c, x, x, TG_REDUCE_AVG);
        tg_comm_all_to_all(c, y, x, counts, counts);
        tg_comm_reduce_scatter_v(c, part, y, counts, TG_REDUCE_SUM);
        tg_comm_all_gather_v(c, y, part, counts);
        tg_comm_batch_open(c);
        if (n > 1) tg_comm_send(c, part, (me + 1) % n);
        if (n > 1) tg_comm_recv(c, in, (me + n - 1) % n);
        tg_comm_batch_close(c);
        EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    }
    EXPECT(ctx, tg_memory_query(ctx, &m) == TG_OK && m.host_allocations - before <= DEEPER);
    return tg_ctx_status(ctx);
}

START_TEST(a_steady_step_allocates_nothing) { each_world(4, steady, NULL); }
END_TEST

/* ---- Groups ---- */

static tg_status grouped(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_comm *half = tg_comm_split(c, me % 2, -me, "half", TG_TP); /* in reverse order */
    int members = (n + 1 - me % 2) / 2;
    EXPECT(ctx, tg_comm_size(half) == members && tg_comm_rank(half) == members - 1 - me / 2);
    EXPECT(ctx, !strcmp(tg_comm_name(half), "half") && tg_comm_axis(half) == TG_TP && tg_comm_ctx(half) == ctx);
    EXPECT(ctx, !strcmp(tg_comm_transport(half), members == 1 ? "self" : tg_comm_transport(c)));
    tg_tensor *x = filled(ctx, 1, me), *all = filled(ctx, members, 0), *y = filled(ctx, 9, me);
    tg_comm_all_reduce(c, y, y, TG_REDUCE_MAX);
    tg_comm_all_gather(half, all, x);
    const double *p = elements(all);
    for (int i = 0; i < members; i++) EXPECT(ctx, p && p[i] == 2 * (members - 1 - i) + me % 2);
    EXPECT(ctx, all_are(y, n - 1));
    /* Some ranks are in no group; the members of a group need not communicate with them. */
    tg_comm *some = tg_comm_split(c, me == n - 1 ? -1 : 3, 0, "some", TG_MAX_AXES);
    EXPECT(ctx, me == n - 1 ? !some : tg_comm_size(some) == n - 1 && tg_comm_rank(some) == me);
    int pair[] = {n - 1, 0};
    tg_comm *ends = n > 2 && (me == 0 || me == n - 1) ? tg_comm_split_known(c, pair, 2, "ends", TG_PP, false) : NULL;
    if (ends) {
        tg_comm *again = tg_comm_split_known(c, pair, 2, "again", TG_PP, false); /* the same two ranks */
        tg_tensor *e = filled(ctx, 3, me), *f = filled(ctx, 3, -me);
        tg_comm_all_reduce(ends, e, e, TG_REDUCE_SUM);
        tg_comm_all_reduce(again, f, f, TG_REDUCE_SUM);
        EXPECT(ctx, all_are(f, -(n - 1)) && all_are(e, n - 1) && tg_comm_rank(ends) == (me == 0));
        tg_comm_free(again);
    }
    tg_comm_free(ends);
    tg_comm_free(some);
    tg_comm *inner = tg_comm_split(half, 0, 0, "inner", TG_MAX_AXES);
    tg_comm_free(half); /* a group outlives its parent */
    EXPECT(ctx, tg_comm_barrier(inner) == TG_OK);
    tg_comm_free(inner);
    return tg_ctx_status(ctx);
}

START_TEST(groups_are_splits) { each_world(6, grouped, NULL); }
END_TEST

/* Rank 1 does not form the first group of the pair. After the recovery both form a group of the same ranks. */
static tg_status formed_again(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    const int ranks[] = {0, 1};
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    if (n < 2 || on_gpus) return TG_OK; /* NCCL forms a group only with all of its ranks */
    tg_comm *first = me == 0 ? tg_comm_split_known(c, ranks, 2, "pair", TG_TP, false) : NULL;
    EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_size(c) == n);
    tg_comm *pair = me < 2 ? tg_comm_split_known(c, ranks, 2, "pair", TG_TP, false) : NULL;
    EXPECT(ctx, !pair || tg_comm_barrier(pair) == TG_OK);
    tg_comm_free(pair);
    tg_comm_free(first);
    return tg_comm_barrier(c);
}

START_TEST(a_group_formed_after_recovery_is_a_new_one) { each_world(4, formed_again, NULL); }
END_TEST

/* ---- Counts ---- */

static bool counted(const tg_comm *c, tg_collective k, int64_t calls, int64_t bytes) {
    tg_comm_info n = TG_COMM_INFO();
    return tg_comm_query(c, &n) == TG_OK && n.calls[k] == calls && n.bytes[k] == bytes;
}

static tg_status counts_of(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int n = tg_comm_size(c);
    bool alone = n == 1;
    tg_tensor *x = filled(ctx, 12, 1), *all = filled(ctx, 12 * n, 0);
    int self[] = {tg_comm_rank(c)};
    tg_comm *whole = tg_comm_split(c, 0, 0, "whole", TG_MAX_AXES);
    tg_comm *one = tg_comm_split_known(c, self, 1, "one", TG_TP, true);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    tg_comm_all_reduce(whole, x, x, TG_REDUCE_SUM);
    tg_comm_all_reduce(one, x, x, TG_REDUCE_SUM); /* nothing is sent */
    tg_comm_all_gather(whole, all, x);
    tg_comm_reduce_scatter(c, x, all, TG_REDUCE_SUM);
    tg_comm_broadcast(whole, x, 0);
    tg_comm_all_to_all(c, all, all, NULL, NULL);
    tg_comm_barrier(c);
    EXPECT(ctx, counted(whole, TG_ALL_REDUCE, !alone, alone ? 0 : 96));
    EXPECT(ctx, counted(c, TG_ALL_REDUCE, alone ? 0 : 2, alone ? 0 : 192));
    EXPECT(ctx, counted(c, TG_ALL_GATHER, !alone, alone ? 0 : 96 * n));
    EXPECT(ctx, counted(c, TG_REDUCE_SCATTER, !alone, alone ? 0 : 96 * n));
    EXPECT(ctx, counted(c, TG_BROADCAST, !alone, alone ? 0 : 96));
    EXPECT(ctx, counted(c, TG_ALL_TO_ALL, !alone, alone ? 0 : 96 * n));
    EXPECT(ctx, counted(c, TG_BARRIER, !alone, 0) && counted(one, TG_ALL_REDUCE, 0, 0));
    tg_comm_free(one);
    tg_comm_free(whole);
    return tg_ctx_status(ctx);
}

START_TEST(calls_and_bytes_are_counted) { each_world(4, counts_of, NULL); }
END_TEST

/* A plan of any rank and size counts what a real communicator does, on device meta too. */
START_TEST(a_plan_moves_nothing_and_counts_all) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta"));
    tg_comm *c = tg_comm_plan_new(ctx, 5, 64);
    tg_tensor *x = tg_zeros(ctx, TG_BF16, TG_SHAPE(4096, 4096)),
              *all = tg_zeros(ctx, TG_BF16, TG_SHAPE(64, 4096, 4096));
    ck_assert(tg_comm_rank(c) == 5 && tg_comm_size(c) == 64 && !strcmp(tg_comm_transport(c), "plan"));
    ck_assert(tg_comm_all_gather(c, all, x) && tg_storage_state_of(all) == TG_IN_FLIGHT);
    ck_assert(tg_comm_reduce_scatter(c, x, all, TG_REDUCE_SUM) && tg_work_wait(tg_comm_send(c, x, 6)) == TG_OK);
    ck_assert(tg_storage_state_of(all) == TG_PRESENT);
    int ranks[] = {1, 5, 9, 13};
    tg_comm *g = tg_comm_split_known(c, ranks, 4, "dp", TG_DP, true);
    ck_assert(tg_comm_size(g) == 4 && tg_comm_rank(g) == 1 && tg_comm_all_reduce(g, x, x, TG_REDUCE_SUM));
    int64_t bytes = (int64_t)2 * 4096 * 4096;
    ck_assert(counted(c, TG_ALL_GATHER, 1, 64 * bytes) && counted(c, TG_ALL_REDUCE, 1, bytes));
    ck_assert(counted(g, TG_ALL_REDUCE, 1, bytes) && counted(c, TG_SEND, 1, bytes));
    ck_assert(!tg_comm_split(c, 0, 0, "x", TG_TP)->ops && tg_ctx_status(ctx) == TG_ERR_UNSUPPORTED);
    tg_ctx_clear(ctx);
    tg_comm_free(g);
    tg_comm_free(c);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(wrong_members_are_refused_by_the_group_s_name) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *c = tg_comm_plan_new(ctx, 1, 4);
    ck_assert(!tg_comm_split_known(c, (int[]){1, 4}, 2, "dp", TG_DP, false)->ops);
    ck_assert_str_eq(tg_ctx_message(ctx), "group \"dp\": its member 1 is rank 4, expected 0 to 3");
    tg_ctx_clear(ctx);
    ck_assert(!tg_comm_split_known(c, (int[]){0, 2}, 2, NULL, TG_DP, false)->ops);
    ck_assert_str_eq(tg_ctx_message(ctx), "group \"\": rank 1, which forms it, is not among its members");
    tg_ctx_clear(ctx);
    tg_comm_free(c);
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_group_of_one_copies) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *c = tg_comm_self_new(ctx);
    tg_tensor *x = filled(ctx, 10, 4), *y = filled(ctx, 10, 0);
    ck_assert(tg_comm_all_gather(c, y, x) && all_are(y, 4) && counted(c, TG_ALL_GATHER, 0, 0));
    ck_assert(tg_work_wait(tg_comm_broadcast(c, x, 0)) == TG_OK && tg_comm_barrier(c) == TG_OK);
    tg_comm *g = tg_comm_split(c, 1, 0, "tp", TG_TP);
    ck_assert(tg_comm_size(g) == 1 && tg_comm_axis(g) == TG_TP && tg_comm_recover(c) == TG_OK);
    reading_ends();
    tg_comm_free(g);
    tg_comm_free(c);
    ck_assert_msg(tg_ctx_status(ctx) == TG_OK, "%s", tg_ctx_message(ctx));
    tg_ctx_free(ctx);
}
END_TEST

static tg_status on_meta(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_tensor *x = tg_zeros(ctx, TG_F32, TG_SHAPE(3));
    return tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM) ? TG_ERR_INTERNAL : tg_ctx_status(ctx);
}

START_TEST(device_memory_is_refused) {
    if (on_gpus) return; /* NCCL counts what it moves itself */
    const world_end *end = run_world(THREADS, 2, on_meta, NULL, TG_CONFIG(.device = "meta"));
    ck_assert(end->status[0] == TG_ERR_DEVICE && end->status[1] == TG_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(end->message[0], "\"meta\"; create a communicator without peers"));
}
END_TEST

START_TEST(read_only_memory_is_not_written) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *c = tg_comm_plan_new(ctx, 0, 2);
    tg_tensor *x = filled(ctx, 3, 1), *y = filled(ctx, 3, 1);
    tg_set_read_only(x, true);
    ck_assert(!tg_comm_recv(c, x, 1) && tg_ctx_status(ctx) == TG_ERR_STATE);
    ck_assert_str_eq(tg_ctx_message(ctx), "recv: the tensor's memory is read-only; write to a copy");
    tg_ctx_clear(ctx);
    ck_assert(!tg_comm_all_reduce(c, x, y, TG_REDUCE_SUM) && strstr(tg_ctx_message(ctx), "all_reduce: the tensor's"));
    tg_ctx_clear(ctx);
    ck_assert(tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM) && tg_comm_send(c, x, 1)); /* reading is allowed */
    tg_comm_free(c);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- A caller's transport ---- */

typedef struct phone {
    int aborts, freed;
    char why[128];
} phone;

static tg_status phone_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    (void)ctx, (void)state, (void)t;
    *request = NULL; /* done */
    return TG_OK;
}
static bool phone_test(tg_ctx *ctx, void *state, void *request) { return (void)ctx, (void)state, (void)request, true; }
static tg_status phone_wait(tg_ctx *ctx, void *state, void *request) {
    return (void)ctx, (void)state, (void)request, TG_OK;
}
static void phone_drop(tg_ctx *ctx, void *state, void *request) { (void)ctx, (void)state, (void)request; }
static tg_status phone_split(tg_ctx *ctx, void *state, const int *ranks, int n, int rank, const char *name, bool all,
                             void **group) {
    (void)ctx, (void)ranks, (void)n, (void)rank, (void)name, (void)all;
    *group = state;
    return TG_OK;
}
static void phone_close(tg_ctx *ctx, void *state) { (void)ctx, ((phone *)state)->freed++; }
static void phone_abort(tg_ctx *ctx, void *state, const char *why) {
    phone *p = state;
    (void)ctx;
    p->aborts++;
    snprintf(p->why, sizeof p->why, "%s", why);
}
static tg_status phone_recover(tg_ctx *ctx, void *state, int *rank, int *size) {
    return (void)ctx, (void)state, (void)rank, (void)size, TG_OK;
}

static const tg_comm_ops phones = {.size = sizeof phones,
                                   .name = "phone",
                                   .host = true,
                                   .start = phone_start,
                                   .test = phone_test,
                                   .wait = phone_wait,
                                   .drop = phone_drop,
                                   .split = phone_split,
                                   .close = phone_close,
                                   .abort = phone_abort,
                                   .recover = phone_recover};

/* Queues a call and keeps its number. */
static tg_status queue_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    (void)ctx;
    *(uint64_t *)state = t->record;
    *request = state;
    return TG_OK;
}
static void queue_close(tg_ctx *ctx, void *state) { (void)ctx, (void)state; }

static bool record_says(tg_comm *c, const char *state) {
    char text[4096];
    tg_comm_record(c, TG_TEXT, text, sizeof text);
    return strstr(text, state) != NULL;
}

static tg_status dial(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    (void)ctx, (void)t;
    *request = state;
    return TG_OK;
}
static tg_status wrong_number(tg_ctx *ctx, void *state, void *request) {
    return (void)state, (void)request, tg_fail(ctx, TG_ERR_REMOTE, "no rank has this number");
}

/* The next call of the communicator reports the failure. So do waits for the failed work, but no other call. */
START_TEST(a_failed_send_has_failed_after_its_error_was_cleared) {
    tg_comm_ops ops = phones;
    ops.start = dial, ops.wait = wrong_number;
    phone p = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_tensor *x = filled(ctx, 3, 1);
    for (int waits = 0; waits < 2; waits++) {
        tg_comm *world = tg_comm_new_on(ctx, &ops, &p, 0, 2);
        tg_work *w = tg_comm_send(world, x, 1);
        ck_assert(w && !tg_comm_send(world, x, 1));
        ck_assert_str_eq(tg_ctx_message(ctx), "no rank has this number");
        tg_ctx_clear(ctx);
        ck_assert_int_eq(tg_works_settle(ctx, NULL, NULL), TG_OK);
        if (waits) {
            ck_assert_int_eq(tg_work_wait(w), TG_ERR_REMOTE);
            ck_assert_str_eq(tg_ctx_message(ctx), "waiting for a collective failed with TG_ERR_REMOTE");
            tg_ctx_clear(ctx);
        }
        tg_comm_free(world);
        ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    }
    tg_ctx_free(ctx);
}
END_TEST

START_TEST(a_queued_call_ends_when_its_transport_says_so) {
    tg_comm_ops ops = phones;
    ops.queued = true, ops.start = queue_start, ops.close = queue_close;
    uint64_t record = 0;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *world = tg_comm_new_on(ctx, &ops, &record, 0, 2);
    tg_comm *group = tg_comm_split_known(world, (int[]){0, 1}, 2, "both", TG_TP, true);
    tg_tensor *x = filled(ctx, 3, 1);
    tg_comm_all_reduce(group, x, x, TG_REDUCE_SUM);
    ck_assert(all_are(x, 1) && record && record_says(world, "started"));
    ck_assert_int_eq(tg_comm_record_end(world, record, TG_OK), TG_OK);
    ck_assert(!record_says(world, "started") && record_says(world, "done"));
    tg_comm_all_reduce(group, x, x, TG_REDUCE_SUM);
    ck_assert(all_are(x, 1) && record_says(world, "started"));
    tg_ctx_fail(ctx, TG_ERR_IO, "also after an error");
    ck_assert_int_eq(tg_comm_record_end(group, record, TG_ERR_IO), TG_OK);
    ck_assert(!record_says(world, "started") && record_says(world, "failed"));
    tg_ctx_clear(ctx);
    ck_assert_int_eq(tg_comm_record_end(group, 0, TG_OK), TG_OK);
    reading_ends();
    tg_drop(x);
    tg_comm_free(group);
    tg_comm_free(world);
    tg_ctx_free(ctx);
}
END_TEST

/* The world and every group of it are informed once that this rank misses a call, and why. */
START_TEST(a_callers_transport_hears_of_missed_calls) {
    phone p = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 7));
    ck_assert(tg_ctx_deadline(ctx) == 7 && tg_ctx_deadline(NULL) == 0);
    tg_comm *world = tg_comm_new_on(ctx, &phones, &p, 0, 2);
    tg_comm *group = tg_comm_split_known(world, (int[]){0, 1}, 2, "both", TG_TP, true);
    tg_tensor *x = filled(ctx, 3, 1);
    ck_assert(tg_comm_all_reduce(world, x, x, TG_REDUCE_SUM) && p.aborts == 0);
    tg_ctx_fail(ctx, TG_ERR_IO, "the dog ate it");
    ck_assert_int_eq(p.aborts, 0); /* no rank waits for this one yet */
    tg_comm_all_reduce(world, x, x, TG_REDUCE_SUM);
    tg_comm_barrier(group);
    ck_assert(p.aborts == 2 && strstr(p.why, "the dog ate it"));
    tg_ctx_clear(ctx);
    ck_assert_int_eq(tg_comm_recover(world), TG_OK);
    tg_ctx_fail(ctx, TG_ERR_IO, "and this");
    tg_comm_barrier(world);
    ck_assert(p.aborts == 3 && strstr(p.why, "and this"));
    tg_ctx_clear(ctx);
    tg_comm_free(group);
    tg_comm_free(world);
    tg_ctx_fail(ctx, TG_ERR_IO, "an error before any call");
    ck_assert(p.aborts == 3 && p.freed == 2);
    tg_ctx_free(ctx);
}
END_TEST

/* A group of a communicator that has recovered has ended. No group is formed while a batch is open. */
START_TEST(calls_out_of_place_are_refused) {
    phone p = {0};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_comm *world = tg_comm_new_on(ctx, &phones, &p, 0, 2);
    tg_comm *group = tg_comm_split_known(world, (int[]){0, 1}, 2, "both", TG_TP, true);
    tg_comm_batch_open(world);
    ck_assert(!tg_comm_split(world, 0, 0, "x", TG_TP)->ops);
    ck_assert_str_eq(tg_ctx_message(ctx),
                     "tg_comm_split: a batch of sends and receives is open; call tg_comm_batch_close first");
    tg_ctx_clear(ctx);
    tg_comm_batch_close(world);
    ck_assert_int_eq(tg_comm_recover(world), TG_OK);
    ck_assert_int_eq(tg_comm_recover(group), TG_ERR_ABORTED);
    ck_assert_str_eq(tg_ctx_message(ctx),
                     "tg_comm_recover: group \"both\" has ended because tg_comm_recover was called on a communicator "
                     "that it comes from; split it again");
    tg_ctx_clear(ctx);
    ck_assert(!tg_comm_split(group, 0, 0, "x", TG_TP)->ops && tg_ctx_status(ctx) == TG_ERR_ABORTED);
    tg_ctx_clear(ctx);
    ck_assert_int_eq(tg_comm_batch_open(group), TG_ERR_ABORTED);
    tg_ctx_clear(ctx);
    tg_comm_free(group);
    tg_comm_free(world);
    ck_assert_int_eq(tg_ctx_status(ctx), TG_OK);
    tg_ctx_free(ctx);
}
END_TEST

/* ---- The flight record ---- */

static tg_status recorded(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    enum { CALLS = 300, ROOM = 4 << 20 };
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tensor *x = filled(ctx, 3, me);
    tg_comm *g = tg_comm_split(c, 0, 0, "pair", TG_TP);
    for (int i = 0; i < CALLS; i++)
        tg_comm_all_reduce(g, x, x, TG_REDUCE_MAX), tg_item(tg_zeros(ctx, TG_F32, TG_SHAPE()));
    if (n > 1 && me == 0) tg_comm_send(g, x, 1);
    if (me == 1) tg_comm_recv(g, x, 0);
    tg_comm_broadcast(c, x, 0);
    EXPECT(ctx, all_are(x, n - 1));
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    char *text = malloc(ROOM);
    size_t length = tg_comm_record(c, TG_JSON, text, ROOM);
    EXPECT(ctx, length == strlen(text) && (n > 1 || length == tg_comm_record(c, TG_JSON, NULL, 0)));
    json_t *j = json_loads(text, 0, NULL), *ranks = json_object_get(j, "ranks");
    int first = is_between_nodes(c) ? me : 0, last = is_between_nodes(c) ? me : n - 1; /* ranks of this node */
    EXPECT(ctx, json_array_size(ranks) == (size_t)(last - first + 1));
    for (int r = first; n > 1 && r <= last; r++) {
        json_t *rank = json_array_get(ranks, (size_t)(r - first)), *calls = json_object_get(rank, "record");
        size_t count = json_array_size(calls);
        EXPECT(ctx, count >= 255 && json_integer_value(json_object_get(rank, "rank")) == r);
        bool seen = false; /* the broadcast is listed as it was called */
        for (size_t i = 0; i < count; i++) {
            json_t *call = json_array_get(calls, i);
            const char *site = json_string_value(json_object_get(call, "site"));
            if (strcmp(json_string_value(json_object_get(call, "kind")), "broadcast")) continue;
            seen = json_integer_value(json_object_get(call, "count")) == 3 &&
                   json_integer_value(json_object_get(call, "root")) == 0 &&
                   !strcmp(json_string_value(json_object_get(call, "dtype")), "f64") &&
                   !strcmp(json_string_value(json_object_get(call, "group")), "world") && site && *site;
        }
        EXPECT(ctx, seen);
    }
    json_decref(j);
    length = tg_comm_record(c, TG_TEXT, text, ROOM);
    char name[32];
    snprintf(name, sizeof name, "rank %d of ", first);
    EXPECT(ctx, length == strlen(text) && strstr(text, name) &&
                    (n == 1 || strstr(text, "pair#300 all_reduce f64[3] max  done in ")));
    FILE *f = tmpfile();
    tg_comm_record_dump(c, fileno(f));
    rewind(f);
    size_t read = fread(text, 1, ROOM - 1, f);
    text[read] = 0;
    EXPECT(ctx, strstr(text, name) && (n == 1 || strstr(text, "pair#300 all_reduce f64[3] max  done in ")));
    if (n > 1 && me < 2) /* numbered as the next collective, as in errors */
        EXPECT(ctx, strstr(text, me ? "pair#301 recv f64[3]" : "pair#301 send f64[3]"));
    fclose(f);
    free(text);
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    tg_comm_free(g);
    return tg_ctx_status(ctx);
}

START_TEST(the_flight_record_lists_calls) { each_world(3, recorded, NULL); }
END_TEST

int main(void) {
    const TTest *const tests[] = {works_are_read_in_any_order,
                                  waiting_ranks_do_the_work,
                                  bytes_stay_as_long_as_a_work_needs_them,
                                  a_communicator_ends_with_its_works_done,
                                  a_steady_step_allocates_nothing,
                                  groups_are_splits,
                                  a_group_formed_after_recovery_is_a_new_one,
                                  calls_and_bytes_are_counted,
                                  a_plan_moves_nothing_and_counts_all,
                                  wrong_members_are_refused_by_the_group_s_name,
                                  a_group_of_one_copies,
                                  device_memory_is_refused,
                                  a_queued_call_ends_when_its_transport_says_so,
                                  a_failed_send_has_failed_after_its_error_was_cleared,
                                  read_only_memory_is_not_written,
                                  a_callers_transport_hears_of_missed_calls,
                                  calls_out_of_place_are_refused,
                                  the_flight_record_lists_calls};
    return tg_check_main("works", tests, sizeof tests / sizeof *tests);
}
