/* The optional slots softmax, norm, cross-entropy, dropout, prepare and adamw, composed of required slots (composed.h).
 * Attention is in composed_attention.c; scan and put are in composed_scan.c. */
#include <math.h>

#include "kernels/composed_parts.h"
#include "kernels/prepare.h"

/* ---- Softmax ---- */

/* Computes m, the maximum of each row; e = exp(x - m); and s, the sum of e along the row. */
static tg_status exp_rows(tg_ctx *ctx, tg_array x, tg_array m, tg_array e, tg_array s) {
    REDUCE(TG_MAX, m, x, 1, false);
    MAP(exp_sub, e, x, m);
    REDUCE(TG_SUM, s, e, 1, false);
    return TG_OK;
}

static tg_status softmax(tg_ctx *ctx, arena *w, tg_array y, tg_array x, bool log) {
    tg_dtype d = compute_of(&x);
    int64_t rows = x.ndim && x.shape[x.ndim - 1] ? x.numel / x.shape[x.ndim - 1] : 1;
    view e, m, s;
    if (!x.numel)
        return TG_OK;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS, arena_bytes(x.numel, d) + 2 * arena_bytes(rows, d)));
    view_dense(&e, arena_take(w, x.numel, d), d, x.ndim, x.shape);
    view_rows(&m, arena_take(w, rows, d), d, &x);
    view_rows(&s, arena_take(w, rows, d), d, &x);
    TG_TRY(exp_rows(ctx, x, m.a, e.a, s.a));
    if (log) {
        MAP(sub, e.a, x, m.a);
        MAP(log, s.a, s.a);
        MAP(sub, y, e.a, s.a);
    } else {
        MAP(div, y, e.a, s.a);
    }
    return TG_OK;
}

tg_status tg_composed_softmax(tg_ctx *ctx, tg_array y, tg_array x, bool log) {
    arena w = {0};
    return arena_close(ctx, &w, softmax(ctx, &w, y, x, log));
}

/* Computes gx (+)= y (gy - sum(gy y)), or for log-softmax gx (+)= gy - exp(y) sum(gy). (+)= adds if `add` is true, and
 * overwrites otherwise. */
static tg_status softmax_grad(tg_ctx *ctx, arena *w, tg_array gx, tg_array gy, tg_array y, bool log, bool add) {
    tg_dtype d = compute_of(&y);
    view t, s;
    if (!y.numel)
        return TG_OK;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS, 2 * arena_bytes(y.numel, d)));
    view_dense(&t, arena_take(w, y.numel, d), d, y.ndim, y.shape);
    view_rows(&s, arena_take(w, y.numel, d), d, &y);
    if (log) {
        REDUCE(TG_SUM, s.a, gy, 1, false);
        MAP_P(sub_exp_mul, gx, 0, 0, add, gy, y, s.a);
    } else {
        MAP(mul, t.a, gy, y);
        REDUCE(TG_SUM, s.a, t.a, 1, false);
        MAP_P(sub_mul, gx, 0, 0, add, gy, s.a, y);
    }
    return TG_OK;
}

tg_status tg_composed_softmax_grad(tg_ctx *ctx, tg_array gx, tg_array gy, tg_array y, bool log, bool add) {
    arena w = {0};
    return arena_close(ctx, &w, softmax_grad(ctx, &w, gx, gy, y, log, add));
}

/* ---- Norms ---- */

