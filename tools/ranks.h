/* Ranks of a subcommand: threads of this process, or processes that a launcher started. */
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
    {"ranks", OPTION_INT, offsetof(S, on.ranks), "N", "thread ranks; data-parallel over those that --tp leaves", 1,    \
     1024, false},                                                                                                     \
    {"tp", OPTION_INT, offsetof(S, on.tp), "N", "tensor-parallel ranks of a replica", 1, 1024, false}
#define SP_ROW(S)                                                                                                      \
    {"sp", OPTION_FLAG, offsetof(S, on.sp), "", "sequence parallelism between tensor-parallel regions",                \
     .fixed = false}
/* Of ranks that meet. */
#define COMM_ROWS(S)                                                                                                   \
    {"comm", OPTION_CHOICE, offsetof(S, on.comm), "auto|threads|shm|mpi|nccl",                                         \
     "how ranks meet; auto: threads, shm under `tapegrad run`, mpi under mpirun. On device cuda they meet so, and "   \
     "data go by NCCL; nccl: as auto, on device cuda alone", .fixed = false},                                          \
    {"deadline", OPTION_REAL, offsetof(S, on.deadline), "S", "seconds that a rank waits for the others", 0.001, 1e6,   \
     false}

#define RANK_DEFAULTS {.ranks = 1, .tp = 1, .deadline = 300}

/* What one rank runs. Returns an exit status. */
typedef int (*rank_main)(void *arg, tg_ctx *ctx, tg_comm *world);

/* Checks what belongs together; 0, or the exit status after printing. */
int rank_options_check(const command *c, const parsed *p, const rank_options *o);
/* The part of it that --resume cannot wait with: --comm alone. */
int comm_option_check(const command *c, const rank_options *o);
/* Refuses what was given and does nothing without tensor-parallel ranks; recompute is the model's option. */
int tp_options_check(const command *c, const parsed *p, const rank_options *o, int recompute);
/* Before anything else: starts MPI where that is how ranks meet, and says whether this process has rank 0. 0, or the
 * exit status after printing. */
int ranks_begin(const rank_options *o, bool *chief);
void ranks_end(const rank_options *o, int status);
/* Writes the record of calls (tg_comm_record_dump) to stderr, once, from a signal handler too. Only of ranks of MPI,
 * whose launcher ends all when it has lost one: by SIGTERM, and soon after by SIGKILL. */
void dump_record(void);
/* Runs fn on every rank that is this process's to run; config's deadline comes from the options. The exit status. */
int run_on_ranks(const rank_options *o, tg_config config, rank_main fn, void *arg);
/* What stands before `tapegrad` on the command line of such ranks, "" or with a blank behind it; buf. */
const char *launcher_text(const rank_options *o, const tg_comm *world, char *buf, size_t n);
/* The groups of a rank. Errors are the context's. */
tg_parallel *groups_of_ranks(const rank_options *o, tg_comm *world);
/* The model in a directory, in the shards of the groups; never NULL. Errors are the context's. */
tg_module *load_on_ranks(tg_ctx *ctx, const tg_parallel *p, const tg_gpt_config *config, const char *dir);

static inline bool is_chief(const tg_comm *world) { return tg_comm_rank(world) == 0; }
/* Rank 0's numbers to all. False after an error. */
bool agree(tg_ctx *ctx, tg_comm *world, int64_t *v, int n);
/* The sum over all ranks, in place; sums in rank order. */
bool sum_over_ranks(tg_ctx *ctx, tg_comm *world, double *v, int n);
/* ids of this rank's part of a batch [b, s]: the same on tp; on dp a shard of the batch, or of ranks that each have
 * their own number of sequences, opaque. */
void place_batch(const tg_parallel *p, tg_tensor *ids, bool shard);

#endif
