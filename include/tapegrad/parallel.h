/* Groups of ranks: the grid of a parallel program, its random streams, and recovery after a failed rank. Include it in
 * a program with several ranks; mappings.h, tensor_parallel.h and data_parallel.h include it.
 *
 * A rank is a context and the thread that uses it. Ranks are threads of one process (tg_ranks_run), processes of one
 * node (`tapegrad run`), or processes of several nodes (docs/cluster.md). Ranks communicate through a tg_comm (comm.h).
 *
 * A grid numbers the ranks along axes. The dense grid has the axes tp (tensor), cp (context), dp (data) and pp
 * (pipeline parallelism). Layers of experts have a grid of their own, the expert grid, with the axes etp (tensor), ep
 * (expert), edp (data) and pp. The ranks that differ only along one axis form a group. */
#ifndef TAPEGRAD_PARALLEL_H
#define TAPEGRAD_PARALLEL_H

#include <tapegrad/comm.h>
#include <tapegrad/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Groups ---- */

typedef enum tg_rng_mode {
    /* The number that an element draws depends on the coordinates of the element in the global tensor. Every grid
     * therefore draws the same numbers as one rank. With several pipeline stages this holds only if each layer opens a
     * key (tg_key_open), because a stage draws only for its own layers. */
    TG_RNG_GLOBAL,
    /* Each rank has streams of its own, seeded by Megatron-Core's formulas. Call tg_rng_seed_parallel before the first
     * draw. The placement of a tensor (placement.h) on the axes with several ranks selects the stream:
     * - V or a shard on etp or ep: "expert-parallel-rng";
     * - otherwise, V or a shard on tp: "model-parallel-rng". Exception: a parameter that tg_param_new_placed places on
     *   an axis of the expert grid too draws from "expert-parallel-rng";
     * - otherwise the default stream, which is the same on every rank.
     *
     * Each rank draws its part as if the part were a whole tensor. While a stream is forked (tg_rng_fork), all draws
     * come from that stream. Open keys (tg_key_open) change nothing. */
    TG_RNG_MEGATRON,
} tg_rng_mode;

/* tg_parallel_new fails with TG_ERR_ARGUMENT if an option is out of its range. */
typedef struct tg_parallel_opts {
    size_t size;
    /* Number of ranks along each axis, from 1 to world; 1 by default. dp is world / (tp * cp * pp), which must be a
     * whole number. world is the size of the world communicator. */
    int tp, cp, pp;
    /* The expert grid. etp TG_AUTO, the default, means the same as tp; ep is 1 by default. edp is world / (etp * ep *
     * pp), which must be a whole number. If ep is 1 and the groups of etp are those of tp, both grids are the same: etp
     * is then another name of tp, and edp is another name of dp and cp together. */
    int etp, ep;
    /* The names of the axes, each once, joined by "-", at most 39 bytes. A name may be left out if its axis has one
     * rank in both grids. The rank numbers vary fastest along the first axis. NULL, the default, means
     * "tp-cp-ep-dp-pp". The same text gives the order of the expert grid, where tp stands for etp and dp for edp. Both
     * grids must have the same groups along pp. The text is copied. */
    const char *order;
    bool sequence_parallel; /* shard activations on dim 0 between tensor-parallel regions; no effect if tp is 1 */
    tg_rng_mode rng; /* TG_RNG_GLOBAL by default */
    /* Number of chunks of layers on each pp rank, for an interleaved schedule (pipe.h), 1 or more; 1 by default. Must
     * be 1 if pp is 1. */
    int vp;
} tg_parallel_opts;

#define TG_PARALLEL_DEFAULTS                                                                      \
    .size = sizeof(tg_parallel_opts), .tp = 1, .cp = 1, .pp = 1, .etp = TG_AUTO, .ep = 1, .vp = 1
#define TG_PARALLEL(...) (&(tg_parallel_opts){TG_PARALLEL_DEFAULTS, __VA_ARGS__})

/* Creates this rank's groups, one for each axis, and makes them the grid of the context. Every rank of world must call
 * it. world must outlive the result. opts NULL means the defaults, so dp has all ranks. A context has at most one
 * tg_parallel at a time (TG_ERR_STATE). On error returns an inert object (tapegrad.h). */
TG_API tg_parallel *tg_parallel_new(tg_comm *world, const tg_parallel_opts *opts);
/* Frees the groups. Before it, free the modules and other objects that were made with p. After it, placed and shared
 * tensors can only be dropped. */
TG_API void tg_parallel_free(tg_parallel *p);
TG_API tg_ctx *tg_parallel_ctx(const tg_parallel *p);
/* Return the world, and this rank's group along an axis. The group of an unused axis has size 1. The world belongs to
 * the caller; all groups that functions return for p, here and below, belong to p. These functions return NULL if p is
 * NULL or inert, and tg_parallel_comm also if axis is TG_AXIS_USER or higher. */
