/* tg_symmetric_take: creates tensors of a tape in a symmetric buffer, which has the same size on all ranks (comm.h). */
#include <tapegrad/parallel.h>

#include "base/runtime.h"
#include "comm/symmetric.h"
#include "tape/tape.h"

enum { PACKING = 16 }; /* bytes; every tensor begins at a multiple of this */

static tg_status check_take(const tg_symmetric *s, tg_tape *t, const tg_dtype *dtypes, const tg_shape *shapes, int n,
                            tg_tensor **out) {
    TG_TRY(tg_tape_check(t, "tg_symmetric_take"));
    if (t->ctx != s->ctx)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_symmetric_take: the buffer belongs to another context than the tape");
    if (n < 0 || (n && (!dtypes || !shapes || !out)))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                       "tg_symmetric_take: n is %d, expected 0 or more; dtypes, shapes and out must not be NULL unless "
                       "n is 0",
                       n);
    for (int i = 0; i < n; i++) TG_TRY(tg_shape_check(t->ctx, &shapes[i], dtypes[i], "tg_symmetric_take"));
    return TG_OK;
}

/* Returns the number of bytes that a tensor takes in the buffer. */
static size_t packed(tg_dtype dtype, const tg_shape *shape) {
    size_t bytes = (size_t)tg_row_major((int)shape->ndim, shape->dim, NULL) * tg_dtype_size(dtype);
    return (bytes + PACKING - 1) / PACKING * PACKING;
}

/* Returns whether the buffer has space for the tensors, and no tensors of an earlier call use it. */
static bool fits(const tg_symmetric *s, const tg_dtype *dtypes, const tg_shape *shapes, int n) {
    size_t left = s->bytes;
    for (int i = 0; i < n; i++) {
        size_t bytes = packed(dtypes[i], &shapes[i]);
        if (bytes > left) return false;
        left -= bytes;
    }
    return s->buffer && !s->buffer->open;
}

static tg_status take(tg_symmetric *s, tg_tape *t, const tg_dtype *dtypes, const tg_shape *shapes, int n,
                      tg_tensor **out) {
    size_t at = 0;
    TG_TRY(tg_buffer_reserve(s->ctx, s->buffer, s->bytes));
    for (int i = 0; i < n; i++) {
        size_t bytes = packed(dtypes[i], &shapes[i]);
        tg_storage *part = tg_buffer_open(s->ctx, s->buffer, at, bytes);
        tg_tensor *x = part ? tg_tape_tensor(t, dtypes[i], (int)shapes[i].ndim, shapes[i].dim, NULL, part, 0) : NULL;
        if (!x) return s->ctx->run.status;
        out[i] = x;
        at += bytes;
    }
    return TG_OK;
}

bool tg_symmetric_take(tg_symmetric *s, tg_tape *t, const tg_dtype *dtypes, const tg_shape *shapes, int n,
                       tg_tensor **out) {
    uint64_t before = t ? t->ctx->serial : 0;
    for (int i = 0; out && i < n; i++) out[i] = tg_inert(t ? t->ctx : &tg_dead_ctx);
    if (!s || !t || check_take(s, t, dtypes, shapes, n, out) != TG_OK || !fits(s, dtypes, shapes, n)) return false;
    if (take(s, t, dtypes, shapes, n, out) == TG_OK) return true;
    tg_tape_rollback(t, before);
    for (int i = 0; i < n; i++) out[i] = tg_inert(t->ctx);
    return false;
}
