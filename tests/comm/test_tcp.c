/* Ranks over TCP: how they meet, who is missing, and ranks that end. The ranks are threads; those that are killed are
 * processes. test_tcp_peers.c is about others that connect or have the port. The other programs of tests/comm run over
 * TCP as well (TG_WORLD_TCP). */
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "comm/tcp_ranks.h"

/* ---- Meeting ---- */

static void transport_is_tcp(rank *r, tg_ctx *ctx, tg_comm *c) {
    ck_assert_str_eq(tg_comm_transport(c), "tcp");
    ck_assert_int_eq(tg_comm_rank(c), r->opts.rank);
    sums(r, ctx, c);
}

START_TEST(ranks_meet_in_any_order_and_by_any_name_of_this_node) {
    static const char *const hosts[] = {"127.0.0.1", "localhost", "::1"};
    for (int h = 0; h < 3; h++) {
        rank ranks[RANKS];
        plan(ranks, RANKS, free_port(), 60);
        for (int i = 0; i < RANKS; i++) {
            ranks[i].opts.host = hosts[h];
            ranks[i].fn = transport_is_tcp;
        }
        start(ranks, RANKS, ALL & ~1u);
        pause_for(0.1);
        start(ranks, RANKS, 1);
        join(ranks, RANKS, ALL);
        expect_all(ranks, RANKS);
    }
}
END_TEST

/* No rank listens any more, on any port of the run. */
static void port_is_closed(rank *r, tg_ctx *ctx, tg_comm *c) {
    tg_comm_barrier(c);
    int fd = connect_to_port(r->opts.port);
    if (fd >= 0) tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the port is still open");
    r->result = r->opts.ranks;
}

START_TEST(no_rank_listens_once_all_have_met) {
    rank ranks[RANKS];
    plan(ranks, RANKS, free_port(), 60);
    for (int i = 0; i < RANKS; i++) ranks[i].fn = port_is_closed;
    start(ranks, RANKS, ALL);
    join(ranks, RANKS, ALL);
    expect_all(ranks, RANKS);
}
END_TEST

/* ---- Ranks that do not come ---- */

START_TEST(all_name_the_ranks_that_have_not_come) {
    rank ranks[RANKS];
    plan(ranks, RANKS, free_port(), 3);
    start(ranks, RANKS, 1u | 2u);
    join(ranks, RANKS, 1u | 2u);
    for (int i = 0; i < 2; i++)
        expect(&ranks[i], TG_ERR_TIMEOUT,
               "tg_comm_tcp_new: ranks 2, 3 of 4 have not connected to \"127.0.0.1\", port ");
    plan(ranks, RANKS, free_port(), 3);
    start(ranks, RANKS, ALL & ~4u);
    join(ranks, RANKS, ALL & ~4u);
    for (int i = 0; i < RANKS; i++)
        if (i != 2) expect(&ranks[i], TG_ERR_TIMEOUT, "rank 2 of 4 has not connected to \"127.0.0.1\", port ");
    expect(&ranks[0], TG_ERR_TIMEOUT, "within the deadline of 3 s; see what it has printed");
}
END_TEST

START_TEST(all_report_that_rank_0_has_not_come) {
    rank ranks[RANKS];
    char place[64];
    int port = free_port();
    plan(ranks, RANKS, port, 2);
    start(ranks, RANKS, ALL & ~1u);
    join(ranks, RANKS, ALL & ~1u);
    snprintf(place, sizeof place, "at \"127.0.0.1\", port %d to %d (connection refused)", port, port + 7);
    for (int i = 1; i < RANKS; i++) {
        expect(&ranks[i], TG_ERR_TIMEOUT, "rank 0 has not been reached within the deadline of 2 s");
        expect(&ranks[i], TG_ERR_TIMEOUT, place);
    }
}
END_TEST

START_TEST(a_host_without_an_address_is_refused) {
    rank ranks[2];
    plan(ranks, 2, free_port(), 5);
    for (int i = 0; i < 2; i++) ranks[i].opts.host = "no such host.invalid";
    start(ranks, 2, 3);
    join(ranks, 2, 3);
    for (int i = 0; i < 2; i++)
        expect(&ranks[i], TG_ERR_IO, "host \"no such host.invalid\", where rank 0 is, has no address: ");
}
END_TEST

/* ---- Ranks that disagree ---- */

START_TEST(two_processes_of_one_rank_are_refused) {
    rank ranks[RANKS];
    plan(ranks, RANKS, free_port(), 20);
    ranks[2].opts.rank = 1;
    start(ranks, RANKS, ALL & ~8u);
    join(ranks, RANKS, ALL & ~8u);
    expect(&ranks[0], TG_ERR_STATE,
           "two processes say that they are rank 1 of this run; give each rank its own number");
}
END_TEST

START_TEST(ranks_of_another_number_are_refused) {
    rank ranks[2];
    plan(ranks, 2, free_port(), 20);
    ranks[1].opts.ranks = 3;
    start(ranks, 2, 3);
    join(ranks, 2, 3);
    expect(&ranks[0], TG_ERR_STATE,
           "rank 1 was started as one of 3 ranks, but rank 0 as one of 2; start all ranks with");
    expect(&ranks[1], TG_ERR_STATE,
           "rank 0 was started as one of 2 ranks, but rank 1 as one of 3; start all ranks with");
}
END_TEST