static tg_status norm(tg_ctx *ctx, arena *w, const tg_norm_args *a) {
    tg_dtype d = compute_of(&a->x);
    int64_t n = a->x.ndim ? a->x.shape[a->x.ndim - 1] : 1;
    view h, mean, rstd;
    if (!a->x.numel)
        return TG_OK;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS, arena_bytes(a->x.numel, d)));
    view_dense(&h, arena_take(w, a->x.numel, d), d, a->x.ndim, a->x.shape);
    view_rows(&mean, a->mean.data, d, &a->x);
    view_rows(&rstd, a->rstd.data, d, &a->x);
    if (a->rms) {
        REDUCE(TG_SUMSQ, rstd.a, a->x, 1.0 / (double)n, false);
    } else {
        REDUCE(TG_SUM, mean.a, a->x, 1.0 / (double)n, false);
        MAP(sub, h.a, a->x, mean.a);
        REDUCE(TG_SUM, rstd.a, h.a, 1.0 / (double)n, false);
        /* Here rstd holds, temporarily, the mean of x - mean. If all elements are equal, mean + rstd is exactly their
         * value. */
        MAP(add, mean.a, mean.a, rstd.a);
        MAP(sub_square, h.a, a->x, mean.a);
        REDUCE(TG_SUM, rstd.a, h.a, 1.0 / (double)n, false);
    }
    MAP_P(rsqrt_affine, rstd.a, 1, a->eps, false, rstd.a);
    if (a->rms)
        MAP(mul, h.a, a->x, rstd.a);
    else
        MAP(sub_mul, h.a, a->x, mean.a, rstd.a);
    if (a->w.data && a->b.data)
        MAP(mul_add, a->y, h.a, a->w, a->b);
    else if (a->w.data)
        MAP(mul, a->y, h.a, a->w);
    else if (a->b.data)
        MAP(add, a->y, h.a, a->b);
    else
        MAP(id, a->y, h.a);
    return TG_OK;
}

tg_status tg_composed_norm(tg_ctx *ctx, const tg_norm_args *a) {
    arena w = {0};
    return arena_close(ctx, &w, norm(ctx, &w, a));
}

/* Computes g (+)= the sum of x's rows. Does nothing if g is absent. */
static tg_status sum_rows(tg_ctx *ctx, const tg_array *g, tg_array x, bool add) {
    view v;
    if (!g->data)
        return TG_OK;
    view_expand(&v, g, x.ndim, x.shape);
    for (int i = 0; i + 1 < x.ndim; i++)
        v.shape[i] = 1;
    v.a.numel = g->numel;
    v.a.contiguous = g->contiguous;
    REDUCE(TG_SUM, v.a, x, 1, add);
    return TG_OK;
}

/* With h = (x - mean) rstd and g = gy w, computes gx (+)= g rstd - h (mean(g h) rstd) - mean(g) rstd. RMS norm has
 * h = x rstd and no last term. gw and gb receive the sums over all rows of gy h and of gy. */
static tg_status norm_grad(tg_ctx *ctx, arena *w, const tg_norm_args *a) {
    tg_dtype d = compute_of(&a->x);
    double inverse = a->x.ndim && a->x.shape[a->x.ndim - 1] ? 1.0 / (double)a->x.shape[a->x.ndim - 1] : 1;
    view h, g, t, mean, rstd, row;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS, 4 * arena_bytes(a->x.numel, d)));
    view_dense(&h, arena_take(w, a->x.numel, d), d, a->x.ndim, a->x.shape);
    view_dense(&g, arena_take(w, a->x.numel, d), d, a->x.ndim, a->x.shape);
    view_dense(&t, arena_take(w, a->x.numel, d), d, a->x.ndim, a->x.shape);
    view_rows(&row, arena_take(w, a->x.numel, d), d, &a->x);
    view_rows(&mean, a->mean.data, d, &a->x);
    view_rows(&rstd, a->rstd.data, d, &a->x);
    if (a->rms)
        MAP(mul, h.a, a->x, rstd.a);
    else
        MAP(sub_mul, h.a, a->x, mean.a, rstd.a);
    MAP(mul, t.a, a->gy, h.a);
    TG_TRY(sum_rows(ctx, &a->gw, t.a, a->add_w));
    TG_TRY(sum_rows(ctx, &a->gb, a->gy, a->add_b));
    if (!a->gx.data || !a->x.numel)
        return TG_OK;
    if (a->w.data)
        MAP(mul, g.a, a->gy, a->w);
    else
        MAP(id, g.a, a->gy);
    MAP(mul, t.a, g.a, h.a);
    REDUCE(TG_SUM, row.a, t.a, inverse, false);
    MAP(mul, row.a, row.a, rstd.a);
    MAP(mul_mul_sub, t.a, g.a, rstd.a, h.a, row.a);
    if (!a->rms) {
        REDUCE(TG_SUM, row.a, g.a, inverse, false);
        MAP(mul, row.a, row.a, rstd.a);
        MAP(sub, t.a, t.a, row.a);
    }
    MAP_P(id, a->gx, 0, 0, a->add_x, t.a);
    return TG_OK;
}

