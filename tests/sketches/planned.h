/* What later work builds, declared early, so that the sketches beside this file show how it will read.
 *
 * A declaration moves to the public header that its section names when its function is built, and its sketch becomes
 * a test; then it goes from here. Nothing here is installed, and nothing links.
 */
#ifndef TAPEGRAD_PLANNED_H
#define TAPEGRAD_PLANNED_H

#include <tapegrad/extend.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== parallel.h: communicators ==== */

/* A communicator belongs to a context and is used by that context's thread. All its calls are collective: every rank
 * makes the same ones in the same order; a rank that does not is named in an error on all ranks of its node before
 * data moves (TG_ERR_MISMATCH), at the latest at the deadline (TG_ERR_TIMEOUT). After a failure anywhere peers get
 * TG_ERR_REMOTE with the failed rank's message; after tg_ctx_clear local calls work again, and collectives answer
 * TG_ERR_ABORTED until tg_parallel_recover. */

/* The body of one rank: ctx and world are its own, both freed after it returns. */
typedef tg_status (*tg_rank_fn)(void *arg, tg_ctx *ctx, tg_comm *world);

typedef struct tg_ranks_opts {
    size_t size;
    const tg_config *config; /* of every rank's context; NULL: defaults. threads 0: the cores shared out evenly */
    char *message;           /* receives the error of the rank that failed first: "rank 2: ..." ... */
    size_t message_size;     /* ... cut to so many bytes */
} tg_ranks_opts;

#define TG_RANKS(...) (&(tg_ranks_opts){.size = sizeof(tg_ranks_opts), __VA_ARGS__})

/* Runs fn on n threads, a rank each, and joins them. Returns the status of the rank that failed first, not the
 * TG_ERR_REMOTE of its peers. opts may be NULL. */
TG_API tg_status tg_ranks_run(int n, tg_rank_fn fn, void *arg, const tg_ranks_opts *opts);

/* One rank of a job that was started as processes. Made before the first tensor of the context, they also give the
 * context its arenas, so that in-node collectives copy nothing; made later they work, with copies. */
TG_API tg_comm *tg_comm_self_new(tg_ctx *ctx);                      /* size 1 */
TG_API tg_comm *tg_comm_plan_new(tg_ctx *ctx, int rank, int size);  /* moves nothing, counts everything */
TG_API tg_comm *tg_comm_launched_new(tg_ctx *ctx);                  /* under `tapegrad run`; TG_ERR_STATE elsewhere */
/* A communicator over the caller's own transport (tg_comm_ops, below), which must outlive it. */
typedef struct tg_comm_ops tg_comm_ops;
TG_API tg_comm *tg_comm_new_on(tg_ctx *ctx, const tg_comm_ops *ops, void *state, int rank, int size);
TG_API void tg_comm_free(tg_comm *c);

/* Ranks of equal colour form a group, ordered by key, then by rank. name is copied ("tp"); axis says which placement
 * its collectives convert, TG_MAX_AXES: none (p2p, statistics). color < 0: this rank is in no group, NULL. */
TG_API tg_comm *tg_comm_split(tg_comm *c, int color, int key, const char *name, tg_axis axis);
TG_API int tg_comm_rank(const tg_comm *c);
TG_API int tg_comm_size(const tg_comm *c);
TG_API const char *tg_comm_name(const tg_comm *c);
TG_API tg_axis tg_comm_axis(const tg_comm *c);

/* ---- Collectives on bytes, outside the tape ---- */

typedef enum tg_reduce_op { TG_REDUCE_SUM, TG_REDUCE_MAX, TG_REDUCE_MIN, TG_REDUCE_AVG } tg_reduce_op;

/* Each starts at once and returns its work. The work belongs to the storage that it fills: whoever reads dst waits,
 * so nobody has to call tg_work_wait. The handle is borrowed; it ends when dst becomes present, and an ended one tests
 * true and waits TG_OK. While it runs the work holds src's bytes: src may be dropped, discarded, its tape reset; it
 * must not be written. dst and src contiguous, of one dtype; dst == src is in place. Sums are ordered by rank.
 * On a group of size 1 dst receives src and nothing is sent. */
