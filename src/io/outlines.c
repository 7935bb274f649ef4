/* Tensors without bytes. */
#include "io/outlines.h"

#include "base/memory/host_memory.h"

/* Sizes of the arrays; never 0, so that an array of no elements is not a failed allocation. */
static size_t bytes_of(const tg_outlines *o, size_t element) { return (size_t)o->n * element + 1; }

tg_status tg_outlines_new(tg_ctx *ctx, tg_outlines *o, int n) {
    *o = (tg_outlines){.n = n};
    o->named = tg_host_alloc(ctx, bytes_of(o, sizeof *o->named));
    o->like = tg_host_alloc(ctx, bytes_of(o, sizeof *o->like));
    o->dims = tg_host_alloc(ctx, bytes_of(o, sizeof *o->dims));
    return ctx->run.status;
}

void tg_outlines_set(tg_outlines *o, int i, const char *name, tg_dtype dtype, const tg_shape *shape) {
    memcpy(o->dims[i], shape->dim, sizeof shape->dim);
    o->like[i] = (tg_tensor){.dtype = (uint8_t)dtype, .ndim = (uint8_t)shape->ndim, .shape = o->dims[i], .numel = 1};
    for (int d = 0; d < shape->ndim; d++) o->like[i].numel *= shape->dim[d];
    o->named[i] = (tg_named_tensor){name, &o->like[i]};
}

void tg_outlines_free(tg_ctx *ctx, tg_outlines *o) {
    tg_host_free(ctx, o->named, bytes_of(o, sizeof *o->named));
    tg_host_free(ctx, o->like, bytes_of(o, sizeof *o->like));
    tg_host_free(ctx, o->dims, bytes_of(o, sizeof *o->dims));
    *o = (tg_outlines){0};
}
