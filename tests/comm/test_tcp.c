/* Ranks over TCP: how they meet, who is missing, strangers that connect or have the port, and ranks that end. The ranks
 * are threads; those that are killed are processes. tests/comm's other programs run over TCP as well (TG_WORLD_TCP). */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "check_main.h"
#include "comm/ports.h"
#include "comm/tcp/meet.h"
#include "base/hash.h"

enum { RANKS = 4 };

/* ---- Ranks ---- */

/* One rank: its options, what it does, and how it ended. */
typedef struct rank {
    tg_tcp_opts opts;
    double deadline;
    void (*fn)(struct rank *r, tg_ctx *ctx, tg_comm *c);
    tg_status status;
    char message[1200];
    double result;
    pthread_t thread;
} rank;

static void note(rank *r, const tg_ctx *ctx) {
    r->status = tg_ctx_status(ctx);
    snprintf(r->message, sizeof r->message, "%s", tg_ctx_message(ctx));
}

static void *run_rank(void *user) {
    rank *r = user;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = r->deadline));
    tg_comm *c = tg_comm_tcp_new(ctx, &r->opts);
    if (r->fn && tg_ctx_status(ctx) == TG_OK) r->fn(r, ctx, c);
    note(r, ctx);
    tg_comm_free(c);
    tg_ctx_free(ctx);
    return NULL;
}

/* Fills the ranks of a run that meets on the port. */
static void plan(rank *ranks, int n, int port, double deadline) {
    for (int i = 0; i < n; i++)
        ranks[i] = (rank){.opts = *TG_TCP(.rank = i, .ranks = n, .host = "127.0.0.1", .port = port, .ports = 8,
                                          .job = "a test", .one_node = true),
                          .deadline = deadline};
}

/* Starts those whose bit is set in `who`. */
static void start(rank *ranks, int n, unsigned who) {
    for (int i = 0; i < n; i++)
        if (who >> i & 1) ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
}

static void join(rank *ranks, int n, unsigned who) {
    for (int i = 0; i < n; i++)
        if (who >> i & 1) pthread_join(ranks[i].thread, NULL);
}

static const unsigned all = (1u << RANKS) - 1;

static tg_tensor *ones(tg_ctx *ctx, int64_t n) {
    double *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = 1;
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(n), v);
    free(v);
    return x;
}

static void sums(rank *r, tg_ctx *ctx, tg_comm *c) {
    enum { LONG = 100000 }; /* several pieces */
    tg_tensor *x = ones(ctx, LONG);
    double sum = 0;
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    const double *v = tg_host_data(x);
    for (int i = 0; v && i < LONG; i++) sum += v[i];
    r->result = sum / LONG;
}

static void expect_all(const rank *ranks, int n) {
    for (int i = 0; i < n; i++) {
        ck_assert_msg(ranks[i].status == TG_OK, "rank %d: %s: %s", i, tg_status_name(ranks[i].status),
                      ranks[i].message);
        ck_assert(ranks[i].result == n);
    }
}

static void expect(const rank *r, tg_status status, const char *text) {
    ck_assert_msg(r->status == status && strstr(r->message, text), "rank %d: %s: %s\nexpected %s: %s", r->opts.rank,
                  tg_status_name(r->status), r->message, tg_status_name(status), text);
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void pause_for(double seconds) {
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))},
        NULL);
}

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
        start(ranks, RANKS, all & ~1u);
        pause_for(0.1);
        start(ranks, RANKS, 1);
        join(ranks, RANKS, all);
        expect_all(ranks, RANKS);
    }
}
END_TEST

/* Nobody listens any more, on any port of the run. */
static void port_is_closed(rank *r, tg_ctx *ctx, tg_comm *c) {
    tg_comm_barrier(c);
    int fd = connect_to_port(r->opts.port);
    if (fd >= 0) tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the port is still open");
    r->result = r->opts.ranks;
}