tg_status tg_composed_norm_grad(tg_ctx *ctx, const tg_norm_args *a) {
    arena w = {0};
    return arena_close(ctx, &w, norm_grad(ctx, &w, a));
}

/* ---- Cross-entropy ---- */

/* Makes v the column [rows, 1] of x, an array [rows]. */
static void view_column(view *v, const tg_array *x) {
    view_expand(v, x, 1, x->shape);
    v->shape[1] = 1;
    v->stride[1] = 0;
    v->a.ndim = 2;
}

/* What forward and gradient share. The views are columns [rows, 1] unless stated otherwise. */
typedef struct entropy {
    arena memory;
    view target;     /* the class of the row */
    view checked;    /* the class of the row, but 0 in ignored rows */
    view valid;      /* 1 if the row is not ignored and its class exists, else 0 */
    view local;      /* 1 if the row is valid and its class is among the columns of logits, else 0 */
    view at;         /* the position of the class among the columns of logits; 0 if local is 0 */
    view top, mass;  /* of tg_cross_entropy_args */
    view ignored;    /* [1, 1]: ignore_index */
    view row, other; /* temporaries */
    view t;          /* a temporary of the shape of logits */
    int64_t classes;
} entropy;

/* Computes at = x - first, and yes: 1 where `at` is in [0, n), else 0. */
static tg_status within(tg_ctx *ctx, tg_array yes, tg_array at, tg_array x, int64_t first, int64_t n) {
    MAP_P(affine, at, 1, (double)-first, false, x);
    MAP_P(clamp, yes, 0, (double)(n ? n - 1 : 0), false, at);
    MAP(eq, yes, yes, at);
    return n ? TG_OK : tg_ctx_ops(ctx)->fill(ctx, yes, 0);
}

/* Reserves the memory of e and computes all its columns except top, mass and the temporaries. */
static tg_status entropy_open(tg_ctx *ctx, const tg_cross_entropy_args *a, entropy *e) {
    tg_dtype d = compute_of(&a->logits);
    int64_t column[2] = {a->logits.shape[0], 1}, rows = column[0], one[2] = {1, 1};
    size_t bytes = 3 * arena_bytes(rows, TG_I64) + arena_bytes(1, TG_I64) + 3 * arena_bytes(rows, d) +
                   arena_bytes(a->logits.numel, d);
    arena *w = &e->memory;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS, bytes));
    e->classes = a->classes ? a->classes : a->logits.shape[1];
    view_column(&e->target, &a->target);
    view_column(&e->top, &a->top);
    view_column(&e->mass, &a->mass);
    view_dense(&e->checked, arena_take(w, rows, TG_I64), TG_I64, 2, column);
    view_dense(&e->local, arena_take(w, rows, TG_I64), TG_I64, 2, column);
    view_dense(&e->at, arena_take(w, rows, TG_I64), TG_I64, 2, column);
    view_dense(&e->ignored, arena_take(w, 1, TG_I64), TG_I64, 2, one);
    view_dense(&e->valid, arena_take(w, rows, d), d, 2, column);
    view_dense(&e->row, arena_take(w, rows, d), d, 2, column);
    view_dense(&e->other, arena_take(w, rows, d), d, 2, column);
    view_dense(&e->t, arena_take(w, a->logits.numel, d), d, 2, a->logits.shape);
    TG_TRY(tg_ctx_ops(ctx)->fill(ctx, e->ignored.a, (double)a->ignore_index));
    MAP(ne, e->checked.a, e->target.a, e->ignored.a);
    TG_TRY(within(ctx, e->local.a, e->at.a, e->target.a, 0, e->classes));
    MAP(mul, e->valid.a, e->checked.a, e->local.a);
    MAP(mul, e->checked.a, e->checked.a, e->target.a);
    TG_TRY(within(ctx, e->local.a, e->at.a, e->target.a, a->first, a->logits.shape[1]));
    MAP(mul, e->local.a, e->local.a, e->valid.a);
    MAP(mul, e->at.a, e->at.a, e->local.a);
    return TG_OK;
}

