/* tg_grads_finalize: sums gradients over ranks at the end of a step.
 *
 * The gradient of a parameter that is R on an axis (TG_R of placement.h) is P there: each rank has an addend of it.
 * A tg_flat (flat_sums.c) has summed most gradients over dp and cp, or edp for experts, and has perhaps divided them:
 * then a leaf has this rank's range of the sum (tg_gradient_leaf). This file does the remaining sums: for each
 * parameter or leaf, over the axes on which it is R and no tg_flat sums. Afterwards no gradient is P.
 *
 * Small gradients that are summed over the same axes are packed into one buffer; large ones are summed where they are.
 * The buffer ends with a flag for each of these parameters, those with small and those with large gradients. The flag
 * is 1 if this rank has a gradient of the parameter, else 0. The sum of a flag tells whether any rank has one. */
#include <math.h>
#include <tapegrad/data_parallel.h>

#include "base/options.h"
#include "placement/rule.h"
#include "core/capture/capture.h"
#include "kernels/scalar.h"
#include "parallel/dp/grads.h"
#include "autograd/gradients.h"

enum { LARGE = 1 << 18 }; /* elements; from this size on a gradient is summed in place */

/* A set of parameters: those whose gradients this file sums over the same axes and in the same dtype. */
typedef struct sum_set {
    tg_ctx *ctx;
    const tg_parallel *p;
    tg_tensor *const *params; /* all parameters of the call; belongs() tells which are in the set */
    int n;
    uint32_t axes;
    tg_dtype dtype;
} sum_set;

/* Returns the axes over which this file must sum x's gradient: those on which x is R and no tg_flat sums it. */
static uint32_t axes_left(const tg_tensor *x) {
    uint32_t r = x->place ? x->place->replicated : 0;
    return r & ~tg_flat_axes(x);
}

static bool belongs(const sum_set *s, const tg_tensor *x) {
    return axes_left(x) == s->axes && tg_accumulate_dtype(x->dtype) == s->dtype;
}

/* Sums g in place over every axis of the set, one collective after the other; dp and cp together take one. Does not
 * wait for the last collective. */
static tg_status sum_over(const sum_set *s, tg_tensor *g) {
    uint32_t axes = s->axes;
    if ((axes & TG_DATA_AXES) == TG_DATA_AXES) {
        if (!tg_comm_all_reduce(s->p->dp_cp, g, g, TG_REDUCE_SUM)) return s->ctx->run.status;
        axes &= ~(uint32_t)TG_DATA_AXES;
    }
    for (int a = 0; a < TG_MAX_AXES; a++) {
        if (!(axes >> a & 1)) continue;
        TG_TRY(tg_storage_need(g->storage, g));
        if (!tg_comm_all_reduce(s->p->comm[a], g, g, TG_REDUCE_SUM)) return s->ctx->run.status;
    }
    return TG_OK;
}

/* Returns the part of flat from element `at` on, in x's shape. */
static tg_tensor *part(const tg_tensor *flat, const tg_tensor *x, int64_t at) {
    return tg_temp_new(flat->ctx, flat->dtype, x->ndim, x->shape, NULL, tg_storage_ref(flat->storage), at);
}

/* Copies the small gradients of the set into flat if `in` is true, else back. Returns the number of their elements, or
 * -1 after recording the error. */
static int64_t move_small(const sum_set *s, tg_tensor *flat, bool in) {
    int64_t at = 0;
    for (int i = 0; i < s->n; i++) {
        tg_tensor *x = tg_gradient_leaf(s->params[i]);
        if (!belongs(s, x) || x->numel >= LARGE) continue;
        tg_tensor *g = in ? tg_gradient_or_zero(x) : tg_gradient_buffer(x), *there = g ? part(flat, x, at) : NULL;
        if (!there) return -1;
        tg_status moved = tg_gradient_put(in ? there : g, in ? g : there, false);
        tg_temp_free(there);
        if (moved != TG_OK) return -1;
        at += x->numel;
    }
    return at;
}

