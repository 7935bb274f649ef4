/* Failures of a rank: it disagrees, fails, returns, sleeps, is killed or stopped. The other ranks must get an error in
 * time that names the rank, and must be able to recover. Over threads and processes. */
#include <stdlib.h>
#include <tapegrad/device.h>
#include <tapegrad/ops.h>
#include <tapegrad/ranks.h>
#include <tapegrad/transport.h>

#include "comm/worlds.h"

enum { KINDS = TG_BARRIER + 1, VICTIM = 1 };

/* Makes one call of the kind and waits for it. A message goes from the victim to all others, or from them to it. */
static tg_status call(tg_collective kind, tg_ctx *ctx, tg_comm *c) {
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_tensor *x = filled(ctx, 40, me), *all = filled(ctx, 40 * n, me);
    tg_work *w = NULL;
    switch (kind) {
    case TG_ALL_REDUCE: w = tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM); break;
    case TG_ALL_GATHER: w = tg_comm_all_gather(c, all, x); break;
    case TG_REDUCE_SCATTER: w = tg_comm_reduce_scatter(c, x, all, TG_REDUCE_SUM); break;
    case TG_BROADCAST: w = tg_comm_broadcast(c, x, 0); break;
    case TG_ALL_TO_ALL: w = tg_comm_all_to_all(c, all, all, NULL, NULL); break;
    case TG_GATHER: w = tg_comm_gather(c, me ? NULL : all, x, 0); break;
    case TG_SCATTER: w = tg_comm_scatter(c, x, me ? NULL : all, 0); break;
    case TG_SEND: w = tg_comm_send(c, x, VICTIM); break;
    case TG_RECV: w = tg_comm_recv(c, x, VICTIM); break;
    default: return tg_comm_barrier(c);
    }
    if (w) tg_work_wait(w);
    if (on_gpus && tg_ctx_status(ctx) == TG_OK) tg_ctx_ops(ctx)->sync(ctx);
    tg_drop(x), tg_drop(all);
    return tg_ctx_status(ctx);
}

/* ---- Lost ranks ---- */

typedef enum fault { RETURNS, FAILS, SLEEPS, KILLED, STOPPED, FAULTS } fault;

typedef struct plot {
    fault fault;
    tg_collective kind;
    double deadline;
} plot;

/* Returns whether the other ranks are expected to run into their deadline. If the machine is suspended for that
 * long, a rank may find that its peers have given up, or that the victim is late for the previous barrier; neither
 * is an error. */
static bool is_timed(const plot *p) { return p->fault == SLEEPS || p->fault == STOPPED; }

static double patience(const plot *p) {
    double limit = is_timed(p) ? p->deadline + 0.5 : 2;
    return getenv("TG_TEST_QUICK") ? 4 * limit : limit;
}

static bool says_so(const plot *p, tg_status s, const char *message) {
    switch (p->fault) {
    case RETURNS: return s == TG_ERR_REMOTE && strstr(message, "rank 1 has ") &&
               strstr(message, on_gpus ? " after 2 collective calls in " : " after 1 collective call in ") &&
               strstr(message, "its last call was barrier()");
    case FAILS: return s == TG_ERR_REMOTE && strstr(message, "rank 1 failed: the dog ate it");
    case KILLED: return s == TG_ERR_REMOTE && strstr(message, "rank 1");
    case SLEEPS:
    case STOPPED:
        return s == TG_ERR_TIMEOUT && strstr(message, tg_collective_name(p->kind)) &&
               strstr(message, "rank 1 has not arrived: it is missing") &&
               strstr(message, "its last call was barrier()");
    default: return false;
    }
}

static tg_status victim(const plot *p, tg_ctx *ctx, tg_comm *c, world_end *end) {
    int n = tg_comm_size(c);
    switch (p->fault) {
    case RETURNS: return TG_OK;
    case KILLED: kill(getpid(), SIGKILL); break;
    case STOPPED: kill(getpid(), SIGSTOP); break;
    case FAILS:
        tg_ctx_fail(ctx, TG_ERR_IO, "the dog ate it");
        sleep_past_others(end, VICTIM, n); /* clearing the error before the others see it is another test */
        break;
    default:
        sleep_past_others(end, VICTIM, n);
        EXPECT(ctx, call(TG_BARRIER, ctx, c) == TG_ERR_REMOTE);
        EXPECT(ctx, strstr(tg_ctx_message(ctx), "has stopped waiting for this rank"));
    }
    tg_ctx_clear(ctx);
    EXPECT(ctx, call(TG_BARRIER, ctx, c) == TG_ERR_ABORTED);
    tg_ctx_clear(ctx);
    EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_size(c) == n && tg_comm_rank(c) == VICTIM);
    return TG_OK;
}

