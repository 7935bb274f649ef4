/* Copies between host and device that run concurrently with the device's own work (tg_upload, tg_download). They go
 * through pages of host memory that the device accesses directly. */
#ifndef TG_COPIES_H
#define TG_COPIES_H

#include "core/context.h"

/* Starts a copy of `bytes` from src into x, which must be contiguous and present. The caller may change src after the
 * call. Afterwards x is in flight and its storage owns the work, with three exceptions. If bytes is 0, nothing happens.
 * On a device without asynchronous copies, the copy is complete. For a parameter, a gradient or the state of an
 * optimizer, the device's later work already runs after the copy, so x is present. */
tg_status tg_copies_upload(tg_tensor *x, const void *src, size_t bytes);
/* Starts a copy of `bytes` from x, which must be contiguous and present, to dst. dst may be NULL if bytes is 0. `own`
 * says that only the caller refers to x. Returns the work, or NULL after recording the error. */
tg_work *tg_copies_download(tg_tensor *x, void *dst, size_t bytes, bool own);
void tg_copies_free(tg_ctx *ctx); /* called when a context ends, before its device's memory is freed */

#endif