/* Returns element `at` of flat as an array. */
static tg_array element(const tg_tensor *flat, int64_t at) {
    static const int64_t one[1] = {1};
    tg_array a = tg_array_of(flat);
    if (a.data) a.data = (char *)a.data + (size_t)at * tg_dtype_size(flat->dtype);
    a.shape = a.stride = one, a.numel = 1;
    return a;
}

/* Sets a flag to whether this rank, or a rank over whose gradients a tg_flat has summed, has a gradient of x. */
static tg_status set_flag(const tg_tensor *x, tg_array flag) {
    const tg_device_ops *ops = x->ctx->run.ops;
    if (!tg_gradient_used(x)) return ops->fill(x->ctx, flag, x->ext->has_grad);
    tg_array used = tg_array_of(x->ext->used);
    return ops->apply(x->ctx, TG_FN_id, flag, &used, 1, (const double[2]){0}, false);
}

/* Moves the flags of the set, from element `at` of flat on: before the sum to flat, afterwards from it. */
static tg_status move_flags(const sum_set *s, tg_tensor *flat, int64_t at, bool in) {
    for (int i = 0; i < s->n; i++) {
        tg_tensor *x = s->params[i];
        if (!belongs(s, tg_gradient_leaf(x))) continue;
        tg_array flag = element(flat, at++);
        if (in)
            TG_TRY(set_flag(x, flag));
        else if (!x->ext->has_grad || x->ext->unsure)
            TG_TRY(tg_gradient_unsure(x, flag));
    }
    return TG_OK;
}

/* Starts the sums of the large gradients of the set. */
static tg_status sum_large(const sum_set *s) {
    for (int i = 0; i < s->n; i++) {
        tg_tensor *x = tg_gradient_leaf(s->params[i]), *g;
        if (!belongs(s, x) || x->numel < LARGE) continue;
        if (!(g = tg_gradient_or_zero(x))) return s->ctx->run.status;
        TG_TRY(sum_over(s, g));
    }
    return TG_OK;
}

/* Sums the gradients and the flags of the set, with `flat` as buffer. */
static tg_status sum_with(const sum_set *s, tg_tensor *flat) {
    int64_t flags = move_small(s, flat, true);
    if (flags < 0) return s->ctx->run.status;
    TG_TRY(move_flags(s, flat, flags, true));
    TG_TRY(sum_large(s)); /* leaves sums in flight */
    TG_TRY(sum_over(s, flat));
    TG_TRY(tg_storage_need(flat->storage, flat));
    if (move_small(s, flat, false) < 0) return s->ctx->run.status;
    return move_flags(s, flat, flags, false);
}

/* Makes the buffer of a set, and sums the set. */
static tg_status sum_one_set(const sum_set *s) {
    int64_t numel = 0;
    for (int i = 0; i < s->n; i++) {
        const tg_tensor *x = tg_gradient_leaf(s->params[i]);
        if (belongs(s, x)) numel += 1 + (x->numel < LARGE ? x->numel : 0);
    }
    tg_tensor *flat = tg_temp_empty(s->ctx, s->dtype, 1, &numel, TG_MEM_TEMPORARY);
    tg_status status = flat ? sum_with(s, flat) : s->ctx->run.status;
    tg_temp_free(flat);
    return status;
}

/* Sums the gradients of every set. A set comes where its first parameter comes in params, so that all ranks use the
 * same order. */
static tg_status sum_sets(const tg_parallel *p, tg_tensor *const *params, int n) {
    for (int i = 0; i < n; i++) {
        sum_set s = {.ctx = p->ctx, .p = p, .params = params, .n = n, .axes = axes_left(tg_gradient_leaf(params[i])),
                     .dtype = tg_accumulate_dtype(params[i]->dtype)};
        bool seen = !s.axes;
        for (int j = 0; j < i && !seen; j++) seen = belongs(&s, tg_gradient_leaf(params[j]));
        if (!seen) TG_TRY(sum_one_set(&s));
    }
    return TG_OK;
}

/* ---- Tokens ---- */

static bool has_stages(const tg_ctx *ctx) { return tg_grid_of(ctx)->size[TG_PP] > 1; }

/* Sets share, a tensor of one element, to 1 / max(sum, 1), where sum is the number of tokens over dp, cp and pp. tokens
 * NULL counts as 0: this rank's pipeline stage computes no loss, or no rank gives tokens and share becomes 1. */
