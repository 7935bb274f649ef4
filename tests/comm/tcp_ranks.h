/* Ranks over TCP that are threads, for tests of how they meet. */
#ifndef TG_TEST_TCP_RANKS_H
#define TG_TEST_TCP_RANKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check_main.h"
#include "comm/ports.h"

enum { RANKS = 4 };

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

static inline void note(rank *r, const tg_ctx *ctx) {
    r->status = tg_ctx_status(ctx);
    snprintf(r->message, sizeof r->message, "%s", tg_ctx_message(ctx));
}

static inline void *run_rank(void *user) {
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
static inline void plan(rank *ranks, int n, int port, double deadline) {
    for (int i = 0; i < n; i++)
        ranks[i] = (rank){.opts = *TG_TCP(.rank = i, .ranks = n, .host = "127.0.0.1", .port = port, .ports = 8,
                                          .job = "a test", .one_node = true),
                          .deadline = deadline};
}

/* Starts those whose bit is set in `who`. */
static inline void start(rank *ranks, int n, unsigned who) {
    for (int i = 0; i < n; i++)
        if (who >> i & 1) ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
}

static inline void join(rank *ranks, int n, unsigned who) {
    for (int i = 0; i < n; i++)
        if (who >> i & 1) pthread_join(ranks[i].thread, NULL);
}

enum { ALL = (1 << RANKS) - 1 }; /* of `who`: all ranks */

static inline tg_tensor *ones(tg_ctx *ctx, int64_t n) {
    double *v = malloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = 1;
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(n), v);
    free(v);
    return x;
}

static inline void sums(rank *r, tg_ctx *ctx, tg_comm *c) {
    enum { LONG = 100000 }; /* several pieces */
    tg_tensor *x = ones(ctx, LONG);
    double sum = 0;
    tg_comm_all_reduce(c, x, x, TG_REDUCE_SUM);
    const double *v = tg_host_data(x);
    for (int i = 0; v && i < LONG; i++) sum += v[i];
    r->result = sum / LONG;
}

static inline void expect_all(const rank *ranks, int n) {
    for (int i = 0; i < n; i++) {
        ck_assert_msg(ranks[i].status == TG_OK, "rank %d: %s: %s", i, tg_status_name(ranks[i].status),
                      ranks[i].message);
        ck_assert(ranks[i].result == n);
    }
}

static inline void expect(const rank *r, tg_status status, const char *text) {
    ck_assert_msg(r->status == status && strstr(r->message, text), "rank %d: %s: %s\nexpected %s: %s", r->opts.rank,
                  tg_status_name(r->status), r->message, tg_status_name(status), text);
}

static inline void pause_for(double seconds) {
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))},
        NULL);
}

#endif
