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
#include "common/ranks.h"

#include <tapegrad/nccl.h>
#include <tapegrad/ranks.h>
#include <tapegrad/world.h>

/* Sets *w to how this process was started. Returns false after printing why that is unknown. */
static bool query_world(tg_world_info *w) {
    char message[512];
    *w = TG_WORLD_INFO();
    return tg_world_query(w, message, sizeof message) == TG_OK || (fail("%s", message), false);
}

/* Returns how the ranks communicate. That is meaningless if comm_option_check refuses the environment or --comm. */
static rank_kind kind_of(const rank_options *o) {
    static const rank_kind kinds[] = {[TG_WORLD_ALONE] = RANKS_THREADS, [TG_WORLD_SHM] = RANKS_SHM,
                                      [TG_WORLD_MPI] = RANKS_MPI, [TG_WORLD_TCP] = RANKS_TCP};
    tg_world_info w = TG_WORLD_INFO();
    if (o->comm != RANKS_AUTO && o->comm != RANKS_NCCL) return (rank_kind)o->comm;
    tg_world_query(&w, NULL, 0);
    return kinds[w.transport];
}

int comm_option_check(const command *c, const rank_options *o) {
    tg_world_info w;
    if (!query_world(&w)) return 1;
    bool several = w.launcher == TG_LAUNCHER_RUN || w.ranks > 1;
    if (o->comm == RANKS_THREADS && several)
        return usage_error(c, "--comm threads: under %s every process would be a run of its own; leave --comm out",
                           w.launcher == TG_LAUNCHER_RUN ? "`tapegrad run`" : "a launcher");
    if (o->comm == RANKS_SHM && w.launcher != TG_LAUNCHER_RUN)
        return usage_error(c, "--comm shm needs `%s run -n N -- %s %s ...`", program_word(), program_word(), c->name);
    if (o->comm == RANKS_MPI && w.launcher != TG_LAUNCHER_MPI && w.launcher != TG_LAUNCHER_SLURM)
        return usage_error(c, "--comm mpi needs mpirun -n N %s %s ..., or srun --mpi=pmix", program_word(), c->name);
    if (o->comm == RANKS_TCP && !*w.host)
        return usage_error(c, "--comm tcp needs torchrun or srun, or TAPEGRAD_TRANSPORT=tcp, MASTER_ADDR and "
                              "MASTER_PORT in the environment under mpirun");
    return 0;
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

int64_t rank_count(const rank_options *o) {
    tg_world_info w = TG_WORLD_INFO();
    tg_world_query(&w, NULL, 0);
    return kind_of(o) == RANKS_THREADS ? o->ranks : w.ranks;
}

int zero_options_check(const command *c, const parsed *p, const rank_options *o, int64_t ranks) {
    const struct { const char *name, *what; bool on; } rows[] = {
        {"zero", "divides a run over the replicas of the model", o->zero > 0},
        {"wire", "is how gradients travel between the replicas of the model", o->wire != WIRE_AUTO}};
    int64_t one = o->tp * o->pp;
    for (size_t i = 0; ranks <= one && i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].on && option_given(c, p, rows[i].name))
            return usage_error(c, "--%s %s, and there is one: give %lld ranks or more, or leave --%s out",
                               rows[i].name, rows[i].what, (long long)(2 * one), rows[i].name);
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

static const tg_comm *_Atomic recorded; /* the communicator whose record dump_record writes; NULL: none */
static atomic_int dumping;

/* Stops dump_record from using the communicator, before it is freed. */
static void forget_recorded(void) {
    atomic_store(&recorded, NULL);
    while (atomic_load(&dumping)) sched_yield(); /* a signal handler on another thread is writing */
}

void dump_record(void) {
    int error = errno;
    atomic_fetch_add(&dumping, 1);
    tg_comm_record_dump(atomic_exchange(&recorded, NULL), STDERR_FILENO);
    atomic_fetch_sub(&dumping, 1);
    errno = error;
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

/* Returns whether another rank caused the error. This rank then writes its record at once, because the launcher may end
 * it without the SIGTERM whose handler writes it. */
static bool is_caused_by_peer(tg_status s) {
    return s == TG_ERR_REMOTE || s == TG_ERR_TIMEOUT || s == TG_ERR_MISMATCH || s == TG_ERR_ABORTED;
}

static int recorded_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const job *j = arg;
    atomic_store(&recorded, world);
    int status = j->fn(j->arg, ctx, world);
    if (is_caused_by_peer(tg_ctx_status(ctx))) dump_record();
    forget_recorded();
    return status;
}

/* Runs the rank of this process. `tapegrad run` has the records of its ranks; for other launchers each rank writes its
 * own. */
static int run_process(rank_kind kind, tg_world_info *w, tg_config config, rank_main fn, void *arg) {
    job j = {.fn = fn, .arg = arg};
    char gpu[24];
    if (kind == RANKS_MPI) w->transport = TG_WORLD_MPI;
    if (kind == RANKS_TCP) w->transport = TG_WORLD_TCP;
    choose_gpu(&config, w->local_rank, gpu, sizeof gpu);
    tg_ctx *ctx = tg_ctx_new(&config);
    tg_comm *world = tg_comm_world_new(ctx, w);
    return kind == RANKS_SHM ? run_rank(ctx, world, fn, arg) : run_rank(ctx, world, recorded_rank, &j);
}

void ranks_begin(bool *chief) {
    tg_world_info w = TG_WORLD_INFO();
    tg_world_query(&w, NULL, 0);
    name_rank(w.rank);
    *chief = w.rank == 0;
}

const char *launcher_text(const rank_options *o, const tg_comm *world, char *buf, size_t n) {
    static const char *const starts[] = {
        [TG_LAUNCHER_RUN] = "run -n %d -- ",
        [TG_LAUNCHER_MPI] = "mpirun -n %d ",
        [TG_LAUNCHER_TORCHRUN] = "torchrun --nproc_per_node %d --no_python ",
        [TG_LAUNCHER_SLURM] = "srun -n %d ",
    };
    tg_world_info w = TG_WORLD_INFO();
    tg_world_query(&w, NULL, 0);
    bool several = kind_of(o) != RANKS_THREADS;
    int ranks = tg_comm_size(world), here = w.local_ranks;
    *buf = 0;
    size_t at = 0;
    if (several && w.launcher == TG_LAUNCHER_TORCHRUN && here > 0 && here < ranks) {
        snprintf(buf, n, "torchrun --nnodes %d --nproc_per_node %d --no_python ", ranks / here, here);
        return buf;
    }
    if (several && w.launcher == TG_LAUNCHER_RUN) at = (size_t)snprintf(buf, n, "%s ", program_word());
    if (several && w.launcher != TG_LAUNCHER_NONE && at < n)
        snprintf(buf + at, n - at, starts[w.launcher], ranks);
    return buf;
}

int run_on_ranks(const rank_options *o, tg_config config, rank_main fn, void *arg) {
    config.deadline = o->deadline;
    tg_world_info w;
    rank_kind kind = kind_of(o);
    bool processes = kind != RANKS_THREADS, several = processes || o->ranks > 1;
    if (!query_world(&w)) return 1;
    int here = processes ? w.local_ranks : 1, cores = tg_system_cores();
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
    if (processes) return run_process(kind, &w, config, fn, arg);
    if (o->ranks > 1) return run_threads((int)o->ranks, &config, fn, arg);
    tg_ctx *ctx = tg_ctx_new(&config);
    return run_rank(ctx, tg_comm_self_new(ctx), fn, arg);
}

tg_parallel *groups_of_ranks(const rank_options *o, tg_comm *world) {
    return tg_parallel_new(world, TG_PARALLEL(.tp = (int)o->tp, .cp = (int)o->cp, .pp = (int)o->pp, .vp = (int)o->vp,
                                              .sequence_parallel = o->sp, .rng = (tg_rng_mode)o->rng));
}

tg_module *load_on_ranks(tg_ctx *ctx, const tg_parallel *p, const tg_lm_config *config, const char *dir,
                         bool map) {
    tg_lm_config c = *config;
    c.parallel = p;
    c.unfilled = true;
    tg_module *gpt = tg_lm_new(ctx, &c);
    (map ? tg_lm_map : tg_lm_load)(&gpt, 1, dir);
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
    if (tg_parallel_size(p, TG_CP) > 1) tg_place(p, ids, TG_CP, TG_SHARD_ZIGZAG(1)); /* which needs an even length */
    tg_place(p, ids, TG_DP, shard ? TG_SHARD(0) : TG_V);
}

int64_t tokens_of_rank(const tg_parallel *p, int64_t seq_len) { return seq_len / tg_parallel_size(p, TG_CP); }

static void read_window(tg_tokens *tokens, int64_t offset, int64_t n, token_kind kind, int64_t *out) {
    if (kind == TOKEN_POSITIONS) tg_tokens_read_positions(tokens, offset, n, out);
    else tg_tokens_read_window(tokens, offset, n, kind == TOKEN_IDS ? out : NULL, kind == TOKEN_IDS ? NULL : out);
}

/* A rank of cp has two runs of tokens, its chunks (context_parallel.h). */
void read_tokens_of_rank(const tg_parallel *p, tg_tokens *tokens, int64_t offset, int64_t seq_len, token_kind kind,
                         int64_t *out) {
    int64_t n = tg_parallel_size(p, TG_CP), rank = tg_parallel_rank(p, TG_CP), length = seq_len / (2 * n);
    if (n == 1) {
        read_window(tokens, offset, seq_len, kind, out);
        return;
    }
    int64_t *whole = malloc((size_t)seq_len * sizeof *whole);
    if (!whole) {
        tg_ctx_fail(tg_parallel_ctx(p), TG_ERR_MEMORY, "no memory for a sequence of %lld tokens", (long long)seq_len);
        return;
    }
    read_window(tokens, offset, seq_len, kind, whole);
    memcpy(out, whole + rank * length, (size_t)length * sizeof *out);
    memcpy(out + length, whole + (2 * n - 1 - rank) * length, (size_t)length * sizeof *out);
    free(whole);
}
