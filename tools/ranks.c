/* The kinds of ranks: checks their options, starts them, and exchanges a few numbers between them. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "comm/shm/launch.h"
#include "ranks.h"

#include <tapegrad/nccl.h>
#include <tapegrad/ranks.h>

#ifdef TG_HAVE_MPI
#include <mpi.h>
#include <tapegrad/mpi.h>
#endif

static bool under_mpirun(void) { return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK"); }

#ifndef TG_HAVE_MPI
/* Returns whether this process is one of several that mpirun has started. Without MPI each of them would do the
 * whole run. */
static bool one_of_several(void) {
    const char *size = getenv("OMPI_COMM_WORLD_SIZE") ? getenv("OMPI_COMM_WORLD_SIZE") : getenv("PMI_SIZE");
    return size && atoi(size) > 1;
}
#endif

/* Returns how the ranks are started: RANKS_THREADS, RANKS_SHM (`tapegrad run`) or RANKS_MPI (mpirun). */
static rank_kind kind_of(const rank_options *o) {
    if (o->comm != RANKS_AUTO && o->comm != RANKS_NCCL) return (rank_kind)o->comm;
    if (tg_comm_launched_rank() >= 0) return RANKS_SHM;
#ifdef TG_HAVE_MPI
    if (under_mpirun()) return RANKS_MPI;
#else
    if (one_of_several()) return RANKS_MPI; /* rank_options_check refuses it */
#endif
    return RANKS_THREADS;
}

int comm_option_check(const command *c, const rank_options *o) {
    if (o->comm != RANKS_THREADS || tg_comm_launched_rank() < 0) return 0;
    return usage_error(c, "--comm threads: under `tapegrad run` every process would be a run of its own; leave --comm "
                          "out");
}

int tp_options_check(const command *c, const parsed *p, const rank_options *o, int recompute) {
    enum { DISTRIBUTED = 3 }; /* in RECOMPUTE */
    if (o->tp > 1) return 0;
    if (o->sp && option_given(c, p, "sp"))
        return usage_error(c, "--sp needs --tp N of 2 or more, because it splits sequences over --tp");
    if (recompute == DISTRIBUTED && option_given(c, p, "recompute"))
        return usage_error(c, "--recompute distributed needs --tp N of 2 or more; with one rank give --recompute full");
    return 0;
}

int ranks_check_divisible(const command *c, const parsed *p, const rank_options *o) {
    const struct { const char *name; int64_t ranks; } axes[] = {{"tp", o->tp}, {"cp", o->cp}, {"pp", o->pp}};
    char names[64] = "", sizes[96] = "", ones[64] = "";
    bool given = false;
    int64_t replica = o->tp * o->cp * o->pp;
    if (o->ranks % replica == 0) return 0;
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        size_t name = strlen(names), size = strlen(sizes), one = strlen(ones);
        given |= option_given(c, p, axes[i].name);
        if (i && axes[i].ranks == 1) continue;
        snprintf(names + name, sizeof names - name, "%s--%s", i ? " x " : "", axes[i].name);
        snprintf(sizes + size, sizeof sizes - size, "%s--%s %lld", i ? " x " : "", axes[i].name,
                 (long long)axes[i].ranks);
        snprintf(ones + one, sizeof ones - one, "%s--%s 1", i ? " " : "", axes[i].name);
    }
    if (!given) /* they are from a checkpoint */
        return usage_error(c,
                           "the run was made with %s %lld, and --ranks is %lld: give --ranks %lld, or another "
                           "multiple, or %s",
                           names, (long long)replica, (long long)o->ranks, (long long)replica, ones);
    return usage_error(c, "--ranks %lld is not divisible by %s; each replica has %s ranks", (long long)o->ranks, sizes,
                       names);
}

int cp_options_check(const command *c, const parsed *p, const rank_options *o, int64_t seq_len) {
    if (o->cp == 1 && option_given(c, p, "cp-kind"))
        return usage_error(c, "--cp-kind needs --cp N of 2 or more, because it is how the ranks of --cp exchange keys "
                              "and values");
    if (o->cp_inner && (o->cp_kind != TG_CP_HIERARCHY || o->cp % o->cp_inner))
        return usage_error(c, "--cp-inner %lld: it is for --cp-kind hierarchy, and must divide --cp %lld",
                           (long long)o->cp_inner, (long long)o->cp);
    if (o->cp > 1 && seq_len % (2 * o->cp))
        return usage_error(c, "--seq-len %lld is not divisible by %lld: each of the --cp ranks has two of %lld chunks",
                           (long long)seq_len, (long long)(2 * o->cp), (long long)(2 * o->cp));
    return 0;
}

