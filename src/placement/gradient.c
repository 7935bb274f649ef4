/* Placements of gradients: the gradient of a tensor has the dual of the tensor's placement, in which R and P are
 * exchanged. This file also checks the placement of a gradient that the caller gives, and computes the seed of a
 * root. */
#include "placement/rule.h"

static const tg_placement invariant = {.kind = TG_INVARIANT};

const tg_placements *tg_placement_of_gradient(const tg_tensor *x, bool whole) {
    tg_ctx *ctx = x->ctx;
    const tg_placements *p = tg_grid_axes(ctx) ? tg_place_dual(ctx, tg_place_of(x)) : NULL;
    if (!p || !whole || !p->partial) return p;
    tg_placement at[TG_MAX_AXES];
    memcpy(at, p->at, sizeof at);
    for (int a = 0; a < TG_MAX_AXES; a++)
        if (at[a].kind == TG_PARTIAL) at[a] = invariant;
    return tg_place_intern(ctx, at);
}

/* Returns whether a gradient placed as `is` can be used where `want` is expected. Where an opaque gradient is
 * expected, every placement but PARTIAL fits. Where INVARIANT or REPLICATED is expected, either fits, because both mean
 * equal values on every rank. */
static bool fits(tg_placement want, tg_placement is) {
    if (want.kind == TG_VARYING && want.layout == TG_OPAQUE) return is.kind != TG_PARTIAL;
    if (want.kind <= TG_REPLICATED) return is.kind <= TG_REPLICATED;
    return tg_placement_same(want, is);
}

tg_status tg_placement_fits(const tg_tensor *x, const tg_tensor *g, const char *what) {
    tg_ctx *ctx = x->ctx;
    if (!tg_grid_axes(ctx)) return TG_OK;
    const tg_placements *want = tg_placement_of_gradient(x, false), *is = tg_place_of(g);
    for (int a = 0; a < TG_MAX_AXES; a++) {
        char wanted[24], found[24], text[160];
        tg_placement w = want ? want->at[a] : invariant, i = is ? is->at[a] : invariant;
        if (!(tg_grid_axes(ctx) >> a & 1) || fits(w, i)) continue;
        tg_placement_name(w, wanted, sizeof wanted);
        tg_placement_name(i, found, sizeof found);
        tg_describe(x, text, sizeof text);
        return tg_fail(ctx, TG_ERR_PLACEMENT,
                       "%s: on axis %s the gradient of %s is %s, expected %s; declare it with tg_place, or convert it",
                       what, tg_axis_name((tg_axis)a), text, found, wanted);
    }
    return ctx->run.status;
}

double tg_placement_seed(const tg_tensor *root) {
    const tg_placements *p = tg_grid_axes(root->ctx) ? tg_place_of(root) : NULL;
    double seed = 1;
    for (int a = 0; p && a < TG_MAX_AXES; a++)
        if (p->at[a].kind == TG_REPLICATED) seed /= tg_grid_of(root->ctx)->size[a];
    return seed;
}