TG_API tg_work *tg_comm_all_reduce(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op);
TG_API tg_work *tg_comm_all_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src); /* dst numel = n x src, by rank */
TG_API tg_work *tg_comm_reduce_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, tg_reduce_op op); /* src = n x dst */
TG_API tg_work *tg_comm_broadcast(tg_comm *c, tg_tensor *x, int root);
/* Counts in elements, one for each rank; both NULL: equal parts. */
TG_API tg_work *tg_comm_all_to_all(tg_comm *c, tg_tensor *dst, const int64_t *recv_counts, tg_tensor *src,
                                   const int64_t *send_counts);
TG_API tg_work *tg_comm_gather(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root);  /* dst NULL but at the root */
TG_API tg_work *tg_comm_scatter(tg_comm *c, tg_tensor *dst, tg_tensor *src, int root); /* src NULL but at the root */
TG_API tg_work *tg_comm_send(tg_comm *c, tg_tensor *src, int to);
TG_API tg_work *tg_comm_recv(tg_comm *c, tg_tensor *dst, int from);
/* Sends and receives between open and close start together, in any order on any rank: rings cannot lock. */
TG_API tg_status tg_comm_batch_open(tg_comm *c);
TG_API tg_status tg_comm_batch_close(tg_comm *c);
TG_API tg_status tg_comm_barrier(tg_comm *c);

/* The last calls of every rank of this node (invariant 7): sequence, group, kind, dtype, count, call site, state. */
TG_API size_t tg_comm_record(tg_comm *c, tg_format format, char *buf, size_t n);

/* ==== parallel.h: groups ==== */

typedef enum tg_rng_mode {
    TG_RNG_GLOBAL,   /* an element draws by its global coordinates: every composition draws what one rank draws */
    TG_RNG_MEGATRON, /* streams seeded per rank by Megatron-Core's formulas */
} tg_rng_mode;

typedef struct tg_parallel_opts {
    size_t size;
    int tp, cp, pp;   /* 0: 1. dp is what is left of the world: world % (tp cp pp) must be 0 */
    int etp, ep;      /* of the expert grid; 0: tp, and 1. world % (etp ep pp) must be 0 */
    const char *order; /* the leftmost axis varies fastest; NULL: "tp-cp-ep-dp-pp" */
    bool sequence_parallel; /* activations between tensor-parallel regions are sharded on dim 0 */
    tg_rng_mode rng;
} tg_parallel_opts;

#define TG_PARALLEL(...) (&(tg_parallel_opts){.size = sizeof(tg_parallel_opts), __VA_ARGS__})

/* This rank's groups, by axis; collective over world, which must outlive it. NULL opts: data parallel only. Inert on
 * error. Placed tensors refer to it: it must outlive them. */
TG_API tg_parallel *tg_parallel_new(tg_comm *world, const tg_parallel_opts *opts);
TG_API void tg_parallel_free(tg_parallel *p);
TG_API tg_ctx *tg_parallel_ctx(const tg_parallel *p);
TG_API tg_comm *tg_parallel_comm(const tg_parallel *p, tg_axis axis); /* borrowed; of size 1 where the axis is unused */
TG_API int tg_parallel_rank(const tg_parallel *p, tg_axis axis);
TG_API int tg_parallel_size(const tg_parallel *p, tg_axis axis);
/* First and last pipeline stage (the one where there is only one); NULL on the ranks between. */
TG_API tg_comm *tg_parallel_embedding(const tg_parallel *p);
/* After TG_ERR_REMOTE, TG_ERR_TIMEOUT or TG_ERR_ABORTED, and tg_ctx_clear: collective over the ranks still there;
 * rebuilds every group in place. */
TG_API tg_status tg_parallel_recover(tg_parallel *p);