int rank_options_check(const command *c, const parsed *p, const rank_options *o) {
    rank_kind kind = kind_of(o);
    int status = comm_option_check(c, o);
    if (status) return status;
    if (kind != RANKS_THREADS && option_given(c, p, "ranks"))
        return usage_error(c, "--ranks is for ranks that are threads; a launcher gives the number of ranks: leave "
                              "--ranks out");
    if (kind == RANKS_SHM && tg_comm_launched_rank() < 0)
        return usage_error(c, "--comm shm needs `tapegrad run -n N -- tapegrad %s ...`", c->name);
#ifndef TG_HAVE_MPI
    if (kind == RANKS_MPI)
        return usage_error(c, "mpirun started several processes, but this build has no MPI; build with -Dmpi=enabled");
#endif
    if (kind == RANKS_MPI && !under_mpirun())
        return usage_error(c, "--comm mpi needs mpirun -n N tapegrad %s ...", c->name);
    return kind == RANKS_THREADS ? ranks_check_divisible(c, p, o) : 0;
}

/* ---- GPUs: each rank gets one, and NCCL moves the data ---- */

typedef struct gpu_job {
    rank_main fn;
    void *arg;
} gpu_job;

static bool is_on_gpu(const tg_config *config) { return config->device && !strncmp(config->device, "cuda", 4); }

static int gpu_rank(void *arg, tg_ctx *ctx, tg_comm *host) {
    const gpu_job *j = arg;
    tg_comm *world = tg_comm_nccl_new(host);
    int status = check(ctx) ? j->fn(j->arg, ctx, world) : 1;
    tg_comm_free(world);
    return status;
}

/* If the device is a GPU, chooses GPU number local_rank. local_rank: this rank's number among the ranks of its node.
 * name: memory for the device's name, "cuda:N". */
static void choose_gpu(tg_config *config, int local_rank, char *name, size_t n) {
    if (!is_on_gpu(config)) return;
    snprintf(name, n, "cuda:%d", local_rank);
    config->device = name;
}

/* ---- Threads ---- */

typedef struct job {
    rank_main fn;
    void *arg;
    int status[1024];
} job;

static tg_status thread_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    job *j = arg;
    int rank = tg_comm_rank(world);
    mute(rank > 0);
    j->status[rank] = j->fn(j->arg, ctx, world);
    if (j->status[rank] && tg_ctx_status(ctx) == TG_OK) tg_ctx_fail(ctx, TG_ERR_CALLBACK, "the rank's run failed");
    return tg_ctx_status(ctx);
}

static int run_threads(int n, const tg_config *config, rank_main fn, void *arg) {
    job *j = calloc(1, sizeof *j);
    char message[2048] = "";
    if (!j) return fail("no memory for %d ranks", n);
    *j = (job){.fn = fn, .arg = arg};
    tg_status s = tg_ranks_run(n, thread_rank, j, TG_RANKS(.config = config, .message = message,
                                                           .message_size = sizeof message));
    int status = 0, chief = j->status[0];
    for (int i = 0; i < n; i++)
        if (j->status[i] > status) status = j->status[i];
    free(j);
    if (s == TG_OK) return status;
    return chief ? chief : fail("%s", message); /* rank 0 has printed its error */
}

/* ---- Processes ---- */

#ifdef TG_HAVE_MPI
static const tg_comm *_Atomic recorded; /* the communicator whose record dump_record writes; NULL: none */
static atomic_int dumping;

/* Stops dump_record from using the communicator, before it is freed. */
static void forget_recorded(void) {
    atomic_store(&recorded, NULL);
    while (atomic_load(&dumping)) sched_yield(); /* a signal handler on another thread is writing */
}
#endif

