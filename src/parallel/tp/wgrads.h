/* Deferred weight gradients: functions for the ops and layers that defer them. */
#ifndef TG_WGRADS_H
#define TG_WGRADS_H

#include <tapegrad/tensor_parallel.h>

#include "tape/tape.h"

/* Called in backward. Defers the product gy^T x, the gradient of the weight, which is input w of the call. If comm is
 * not NULL, x has this rank's rows; tg_wgrads_run first gathers the rows of all ranks. Returns false if it does not
 * defer the product. The caller must then compute the gradient now: the list is full or freed, or the call does not add
 * straight into the gradient of a leaf. If memory is short, returns false after recording the error. */
bool tg_wgrads_take(tg_wgrads *d, tg_call *c, int w, tg_tensor *x, tg_tensor *gy, tg_comm *comm);

void tg_wgrads_clear(tg_wgrads *d); /* removes all entries, and discards their gradients */
/* Fails with TG_ERR_ARGUMENT if d is a list of another context than t. who: the call and the argument. d may be
 * NULL. */
tg_status tg_wgrads_check(const tg_wgrads *d, const tg_tape *t, const char *who);
/* tg_wgrads_keep adds a reference to the list, for a node or a tape, and returns d. tg_wgrads_drop drops such a
 * reference. tg_wgrads_free empties the list, which then accepts no more gradients, and drops the caller's reference.
 * The memory of the list is freed with the last reference. */
tg_wgrads *tg_wgrads_keep(tg_wgrads *d);
void tg_wgrads_drop(void *d);

/* Starts a gather of the rows of x, which is contiguous, of all ranks of comm, rank after rank, into the named buffer
 * of t. Returns the result, which is in flight; an inert tensor (tapegrad.h) on error. */
tg_tensor *tg_gather_rows(tg_tape *t, const char *buffer, tg_tensor *x, tg_comm *comm, const void *site);

#endif