static tg_status loses_a_rank(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    const plot *p = arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    bool comes_back = p->fault == FAILS || p->fault == SLEEPS;
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    if (me == VICTIM) {
        EXPECT(ctx, victim(p, ctx, c, end) == TG_OK);
        if (p->fault == RETURNS) return TG_OK;
    } else {
        double start = seconds_now();
        tg_status s = call(p->kind, ctx, c);
        end->seconds[me] = seconds_now() - start;
        atomic_store(&end->past[me], true);
        if (!says_so(p, s, tg_ctx_message(ctx)))
            return snprintf(end->message[me], sizeof end->message[me], "%s", tg_ctx_message(ctx)), TG_ERR_INTERNAL;
        tg_ctx_clear(ctx);
        EXPECT(ctx, call(TG_ALL_REDUCE, ctx, c) == TG_ERR_ABORTED);
        tg_ctx_clear(ctx);
        EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_size(c) == n - !comes_back);
        EXPECT(ctx, tg_comm_rank(c) == me - (me > VICTIM && !comes_back));
    }
    tg_tensor *x = filled(ctx, 3, 1);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    const double *sum = elements(x);
    EXPECT(ctx, sum && sum[2] == n - !comes_back);
    return tg_ctx_status(ctx);
}

/* A GPU that only sends to another one, or only receives from it, does not wait for the others. */
static bool goes_on(int kind, int n) { return on_gpus && n > 2 && (kind == TG_GATHER || kind == TG_SCATTER); }

/* Returns the largest number of ranks to test; two emulated GPUs are enough for the short test. */
static int most(void) { return on_gpus && getenv("TG_TEST_QUICK") ? 2 : 4; }

/* Returns whether a case is left out. With TG_LONG every kind is tested in every world, otherwise those that wait for
 * a deadline only in some. */
static bool left_out(fault f, int world, int kind) {
    return (f == SLEEPS || f == STOPPED) && !getenv("TG_LONG") && (kind + world) % 3;
}

/* Returns whether the remaining ranks ended correctly and in time. A late or time-dependent failure is tried again,
 * because the machine may have been suspended. */
static bool ended_well(const plot *p, const world_end *end, world_kind kind, int n, bool last_try) {
    for (int r = 0; r < n; r++) {
        if (r == VICTIM && (p->fault == KILLED || p->fault == STOPPED)) continue;
        bool good = end->ended[r] && end->status[r] == TG_OK;
        if (!good && is_timed(p) && !last_try) return false;
        ck_assert_msg(good, "fault %d, %s, %d %s: rank %d: %s: %s", p->fault,
                      tg_collective_name(p->kind), n, world_names[kind], r, tg_status_name(end->status[r]),
                      end->message[r]);
        if (end->seconds[r] < patience(p)) continue;
        ck_assert_msg(!last_try, "fault %d, %s, %d %s: rank %d: %g s", p->fault, tg_collective_name(p->kind), n,
                      world_names[kind], r, end->seconds[r]);
        return false;
    }
    return true;
}

static void lose_a_rank(const plot *p, world_kind kind, int n) {
    enum { TRIES = 3 };
    const tg_config *config = TG_CONFIG(.threads = 1, .deadline = p->deadline);
    for (int i = 1; i <= TRIES; i++)
        if (ended_well(p, run_world(kind, n, loses_a_rank, (void *)p, config), kind, n, i == TRIES)) return;
}