/* Computes top, mass and row. With d = x - top for the logits x of a row, and smoothing s, row is
 * -(1 - s) d[target] - (s / classes) sum(d). The first term is 0 if the target is not among the columns of logits. */
static tg_status entropy_terms(tg_ctx *ctx, const tg_cross_entropy_args *a, const entropy *e) {
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    double least = -tg_greatest((tg_dtype)e->t.a.dtype);
    if (!a->logits.numel) {
        TG_TRY(ops->fill(ctx, e->top.a, -INFINITY));
        TG_TRY(ops->fill(ctx, e->mass.a, 0));
        return ops->fill(ctx, e->row.a, 0);
    }
    REDUCE(TG_MAX, e->top.a, a->logits, 1, false);
    MAP_P(clamp, e->other.a, least, INFINITY, false, e->top.a); /* x - top is -inf, not NaN, in a row of -inf */
    MAP(exp_sub, e->t.a, a->logits, e->other.a);
    REDUCE(TG_SUM, e->mass.a, e->t.a, 1, false);
    MAP(sub, e->t.a, a->logits, e->other.a);
    TG_TRY(ops->fill(ctx, e->row.a, 0));
    TG_TRY(ops->take(ctx, e->row.a, e->t.a, e->at.a, 1, NULL));
    MAP_P(affine, e->row.a, a->smoothing - 1, 0, false, e->row.a);
    MAP(where_da, e->row.a, e->local.a, e->row.a);
    if (a->smoothing != 0) /* 0 times a sum of -inf would be NaN */
        REDUCE(TG_SUM, e->row.a, e->t.a, -a->smoothing / (double)e->classes, true);
    return TG_OK;
}

/* Sets a->bad[0] if a target is out of range. Passes the targets to slot take as indices into an array that has one
 * element for each class, because slot take reports indices out of range. */
static tg_status find_bad(tg_ctx *ctx, const tg_cross_entropy_args *a, const entropy *e) {
    view all;
    view_expand(&all, &e->ignored.a, 2, (const int64_t[]){a->logits.shape[0], e->classes});
    return tg_ctx_ops(ctx)->take(ctx, e->at.a, all.a, e->checked.a, 1, a->bad);
}

static tg_status cross_entropy(tg_ctx *ctx, const tg_cross_entropy_args *a, entropy *e) {
    view loss;
    if (!a->logits.shape[0] || (!a->logits.numel && !a->classes)) return TG_OK;
    TG_TRY(entropy_open(ctx, a, e));
    view_column(&loss, &a->loss);
    TG_TRY(entropy_terms(ctx, a, e));
    if (!a->classes)
        MAP(log_add, e->row.a, e->mass.a, e->row.a);
    MAP(where_da, loss.a, e->valid.a, e->row.a);
    return find_bad(ctx, a, e);
}

tg_status tg_composed_cross_entropy(tg_ctx *ctx, const tg_cross_entropy_args *a) {
    entropy e = {.memory = {0}};
    return arena_close(ctx, &e.memory, cross_entropy(ctx, a, &e));
}

/* Computes glogits (+)= (softmax - (1 - s) onehot - s / classes) gloss with smoothing s. The gradient of rows that are
 * not valid is 0. */
