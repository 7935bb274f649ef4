/* The ranks of a subcommand, which are threads of this process or processes that a launcher started: their options, how
 * they are started, and small values that they exchange. */
#ifndef TAPEGRAD_TOOLS_RANKS_H
#define TAPEGRAD_TOOLS_RANKS_H

#include <tapegrad/parallel.h>
#include <tapegrad/pipe.h>

#include "common/program.h"

/* The options of ranks. The help texts in the rows below explain them. */
typedef struct rank_options {
    int comm; /* rank_kind */
    int rng;  /* tg_rng_mode */
    int64_t ranks, tp, cp, pp, vp;
    int cp_kind;      /* tg_cp_kind */
    int64_t cp_inner; /* of TG_CP_HIERARCHY; 0: all ranks */
    int schedule;       /* tg_pipe_kind, of a pipeline */
    const char *layout; /* how the layers are divided over the parts of a pipeline; NULL: equally */
    bool sp;
    int64_t zero; /* divided over data-parallel ranks: 1: the optimizer's state; 2: and gradients; 3: and parameters */
    int wire;     /* wire_dtype */
    double deadline;
} rank_options;

typedef enum rank_kind { RANKS_AUTO, RANKS_THREADS, RANKS_SHM, RANKS_MPI, RANKS_TCP, RANKS_NCCL } rank_kind;
/* The dtype in which gradients travel between replicas: that of the gradients, or bfloat16. */
typedef enum wire_dtype { WIRE_AUTO, WIRE_BF16 } wire_dtype;

/* Rows of options for the field `on`, a rank_options, of the struct S. */
#define RANK_ROWS(S)                                                                                                   \
    {"ranks", OPTION_INT, offsetof(S, on.ranks), "N", "ranks that are threads; a replica of the model takes --tp "     \
     "of them (times --cp and --pp), and there are as many replicas as fit", 1, 1024, false},                          \
    {"tp", OPTION_INT, offsetof(S, on.tp), "N", "tensor-parallel ranks that share a replica", 1, 1024, false}
/* Rows for commands that divide sequences. The words are in the order of tg_cp_kind. */
#define CP_ROWS(S)                                                                                                     \
    {"cp", OPTION_INT, offsetof(S, on.cp), "N", "context-parallel ranks that divide each sequence", 1, 1024, false},   \
    {"cp-kind", OPTION_CHOICE, offsetof(S, on.cp_kind), "ring|gather|ulysses|hierarchy",                               \
     "how the ranks of --cp exchange keys and values: around a ring, gathered by all, heads for rows, or heads for "   \
     "rows in groups of --cp-inner ranks and a ring of the groups", .fixed = false},                                   \
    {"cp-inner", OPTION_INT, offsetof(S, on.cp_inner), "N",                                                            \
     "ranks of a group of --cp-kind hierarchy; 0: all ranks of --cp", 0, 1024, false}
#define SP_ROW(S)                                                                                                      \
    {"sp", OPTION_FLAG, offsetof(S, on.sp), "", "sequence parallelism between tensor-parallel layers",                 \
     .fixed = false}
/* Rows for commands that run training steps on several replicas. */
#define ZERO_ROWS(S)                                                                                                   \
    {"zero", OPTION_INT, offsetof(S, on.zero), "N",                                                                    \
     "divide over the replicas: 1: the optimizer's state; 2: and sums of gradients; 3: and parameters; 0: nothing "    \
     "(ZeRO's stages)", 0, 3, false},                                                                                  \
    {"wire", OPTION_CHOICE, offsetof(S, on.wire), "auto|bf16",                                                         \
     "dtype in which gradients travel between replicas; auto: that of the gradients", .fixed = false}
/* Rows for commands whose ranks communicate. */
#define COMM_ROWS(S)                                                                                                   \
    {"comm", OPTION_CHOICE, offsetof(S, on.comm), "auto|threads|shm|mpi|tcp|nccl",                                     \
     "how ranks communicate; auto: shm under `tapegrad run`, mpi under mpirun, tcp under torchrun and srun, else "     \
     "threads. With --device cuda NCCL moves the data in any case; nccl: like auto, but requires --device cuda",       \
     .fixed = false},                                                                                                  \
    {"deadline", OPTION_REAL, offsetof(S, on.deadline), "S",                                                           \
     "seconds that a rank waits for another one before the run fails", 0.001, 1e6, false}

/* Rows for commands that divide the layers over the stages of a pipeline. */
#define PP_ROWS(S)                                                                                                     \
    {"pp", OPTION_INT, offsetof(S, on.pp), "N", "stages of the pipeline over which the layers are divided", 1, 1024,   \
     false},                                                                                                           \
    {"layout", OPTION_TEXT, offsetof(S, on.layout), "TEXT",                                                            \
     "how --pp divides the layers, as in 'E t*3|t*5 L': E is the embedding, t a layer, L the output, and | begins "    \
     "the next part; if not given, in equal parts", .fixed = false}
/* Rows for commands that run training steps in a pipeline. The words are in the order of tg_pipe_kind. */
#define SCHEDULE_ROWS(S)                                                                                               \
    {"vp", OPTION_INT, offsetof(S, on.vp), "N", "chunks of layers of each stage", 1, 256, false},                      \
    {"schedule", OPTION_CHOICE, offsetof(S, on.schedule), "gpipe|1f1b|interleaved|zb-h1",                              \
     "order in which the stages of --pp compute (see tapegrad schedule); interleaved if --vp is above 1 and this is "  \
     "not given", .fixed = false}

