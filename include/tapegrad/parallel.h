/* Ranks, communicators, groups, placements, and the ops and layers that meet in them.
 *
 * A rank is a context and the thread that uses it; ranks are threads of one process (tg_ranks_run), processes of one
 * node (`tapegrad run`), or MPI's. A communicator belongs to a context; all its calls are collective: every rank makes
 * the same ones in the same order. A rank that does not is named in an error on all ranks of its node before data moves
 * (TG_ERR_MISMATCH), at the latest at the deadline of the context (TG_ERR_TIMEOUT). After a failure anywhere the peers
 * that wait for the failed rank get TG_ERR_REMOTE with its message; after tg_ctx_clear local calls work again, and
 * collectives answer TG_ERR_ABORTED until tg_parallel_recover.
 */
#ifndef TAPEGRAD_PARALLEL_H
#define TAPEGRAD_PARALLEL_H

#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ranks ---- */

/* The body of one rank: ctx and world are its own, both freed after it returns. */
typedef tg_status (*tg_rank_fn)(void *arg, tg_ctx *ctx, tg_comm *world);

typedef struct tg_ranks_opts {
    size_t size;
    const tg_config *config; /* of every rank's context; NULL: defaults. threads 0: the cores shared out evenly */
    char *message;           /* receives the error of the rank that failed first, of those alike the lowest: ... */
    size_t message_size;     /* ... "rank 2: ...", cut to so many bytes */
} tg_ranks_opts;

#define TG_RANKS(...) (&(tg_ranks_opts){.size = sizeof(tg_ranks_opts), __VA_ARGS__})

/* Runs fn on n threads (1 to 1024), a rank each, and joins them. Returns the status of the rank that failed first, not
 * the TG_ERR_REMOTE of its peers. opts may be NULL. */
TG_API tg_status tg_ranks_run(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *opts);

/* ---- Communicators ---- */

/* Made before the first tensor of a context, they also give it its arenas, so that in-node collectives copy nothing;
 * made later they work, with copies. Inert, never NULL, on error (as a context is): every call on it does nothing. */
TG_API tg_comm *tg_comm_self_new(tg_ctx *ctx);                     /* size 1 */
TG_API tg_comm *tg_comm_plan_new(tg_ctx *ctx, int rank, int size); /* moves nothing, counts everything */
TG_API tg_comm *tg_comm_launched_new(tg_ctx *ctx); /* a rank of `tapegrad run`; TG_ERR_STATE elsewhere */
TG_API int tg_comm_launched_rank(void);            /* which rank this process is; -1: it is none */
TG_API void tg_comm_free(tg_comm *c);

/* Ranks of equal color form a group, ordered by key, then by rank. name is copied ("tp"); axis says which placement
 * its collectives convert, TG_MAX_AXES: none (statistics, pipelines). color < 0: this rank is in no group, NULL. */
TG_API tg_comm *tg_comm_split(tg_comm *c, int color, int key, const char *name, tg_axis axis);
TG_API tg_ctx *tg_comm_ctx(const tg_comm *c);
TG_API int tg_comm_rank(const tg_comm *c);
TG_API int tg_comm_size(const tg_comm *c);
TG_API const char *tg_comm_name(const tg_comm *c);
TG_API const char *tg_comm_transport(const tg_comm *c); /* "self", "threads", "shm", "mpi", "plan" ... */
TG_API tg_axis tg_comm_axis(const tg_comm *c);
/* Drops what has failed and begins anew with the ranks that are still there, numbered in their old order: collective
 * over those. Groups split from c are ended. tg_parallel_recover does this for a grid. */
TG_API tg_status tg_comm_recover(tg_comm *c);

/* ---- Collectives on tensors, outside the tape ---- */

typedef enum tg_reduce_op { TG_REDUCE_SUM, TG_REDUCE_MAX, TG_REDUCE_MIN, TG_REDUCE_AVG } tg_reduce_op;

/* Each starts at once and returns its work (NULL on error). The work belongs to the storage that it fills: whoever
 * reads dst waits, so nobody has to call tg_work_wait. The handle is borrowed and good until dst has been read; of a
 * call without dst, as a send, until 32 more of those. While it runs the work holds src's bytes: src may be dropped or
 * discarded and its tape reset; who changes it through the library waits for the work. dst and src are contiguous, of
 * one dtype (any of the eight); dst == src is in place. Sums are ordered by rank, and 16-bit ones accumulate in
 * float32; AVG needs floats. On a group of size 1 dst receives src and nothing is sent. */