/* ==== parallel.h: placements ==== */

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
 * compares I and R leaves over the axis). Undeclared: parameters and constants are I, the caller's bytes V. Parameters
 * are never P, nor V without a layout. Global sizes follow: local size times axis size on a sharded dim. Placing a
 * leaf twice, or on two tg_parallel, is TG_ERR_STATE. */
TG_API tg_status tg_place(const tg_parallel *p, tg_tensor *leaf, tg_axis axis, tg_placement placement);
/* The rest can be read off any tensor; an op's result has what the one rule gave. I where x was never placed. */
TG_API tg_placement tg_placement_of(const tg_tensor *x, tg_axis axis);
TG_API tg_shape tg_global_shape(const tg_tensor *x);
TG_API size_t tg_placement_text(const tg_tensor *x, char *buf, size_t n); /* "dp R, tp V0:s3"; "" when all are I */
/* The escape hatch: x with another placement on an axis, identity both ways, nothing checked. The name says it in
 * dumps and errors. */
TG_API tg_tensor *tg_assume_placement(tg_tape *t, tg_tensor *x, const tg_parallel *p, tg_axis axis, tg_placement to);

/* A parameter of this rank: of the global shape, placed; its local shape follows. Drawn by global coordinates, so
 * that shards of any tp put together are the parameter of one rank, bit for bit. Where several axes shard one dim the
 * order in at[] is the order of the axes, major first. */
typedef struct tg_place_at {
    tg_axis axis;
    tg_placement placement;
} tg_place_at;

/* TG_PLACES({TG_TP, TG_SHARD(0)}, {TG_DP, TG_R}): the last two arguments in one. */
#define TG_PLACES(...)                   \
    (const tg_place_at[]){__VA_ARGS__},  \
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
 * TG_ERR_STATE; so is a second call without a backward between. opts may be NULL. */
TG_API tg_status tg_grads_finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *opts);

/* ==== parallel.h: mappings (taped) ==== */

/* Each converts the placement on c's axis and leaves every other axis alone; its backward is the conjugate in the
 * right column, itself taped. Communication starts at once and the result is in flight until it is read. On a group of
 * size 1 they return x itself. Any strides; results are contiguous. d is the sharded dim, negative from the end. */