static void lose_ranks(fault f, const world_kind *kinds, int n_kinds) {
    for (int w = 0; w < n_kinds; w++)
        for (int n = 2; n <= most(); n += 2)
            for (int kind = 0; kind < KINDS; kind++) {
                plot p = {f, (tg_collective)kind, f == SLEEPS || f == STOPPED ? 2 : 20};
                if (!left_out(f, 2 * w + n / 2, kind) && !goes_on(kind, n)) lose_a_rank(&p, kinds[w], n);
            }
}

static const world_kind both[] = {THREADS, PROCESSES};

START_TEST(a_rank_returns_early) { lose_ranks(RETURNS, both, 2); }
END_TEST
START_TEST(a_rank_fails) { lose_ranks(FAILS, both, 2); }
END_TEST
START_TEST(a_rank_sleeps) { lose_ranks(SLEEPS, both, 2); }
END_TEST
#ifndef TG_WORLD_MPI /* MPI's launcher ends the job */
static const world_kind processes[] = {PROCESSES};

START_TEST(a_process_is_killed) { lose_ranks(KILLED, processes, 1); }
END_TEST
START_TEST(a_process_is_stopped) { lose_ranks(STOPPED, processes, 1); }
END_TEST
#endif

/* ---- Ranks with different calls ---- */

typedef enum quarrel {
    KIND, DTYPE, COUNT, REDUCTION, ROOT, PARTS, PAIRS, ORDER, MESSAGE, GROUPS, SKIPPED, SPLIT, EXTRA, QUARRELS
} quarrel;

static const char *const quarrel_says[QUARRELS][2] = {
    {"all_reduce(f64, 6 elements, sum)", "broadcast(f64, 6 elements, root 0)"},
    {"all_reduce(f64, 6 elements, sum)", "all_reduce(i64, 6 elements, sum)"},
    {"all_reduce(f64, 6 elements, sum)", "all_reduce(f64, 5 elements, sum)"},
    {"all_reduce(f64, 6 elements, sum)", "all_reduce(f64, 6 elements, max)"},
    {"broadcast(f64, 6 elements, root 0)", "broadcast(f64, 6 elements, root 1)"},
    {"all_gather(f64", "all_gather(f64"},
    {"all_to_all(f64", "all_to_all(f64"},
    {"all_reduce(f64, 6 elements, sum)", "barrier()"},
    {"send(f64, 6 elements, to 0)", "recv(f64, 5 elements, from 1)"},
    {"in group \"one\" rank", "in group \"two\" rank"},
    {"all_reduce(f64, 6 elements, sum)", "recv(f64, 6 elements, from 0)"},
    {"all_reduce(f64, 6 elements, sum)", "all_gather(i64, 2 elements"},
    {"in group \"one\" rank 1 called all_reduce(f64, 6 elements, sum)", "called barrier()"},
};

/* Returns a tensor over the buffer, which the host can read afterwards; on a GPU a copy of it. */
static tg_tensor *over(tg_ctx *ctx, tg_dtype d, int64_t n, double *numbers) {
    return on_gpus ? tg_from_host(ctx, d, TG_SHAPE(n), numbers)
                   : tg_wrap(ctx, d, TG_SHAPE(n), NULL, numbers, NULL, NULL);
}

