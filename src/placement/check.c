/* Check mode: compares tensors whose placement says that they are the same on every rank of an axis. check_results.c
 * compares the results of ops.
 *
 * Ranks of a group of tp, cp, etp or ep record the same ops. So on those axes a leaf is compared at its first use, and
 * a seed and the result of a hook when backward gets them. Results of ops are compared when they are computed, but only
 * on a grid without axes of experts. One data-parallel rank may use parameters that another one does not, so on the
 * data-parallel axes tg_grads_finalize compares the parameters. */
#include <stdio.h>

#include <tapegrad/comm.h>

#include "placement/check.h"
#include "placement/rule.h"

/* Returns the axes of the grid on which p (the placements of x or of its gradient) says that every rank has the same
 * bytes. If x was placed on the expert grid, these are among the axes that x was placed on. Otherwise they are among
 * the axes of the dense grid, without pp. */
static uint32_t equal_axes(const tg_tensor *x, const tg_placements *p) {
    uint32_t placed = x->ext ? x->ext->placed : 0;
    uint32_t axes = placed & TG_EXPERT_AXES ? placed : tg_grid_axes(x->ctx) & ~(TG_EXPERT_AXES | 1u << TG_PP);
    return axes & tg_grid_axes(x->ctx) & ~(p ? p->varying | p->partial : 0);
}

uint32_t tg_placement_claimed(const tg_tensor *x) { return equal_axes(x, tg_place_of(x)); }

/* Fails because the bytes of x differ between ranks of the axis, and says where. Collective. */
static tg_status differs(tg_tensor *x, tg_axis axis) {
    char what[160], is[24], element[128];
    int rank;
    TG_TRY(tg_placement_describe_difference(x, tg_grid_of(x->ctx)->comm[axis], &rank, element, sizeof element));
    tg_describe(x, what, sizeof what);
    tg_placement_name(tg_place_on(x, axis), is, sizeof is);
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s is %s on axis %s, but its bytes differ between ranks 0 and %d: %s; declare its true placement "
                   "(tg_place), or make it equal (tg_broadcast_data)",
                   what, is, tg_axis_name(axis), rank, element);
}

tg_status tg_placement_compare_hashes(tg_tensor *const *x, const int64_t *mine, int64_t n, tg_axis axis) {
    tg_ctx *ctx = x[0]->ctx;
    int64_t wrong;
    TG_TRY(tg_placement_find_other(ctx, tg_grid_of(ctx)->comm[axis], mine, n, &wrong, NULL, NULL));
    return wrong < 0 ? TG_OK : differs(x[wrong % n], axis);
}

bool tg_placement_comparable(const tg_tensor *x) {
    return !x->ctx->meta && !x->ctx->run.recording && x->flags & TG_F_CONTIGUOUS;
}

tg_status tg_placement_compare(tg_tensor *x) {
    uint32_t axes = tg_placement_claimed(x) & ~TG_DATA_PARALLEL_AXES;
    if (x->ctx->run.recording) return TG_OK; /* a use outside of the recorded step compares x */
    x->flags |= TG_F_COMPARED;
    if (!axes || !tg_placement_comparable(x)) return TG_OK;
    int64_t mine;
    TG_TRY(tg_placement_hash(x, &mine));
    for (int a = 0; a < TG_MAX_AXES; a++)
        if (axes >> a & 1) TG_TRY(tg_placement_compare_hashes(&x, &mine, 1, (tg_axis)a));
    return TG_OK;
}

/* Compares g, a gradient of x, on the axes on which a gradient of x is the same on every rank, except for the
 * data-parallel axes. */
static tg_status compare_gradient(const tg_tensor *x, tg_tensor *g, const char *what, const char *remedy) {
    const tg_placements *dual = tg_placement_of_gradient(x, false);
    uint32_t axes = equal_axes(x, dual) & ~TG_DATA_PARALLEL_AXES;
    if (!axes || !tg_placement_comparable(g)) return x->ctx->run.status;
    int64_t mine, wrong;
    TG_TRY(tg_placement_hash(g, &mine));
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!(axes >> a & 1)) continue;
        tg_comm *comm = tg_grid_of(x->ctx)->comm[a];
        char of[160], is[24], element[128];
        int rank;
        TG_TRY(tg_placement_find_other(x->ctx, comm, &mine, 1, &wrong, NULL, NULL));
        if (wrong < 0) continue;
        TG_TRY(tg_placement_describe_difference(g, comm, &rank, element, sizeof element));
        tg_describe(x, of, sizeof of);
        tg_placement_name(dual ? dual->at[a] : (tg_placement){.kind = TG_INVARIANT}, is, sizeof is);
        return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                       "%s: the gradient of %s is %s on axis %s, but the bytes differ between ranks 0 and %d: %s; %s",
                       what, of, is, tg_axis_name((tg_axis)a), rank, element, remedy);
    }
    return TG_OK;
}

tg_status tg_placement_compare_root(tg_tensor *root, tg_tensor *seed, const char *who) {
    tg_ctx *ctx = root->ctx;
    if (!ctx->check || !tg_grid_axes(ctx) || !tg_grid_of(ctx)->owner) return TG_OK;
    if (!root->tape && !(root->flags & TG_F_COMPARED)) TG_TRY(tg_placement_compare(root));
    char what[64];
    snprintf(what, sizeof what, "%s: a seed", who);
    return seed ? compare_gradient(root, seed, what, "give every rank of the axis the same seed") : TG_OK;
}

tg_status tg_placement_compare_hooked(const tg_tensor *x, tg_tensor *g) {
    if (!x->ctx->check || !tg_grid_axes(x->ctx) || !tg_grid_of(x->ctx)->owner) return TG_OK;
    return compare_gradient(x, g, "a gradient hook's result",
                            "return the same gradient on every rank of the axis, or sum the ranks' results before");
}

/* ---- A communicator without a grid ---- */

tg_status tg_placement_compare_over(tg_tensor *x, tg_comm *c, const char *who) {
    char what[160];
    int64_t wrong;
    if (!tg_placement_comparable(x)) return TG_OK;
    int64_t mine;
    TG_TRY(tg_placement_hash(x, &mine));
    TG_TRY(tg_placement_find_other(x->ctx, c, &mine, 1, &wrong, NULL, NULL));
    if (wrong < 0) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_PLACEMENT,
                   "%s: the bytes of %s differ between ranks 0 and %d of \"%s\", so ranks would get parts of each "
                   "other's tensors; distribute a tensor that is the same on all of them",
                   who, what, (int)wrong, tg_comm_name(c));
}