TG_API tg_tensor *tg_copy_to(tg_tape *t, tg_tensor *x, tg_comm *c);     /* I -> R    all-reduce */
TG_API tg_tensor *tg_reduce_from(tg_tape *t, tg_tensor *x, tg_comm *c); /* P -> I    identity */
TG_API tg_tensor *tg_all_reduce(tg_tape *t, tg_tensor *x, tg_comm *c);  /* P -> R    all-reduce */
TG_API tg_tensor *tg_scatter_to(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* I -> Vd   all-gather */
TG_API tg_tensor *tg_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);          /* R -> Vd   own part in zeros */
TG_API tg_tensor *tg_all_gather(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* Vd -> R   reduce-scatter */
TG_API tg_tensor *tg_gather_from(tg_tape *t, tg_tensor *x, int d, tg_comm *c);    /* Vd -> I   own part */
TG_API tg_tensor *tg_reduce_scatter(tg_tape *t, tg_tensor *x, int d, tg_comm *c); /* P -> Vd   all-gather */
/* Va -> Vb: what was sharded along `cat` becomes whole there and is sharded along `split`. */
TG_API tg_tensor *tg_all_to_all(tg_tape *t, tg_tensor *x, int cat, int split, tg_comm *c);
/* V -> V, rows of dim 0: send[r] go to rank r, recv[r] come from it; both of c's size, read when called. */
TG_API tg_tensor *tg_all_to_all_v(tg_tape *t, tg_tensor *x, const int64_t *recv, const int64_t *send, tg_comm *c);
/* V -> V, from rank r - 1 of the ring; backward from r + 1. */
TG_API tg_tensor *tg_shift(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_broadcast(tg_tape *t, tg_tensor *x, int root, tg_comm *c); /* V -> I   gradient on the root */
TG_API tg_tensor *tg_all_reduce_max(tg_tape *t, tg_tensor *x, tg_comm *c);      /* V -> I, refused with gradient */
TG_API tg_tensor *tg_as_partial(tg_tape *t, tg_tensor *x, tg_comm *c);          /* V -> P */
TG_API tg_tensor *tg_as_opaque(tg_tape *t, tg_tensor *x, tg_comm *c);           /* Vd -> V */
TG_API tg_tensor *tg_as_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* V -> Vd, equal local sizes */
TG_API tg_tensor *tg_i_to_p(tg_tape *t, tg_tensor *x, tg_comm *c);              /* I -> P: x / n */
TG_API tg_tensor *tg_r_to_i(tg_tape *t, tg_tensor *x, tg_comm *c);              /* R -> I   g / n */

/* For pipelines: a leaf of t, in flight, with what rank `from` sends by tg_comm_send. A float one needs a gradient
 * unless told otherwise; sending it back is up to the caller. */
TG_API tg_tensor *tg_recv(tg_tape *t, tg_comm *c, tg_dtype dtype, tg_shape shape, int from);

/* ---- Ops over shards ---- */

/* table [v/n, h] V0, ids [..] the same on every rank -> [.., h] P. */
TG_API tg_tensor *tg_vocab_parallel_embedding(tg_tape *t, tg_tensor *table, tg_tensor *ids, tg_comm *c);
/* logits [.., v/n] sharded on the last dim, target [..] global ids -> [..] or a scalar, I. Smoothing as opts says, over
 * all v classes; three all-reduces of [..], one more with smoothing. */
TG_API tg_tensor *tg_vocab_parallel_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, tg_comm *c,
                                                  const tg_cross_entropy_opts *opts);
/* q [b, h, sq, d], k, v as in tg_attention; also the log-sum-exp of each row, lse [b, h, sq], float32 (float64). Two
 * results over disjoint keys merge into that over their union: an op of its own, differentiable in all four. */
TG_API tg_tensor *tg_attention_lse(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, const tg_attention_opts *opts,
                                   tg_tensor **lse);
TG_API tg_tensor *tg_attention_merge(tg_tape *t, tg_tensor *o1, tg_tensor *lse1, tg_tensor *o2, tg_tensor *lse2,
                                     tg_tensor **lse);
/* Collective: rank 0's tensors to all; x[] on the others are outputs, tape-owned, I. Any ndim, zero sizes included;
 * TG_ERR_DTYPE on every rank when one of them is not of dtype. */
TG_API tg_status tg_broadcast_data(tg_tape *t, tg_tensor **x, int n, tg_dtype dtype, tg_comm *c);

/* ==== parallel.h: layers ==== */

typedef struct tg_plinear_opts {
    size_t size;
    bool no_bias;
    double std;              /* 0: 0.02 */
    int strides;             /* partition strides: 2 for gate and up, 3 for q, k, v; 0: 1 */
    bool gather_output;      /* column: [.., out] I instead of [.., out/n] V */
    bool input_is_whole;     /* row: x is I and is scattered here; not with sequence parallelism */
    bool skip_bias_add;      /* leave the bias to a fused op: tg_module_find(m, "bias") */
    tg_tensor *weight;       /* tied: [out/n, in] or [out, in/n]; NULL: the layer's own */
    bool fused_wgrad;        /* the weight's gradient is added straight into its main_grad */
    int deferred_wgrads;     /* up to so many weight gradients wait for tg_wgrads_drain; 0: none, TG_NONE: no limit */
} tg_plinear_opts;

#define TG_PLINEAR(...) (&(tg_plinear_opts){.size = sizeof(tg_plinear_opts), __VA_ARGS__})

/* Weights [out, in], activations [s, b, h]. Column: weight and bias V0, x I (V0 under sequence parallelism) ->
 * [.., out/n] sharded on the last dim. Row: weight V1, bias I (R under sequence parallelism), x sharded on the last dim
 * -> [.., out] I (V0). The dgrad's communication overlaps the wgrad. out, in or vocab % tp != 0 is TG_ERR_SHAPE. opts
 * may be NULL. */
TG_API tg_module *tg_nn_column_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_plinear_opts *opts);
TG_API tg_module *tg_nn_row_linear(const tg_parallel *p, int64_t in, int64_t out, const tg_plinear_opts *opts);
/* ids [b, s] -> [s, b, hidden] I, or V0 under sequence parallelism */
TG_API tg_module *tg_nn_vocab_embedding(const tg_parallel *p, int64_t vocab, int64_t hidden, double std);
TG_API tg_status tg_wgrads_drain(tg_module *m); /* computes what its linears deferred, in recorded order */

