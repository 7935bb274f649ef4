/* Rings of chunks: what a linear op with `chunks` above 1 does in place of a gather of rows, or of a reduce-scatter.
 * Each rank sends messages of 1/chunks of its rows to the next rank, and computes with a chunk while the next ones are
 * on their way (Wang et al., ASPLOS 2023, doi 10.1145/3567955.3567959). */
#ifndef TG_LINEAR_RING_H
#define TG_LINEAR_RING_H

#include "parallel/tp/linear_call.h"

/* The state of a caller's functions; made by the caller on its stack. */
typedef struct tg_ring_work {
    tg_call *c;
    const tg_linear_params *p;
    tg_tensor *in, *out; /* what the functions of the op read, and write */
    tg_tensor *all;      /* keeps the rows that arrive, if a function copies them; NULL: none */
    tg_tensor *bias;     /* of the product; NULL: none */
    bool add;            /* add to `out` */
} tg_ring_work;

/* Computes with one chunk: `rows` are those from number `first` on, of the rows of all ranks. */
typedef tg_status (*tg_ring_chunk_fn)(const tg_ring_work *w, tg_tensor *rows, int64_t first);

/* Calls fn for each chunk of all ranks, in the order of their arrival; own: this rank's rows, contiguous. */
tg_status tg_ring_gather(tg_ring_work *w, tg_tensor *own, tg_ring_chunk_fn fn);
/* Sums over the ranks. `make` writes this rank's addend of a chunk to rows, which has the accumulate dtype, so that
 * sums are rounded once. `take` gets the sum of a chunk of this rank; its `first` counts this rank's rows. like: a
 * tensor with the shape and the dtype of this rank's rows of the result. */
tg_status tg_ring_scatter(tg_ring_work *w, const tg_tensor *like, tg_ring_chunk_fn make, tg_ring_chunk_fn take);

/* Returns a handle of n rows of x, from row `first` of dim 0 on. */
tg_tensor *tg_ring_rows(const tg_ring_work *w, tg_tensor *x, int64_t first, int64_t n);
/* Copies, or adds if w->add, `rows` to the rows of w->out from `first` on. It is a tg_ring_chunk_fn. */
tg_status tg_ring_put(const tg_ring_work *w, tg_tensor *rows, int64_t first);

#endif