static tg_status cross_entropy_grad(tg_ctx *ctx, const tg_cross_entropy_args *a, entropy *e) {
    view gloss;
    if (!a->logits.numel) return TG_OK;
    TG_TRY(entropy_open(ctx, a, e));
    view_column(&gloss, &a->gloss);
    MAP(reciprocal, e->other.a, e->mass.a);
    MAP(exp_sub_mul, e->t.a, a->logits, e->top.a, e->other.a);
    MAP_P(affine, e->t.a, 1, -a->smoothing / (double)e->classes, false, e->t.a);
    TG_TRY(tg_ctx_ops(ctx)->fill(ctx, e->row.a, a->smoothing - 1));
    MAP(where_da, e->row.a, e->local.a, e->row.a);
    TG_TRY(tg_ctx_ops(ctx)->put_add(ctx, e->t.a, e->row.a, e->at.a, 1, NULL));
    MAP(mul, e->t.a, e->t.a, gloss.a);
    MAP_P(where_da, a->glogits, 0, 0, a->add, e->valid.a, e->t.a);
    return TG_OK;
}

tg_status tg_composed_cross_entropy_grad(tg_ctx *ctx, const tg_cross_entropy_args *a) {
    entropy e = {.memory = {0}};
    return arena_close(ctx, &e.memory, cross_entropy_grad(ctx, a, &e));
}

/* ---- Element-wise ---- */

static tg_status dropout(tg_ctx *ctx, arena *w, tg_array y, tg_array x, double p, const tg_draws *draws, bool add) {
    view u;
    if (!x.numel)
        return TG_OK;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS, arena_bytes(x.numel, TG_F32)));
    view_dense(&u, arena_take(w, x.numel, TG_F32), TG_F32, x.ndim, x.shape);
    TG_TRY(tg_ctx_ops(ctx)->random(ctx, TG_RANDOM_UNIFORM, u.a, 0, 1, draws));
    MAP_P(keep, y, (float)p, p < 1 ? 1 / (1 - p) : 0, add, x, u.a);
    return TG_OK;
}

tg_status tg_composed_dropout(tg_ctx *ctx, tg_array y, tg_array x, double p, const tg_draws *draws, bool add) {
    arena w = {0};
    return arena_close(ctx, &w, dropout(ctx, &w, y, x, p, draws, add));
}

/* ---- The optimizer step ---- */

/* Sets *fault, which must be 0, to a->fault[0]. If a->fault is NULL and the device has slot fault_sum, asks the device
 * whether it knows of an error in data, and sets *fault to NaN if it does. The device writes its answer to a->scalars,
 * which the step overwrites later. */
static tg_status read_fault(tg_ctx *ctx, const tg_prepare_args *a, double *fault) {
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    const double *from = a->fault;
    if (!from && ops->fault_sum) {
        from = a->scalars;
        TG_TRY(ops->copy(ctx, a->scalars, fault, sizeof *fault, TG_COPY_FROM_HOST));
        TG_TRY(ops->fault_sum(ctx, a->scalars));
    }
    return from ? ops->copy(ctx, fault, from, sizeof *fault, TG_COPY_TO_HOST) : TG_OK;
}

/* Copies the inputs to the host, prepares the step there, and copies the results back. */
tg_status tg_composed_prepare(tg_ctx *ctx, const tg_prepare_args *a) {
    const tg_device_ops *ops = tg_ctx_ops(ctx);
    double sums[TG_STEP_SUMS] = {0}, state[TG_STEP_STATE] = {0}, scalars[TG_STEP_GROUPS * TG_STEP_SCALARS], fault = 0;
    tg_prepare_args host = *a;
    host.sums = sums;
    host.fault = &fault;
    host.state = state;
    host.scalars = scalars;
    if (a->n_sums)
        TG_TRY(ops->copy(ctx, sums, a->sums, (size_t)a->n_sums * sizeof *sums, TG_COPY_TO_HOST));
    TG_TRY(read_fault(ctx, a, &fault));
    TG_TRY(ops->copy(ctx, state, a->state, sizeof state, TG_COPY_TO_HOST));
    tg_prepare_step(&host, false);
    TG_TRY(ops->copy(ctx, a->state, state, sizeof state, TG_COPY_FROM_HOST));
    return ops->copy(ctx, a->scalars, scalars, (size_t)a->n_groups * TG_STEP_SCALARS * sizeof *scalars,
                     TG_COPY_FROM_HOST);
}

