/* The words of failures, which all transports make alike. Each situation runs over threads; the messages of its ranks
 * over any other transport must then be the same, byte by byte, except for the differences that `differences` lists.
 * The transports are processes, messages between nodes (letters.h), and, in other builds of this program, MPI, TCP and
 * NCCL. Rank 1 is the one that fails. */
#include <pthread.h>

#include "comm/letters.h"
#include "comm/worlds.h"

enum { VICTIM = 1 };

/* ---- Transports ---- */

typedef enum transport { OVER_THREADS, OVER_PROCESSES, OVER_MESSAGES, TRANSPORTS } transport;

static const char *const transport_names[TRANSPORTS] = {"threads", "processes, or ranks of MPI", "messages"};

typedef struct letter_rank {
    line line;
    world_job *job;
    const tg_config *config;
    int n;
    pthread_t thread;
} letter_rank;

static void *run_letter_rank(void *user) {
    letter_rank *r = user;
    tg_ctx *ctx = tg_ctx_new(r->config);
    tg_comm *world = tg_comm_p2p_new(ctx, &line_ops, &r->line, r->line.me, r->n);
    world_rank(r->job, ctx, world);
    tg_comm_free_all(world);
    tg_ctx_free(ctx);
    return NULL;
}

/* Runs fn on ranks that exchange letters. */
static void run_letters(int n, world_fn fn, void *arg, const tg_config *config, world_end *end) {
    wires w = {.lock = PTHREAD_MUTEX_INITIALIZER, .holder = -1, .waiter = -1};
    world_job job = {fn, arg, end};
    letter_rank ranks[LETTER_RANKS];
    memset(end, 0, sizeof *end);
    for (int i = 0; i < n; i++) {
        ranks[i] = (letter_rank){.line = {.w = &w, .me = i}, .job = &job, .config = config, .n = n};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_letter_rank, &ranks[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(ranks[i].thread, NULL);
    wires_free(&w);
}

/* ---- Situations ---- */

static tg_comm *pair_of(tg_comm *c, const char *name) {
    return tg_comm_split(c, 0, tg_comm_rank(c), name, TG_MAX_AXES);
}

static void wait_for_others(world_end *end, tg_comm *c) { sleep_past_others(end, tg_comm_rank(c), tg_comm_size(c)); }
static void let_others_go_on(world_end *end, int me) { atomic_store(&end->past[me], true); }

/* Waits as the host does, for a GPU too. */
static tg_status finish(tg_ctx *ctx, tg_tensor *x) {
    double v[64];
    tg_read_f64(x, v, tg_numel(x));
    return tg_ctx_status(ctx);
}

static tg_tensor *numbers(tg_ctx *ctx, tg_dtype d, int64_t n) { return tg_zeros(ctx, d, TG_SHAPE(n)); }

static tg_status kinds_differ(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_tensor *x = numbers(ctx, TG_F64, 6);
    if (tg_comm_rank(c) == VICTIM)
        tg_comm_broadcast(c, x, 0);
    else
        tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    return finish(ctx, x);
}

static tg_status reductions_differ(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_tensor *x = numbers(ctx, TG_F64, 6);
    tg_comm_all_reduce(c, x, x, tg_comm_rank(c) == VICTIM ? TG_REDUCE_MAX : TG_REDUCE_SUM);
    return finish(ctx, x);
}

static tg_status dtypes_differ(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_tensor *x = numbers(ctx, tg_comm_rank(c) == VICTIM ? TG_F32 : TG_F64, 6);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    return finish(ctx, x);
}

static tg_status counts_differ(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_tensor *x = numbers(ctx, TG_F64, tg_comm_rank(c) == VICTIM ? 5 : 6);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    return finish(ctx, x);
}

static tg_status roots_differ(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_tensor *x = numbers(ctx, TG_F64, 6);
    tg_comm_broadcast(c, x, tg_comm_rank(c) == VICTIM);
    return finish(ctx, x);
}

static tg_status parts_differ(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    bool other = tg_comm_rank(c) == VICTIM;
    const int64_t counts[] = {other ? 2 : 3, other ? 4 : 3};
    tg_tensor *x = numbers(ctx, TG_F64, 6);
    tg_comm_all_gather_v(c, x, numbers(ctx, TG_F64, counts[other]), counts);
    return finish(ctx, x);
}

/* Rank 0 expects 3 elements from the victim, which sends 2. */
static tg_status pairs_differ(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    bool other = tg_comm_rank(c) == VICTIM;
    const int64_t send[] = {other ? 2 : 3, other ? 4 : 3}, recv[] = {3, other ? 4 : 3};
    tg_tensor *x = numbers(ctx, TG_F64, recv[0] + recv[1]);
    tg_comm_all_to_all(c, x, numbers(ctx, TG_F64, 6), send, recv);
    return finish(ctx, x);
}

static tg_status messages_differ(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    bool other = tg_comm_rank(c) == VICTIM;
    tg_tensor *x = numbers(ctx, TG_F64, other ? 6 : 5);
    if (other)
        tg_work_wait(tg_comm_send(c, x, 0));
    else
        tg_comm_recv(c, x, VICTIM);
    return finish(ctx, x);
}

/* In the second call of a group that has a name. */
static tg_status a_later_call_differs(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    tg_comm *pair = pair_of(c, "pair");
    tg_comm_barrier(pair);
    return counts_differ(arg, ctx, pair, end);
}

static tg_status a_rank_fails(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    tg_comm_barrier(c);
    if (tg_comm_rank(c) == VICTIM) {
        tg_ctx_fail(ctx, TG_ERR_IO, "the dog ate it");
        wait_for_others(end, c);
        return tg_ctx_status(ctx);
    }
    tg_comm_barrier(c);
    let_others_go_on(end, tg_comm_rank(c));
    return tg_ctx_status(ctx);
}

/* The next call of each rank, too. */
static tg_status calls_after_a_failure(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    a_rank_fails(arg, ctx, c, end);
    tg_ctx_clear(ctx);
    tg_comm_barrier(c);
    return tg_ctx_status(ctx);
}

static tg_status a_rank_returns(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_comm_barrier(c);
    if (tg_comm_rank(c) == VICTIM) return tg_ctx_status(ctx);
    tg_comm_barrier(c);
    return tg_ctx_status(ctx);
}

static tg_status a_rank_frees_its_group(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    tg_comm *pair = pair_of(c, "pair");
    tg_comm_barrier(c);
    tg_comm_barrier(pair);
    if (tg_comm_rank(c) == VICTIM) {
        tg_comm_free(pair);
        wait_for_others(end, c);
        return tg_ctx_status(ctx);
    }
    tg_comm_barrier(pair);
    let_others_go_on(end, tg_comm_rank(c));
    return tg_ctx_status(ctx);
}

static tg_status is_refused(tg_ctx *ctx, tg_comm *c) {
    tg_tensor *x = numbers(ctx, TG_F64, 6), *y = numbers(ctx, TG_F64, 5);
    tg_comm_all_reduce(c, y, x, TG_REDUCE_SUM);
    tg_status s = tg_ctx_status(ctx);
    tg_ctx_clear(ctx);
    return s;
}

/* The victim's call is refused. It clears the error, and the others then wait for it. */
static tg_status a_rank_misses_a_call(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int me = tg_comm_rank(c);
    tg_comm_barrier(c);
    if (me == VICTIM) is_refused(ctx, c);
    let_others_go_on(end, me);
    wait_for_others(end, c);
    while (me == VICTIM && !atomic_load(&end->ended[0])) sleep_for(0.002);
    tg_comm_barrier(c);
    return tg_ctx_status(ctx);
}

/* The victim misses a call, and makes the next one before rank 0 does. */
static tg_status a_rank_has_missed_a_call(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int me = tg_comm_rank(c);
    tg_tensor *x = numbers(ctx, TG_F64, 6);
    tg_comm_barrier(c);
    if (me == VICTIM) is_refused(ctx, c);
    if (me != VICTIM) wait_for_others(end, c);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    let_others_go_on(end, me);
    return finish(ctx, x);
}

/* What it has missed is the cause: it is reported in place of the leaving. */
static tg_status a_rank_misses_a_call_and_returns(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    tg_comm_barrier(c);
    if (tg_comm_rank(c) == VICTIM) {
        is_refused(ctx, c);
        return tg_ctx_status(ctx);
    }
    wait_for_others(end, c);
    tg_comm_barrier(c);
    return tg_ctx_status(ctx);
}

/* Rank 2 fails, so that the victim misses a call; the victim clears its error and returns. Rank 0 waits for both of
 * them and must name rank 2, whose failure came first, though the victim is the first of the two. */
static tg_status a_rank_misses_a_call_by_another(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int me = tg_comm_rank(c);
    tg_comm *pair = tg_comm_split(c, me == 0 ? -1 : 0, me, "pair", TG_MAX_AXES);
    tg_comm_barrier(c);
    if (me == 2) {
        tg_ctx_fail(ctx, TG_ERR_IO, "the dog ate it");
        let_others_go_on(end, me);
        while (!atomic_load(&end->past[0])) sleep_for(0.002);
        return tg_ctx_status(ctx);
    }
    if (me == VICTIM) {
        tg_comm_barrier(pair);
        tg_comm_barrier(c);
        tg_ctx_clear(ctx);
        return tg_ctx_status(ctx);
    }
    wait_for_others(end, c);
    tg_comm_barrier(c);
    let_others_go_on(end, me);
    return tg_ctx_status(ctx);
}

static tg_status a_rank_is_late(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int me = tg_comm_rank(c);
    tg_comm_barrier(c);
    if (me == VICTIM) wait_for_others(end, c);
    tg_comm_barrier(c);
    let_others_go_on(end, me);
    return tg_ctx_status(ctx);
}

static tg_status a_message_is_late(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int me = tg_comm_rank(c);
    tg_tensor *x = numbers(ctx, TG_F64, 6);
    tg_comm_barrier(c);
    if (me == VICTIM) {
        wait_for_others(end, c);
        tg_work *w = tg_comm_send(c, x, 0);
        if (w) tg_work_wait(w);
        return tg_ctx_status(ctx);
    }
    tg_comm_recv(c, x, VICTIM);
    finish(ctx, x);
    let_others_go_on(end, me);
    return tg_ctx_status(ctx);
}

/* Each rank waits in the group whose barrier the other makes second. */
static tg_status ranks_wait_for_each_other(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_comm *one = pair_of(c, "one"), *two = pair_of(c, "two");
    if (tg_comm_rank(c) == VICTIM)
        tg_comm_barrier(two);
    else
        tg_comm_barrier(one);
    return tg_ctx_status(ctx);
}

static tg_status ranks_disagree_after_recovery(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    a_rank_fails(arg, ctx, c, end);
    tg_ctx_clear(ctx);
    tg_comm_recover(c);
    return counts_differ(arg, ctx, c, end);
}

static tg_status a_rank_comes_too_late_to_recover(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg;
    int me = tg_comm_rank(c);
    tg_comm_barrier(c);
    if (me == VICTIM) wait_for_others(end, c);
    tg_comm_recover(c);
    let_others_go_on(end, me);
    return tg_ctx_status(ctx);
}

#ifndef TG_WORLD_MPI
static tg_status a_process_dies(void *arg, tg_ctx *ctx, tg_comm *c, world_end *end) {
    (void)arg, (void)end;
    tg_comm_barrier(c);
    if (tg_comm_rank(c) == VICTIM) kill(getpid(), SIGKILL);
    tg_comm_barrier(c);
    return tg_ctx_status(ctx);
}
#endif

typedef struct situation {
    const char *name;
    world_fn fn;
    int ranks;
    double deadline;
} situation;

#define SITUATION(body, n, seconds)                                                                                    \
    { .name = #body, .fn = body, .ranks = n, .deadline = seconds }

static const situation situations[] = {
    SITUATION(kinds_differ, 2, 20),
    SITUATION(reductions_differ, 2, 20),
    SITUATION(dtypes_differ, 2, 20),
    SITUATION(counts_differ, 2, 20),
    SITUATION(roots_differ, 2, 20),
    SITUATION(parts_differ, 2, 20),
    SITUATION(pairs_differ, 2, 20),
    SITUATION(messages_differ, 2, 20),
    SITUATION(a_later_call_differs, 2, 20),
    SITUATION(a_rank_fails, 2, 20),
    SITUATION(calls_after_a_failure, 2, 20),
    SITUATION(a_rank_returns, 2, 20),
    SITUATION(a_rank_frees_its_group, 2, 20),
    SITUATION(a_rank_misses_a_call, 2, 20),
    SITUATION(a_rank_has_missed_a_call, 2, 20),
    SITUATION(a_rank_misses_a_call_and_returns, 2, 20),
    SITUATION(a_rank_misses_a_call_by_another, 3, 20),
    SITUATION(a_rank_is_late, 2, 1),
    SITUATION(a_message_is_late, 2, 1),
    SITUATION(ranks_wait_for_each_other, 2, 20),
    SITUATION(ranks_disagree_after_recovery, 2, 20),
    SITUATION(a_rank_comes_too_late_to_recover, 2, 1),
};

/* ---- Differences ---- */

typedef enum differing { NODES, NCCL } differing; /* transports between nodes; NCCL over any host communicator */

/* Where a transport's text differs from that of threads. */
typedef struct difference {
    differing over;
    const char *of_threads, *of_other, *why;
} difference;

/* They are applied in this order. */
static const difference differences[] = {
    {NODES, "(its heartbeat stands still)", "(nothing has come from it)", "heartbeats are in shared memory"},
    {NODES, ", done, from", ", from", "a rank hears that another one has made a call, not that the call is done"},
    {NCCL, "call 2 of group \"world\"", "call 3 of group \"world\"",
     "the first call of the host communicator has carried NCCL's id"},
    {NCCL, "call 1 of group \"world\"", "call 2 of group \"world\"", "the same"},
    {NCCL, "after 1 collective call in group \"world\"", "after 2 collective calls in group \"world\"", "the same"},
};

static bool is_between_nodes_here(transport t) {
#if defined TG_WORLD_MPI || defined TG_WORLD_TCP
    const char *nodes = getenv("TG_MPI_NODES");
    return t == OVER_PROCESSES && nodes && strcmp(nodes, "1") != 0;
#else
    return t == OVER_MESSAGES;
#endif
}

/* Replaces each `from` in text, which has space for n bytes. */
static void replace(char *text, size_t n, const char *from, const char *to) {
    size_t old = strlen(from), new = strlen(to);
    for (char *at = strstr(text, from); at && strlen(text) + new < n; at = strstr(at + new, from)) {
        memmove(at + new, at + old, strlen(at + old) + 1);
        memcpy(at, to, new);
    }
}

/* ---- Comparison ---- */

/* Frees slowly, so that peers see each step of a rank that frees its communicators and contexts. */
static void slow_free(void *user, void *p, size_t bytes) {
    (void)user, (void)bytes;
    sleep_for(1e-4);
    free(p);
}

static void *plain_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void run_over(transport t, const situation *s, world_end *end) {
    tg_config config = *TG_CONFIG(.threads = 1, .deadline = s->deadline, .allocator = {plain_alloc, slow_free, NULL});
    if (t == OVER_MESSAGES)
        run_letters(s->ranks, s->fn, NULL, &config, end);
    else
        *end = *run_world(t == OVER_THREADS ? THREADS : PROCESSES, s->ranks, s->fn, NULL, &config);
}

/* Returns whether the text is the expected one, passed on by another rank. Over NCCL all groups of a rank end together,
 * so of a rank with several groups the host may first check one that the other rank has ended for this reason. */
static bool is_passed_on(const char *text, const char *expected, int rank) {
    char prefix[32];
    snprintf(prefix, sizeof prefix, "rank %d failed: ", !rank);
    return on_gpus && !strncmp(text, prefix, strlen(prefix)) && !strcmp(text + strlen(prefix), expected);
}

static void expect_equal(const situation *s, transport t, const world_end *reference, const world_end *end) {
    for (int r = 0; r < s->ranks; r++) {
        char expected[sizeof reference->message[0]], text[sizeof expected];
        snprintf(expected, sizeof expected, "%s", reference->message[r]);
        for (int i = 0; i < TG_LEN(differences); i++) {
            const difference *d = &differences[i];
            if (d->over == NCCL ? on_gpus : is_between_nodes_here(t))
                replace(expected, sizeof expected, d->of_threads, d->of_other);
        }
        snprintf(text, sizeof text, "%s", end->message[r]);
        /* A rank records a call over NCCL as done at its next call, and until then as started. */
        if (on_gpus) replace(text, sizeof text, ", started, from", ", done, from");
        if (is_passed_on(text, expected, r) && end->status[r] == TG_ERR_REMOTE) continue;
        ck_assert_msg(!strcmp(text, expected), "%s, rank %d over %s%s: \"%s\"\nexpected \"%s\"", s->name, r,
                      on_gpus ? "NCCL over " : "", transport_names[t], text, expected);
        ck_assert_msg(end->status[r] == reference->status[r], "%s, rank %d over %s%s: %s, expected %s", s->name, r,
                      on_gpus ? "NCCL over " : "", transport_names[t], tg_status_name(end->status[r]),
                      tg_status_name(reference->status[r]));
    }
}

static bool is_run_here(transport t) {
#if defined TG_WORLD_MPI || defined TG_WORLD_TCP
    return t == OVER_PROCESSES;
#elif defined TG_WORLD_NCCL
    return t != OVER_MESSAGES;
#else
    return t != OVER_THREADS;
#endif
}

static void set_gpus(bool on) {
#ifdef TG_WORLD_NCCL
    on_gpus = on;
#else
    (void)on;
#endif
}

START_TEST(all_transports_report_failures_in_the_same_words) {
    static world_end reference, end;
    for (int i = 0; i < TG_LEN(situations); i++) {
        const situation *s = &situations[i];
        set_gpus(false);
        run_over(OVER_THREADS, s, &reference);
        if (getenv("TG_TEST_SHOW"))
            for (int r = 0; r < s->ranks; r++)
                printf("%s, rank %d: %s: %s\n", s->name, r, tg_status_name(reference.status[r]), reference.message[r]);
        ck_assert_msg(*reference.message[0] || *reference.message[VICTIM], "%s: no rank has an error", s->name);
        set_gpus(true);
        for (transport t = 0; t < TRANSPORTS; t++) {
            if (!is_run_here(t)) continue;
            run_over(t, s, &end);
            expect_equal(s, t, &reference, &end);
        }
    }
}
END_TEST

#ifndef TG_WORLD_MPI /* whose launcher ends the job */
/* Returns whether the text is one of the two: either the launcher has found that the process has died, or rank 0. */
static bool reports_death(const char *text) {
    static const char found[] = "the process of rank 1 (pid ";
    static const char last[] = ") has ended unexpectedly; its last call was barrier(), call 1 of world, ";
    if (!strcmp(text, "rank 1 failed: its process was killed by signal 9")) return true;
    return !strncmp(text, found, strlen(found)) && strstr(text, last);
}

START_TEST(a_process_that_dies_is_reported_in_the_same_words) {
    static const situation dies = SITUATION(a_process_dies, 2, 20);
    static world_end end;
    for (int gpus = 0; gpus < 2; gpus++) {
        set_gpus(gpus);
        run_over(OVER_PROCESSES, &dies, &end);
        ck_assert_msg(reports_death(end.message[0]), "%s", end.message[0]);
    }
}
END_TEST
#endif

int main(void) {
#ifndef TG_WORLD_MPI
    setenv("TG_MPI_NODES", "4", 1); /* a node for each rank that exchanges letters */
#endif
    const TTest *const tests[] = {
#ifndef TG_WORLD_MPI
        a_process_that_dies_is_reported_in_the_same_words,
#endif
        all_transports_report_failures_in_the_same_words,
    };
    return tg_check_main("failure texts", tests, TG_LEN(tests));
}