static tg_status share_of_tokens(tg_ctx *ctx, tg_tensor *tokens, tg_tensor *share) {
    const double least[2] = {1, INFINITY}, none[2] = {0};
    uint32_t axes = (TG_DATA_AXES & tg_grid_axes(ctx)) | (has_stages(ctx) ? 1u << TG_PP : 0);
    tg_array c = tg_array_of(share), given = tg_array_of(tokens);
    given.shape = c.shape, given.stride = c.stride, given.ndim = 1;
    TG_TRY(tokens ? ctx->run.ops->apply(ctx, TG_FN_id, c, &given, 1, none, false) : ctx->run.ops->fill(ctx, c, 0));
    if (axes) TG_TRY(tg_grid_sum(ctx, &axes, share, 1));
    c = tg_array_of(share);
    TG_TRY(ctx->run.ops->apply(ctx, TG_FN_clamp, c, &c, 1, least, false));
    return ctx->run.ops->apply(ctx, TG_FN_reciprocal, c, &c, 1, none, false);
}

/* Multiplies the gradients by a number, which is given in float64 (wide) and in float32 (narrow, for gradients that are
 * not float64). */
static tg_status scale_by(tg_tensor *const *params, int n, tg_tensor *wide, tg_tensor *narrow) {
    const double none[2] = {0};
    for (int i = 0; i < n; i++) {
        tg_tensor *g = tg_gradient_of(tg_gradient_leaf(params[i]));
        if (!g) continue;
        TG_TRY(tg_storage_may_change(g));
        tg_array a[2] = {tg_array_of(g)};
        a[1] = tg_array_spread(g->dtype == TG_F64 ? wide : narrow, 0, &a[0]);
        TG_TRY(g->ctx->run.ops->apply(g->ctx, TG_FN_mul, a[0], a, 2, none, false));
    }
    return TG_OK;
}

/* Divides the gradients by the number of tokens of all ranks, which the host does not read. */
static tg_status divide_by_tokens(const tg_parallel *p, tg_tensor *const *params, int n, tg_tensor *tokens) {
    tg_ctx *ctx = p->ctx;
    static const int64_t one = 1;
    if (tokens) TG_TRY(tg_storage_need(tokens->storage, tokens));
    tg_tensor *wide = tg_temp_empty(ctx, TG_F64, 1, &one, TG_MEM_TEMPORARY);
    tg_tensor *narrow = wide ? tg_temp_empty(ctx, TG_F32, 1, &one, TG_MEM_TEMPORARY) : NULL;
    tg_status s = narrow ? share_of_tokens(ctx, tokens, wide) : ctx->run.status;
    if (s == TG_OK) {
        tg_array share = tg_array_of(wide);
        s = ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(narrow), &share, 1, (const double[2]){0}, false);
    }
    if (s == TG_OK) s = scale_by(params, n, wide, narrow);
    if (narrow) tg_temp_free(narrow);
    if (wide) tg_temp_free(wide);
    return s;
}

/* ---- tg_grads_finalize ---- */

/* Returns whether some parameter has a gradient. A rank that had no micro-batch has none, because it has run no
 * backward; it must call tg_grads_finalize nevertheless. */
static bool has_gradients(tg_tensor *const *params, int n) {
    for (int i = 0; i < n; i++)
        if (tg_gradient_of(tg_gradient_leaf(params[i]))) return true;
    return false;
}

/* Fails because of the placement of tokens on the first of these axes. */
static tg_status refuse_tokens(const tg_tensor *x, uint32_t axes, const char *why) {
    char is[24];
    tg_axis a = 0;
    while (!(axes >> a & 1)) a++;
    tg_placement_name(tg_place_on(x, a), is, sizeof is);
    return tg_fail(x->ctx, TG_ERR_PLACEMENT, "tg_grads_finalize: tokens is %s on axis %s, %s", is, tg_axis_name(a),
                   why);
}

/* Checks the count of tokens. On an axis where tg_place has not placed a leaf, the leaf counts as this rank's own
 * count. Its default placement may say that its value is the same on every rank, but all ranks may have counted the
 * same number. */
