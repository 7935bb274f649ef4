/* Muon (Jordan et al., kellerjordan.github.io/posts/muon, 2024): momentum whose matrix is made nearly orthogonal before
 * it is subtracted. Parameters that are no matrices are stepped by AdamW. */
#include <math.h>

#include "base/options.h"
#include "optim/elementwise.h"
#include "placement/placing.h"

/* The coefficients of the published iteration: with s = X X^T, X becomes (A + B s + C s^2) X. */
static const double A = 3.4445, B = -4.7750, C = 2.0315;

/* ---- The Newton-Schulz iteration ---- */

/* The matrices of the iteration, in work memory. x and y are [few, many], transposed if the parameter has more rows
 * than columns; s and t are [few, few]. */
typedef struct iteration {
    int64_t few, many; /* the shorter and the longer dim of the parameter */
    tg_array x, y, s, t;
} iteration;

static bool is_tall(const tg_array *p) { return p->shape[0] > p->shape[1]; }

/* Returns the array [few, many], or [few, few], as a matrix. */
static tg_matrix matrix_of(const tg_array *a) {
    tg_matrix m = {.data = a->data, .rs = a->stride[0], .cs = a->stride[1], .dtype = (tg_dtype)a->dtype};
    if (is_tall(a)) m.rs = a->stride[1], m.cs = a->stride[0];
    return m;
}

static tg_matrix transposed(tg_matrix m) {
    int64_t rs = m.rs;
    m.rs = m.cs, m.cs = rs;
    return m;
}

/* Computes c = alpha a @ b + beta c, where a is [few, inner] and c is [few, columns]. */
static tg_status product(tg_ctx *ctx, const iteration *n, int64_t columns, int64_t inner, tg_matrix c, double alpha,
                         tg_matrix a, tg_matrix b, double beta) {
    tg_gemm g = {.m = n->few, .n = columns, .k = inner, .batch = {1, 1}, .a = a, .b = b, .c = c};
    g.alpha = alpha, g.beta = beta;
    return ctx->run.ops->gemm(ctx, &g);
}

/* Replaces n->x by the result of one iteration. Overwrites the other arrays. */
static tg_status iterate(tg_ctx *ctx, iteration *n) {
    tg_matrix x = matrix_of(&n->x), y = matrix_of(&n->y), s = matrix_of(&n->s), t = matrix_of(&n->t);
    TG_TRY(product(ctx, n, n->few, n->many, s, 1, x, transposed(x), 0));
    TG_OPTIM_MAP(id, n->t, 0, 0, n->s);
    TG_TRY(product(ctx, n, n->few, n->few, t, C, s, s, B));
    TG_OPTIM_MAP(id, n->y, 0, 0, n->x);
    TG_TRY(product(ctx, n, n->many, n->few, y, 1, t, x, A));
    tg_array swapped = n->x;
    n->x = n->y, n->y = swapped;
    return TG_OK;
}

/* Divides x by its Frobenius norm, or by eps if that is greater. Uses one element of s. */
static tg_status normalize(tg_ctx *ctx, const iteration *n, double eps) {
    static const int64_t one[2] = {1, 1}, still[2] = {0, 0};
    tg_array norm = n->s, everywhere = n->x;
    norm.shape = norm.stride = one, norm.numel = 1;
    TG_TRY(ctx->run.ops->reduce(ctx, TG_SUMSQ, norm, n->x, 1, false));
    TG_OPTIM_MAP(sqrt, norm, 0, 0, norm);
    TG_OPTIM_MAP(clamp, norm, eps, INFINITY, norm);
    everywhere.data = norm.data, everywhere.stride = still, everywhere.contiguous = false;
    TG_OPTIM_MAP(div, n->x, 0, 0, n->x, everywhere);
    return TG_OK;
}

/* ---- The step ---- */

/* Returns the factor by which the step of a matrix is multiplied. */
static double scale_of(const tg_optim *o, const tg_array *p) {
    double rows = (double)p->shape[0], columns = (double)p->shape[1];
    return o->muon.scale == TG_MUON_RMS ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1, rows / columns));
}

static tg_status step_one(const tg_optim *o, const tg_optim_arrays *a) {
    tg_ctx *ctx = a->ctx;
    tg_array g = a->gradient, m = a->state[0];
    bool tall = is_tall(&a->param);
    const int64_t few = a->param.shape[tall], square[2] = {few, few}, row_major[2] = {few, 1};
    double mu = o->muon.momentum, decay = a->group->weight_decay;
    TG_OPTIM_MAP(sum_unless, m, mu, 1 - mu, a->scalar[TG_SCALAR_SKIP], m, g);
    if (o->muon.nesterov)
        TG_OPTIM_MAP(linear_sum, g, 1 - mu, mu, g, m);
    else
        TG_OPTIM_MAP(id, g, 0, 0, m);
    iteration n = {.few = few, .many = a->param.shape[!tall], .x = g, .y = a->other, .s = a->rest, .t = a->rest};
    n.s.shape = n.t.shape = square, n.s.stride = n.t.stride = row_major, n.s.numel = n.t.numel = few * few;
    if (n.t.data) n.t.data = (char *)n.t.data + tg_optim_work_bytes((tg_dtype)n.t.dtype, few * few);
    TG_TRY(normalize(ctx, &n, o->muon.eps));
    for (int i = 0; i < o->muon.iterations; i++) TG_TRY(iterate(ctx, &n));
    TG_OPTIM_MAP(linear_sum, n.x, scale_of(o, &a->param), decay, n.x, a->param);
    return tg_optim_move(a, n.x);
}

