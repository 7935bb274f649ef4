/* The norm of all gradients, over all ranks, and clipping by it. */
#include <math.h>

#include "kernels/scalar.h"
#include "optim/optim.h"
#include "placement/placing.h"

/* The sets of axes over which parameters are sharded, and the place of each set in o->squares: gradients that are
 * sharded over the same axes are adjacent there. */
typedef struct square_sets {
    uint32_t mask[TG_STEP_SUMS]; /* bit a is set if the set has axis a */
    int64_t count[TG_STEP_SUMS], first[TG_STEP_SUMS]; /* number of gradients of the set, and index of the first one */
    int n;
} square_sets;

/* Returns the number of an item's set. Adds the set if it is new. Returns -1 if there are too many sets. */
static int set_of(square_sets *s, const tg_optim_item *it) {
    uint32_t mask = it->param->place ? it->param->place->varying : 0;
    int i = 0;
    while (i < s->n && s->mask[i] != mask) i++;
    if (i == TG_STEP_SUMS) return -1;
    if (i == s->n) s->mask[s->n++] = mask;
    return i;
}

/* Finds the sets of all items, and the place of each set in o->squares. */
static tg_status find_sets(tg_optim *o, square_sets *s, const char *who) {
    for (int i = 0; i < o->n; i++) {
        int k = set_of(s, &o->item[i]);
        if (k < 0)
            return tg_fail(o->ctx, TG_ERR_UNSUPPORTED,
                           "%s: the parameters are sharded over more than %d different sets of axes, too many for the "
                           "norm of their gradients; give some of them to another optimizer",
                           who, TG_STEP_SUMS);
        s->count[k]++;
    }
    for (int k = 1; k < s->n; k++) s->first[k] = s->first[k - 1] + s->count[k - 1];
    return TG_OK;
}

/* Returns *n elements, from `first` on, of a 1-D float64 tensor. n must live as long as the result. */
static tg_array slice(const tg_tensor *x, int64_t first, const int64_t *n) {
    static const int64_t dense = 1;
    tg_array a = tg_array_of(x);
    a.data = a.data ? (double *)a.data + first : NULL;
    a.shape = n, a.stride = &dense, a.numel = *n;
    return a;
}

/* Writes the sum of squares of one gradient to an element of o->squares. */
static tg_status square_one(tg_optim *o, const tg_tensor *g, int64_t at) {
    int64_t one[TG_MAX_DIMS];
    for (int d = 0; d < TG_MAX_DIMS; d++) one[d] = 1;
    tg_array sum = slice(o->squares, at, one);
    sum.stride = one, sum.ndim = g->ndim;
    return o->ctx->run.ops->reduce(o->ctx, TG_SUMSQ, sum, tg_array_of(g), 1, false);
}

/* Adds up the sums of this pipeline stage, and then the results of all stages. The sums of single sets cannot be added
 * across stages, because other stages may have other sets. */
static tg_status sum_stages(tg_optim *o) {
    static const int64_t one = 1;
    const tg_device_ops *ops = o->ctx->run.ops;
    const uint32_t stages = 1u << TG_PP;
    int64_t n = o->n_sums;
    tg_array first = slice(o->sums, 0, &one), sum = slice(o->squares, 0, &one);
    TG_TRY(ops->reduce(o->ctx, TG_SUM, sum, slice(o->sums, 0, &n), 1, false));
    TG_TRY(ops->apply(o->ctx, TG_FN_id, first, &sum, 1, (const double[2]){0}, false));
    o->n_sums = 1;
    return tg_grid_sum(o->ctx, &stages, o->sums, 1);
}

tg_status tg_optim_measure(tg_optim *o, const char *who) {
    static const int64_t one = 1;
    tg_ctx *ctx = o->ctx;
    square_sets s = {.n = 0};
    int64_t done[TG_STEP_SUMS] = {0};
    TG_TRY(find_sets(o, &s, who));
    TG_TRY(ctx->run.ops->fill(ctx, tg_array_of(o->squares), 0));
    for (int i = 0; i < o->n; i++) {
        const tg_tensor *g = tg_optim_gradient(&o->item[i]);
        int k = set_of(&s, &o->item[i]);
        if (g && !tg_is_share_copy(o->item[i].param)) TG_TRY(square_one(o, g, s.first[k] + done[k]));
        done[k]++;
    }
    for (int k = 0; k < s.n; k++)
        TG_TRY(ctx->run.ops->reduce(ctx, TG_SUM, slice(o->sums, k, &one), slice(o->squares, s.first[k], &s.count[k]), 1,
                                false));
    if (tg_grid_axes(ctx)) TG_TRY(tg_grid_sum(ctx, s.mask, o->sums, s.n));
    o->n_sums = s.n;
    return tg_grid_of(ctx)->size[TG_PP] > 1 ? sum_stages(o) : TG_OK;
}

/* ---- Clipping ---- */

/* Measures the norm, reads it back, and keeps the sums for the next step. */
static tg_status clip(tg_optim *o, double max_norm, double *norm, const void *site) {
    double sums[TG_STEP_SUMS] = {0}, state[TG_STEP_STATE], total = 0;
    TG_TRY(tg_optim_check(o));
    TG_TRY(tg_recording_refuse(o->ctx, "tg_optim_clip", TG_RECORDING_READ, site));
    TG_TRY(tg_optim_check_gradients(o, "tg_optim_clip"));
    if (!(max_norm >= 0))
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_clip: max_norm is %g, expected 0 (no clipping) or more",
                       max_norm);
    TG_TRY(tg_optim_measure(o, "tg_optim_clip"));
    if (!o->ctx->meta)
        TG_TRY(
            o->ctx->run.ops->copy(o->ctx, sums, tg_data(o->sums), (size_t)o->n_sums * sizeof *sums, TG_COPY_TO_HOST));
    if (!tg_optim_read(o, state, "tg_optim_clip", site)) return o->ctx->run.status;
    for (int i = 0; i < o->n_sums; i++) total += sums[i];
    *norm = sqrt(total) / state[TG_STEP_SCALE];
    o->summed = true;
    o->next_norm = max_norm;
    return TG_OK;
}

double tg_optim_clip(tg_optim *o, double max_norm) {
    double norm = NAN;
    if (clip(o, max_norm, &norm, TG_SITE) != TG_OK && o && o->ctx->run.has_peers) tg_ctx_skip(o->ctx);
    return norm;
}

tg_status tg_optim_set_clip(tg_optim *o, double max_norm) {
    TG_TRY(tg_optim_check(o));
    if (!(max_norm >= 0))
        return tg_fail(o->ctx, TG_ERR_ARGUMENT, "tg_optim_set_clip: max_norm is %g, expected 0 (no clipping) or more",
                       max_norm);
    TG_TRY(tg_optim_put(o, TG_STEP_MAX_NORM, &max_norm, 1));
    o->max_norm = max_norm;
    return TG_OK;
}

double tg_optim_norm(const tg_optim *o) {
    double s[TG_STEP_STATE];
    return tg_optim_read(o, s, "tg_optim_norm", TG_SITE) ? s[TG_STEP_NORM] : NAN;
}
