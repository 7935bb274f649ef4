/* What the constructors of tensor-parallel layers share: checks of sizes, axes and initial values, and parameters. */
#include "parallel/tp/layers.h"

#include <stdio.h>

#include "nn/init/init.h"
#include "parallel/parallel.h"
#include "placement/placing.h"

tg_status tg_layer_divide(const tg_parallel *p, const char *who, const char *what, int64_t size, tg_axis axis) {
    int n = tg_parallel_size(p, axis);
    tg_ctx *ctx = tg_parallel_ctx(p);
    if (size <= 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %lld, expected a positive number", who, what, (long long)size);
    if (size % n == 0) return TG_OK;
    return tg_fail(ctx, TG_ERR_SHAPE, "%s: %s is %lld, expected a multiple of the %d ranks of %s", who, what,
                   (long long)size, n, tg_axis_name(axis));
}

tg_status tg_layer_check_axis(const tg_parallel *p, const char *who, tg_axis axis, bool draws_part) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    if (axis != TG_TP && axis != TG_CP && axis != TG_DP)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: axis is %d (%s), expected TG_TP, TG_CP or TG_DP", who, (int)axis,
                       tg_axis_name(axis));
    if (axis != TG_TP && draws_part && p->o.rng == TG_RNG_MEGATRON)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: axis is %s, but the random streams of TG_RNG_MEGATRON differ over tp only, so every rank "
                       "would draw the same part; use TG_RNG_GLOBAL, or write the weight and draw none",
                       who, tg_axis_name(axis));
    return TG_OK;
}

tg_tensor *tg_layer_param(const tg_parallel *p, const char *name, tg_dtype dtype, tg_shape shape, double std,
                          tg_axis axis, tg_placement at) {
    tg_placement on[] = {[TG_TP] = tg_is_sequence_parallel(p) ? TG_R : TG_I, [TG_CP] = TG_R, [TG_DP] = TG_R};
    on[axis] = at;
    return tg_param_new_placed(p, name, dtype, shape, std,
                               TG_PLACES({TG_TP, on[TG_TP]}, {TG_DP, on[TG_DP]}, {TG_CP, on[TG_CP]}));
}

tg_status tg_layer_read_init(const tg_parallel *p, const char *who, const char *what, tg_dtype dtype, bool makes,
                             const tg_init *given, tg_init *o) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    char text[96];
    if (!given) return TG_OK;
    if (!makes)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is given, but the layer has no values to set; leave it NULL", who,
                       what);
    snprintf(text, sizeof text, "%s: %s", who, what);
    return tg_init_read(ctx, dtype ? dtype : ctx->dtype, given, o, text);
}

tg_tensor *tg_layer_init(tg_tensor *x, const tg_init *init, const char *who) {
    if (!init || !tg_ok(x->ctx) || tg_init_fill(x, init, who, TG_SITE) == TG_OK) return x;
    tg_drop(x);
    return tg_inert(x->ctx);
}
