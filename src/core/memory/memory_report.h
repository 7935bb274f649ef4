/* The trace of the memory report (tg_memory_set_trace), which notes the tensors that were alive near the peak and the
 * ops that made them. This header also declares device "meta". */
#ifndef TG_REPORT_H
#define TG_REPORT_H

#include "core/context.h"

enum { TG_TRACE_ROWS = 4096, TG_TRACE_NAME = 64, TG_TRACE_PATH = 96 };

/* A block that was alive near the peak. */
typedef struct tg_trace_row {
    size_t bytes;
    tg_category category;
    char name[TG_TRACE_NAME], path[TG_TRACE_PATH];
    const char *op; /* NULL: unknown */
    const void *site;
} tg_trace_row;

struct tg_trace {
    int n;
    int64_t others; /* bytes of the blocks for which no row was left */
    tg_trace_row row[TG_TRACE_ROWS];
};

void tg_trace_free(tg_ctx *ctx);
/* Sorts the rows of the trace, largest first, and returns it. Returns NULL if the trace was never on. */
const struct tg_trace *tg_trace_sorted(tg_ctx *ctx);
/* Returns the words for a tg_category, such as "saved activations". */
const char *tg_category_name(int category);
extern const tg_device_ops tg_meta_device; /* meta.c */

#endif
