/* Moves the bytes of a tensor that the context owns to other memory, under the same handle. */
#ifndef TG_REHOME_H
#define TG_REHOME_H

#include "core/tensor/tensor.h"

/* Returns why the bytes of x, a tensor of the context, must stay where and as they are, with the remedy: a node, an
 * optimizer, a captured step, a pin, an export, a work in flight or another handle needs them. Returns NULL if nothing
 * does. `handles` is the number of handles that may use the bytes: 1, or more if they will all move. */
const char *tg_bytes_holder(const tg_tensor *x, int handles);
/* Fails with TG_ERR_STATE if something relies on the bytes of x. The message begins with `who`. */
tg_status tg_rehome_check(const tg_tensor *x, int handles, const char *who);
/* tg_rehome without its checks. */
tg_status tg_rehome_move(tg_tensor *x, tg_tensor *view);

/* Returns the range of x, if x is a parameter of which this rank keeps only that (tg_flat with zero 3). Otherwise
 * returns x. */
static inline tg_tensor *tg_range_kept(const tg_tensor *x) {
    tg_tensor *range = x->ext ? x->ext->range : NULL;
    return range && range->storage != x->storage ? range : (tg_tensor *)x;
}
/* Called before the context's tensor x is written. Fails with TG_ERR_STATE if x is a range of a parameter that has
 * other bytes, and these are pinned or exported: tg_range_wrote must discard them, and cannot. */
tg_status tg_range_may_change(const tg_tensor *x, const char *who);
/* Called when the context's tensor x was written. If x is a range of a parameter, the parameter counts as written too:
 * its storage awaits tg_flat_gather or, if it has other bytes than x, is discarded. */
tg_status tg_range_wrote(const tg_tensor *x, const char *by, const void *site);

#endif
