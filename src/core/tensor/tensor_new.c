/* Functions that create tensors on a context: zeros, copies of the caller's bytes, random draws, and parameters, which
 * may get their values later. */
#include <math.h>

#include "core/capture/capture.h"
#include "core/context.h"
#include "core/random/rng.h"
#include "kernels/uniform.h"

static tg_tensor *or_inert(const tg_ctx *ctx, tg_tensor *x) { return x ? x : tg_inert(ctx); }

/* Returns a tensor with undefined values, or NULL after recording the error: the shape or dtype is invalid, or there is
 * no memory. */
static tg_tensor *new_empty(tg_ctx *ctx, tg_dtype dtype, const tg_shape *shape, tg_category category, const char *who) {
    if (!dtype) dtype = ctx->dtype;
    if (tg_shape_check(ctx, shape, dtype, who) != TG_OK) return NULL;
    return tg_owned_empty(ctx, dtype, (int)shape->ndim, shape->dim, category);
}

/* Ends a creation: returns x, or the inert tensor if x is NULL or s, the status of filling x, is an error. */
static tg_tensor *finish(tg_ctx *ctx, tg_tensor *x, tg_status s) {
    if (x && s != TG_OK) {
        tg_owned_free(x);
        x = NULL;
    }
    return or_inert(ctx, x);
}

/* Begins a public function: returns the inert tensor from it if the context is NULL or has an error. */
#define TG_ENTER(ctx)                                         \
    do {                                                      \
        if (!(ctx)) return tg_inert(&tg_dead_ctx);            \
        if ((ctx)->run.status != TG_OK) return tg_inert(ctx); \
        tg_later_settle(ctx);                                 \
    } while (0)

tg_tensor *tg_zeros(tg_ctx *ctx, tg_dtype dtype, tg_shape shape) {
    TG_ENTER(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_TEMPORARY, "tg_zeros");
    return finish(ctx, x, x ? ctx->run.ops->fill(ctx, tg_array_of(x), 0) : TG_OK);
}

tg_tensor *tg_from_host(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, const void *data) {
    TG_ENTER(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_TEMPORARY, "tg_from_host");
    if (x && x->numel > 0 && !data)
        return finish(ctx, x, tg_fail(ctx, TG_ERR_ARGUMENT, "tg_from_host: data is NULL"));
    if (tg_recording_refuse(ctx, "tg_from_host", TG_RECORDING_WRITE, TG_SITE) != TG_OK)
        return finish(ctx, x, ctx->run.status);
    if (x) x->flags |= TG_F_GIVEN;
    size_t bytes = x ? (size_t)x->numel * tg_dtype_size(x->dtype) : 0;
    return finish(ctx, x, bytes ? ctx->run.ops->copy(ctx, tg_data(x), data, bytes, TG_COPY_FROM_HOST) : TG_OK);
}

/* Fills x with draws from the current stream. If this stream may differ between ranks, notes that x may too. */
static tg_status draw(tg_tensor *x, tg_random kind, double a, double b) {
    if (!tg_rng_is_common(x->ctx)) tg_tensor_given(x);
    return tg_fill_random(x, kind, a, b);
}

tg_status tg_normal_check(tg_ctx *ctx, tg_dtype dtype, double std, const char *who) {
    if (!(std >= 0) || isinf(std))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: std is %g, expected a finite number, 0 or more", who, std);
    if (dtype && !tg_is_float(dtype))
        return tg_fail(ctx, TG_ERR_DTYPE, "%s: dtype %s, expected a float", who, tg_dtype_name(dtype));
    return TG_OK;
}

tg_tensor *tg_randn(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, double std) {
    TG_ENTER(ctx);
    if (tg_normal_check(ctx, dtype, std, "tg_randn") != TG_OK) return tg_inert(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_TEMPORARY, "tg_randn");
    return finish(ctx, x, x ? draw(x, TG_RANDOM_NORMAL, 0, std) : TG_OK);
}

