/* Functions of this folder that record ops: a short form of tg_apply, and the checks of what an op overwrites. */
#ifndef TG_APPLY_H
#define TG_APPLY_H

#include "tape/call.h"

/* Records an op with one output. The call site is the return address of the public function. */
tg_tensor *tg_record(tg_tape *t, const tg_op *op, const void *params, tg_tensor *const *in, int n_in, const void *site);

/* ---- writes.c ---- */

/* Checks that input 0 may be overwritten by the call's output. */
tg_status tg_call_check_inplace(tg_call *c);
/* Notes which inputs forward writes besides its outputs. Absent inputs are left out. Notes none in the second run
 * of a recomputation. */
void tg_call_open_writes(tg_call *c);
/* Marks the noted inputs as overwritten. Must be called before the node notes the versions of what it saves, and before
 * forward, which may fail after it has written some of them. */
tg_status tg_call_begin_writes(tg_call *c);

#endif