static void disagree(quarrel q, tg_ctx *ctx, tg_comm *c, double *numbers) {
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    bool other = me == VICTIM;
    int64_t counts[MOST], turned[MOST];
    tg_dtype d = q == DTYPE && other ? TG_I64 : TG_F64;
    tg_tensor *x = over(ctx, d, q == COUNT && other ? 5 : 6, numbers);
    for (int r = 0; r < n; r++) counts[r] = turned[r] = r < 2 ? 3 : 0;
    switch (q) {
    case DTYPE:
    case COUNT: tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM); break;
    case REDUCTION: tg_comm_all_reduce(c, x, x, other ? TG_REDUCE_MAX : TG_REDUCE_SUM); break;
    case ROOT: tg_comm_broadcast(c, x, other); break;
    case PARTS:
        if (other) counts[0] = 2, counts[1] = 4;
        tg_tensor *part = tg_zeros(ctx, d, TG_SHAPE(counts[me]));
        tg_comm_all_gather_v(c, x, part, counts);
        break;
    case PAIRS: /* the others expect 3 elements from the victim, which sends 2 and 4 */
        if (other) counts[0] = 2, counts[1] = 4;
        for (int r = 0; r < n; r++) turned[r] = r == VICTIM && other ? 4 : me < 2 ? 3 : 0;
        int64_t in = 0;
        for (int r = 0; r < n; r++) in += turned[r];
        tg_work_wait(tg_comm_all_to_all(c, tg_zeros(ctx, d, TG_SHAPE(in)), x, counts, turned));
        break;
    case MESSAGE:
        if (other) tg_work_wait(tg_comm_send(c, x, 0));
        else if (me == 0)
            tg_comm_recv(c, x = over(ctx, d, 5, numbers), 1);
        else tg_comm_barrier(c);
        break;
    case GROUPS: { /* one rank makes its calls in another order */
        tg_comm *one = tg_comm_split(c, 0, 0, "one", TG_MAX_AXES), *two = tg_comm_split(c, 0, 0, "two", TG_MAX_AXES);
        tg_comm_barrier(other ? two : one);
        tg_comm_barrier(other ? one : two);
        break;
    }
    case SKIPPED: /* one rank omits a call and continues with a message */
        if (other)
            tg_comm_recv(c, x, 0);
        else
            tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
        break;
    case SPLIT:
        if (other)
            tg_comm_free(tg_comm_split(c, 0, 0, "", TG_MAX_AXES));
        else
            tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
        break;
    case EXTRA: { /* one rank makes an additional call, which the others could mistake for their next one */
        tg_comm *one = tg_comm_split(c, 0, 0, "one", TG_MAX_AXES);
        tg_tensor *y = tg_zeros(ctx, d, TG_SHAPE(6)), *z = tg_zeros(ctx, d, TG_SHAPE(6));
        tg_comm_all_reduce(one, y, y, TG_REDUCE_SUM);
        if (other) tg_comm_all_reduce(one, z, z, TG_REDUCE_SUM);
        tg_drop(y), tg_drop(z);
        tg_comm_barrier(c);
        break;
    }
    case ORDER:
        if (other) tg_comm_barrier(c);
        tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
        if (!other) tg_comm_barrier(c);
        break;
    default:
        if (other) tg_comm_broadcast(c, x, 0);
        else tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    }
    elements(x);
}

/* No data have moved, and every rank's message has both calls. */
static tg_status quarrels(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    quarrel q = *(quarrel *)arg;
    int me = tg_comm_rank(c);
    double numbers[6] = {me, me, me, me, me, me};
    disagree(q, ctx, c, numbers);
    end->word[me] = 1;
    for (int i = 0; i < 6; i++) end->word[me] &= numbers[i] == me;
    return tg_ctx_status(ctx);
}

START_TEST(ranks_that_disagree_are_reported) {
    for (int kind = 0; kind < WORLD_KINDS; kind++)
        for (int n = 2; n <= most(); n += 2)
            for (quarrel q = 0; q < QUARRELS; q++) {
                if (on_gpus && q == EXTRA) continue; /* on GPUs only its rank waits for it, at the end */
                const world_end *end = run_world((world_kind)kind, n, quarrels, &q, NULL);
                for (int r = 0; r < n; r++) {
                    const char *m = end->message[r], *one = strstr(m, "rank 0 called "),
                               *two = strstr(m, "rank 1 called ");
                    /* With several groups a GPU's host may first check one that another rank has ended with this
                     * error. */
                    bool passed_on = on_gpus && end->status[r] == TG_ERR_REMOTE;
                    ck_assert_msg(end->status[r] == TG_ERR_MISMATCH || passed_on, "quarrel %d, %d %s: rank %d: %s: %s",
                                  q, n, world_names[kind], r, tg_status_name(end->status[r]), m);
                    bool one_text = q != GROUPS && q != EXTRA; /* else each pair has its own text */
                    ck_assert_msg(!one_text || on_gpus || !strcmp(m, end->message[0]), "%s; %s", m, end->message[0]);
                    ck_assert_msg(q == PARTS || q == PAIRS || n > 2 || (one && two), "%s", m);
                    ck_assert_msg(strstr(m, quarrel_says[q][0]) && strstr(m, quarrel_says[q][1]) && strstr(m, " from "),
                                  "%s", m);
                    ck_assert_msg(!strstr(m, "(nil)") && !strstr(m, "0x0000000000000000"), "%s", m);
                    ck_assert_uint_eq(end->word[r], 1);
                }
            }
}
END_TEST

