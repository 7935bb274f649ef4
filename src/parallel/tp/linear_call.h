/* What the ops of linear layers that communicate during their products have in common: their params, the checks and
 * placements of their inputs, and the communication of rows and of their gradients.
 *
 * Their first inputs are x [.., in] and w [out, in]. The ops of linear_grad.c and norm_linear_op.c also have b [out],
 * which may be absent, and the output y [.., out] = x w^T + b; below, `x` also stands for the norm's result, which
 * norm_linear multiplies in place of its input. Under sequence parallelism x has this rank's rows of dim 0, and y has
 * the rows of all ranks. */
#ifndef TG_LINEAR_CALL_H
#define TG_LINEAR_CALL_H

#include <tapegrad/tensor_parallel.h>

#include "comm/comm.h"
#include "ops/common/nn_op.h"
#include "ops/linear.h"
#include "parallel/tp/layers.h"
#include "parallel/tp/wgrads.h"

enum { TG_LINEAR_X, TG_LINEAR_W, TG_LINEAR_B };

typedef struct tg_linear_params {
    tg_comm *comm; /* first member, as in the params of every op that communicates; NULL: no communication */
    bool sequence_parallel, allreduce_dgrad, fused;
    /* Above 1, a ring of messages takes the place of a gather or a reduce-scatter (linear_ring.h). Each message has
     * 1/chunks of a rank's rows. ring_send[r] and ring_recv[r] are the numbers of elements that a message carries to
     * and from rank r; infer fills them. */
    int chunks;
    int64_t *ring_send, *ring_recv;
} tg_linear_params;

/* Returns the params of a call with these options. On a group of one rank there is no communication. */
tg_linear_params tg_linear_params_of(const tg_comm *comm, const tg_linear_grad_opts *o);
/* Returns over how many ranks the rows of x are divided. */
static inline int64_t tg_linear_ranks(const tg_linear_params *p) {
    return p->sequence_parallel ? tg_comm_size(p->comm) : 1;
}
/* Returns whether the gradient of x is a sum over ranks. */
static inline bool tg_linear_reduces(const tg_linear_params *p) { return p->sequence_parallel || p->allreduce_dgrad; }

/* Returns whether a ring of messages takes the place of one collective. */
static inline bool tg_linear_rings(const tg_linear_params *p) { return p->chunks > 1 && p->ring_send; }

/* Prepares the messages of the ring, if chunks is above 1. shape: this rank's rows, which the messages divide. */
tg_status tg_linear_open_ring(tg_call *c, tg_linear_params *p, int ndim, const int64_t *shape);
/* Fails if chunks is out of range, or if fused_wgrad is set and w needs a gradient but is no leaf. */
tg_status tg_linear_check_options(tg_call *c, const tg_linear_params *p);
/* Checks x, w, b and the params, states placements, and declares y. x is placed on the communicator's axis as for two
 * separate ops: a gather of x to R (with sequence_parallel) or tg_copy_to_tp (with allreduce_dgrad), and then
 * tg_linear. */
tg_status tg_linear_call_infer(tg_call *c, tg_linear_params *p);
/* Returns the placement of y on the communicator's axis, if the gradient of x is a sum over ranks. */
tg_placement tg_linear_place_y(const tg_call *c, const tg_linear_params *p);

/* In forward: computes y from the rows x of this rank, which it gathers under sequence parallelism. */
tg_status tg_linear_product(tg_call *c, const tg_linear_params *p, tg_tensor *x);

/* Under sequence parallelism, starts a gather of the rows of all ranks, and sets *x to the result, which is in flight.
 * It lies in the buffer "mpu", which tg_linear_drop_rows releases. Otherwise leaves *x as it is. */
tg_status tg_linear_all_rows(tg_call *c, const tg_linear_params *p, tg_tensor **x);
void tg_linear_drop_rows(const tg_call *c, const tg_linear_params *p, const tg_tensor *x);

/* In backward. Returns a temporary with gy w: the gradient of the rows of all ranks, or this rank's addend of it.
 * Returns an inert tensor (tapegrad.h) on error. */
tg_tensor *tg_linear_part(tg_call *c);
/* Starts the reduction of `part` over the ranks. Sets *sum to the result, the gradient of x, which is in flight. */
tg_status tg_linear_reduce(tg_call *c, const tg_linear_params *p, tg_tensor *part, tg_tensor **sum);
/* In backward, if the params ask for a ring. Computes the gradient of x, this rank's rows of the sum over the ranks,
 * and writes it to gx, or adds it if `add` is true. */
tg_status tg_linear_ring_dgrad(tg_call *c, const tg_linear_params *p, tg_tensor *gx, bool add);
/* In backward. Offers the product gy^T x, the gradient of w, to the list of the tape or, if it has none, to that of the
 * call. If comm is not NULL, x has only this rank's rows, and the list gathers those of all ranks of comm. x may be
 * NULL if w needs no gradient. Returns whether backward must compute the product now: w needs a gradient, and no list
 * takes it. */
bool tg_linear_wgrad_is_due(tg_call *c, tg_tensor *x, tg_tensor *gy, tg_comm *comm);
/* In backward. Computes the gradient of w, which must need one, from x and gy, which have the rows of all ranks. */
tg_status tg_linear_add_wgrad(tg_call *c, const tg_tensor *x, const tg_tensor *gy);

/* Records tg_linear after the gather of x or tg_copy_to_tp that the params ask for. */
tg_tensor *tg_linear_compose(tg_tape *t, const tg_linear_params *p, tg_tensor *x, tg_tensor *w, tg_tensor *b);
int64_t tg_linear_call_flops(const tg_node *n);

#endif
