/* Changes the dtype of a tensor of the context, under the same handle. */
#ifndef TG_RETYPE_H
#define TG_RETYPE_H

#include "core/tensor/tensor.h"

/* Fails with TG_ERR_STATE if something relies on the dtype of x: what tg_bytes_holder (rehome.h) finds for one handle,
 * a gradient, or a main gradient. The message begins with `who` and calls x `name`. */
tg_status tg_retype_check(const tg_tensor *x, const char *name, const char *who);
/* Returns a new storage with the values of x in the dtype, row-major, or NULL after recording the error. */
tg_storage *tg_retype_convert(tg_tensor *x, tg_dtype dtype);
/* Replaces the storage of x by `converted`, which tg_retype_convert has returned, and takes over the caller's reference
 * to it. tg_retype_check must have succeeded before. */
void tg_retype(tg_tensor *x, tg_dtype dtype, tg_storage *converted);

#endif