/* ---- Local errors of one rank ---- */

/* The call fails on all ranks, which are in step afterwards. */
static tg_status all_are_refused(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    for (int i = 0; i < 50; i++) {
        tg_tensor *x = filled(ctx, 6, 1), *y = filled(ctx, 5, 1);
        EXPECT(ctx, !tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM) && !tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM));
        EXPECT(ctx, tg_ctx_status(ctx) == TG_ERR_SHAPE);
        tg_ctx_clear(ctx);
        EXPECT(ctx, call(i % KINDS == TG_SEND || i % KINDS == TG_RECV ? TG_BARRIER : (tg_collective)(i % KINDS), ctx,
                         c) == TG_OK);
        tg_drop(x), tg_drop(y);
    }
    return tg_ctx_status(ctx);
}

START_TEST(errors_that_all_ranks_make_keep_them_in_step) {
    for (int kind = 0; kind < WORLD_KINDS; kind++)
        for (int n = 2; n <= most(); n += 2) expect_world((world_kind)kind, n, all_are_refused, NULL);
}
END_TEST

/* The call fails on one rank, which clears its error and continues: it has missed a call. */
static tg_status one_is_refused(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    int me = tg_comm_rank(c);
    tg_tensor *x = filled(ctx, 6, 1), *y = filled(ctx, 5, 1);
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    if (me == VICTIM) {
        EXPECT(ctx, !tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM) && tg_ctx_status(ctx) == TG_ERR_SHAPE);
        tg_ctx_clear(ctx);
    }
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    elements(x);
    tg_status expected = me == VICTIM ? TG_ERR_ABORTED : TG_ERR_REMOTE;
    bool right = tg_ctx_status(ctx) == expected && strstr(tg_ctx_message(ctx), "rank 1 failed") &&
                 strstr(tg_ctx_message(ctx), "dst has 5 elements, expected 6");
    if (!right) return TG_ERR_INTERNAL;
    tg_ctx_clear(ctx);
    EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_barrier(c) == TG_OK);
    return TG_OK;
}

START_TEST(an_error_of_one_rank_is_reported_even_when_it_was_cleared) {
    for (int kind = 0; kind < WORLD_KINDS; kind++)
        for (int n = 2; n <= most(); n += 2)
            for (int i = 0; i < 10; i++) expect_world((world_kind)kind, n, one_is_refused, NULL);
}
END_TEST

#ifndef TG_WORLD_NCCL
/* The victim refuses a call after both ranks have posted as many receives as a rank has message slots over shared
 * memory. After recovery the slots must be free again. */
static tg_status loses_messages(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    enum { MESSAGES = 64 };
    int me = tg_comm_rank(c);
    tg_tensor *lost[MESSAGES], *x = filled(ctx, 6, me + 1), *y = filled(ctx, 5, 0);
    for (int i = 0; i < MESSAGES; i++) {
        lost[i] = filled(ctx, 4, 0);
        EXPECT(ctx, tg_comm_recv(c, lost[i], 1 - me));
    }
    if (me == VICTIM) {
        EXPECT(ctx, !tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM) && tg_ctx_status(ctx) == TG_ERR_SHAPE);
        tg_ctx_clear(ctx);
    }
    if (tg_comm_barrier(c) == TG_OK) return TG_ERR_INTERNAL;
    tg_ctx_clear(ctx);
    EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_size(c) == 2);
    for (int i = 0; i < MESSAGES; i++) tg_drop(lost[i]);
    if (me == VICTIM)
        tg_comm_send(c, x, 0);
    else
        tg_comm_recv(c, x, VICTIM);
    EXPECT(ctx, tg_comm_barrier(c) == TG_OK);
    const double *v = elements(x);
    EXPECT(ctx, v && v[5] == VICTIM + 1);
    return TG_OK;
}

START_TEST(lost_messages_leave_no_slot_taken) {
    for (int kind = 0; kind < WORLD_KINDS; kind++) expect_world((world_kind)kind, 2, loses_messages, NULL);
}
END_TEST

