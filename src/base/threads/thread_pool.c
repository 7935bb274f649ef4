/* The thread pool of a context: how work is divided into parts, and how threads spin and sleep while they wait. */
#include "base/threads/thread_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/memory/host_memory.h"
#include "base/os.h"
#include "base/runtime.h"

/* How long a thread spins before it sleeps. It never yields its core: where programs of lower priority run, each yield
 * would give one of them a whole time slice.
 *
 * Threads that finish their part of a kernel early wait for the others. SPIN_SECONDS is longer than this wait usually
 * takes, so these threads do not sleep: on a virtual machine, a core that has slept runs at half speed for 50 ms. If
 * another program has preempted one thread, the other threads wait for the whole time slice of that program.
 * SPIN_SECONDS is shorter than a time slice, because spinning all that time would use up this program's own share of
 * the core (docs/performance.md has the measurements). In a pool with more threads than cores, threads sleep at
 * once. */
static const double SPIN_SECONDS = 0.5e-3;
enum { PAUSES = 64 }; /* number of pauses between two readings of the clock */

typedef struct worker {
    tg_pool *pool;
    int index;
    pthread_t thread;
} worker;

/* A round is one call of tg_pool_run whose work is divided. The leading thread is the one that calls tg_pool_run. It
 * writes `busy`, n, body and arg only while no round runs: before it increments `round`, and after `pending` has become
 * 0. So these two atomics order every access to the four fields. */
struct tg_pool {
    int threads;   /* including the leading thread */
    bool spins;    /* threads spin before they sleep */
    pid_t process; /* id of the process that started the workers */
    bool busy;     /* a round is running */
    int64_t n;
    tg_range_fn body;
    void *arg;
    atomic_uint round;  /* number of rounds so far */
    atomic_int pending; /* workers that have not finished this round */
    pthread_mutex_t lock;
    pthread_cond_t begun, finished;
    int sleepers;       /* workers that wait for `begun` */
    bool waiting, stop; /* waiting: the leading thread waits for `finished`; stop: the workers must return */
    size_t bytes;
    worker workers[];
};

/* Runs the part of thread i. */
static void run_part(const tg_pool *p, int i) {
    int64_t whole = p->n / p->threads, more = p->n % p->threads;
    int64_t begin = whole * i + (i < more ? i : more), end = begin + whole + (i < more);
    if (begin < end) p->body(p->arg, begin, end);
}

/* ---- Spinning ---- */

static bool has_begun(const tg_pool *p, unsigned seen) {
    return atomic_load_explicit(&p->round, memory_order_acquire) != seen;
}

static bool is_over(const tg_pool *p, unsigned round) {
    (void)round;
    return atomic_load_explicit(&p->pending, memory_order_acquire) == 0;
}

/* Spins until done(p, round) is true, for at most SPIN_SECONDS. Returns whether it became true. */
static inline bool spin_until(const tg_pool *p, bool (*done)(const tg_pool *p, unsigned round), unsigned round) {
    if (!p->spins) return done(p, round);
    double now = 0, until = 0;
    do {
        for (int i = 0; i < PAUSES; i++) {
            if (done(p, round)) return true;
            tg_system_pause();
        }
        now = tg_system_now();
        if (until == 0) until = now + SPIN_SECONDS;
    } while (now < until);
    return done(p, round);
}

/* ---- Workers ---- */

/* Returns true when a round after `seen` has begun, and false when the pool is being freed. */
static bool await_round(tg_pool *p, unsigned seen) {
    if (!spin_until(p, has_begun, seen)) {
        pthread_mutex_lock(&p->lock);
        p->sleepers++;
        while (!has_begun(p, seen)) pthread_cond_wait(&p->begun, &p->lock);
        p->sleepers--;
        pthread_mutex_unlock(&p->lock);
    }
    return !p->stop;
}

/* Counts this worker as finished. The last one wakes the leading thread. */
static void leave_round(tg_pool *p) {
    if (atomic_fetch_sub_explicit(&p->pending, 1, memory_order_acq_rel) > 1) return;
    pthread_mutex_lock(&p->lock);
    if (p->waiting) pthread_cond_signal(&p->finished);
    pthread_mutex_unlock(&p->lock);
}

static void *work(void *arg) {
    worker *w = arg;
    for (unsigned round = 0; await_round(w->pool, round); round++) {
        run_part(w->pool, w->index);
        leave_round(w->pool);
    }
    return NULL;
}

/* ---- The leading thread ---- */

static void begin_round(tg_pool *p, int64_t n, tg_range_fn body, void *arg) {
    p->busy = true;
    p->n = n;
    p->body = body;
    p->arg = arg;
    atomic_store_explicit(&p->pending, p->threads - 1, memory_order_relaxed);
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
    bool wake = p->sleepers > 0;
    pthread_mutex_unlock(&p->lock);
    if (wake) pthread_cond_broadcast(&p->begun);
}

static void end_round(tg_pool *p) {
    unsigned round = atomic_load_explicit(&p->round, memory_order_relaxed);
    if (!spin_until(p, is_over, round)) {
        pthread_mutex_lock(&p->lock);
        p->waiting = true;
        while (!is_over(p, round)) pthread_cond_wait(&p->finished, &p->lock);
        p->waiting = false;
        pthread_mutex_unlock(&p->lock);
    }
    p->busy = false;
}

/* Runs serially if there is only one part, if a body of this pool calls it, and in a forked child, which has no
 * workers. */
void tg_pool_run(void *user, int64_t n, tg_range_fn body, void *arg) {
    tg_pool *p = user;
    if (n <= 0) return;
    if (n == 1 || p->threads == 1 || p->busy || getpid() != p->process) {
        body(arg, 0, n);
        return;
    }
    begin_round(p, n, body, arg);
    run_part(p, 0);
    end_round(p);
}

/* ---- Creation and release ---- */

static void stop_workers(tg_pool *p, int started) {
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
    pthread_mutex_unlock(&p->lock);
    pthread_cond_broadcast(&p->begun);
    for (int i = 0; i < started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->begun);
    pthread_mutex_destroy(&p->lock);
}

tg_pool *tg_pool_new(tg_ctx *ctx, int threads, const char *who) {
    size_t bytes = sizeof(tg_pool) + (size_t)(threads - 1) * sizeof(worker);
    tg_pool *p = tg_host_alloc(ctx, bytes);
    if (!p) return NULL;
    p->bytes = bytes;
    p->threads = threads;
    p->spins = threads <= tg_system_cores();
    p->process = getpid();
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->begun, NULL);
    pthread_cond_init(&p->finished, NULL);
    for (int i = 0; i < threads - 1; i++) {
        p->workers[i] = (worker){.pool = p, .index = i + 1};
        int error = tg_system_thread(&p->workers[i].thread, work, &p->workers[i]);
        if (!error) continue;
        tg_fail(ctx, TG_ERR_MEMORY, "%s: cannot start thread %d of %d: %s; ask for fewer threads", who, i + 2, threads,
                strerror(error));
        stop_workers(p, i);
        tg_host_free(ctx, p, bytes);
        return NULL;
    }
    return p;
}

/* In a forked child, which has no workers, the state of the locks is unknown. There this only frees the memory. */
void tg_pool_free(tg_ctx *ctx, tg_pool *p) {
    if (!p) return;
    if (getpid() == p->process) stop_workers(p, p->threads - 1);
    tg_host_free(ctx, p, p->bytes);
}
