/* A pipe: the tapes and messages with which a stage runs its list of a plan. */
#ifndef TG_PP_PIPE_H
#define TG_PP_PIPE_H

#include <tapegrad/tensor_parallel.h>

#include "parallel/parallel.h"
#include "parallel/pp/plan.h"
#include "placement/placing.h"

/* One tensor of an edge. */
typedef struct tg_pipe_tensor {
    tg_dtype dtype;
    tg_shape shape; /* as declared */
    tg_place_at at[TG_MAX_AXES];
    int n_at;
    const tg_placements *place, *dual; /* of the tensor and of its gradient, on the present grid */
} tg_pipe_tensor;

/* One micro-batch in one chunk of this stage. The arrays have an entry for each tensor of an edge, and at least one. */
typedef struct tg_pipe_cell {
    tg_tape *tape;           /* records F; kept until B has run, NULL otherwise */
    tg_tensor **input, **out;   /* tensors of the tape; out[0] of the last part is its loss, with the loss scale */
    tg_tensor *aux;          /* another root, or NULL */
    tg_tensor **arriving[2]; /* what F [0] and B [1] receive: temporary handles, or NULL */
    int64_t mark;            /* the weight gradients that B has deferred end here (tg_wgrads_mark) */
} tg_pipe_cell;

struct tg_pipe {
    tg_parallel_listener listener; /* first, because callbacks convert its address */
    tg_ctx *ctx;
    tg_parallel *p; /* NULL: it was freed */
    const tg_pipe_plan *plan;
    int stage, ahead;
    tg_status (*shape)(void *state, int micro, int i, tg_shape *out);
    tg_optim *scale;
    int n_edge, n_slots; /* tensors of an edge, and entries of the arrays of a cell: 1 or more */
    tg_pipe_tensor *edge;
    bool placed;         /* the placements of the edges are those of the present grid */
    bool running, stale; /* stale: a run has failed, and its messages and tapes were not dropped yet */
    tg_pipe_cell *cell;
    tg_tensor **tensors;        /* the memory of the arrays of all cells, and of roots and seeds */
    tg_tensor **roots, **seeds; /* of the backward that is running; n_slots + 1 each */
    /* As many tapes as the stage that needs the most, because a recovery may give this rank another stage. */
    tg_tape **tape;
    bool *taken; /* whether a cell uses that tape */
    int n_tapes;
    int *done;         /* of each act and chunk: the number of items that have begun in this run */
    tg_wgrads *wgrads; /* NULL: the plan has no W */
    tg_tensor *losses;
    const void *site; /* where tg_pipe_run was called */
    void *state;      /* the state that tg_pipe_run was given */
};

static inline tg_pipe_cell *tg_pipe_cell_of(const tg_pipe *x, tg_pipe_item it) {
    return &x->cell[it.chunk * x->plan->micros + it.micro];
}
static inline int tg_pipe_part_of(const tg_pipe *x, tg_pipe_item it) {
    return tg_pipe_part(x->plan, x->stage, it.chunk);
}
/* Return whether the item receives a message, and whether it sends one. */
static inline bool tg_pipe_receives(const tg_pipe *x, tg_pipe_item it) {
    return it.act != TG_PIPE_W && tg_pipe_source(x->plan, x->stage, it) >= 0;
}
static inline bool tg_pipe_sends(const tg_pipe *x, tg_pipe_item it) {
    return it.act != TG_PIPE_W && tg_pipe_target(x->plan, x->stage, it) >= 0;
}
/* Returns whether a gradient comes back for tensor i of an edge. */
static inline bool tg_pipe_differentiates(const tg_pipe *x, int i) {
    return x->plan->backward && tg_is_float(x->edge[i].dtype);
}
/* Drops the messages, tapes and waiting weight gradients that a run has left behind. */
void tg_pipe_clear(tg_pipe *x);

/* ---- edge.c ---- */

/* Checks and copies the declared tensors of an edge, and finds their placements. */
tg_status tg_pipe_edge_open(tg_pipe *x, const tg_pipe_opts *o);
/* Fails with TG_ERR_MISMATCH unless all stages have declared the same edges and made the same plan. Collective over
 * pp. */
tg_status tg_pipe_compare(tg_pipe *x);
/* Finds the placements of the edges on the present grid, unless they are known. */
tg_status tg_pipe_edge_place(tg_pipe *x);
/* Fails unless y is what tensor i of the edge must be for this item. */
tg_status tg_pipe_edge_check(const tg_pipe *x, tg_pipe_item it, int i, tg_tensor *y);
/* Starts to receive what the item needs. */
tg_status tg_pipe_post(tg_pipe *x, tg_pipe_item it);
/* Starts to send y, which is contiguous, to the part that waits for this item. */
tg_status tg_pipe_send(tg_pipe *x, tg_pipe_item it, tg_tensor *y);

/* ---- backward.c ---- */

tg_status tg_pipe_backward(tg_pipe *x, tg_pipe_item it);

/* ---- forward.c ---- */

/* Runs fn for the item, and sends its outputs. */
tg_status tg_pipe_forward(tg_pipe *x, tg_pipe_item it, tg_pipe_fn fn);
/* Ends the cell's use of its tape. */
void tg_pipe_release_tape(tg_pipe *x, tg_pipe_cell *c);

#endif