/* ==== parallel.h: flat buffers, ZeRO-1 ==== */

typedef struct tg_flat tg_flat;

typedef struct tg_flat_opts {
    size_t size;
    int64_t bucket;   /* elements at which a bucket closes; 0: max(40e6, 1e6 dp); TG_NONE: one bucket */
    bool shard;       /* ZeRO-1: reduce-scatter gradients; each rank steps 1/dp and gathers the rest */
} tg_flat_opts;

#define TG_FLAT(...) (&(tg_flat_opts){.size = sizeof(tg_flat_opts), __VA_ARGS__})

/* Re-homes params, in reverse order, into one buffer for each (dtype, grid), and their gradients into a float32 one
 * (float64 for float64): handles, names and values stay, bytes move, hooks start a bucket's reduction when its last
 * gradient is ready. Refused for a parameter that a live tape saved, that has a main_grad, or is in another tg_flat.
 * Parameters start at multiples of 64 elements, buckets end at multiples of lcm(dp, 128). tg_flat_free leaves them in
 * the buffers, which live as long as their parameters. */
TG_API tg_flat *tg_flat_new(const tg_parallel *p, tg_tensor *const *params, int n, const tg_flat_opts *opts);
TG_API void tg_flat_free(tg_flat *f);
/* Returns what was set before. Off (on is the default): backward only accumulates, for all but the last micro-batch. */
TG_API bool tg_flat_set_reduce(tg_flat *f, bool on);
/* With shard: the ranges of parameters in this rank's shard, as 1-D leaves on the same bytes, whose gradients are the
 * reduced ranges: what the optimiser is made of. Without: the parameters. Borrowed; names "h.0.fc.weight[128:192]". */
TG_API int tg_flat_leaf_count(const tg_flat *f);
TG_API tg_tensor *const *tg_flat_leaves(tg_flat *f);
/* After the step: starts the all-gathers; a parameter is in flight until its bucket has come. */
TG_API tg_status tg_flat_gather(tg_flat *f);

/* The parts of it, for other designs. x's bytes move into view, which is contiguous and of x's dtype and numel; all
 * handles of x follow. Refused while a node saves x, or for a view. */
TG_API tg_status tg_rehome(tg_tensor *x, tg_tensor *view);
/* A context-owned view of a context-owned tensor's bytes: numel elements from offset on, as shape. */
TG_API tg_tensor *tg_view_of(tg_tensor *base, int64_t offset, tg_shape shape);
/* Adds g into x's gradient as a backward would, hooks included. Where g is x's main_grad itself it only says that the
 * buffer holds a gradient. */
TG_API tg_status tg_accumulate_grad(tg_tensor *x, tg_tensor *g);

/* ==== io.h: sharded state ==== */

typedef struct tg_shards tg_shards;

/* One tensor of a global state: what a checkpoint needs to know to be read by any other composition. */
typedef struct tg_shard_info {
    size_t size;
    const char *key; /* global: the same on every rank */
    tg_tensor *tensor;
    tg_shape global, offset; /* of a strided or zigzag shard: of its first chunk */
    tg_placement placement[TG_MAX_AXES];
    int replica; /* 0 on the one rank that writes it */
} tg_shard_info;

/* A list of tensors that save and load together. Keys, offsets and replicas come from placements. prefix "" adds none.
 * Collective: every rank adds the same, in the same order. */
