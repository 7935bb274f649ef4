/* Changes the dtype of a tensor that the context owns, such as a parameter: its handle gets a new storage, which has
 * the converted values. */
#include "core/tensor/retype.h"

#include "core/context.h"
#include "core/tensor/rehome.h"
#include "kernels/scalar.h"

/* Returns what keeps x in its dtype, with the remedy; NULL if nothing does. */
static const char *holder_of(const tg_tensor *x) {
    const char *held = tg_bytes_holder(x, 1);
    if (held) return held;
    if (x->ext->has_grad) return "it has a gradient; remove it with tg_zero_grad first";
    if (x->ext->main_grad)
        return "it has a main gradient (tg_set_main_grad), whose dtype depends on the tensor's; remove the main "
               "gradient first";
    return NULL;
}

tg_status tg_retype_check(const tg_tensor *x, const char *name, const char *who) {
    const char *held = holder_of(x);
    if (!held) return TG_OK;
    return tg_fail(x->ctx, TG_ERR_STATE, "%s: \"%s\" cannot get another dtype: %s", who, name, held);
}

tg_storage *tg_retype_convert(tg_tensor *x, tg_dtype dtype) {
    const double none[2] = {0, 0};
    tg_ctx *ctx = x->ctx;
    if (tg_storage_may_change(x) != TG_OK) return NULL;
    tg_tensor *y = tg_temp_empty(ctx, dtype, x->ndim, x->shape, (tg_category)x->storage->category);
    if (!y) return NULL;
    tg_array from = tg_array_of(x);
    tg_status s = x->numel ? ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(y), &from, 1, none, false) : TG_OK;
    tg_storage *converted = s == TG_OK ? tg_storage_ref(y->storage) : NULL;
    tg_temp_free(y);
    return converted;
}

/* Drops the buffer of x's gradient, because the next gradient may have another dtype. No value is lost: a tensor that
 * has a gradient is refused (holder_of). */
static void drop_gradient(tg_tensor *x) {
    tg_tensor *g = x->ext->grad;
    if (!g) return;
    g->ext->grad_of = NULL;
    x->ext->grad = NULL;
    tg_drop(g);
}

void tg_retype(tg_tensor *x, tg_dtype dtype, tg_storage *converted) {
    tg_storage *old = x->storage;
    int64_t *stride = x->ext->dims + TG_MAX_DIMS;
    drop_gradient(x);
    x->storage = converted;
    x->storage->birth = x->serial;
    x->storage->maker = x;
    x->offset = 0;
    x->dtype = (uint8_t)dtype;
    tg_row_major(x->ndim, x->shape, stride);
    x->flags = (uint16_t)((x->flags | TG_F_CONTIGUOUS) & ~TG_F_COMPARED);
    tg_storage_unref(old);
}