START_TEST(nobody_listens_once_all_have_met) {
    rank ranks[RANKS];
    plan(ranks, RANKS, free_port(), 60);
    for (int i = 0; i < RANKS; i++) ranks[i].fn = port_is_closed;
    start(ranks, RANKS, all);
    join(ranks, RANKS, all);
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
        expect(&ranks[i], TG_ERR_TIMEOUT, "tg_comm_tcp_new: ranks 2, 3 of 4 have not come to \"127.0.0.1\", port ");
    plan(ranks, RANKS, free_port(), 3);
    start(ranks, RANKS, all & ~4u);
    join(ranks, RANKS, all & ~4u);
    for (int i = 0; i < RANKS; i++)
        if (i != 2) expect(&ranks[i], TG_ERR_TIMEOUT, "rank 2 of 4 has not come to \"127.0.0.1\", port ");
    expect(&ranks[0], TG_ERR_TIMEOUT, "within the deadline of 3 s; see what they have printed");
}
END_TEST

START_TEST(all_report_that_rank_0_has_not_come) {
    rank ranks[RANKS];
    char place[64];
    int port = free_port();
    plan(ranks, RANKS, port, 2);
    start(ranks, RANKS, all & ~1u);
    join(ranks, RANKS, all & ~1u);
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
    start(ranks, RANKS, all & ~8u);
    join(ranks, RANKS, all & ~8u);
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

/* ---- Ports in use, and strangers ---- */

START_TEST(a_port_in_use_is_reported) {
    rank ranks[2];
    char text[128];
    int port, fd = listen_somewhere(&port);
    plan(ranks, 2, port, 5);
    ranks[0].opts.ports = 1;
    start(ranks, 2, 1);
    join(ranks, 2, 1);
    snprintf(text, sizeof text, "rank 0 cannot listen on port %d of \"127.0.0.1\": address already in use; choose",
             port);
    expect(&ranks[0], TG_ERR_STATE, text);
    close(fd);
}
END_TEST

static atomic_bool stop;

/* Another service that has the first port. `arg` is its socket: it accepts, and says something that is no greeting. */
static void *serve_strangely(void *arg) {
    char noise[256];
    int fd = *(int *)arg;
    memset(noise, 'x', sizeof noise);
    while (!atomic_load(&stop)) {
        int client = accept(fd, NULL, NULL);
        if (client < 0) {
            pause_for(0.005);
            continue;
        }
        if (write(client, noise, sizeof noise) > 0 && read(client, noise, sizeof noise) > 0)
            abort(); /* no byte to it */
        close(client);
    }
    return NULL;
}

START_TEST(ranks_find_each_other_past_a_port_in_use) {
    rank ranks[RANKS];
    pthread_t service;
    int port, fd = listen_somewhere(&port);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    atomic_store(&stop, false);
    pthread_create(&service, NULL, serve_strangely, &fd);
    plan(ranks, RANKS, port, 60);
    for (int i = 0; i < RANKS; i++) ranks[i].fn = sums;
    start(ranks, RANKS, all);
    join(ranks, RANKS, all);
    atomic_store(&stop, true);
    pthread_join(service, NULL);
    close(fd);
    expect_all(ranks, RANKS);
}
END_TEST

/* Bytes that a stranger sends: none, a part of a greeting, noise, a greeting of another run, and a greeting with noise
 * after it. */
static size_t strange_bytes(int kind, char *bytes, size_t n) {
    tg_tcp_greeting g = {.magic = {'t', 'a', 'p', 'e', 'g', 'r', 'a', 'd'}, .version = 1, .ranks = RANKS, .rank = 1};
    memset(bytes, 0xA5, n);
    memcpy(bytes, &g, kind == 2 ? 0 : sizeof g);
    return kind == 0 ? 0 : kind == 1 ? 5 : kind == 3 ? sizeof g : n;
}

static void *intrude(void *arg) {
    enum { KINDS = 5, LONG = 4096 };
    char bytes[LONG];
    int port = *(int *)arg, fd[200], n = 0;
    for (int i = 0; n < 200 && !atomic_load(&stop); i++) {
        fd[n] = connect_to_port(port);
        if (fd[n] < 0) {
            pause_for(0.001);
            continue;
        }
        size_t length = strange_bytes(i % KINDS, bytes, sizeof bytes);
        if (length && send(fd[n], bytes, length, MSG_NOSIGNAL) < 0) pause_for(0.001);
        if (i % 3)
            n++;
        else
            close(fd[n]);
    }
    while (!atomic_load(&stop)) pause_for(0.005);
    while (n) close(fd[--n]);
    return NULL;
}

/* They come before the ranks, between them, and more of them than rank 0 keeps waiting. */
START_TEST(strangers_neither_stop_nor_end_the_meeting) {
    rank ranks[RANKS];
    pthread_t stranger;
    int port = free_port();
    plan(ranks, RANKS, port, 60);
    for (int i = 0; i < RANKS; i++) ranks[i].fn = sums;
    atomic_store(&stop, false);
    pthread_create(&stranger, NULL, intrude, &port);
    start(ranks, RANKS, 1);
    pause_for(0.3);
    start(ranks, RANKS, all & ~1u);
    join(ranks, RANKS, all);
    atomic_store(&stop, true);
    pthread_join(stranger, NULL);
    expect_all(ranks, RANKS);
}
END_TEST

/* ---- A peer that breaks the rules ---- */

/* Plays rank 1 of 2 by hand, then sends a message whose head is wrong. */
static void *play_rank_1(void *arg) {
    int port = *(int *)arg, fd;
    tg_tcp_greeting g;
    char news[4096];
    const tg_tcp_head wrong = {.bytes = 0xFFFFFFFF, .tag = 7};
    while ((fd = connect_to_port(port)) < 0) pause_for(0.005);
    if (recv(fd, &g, sizeof g, MSG_WAITALL) != sizeof g) abort();
    g.rank = 1;
    if (send(fd, &g, sizeof g, MSG_NOSIGNAL) != sizeof g || recv(fd, news, sizeof news, 0) < 1) abort();
    if (send(fd, &wrong, sizeof wrong, MSG_NOSIGNAL) != sizeof wrong) abort();
    while (recv(fd, news, sizeof news, 0) > 0) continue;
    close(fd);
    return NULL;
}

/* Plays rank 0 by hand: ends the first connection after the greetings, and then answers, or listens no more. */
typedef struct played_rank_0 {
    int fd;
    bool answers;
} played_rank_0;

static int greet_as_rank_0(int fd) {
    tg_tcp_greeting g = {.magic = {'t', 'a', 'p', 'e', 'g', 'r', 'a', 'd'}, .version = 1, .ranks = 2};
    int client = accept(fd, NULL, NULL);
    g.job = tg_hash_bytes(TG_HASH_START, "a test", 6);
    if (send(client, &g, sizeof g, MSG_NOSIGNAL) != sizeof g) abort();
    if (recv(client, &g, sizeof g, MSG_WAITALL) != sizeof g || g.rank != 1) abort();
    return client;
}

static void *play_rank_0(void *arg) {
    const played_rank_0 *p = arg;
    tg_tcp_news news = {TG_ERR_STATE, "rank 0 speaks"};
    int client = greet_as_rank_0(p->fd);
    if (!p->answers) close(p->fd);
    close(client);
    if (!p->answers) return NULL;
    client = greet_as_rank_0(p->fd);
    if (send(client, &news, sizeof news, MSG_NOSIGNAL) != sizeof news) abort();
    while (recv(client, news.text, sizeof news.text, 0) > 0) continue;
    close(client);
    close(p->fd);
    return NULL;
}

/* Rank 0 turns the one away that has waited longest if too many strangers come. */
START_TEST(a_rank_that_is_turned_away_comes_again) {
    for (int answers = 0; answers < 2; answers++) {
        rank ranks[2];
        pthread_t player;
        int port;
        played_rank_0 p = {.answers = answers};
        p.fd = listen_somewhere(&port);
        plan(ranks, 2, port, 20);
        pthread_create(&player, NULL, play_rank_0, &p);
        start(ranks, 2, 2);
        join(ranks, 2, 2);
        pthread_join(player, NULL);
        if (answers)
            expect(&ranks[1], TG_ERR_STATE, "rank 0 speaks");
        else
            expect(&ranks[1], TG_ERR_REMOTE, "tg_comm_tcp_new: rank 0 has ended before it sent the list of ranks");
    }
}
END_TEST

/* ---- A peer that has ended ---- */

static void count_completed(void *token, size_t bytes) { *(int *)token += bytes == 4; }

static int polled(tg_tcp_layer *l, const int *completed, int wanted) {
    for (int i = 0; i < 20000 && *completed < wanted; i++) {
        tg_tcp_ops.poll(l, count_completed);
        if (*completed < wanted) pause_for(0.001);
    }
    return *completed;
}

/* Rank 1 sends three messages and ends. Rank 0 receives them one by one. */
static void *meets_by_hand(void *arg) {
    enum { MESSAGES = 3, TAG = 0, ANY = -1 };
    rank *r = arg;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .deadline = 60));
    tg_tcp_layer *l = tg_tcp_layer_new(ctx, r->opts.rank, 2);
    char data[4] = "abc";
    int completed = 0;
    r->status = tg_tcp_meet(l, &r->opts);
    for (int i = 0; r->opts.rank && i < MESSAGES; i++) tg_tcp_ops.send(l, data, sizeof data, 0, TAG, &completed);
    while (!r->opts.rank && !l->error[1]) tg_tcp_ops.poll(l, count_completed);
    for (int i = 0; !r->opts.rank && i < MESSAGES; i++) {
        r->result += tg_tcp_ops.lost(l, 1) == NULL;
        tg_tcp_ops.receive(l, data, sizeof data, ANY, TAG, &completed);
        r->result += tg_tcp_ops.lost(l, 1) == NULL;
        r->result += polled(l, &completed, i + 1) == i + 1;
    }
    if (!r->opts.rank) r->result += tg_tcp_ops.lost(l, 1) && !*tg_tcp_ops.lost(l, 1);
    tg_tcp_ops.close(l, true, count_completed);
    tg_ctx_free(ctx);
    return NULL;
}

