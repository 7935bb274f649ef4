/* tg_param_new_placed: creates this rank's part of a parameter from its global shape and placements. */
#include <math.h>

#include "core/tensor/tensor.h"
#include "parallel/parallel.h"
#include "placement/draws.h"
#include "placement/placing.h"

/* Returns whether axis a of the expert grid includes axis b of the dense grid: if both grids are the same
 * (tg_parallel_opts), etp is tp, and edp is dp and cp. */
static bool includes(const tg_parallel *p, tg_axis a, tg_axis b) {
    return p->one_grid && ((a == TG_ETP && b == TG_TP) || (a == TG_EDP && (b == TG_DP || b == TG_CP)));
}

/* Fails if two placements divide the parameter over the same ranks. */
static tg_status check_shards(const tg_parallel *p, tg_ctx *ctx, const tg_place_at *at, int n) {
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            tg_axis a = at[i].axis, b = at[k].axis;
            if (!includes(p, a, b) || tg_parallel_size(p, b) == 1) continue;
            if (!tg_placement_shards(at[i].placement) || !tg_placement_shards(at[k].placement)) continue;
            return tg_fail(ctx, TG_ERR_ARGUMENT,
                           "tg_param_new_placed: the parameter is a shard on %s and on %s, but %s includes %s here, "
                           "because both grids are the same; name one of them",
                           tg_axis_name(a), tg_axis_name(b), tg_axis_name(a), tg_axis_name(b));
        }
    return TG_OK;
}

static tg_status check_at(const tg_parallel *p, tg_ctx *ctx, const tg_place_at *at, int n, double std) {
    if (n < 0 || n > TG_MAX_AXES || (n && !at))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_param_new_placed: n is %d and at is %p, expected an array of 0 to %d placements", n,
                       (const void *)at, TG_MAX_AXES);
    if (!(std >= 0) || isinf(std))
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_param_new_placed: std is %g, expected a finite number, 0 or more",
                       std);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++)
            if (at[k].axis == at[i].axis)
                return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_param_new_placed: axis %s is given twice",
                               tg_axis_name(at[i].axis));
    if (tg_grid_of(ctx)->owner != p)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_param_new_placed: p is not the tg_parallel of its context");
    return check_shards(p, ctx, at, n);
}

/* Divides the dim of *s that the placement `at` shards by the number of ranks of its axis. Called for each placement,
 * it turns the global shape into the shape of this rank's part. */
static tg_status cut(const tg_parallel *p, tg_ctx *ctx, tg_shape *s, tg_place_at at) {
    tg_placement to = at.placement;
    int n = tg_parallel_size(p, at.axis), d = to.dim < 0 ? to.dim + (int)s->ndim : to.dim;
    if (!tg_placement_shards(to)) return TG_OK;
    if (d < 0 || d >= s->ndim)
        return tg_fail(ctx, TG_ERR_SHAPE,
                       "tg_param_new_placed: the placement shards dim %d, but the shape has %s (axis %s)", to.dim,
                       tg_count((int)s->ndim, "dim").text, tg_axis_name(at.axis));
    if (s->dim[d] % n)
        return tg_fail(ctx, TG_ERR_SHAPE,
                       "tg_param_new_placed: dim %d is %lld, expected a multiple of the %d ranks of %s", d,
                       (long long)s->dim[d], n, tg_axis_name(at.axis));
    s->dim[d] /= n;
    int64_t chunks = tg_placement_chunks(to);
    if (chunks > 0 && s->dim[d] % chunks == 0) return TG_OK;
    return tg_fail(ctx, TG_ERR_SHAPE,
                   "tg_param_new_placed: dim %d has size %lld on a rank of %s, expected a multiple of %lld chunks", d,
                   (long long)s->dim[d], tg_axis_name(at.axis), (long long)chunks);
}

/* Places x on the axes, and fills it with normal random numbers of standard deviation std. If std is 0, x keeps its
 * zeros. A parameter that was made without bytes (tg_ctx.unfilled) is only placed. */
static tg_status fill(const tg_parallel *p, tg_tensor *x, const tg_place_at *at, int n, double std) {
    bool expert = false;
    for (int i = 0; i < n; i++) {
        expert |= at[i].axis == TG_ETP || at[i].axis == TG_EP || at[i].axis == TG_EDP;
        TG_TRY(tg_place(p, x, at[i].axis, at[i].placement));
    }
    return std > 0 && !tg_param_is_unfilled(x) ? tg_fill_random_placed(x, TG_RANDOM_NORMAL, 0, std, expert) : TG_OK;
}

tg_tensor *tg_param_new_placed(const tg_parallel *p, const char *name, tg_dtype dtype, tg_shape global, double std,
                               const tg_place_at *at, int n) {
    tg_ctx *ctx = tg_parallel_ctx(p);
    if (!tg_ok(ctx)) return tg_inert(ctx ? ctx : &tg_dead_ctx);
    tg_status s = check_at(p, ctx, at, n, std);
    if (s == TG_OK) s = tg_shape_check(ctx, &global, dtype ? dtype : ctx->dtype, "tg_param_new_placed");
    if (s == TG_OK && dtype && !tg_is_float(dtype))
        s = tg_fail(ctx, TG_ERR_DTYPE, "tg_param_new_placed: dtype is %s, expected a floating-point dtype",
                    tg_dtype_name(dtype));
    for (int i = 0; i < n && s == TG_OK; i++) s = cut(p, ctx, &global, at[i]);
    if (s != TG_OK) return tg_inert(ctx);
    tg_tensor *x = tg_param_new(ctx, name, dtype, global, 0);
    if (!tg_ok(ctx)) return x;
    if (fill(p, x, at, n, std) == TG_OK) return x;
    tg_drop(x);
    return tg_inert(ctx);
}
