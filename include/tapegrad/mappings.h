/* Mappings: ops that convert placements, each with its conjugate in backward. Include it in programs that move
 * shards themselves; tensor_parallel.h includes it. docs/placements.md explains placements. */
#ifndef TAPEGRAD_MAPPINGS_H
#define TAPEGRAD_MAPPINGS_H

#include <tapegrad/parallel.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mappings (recorded on the tape) ---- */

/* Each mapping converts the placement on c's axis, and leaves every other axis alone. The comment on its right has the
 * conversion in the letters of placement.h (TG_I, TG_R, TG_P, TG_V; Vd is a shard of dim d), and then what its backward
 * does, if that moves or selects data. Backward is an op itself. Communication starts at once. The result may be in
 * flight (work.h) until it is read. It is contiguous, or a view of x if no data moves; x may have any strides. On a
 * group of one rank a mapping returns x itself. c NULL fails with TG_ERR_ARGUMENT, a wrong placement of x with
 * TG_ERR_PLACEMENT. d is a dim; negative d counts from the end. */

/* Exchanges rows of dim 0: send_counts[r] rows go to rank r, and recv_counts[r] rows come from it. Both NULL: equal
 * parts. V -> V; backward is the reverse exchange. */
TG_API tg_tensor *tg_all_to_all(tg_tape *t, tg_tensor *x, const int64_t *send_counts, const int64_t *recv_counts,
                                tg_comm *c);
TG_API tg_tensor *tg_all_reduce(tg_tape *t, tg_tensor *x, tg_comm *c);            /* P -> R    all-reduce */
TG_API tg_tensor *tg_scatter_to(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* I -> Vd   all-gather */
TG_API tg_tensor *tg_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);          /* R -> Vd   own part in zeros */
TG_API tg_tensor *tg_gather_from(tg_tape *t, tg_tensor *x, int d, tg_comm *c);    /* Vd -> I   own part */
TG_API tg_tensor *tg_all_gather(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* Vd -> R   reduce-scatter */
TG_API tg_tensor *tg_reduce_scatter(tg_tape *t, tg_tensor *x, int d, tg_comm *c); /* P -> Vd   all-gather */
/* Va -> Vb: joins x along dim `cat`, where it is sharded, and shards it along dim `split` instead. Its backward is
 * the reverse. */
TG_API tg_tensor *tg_reshard(tg_tape *t, tg_tensor *x, int cat, int split, tg_comm *c);
/* V -> V: rank r gets the x of rank r - 1, and rank 0 that of the last rank; backward moves gradients the other way. */
TG_API tg_tensor *tg_shift(tg_tape *t, tg_tensor *x, tg_comm *c);
TG_API tg_tensor *tg_broadcast(tg_tape *t, tg_tensor *x, int root, tg_comm *c); /* V -> I   gradient on the root */
TG_API tg_tensor *tg_all_reduce_max(tg_tape *t, tg_tensor *x, tg_comm *c);      /* V -> I; x must need no gradient */
TG_API tg_tensor *tg_as_partial(tg_tape *t, tg_tensor *x, tg_comm *c);          /* V -> P */
TG_API tg_tensor *tg_as_opaque(tg_tape *t, tg_tensor *x, tg_comm *c);           /* Vd -> V */
TG_API tg_tensor *tg_as_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* V -> Vd, equal local sizes */
TG_API tg_tensor *tg_i_to_p(tg_tape *t, tg_tensor *x, tg_comm *c);              /* I -> P; the result is x / n */
TG_API tg_tensor *tg_r_to_i(tg_tape *t, tg_tensor *x, tg_comm *c);              /* R -> I   gradient / n */

/* Replaces x[0] to x[n - 1] on every rank by copies of rank 0's tensors, which the tape owns. Before the call x[] may
 * be anything on the other ranks. The results are I on c's axes (on every axis if c is the world of the grid). On other
 * axes they have rank 0's placements. Scalars and empty tensors are allowed. Collective, with the same n and dtype on
 * every rank. Fails on every rank with TG_ERR_DTYPE if a tensor of rank 0 is not of dtype, and with TG_ERR_HANDLE if
 * one is NULL or not alive; the message has its index. */
TG_API tg_status tg_broadcast_data(tg_tape *t, tg_tensor **x, int n, tg_dtype dtype, tg_comm *c);

#ifdef __cplusplus
}
#endif

#endif
