/* Mappings: ops that convert the placement of a tensor, for example a shard to the whole. Backward converts the
 * gradient in the opposite direction. Include this header in programs that move shards themselves; tensor_parallel.h
 * includes it. docs/placements.md explains placements. */
#ifndef TAPEGRAD_MAPPINGS_H
#define TAPEGRAD_MAPPINGS_H

#include <tapegrad/parallel.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mappings (recorded on the tape) ---- */

/* Each mapping converts the placement of x on c's axis, and keeps its placements on all other axes. If c is not the
 * communicator of an axis of a grid (parallel.h), there is no placement to convert, and only data moves. The comment of
 * a mapping begins with its conversion, such as I -> V0, in the letters of placement.h: I, R, P and V are TG_I, TG_R,
 * TG_P and TG_V (invariant, replicated, partial, and varying but no shard), and Vd is a shard of dim d. After
 * "backward" the comment says what backward does with the gradient; without that word, backward passes the gradient on
 * unchanged.
 *
 * n is the number of ranks of c. Every rank of c must call the mapping, and run its backward. If c has one rank, a
 * mapping returns x itself, and checks only t, x and c; tg_shard_as also checks `to`.
 *
 * x may have any strides. The results of tg_as_partial, tg_as_opaque, tg_as_shard and tg_r_to_i are views of x. Those
 * of the other mappings are new and contiguous. All results belong to the tape. Communication starts at once, and the
 * result may be in flight (work.h) until it is read. A negative dim counts from the end.
 *
 * A mapping fails with
 * - TG_ERR_ARGUMENT if c is NULL or of another context;
 * - TG_ERR_PLACEMENT if x has another placement than the conversion starts from;
 * - TG_ERR_SHAPE if a dim is out of range, or if a dim that is divided over the ranks is not a multiple of n;
 * - TG_ERR_MISMATCH if the ranks' communication does not match (comm.h), for example because their x have other sizes.
 *
 * On an error it returns an inert tensor (tapegrad.h). */

/* V -> V. Exchanges rows of dim 0. send_counts[r] rows of x go to rank r; x has them in order of r. recv_counts[r] rows
 * of the result come from rank r, in the same order. Both arrays have n numbers, 0 or more, and are copied. If both are
 * NULL, all parts are equal. Backward sends the rows of the gradient back. Fails with TG_ERR_ARGUMENT if only one array
 * is NULL, or if a number is negative, and with TG_ERR_SHAPE if the sum of send_counts is not the number of rows of
 * x. */
TG_API tg_tensor *tg_all_to_all(tg_tape *t, tg_tensor *x, const int64_t *send_counts, const int64_t *recv_counts,
                                tg_comm *c);
TG_API tg_tensor *tg_all_reduce(tg_tape *t, tg_tensor *x, tg_comm *c);        /* P -> R; backward all-reduces */
TG_API tg_tensor *tg_scatter_to(tg_tape *t, tg_tensor *x, int d, tg_comm *c); /* I -> Vd; backward all-gathers */
/* R -> Vd; backward puts this rank's part of the gradient into a tensor of zeros */
TG_API tg_tensor *tg_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);
/* R -> Vd, where d is to.dim; backward does what that of tg_shard does. The shard has the layout of `to`, which is
 * TG_SHARD(d), TG_SHARD_STRIDED(d, k) or TG_SHARD_ZIGZAG(d). Fails with TG_ERR_PLACEMENT for any other `to`, and with
 * TG_ERR_SHAPE if the size of dim d is not a multiple of n times the number of chunks per rank. */
TG_API tg_tensor *tg_shard_as(tg_tape *t, tg_tensor *x, tg_placement to, tg_comm *c);
/* Vd -> I; backward selects this rank's part of the gradient. An x that is V counts as a shard of dim d. */
TG_API tg_tensor *tg_gather_from(tg_tape *t, tg_tensor *x, int d, tg_comm *c);
/* Vd -> R; backward reduce-scatters. An x that is V counts as a shard of dim d. */
TG_API tg_tensor *tg_all_gather(tg_tape *t, tg_tensor *x, int d, tg_comm *c);
TG_API tg_tensor *tg_reduce_scatter(tg_tape *t, tg_tensor *x, int d, tg_comm *c); /* P -> Vd; backward all-gathers */
/* Va -> Vb, where a is `cat` and b is `split`. Joins the shards along dim `cat`, and shards the whole along dim `split`
 * instead. An x that is V moves in the same way, and stays V. Backward moves the gradient back. Fails with
 * TG_ERR_ARGUMENT if the two dims are the same, and with TG_ERR_PLACEMENT if the layout of the shards is TG_STRIDED or
 * TG_ZIGZAG (tg_layout in types.h). */
