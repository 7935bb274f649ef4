/* tg_rehome: moves the bytes of a tensor into a view of other memory, such as a buffer that many tensors share. */
#include "core/tensor/rehome.h"

#include <tapegrad/handles.h>

#include "core/context.h"
#include "kernels/scalar.h"

static bool is_used_by(const tg_storage *s, int handles) {
    return atomic_load_explicit(&s->refs, memory_order_relaxed) == handles && !(s->block && tg_block_held(s->block));
}

const char *tg_bytes_holder(const tg_tensor *x, int handles) {
    if (tg_storage_pins(x->storage)) return "its bytes are pinned or exported; call tg_unpin or the deleter first";
    if (x->uses || x->storage->saves) return "a node of a tape uses it; reset the tape first";
    if (x->ext->held) return "an optimizer holds it; free the optimizer first, or create it afterward";
    if (x->storage->block && tg_block_captured(x->storage->block))
        return "a captured step holds it; free the graph first, or capture afterward";
    if (!is_used_by(x->storage, handles))
        return "another handle or a work in flight uses its bytes; drop the handle, or wait for the work, first";
    return NULL;
}

tg_status tg_rehome_check(const tg_tensor *x, int handles, const char *who) {
    char what[160];
    const char *held = tg_bytes_holder(x, handles);
    if (!held) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_STATE, "%s: the bytes of %s cannot move: %s", who, what, held);
}

tg_status tg_range_may_change(const tg_tensor *x, const char *who) {
    char what[160];
    const tg_tensor *whole = tg_range_whole(x);
    if (whole->storage == x->storage) return TG_OK;
    tg_later_settle(x->ctx); /* pins end there */
    if (!tg_storage_pins(whole->storage)) return TG_OK;
    tg_describe(whole, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_STATE,
                   "%s: %s is pinned or exported, so that its old values cannot be discarded when this rank's range of "
                   "it is written (zero 3); call tg_unpin or the deleter first",
                   who, what);
}

tg_status tg_range_wrote(const tg_tensor *x, const char *by, const void *site) {
    tg_tensor *whole = tg_range_whole(x);
    if (whole == x) return TG_OK;
    if (whole->storage == x->storage) return tg_storage_await(x->storage), TG_OK;
    if (whole->storage->state == TG_IN_FLIGHT) TG_TRY(tg_storage_need(whole->storage, whole));
    tg_storage_wrote(whole->storage, by, site);
    tg_storage_discard(whole->storage, by, site);
    return TG_OK;
}

static tg_status check(tg_tensor *x, const tg_tensor *view) {
    char what[160], into[160];
    tg_ctx *ctx = x->ctx;
    TG_TRY(tg_check(ctx, x, "tg_rehome: x"));
    TG_TRY(tg_check(ctx, view, "tg_rehome: view"));
    tg_describe(x, what, sizeof what);
    tg_describe(view, into, sizeof into);
    if (x->tape || !(x->flags & TG_F_LEAF))
        return tg_fail(ctx, TG_ERR_STATE, "tg_rehome: %s is not owned by the context", what);
    if (view->dtype != x->dtype || view->numel != x->numel)
        return tg_fail(ctx, view->dtype != x->dtype ? TG_ERR_DTYPE : TG_ERR_SHAPE,
                       "tg_rehome: view is %s; it must have the dtype and the number of elements of %s", into, what);
    if (view->tape || !(view->flags & TG_F_CONTIGUOUS) || view->storage == x->storage)
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_rehome: view, %s, must be contiguous, owned by the context, and must not share bytes with x",
                       into);
    return tg_rehome_check(x, 1, "tg_rehome");
}

/* Copies the values of x to the bytes of view, in row-major order. */
static tg_status copy_values(const tg_tensor *x, const tg_tensor *view) {
    const double none[2] = {0, 0};
    int64_t stride[TG_MAX_DIMS];
    tg_array from = tg_array_of(x), to = from;
    tg_row_major(x->ndim, x->shape, stride);
    to.data = tg_data(view), to.stride = stride, to.contiguous = true;
    return x->numel ? x->ctx->run.ops->apply(x->ctx, TG_FN_id, to, &from, 1, none, false) : TG_OK;
}

tg_status tg_rehome_move(tg_tensor *x, tg_tensor *view) {
    TG_TRY(tg_storage_need(x->storage, x));
    TG_TRY(tg_storage_may_change(view));
    TG_TRY(copy_values(x, view));
    tg_storage_wrote(view->storage, "tg_rehome", TG_SITE);
    tg_storage *old = x->storage;
    x->storage = tg_storage_ref(view->storage);
    x->offset = view->offset;
    tg_row_major(x->ndim, x->shape, x->ext->dims + TG_MAX_DIMS);
    x->flags |= TG_F_CONTIGUOUS;
    tg_storage_unref(old);
    return TG_OK;
}

tg_status tg_rehome(tg_tensor *x, tg_tensor *view) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(check(x, view));
    TG_TRY(tg_recording_refuse(ctx, "tg_rehome", TG_RECORDING_MOVE, TG_SITE));
    return tg_rehome_move(x, view);
}
