/* The trace of the memory report (tg_memory_set_trace), which notes the tensors that were alive at the peak and the ops
 * that made them. This header also declares device "meta". */
#ifndef TG_REPORT_H
#define TG_REPORT_H

#include "core/context.h"

void tg_trace_free(tg_ctx *ctx);
extern const tg_device_ops tg_meta_device; /* meta.c */

#endif