TG_API bool tg_work_test(tg_work *w); /* whether it is done, or has failed; helps it along. True for NULL */
TG_API tg_status tg_work_wait(tg_work *w); /* waits now, for who wants its result here */
TG_API tg_work *tg_comm_all_reduce(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op);
TG_API tg_work *tg_comm_all_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src); /* dst numel = n x src, by rank */
TG_API tg_work *tg_comm_reduce_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op); /* src = n x dst */
TG_API tg_work *tg_comm_broadcast(tg_comm *c, tg_tensor *x, int root);
/* Counts in elements, one for each rank, laid one after the other; both NULL: equal parts. Also all-gather and
 * reduce-scatter of unequal parts: see tg_comm_all_gather_v. */
TG_API tg_work *tg_comm_all_to_all(tg_comm *c, tg_tensor *dst, const int64_t *recv_counts, tg_tensor *src,
                                   const int64_t *send_counts);
/* counts[r] elements come from (go to) rank r; the same counts on every rank. */
TG_API tg_work *tg_comm_all_gather_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts);
TG_API tg_work *tg_comm_reduce_scatter_v(tg_comm *c, tg_tensor *dst, tg_tensor *src, const int64_t *counts,
                                         tg_reduce_op op);
TG_API tg_work *tg_comm_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root);  /* dst NULL but at the root */
TG_API tg_work *tg_comm_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root); /* src NULL but at the root */
TG_API tg_work *tg_comm_send(tg_comm *c, tg_tensor *src, int to);
TG_API tg_work *tg_comm_recv(tg_comm *c, tg_tensor *dst, int from);
/* Sends and receives between open and close start together, in any order on any rank: rings cannot lock. */
TG_API tg_status tg_comm_batch_open(tg_comm *c);
TG_API tg_status tg_comm_batch_close(tg_comm *c);
TG_API tg_status tg_comm_barrier(tg_comm *c);

/* Memory of one size on all ranks of c, for fused collectives. Collective to make; NULL on an error. take packs n
 * tensors of the tape at multiples of 16 bytes; false, without an error: not available on this transport (it is for
 * ranks that are threads), too small, or tensors of an earlier take are still open: the caller does without. */
typedef struct tg_symmetric tg_symmetric;
TG_API tg_symmetric *tg_symmetric_new(tg_comm *c, size_t bytes);
TG_API void tg_symmetric_free(tg_symmetric *s);
TG_API bool tg_symmetric_take(tg_symmetric *s, tg_tape *t, const tg_dtype *dtypes, const tg_shape *shapes, int n,
                              tg_tensor **out);

/* ---- The record ---- */

/* The last calls (256 or more) of every rank of this node: sequence, group, kind, dtype, count, reduction, root, call
 * site, state; and what each rank does now. tg_record_dump writes this rank's view into an open file descriptor, from a
 * signal handler too. */
TG_API size_t tg_comm_record(tg_comm *c, tg_format format, char *buf, size_t n);
TG_API void tg_comm_record_dump(const tg_comm *c, int fd);

/* What this rank has sent so far over a communicator and the groups split from it, by kind of collective. */
typedef enum tg_collective {
    TG_ALL_REDUCE,
    TG_ALL_GATHER,
    TG_REDUCE_SCATTER,
    TG_BROADCAST,
    TG_ALL_TO_ALL,
    TG_GATHER,
    TG_SCATTER,
    TG_SEND,
    TG_RECV,
    TG_BARRIER,
    TG_COLLECTIVES
} tg_collective;

typedef struct tg_comm_counts {
    size_t size;
    int64_t calls[16];
    int64_t bytes[16]; /* of payload: all-reduce its vector once, all-gather its result, reduce-scatter its source */
} tg_comm_counts;

#define TG_COMM_COUNTS() ((tg_comm_counts){.size = sizeof(tg_comm_counts)})
TG_API tg_status tg_comm_count(const tg_comm *c, tg_comm_counts *out);
TG_API const char *tg_collective_name(tg_collective k); /* "all_reduce" */

/* ---- Groups ---- */

typedef enum tg_rng_mode {
    TG_RNG_GLOBAL,   /* an element draws by its global coordinates: every composition draws what one rank draws */
    TG_RNG_MEGATRON, /* streams seeded per rank by Megatron-Core's formulas: what varies over tp (or over etp or ep)
                        draws, as a tensor of its own, from "model-parallel-rng" ("expert-parallel-rng") unless the
                        caller has forked a stream; all else from the default one, alike on every rank */
} tg_rng_mode;

