/* The ranks of a subcommand, threads of this process or processes that a launcher started: their options, starting
 * them, and values on which they agree. */
#ifndef TAPEGRAD_TOOLS_RANKS_H
#define TAPEGRAD_TOOLS_RANKS_H

#include <tapegrad/parallel.h>

#include "program.h"

typedef struct rank_options {
    int comm; /* rank_kind */
    int rng;  /* tg_rng_mode */
    int64_t ranks, tp;
    bool sp;
    double deadline;
} rank_options;

typedef enum rank_kind { RANKS_AUTO, RANKS_THREADS, RANKS_SHM, RANKS_MPI, RANKS_NCCL } rank_kind;

/* Rows for the field `on` of the struct S. */
#define RANK_ROWS(S)                                                                                                   \
    {"ranks", OPTION_INT, offsetof(S, on.ranks), "N", "ranks that are threads; --ranks / --tp is the number of "       \
     "data-parallel replicas", 1, 1024, false},                                                                        \
    {"tp", OPTION_INT, offsetof(S, on.tp), "N", "tensor-parallel ranks that share a replica", 1, 1024, false}
#define SP_ROW(S)                                                                                                      \
    {"sp", OPTION_FLAG, offsetof(S, on.sp), "", "sequence parallelism between tensor-parallel layers",                 \
     .fixed = false}
/* Rows for commands whose ranks communicate. */
#define COMM_ROWS(S)                                                                                                   \
    {"comm", OPTION_CHOICE, offsetof(S, on.comm), "auto|threads|shm|mpi|nccl",                                         \
     "how ranks communicate; auto: shm under `tapegrad run`, mpi under mpirun, else threads. With --device cuda data " \
     "go by NCCL in any case; nccl: like auto, but requires --device cuda", .fixed = false},                           \
    {"deadline", OPTION_REAL, offsetof(S, on.deadline), "S",                                                           \
     "seconds that a rank waits for another one before the run fails", 0.001, 1e6, false}

#define RANK_DEFAULTS {.ranks = 1, .tp = 1, .deadline = 300}

/* The function that one rank runs. Returns an exit status. */
typedef int (*rank_main)(void *arg, tg_ctx *ctx, tg_comm *world);

/* Checks that the options fit each other and the launcher. Returns 0, or the exit status after printing. */
int rank_options_check(const command *c, const parsed *p, const rank_options *o);
/* Checks --comm alone. With --resume this must happen before the other options are read from a checkpoint. */
int comm_option_check(const command *c, const rank_options *o);
/* Refuses options that do nothing without tensor-parallel ranks; recompute is the model's option. */
int tp_options_check(const command *c, const parsed *p, const rank_options *o, int recompute);
/* Starts MPI if the ranks communicate by it, and sets whether this process has rank 0. Is called before anything else.
 * Returns 0, or the exit status after printing. */
int ranks_begin(const rank_options *o, bool *chief);
void ranks_end(const rank_options *o, int status);
/* Writes the flight recorder (tg_comm_record_dump) to stderr, once; may be called from a signal handler. Does
 * something only under MPI: when mpirun loses a rank, it ends the others by SIGTERM and soon afterwards by SIGKILL. */
void dump_record(void);
/* Runs fn on every rank that belongs to this process; config's deadline comes from the options. Returns the exit
 * status. */
int run_on_ranks(const rank_options *o, tg_config config, rank_main fn, void *arg);
/* Writes what precedes `tapegrad` on the command line of these ranks, with a blank after it, or "". Returns buf. */
const char *launcher_text(const rank_options *o, const tg_comm *world, char *buf, size_t n);
/* Returns the groups of a rank. Errors are the context's. */
tg_parallel *groups_of_ranks(const rank_options *o, tg_comm *world);
/* Loads the model in a directory, as this rank's shards of it; never NULL. Errors are the context's. */
tg_module *load_on_ranks(tg_ctx *ctx, const tg_parallel *p, const tg_gpt_config *config, const char *dir);

static inline bool is_chief(const tg_comm *world) { return tg_comm_rank(world) == 0; }
/* Sets v to rank 0's numbers. Collective. False after an error, which has been printed. */
bool agree(tg_ctx *ctx, tg_comm *world, int64_t *v, int n);
/* Sets v to the sums over all ranks, added in the order of ranks. Collective. False as above. */
bool sum_over_ranks(tg_ctx *ctx, tg_comm *world, double *v, int n);
/* Places the ids [b, s] of this rank's part of a batch: the same on all tp ranks; on dp a shard of the batch, or
 * varying, if each rank has a number of sequences of its own. */
void place_batch(const tg_parallel *p, tg_tensor *ids, bool shard);

#endif