/* Numbers of a 16-bit dtype are drawn in float32, so the width hi - lo may exceed the largest number of the dtype. */
tg_status tg_interval_check(tg_ctx *ctx, tg_dtype t, double lo, double hi, const char *who) {
    double least, below;
    if (!tg_is_float(t)) return tg_fail(ctx, TG_ERR_DTYPE, "%s: dtype %s, expected a float", who, tg_dtype_name(t));
    if (!(lo <= hi) || isinf(lo) || isinf(hi))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: [%g, %g), expected finite lo <= hi", who, lo, hi);
    if (isinf(tg_uniform_nearest(t, lo)) || isinf(tg_uniform_nearest(t, hi)) ||
        isinf(tg_uniform_nearest(tg_accumulate_dtype(t), hi - lo)))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: [%g, %g), expected bounds and a width within the range of %s", who,
                       lo, hi, tg_dtype_name(t));
    tg_uniform_ends(t, lo, hi, &least, &below);
    if (lo < hi && least >= hi)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: [%.17g, %.17g) contains no number of dtype %s; widen it", who, lo, hi,
                       tg_dtype_name(t));
    return TG_OK;
}

tg_tensor *tg_uniform(tg_ctx *ctx, tg_dtype dtype, tg_shape shape, double lo, double hi) {
    TG_ENTER(ctx);
    if (tg_interval_check(ctx, dtype ? dtype : ctx->dtype, lo, hi, "tg_uniform") != TG_OK) return tg_inert(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_TEMPORARY, "tg_uniform");
    return finish(ctx, x, x ? draw(x, TG_RANDOM_UNIFORM, lo, hi) : TG_OK);
}

/* Reports a use of a parameter that has no values yet. */
static tg_status refuse_unfilled(void *user, tg_storage *s) {
    char what[160] = "of the model";
    (void)user;
    if (tg_storage_maker(s)) tg_describe(tg_storage_maker(s), what, sizeof what);
    return tg_fail(s->ctx, TG_ERR_STATE,
                   "parameter %s has no values yet, because its model was created with .unfilled; call tg_lm_load or "
                   "tg_lm_map first",
                   what);
}

/* Takes the bytes of a new parameter away, until tg_param_fill. */
static tg_status leave_unfilled(tg_tensor *x) {
    tg_storage_extra *e = tg_storage_extra_of(x->storage);
    if (!e) return x->ctx->run.status;
    e->restore = refuse_unfilled;
    tg_storage_discard(x->storage, "its creation", NULL);
    return TG_OK;
}

bool tg_param_is_unfilled(const tg_tensor *x) {
    const tg_storage *s = x->storage;
    return s->state == TG_DISCARDED && s->extra && s->extra->restore == refuse_unfilled;
}

tg_status tg_param_fill(tg_tensor *x) {
    if (!tg_param_is_unfilled(x)) return TG_OK;
    TG_TRY(tg_storage_renew(x->storage));
    x->storage->extra->restore = NULL; /* only now: without memory, x stays a parameter that a later load can fill */
    return TG_OK;
}

static tg_status begin_param(tg_tensor *x, const char *name, double std) {
    tg_ctx *ctx = x->ctx;
    x->flags |= TG_F_PARAM | TG_F_REQUIRES_GRAD;
    TG_TRY(tg_set_name(x, name));
    if (ctx->unfilled && x->ndim > 1 && !ctx->meta) return leave_unfilled(x);
    if (std == 0) return ctx->run.ops->fill(ctx, tg_array_of(x), 0);
    return tg_fill_random(x, TG_RANDOM_NORMAL, 0, std);
}

tg_tensor *tg_param_new(tg_ctx *ctx, const char *name, tg_dtype dtype, tg_shape shape, double std) {
    TG_ENTER(ctx);
    if (tg_normal_check(ctx, dtype, std, "tg_param_new") != TG_OK) return tg_inert(ctx);
    tg_tensor *x = new_empty(ctx, dtype, &shape, TG_MEM_PARAMETER, "tg_param_new");
    return finish(ctx, x, x ? begin_param(x, name ? name : "", std) : TG_OK);
}
