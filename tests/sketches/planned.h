/* What later work builds, declared early, so that the sketches beside this file show how it will read.
 *
 * A declaration moves to the public header that its section names when its function is built, and its sketch becomes
 * a test; then it goes from here. Nothing here is installed, and nothing links.
 */
#ifndef TAPEGRAD_PLANNED_H
#define TAPEGRAD_PLANNED_H

#include <tapegrad/extend.h>
#include <tapegrad/io.h>
#include <tapegrad/nn.h>
#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>
#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ==== mappings.h ==== */

/* For pipelines: a leaf of t, in flight, with what rank `from` sends by tg_comm_send. A float one needs a gradient
 * unless told otherwise; sending it back is up to the caller. */
TG_API tg_tensor *tg_recv(tg_tape *t, tg_comm *c, tg_dtype dtype, tg_shape shape, int from);

/* q [b, h, sq, d], k, v as in tg_attention; also the log-sum-exp of each row, lse [b, h, sq], float32 (float64). Two
 * results over disjoint keys merge into that over their union: an op of its own, differentiable in all four. */
TG_API tg_tensor *tg_attention_lse(tg_tape *t, tg_tensor *q, tg_tensor *k, tg_tensor *v, const tg_attention_opts *opts,
                                   tg_tensor **lse);
TG_API tg_tensor *tg_attention_merge(tg_tape *t, tg_tensor *o1, tg_tensor *lse1, tg_tensor *o2, tg_tensor *lse2,
                                     tg_tensor **lse);
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

/* ==== nn.h ==== */

/* A field to come in tg_gpt_config: the model is sharded over its tp, its parameters placed on every axis.
 *     const tg_parallel *parallel;
 */

/* ==== extend.h ==== */

TG_API tg_status tg_fetch(tg_tensor *x); /* starts the refill of a discarded tensor now; nothing where it is present */

/* Streams of a context, in the order of the executor's use. Host devices have one, and ignore them. */
typedef enum tg_stream { TG_STREAM_COMPUTE, TG_STREAM_COMM, TG_STREAM_COPY, TG_STREAMS } tg_stream;

/* ==== cuda.h, nccl.h (foreign types stand as void * here) ==== */

TG_API int tg_cuda_count(void); /* GPUs that this build could use; 0 without driver, device or CUDA */
/* The same as TG_CONFIG(.device = "cuda:1"), on a stream of the caller's; config may be NULL. */
TG_API tg_ctx *tg_cuda_ctx_new(int device, void *stream, const tg_config *config);
TG_API void *tg_cuda_stream(const tg_ctx *ctx, tg_stream s);
/* How NCCL's unique id travels: rank 0 calls with the id filled in, the others receive it. */
typedef tg_status (*tg_exchange_fn)(void *user, void *bytes, size_t n, int rank, int size);
TG_API tg_comm *tg_comm_nccl_new(tg_ctx *ctx, int rank, int size, tg_exchange_fn exchange, void *user);

#ifdef __cplusplus
}
#endif

#endif