START_TEST(a_rank_is_not_lost_before_its_last_message_has_been_read) {
    rank ranks[2];
    plan(ranks, 2, free_port(), 60);
    for (int i = 0; i < 2; i++) pthread_create(&ranks[i].thread, NULL, meets_by_hand, &ranks[i]);
    join(ranks, 2, 3);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(ranks[i].status, TG_OK);
    ck_assert_int_eq((int)ranks[0].result, 3 * 3 + 1);
}
END_TEST

START_TEST(a_message_of_impossible_length_ends_the_connection) {
    rank ranks[2];
    pthread_t player;
    int port = free_port();
    plan(ranks, 2, port, 20);
    pthread_create(&player, NULL, play_rank_1, &port);
    start(ranks, 2, 1);
    join(ranks, 2, 1);
    pthread_join(player, NULL);
    expect(&ranks[0], TG_ERR_REMOTE, "the process of rank 1 (pid 0) cannot be reached any more (protocol error); ");
}
END_TEST

/* ---- Ranks that are killed ---- */

/* A rank that is a process of its own. Its result goes to the pipe. */
static pid_t fork_rank(rank *r, int to) {
    pid_t pid = fork();
    if (pid) return pid;
    run_rank(r);
    r->thread = 0;
    if (write(to, r, sizeof *r) != sizeof *r) _exit(1);
    _exit(0);
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
        a_killed_rank_is_named_and_the_others_recover, /* before there are threads */
        ranks_meet_in_any_order_and_by_any_name_of_this_node,
        nobody_listens_once_all_have_met,
        all_name_the_ranks_that_have_not_come,
        all_report_that_rank_0_has_not_come,
        a_host_without_an_address_is_refused,
        two_processes_of_one_rank_are_refused,
        ranks_of_another_number_are_refused,
        runs_of_different_names_do_not_meet,
        a_port_in_use_is_reported,
        ranks_find_each_other_past_a_port_in_use,
        strangers_neither_stop_nor_end_the_meeting,
        a_message_of_impossible_length_ends_the_connection,
        a_rank_that_is_turned_away_comes_again,
        a_rank_is_not_lost_before_its_last_message_has_been_read,
        an_allocation_that_fails_is_an_error_and_leaks_nothing,
    };
    return tg_check_main("tcp", tests, sizeof tests / sizeof *tests);
}