/* The message names the rank that failed first, however many ranks have passed it on. */
static tg_status chain(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    tg_comm *next = NULL;
    for (int r = 0; r + 1 < n; r++) { /* a chain of pairs: 0-1, 1-2, 2-3 */
        int pair[] = {r, r + 1};
        if (me == r || me == r + 1) next = tg_comm_split_known(c, pair, 2, "pair", TG_MAX_AXES, false);
        if (me == r) break;
    }
    if (me == n - 1) return tg_ctx_fail(ctx, TG_ERR_DATA, "token 7 is out of range");
    tg_comm_barrier(next);
    return tg_ctx_status(ctx);
}

START_TEST(the_first_failure_is_the_one_that_is_reported) {
    char message[512];
    for (int i = 0; i < 5; i++) {
        tg_status s = tg_ranks_run(4, chain, NULL, TG_RANKS(.message = message, .message_size = sizeof message));
        ck_assert_int_eq(s, TG_ERR_DATA);
        ck_assert_str_eq(message, "rank 3: token 7 is out of range");
    }
}
END_TEST

/* ---- Every operation fails once ---- */

/* An allocator of which one call fails. It is slow to free from then on, so that what the failing rank has undone is
 * seen by its peers before the rank returns. */
typedef struct failing_allocator {
    _Atomic int64_t calls, live;
    int64_t fails_at;
} failing_allocator;

static void *failing_alloc(void *user, size_t bytes, size_t align) {
    failing_allocator *m = user;
    void *p;
    if (++m->calls == m->fails_at || posix_memalign(&p, align < sizeof p ? sizeof p : align, bytes)) return NULL;
    m->live++;
    return p;
}

static void slow_free(void *user, void *p, size_t bytes) {
    (void)bytes;
    failing_allocator *m = user;
    m->live -= p != NULL;
    if (m->calls >= m->fails_at) sleep_for(1e-4);
    free(p);
}

static tg_status a_bit_of_all(void *arg, tg_ctx *ctx, tg_comm *c) {
    (void)arg;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    int64_t counts[MOST];
    for (int r = 0; r < n; r++) counts[r] = 40;
    tg_comm *g = tg_comm_split(c, 0, -me, "back", TG_TP);
    tg_tensor *x = filled(ctx, 40, me), *all = filled(ctx, 40 * n, me);
    tg_comm_all_gather_v(g, all, x, counts);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    tg_comm_send(c, all, (me + 1) % n);
    tg_tensor *y = filled(ctx, 40 * n, 0);
    tg_comm_recv(c, y, (me + n - 1) % n);
    tg_comm_barrier(g);
    const double *p = tg_host_data(y), *q = tg_host_data(x);
    if (p && q && (p[0] != n - 1 || q[0] != n * (n - 1) / 2)) tg_ctx_fail(ctx, TG_ERR_INTERNAL, "wrong sums");
    tg_comm_free(g);
    return tg_ctx_status(ctx);
}

/* Each allocation during the life of a world fails in turn: no rank hangs, nothing leaks, and the error is
 * TG_ERR_MEMORY. */
START_TEST(every_allocation_may_fail) {
    char message[512];
    int64_t failures = 0;
    for (int64_t i = 1;; i++) {
        failing_allocator m = {.fails_at = i};
        tg_config config =
            *TG_CONFIG(.threads = 1, .deadline = 60, .allocator = {failing_alloc, slow_free, &m});
        tg_status s = tg_ranks_run(3, a_bit_of_all, NULL, TG_RANKS(.config = &config, .message = message,
                                                                   .message_size = sizeof message));
        ck_assert_msg(m.live == 0, "allocation %lld: %lld are left: %s", (long long)i, (long long)m.live, message);
        ck_assert_msg(s == TG_ERR_MEMORY || (s == TG_OK && m.calls < i), "allocation %lld of %lld: %s: %s",
                      (long long)i, (long long)m.calls, tg_status_name(s), message);
        failures += s != TG_OK;
        if (s == TG_OK) break;
    }
    ck_assert_int_gt(failures, 30);
}
END_TEST
#endif

/* A transport whose n-th call fails. */
typedef struct gate {
    tg_comm_ops ops;
    const tg_comm_ops *real;
    int calls, fails_at;
} gate;