TG_API tg_shards *tg_shards_new(const tg_parallel *p);
TG_API void tg_shards_free(tg_shards *s);
TG_API tg_status tg_shards_add_module(tg_shards *s, const char *prefix, tg_module *m);
TG_API tg_status tg_shards_add_optim(tg_shards *s, const char *prefix, tg_optim *o);
TG_API tg_status tg_shards_add_tensor(tg_shards *s, const char *key, tg_tensor *x);
TG_API int tg_shards_count(const tg_shards *s);
TG_API tg_status tg_shards_at(const tg_shards *s, int i, tg_shard_info *out);
/* dir: safetensors of the global tensors, written by rank 0 of each replica set, renamed into place together. Load
 * takes any composition's dir; missing, unknown and misshapen keys are TG_ERR_FORMAT and nothing is changed. */
TG_API tg_status tg_shards_save(tg_shards *s, const char *dir);
TG_API tg_status tg_shards_load(tg_shards *s, const char *dir);

/* ==== tapegrad.h: named random streams ==== */

/* Names and seeds are unique in a context (TG_ERR_ARGUMENT), as their draws would be equal otherwise. Unknown names
 * are TG_ERR_ARGUMENT everywhere. */
TG_API tg_status tg_rng_add(tg_ctx *ctx, const char *name, uint64_t seed);
TG_API tg_status tg_rng_remove(tg_ctx *ctx, const char *name);
/* The state by value; name NULL: the default stream. tg_recompute restores every stream by itself. */
TG_API tg_status tg_rng_get(tg_ctx *ctx, const char *name, tg_rng *out);
TG_API tg_status tg_rng_set(tg_ctx *ctx, const char *name, const tg_rng *s);
/* From fork to join the default stream is the named one, which goes on where it was left. Forks nest, also of one
 * name. join without fork is TG_ERR_STATE. */
TG_API tg_status tg_rng_fork(tg_ctx *ctx, const char *name);
TG_API tg_status tg_rng_join(tg_ctx *ctx);
/* The streams "data-parallel-rng", "model-parallel-rng", "expert-parallel-rng" of p's mode from one seed > 0. */
TG_API tg_status tg_rng_seed_parallel(const tg_parallel *p, uint64_t seed);

/* ==== tapegrad.h: recomputation without output ==== */

/* Recomputations that replay together, in forward order. Borrowed: it ends with its tape's step. */
typedef struct tg_replay tg_replay;

TG_API tg_replay *tg_replay_open(tg_tape *t);
/* As tg_recompute; and the outputs' bytes are discarded by tg_replay_close, unless an input shares them. */
TG_API tg_status tg_replay_run(tg_replay *r, tg_fn fn, void *state, tg_tensor *const *in, int n_in, tg_tensor **out,
                               int n_out, const tg_recompute_opts *opts);
/* To be called after the last forward use of the outputs. They come back, under every view of them, when hook's
 * gradient is complete, or earlier when somebody reads them; hook NULL: when read. All that r ran come back at once. */
TG_API tg_status tg_replay_close(tg_replay *r, tg_tensor *hook);

/* A field to come in tg_recompute_opts: in[0] is kept as this rank's 1/n of its elements (the last part may be
 * shorter) and gathered again in backward. Collective:
 *     tg_comm *distribute;
 */

/* ==== tapegrad.h: capture ==== */

/* A step recorded once by the device and replayed without the host. */
typedef struct tg_graph tg_graph;
typedef tg_status (*tg_step_fn)(void *state);

/* Runs step twice as it is (shapes and memory settle), then records it. Its inputs are context-owned tensors, filled
 * by tg_write before each launch; what it leaves in tensors that tg_keep holds is there after each. Random streams and
 * the optimiser's step and rate go on with every launch. Inert and TG_ERR_UNSUPPORTED, naming node and call site, where
 * step reads a value, changes shape, or allocates. On a device without capture a launch runs step again. */