static tg_status step(tg_optim *o) {
    TG_TRY(tg_optim_each(o, &tg_muon_method, step_one));
    return tg_adam_method.step(o);
}

static size_t work(const tg_tensor *p) {
    int64_t few = p->shape[0] < p->shape[1] ? p->shape[0] : p->shape[1];
    return tg_optim_each_work(p) + 2 * tg_optim_work_bytes(tg_accumulate_dtype((tg_dtype)p->dtype), few * few);
}

/* Returns AdamW for a parameter that is no matrix or that the caller has listed, and NULL for other parameters. */
static const tg_optim_method *other(const tg_optim *o, const tg_tensor *p) {
    bool listed = tg_range_whole(p)->ndim != 2;
    for (int i = 0; i < o->muon.n_others; i++) listed |= o->muon.others[i] == p;
    return listed ? &tg_adam_method : NULL;
}

const tg_optim_method tg_muon_method = {
    .name = "muon", .betas = true, .eps = true, .state_name = {"momentum"}, .work = work, .other = other, .step = step};

/* ---- Creation ---- */

static tg_status check(tg_ctx *ctx, const tg_muon_opts *m) {
    if (!(m->lr > 0 && isfinite(m->lr)))
        return tg_fail(
            ctx, TG_ERR_ARGUMENT,
            "tg_muon_new: lr is %g, expected a finite number above 0; for a pause call tg_optim_set_lr(o, 0)", m->lr);
    if (!(m->momentum >= 0 && m->momentum < 1 && m->weight_decay >= 0 && m->eps > 0) ||
        !isfinite(m->weight_decay + m->eps) || m->iterations < 1)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_muon_new: momentum is %g, weight_decay %g, eps %g and iterations %d; expected momentum in "
                       "[0, 1), finite numbers, weight_decay 0 or more, eps above 0, and 1 iteration or more",
                       m->momentum, m->weight_decay, m->eps, m->iterations);
    if ((unsigned)m->scale > TG_MUON_RMS)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_muon_new: scale is %d, expected a tg_muon_scale", (int)m->scale);
    if (m->n_others >= 0 && (m->others || !m->n_others)) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_muon_new: n_others is %d and others is %p, expected an array of n_others",
                   m->n_others, (const void *)m->others);
}

/* Fails if a listed tensor is no parameter of the optimizer. */
static tg_status check_others(tg_ctx *ctx, const tg_muon_opts *m, tg_tensor *const *params, int n) {
    for (int i = 0; i < m->n_others; i++) {
        int j = 0;
        while (j < n && params[j] != m->others[i]) j++;
        if (j == n)
            return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_muon_new: others[%d] is not among the %d parameters", i, n);
    }
    return TG_OK;
}

/* Fails if a rank has only a part of a matrix that Muon would step: the iteration needs all of it. */
static tg_status check_whole(tg_ctx *ctx, const tg_optim *o, tg_tensor *const *params, int n) {
    for (int i = 0; i < n; i++) {
        char place[128], what[160];
        const tg_placements *p = tg_place_of(params[i]);
        bool range = tg_range_whole(params[i]) != params[i];
        if (!(range || (p && p->varying)) || other(o, params[i])) continue;
        tg_place_text(ctx, p, place, sizeof place);
        tg_describe(params[i], what, sizeof what);
        return tg_fail(ctx, TG_ERR_PLACEMENT,
                       "tg_muon_new: parameter %d, %s, is a %s%s%s%s, but Muon needs whole matrices; list it in "
                       ".others, so that AdamW steps it",
                       i, what, range ? "range of a matrix" : "shard", *place ? " (" : "", place, *place ? ")" : "");
    }
    return TG_OK;
}

static tg_status check_all(tg_ctx *ctx, const tg_optim *o, double adamw_lr, tg_tensor *const *params, int n) {
    TG_TRY(ctx->run.status);
    TG_TRY(check(ctx, &o->muon));
    if (!tg_optim_rate(ctx, adamw_lr, "tg_muon_new: .adamw")) return ctx->run.status;
    TG_TRY(tg_optim_check_numbers(ctx, &o->group[1], "tg_muon_new: .adamw"));
    TG_TRY(tg_optim_check_params(ctx, params, n, "tg_muon_new"));
    TG_TRY(check_others(ctx, &o->muon, params, n));
    return check_whole(ctx, o, params, n);
}

tg_optim *tg_muon_new(tg_ctx *ctx, tg_tensor *const *params, int n, const tg_muon_opts *given) {
    tg_optim o = {.method = &tg_muon_method, .n_groups = 2, .decoupled = true};
    tg_adamw_opts adamw;
    tg_options(ctx, &o.muon, &tg_muon_opts_struct, given, "tg_muon_new: the options");
    tg_options(ctx, &adamw, &tg_adamw_opts_struct, o.muon.adamw, "tg_muon_new: .adamw");
    o.lr = o.muon.lr;
    o.group[1] = tg_adam_group(&adamw, true);
    o.group[1].lr_scale = adamw.lr / o.lr;
    o.group[0] = o.group[1];
    o.group[0].lr_scale = 1, o.group[0].weight_decay = o.muon.weight_decay;
    if (ctx) check_all(ctx, &o, adamw.lr, params, n);
    return tg_optim_make(ctx, &o, params, n, "tg_muon_new");
}