#define RANK_DEFAULTS {.ranks = 1, .tp = 1, .cp = 1, .pp = 1, .vp = 1, .schedule = TG_PIPE_1F1B, .deadline = 300}

/* The function that one rank runs. Returns an exit status. */
typedef int (*rank_main)(void *arg, tg_ctx *ctx, tg_comm *world);

/* Checks that the options agree with each other and with the launcher. Returns 0, or the exit status after printing
 * what is wrong. */
int rank_options_check(const command *c, const parsed *p, const rank_options *o);
/* Checks that --ranks can be divided into replicas. */
int ranks_check_divisible(const command *c, const parsed *p, const rank_options *o);
/* Checks that the environment does not contradict itself, and that --comm fits it. Checks no other option. With
 * --resume this must be done before the other options are read from a checkpoint. */
int comm_option_check(const command *c, const rank_options *o);
/* Refuses --zero and --wire, given on the command line, for ranks that are a single replica, because both are for what
 * replicas divide or send each other. ranks: of the whole run. Ranks of --cp count as replicas, because they sum
 * gradients too. */
int zero_options_check(const command *c, const parsed *p, const rank_options *o, int64_t ranks);
/* Returns the number of ranks, which a launcher sets if they are processes. */
int64_t rank_count(const rank_options *o);
/* Refuses options that have no effect without tensor-parallel ranks. recompute: the value of --recompute. */
int tp_options_check(const command *c, const parsed *p, const rank_options *o, int recompute);
/* Completes the options of a pipeline. Chooses the schedule, unless one is given. If the command line says how the
 * model is divided (--pp, --vp, or a schedule of one chunk), drops the --vp and --layout that come from a
 * checkpoint. */
void pipeline_options_complete(const command *c, const parsed *p, rank_options *o);
/* Checks that the options of a pipeline agree with each other. Returns 0, or the exit status after printing what is
 * wrong. */
int pipeline_options_check(const command *c, const parsed *p, const rank_options *o);
/* Checks that the options of context parallelism agree with each other and with sequences of seq_len tokens; 0: the
 * length is not known yet. */
int cp_options_check(const command *c, const parsed *p, const rank_options *o, int64_t seq_len);
/* Sets *chief to whether this process has rank 0, and lets messages name the rank. Must be called before any other work
 * of the subcommand, after comm_option_check. */
void ranks_begin(bool *chief);
/* Writes the flight recorder (tg_comm_record_dump) to stderr, once; may be called from a signal handler. Does nothing
 * if the ranks are threads or were started by `tapegrad run`. Other launchers, when a rank has died, end the others by
 * SIGTERM and soon afterwards by SIGKILL. */
void dump_record(void);
/* Runs fn on every rank of this process, each with a context made from config; the deadline comes from the options.
 * Returns the exit status. */
int run_on_ranks(const rank_options *o, tg_config config, rank_main fn, void *arg);
/* Writes the beginning of a command line that starts these ranks (with torchrun, those of one node), such as
 * "mpirun -n 4 "; "" if they are threads or the launcher is unknown. Returns buf. */
const char *launcher_text(const rank_options *o, const tg_comm *world, char *buf, size_t n);
/* Divides the ranks of world into groups by the options. Errors are recorded in the context. */
tg_parallel *groups_of_ranks(const rank_options *o, tg_comm *world);
/* Loads this rank's shards of the model in a directory. map: maps its files where that is possible (tg_lm_map); the
 * caller handles SIGBUS (mapped.h). Never returns NULL. Errors are recorded in the context. */
tg_module *load_on_ranks(tg_ctx *ctx, const tg_parallel *p, const tg_lm_config *config, const char *dir, bool map);

static inline bool is_chief(const tg_comm *world) { return tg_comm_rank(world) == 0; }
/* Sets v[0] to v[n - 1] to rank 0's numbers on all ranks. Collective. False after printing an error. */
bool broadcast_from_rank_0(tg_ctx *ctx, tg_comm *world, int64_t *v, int n);
/* Sets v[0] to v[n - 1] to their sums over all ranks, added in the order of ranks; over NCCL, in an order of its own.
 * Collective. An error stays in the context, and is not printed. */
void sum_over_ranks(tg_ctx *ctx, tg_comm *world, double *v, int n);
/* Declares the placement (placement.h) of ids [b, s], this rank's part of a batch. On tp it is I, because all tp ranks
 * have the same ids. On cp, if that has several ranks, it is V1:z, this rank's tokens of each sequence. On dp it is V0,
 * a shard of the batch, or V if `shard` is false, because the numbers of sequences may then differ between ranks. Does
 * nothing if p is NULL, which means one rank. */
void place_batch(const tg_parallel *p, tg_tensor *ids, bool shard);
/* Returns the number of tokens that this rank has of a sequence. p may be NULL. */
int64_t tokens_of_rank(const tg_parallel *p, int64_t seq_len);
/* What a model reads of a sequence: its tokens, the token after each of them (tg_tokens_read_window), and their
 * positions in packed documents (tg_tokens_read_positions). */
typedef enum token_kind { TOKEN_IDS, TOKEN_TARGETS, TOKEN_POSITIONS, TOKEN_KINDS } token_kind;
/* Reads this rank's part of the sequence of seq_len tokens that begins at `offset`. p may be NULL, which means one
 * rank. Errors are recorded in the context that the tokens and p share. */
void read_tokens_of_rank(const tg_parallel *p, tg_tokens *tokens, int64_t offset, int64_t seq_len, token_kind kind,
                         int64_t *out);

#endif
