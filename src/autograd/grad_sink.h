/* The destinations of the gradients that the backward of one node computes. */
#ifndef TG_GRAD_SINK_H
#define TG_GRAD_SINK_H

#include "autograd/backward.h"

typedef enum tg_grad_sink_kind {
    TG_SINK_NONE, /* the gradient is not wanted; the other fields of the sink are not set */
    TG_SINK_SLOT, /* the buffer of the slot (tg_slot in tape/node.h) */
    TG_SINK_LEAF, /* the buffer in which the leaf or the target accumulates its gradient */
    /* A buffer of its own, whose contents are added to the destination afterwards. For a tensor that is given twice,
     * for a leaf whose buffer has a dtype that the op cannot write, and for a leaf whose gradient a node has saved. */
    TG_SINK_SIDE,
    TG_SINK_DONE, /* nothing is to be written: the op has passed the gradient on, declined it, or left it in flight */
} tg_grad_sink_kind;

/* The destination of the gradient of one input. tg_sinks_open chooses it. */
typedef struct tg_grad_sink {
    uint8_t kind;      /* tg_grad_sink_kind */
    /* The destination held a value when the call opened, or an earlier sink of the call made the slot's gradient. */
    bool adds;
    bool given; /* the op has passed the gradient on, declined it, or left it in flight; passing it again is an error */
    tg_slot *slot;     /* the slot of the input */
    tg_tensor *buffer; /* the buffer in which the leaf or the target accumulates. NULL if the slot is the destination */
    uint64_t serial;   /* serial of the leaf's buffer: the op's backward may drop or replace it */
    tg_target *target; /* the target whose buffer it is. NULL if it is the leaf's */
    tg_tensor *side;   /* the side buffer. NULL before it is made and after it was added */
} tg_grad_sink;

/* Decides where each input's gradient goes. Makes the buffers, except for the inputs in tg_op.passes, for which the
 * op's backward decides whether it needs a buffer. */
tg_status tg_sinks_open(tg_pass *p, tg_call *c);
/* Adds the contents of the side buffers, and notes which leaves now have a gradient. */
tg_status tg_sinks_close(tg_pass *p, tg_call *c);
/* Returns the tensor that receives, or has received, the gradient of input i. NULL if there is none, or none yet. */
tg_tensor *tg_sink_gradient(const tg_call *c, int i);
/* Returns whether the destination of the gradient of input i held a value when the call opened. If a tensor is given
 * several times, the result may be false for every index but the first. */
bool tg_sink_held(const tg_call *c, int i);

/* Called within a backward, for an input whose gradient is wanted (tg_call.gin_mode): it gets none after all, because
 * nothing that the roots depend on has used it, or because the gradient will be added later. */
void tg_call_decline(tg_call *c, int i);
/* Returns, within a backward, whether input i is a leaf to whose accumulated gradient this call adds, now or later. */
bool tg_call_accumulates(const tg_call *c, int i);

#endif
