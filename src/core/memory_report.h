/* The memory report: which tensors were alive at the peak, by tensor, node and call site. */
#ifndef TG_REPORT_H
#define TG_REPORT_H

#include "core/context.h"

extern const tg_device_ops tg_meta_device; /* meta.c */
void tg_trace_free(tg_ctx *ctx);

#endif
