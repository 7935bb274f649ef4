/* Mappings: taped conversions between placements, each with its conjugate in backward. */
#ifndef TAPEGRAD_MAPPINGS_H
#define TAPEGRAD_MAPPINGS_H

#include <tapegrad/parallel.h>
#include <tapegrad/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Mappings (taped) ---- */

/* Each converts the placement on c's axis and leaves every other axis alone; its backward is the conjugate in the right
 * column, itself an op. Communication starts at once and the result is in flight until it is read. A NULL c is an
 * error; on a group of size 1 they return x itself. Any strides; results are contiguous, or, where nothing moves, views
 * of x. d is a dim, negative from the end. */

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
/* Va -> Vb: what was sharded along `cat` becomes whole there and is sharded along `split`. */
TG_API tg_tensor *tg_reshard(tg_tape *t, tg_tensor *x, int cat, int split, tg_comm *c);
TG_API tg_tensor *tg_shift(tg_tape *t, tg_tensor *x, tg_comm *c); /* V -> V, from rank r - 1; backward from r + 1 */
TG_API tg_tensor *tg_broadcast(tg_tape *t, tg_tensor *x, int root, tg_comm *c); /* V -> I   gradient on the root */
TG_API tg_tensor *tg_all_reduce_max(tg_tape *t, tg_tensor *x, tg_comm *c);      /* V -> I, refused with gradient */
TG_API tg_tensor *tg_as_partial(tg_tape *t, tg_tensor *x, tg_comm *c);          /* V -> P */
TG_API tg_tensor *tg_as_opaque(tg_tape *t, tg_tensor *x, tg_comm *c);           /* Vd -> V */
TG_API tg_tensor *tg_as_shard(tg_tape *t, tg_tensor *x, int d, tg_comm *c);     /* V -> Vd, equal local sizes */
TG_API tg_tensor *tg_i_to_p(tg_tape *t, tg_tensor *x, tg_comm *c);              /* I -> P: x / n */
TG_API tg_tensor *tg_r_to_i(tg_tape *t, tg_tensor *x, tg_comm *c);              /* R -> I   g / n */

/* Rank 0's x[] on every rank: x[] become tape-owned tensors, whatever they were on the others; I on c's axes (all of
 * the grid's for its world), and on the other axes as rank 0's lie. Zero sizes and scalars included; TG_ERR_DTYPE on
 * every rank, naming the tensor, when one of rank 0's is not of dtype. */
TG_API tg_status tg_broadcast_data(tg_tape *t, tg_tensor **x, int n, tg_dtype dtype, tg_comm *c);

#ifdef __cplusplus
}
#endif

#endif
