/* Deferred weight gradients: functions for the ops and layers that defer them. */
#ifndef TG_WGRADS_H
#define TG_WGRADS_H

#include <tapegrad/tensor_parallel.h>

#include "tape/tape.h"

/* Called in backward. Defers gw (+)= gy^T x, where w is the index of the weight among the inputs of c. If comm is
 * not NULL, x is gathered over rows first, when the list runs. Returns false if the caller must compute the gradient
 * now: the list is full or freed, memory is short, or the call does not add straight into the gradient of a leaf. */
bool tg_wgrads_take(tg_wgrads *d, tg_call *c, int w, tg_tensor *x, tg_tensor *gy, tg_comm *comm);

/* Take and drop a node's reference to the list. tg_wgrads_free empties the list, which then takes no more gradients;
 * the last reference frees it. */
tg_wgrads *tg_wgrads_keep(tg_wgrads *d);
void tg_wgrads_drop(void *d);

/* Returns the rows of x of all ranks of comm, rank after rank, in flight. The result lies in the named buffer of t. */
tg_tensor *tg_gather_rows(tg_tape *t, const char *buffer, tg_tensor *x, tg_comm *comm, const void *site);

#endif