static _Thread_local gate gate_of_rank; /* thread-local, since a transport's table has no state of its own */

static tg_status gated_start(tg_ctx *ctx, void *state, const tg_transfer *t, void **request) {
    gate *g = &gate_of_rank;
    if (++g->calls == g->fails_at) return tg_ctx_fail(ctx, TG_ERR_IO, "the gate is shut");
    return g->real->start(ctx, state, t, request);
}

static tg_status gated(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)end;
    int n = tg_comm_size(c), me = tg_comm_rank(c);
    gate *g = &gate_of_rank;
    *g = (gate){.ops = *c->ops, .real = c->ops, .fails_at = me == VICTIM ? *(int *)arg : 0};
    g->ops.start = gated_start;
    c->ops = &g->ops;
    for (int tries = 0; tries < 2; tries++) {
        tg_tensor *x = filled(ctx, 1000, me);
        for (int k = 0; k < KINDS; k++)
            if (k != TG_SEND && k != TG_RECV) call((tg_collective)k, ctx, c);
        tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
        const double *p = elements(x);
        tg_status s = tg_ctx_status(ctx);
        if (s == TG_OK) {
            EXPECT(ctx, p && p[999] == n * (n - 1) / 2);
            EXPECT(ctx, tries == 1 || !*(int *)arg);
            return TG_OK;
        }
        if (s != (me == VICTIM ? TG_ERR_IO : TG_ERR_REMOTE) || !strstr(tg_ctx_message(ctx), "the gate is shut"))
            return s;
        tg_ctx_clear(ctx);
        EXPECT(ctx, tg_comm_recover(c) == TG_OK && tg_comm_size(c) == n);
        tg_drop(x);
    }
    return TG_ERR_INTERNAL;
}

START_TEST(every_call_may_fail) {
    for (int kind = 0; kind < WORLD_KINDS; kind++)
        for (int n = 2; n <= 3; n++)
            for (int at = 1; at <= KINDS - 1; at++) expect_world((world_kind)kind, n, gated, &at);
}
END_TEST

/* The victim leaves while rank 0's call on the pair is queued after one on the world that the victim has not made. */
static tg_status behind_each_other(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end) {
    (void)arg, (void)end;
    tg_comm *pair = tg_comm_split(world, 0, tg_comm_rank(world), "pair", TG_MAX_AXES);
    tg_tape *t = tg_tape_new(ctx);
    tg_tensor *x = filled(ctx, 40, 1);
    EXPECT(ctx, tg_comm_barrier(world) == TG_OK);
    if (tg_comm_rank(world) == VICTIM) {
        sleep_for(0.2);
    } else {
        tg_comm_all_reduce(world, x, x, TG_REDUCE_SUM);
        tg_comm_all_reduce(pair, x, tg_scale(t, tg_tape_input(t, x), 2), TG_REDUCE_SUM);
        double v[40];
        tg_read(x, v, sizeof v);
        EXPECT(ctx, tg_ctx_status(ctx) == TG_ERR_REMOTE || tg_ctx_status(ctx) == TG_ERR_ABORTED);
        tg_ctx_clear(ctx);
    }
    tg_tape_free(t);
    return TG_OK;
}

START_TEST(calls_that_wait_for_each_other_end_together) {
    for (int kind = 0; kind < WORLD_KINDS; kind++) expect_world((world_kind)kind, 2, behind_each_other, NULL);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_rank_returns_early,
                                  a_rank_fails,
                                  a_rank_sleeps,
#ifndef TG_WORLD_MPI
                                  a_process_is_killed,
                                  a_process_is_stopped,
#endif
                                  ranks_that_disagree_are_reported,
                                  errors_that_all_ranks_make_keep_them_in_step,
                                  an_error_of_one_rank_is_reported_even_when_it_was_cleared,
#ifndef TG_WORLD_NCCL
                                  lost_messages_leave_no_slot_taken,
                                  the_first_failure_is_the_one_that_is_reported,
                                  every_allocation_may_fail,
#endif
                                  every_call_may_fail,
                                  calls_that_wait_for_each_other_end_together};
    return tg_check_main("faults", tests, sizeof tests / sizeof *tests);
}
