/* Copies between host and device that run concurrently with the device's own work: pages of host memory that the
 * device accesses directly, and the works that use them. */
#ifndef TG_COPIES_H
#define TG_COPIES_H

#include "core/context.h"

/* Starts a copy into x, which must be contiguous and present. x is in flight on return: its storage owns the work. */
tg_status tg_copies_upload(tg_tensor *x, const void *src, size_t bytes);
/* Starts a copy from x, as above, to dst. own: nothing else refers to x. dst may be NULL if bytes is 0. Returns NULL
 * after recording the error. */
tg_work *tg_copies_download(tg_tensor *x, void *dst, size_t bytes, bool own);
void tg_copies_free(tg_ctx *ctx); /* Called when a context ends, before its device's memory is freed. */

#endif
