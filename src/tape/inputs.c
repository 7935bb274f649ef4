/* Leaves that a tape makes with bytes of their own: copies of the caller's values, and random numbers. */
#include <tapegrad/inputs.h>

#include "core/capture/capture.h"
#include "core/random/rng.h"
#include "tape/tape.h"

/* Makes a leaf with undefined values. Returns NULL after recording the error. */
static tg_tensor *new_leaf(tg_tape *t, tg_dtype dtype, const tg_shape *shape, const char *who) {
    tg_ctx *ctx = t->ctx;
    if (tg_shape_check(ctx, shape, dtype, who) != TG_OK) return NULL;
    size_t bytes = (size_t)tg_row_major((int)shape->ndim, shape->dim, NULL) * tg_dtype_size(dtype);
    tg_storage *s = tg_storage_new(ctx, bytes, TG_MEM_TEMPORARY);
    tg_tensor *x = s ? tg_tape_tensor(t, dtype, (int)shape->ndim, shape->dim, NULL, s, 0) : NULL;
    if (!x) return NULL;
    s->temporary = true;
    x->flags |= TG_F_LEAF;
    return x;
}

/* Returns x if s, the status of filling it, is TG_OK. Otherwise ends x, unless it is NULL, and returns an inert
 * tensor. */
static tg_tensor *finish(tg_tape *t, tg_tensor *x, tg_status s) {
    if (x && s == TG_OK) return x;
    if (x) tg_tape_give_handle(x);
    return tg_inert(t->ctx);
}

/* Begins a function that makes a leaf. Returns its dtype, which is the context's if 0 is given, or 0 after recording an
 * error. */
static tg_dtype begin(tg_tape *t, tg_dtype dtype, const char *who) {
    if (tg_tape_check(t, who) != TG_OK) return TG_DTYPE_DEFAULT;
    tg_tape_settle(t);
    return dtype ? dtype : t->ctx->dtype;
}

tg_tensor *tg_input(tg_tape *t, tg_dtype dtype, tg_shape shape, const void *data) {
    if (!(dtype = begin(t, dtype, "tg_input"))) return tg_tape_inert(t, NULL, 0);
    tg_ctx *ctx = t->ctx;
    if (tg_recording_refuse(ctx, "tg_input", TG_RECORDING_WRITE, TG_SITE) != TG_OK) return tg_inert(ctx);
    tg_tensor *x = new_leaf(t, dtype, &shape, "tg_input");
    if (!x) return tg_inert(ctx);
    x->flags |= TG_F_GIVEN;
    size_t bytes = (size_t)x->numel * tg_dtype_size(dtype);
    if (bytes && !data) return finish(t, x, tg_fail(ctx, TG_ERR_ARGUMENT, "tg_input: data is NULL"));
    return finish(t, x, bytes ? ctx->run.ops->copy(ctx, tg_data(x), data, bytes, TG_COPY_FROM_HOST) : TG_OK);
}

/* Makes a leaf of random numbers: draws from the current stream, for the micro-batch that the tape records. Marks the
 * leaf with TG_F_GIVEN if the stream, and so the leaf, may differ between ranks. */
static tg_tensor *drawn(tg_tape *t, tg_dtype dtype, const tg_shape *shape, tg_random kind, double a, double b,
                        const char *who) {
    tg_tensor *x = new_leaf(t, dtype, shape, who);
    if (x && !tg_rng_is_common(t->ctx)) x->flags |= TG_F_GIVEN;
    return finish(t, x, x ? tg_fill_random_from(x, &t->ctx->rng, t->micro, kind, a, b) : TG_OK);
}

tg_tensor *tg_tape_randn(tg_tape *t, tg_dtype dtype, tg_shape shape, double std) {
    if (!(dtype = begin(t, dtype, "tg_tape_randn"))) return tg_tape_inert(t, NULL, 0);
    if (tg_normal_check(t->ctx, dtype, std, "tg_tape_randn") != TG_OK) return tg_inert(t->ctx);
    return drawn(t, dtype, &shape, TG_RANDOM_NORMAL, 0, std, "tg_tape_randn");
}

tg_tensor *tg_tape_uniform(tg_tape *t, tg_dtype dtype, tg_shape shape, double lo, double hi) {
    if (!(dtype = begin(t, dtype, "tg_tape_uniform"))) return tg_tape_inert(t, NULL, 0);
    if (tg_interval_check(t->ctx, dtype, lo, hi, "tg_tape_uniform") != TG_OK) return tg_inert(t->ctx);
    return drawn(t, dtype, &shape, TG_RANDOM_UNIFORM, lo, hi, "tg_tape_uniform");
}