TG_API tg_graph *tg_capture(tg_ctx *ctx, tg_step_fn step, void *state);
TG_API tg_status tg_graph_launch(tg_graph *g);
TG_API void tg_graph_free(tg_graph *g);

/* ==== tapegrad.h: derivatives of derivatives ==== */

/* d outs = J din, forward over the recorded nodes between inputs and outs. din[i] has inputs[i]'s shape (NULL: zero);
 * dout[i] has outs[i]'s. Recorded on t, so it can be differentiated again. An op without jvp is TG_ERR_UNSUPPORTED. */
TG_API tg_status tg_jvp(tg_tape *t, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                        tg_tensor *const *din, tg_tensor **dout);
/* hv[i] = sum over j of (d2 root / d inputs[i] d inputs[j]) v[j]: one backward and one forward
 * pass, recorded in no-grad mode too. root: a scalar. */
TG_API tg_status tg_hvp(tg_tape *t, tg_tensor *root, tg_tensor *const *inputs, int n, tg_tensor *const *v,
                        tg_tensor **hv);

/* ==== tapegrad.h: named buffers ==== */

/* A tape-owned tensor, contents undefined, on bytes that stay with the context under (name, dtype) when its last
 * reference goes, and only grow. Asking again waits for the works of the holder before; while the holder is still open
 * on the same tape it is TG_ERR_STATE, naming both nodes. Inside a recomputation: an instance of its own. */
TG_API tg_tensor *tg_lease(tg_tape *t, const char *name, tg_dtype dtype, tg_shape shape);

/* Memory at the same place on all ranks of c, for fused collectives. Collective to make. take packs n tensors at
 * multiples of 16 bytes; false, without an error: not available or too small, the caller does without. */
typedef struct tg_symmetric tg_symmetric;
TG_API tg_symmetric *tg_symmetric_new(tg_comm *c, size_t bytes);
TG_API void tg_symmetric_free(tg_symmetric *s);
TG_API bool tg_symmetric_take(tg_symmetric *s, tg_tape *t, const tg_dtype *dtypes, const tg_shape *shapes, int n,
                              tg_tensor **out);

/* ==== nn.h ==== */

/* A field to come in tg_gpt_config: the model is sharded over its tp, its parameters placed on every axis.
 *     const tg_parallel *parallel;
 */

/* ==== optim.h ==== */

/* Every step from now on scales by max_norm / (norm + 1e-6) where that is below 1, on the device: no value is read, so
 * a step can be captured. 0: off. The norm counts every parameter once over all groups. */
TG_API tg_status tg_optim_set_max_norm(tg_optim *o, double max_norm);
TG_API double tg_optim_norm(tg_optim *o); /* of the last step: reads it; NaN before the first */

/* ==== extend.h ==== */

/* For infer of ops whose dim roles are not their family's (docs/placements.md 3). Input dim d of input i becomes
 * output dim j (free), or TG_SUMMED or TG_WHOLE, which is what is not stated. set: bit i for input i; up to 4 sets. */
enum { TG_WHOLE = -1, TG_SUMMED = -2 };
TG_API tg_status tg_call_role(tg_call *c, int i, int d, int j);
TG_API tg_status tg_call_linear(tg_call *c, uint32_t set);
/* For mappings: refuses unless input i is `from` on comm's axis, and gives output o `to` there. */
TG_API tg_status tg_call_convert(tg_call *c, int i, tg_placement from, int o, tg_placement to, const tg_comm *comm);
/* For forward, as tg_call_in_flight is for backward: the work will fill output i. The call holds what it reads. */
TG_API tg_status tg_call_out_in_flight(tg_call *c, int i, tg_work *w);

/* For vjp and jvp. */
TG_API bool tg_node_needs(const tg_node *n, int i);       /* whether input i needs a gradient */
TG_API tg_tensor *tg_node_saved(const tg_node *n, int i); /* the i-th private buffer of infer */

/* Several tensors with one refill, which fills all of dst[]; it may leave them to a work (else *w stays NULL). free
 * ends user, once. */
