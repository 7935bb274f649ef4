/* Copies between host and device beside the device's own work: pages of the host's memory that the device reaches by
 * itself, and the works that use them. */
#ifndef TG_COPIES_H
#define TG_COPIES_H

#include "core/context.h"

/* x, contiguous and present, is in flight when it returns: its storage owns the work. */
tg_status tg_copies_upload(tg_tensor *x, const void *src, size_t bytes);
/* x as above. own: nobody else has it. dst NULL is for bytes 0. NULL after recording the error. */
tg_work *tg_copies_download(tg_tensor *x, void *dst, size_t bytes, bool own);
void tg_copies_free(tg_ctx *ctx); /* of a context that ends: before its device's memory */

#endif