/* Two runs whose ports overlap do not mix. */
START_TEST(runs_of_different_names_do_not_meet) {
    rank one[2], other[2];
    int port = free_port();
    plan(one, 2, port, 30);
    plan(other, 2, port, 30);
    for (int i = 0; i < 2; i++) {
        other[i].opts.job = "another test";
        one[i].fn = other[i].fn = sums;
    }
    start(one, 2, 3);
    start(other, 2, 3);
    join(one, 2, 3);
    join(other, 2, 3);
    expect_all(one, 2);
    expect_all(other, 2);
}
END_TEST

/* ---- Ranks that are processes ---- */

/* A rank that is a process of its own. Its result goes to the pipe. */
static pid_t fork_rank(rank *r, int to) {
    pid_t pid = fork();
    if (pid) return pid;
    run_rank(r);
    r->thread = 0;
    if (write(to, r, sizeof *r) != sizeof *r) _exit(1);
    _exit(0);
}

/* The first communicator uses the memory of the node, and the second one the network. */
static void creates_another(rank *r, tg_ctx *ctx, tg_comm *c) {
    tg_tcp_opts again = r->opts;
    again.job = "another test";
    tg_comm *second = tg_comm_tcp_new(ctx, &again);
    sums(r, ctx, second);
    if (strcmp(tg_comm_transport(c), "shm") || strcmp(tg_comm_transport(second), "tcp")) r->result = 0;
    tg_comm_free(second);
}

START_TEST(a_context_may_have_two_communicators_of_one_node) {
    rank ranks[2];
    int ends[2];
    pid_t pid[2];
    setenv("TG_MPI_NODES", "1", 1);
    ck_assert_int_eq(pipe(ends), 0);
    plan(ranks, 2, free_port(), 20);
    for (int i = 0; i < 2; i++) {
        ranks[i].fn = creates_another;
        pid[i] = fork_rank(&ranks[i], ends[1]);
    }
    setenv("TG_MPI_NODES", "4", 1);
    for (int i = 0; i < 2; i++) ck_assert(read(ends[0], &ranks[i], sizeof *ranks) == (ssize_t)sizeof *ranks);
    expect_all(ranks, 2);
    close(ends[0]), close(ends[1]);
    for (int i = 0; i < 2; i++) waitpid(pid[i], NULL, 0);
}
END_TEST

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void is_killed_or_goes_on(rank *r, tg_ctx *ctx, tg_comm *c) {
    enum { VICTIM = 2 };
    tg_tensor *x = ones(ctx, 100000);
    double two[2] = {0, 0};
    tg_comm_barrier(c);
    double begun = seconds_now();
    if (r->opts.rank == VICTIM) kill(getpid(), SIGKILL);
    for (int i = 0; i < 100 && tg_ctx_status(ctx) == TG_OK; i++)
        tg_work_wait(tg_comm_all_reduce(c, x, x, TG_REDUCE_MAX));
    note(r, ctx);
    if (seconds_now() - begun > 10) return; /* not before the deadline */
    tg_ctx_clear(ctx);
    if (tg_comm_recover(c) != TG_OK) return;
    tg_tensor *y = ones(ctx, 2);
    tg_comm_all_reduce(c, y, y, TG_REDUCE_SUM);
    tg_read_f64(y, two, 2);
    r->result = two[0] + 10 * tg_comm_size(c);
    if (tg_ctx_status(ctx) == TG_OK) tg_ctx_fail(ctx, r->status, "%s", r->message); /* what run_rank notes */
}

START_TEST(a_killed_rank_is_named_and_the_others_recover) {
    rank ranks[RANKS];
    int ends[2], seen = 0;
    pid_t pid[RANKS];
    char text[160];
    ck_assert_int_eq(pipe(ends), 0);
    plan(ranks, RANKS, free_port(), 20);
    for (int i = 0; i < RANKS; i++) {
        ranks[i].fn = is_killed_or_goes_on;
        pid[i] = fork_rank(&ranks[i], ends[1]);
    }
    close(ends[1]);
    snprintf(text, sizeof text, "the process of rank 2 (pid %d) has ended unexpectedly; its last call was ",
             (int)pid[2]);
    for (rank r; read(ends[0], &r, sizeof r) == (ssize_t)sizeof r; seen++) {
        expect(&r, TG_ERR_REMOTE, text);
        ck_assert(r.result == 3 + 10 * 3);
    }
    ck_assert_int_eq(seen, RANKS - 1);
    close(ends[0]);
    for (int i = 0; i < RANKS; i++) waitpid(pid[i], NULL, 0);
}
END_TEST