typedef tg_status (*tg_refill_fn)(void *user, tg_ctx *ctx, void *const *dst, const size_t *bytes, int n, tg_work **w);
TG_API tg_status tg_discard_group(tg_tensor *const *x, int n, tg_refill_fn refill, void (*free)(void *), void *user);
TG_API tg_status tg_fetch(tg_tensor *x); /* starts the refill of a discarded tensor now; nothing where it is present */

/* Streams of a context, in the order of the executor's use. Host devices have one, and ignore them. */
typedef enum tg_stream { TG_STREAM_COMPUTE, TG_STREAM_COMM, TG_STREAM_COPY, TG_STREAMS } tg_stream;

/* One transport. Slots return TG_OK or call tg_ctx_fail; they move bytes only: the door (signatures, board, placements,
 * deadlines) is the library's. Slots with a tg_work ** start and return; the works of one communicator complete in the
 * order in which they started. Reduced sums are ordered by rank. */
struct tg_comm_ops {
    size_t size;
    const char *name;
    bool host; /* moves host memory; false: device memory, on stream TG_STREAM_COMM */
    bool plan; /* moves nothing: results are undefined and nobody may read them */

    /* Required */
    tg_status (*all_reduce)(void *self, void *dst, const void *src, int64_t n, tg_dtype d, tg_reduce_op op,
                            tg_work **w);
    /* Counts in bytes, one a rank; the parts lie one after the other. */
    tg_status (*all_to_all)(void *self, void *dst, const int64_t *recv, const void *src, const int64_t *send,
                            tg_work **w);
    tg_status (*send)(void *self, const void *src, size_t bytes, int to, tg_work **w);
    tg_status (*recv)(void *self, void *dst, size_t bytes, int from, tg_work **w);
    tg_status (*split)(void *self, int color, int key, const char *name, void **out, int *rank, int *size);
    /* Posts this rank's slot and reads all (rank i's at i * bytes), without waiting for anyone. */
    tg_status (*exchange)(void *self, const void *slot, void *slots, size_t bytes);
    void (*abort)(void *self); /* every work in flight ends with TG_ERR_ABORTED; may be called from another thread */
    void (*free)(void *self);

    /* Optional: NULL is composed from the required ones. */
    tg_status (*all_gather)(void *self, void *dst, const void *src, size_t bytes, tg_work **w);
    tg_status (*reduce_scatter)(void *self, void *dst, const void *src, int64_t n, tg_dtype d, tg_reduce_op op,
                                tg_work **w);
    tg_status (*broadcast)(void *self, void *x, size_t bytes, int root, tg_work **w);
    tg_status (*batch_open)(void *self);
    tg_status (*batch_close)(void *self);
    void *(*alloc)(void *self, size_t bytes, size_t align); /* memory that peers reach without a copy */
    void (*dealloc)(void *self, void *p, size_t bytes);
};

/* ==== cuda.h, nccl.h, mpi.h (foreign types stand as void * here) ==== */

TG_API int tg_cuda_count(void); /* GPUs that this build could use; 0 without driver, device or CUDA */
/* The same as TG_CONFIG(.device = "cuda:1"), on a stream of the caller's; config may be NULL. */
TG_API tg_ctx *tg_cuda_ctx_new(int device, void *stream, const tg_config *config);
TG_API void *tg_cuda_stream(const tg_ctx *ctx, tg_stream s);
/* How NCCL's unique id travels: rank 0 calls with the id filled in, the others receive it. */
typedef tg_status (*tg_exchange_fn)(void *user, void *bytes, size_t n, int rank, int size);
TG_API tg_comm *tg_comm_nccl_new(tg_ctx *ctx, int rank, int size, tg_exchange_fn exchange, void *user);
TG_API tg_comm *tg_comm_mpi_new(tg_ctx *ctx, void *mpi_comm); /* never calls MPI_Init or MPI_Finalize */

#ifdef __cplusplus
}
#endif

#endif
