/* The thread pool by itself: coverage of ranges, memory order, nesting, sleep, fork, signals, and threads that cannot
 * start. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check_main.h"
#include "core/context.h"
#include "base/threads/thread_pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(TG_MEMCHECK)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { MOST = 1000 };

typedef struct job {
    tg_pool *pool;
    int seen[MOST];
    int64_t begin_of[MOST];
    pthread_t lead;
    atomic_int elsewhere, unblocked, nested;
} job;

static tg_ctx *ctx_new(void) {
    return tg_ctx_new(TG_CONFIG(.threads = 1));
}

static void mark(void *arg, int64_t begin, int64_t end) {
    job *j = arg;
    for (int64_t i = begin; i < end; i++) {
        j->seen[i]++;
        j->begin_of[i] = begin;
    }
}

START_TEST(every_index_runs_once_in_the_same_parts) {
    static const int64_t counts[] = {-1, 0, 1, 2, 3, 7, 8, MOST};
    for (int threads = 1; threads <= 8; threads++) {
        tg_ctx *ctx = ctx_new();
        tg_pool *p = tg_pool_new(ctx, threads, "test");
        for (int c = 0; c < TG_LEN(counts); c++) {
            job first = {.pool = p}, again = {.pool = p};
            tg_pool_run(p, counts[c], mark, &first);
            tg_pool_run(p, counts[c], mark, &again);
            for (int64_t i = 0; i < MOST; i++) ck_assert_int_eq(first.seen[i], i < counts[c]);
            ck_assert_mem_eq(first.begin_of, again.begin_of, sizeof first.begin_of);
        }
        tg_pool_free(ctx, p);
        tg_ctx_free(ctx);
    }
}
END_TEST

typedef struct sums {
    int64_t part[64];
} sums;

static void add_up(void *arg, int64_t begin, int64_t end) {
    sums *s = arg;
    for (int64_t i = begin; i < end; i++) s->part[i] += i;
}

START_TEST(rounds_follow_each_other_without_a_lost_write) {
    tg_ctx *ctx = ctx_new();
    tg_pool *p = tg_pool_new(ctx, 4, "test");
    sums s = {{0}};
    for (int round = 0; round < 3000; round++) {
        tg_pool_run(p, 64, add_up, &s);
        s.part[round % 64]++;
    }
    for (int64_t i = 0; i < 64; i++) ck_assert_int_eq(s.part[i], 3000 * i + 3000 / 64 + (i < 3000 % 64));
    tg_pool_free(ctx, p);
    tg_ctx_free(ctx);
}
END_TEST

/* Two threads stay awake for less than this if there are as many cores; three may not stay awake at all. */
START_TEST(sleeping_workers_wake) {
    for (int threads = 2; threads <= 3; threads++) {
        tg_ctx *ctx = ctx_new();
        tg_pool *p = tg_pool_new(ctx, threads, "test");
        for (int round = 0; round < 20; round++) {
            job j = {.pool = p};
            tg_pool_run(p, MOST, mark, &j);
            for (int i = 0; i < MOST; i++) ck_assert_int_eq(j.seen[i], 1);
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        }
        tg_pool_free(ctx, p);
        tg_ctx_free(ctx);
    }
}
END_TEST

static void nap(void *arg, int64_t begin, int64_t end) {
    (void)arg;
    if (begin > 0) nanosleep(&(struct timespec){.tv_nsec = (end - begin) * 20000000}, NULL);
}

