/* Bytes that code outside of the library reads or writes: pins, which keep them where they are, notes of writes from
 * outside, and memory that may not be written. */
#include <tapegrad/handles.h>

#include "core/capture/capture.h"
#include "core/context.h"
#include "core/tensor/handles.h"

/* Begins the functions of this file that take a tensor: checks x, and makes its bytes present. Returns the extra of its
 * storage, or NULL after recording the error. */
static tg_storage_extra *begin(tg_tensor *x, const char *who) {
    if (!x || !tg_ok(x->ctx) || tg_check(x->ctx, x, who) != TG_OK) return NULL;
    if (tg_storage_need(x->storage, x) != TG_OK) return NULL;
    return tg_storage_extra_of(x->storage);
}

tg_status tg_storage_pin(tg_storage *s) {
    tg_ctx *ctx = s->ctx;
    tg_storage_extra *e = tg_storage_extra_of(s);
    if (!e) return ctx->run.status;
    e->of = tg_storage_ref(s);
    e->unpin.kind = TG_LATER_UNPIN;
    if (e->pins++) return TG_OK;
    e->pinned_before = &ctx->pinned;
    e->pinned_next = ctx->pinned;
    if (e->pinned_next) e->pinned_next->pinned_before = &e->pinned_next;
    ctx->pinned = e;
    return TG_OK;
}

static void unlink_pinned(tg_storage_extra *e) {
    *e->pinned_before = e->pinned_next;
    if (e->pinned_next) e->pinned_next->pinned_before = e->pinned_before;
}

void tg_storage_unpin(tg_storage_extra *e, unsigned pins) {
    tg_storage *s = e->of;
    for (; pins && e->pins > e->exports; pins--) {
        if (!--e->pins) unlink_pinned(e);
        tg_storage_unref(s); /* the last reference makes e free for another storage, with no pins */
    }
}

tg_storage *tg_pin(tg_tensor *x) {
    if (!begin(x, "tg_pin")) return NULL;
    if (tg_recording_refuse(x->ctx, "tg_pin", TG_RECORDING_PIN, TG_SITE) != TG_OK) return NULL;
    return tg_storage_pin(x->storage) == TG_OK ? x->storage : NULL;
}

void tg_unpin(tg_storage *s) {
    if (s) tg_later_ask(s->ctx, &s->extra->unpin);
}

tg_status tg_touch(tg_tensor *x) {
    if (!x) return TG_ERR_ARGUMENT;
    if (!begin(x, "tg_touch")) return tg_ctx_status(x->ctx);
    TG_TRY(tg_refuse_lent(x, "tg_touch"));
    TG_TRY(tg_recording_refuse(x->ctx, "tg_touch", TG_RECORDING_WRITE, TG_SITE));
    tg_storage_wrote(x->storage, "the program, which called tg_touch", TG_SITE);
    tg_tensor_given(x);
    return TG_OK;
}

tg_status tg_set_read_only(tg_tensor *x, bool on) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_storage_extra *e = begin(x, "tg_set_read_only");
    if (!e) return tg_ctx_status(x->ctx);
    TG_TRY(tg_refuse_lent(x, "tg_set_read_only"));
    e->read_only = on;
    return TG_OK;
}
