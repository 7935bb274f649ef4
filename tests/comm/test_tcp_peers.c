/* Ranks over TCP and others that connect with them or have their port: strangers, and peers that are played by hand. */
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "base/hash.h"
#include "comm/tcp/meet.h"
#include "comm/tcp_ranks.h"

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

/* Returns the first port on which processes without privileges may listen. */
static int first_free_port(void) {
    int port = 1024;
    FILE *f = fopen("/proc/sys/net/ipv4/ip_unprivileged_port_start", "r");
    if (f && fscanf(f, "%d", &port) != 1) port = 1024;
    if (f) fclose(f);
    return port;
}

/* A port below 1024 is refused to a user without privileges, so the ports after it are not tried, and not named. */
START_TEST(only_ports_that_were_tried_are_named) {
    enum { PORT = 80, PASSED = 0, FAILED = 1, SKIPPED = 2 };
    int status = 0;
    if (first_free_port() <= PORT) return;
    pid_t child = fork();
    if (child == 0) {
        rank r;
        if (geteuid() == 0 && setuid(65534) != 0) _exit(SKIPPED);
        plan(&r, 1, PORT, 5);
        r.opts.ranks = 2;
        run_rank(&r);
        bool said = strstr(r.message, "rank 0 cannot listen on port 80 of \"127.0.0.1\": permission denied; choose");
        _exit(r.status == TG_ERR_IO && said ? PASSED : FAILED);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) != FAILED);
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
    start(ranks, RANKS, ALL);
    join(ranks, RANKS, ALL);
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
    start(ranks, RANKS, ALL & ~1u);
    join(ranks, RANKS, ALL);
    atomic_store(&stop, true);
    pthread_join(stranger, NULL);
    expect_all(ranks, RANKS);
}
END_TEST

/* ---- Peers that are played by hand ---- */

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

/* Plays rank 0 by hand: ends the first connection after the greetings, and then answers, or listens no more. */
typedef struct played_rank_0 {
    int fd;
    bool answers;
} played_rank_0;

/* Accepts the last of the ranks. */
static int greet_as_rank_0(int fd, uint32_t ranks) {
    tg_tcp_greeting g = {.magic = {'t', 'a', 'p', 'e', 'g', 'r', 'a', 'd'}, .version = 1, .ranks = ranks};
    int client = accept(fd, NULL, NULL);
    g.job = tg_hash_bytes(TG_HASH_START, "a test", 6);
    if (send(client, &g, sizeof g, MSG_NOSIGNAL) != sizeof g) abort();
    if (recv(client, &g, sizeof g, MSG_WAITALL) != sizeof g || g.rank != ranks - 1) abort();
    return client;
}

static void *play_rank_0(void *arg) {
    const played_rank_0 *p = arg;
    tg_tcp_news news = {TG_ERR_STATE, "rank 0 speaks"};
    int client = greet_as_rank_0(p->fd, 2);
    if (!p->answers) close(p->fd);
    close(client);
    if (!p->answers) return NULL;
    client = greet_as_rank_0(p->fd, 2);
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

/* Rank 0 of three, which says that rank 1 listens on a port on which no process does. */
static void *send_a_dead_address(void *arg) {
    const int fd = *(int *)arg;
    struct sockaddr_in dead = loopback(free_port());
    tg_tcp_news news = {TG_OK, ""};
    tg_tcp_address list[3] = {0};
    tg_tcp_pack((struct sockaddr *)&dead, ntohs(dead.sin_port), &list[1]);
    int client = greet_as_rank_0(fd, 3);
    if (send(client, &news, sizeof news, MSG_NOSIGNAL) != sizeof news) abort();
    if (send(client, list, sizeof list, MSG_NOSIGNAL) != sizeof list) abort();
    while (recv(client, news.text, sizeof news.text, 0) > 0) continue;
    close(client);
    close(fd);
    return NULL;
}

START_TEST(a_rank_that_cannot_be_reached_is_not_said_to_have_ended) {
    rank ranks[3];
    pthread_t player;
    int port, fd = listen_somewhere(&port);
    plan(ranks, 3, port, 20);
    pthread_create(&player, NULL, send_a_dead_address, &fd);
    start(ranks, 3, 4);
    join(ranks, 3, 4);
    pthread_join(player, NULL);
    expect(&ranks[2], TG_ERR_REMOTE,
           "tg_comm_tcp_new: rank 2 cannot connect with rank 1 (connection refused); see whether rank 1 has ended");
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

int main(void) {
    setenv("TG_MPI_NODES", "4", 1); /* a node for each rank */
    const TTest *const tests[] = {
        a_port_in_use_is_reported,
        only_ports_that_were_tried_are_named,
        ranks_find_each_other_past_a_port_in_use,
        strangers_neither_stop_nor_end_the_meeting,
        a_message_of_impossible_length_ends_the_connection,
        a_rank_that_is_turned_away_comes_again,
        a_rank_that_cannot_be_reached_is_not_said_to_have_ended,
        a_rank_is_not_lost_before_its_last_message_has_been_read,
    };
    return tg_check_main("tcp_peers", tests, sizeof tests / sizeof *tests);
}