typedef struct tg_parallel_opts {
    size_t size;
    int tp, cp, pp;    /* 0: 1. dp is what is left of the world: world % (tp cp pp) must be 0 */
    int etp, ep; /* of the expert grid; 0: tp, and 1. world % (etp ep pp) must be 0. Where ep is 1 and etp's groups
                    are tp's, the two grids are one: etp is tp there, and edp is dp and cp */
    const char *order; /* the leftmost axis varies fastest; NULL: "tp-cp-ep-dp-pp" */
    bool sequence_parallel; /* activations between tensor-parallel regions are sharded on dim 0 */
    tg_rng_mode rng;
    int vp; /* 0: 1. Stages of layers on each pp rank, for schedules that interleave them: above 1 needs pp above 1 */
} tg_parallel_opts;

#define TG_PARALLEL(...) (&(tg_parallel_opts){.size = sizeof(tg_parallel_opts), __VA_ARGS__})

/* This rank's groups, by axis; collective over world, which must outlive it. A context has one at a time. NULL opts:
 * data parallel only. Inert on error. Placed tensors refer to it: free it after them, before world. */
TG_API tg_parallel *tg_parallel_new(tg_comm *world, const tg_parallel_opts *opts);
TG_API void tg_parallel_free(tg_parallel *p);
TG_API tg_ctx *tg_parallel_ctx(const tg_parallel *p);
TG_API tg_comm *tg_parallel_world(const tg_parallel *p);
TG_API tg_comm *tg_parallel_comm(const tg_parallel *p, tg_axis axis); /* borrowed; of size 1 where the axis is unused */
TG_API int tg_parallel_rank(const tg_parallel *p, tg_axis axis);
TG_API int tg_parallel_size(const tg_parallel *p, tg_axis axis);
TG_API bool tg_parallel_sp(const tg_parallel *p); /* sequence parallelism is on: tp > 1 and asked for */
TG_API tg_rng_mode tg_parallel_rng(const tg_parallel *p);
TG_API int tg_parallel_vp(const tg_parallel *p); /* 1 for NULL */
/* (Re)seeds the default stream and "data-parallel-rng" with S = seed, "model-parallel-rng" and "expert-parallel-rng".
 * TG_RNG_MEGATRON: with S + 2718 + tp rank and S + 1024 + 100 ep rank + etp rank (Megatron-Core's trainer takes
 * 100 pp rank more than its seed for S). TG_RNG_GLOBAL: with rank 0's, as ranks then draw apart by coordinates.
 * TG_ERR_ARGUMENT for seed 0 and where two streams would have one seed. */
TG_API tg_status tg_rng_seed_parallel(const tg_parallel *p, uint64_t seed);
/* dp x cp together, over which gradients are summed; and the ranks of one model replica, tp x pp. */
TG_API tg_comm *tg_parallel_dp_cp(const tg_parallel *p);
TG_API tg_comm *tg_parallel_model(const tg_parallel *p);
/* First and last pipeline stage (the one where there is only one); NULL on the ranks between. Position embeddings are
 * the first stage's alone, and need no group. */
TG_API tg_comm *tg_parallel_embedding(const tg_parallel *p);
/* After TG_ERR_REMOTE, TG_ERR_TIMEOUT or TG_ERR_ABORTED, and tg_ctx_clear: collective over the ranks still there;
 * rebuilds every group in place. TG_ERR_STATE where those do not fill the grid. */
TG_API tg_status tg_parallel_recover(tg_parallel *p);

/* RankGenerator (Megatron-Core): the groups of one axis or several ("tp-dp") in a grid, as ranks of the world, group
 * after group. sizes are in the order of `order`; returns the number of groups, -1 for an axis that is not there. out
 * may be NULL; it has room for the whole world. */
TG_API int tg_rank_groups(const char *order, const int *sizes, const char *axes, int *out, int *group_size);

/* ---- Placements ---- */

/* By value; the names of docs/placements.md. */
#ifndef __cplusplus
#define TG_I ((tg_placement){.kind = TG_INVARIANT})
#define TG_R ((tg_placement){.kind = TG_REPLICATED})
#define TG_P ((tg_placement){.kind = TG_PARTIAL})
#define TG_V ((tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE})
#define TG_SHARD(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_CONTIGUOUS, .dim = (d)})
#define TG_SHARD_STRIDED(d, k) ((tg_placement){.kind = TG_VARYING, .layout = TG_STRIDED, .dim = (d), .chunks = (k)})
#define TG_SHARD_ZIGZAG(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_ZIGZAG, .dim = (d)})
#endif

