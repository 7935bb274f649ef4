/* Runs one rank function over each transport of a node: threads, and processes that are forked here. Compiled with
 * TG_WORLD_MPI, MPI's ranks take the place of processes: each process runs all tests, as one rank of each world that is
 * large enough. Compiled with TG_WORLD_TCP, the processes meet over TCP. Compiled with TG_WORLD_NCCL, each rank has a
 * GPU and gets NCCL's communicator. */
#ifndef TG_TEST_WORLDS_H
#define TG_TEST_WORLDS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tapegrad/extend.h>
#include <tapegrad/nccl.h>
#include <tapegrad/parallel.h>
#include <tapegrad/ranks.h>

#include "check_main.h"
#include "comm/shm/launch.h"
#include "comm/shm/shm.h"

typedef enum world_kind { THREADS, PROCESSES, WORLD_KINDS } world_kind;
enum { MOST = 8 };

#ifdef TG_WORLD_NCCL
/* A test may clear it to compare with ranks of the host. */
static bool on_gpus = true;
#else
static const bool on_gpus = false;
#endif

#ifdef TG_WORLD_MPI
#include <tapegrad/mpi.h>
static const char *const world_names[WORLD_KINDS] = {"threads", "ranks of MPI"};
#elif defined TG_WORLD_TCP
#include "comm/ports.h"
static const char *const world_names[WORLD_KINDS] = {"threads", "processes over TCP"};
#else
static const char *const world_names[WORLD_KINDS] = {"threads", "processes"};
#endif

/* The result of each rank: the status that its function returned, and the message of its context then. */
typedef struct world_end {
    tg_status status[MOST];
    char message[MOST][1200];
    double seconds[MOST]; /* measured by the rank */
    uint64_t word[MOST];  /* left by the rank for the test */
    atomic_bool ended[MOST]; /* the rank has returned */
    atomic_bool past[MOST]; /* the rank has reached its point: see sleep_past_others */
} world_end;

/* The function of a rank. It writes its result into the world's end. */
typedef tg_status (*world_fn)(void *arg, tg_ctx *ctx, tg_comm *world, world_end *end);

static inline double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline void sleep_for(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) continue;
}

/* Sleeps until every other rank has set its past[] or returned, like a rank that is unaware of them. */
static inline void sleep_past_others(world_end *end, int me, int n) {
    for (int r = 0; r < n; r++)
        while (r != me && !atomic_load(&end->past[r]) && !atomic_load(&end->ended[r])) sleep_for(0.002);
}

/* Fails a rank by returning an error, so that the other ranks are not left waiting. */
#define EXPECT(ctx, truth)                                                                                    \
    do {                                                                                                      \
        if (!(truth))                                                                                         \
            return tg_ctx_fail(ctx, TG_ERR_INTERNAL, "%s:%d: not so: %s (%s)", __FILE__, __LINE__, #truth,    \
                               tg_ctx_message(ctx)),                                                          \
                   TG_ERR_INTERNAL;                                                                           \
    } while (0)

static inline tg_tensor *filled(tg_ctx *ctx, int64_t n, double v) {
    double *p = malloc((size_t)n * sizeof *p + 1);
    for (int64_t i = 0; i < n; i++) p[i] = v;
    tg_tensor *x = tg_from_host(ctx, TG_F64, TG_SHAPE(n), p);
    free(p);
    return x;
}

typedef struct world_job {
    world_fn fn;
    void *arg;
    world_end *end;
} world_job;

/* Buffer of this thread for data of a GPU that the host reads. */
typedef struct reading {
    void *data;
    size_t bytes;
} reading;

static inline reading *reading_of_thread(void) {
    static _Thread_local reading r;
    return &r;
}

/* Returns x's elements for the host, valid until this thread's next call. NULL on an error. */
static inline const void *elements(tg_tensor *x) {
    reading *r = reading_of_thread();
    size_t n = (size_t)tg_numel(x) * tg_dtype_size(tg_dtype_of(x));
    if (!on_gpus) return tg_host_data(x);
    if (n > r->bytes) r->data = realloc(r->data, r->bytes = n);
    return tg_read(x, r->data, n) == TG_OK ? r->data : NULL;
}

