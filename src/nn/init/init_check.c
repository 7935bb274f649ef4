/* Checks of initial values: the numbers of a tg_init, and the tensors that can have such values. */
#include <math.h>

#include "base/options.h"
#include "nn/init/init.h"
#include "placement/shard_index.h"

static tg_status check_fan(tg_ctx *ctx, const tg_init *o, const char *who) {
    if ((unsigned)o->fan > TG_FAN_MEAN)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the fan of the tg_init is %d, expected TG_FAN_NONE to _MEAN", who,
                       (int)o->fan);
    if (o->fan && o->kind > TG_INIT_TRUNCATED)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: a fan is given, but only TG_INIT_NORMAL, _UNIFORM and _TRUNCATED have one; leave it 0",
                       who);
    if (o->fan && o->b < 0)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: b is %g, expected a gain of 0 or more", who, o->b);
    return TG_OK;
}

tg_status tg_init_check_numbers(tg_ctx *ctx, tg_dtype dtype, const tg_init *o, const char *who) {
    bool spread = o->kind == TG_INIT_NORMAL || o->kind == TG_INIT_TRUNCATED;
    if ((unsigned)o->kind > TG_INIT_EYE)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the kind of the tg_init is %d, expected TG_INIT_NORMAL to _EYE", who,
                       (int)o->kind);
    TG_TRY(check_fan(ctx, o, who));
    if (!isfinite(o->a) || !isfinite(o->b) || (spread && o->b < 0))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: a is %g and b %g, expected finite numbers%s", who, o->a, o->b,
                       spread ? ", and a standard deviation b of 0 or more" : "");
    if ((o->kind == TG_INIT_CALL) != (o->fill != NULL))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: fill is %s, expected a function with TG_INIT_CALL and NULL otherwise",
                       who, o->fill ? "not NULL" : "NULL");
    return o->kind == TG_INIT_UNIFORM && !o->fan ? tg_interval_check(ctx, dtype, o->a, o->b, who) : TG_OK;
}

tg_status tg_init_read(tg_ctx *ctx, tg_dtype dtype, const tg_init *given, tg_init *o, const char *who) {
    if (!given) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: init is NULL", who);
    TG_TRY(tg_options(ctx, o, &tg_init_struct, given, who));
    return tg_init_check_numbers(ctx, dtype, o, who);
}

bool tg_init_draws_part(const tg_init *o) { return o->kind <= TG_INIT_TRUNCATED; }
bool tg_init_draws(const tg_init *o) { return tg_init_draws_part(o) || o->kind == TG_INIT_ORTHOGONAL; }

/* Returns whether each element is a function of its position, which the placement must then tell. */
static bool needs_positions(const tg_init *o) { return o->kind >= TG_INIT_CALL; }

tg_status tg_init_check_dims(const tg_tensor *x, const tg_init *o, const char *who) {
    char what[160];
    bool matrix = o->fan || o->kind == TG_INIT_ORTHOGONAL || o->kind == TG_INIT_EYE;
    if (!matrix || x->ndim == 2 || (x->ndim > 2 && o->kind != TG_INIT_EYE)) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_SHAPE, "%s: %s has %s, expected %s", who, what, tg_count(x->ndim, "dim").text,
                   o->kind == TG_INIT_EYE ? "a matrix, for TG_INIT_EYE"
                   : o->fan               ? "a weight of 2 dims or more, because a fan is given"
                                          : "2 or more, for TG_INIT_ORTHOGONAL");
}

tg_status tg_init_check_leaf(const tg_tensor *x, const tg_init *o, const char *who) {
    char what[160];
    tg_describe(x, what, sizeof what);
    if (x->tape || !(x->flags & TG_F_CONTIGUOUS) || !tg_is_float((tg_dtype)x->dtype))
        return tg_fail(x->ctx, x->tape ? TG_ERR_STATE : TG_ERR_ARGUMENT,
                       "%s: %s is %s, expected a contiguous floating-point leaf of the context", who, what,
                       x->tape ? "owned by a tape" : "another tensor");
    if (!needs_positions(o) || tg_shard_is_located(x)) return TG_OK;
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s: the placement of %s does not say which elements of the global tensor it has; declare it with "
                   "tg_place first",
                   who, what);
}
