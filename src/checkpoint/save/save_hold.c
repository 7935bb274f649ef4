/* The bytes of a save in the background: a copy of the pieces, made when the save begins, in host memory. */
#include "checkpoint/save/save.h"

#include "base/memory/host_memory.h"
#include "core/memory/mapping.h"
#include "kernels/scalar.h"

enum { ALIGN = 64 }; /* bytes; each piece begins at a multiple of this */

static int64_t padded_bytes(const tg_save_piece *p) { return (p->bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* Allocates w->held: if possible, from the device's slot host_alloc, whose memory the device can write directly. */
static tg_status take(tg_save *w) {
    const tg_device_ops *ops = w->ctx->run.ops;
    w->held_bytes = ALIGN; /* not 0, also if no piece has an element */
    for (int i = 0; i < w->n; i++) w->held_bytes += w->piece[i].mine ? (size_t)padded_bytes(&w->piece[i]) : 0;
    w->held = ops->host_alloc ? ops->host_alloc(w->ctx, w->held_bytes) : NULL;
    w->pinned = w->held != NULL;
    if (!w->held) w->held = tg_host_alloc(w->ctx, w->held_bytes);
    return w->held ? TG_OK : w->ctx->run.status;
}

void tg_save_release(tg_save *w) {
    if (w->pinned)
        w->ctx->run.ops->host_free(w->ctx, w->held, w->held_bytes);
    else
        tg_host_free(w->ctx, w->held, w->held_bytes);
    w->held = NULL;
}

/* Copies a contiguous tensor to host memory. */
static tg_status copy_rows(const tg_tensor *x, char *to) {
    size_t bytes = (size_t)x->numel * tg_dtype_size(x->dtype);
    return x->ctx->run.ops->copy(x->ctx, to, tg_data(x), bytes, x->ctx->host ? TG_COPY_DEVICE : TG_COPY_TO_HOST);
}

static tg_status copy_part(tg_tensor *x, char *to) {
    if (x->flags & TG_F_CONTIGUOUS) return copy_rows(x, to);
    tg_tensor *rows = tg_temp_empty(x->ctx, (tg_dtype)x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
    if (!rows) return x->ctx->run.status;
    tg_array from = tg_array_of(x);
    tg_status s = x->ctx->run.ops->apply(x->ctx, TG_FN_id, tg_array_of(rows), &from, 1, (const double[2]){0}, false);
    if (s == TG_OK) s = copy_rows(rows, to);
    tg_temp_free(rows);
    return s;
}

/* Copies a piece. If its elements are not contiguous, copies it part by part (tg_pieces). */
static tg_status hold(tg_save_piece *p, char *to) {
    tg_tensor *x = tg_save_view(p);
    if (!x) return p->item->x->ctx->run.status;
    p->held = to;
    tg_status s = TG_OK;
    if (x->flags & TG_F_CONTIGUOUS)
        s = x->numel ? copy_rows(x, to) : TG_OK;
    else {
        tg_pieces parts;
        tg_pieces_begin(&parts, x);
        for (tg_tensor *part; s == TG_OK && (part = tg_pieces_next(&parts));) {
            s = copy_part(part, to);
            to += (size_t)part->numel * tg_dtype_size(part->dtype);
            tg_temp_free(part);
        }
        if (s == TG_OK) s = x->ctx->run.status;
    }
    tg_temp_free(x);
    return s;
}

tg_status tg_save_hold(tg_save *w) {
    TG_TRY(take(w));
    char *to = w->held;
    for (int i = 0; i < w->n; i++) {
        if (!w->piece[i].mine) continue;
        TG_TRY(hold(&w->piece[i], to));
        to += padded_bytes(&w->piece[i]);
    }
    /* The thread cannot find this: its context has mapped no file. */
    return tg_mappings_check(w->ctx);
}
