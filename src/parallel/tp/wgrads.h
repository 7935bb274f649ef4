/* Weight gradients that wait: what the ops and layers that leave them share. */
#ifndef TG_WGRADS_H
#define TG_WGRADS_H

#include <tapegrad/tensor_parallel.h>

#include "tape/tape.h"

/* In a backward: puts gw (+)= gy^T x of a call off, if there is room and input `w` of the call adds straight into its
 * leaf. x is gathered over rows first, at the drain, where comm is not NULL. False: it is to be computed now. */
bool tg_wgrads_take(tg_wgrads *d, tg_call *c, int w, tg_tensor *x, tg_tensor *gy, tg_comm *comm);

/* A reference of a node: tg_wgrads_free leaves the list to the last of them, empty, and takes no more. */
tg_wgrads *tg_wgrads_keep(tg_wgrads *d);
void tg_wgrads_drop(void *d);

/* A tensor of x's rows from all ranks of comm, one after the other, that is in flight. In the named buffer of t. */
tg_tensor *tg_gather_rows(tg_tape *t, const char *buffer, tg_tensor *x, tg_comm *comm, const void *site);

#endif