TG_API tg_comm *tg_parallel_world(const tg_parallel *p);
TG_API tg_comm *tg_parallel_comm(const tg_parallel *p, tg_axis axis);
TG_API int tg_parallel_rank(const tg_parallel *p, tg_axis axis); /* this rank's number in that group; 0 if p is NULL */
TG_API int tg_parallel_size(const tg_parallel *p, tg_axis axis); /* number of ranks of that group; 1 if p is NULL */
TG_API bool tg_is_sequence_parallel(const tg_parallel *p); /* whether opts set sequence_parallel and tp > 1 */
TG_API tg_rng_mode tg_parallel_rng(const tg_parallel *p);
TG_API int tg_parallel_vp(const tg_parallel *p); /* 1 if p is NULL or inert */
/* Sets the seeds of this rank's random streams, and adds the streams that do not exist yet:
 * - the default stream and "data-parallel-rng" get seed;
 * - "model-parallel-rng" gets seed + 2718 + tp rank;
 * - "expert-parallel-rng" gets seed + 1024 + 100 * (ep rank) + etp rank.
 *
 * With TG_RNG_GLOBAL the ranks in these formulas count as 0, so all ranks get the same seeds. Every rank passes the
 * same seed, except that with TG_RNG_MEGATRON each pipeline stage passes that seed plus 100 * (pp rank), as
 * Megatron-Core's trainer does. The call does not communicate. Fails with TG_ERR_ARGUMENT if p is NULL, if seed is 0,
 * or if two named streams would have the same seed, and with TG_ERR_STATE while one of these three named streams is
 * forked. */
TG_API tg_status tg_rng_seed_parallel(const tg_parallel *p, uint64_t seed);
/* Returns the group of dp and cp together, over which gradients are summed. */
TG_API tg_comm *tg_parallel_dp_cp(const tg_parallel *p);
/* Returns the group of tp and pp together: the ranks that hold one replica of the model. */
TG_API tg_comm *tg_parallel_model(const tg_parallel *p);
/* Returns the group of the first and the last pipeline stage, for word embeddings that both stages hold. Returns NULL
 * on the stages between them. If pp is 1, the group has this rank only. Position embeddings are on the first stage
 * only, and need no group. */
TG_API tg_comm *tg_parallel_embedding(const tg_parallel *p);
/* Returns the group of two ranks over which this pipeline stage sends to a neighbor (sending true) or receives from one
 * (sending false). If down is true, it is a group for activations, which go to the next stage, and from the last stage
 * to the first. If down is false, it is a group for gradients, which go the other way. Rank 0 of either group is the
 * stage that sends activations to the other one. Returns NULL if pp is 1. */
TG_API tg_comm *tg_parallel_edge(const tg_parallel *p, bool down, bool sending);
/* Declares that the ranks of c hold one parameter: each has a copy, and the copies have equal values. One example is
 * the table of word embeddings on the first stage, which is also the weight of the output layer on the last stage:
 * tg_share(p, table, tg_parallel_embedding(p)).
 *
 * From then on tg_grads_finalize also adds up the gradients of the copies, after its sums over the axes of the grid,
 * such as dp. So equal optimizers keep the copies equal. After tg_grads_finalize each copy has a gradient, which is 0
 * if no rank had one. Norms and counts of gradients (optim.h) count the copy of rank 0 only, and sharded state
 * (checkpoint.h) has only that copy.
 *
 * Every rank of c makes the call. If the ranks share several parameters over c, all ranks make these calls in the same
 * order, and pass the parameters to tg_grads_finalize in the same order. In check mode the copies are compared, here
 * and in every tg_grads_finalize (TG_ERR_PLACEMENT). The declaration ends when c is freed, as by tg_parallel_free.
 *
 * Fails with TG_ERR_ARGUMENT if p or c is NULL, or if c is of another context. Fails with TG_ERR_STATE if param is not
 * a leaf that needs a gradient, if it is shared already, or if tg_flat_new (with zero 1 to 3) has divided it. */
TG_API tg_status tg_share(const tg_parallel *p, tg_tensor *param, tg_comm *c);
/* Rebuilds every group in place after an error that has ended a group (comm.h), such as TG_ERR_REMOTE or
 * TG_ERR_MISMATCH. Every remaining rank calls tg_ctx_clear and then this function. If ranks were lost, the remaining
 * ones are renumbered (tg_comm_recover): dp and edp become smaller, and a rank may have other coordinates on every
 * axis.
 *
 * Fails with TG_ERR_STATE if the number of remaining ranks is not a multiple of tp * cp * pp and of etp * ep * pp; p
 * then has to be freed. Fails with TG_ERR_STATE too while a pipe of p runs (tg_pipe_run), and with the errors of
 * tg_comm_recover. */
TG_API tg_status tg_parallel_recover(tg_parallel *p);

/* Lists the groups of a grid along `axes`: one axis, or several such as "tp-dp" (Megatron-Core's RankGenerator).
 * `order` has 1 to 5 names of at most 7 bytes, joined by "-"; the rank numbers vary fastest along the first axis.
 * sizes[i] is the size of axis number i of `order`, 1 or more. Fills out[] with the ranks of the world, one group after
 * the other, each in ascending order. out has one element for each rank of the world. Returns the number of groups, and
 * sets *group_size to the number of ranks of each group. out and group_size may be NULL.
 *
 * Returns -1 if order, sizes or axes is NULL or invalid, if an axis is not in `order`, or if the world has more than
 * INT_MAX ranks. */
TG_API int tg_rank_groups(const char *order, const int *sizes, const char *axes, int *out, int *group_size);

#ifdef __cplusplus
}
#endif

#endif