TG_API tg_tensor *tg_reshard(tg_tape *t, tg_tensor *x, int cat, int split, tg_comm *c);
/* V -> V. Rank r gets the x of rank r - 1, and rank 0 gets the x of the last rank. All x have the same shape. Backward
 * moves gradients the other way. */
TG_API tg_tensor *tg_shift(tg_tape *t, tg_tensor *x, tg_comm *c);
/* V -> I. Every rank gets a copy of the x of rank `root`. The x of other ranks must have the same shape and dtype;
 * their values are not used. Backward gives the x of rank `root` the gradient, and the x of other ranks 0. Fails with
 * TG_ERR_ARGUMENT if root is not from 0 to n - 1. */
TG_API tg_tensor *tg_broadcast(tg_tape *t, tg_tensor *x, int root, tg_comm *c);
/* V -> I. Returns the maximum of the ranks' x, element by element. Fails with TG_ERR_DTYPE if x has neither floats nor
 * integers, and with TG_ERR_PLACEMENT if x needs a gradient and gradients are recorded. */
TG_API tg_tensor *tg_all_reduce_max(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_as_partial(tg_tape *t, tg_tensor *x, tg_comm *c);          /* V -> P */
TG_API tg_tensor *tg_as_opaque(tg_tape *t, tg_tensor *x, tg_comm *c);           /* Vd -> V */
TG_API tg_tensor *tg_as_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* V -> Vd; equal shapes on all ranks */
/* I -> P; the result is x / n. Fails with TG_ERR_DTYPE if x has no floats. */
TG_API tg_tensor *tg_i_to_p(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_r_to_i(tg_tape *t, tg_tensor *x, tg_comm *c);              /* R -> I; backward divides by n */

/* ---- Tensors of another rank ---- */

/* Returns a leaf of the tape whose values rank `from` of c sends. The leaf is in flight (work.h): a read waits for the
 * message. TG_DTYPE_DEFAULT means the context's default dtype. The receiver calls tg_recv and rank `from` calls
 * tg_comm_send; the other ranks of c need not make a call. On an error returns an inert tensor.
 *
 * The leaf is V on tp, cp and dp and I on the other axes, unless tg_place changes that before its first use. It
 * requires no gradient. If rank `from` needs the gradient, the receiver calls tg_set_requires_grad on the leaf before
 * its first use, and sends tg_grad_of(leaf) with tg_comm_send after backward. A pipe (pipe.h) receives activations and
 * sends their gradients itself. */
TG_API tg_tensor *tg_recv(tg_tape *t, tg_comm *c, tg_dtype dtype, tg_shape shape, int from);

/* Replaces the n tensors x[0] to x[n - 1] on every rank by copies of rank 0's. The tape owns the copies. On the other
 * ranks the entries of x may be anything before the call. Scalars and empty tensors are allowed. Every rank of c must
 * call it with the same n, 0 or more, and the same dtype, any but float8 (TG_ERR_DTYPE). Over a communicator of
 * tg_comm_plan_new only rank 0 can call it; the others fail with TG_ERR_UNSUPPORTED.
 *
 * The results are I on each axis that c spans; the world of the grid spans every axis. On other axes they have the
 * placements of rank 0's tensors. Fails on every rank with TG_ERR_DTYPE if a tensor of rank 0 has another dtype than
 * `dtype`, and with TG_ERR_HANDLE if a tensor of rank 0 is NULL, not alive, or of another context or tape; the message
 * has the index of that tensor. On an error rank 0 keeps its x[], and on the other ranks each x[i] is an inert
 * tensor. */
TG_API tg_status tg_broadcast_data(tg_tape *t, tg_tensor **x, int n, tg_dtype dtype, tg_comm *c);

#ifdef __cplusplus
}
#endif

#endif