/* Declares how a leaf lies on one axis of p, before its first use: a claim that the library cannot see (check mode
 * compares I and R leaves over the axis: on tp and cp at their first use, on dp by tg_grads_finalize). Undeclared:
 * parameters and what the library made are I, the caller's bytes (tg_from_host, tg_wrap, tg_write) V on tp, cp and dp,
 * and I on the expert grid's axes; pp places nothing. Parameters are never P, nor V without a layout. Where several
 * axes shard one dim, the axis placed first is the major one. An axis of one rank takes any placement and keeps none. A
 * leaf is placed once on an axis (TG_ERR_STATE), which etp and tp may share (tg_parallel_opts). */
TG_API tg_status tg_place(const tg_parallel *p, tg_tensor *leaf, tg_axis axis, tg_placement placement);
/* What can be read off any tensor; an op's result has what the one rule gave. I where x was never placed. */
TG_API tg_placement tg_placement_of(const tg_tensor *x, tg_axis axis);
TG_API tg_shape tg_global_shape(const tg_tensor *x);
TG_API size_t tg_placement_text(const tg_tensor *x, char *buf, size_t n); /* "dp R, tp V0:s3"; "" when all are I */
/* The escape hatch: x with another placement on an axis, identity both ways, nothing checked. The name says it in
 * dumps and errors. */
TG_API tg_tensor *tg_assume_placement(tg_tape *t, tg_tensor *x, const tg_parallel *p, tg_axis axis, tg_placement to);

/* tg_reshape that says which dim of the result x's shard becomes, where the sizes leave that open: one head a rank,
 * [s, b, h/n] V2 to [s, b, 1, h/n] V2, not V3. */
TG_API tg_tensor *tg_reshape_shard(tg_tape *t, tg_tensor *x, tg_shape shape, int dim);

/* A parameter of this rank: of the global shape, placed; its local shape follows. Drawn by global coordinates, so
 * that shards of any tp put together are the parameter of one rank, bit for bit; with TG_RNG_MEGATRON each shard from
 * its rank's stream, an expert's one where at[] names an axis of that grid. Where several axes shard one dim the order
 * in at[] is the order of the axes, major first. */
typedef struct tg_place_at {
    tg_axis axis;
    tg_placement placement;
} tg_place_at;

/* TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}): the last two arguments in one. */
#define TG_PLACES(...)                  \
    (const tg_place_at[]){__VA_ARGS__}, \
        (int)(sizeof((const tg_place_at[]){__VA_ARGS__}) / sizeof(tg_place_at))

TG_API tg_tensor *tg_param_placed(const tg_parallel *p, const char *name, tg_dtype dtype, tg_shape global, double std,
                                  const tg_place_at *at, int n);

typedef struct tg_finalize_opts {
    size_t size;
    tg_tensor *tokens; /* scalar, this rank's count over its micro-batches: gradients are divided by the sum over dp
                          and cp, at least 1. NULL: not divided */
} tg_finalize_opts;

#define TG_FINALIZE(...) (&(tg_finalize_opts){.size = sizeof(tg_finalize_opts), __VA_ARGS__})

/* Once after the last backward of a step: waits for bucket works, sums what is still PARTIAL over the axes where its
 * parameter is R, coalesced by axis set. Before it, norm, clip, step and reading a PARTIAL gradient as a number are
 * TG_ERR_STATE; so is a second call before the gradients are zeroed. Collective over those axes; a rank that had no
 * micro-batch calls it too (its tokens are 0), and gets what the others have summed. A parameter given twice is
 * TG_ERR_ARGUMENT. opts may be NULL. */
TG_API tg_status tg_grads_finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *opts);

/* Data-parallel buckets: the main gradients of params in flat buffers, by dtype, in reverse order, cut where a bucket
 * has `elements` (0: max(40e6, 1e6 dp); TG_NONE: one). A bucket's sum over dp starts when its last gradient of a
 * backward is ready; tg_grads_finalize waits for it. */
typedef struct tg_buckets tg_buckets;
TG_API tg_buckets *tg_buckets_new(const tg_parallel *p, tg_tensor *const *params, int n, int64_t elements);
TG_API void tg_buckets_free(tg_buckets *b);
/* Returns what was set before. Off (on is the default): backward only accumulates, for all but the last micro-batch. */
TG_API bool tg_buckets_set_reduce(tg_buckets *b, bool on);

#ifdef __cplusplus
}
#endif

#include <tapegrad/mappings.h>

#endif
