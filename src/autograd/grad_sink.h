/* Where the gradients that one node's backward produces go. */
#ifndef TG_GRAD_SINK_H
#define TG_GRAD_SINK_H

#include "autograd/backward.h"

typedef enum tg_grad_sink_kind {
    TG_SINK_NONE,
    TG_SINK_SLOT, /* the slot's own buffer */
    TG_SINK_LEAF, /* the leaf's accumulation buffer, or a target's: no temporary */
    TG_SINK_SIDE, /* a buffer that is added afterwards: of a tensor given twice, of another dtype than its leaf's, or of
                   * a leaf whose gradient nodes have saved */
    TG_SINK_DONE, /* passed on, or in flight */
} tg_grad_sink_kind;

typedef struct tg_grad_sink {
    tg_grad_sink_kind kind;
    tg_tensor *side;
} tg_grad_sink;

/* Decides where each input's gradient goes; makes the buffers, except for the inputs that the op passes on. */
tg_status tg_sinks_open(tg_pass *p, tg_call *c);
/* Adds what was received in buffers at the side, and notes which leaves now have a gradient. */
tg_status tg_sinks_close(tg_pass *p, tg_call *c);
/* Where the gradient of input i has gone, or goes. NULL: nowhere, or there is none yet. */
tg_tensor *tg_sink_gradient(const tg_call *c, int i);

/* In a backward: input i has no gradient after all, as nothing that the roots depend on has used it, or as it will be
 * added later. */
void tg_call_decline(tg_call *c, int i);
/* In a backward: input i is a leaf, to whose accumulated gradient this call adds, now or later. */
bool tg_call_accumulates(const tg_call *c, int i);

#endif
