/* tg_recv: makes a leaf of a tape, whose values another rank sends. */
#include <tapegrad/mappings.h>

#include "comm/comm.h"
#include "tape/tape.h"

/* Makes a leaf without values. Its bytes may differ between ranks, like bytes from the caller, so it is TG_F_GIVEN. */
static tg_tensor *make_leaf(tg_tape *t, tg_dtype dtype, const tg_shape *shape) {
    tg_ctx *ctx = t->ctx;
    if (!dtype) dtype = ctx->dtype;
    if (tg_shape_check(ctx, shape, dtype, "tg_recv") != TG_OK) return NULL;
    size_t bytes = (size_t)tg_row_major((int)shape->ndim, shape->dim, NULL) * tg_dtype_size(dtype);
    tg_storage *s = tg_storage_new(ctx, bytes, TG_MEM_TEMPORARY);
    tg_tensor *x = s ? tg_tape_tensor(t, dtype, (int)shape->ndim, shape->dim, NULL, s, 0) : NULL;
    if (!x) return NULL;
    s->temporary = true;
    x->flags |= TG_F_LEAF | TG_F_GIVEN;
    return x;
}

tg_tensor *tg_recv(tg_tape *t, tg_comm *c, tg_dtype dtype, tg_shape shape, int from) {
    if (!t || tg_comm_note_missed(c, tg_tape_check(t, "tg_recv")) != TG_OK) return tg_tape_inert(t, NULL, 0);
    if (!c || tg_comm_ctx(c) != t->ctx) {
        tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_recv: c is %s, expected a communicator of the tape's context",
                c ? "of another context, or its constructor failed" : "NULL");
        return tg_inert(t->ctx);
    }
    uint64_t before = t->ctx->serial;
    tg_tensor *x = make_leaf(t, dtype, &shape);
    if (tg_comm_note_missed(c, t->ctx->run.status) != TG_OK) return tg_inert(t->ctx);
    tg_collective_args a = {.kind = TG_RECV, .dst = x, .root = from, .site = TG_SITE};
    tg_comm_start(c, &a);
    if (tg_ok(t->ctx)) return x;
    tg_tape_rollback(t, before);
    return tg_inert(t->ctx);
}