static tg_status check_tokens(const tg_tensor *x) {
    tg_ctx *ctx = x->ctx;
    if (x->numel != 1)
        return tg_fail(ctx, TG_ERR_SHAPE, "tg_grads_finalize: tokens has %s, expected one",
                       tg_count(x->numel, "element").text);
    const tg_placements *p = tg_place_of(x);
    uint32_t partial = p ? p->partial : 0, own = p ? p->varying | p->partial : 0;
    uint32_t known = !(x->flags & TG_F_LEAF) ? UINT32_MAX : x->ext ? x->ext->placed : 0;
    uint32_t shares = partial & ~(uint32_t)TG_DATA_AXES, same = TG_DATA_AXES & tg_grid_axes(ctx) & known & ~own;
    if (shares)
        return refuse_tokens(
            x, shares,
            "so each rank would divide by its share of the count; reduce it first (tg_reduce_from_tp, tg_all_reduce)");
    if (same)
        return refuse_tokens(x, same,
                             "the same count on all its ranks, and the sum over them would count it several times; "
                             "expected this rank's own count, V or P there, such as the count before it is reduced, or "
                             "a tensor of tg_from_host");
    return TG_OK;
}

static tg_status check(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *o) {
    tg_ctx *ctx = p->ctx;
    if (n < 0 || (n && !params))
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_grads_finalize: n is %d and params is %p, expected an array of n parameters, 0 or more", n,
                       (const void *)params);
    for (int i = 0; i < n; i++) {
        TG_TRY(tg_check(ctx, params[i], "tg_grads_finalize: a parameter"));
        if (params[i]->tape || !(params[i]->flags & TG_F_REQUIRES_GRAD))
            return tg_fail(ctx, TG_ERR_STATE,
                           "tg_grads_finalize: parameter %d is not a leaf of the context that needs a gradient", i);
        if (!tg_ext_of(params[i])) return ctx->run.status;
        for (int j = 0; j < i; j++)
            if (params[j] == params[i])
                return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_grads_finalize: parameter %d is given twice", i);
    }
    if (o->tokens) TG_TRY(tg_check(ctx, o->tokens, "tg_grads_finalize: tokens"));
    if (o->tokens) TG_TRY(check_tokens(o->tokens));
    const tg_tapes *tapes = tg_tapes_of(ctx);
    if ((!tapes || tapes->backwards == tapes->finalized) && has_gradients(params, n))
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_grads_finalize: no backward has run since the last call, and the gradients were not zeroed; "
                       "the gradients of a step are summed once");
    return TG_OK;
}

static tg_status finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *given) {
    tg_finalize_opts o;
    tg_ctx *ctx = p->ctx;
    TG_TRY(ctx->run.status);
    TG_TRY(tg_options(ctx, &o, &tg_finalize_opts_struct, given, "tg_grads_finalize: the options"));
    TG_TRY(check(p, params, n, &o));
    TG_TRY(tg_flats_check_all(p, params, n));
    for (int i = 0; i < n; i++) TG_TRY(tg_gradient_need_drained(params[i], "tg_grads_finalize"));
    TG_TRY(tg_grads_compare_params(p, params, n));
    TG_TRY(tg_flats_finish(p));
    TG_TRY(sum_sets(p, params, n));
    TG_TRY(tg_grads_sum_shares(params, n));
    for (int i = 0; i < n; i++) {
        tg_tensor *g = tg_gradient_of(tg_gradient_leaf(params[i]));
        if (g) TG_TRY(tg_storage_need(g->storage, g));
        tg_gradient_summed(params[i]);
    }
    if (o.tokens || has_stages(ctx)) TG_TRY(divide_by_tokens(p, params, n, o.tokens));
    tg_tapes *tapes = tg_tapes_of(ctx);
    if (tapes) tapes->finalized = tapes->backwards;
    return TG_OK;
}

tg_status tg_grads_finalize(const tg_parallel *p, tg_tensor *const *params, int n, const tg_finalize_opts *given) {
    if (!p) return TG_ERR_ARGUMENT;
    return tg_comm_note_missed(p->world, finalize(p, params, n, given));
}