START_TEST(a_slow_worker_is_waited_for) {
    tg_ctx *ctx = ctx_new();
    tg_pool *p = tg_pool_new(ctx, 2, "test");
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    tg_pool_run(p, 2, nap, NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    ck_assert_int_ge((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec, 20000000);
    tg_pool_free(ctx, p);
    tg_ctx_free(ctx);
}
END_TEST

static void inner(void *arg, int64_t begin, int64_t end) {
    job *j = arg;
    if (begin == 0 && end == 10) atomic_fetch_add(&j->nested, 1);
}

static void outer(void *arg, int64_t begin, int64_t end) {
    job *j = arg;
    for (int64_t i = begin; i < end; i++) tg_pool_run(j->pool, 10, inner, j);
}

START_TEST(a_run_inside_a_body_is_serial) {
    tg_ctx *ctx = ctx_new();
    job j = {.pool = tg_pool_new(ctx, 3, "test")};
    tg_pool_run(j.pool, 30, outer, &j);
    ck_assert_int_eq(atomic_load(&j.nested), 30);
    tg_pool_free(ctx, j.pool);
    tg_ctx_free(ctx);
}
END_TEST

static void look_around(void *arg, int64_t begin, int64_t end) {
    job *j = arg;
    (void)begin;
    (void)end;
    if (pthread_equal(pthread_self(), j->lead)) return;
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    atomic_fetch_add(&j->elsewhere, 1);
    if (!sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGTERM) || !sigismember(&blocked, SIGALRM))
        atomic_fetch_add(&j->unblocked, 1);
}

START_TEST(workers_leave_signals_alone) {
    tg_ctx *ctx = ctx_new();
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    job j = {.pool = tg_pool_new(ctx, 3, "test"), .lead = pthread_self()};
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    tg_pool_run(j.pool, 3, look_around, &j);
    ck_assert_int_eq(atomic_load(&j.elsewhere), 2);
    ck_assert_int_eq(atomic_load(&j.unblocked), 0);
    ck_assert_int_eq(sigismember(&before, SIGINT), sigismember(&after, SIGINT));
    tg_pool_free(ctx, j.pool);
    tg_ctx_free(ctx);
}
END_TEST

/* Runs fn in a child process and returns whether it returned true. */
static bool in_child(bool (*fn)(tg_ctx *ctx, tg_pool *p), tg_ctx *ctx, tg_pool *p) {
    pid_t child = fork();
    if (child == 0) _exit(fn(ctx, p) ? 0 : 1);
    int status = 1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool child_runs_serially(tg_ctx *ctx, tg_pool *p) {
    job j = {.pool = p, .lead = pthread_self()};
    tg_pool_run(p, MOST, look_around, &j);
    tg_pool_run(p, MOST, mark, &j);
    for (int i = 0; i < MOST; i++)
        if (j.seen[i] != 1 || j.begin_of[i] != 0) return false;
    tg_pool_free(ctx, p);
    return atomic_load(&j.elsewhere) == 0;
}

START_TEST(a_forked_child_runs_serially) {
    tg_ctx *ctx = ctx_new();
    tg_pool *p = tg_pool_new(ctx, 3, "test");
    job j = {.pool = p};
    tg_pool_run(p, MOST, mark, &j);
    ck_assert(in_child(child_runs_serially, ctx, p));
    tg_pool_run(p, MOST, mark, &j);
    ck_assert_int_eq(j.seen[MOST - 1], 2);
    tg_pool_free(ctx, p);
    tg_ctx_free(ctx);
}
END_TEST

static bool no_thread_to_be_had(tg_ctx *ctx, tg_pool *unused) {
    (void)unused;
    setrlimit(RLIMIT_AS, &(struct rlimit){.rlim_cur = 1 << 20, .rlim_max = 1 << 20});
    return !tg_pool_new(ctx, 64, "test") && tg_ctx_status(ctx) == TG_ERR_MEMORY && strstr(tg_ctx_message(ctx), "of 64");
}

/* Sanitizers and valgrind need address space. */
START_TEST(a_thread_that_cannot_start_is_an_error) {
    if (SANITIZED) return;
    tg_ctx *ctx = ctx_new();
    ck_assert(in_child(no_thread_to_be_had, ctx, NULL));
    tg_ctx_free(ctx);
}
END_TEST

int main(void) {
    const TTest *const tests[] = {
        every_index_runs_once_in_the_same_parts,
        rounds_follow_each_other_without_a_lost_write,
        sleeping_workers_wake,
        a_slow_worker_is_waited_for,
        a_run_inside_a_body_is_serial,
        workers_leave_signals_alone,
        a_forked_child_runs_serially,
        a_thread_that_cannot_start_is_an_error,
    };
    return tg_check_main("pool", tests, sizeof tests / sizeof tests[0]);
}
