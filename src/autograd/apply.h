/* Functions of this folder that record ops: a short form of tg_apply, and the checks of inputs and of what an op
 * overwrites. */
#ifndef TG_APPLY_H
#define TG_APPLY_H

#include "tape/call.h"

/* Records an op with one output, and returns the output; an inert tensor on an error. `site` is the return address of
 * the public function that records the op. */
tg_tensor *tg_record(tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in, const void *site);

/* Returns whether x may be an input of an op on t: it is alive, of t's context, and belongs to no other tape. */
static inline bool tg_is_input(const tg_tape *t, const tg_tensor *x) {
    return x && tg_living(x) && x->ctx == t->ctx && (!x->tape || x->tape == t);
}
/* Returns whether a function may return x itself in place of the result of an op on t. Otherwise recording the op fails
 * with the error that the function must report. */
static inline bool tg_may_return(const tg_tape *t, const tg_tensor *x) {
    return t && t->epoch && t->ctx->run.status == TG_OK && tg_is_input(t, x);
}

/* ---- writes.c ---- */

/* Returns whether a and b share bytes: they have one storage, or their elements overlap in memory of the caller. False
 * if they have two storages, of which one has no bytes now. */
bool tg_shares_bytes(const tg_tensor *a, const tg_tensor *b);
/* Checks that input 0 may be overwritten by the call's output, and waits for works that read it. */
tg_status tg_call_check_inplace(tg_call *c);
/* Sets c->writes to the inputs that forward writes in addition to its outputs: those in tg_op.writes that are not NULL.
 * In the second run of a recomputation, leaves it 0. */
void tg_call_open_writes(tg_call *c);
/* Checks the inputs in c->writes, and marks them as overwritten. Must be called before the node notes the versions of
 * what it saves, and before forward, which may fail after it has written some of these inputs. */
tg_status tg_call_begin_writes(tg_call *c);

#endif