/* Makes the step of one parameter. The scalars that change from step to step (tg_step_scalar) stay in the device's
 * memory, and each is read there as an array of one element. If the host read them, it would have to wait for the
 * device. */
static tg_status step_one(tg_ctx *ctx, arena *w, const tg_adamw_args *a) {
    tg_array param = a->master.data ? a->master : a->param;
    tg_dtype d = compute_of(&a->param);
    int64_t n = a->param.numel;
    view step[TG_STEP_SCALARS], g, m, v, factor, used, skip;
    if (!n)
        return TG_OK;
    TG_TRY(arena_open(ctx, w, COMPOSED_ROWS, 3 * arena_bytes(n, d) + 2 * arena_bytes(1, TG_F64)));
    for (int i = 0; i < TG_STEP_SCALARS; i++)
        view_dense(&step[i], (void *)(uintptr_t)(a->step + i), TG_F64, 1, (const int64_t[]){1});
    view_dense(&factor, arena_take(w, 1, TG_F64), TG_F64, 1, (const int64_t[]){1});
    view_dense(&g, arena_take(w, n, d), d, a->param.ndim, a->param.shape);
    view_dense(&m, arena_take(w, n, d), d, a->param.ndim, a->param.shape);
    view_dense(&v, arena_take(w, n, d), d, a->param.ndim, a->param.shape);
    view_dense(&skip, arena_take(w, 1, TG_F64), TG_F64, 1, (const int64_t[]){1});
    if (a->used) {
        view_dense(&used, (void *)(uintptr_t)a->used, TG_F32, 1, (const int64_t[]){1});
        MAP(logical_not, skip.a, used.a);
        MAP_P(linear_sum, skip.a, 1, 1, false, skip.a, step[TG_SCALAR_SKIP].a);
        step[TG_SCALAR_SKIP] = skip;
    }
    MAP(mul, g.a, a->grad, step[TG_SCALAR_COEFFICIENT].a);
    if (!a->decoupled)
        MAP_P(linear_sum, g.a, 1, a->weight_decay, false, g.a, param);
    MAP_P(affine, factor.a, a->decoupled ? -a->weight_decay : 0, 1, false, step[TG_SCALAR_LR].a);
    MAP_P(linear_sum, m.a, a->beta1, 1 - a->beta1, false, a->m, g.a);
    MAP_P(square_sum, v.a, a->beta2, 1 - a->beta2, false, a->v, g.a);
    MAP(where, a->m, step[TG_SCALAR_SKIP].a, a->m, m.a);
    MAP(where, a->v, step[TG_SCALAR_SKIP].a, a->v, v.a);
    MAP_P(sqrt_div, v.a, a->eps, 0, false, v.a, step[TG_SCALAR_UNBIAS2].a);
    MAP(div_div, m.a, m.a, v.a, step[TG_SCALAR_UNBIAS1].a);
    MAP(mul_mul_sub, g.a, param, factor.a, m.a, step[TG_SCALAR_LR].a);
    if (a->master.data)
        MAP(where, a->param, step[TG_SCALAR_SKIP].a, a->param, g.a);
    MAP(where, param, step[TG_SCALAR_SKIP].a, param, g.a);
    return TG_OK;
}

tg_status tg_composed_adamw(tg_ctx *ctx, const tg_adamw_args *a, int n) {
    for (int i = 0; i < n; i++) {
        arena w = {0};
        TG_TRY(arena_close(ctx, &w, step_one(ctx, &w, &a[i])));
    }
    return TG_OK;
}