/* Rank 0 joins the recovery, and is killed while it waits for rank 2. */
static void is_killed_in_recovery(rank *r, tg_ctx *ctx, tg_comm *c) {
    tg_comm_barrier(c);
    double begun = seconds_now();
    signal(SIGALRM, SIG_DFL); /* Check's handler would end all ranks */
    if (r->opts.rank == 0) alarm(1);
    if (r->opts.rank == 2) pause_for(2);
    tg_comm_recover(c);
    note(r, ctx);
    r->result = seconds_now() - begun < 10;
}

START_TEST(a_rank_killed_in_recovery_is_named) {
    rank ranks[3];
    int ends[2], seen = 0;
    pid_t pid[3];
    ck_assert_int_eq(pipe(ends), 0);
    plan(ranks, 3, free_port(), 20);
    for (int i = 0; i < 3; i++) {
        ranks[i].fn = is_killed_in_recovery;
        pid[i] = fork_rank(&ranks[i], ends[1]);
    }
    close(ends[1]);
    for (rank r; read(ends[0], &r, sizeof r) == (ssize_t)sizeof r; seen++) {
        expect(&r, TG_ERR_REMOTE,
               "tg_comm_recover: rank 0, which was to choose the members of the new group, has called it too, but then "
               "its process has ended");
        ck_assert(r.result == 1);
    }
    ck_assert_int_eq(seen, 2);
    close(ends[0]);
    for (int i = 0; i < 3; i++) waitpid(pid[i], NULL, 0);
}
END_TEST

/* ---- Memory ---- */

typedef struct counted_memory {
    atomic_int live, made;
    int fails_at; /* the number of the allocation that fails; 0: none */
} counted_memory;

static void *counted_alloc(void *user, size_t bytes, size_t align) {
    counted_memory *m = user;
    if (++m->made == m->fails_at) return NULL;
    void *p = aligned_alloc(align, (bytes + align - 1) / align * align);
    if (p) m->live++;
    return p;
}

static void counted_free(void *user, void *p, size_t bytes) {
    (void)bytes;
    ((counted_memory *)user)->live -= p != NULL;
    free(p);
}

typedef struct frugal_rank {
    tg_tcp_opts opts;
    double deadline;
    int fails_at; /* number of the allocation of tg_comm_tcp_new that fails; 0: none */
    bool reached; /* it made so many */
    counted_memory memory;
    tg_status status;
} frugal_rank;

static void *run_frugal(void *user) {
    frugal_rank *r = user;
    tg_ctx *ctx = tg_ctx_new(
        TG_CONFIG(.threads = 1, .deadline = r->deadline, .allocator = {counted_alloc, counted_free, &r->memory}));
    if (r->fails_at) r->memory.fails_at = r->memory.made + r->fails_at;
    tg_comm *c = tg_comm_tcp_new(ctx, &r->opts);
    r->reached = r->fails_at && r->memory.made >= r->memory.fails_at;
    r->memory.fails_at = 0;
    r->status = tg_ctx_status(ctx);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

/* Runs two ranks, in one of which an allocation fails. Returns whether it was reached. */
static bool fails_at(int rank, int allocation, double deadline) {
    frugal_rank ranks[2];
    pthread_t thread[2];
    int port = free_port();
    for (int i = 0; i < 2; i++) {
        ranks[i] = (frugal_rank){.opts = *TG_TCP(.rank = i, .ranks = 2, .host = "127.0.0.1", .port = port, .ports = 8),
                                 .deadline = deadline,
                                 .fails_at = i == rank ? allocation : 0};
        pthread_create(&thread[i], NULL, run_frugal, &ranks[i]);
    }
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(ranks[i].memory.live == 0, "rank %d leaks when allocation %d of rank %d fails", i, allocation,
                      rank);
    if (ranks[rank].reached) ck_assert_int_eq(ranks[rank].status, TG_ERR_MEMORY);
    if (!allocation) ck_assert_int_eq(ranks[rank].status, TG_OK);
    return ranks[rank].reached;
}

START_TEST(an_allocation_that_fails_is_an_error_and_leaks_nothing) {
    int step = getenv("TG_TEST_QUICK") ? 3 : 1;
    for (int rank = 0; rank < 2; rank++) {
        int at = 1;
        while (fails_at(rank, at, 1)) at += step;
        ck_assert_int_gt(at, 5);
        ck_assert(!fails_at(rank, 0, 60));
    }
}
END_TEST

int main(void) {
    setenv("TG_MPI_NODES", "4", 1); /* a node for each rank */
    const TTest *const tests[] = {
        a_context_may_have_two_communicators_of_one_node, /* the first three fork before there are threads */
        a_killed_rank_is_named_and_the_others_recover,
        a_rank_killed_in_recovery_is_named,
        ranks_meet_in_any_order_and_by_any_name_of_this_node,
        no_rank_listens_once_all_have_met,
        all_name_the_ranks_that_have_not_come,
        all_report_that_rank_0_has_not_come,
        a_host_without_an_address_is_refused,
        two_processes_of_one_rank_are_refused,
        ranks_of_another_number_are_refused,
        runs_of_different_names_do_not_meet,
        an_allocation_that_fails_is_an_error_and_leaks_nothing,
    };
    return tg_check_main("tcp", tests, sizeof tests / sizeof *tests);
}