void dump_record(void) {
#ifdef TG_HAVE_MPI
    int error = errno;
    atomic_fetch_add(&dumping, 1);
    tg_comm_record_dump(atomic_exchange(&recorded, NULL), STDERR_FILENO);
    atomic_fetch_sub(&dumping, 1);
    errno = error;
#endif
}

static int run_rank(tg_ctx *ctx, tg_comm *world, rank_main fn, void *arg) {
    int status = 1;
    if (check(ctx)) {
        status = fn(arg, ctx, world);
        if (status && tg_ctx_status(ctx) == TG_OK) tg_ctx_fail(ctx, TG_ERR_CALLBACK, "the rank's run failed");
    }
    tg_comm_free(world);
    tg_ctx_free(ctx);
    return status;
}

static int run_launched(tg_config config, rank_main fn, void *arg) {
    char gpu[24];
    choose_gpu(&config, tg_comm_launched_rank(), gpu, sizeof gpu);
    tg_ctx *ctx = tg_ctx_new(&config);
    return run_rank(ctx, tg_comm_launched_new(ctx), fn, arg);
}

#ifdef TG_HAVE_MPI
/* Returns whether another rank caused the error. This rank then writes its record at once, because mpirun may end it
 * without the SIGTERM whose handler writes it. */
static bool is_caused_by_peer(tg_status s) {
    return s == TG_ERR_REMOTE || s == TG_ERR_TIMEOUT || s == TG_ERR_MISMATCH || s == TG_ERR_ABORTED;
}

static int mpi_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    atomic_store(&recorded, world);
    int status = j->fn(j->arg, ctx, world);
    if (is_caused_by_peer(tg_ctx_status(ctx))) dump_record();
    forget_recorded();
    return status;
}

/* Returns this rank's number among the ranks of its node, and sets *size to the number of these ranks. */
static int rank_of_node(int *size) {
    MPI_Comm node;
    int rank = 0;
    *size = 1;
    if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS) return 0;
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, size);
    MPI_Comm_free(&node);
    return rank;
}

static int run_mpi(tg_config config, rank_main fn, void *arg) {
    job j = {.fn = fn, .arg = arg};
    char gpu[24];
    int here;
    choose_gpu(&config, rank_of_node(&here), gpu, sizeof gpu);
    tg_ctx *ctx = tg_ctx_new(&config);
    return run_rank(ctx, tg_comm_mpi_new(ctx, MPI_COMM_WORLD), mpi_rank, &j);
}
#endif

int ranks_begin(const rank_options *o, bool *chief) {
    rank_kind kind = kind_of(o);
    int rank = kind == RANKS_SHM ? tg_comm_launched_rank() : 0;
#ifdef TG_HAVE_MPI
    int level;
    if (kind == RANKS_MPI && (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS ||
                              MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS))
        return fail("MPI_Init_thread or MPI_Comm_rank failed: MPI cannot start");
#endif
    name_rank(rank);
    *chief = rank == 0;
    return 0;
}

void ranks_end(const rank_options *o, int status) {
#ifdef TG_HAVE_MPI
    int open = 0;
    if (kind_of(o) != RANKS_MPI || MPI_Initialized(&open) != MPI_SUCCESS || !open) return;
    if (status) MPI_Abort(MPI_COMM_WORLD, status); /* the other ranks may be waiting in MPI */
    MPI_Finalize();
#endif
    (void)o, (void)status;
}

/* Returns the number of ranks that are processes on this node and share its cores. */
static int processes_here(const rank_options *o) {
    const char *n = getenv(TG_LAUNCH_SIZE);
    if (kind_of(o) == RANKS_SHM && n) return atoi(n);
#ifdef TG_HAVE_MPI
    int size = 1;
    if (kind_of(o) == RANKS_MPI) rank_of_node(&size);
    return size;
#endif
    return 1;
}

const char *launcher_text(const rank_options *o, const tg_comm *world, char *buf, size_t n) {
    rank_kind kind = kind_of(o);
    const char *format = kind == RANKS_SHM ? "tapegrad run -n %d -- " : kind == RANKS_MPI ? "mpirun -n %d " : "";
    snprintf(buf, n, format, tg_comm_size(world));
    return buf;
}