static inline void reading_ends(void) {
    free(reading_of_thread()->data);
    *reading_of_thread() = (reading){NULL, 0};
}

static inline tg_status world_rank(void *arg, tg_ctx *ctx, tg_comm *host) {
    const world_job *job = arg;
    world_end *end = job->end;
    int me = tg_comm_rank(host);
    tg_comm *world = on_gpus ? tg_comm_nccl_new(host) : host;
    end->status[me] = tg_ctx_status(ctx) == TG_OK ? job->fn(job->arg, ctx, world, end) : tg_ctx_status(ctx);
    snprintf(end->message[me], sizeof end->message[me], "%s", tg_ctx_message(ctx));
    atomic_store(&end->ended[me], true);
    reading_ends();
    if (on_gpus) tg_comm_free_all(world);
    return end->status[me];
}

#ifdef TG_WORLD_MPI
static inline void end_mpi(void) { MPI_Finalize(); }

/* The largest number of ranks, and this process's rank. */
static inline int mpi_ranks(int *me) {
    int begun, level, n;
    MPI_Initialized(&begun);
    if (!begun) {
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
        atexit(end_mpi);
    }
    MPI_Comm_rank(MPI_COMM_WORLD, me);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    return n;
}

/* Waits without using the cores of ranks that still work, unlike MPI's own waits. */
static inline void await_others(void) {
    MPI_Request all;
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    for (int done = 0; MPI_Test(&all, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done;) sleep_for(0.002);
}

static inline void run_processes(int n, world_job *job, const tg_config *config) {
    MPI_Comm some;
    int me, size = mpi_ranks(&me);
    ck_assert_int_le(n, size);
    MPI_Comm_split(MPI_COMM_WORLD, me < n ? 0 : MPI_UNDEFINED, me, &some);
    if (some != MPI_COMM_NULL) {
        tg_ctx *ctx = tg_ctx_new(config);
        tg_comm *world = tg_comm_mpi_new(ctx, some);
        world_rank(job, ctx, world);
        tg_comm_free_all(world);
        tg_ctx_free(ctx);
        MPI_Comm_free(&some);
    }
    await_others();
}

/* Rank 0 runs the threads. */
static inline void run_threads(int n, world_job *job, const tg_config *config) {
    int me;
    mpi_ranks(&me);
    if (me == 0) tg_ranks_run(n, world_rank, job, TG_RANKS(.config = config));
    await_others();
}

/* All ranks are on this machine, whatever nodes they were assigned to, and are children of one launcher. */
static inline world_end *shared_end(void) {
    char name[64];
    int me;
    mpi_ranks(&me);
    snprintf(name, sizeof name, "/tapegrad-worlds-%ld", (long)getppid());
    int fd = shm_open(name, O_RDWR | O_CREAT, 0600);
    ck_assert_int_eq(ftruncate(fd, sizeof(world_end)), 0);
    world_end *end = mmap(NULL, sizeof *end, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    await_others();
    shm_unlink(name);
    close(fd);
    return end;
}

static inline void clear_end(world_end *end) {
    int me;
    mpi_ranks(&me);
    await_others(); /* they read the results of the last world */
    if (me == 0) memset(end, 0, sizeof *end);
    await_others();
}

/* Between nodes a rank's data wait for the rank. */
static inline bool is_between_nodes(const tg_comm *c) { return !strcmp(tg_comm_transport(c), "mpi"); }

static inline int most_ranks(int wanted) {
    int me, n = mpi_ranks(&me);
    return n < wanted ? n : wanted;
}
#else
static inline world_end *shared_end(void) {
    return mmap(NULL, sizeof(world_end), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static inline void clear_end(world_end *end) { memset(end, 0, sizeof *end); }

static inline void run_threads(int n, world_job *job, const tg_config *config) {
    tg_ranks_run(n, world_rank, job, TG_RANKS(.config = config));
}

/* Over TCP, as over MPI. */
static inline bool is_between_nodes(const tg_comm *c) { return !strcmp(tg_comm_transport(c), "tcp"); }

/* The emulator is slow with many GPUs. */
static inline int most_ranks(int wanted) {
    enum { FEW = 3 };
    return on_gpus && getenv("TG_TEST_QUICK") && wanted > FEW ? FEW : wanted;
}

/* In a build of scripts/coverage, writes the counters. */
extern void __gcov_dump(void) __attribute__((weak));

/* Makes the communicator of a process. port: over TCP, where the ranks meet. */
static inline tg_comm *child_comm(tg_ctx *ctx, const tg_launch *l, int rank, int port) {
#ifdef TG_WORLD_TCP
    return tg_comm_tcp_new(ctx, TG_TCP(.rank = rank, .ranks = l->n, .host = "127.0.0.1", .port = port, .ports = 8));
#else
    return (void)port, tg_comm_attach(ctx, l->fd, rank, false);
#endif
}

static inline void world_child(const tg_launch *l, int rank, int port, const tg_config *config, world_job *job) {
    tg_config own = *config;
    char gpu[16];
    snprintf(gpu, sizeof gpu, "cuda:%d", rank);
    if (on_gpus) own.device = gpu;
    tg_ctx *ctx = tg_ctx_new(&own);
    tg_comm *world = child_comm(ctx, l, rank, port);
    world_rank(job, ctx, world);
    tg_comm_free_all(world);
    tg_ctx_free(ctx);
    if (__gcov_dump) __gcov_dump();
    _exit(0);
}

/* A child that has not ended when all others have is stopped or stuck. */
static inline void await_children(const tg_launch *l, int n, const pid_t *pid) {
    const double patience = 120;
    double until = seconds_now() + patience;
    bool gone[MOST] = {false}, stopped[MOST] = {false};
    for (int left = n; left > 0; sleep_for(0.001)) {
        int running = 0;
        for (int i = 0; i < n; i++) {
            int status;
            if (gone[i] || waitpid(pid[i], &status, WNOHANG | WUNTRACED) != pid[i]) continue;
            stopped[i] = WIFSTOPPED(status);
            if (stopped[i]) continue;
            gone[i] = true;
            left--;
            tg_launch_ended(l, i, status);
        }
        for (int i = 0; i < n; i++) running += !gone[i] && !stopped[i];
        for (int i = 0; i < n; i++)
            if (!gone[i] && (!running || seconds_now() > until)) kill(pid[i], SIGKILL);
    }
}

static inline void run_processes(int n, world_job *job, const tg_config *config) {
    tg_launch l;
    pid_t pid[MOST];
#ifdef TG_WORLD_TCP
    int port = free_port();
#else
    int port = 0;
#endif
    ck_assert_int_eq(tg_launch_open(&l, n), 0);
    for (int i = 0; i < n; i++) {
        pid[i] = fork();
        ck_assert_int_ge(pid[i], 0);
        if (pid[i] == 0) world_child(&l, i, port, config, job);
    }
    await_children(&l, n, pid);
    tg_launch_close(&l);
}
#endif

/* Runs fn as n ranks of that kind. The result is valid until the next run. */
static inline const world_end *run_world(world_kind kind, int n, world_fn fn, void *arg, const tg_config *config) {
    static world_end *end;
    if (!end) end = shared_end();
    ck_assert_ptr_ne(end, MAP_FAILED);
    clear_end(end);
    world_job job = {fn, arg, end};
    tg_config one = config ? *config : *TG_CONFIG(.threads = 1, .deadline = 60);
    if (!one.threads) one.threads = 1;
    if (on_gpus) one.device = "cuda";
    if (kind == THREADS)
        run_threads(n, &job, &one);
    else
        run_processes(n, &job, &one);
    return end;
}

/* All ranks must have returned TG_OK. */
static inline const world_end *expect_world(world_kind kind, int n, world_fn fn, void *arg) {
    const world_end *end = run_world(kind, n, fn, arg, NULL);
    for (int i = 0; i < n; i++)
        ck_assert_msg(end->ended[i] && end->status[i] == TG_OK, "%d %s: rank %d: %s: %s", n, world_names[kind], i,
                      end->ended[i] ? tg_status_name(end->status[i]) : "did not end", end->message[i]);
    return end;
}

static inline void each_world(int most, world_fn fn, void *arg) {
    for (int kind = 0; kind < WORLD_KINDS; kind++)
        for (int n = 1; n <= most_ranks(most); n++) expect_world((world_kind)kind, n, fn, arg);
}

#endif
