/* Tensors without bytes: the names, dtypes and shapes that a file needs before its bytes are there. */
#ifndef TG_OUTLINES_H
#define TG_OUTLINES_H

#include "io/safetensors.h"

typedef struct tg_outlines {
    tg_named_tensor *named; /* [n], for tg_safetensors_begin; the names are the caller's */
    tg_tensor *like;        /* [n]; only dtype, ndim, shape and numel are set */
    int64_t (*dims)[TG_MAX_DIMS];
    int n;
} tg_outlines;

/* Makes n outlines, which tg_outlines_set fills. The caller frees them with tg_outlines_free, also after an error. */
tg_status tg_outlines_new(tg_ctx *ctx, tg_outlines *o, int n);
void tg_outlines_set(tg_outlines *o, int i, const char *name, tg_dtype dtype, const tg_shape *shape);
void tg_outlines_free(tg_ctx *ctx, tg_outlines *o);

#endif