int run_on_ranks(const rank_options *o, tg_config config, rank_main fn, void *arg) {
    config.deadline = o->deadline;
    int here = processes_here(o), cores = tg_system_cores();
    bool several = kind_of(o) != RANKS_THREADS || o->ranks > 1;
    gpu_job of_gpu = {fn, arg};
    if (config.threads == TG_AUTO && here > 1) config.threads = cores > here ? cores / here : 1;
    if (o->comm == RANKS_NCCL && !is_on_gpu(&config))
        return fail("--comm nccl needs --device cuda; leave --comm out, or add --device cuda");
    if (several && is_on_gpu(&config)) {
        if (strcmp(config.device, "cuda"))
            return fail("--device %s: each rank gets a GPU of its own; give --device cuda", config.device);
        fn = gpu_rank;
        arg = &of_gpu;
    }
    switch (kind_of(o)) {
    case RANKS_SHM: return run_launched(config, fn, arg);
#ifdef TG_HAVE_MPI
    case RANKS_MPI: return run_mpi(config, fn, arg);
#endif
    default: break;
    }
    if (o->ranks > 1) return run_threads((int)o->ranks, &config, fn, arg);
    tg_ctx *ctx = tg_ctx_new(&config);
    return run_rank(ctx, tg_comm_self_new(ctx), fn, arg);
}

tg_parallel *groups_of_ranks(const rank_options *o, tg_comm *world) {
    return tg_parallel_new(world, TG_PARALLEL(.tp = (int)o->tp, .cp = (int)o->cp, .pp = (int)o->pp, .vp = (int)o->vp,
                                              .sequence_parallel = o->sp, .rng = (tg_rng_mode)o->rng));
}

tg_module *load_on_ranks(tg_ctx *ctx, const tg_parallel *p, const tg_gpt_config *config, const char *dir) {
    tg_gpt_config c = *config;
    c.parallel = p;
    tg_module *gpt = tg_gpt_new(ctx, &c);
    tg_gpt_load_weights(gpt, dir);
    return gpt;
}

/* ---- Numbers that ranks exchange ---- */

/* Sums n numbers of 8 bytes over the ranks, or sends rank 0's to all. */
static void exchange(tg_ctx *ctx, tg_comm *world, tg_dtype dtype, void *v, int n, bool sum) {
    if (tg_comm_size(world) == 1) return;
    bool meta = !strcmp(tg_ctx_device(ctx), "meta"); /* tensors have no values, but the call is counted */
    tg_tensor *x = tg_zeros(ctx, dtype, TG_SHAPE(n));
    if (!meta) tg_write(x, v, 8 * (size_t)n);
    if (sum)
        tg_comm_all_reduce(world, x, x, TG_REDUCE_SUM);
    else
        tg_comm_broadcast(world, x, 0);
    if (!meta) tg_read(x, v, 8 * (size_t)n);
    tg_drop(x);
}

bool broadcast_from_rank_0(tg_ctx *ctx, tg_comm *world, int64_t *v, int n) {
    exchange(ctx, world, TG_I64, v, n, false);
    return check(ctx);
}

void sum_over_ranks(tg_ctx *ctx, tg_comm *world, double *v, int n) { exchange(ctx, world, TG_F64, v, n, true); }

void place_batch(const tg_parallel *p, tg_tensor *ids, bool shard) {
    if (!p) return;
    tg_place(p, ids, TG_TP, TG_I);
    tg_place(p, ids, TG_CP, TG_SHARD_ZIGZAG(1));
    tg_place(p, ids, TG_DP, shard ? TG_SHARD(0) : TG_V);
}

int64_t tokens_of_rank(const tg_parallel *p, int64_t seq_len) { return seq_len / tg_parallel_size(p, TG_CP); }

/* A rank of cp has two runs of tokens, its chunks (context_parallel.h). */
void read_tokens_of_rank(const tg_parallel *p, tg_tokens *tokens, int64_t offset, int64_t seq_len, int64_t *out) {
    int64_t n = tg_parallel_size(p, TG_CP), rank = tg_parallel_rank(p, TG_CP), length = seq_len / (2 * n);
    if (n == 1) {
        tg_tokens_read(tokens, offset, seq_len, out);
        return;
    }
    tg_tokens_read(tokens, offset + rank * length, length, out);
    tg_tokens_read(tokens, offset + (2 * n - 1 - rank) * length, length, out + length);
}
