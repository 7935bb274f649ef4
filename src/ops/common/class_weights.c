/* Class weights in a cross-entropy. For a row x with target t and smoothing s over K classes the loss is
 *
 *     (1 - s) w[t] (lse - x[t]) + (s / K) (sum over j of w[j] (lse - x[j])),
 *
 * where lse is log(sum(exp(x))). lse - x[t] is the loss that slot cross_entropy computes without smoothing. The sum in
 * the second term is log(mass) sum(w) - sum(w (x - top)), with the top and mass of that slot (device.h). TG_LOSS_MEAN
 * divides by the sum of w[t] over the rows. */
#include "ops/common/row_loss.h"
#include "ops/common/nn_op.h"

enum { W = 1 };

static const tg_row_loss_params *params(const tg_call *c) { return c->params; }
/* Returns the last private buffer, which has the weight of each row's target. */
static tg_tensor *weights_of(const tg_call *c) { return c->saved[c->n_saved - 1]; }

tg_status tg_class_weights_infer(tg_call *c, int64_t classes) {
    const tg_tensor *w = c->input[W];
    tg_row_loss_params *p = c->params;
    p->weighted = w != NULL;
    if (!w) return TG_OK;
    TG_TRY(tg_need_same_dtype(c, 0, W));
    if (w->ndim != 1 || w->shape[0] != classes)
        return tg_call_fail(c, TG_ERR_SHAPE, "weight must be a vector of %s, one for each class of input 0",
                            tg_count(classes, "element").text);
    if (!tg_needs(c, W)) return TG_OK;
    return tg_call_fail(c, TG_ERR_ARGUMENT, "weight requires a gradient, but class weights have none; pass tg_detach "
                        "of it");
}

/* Return views of a contiguous tensor: a vector, a matrix with n columns, and a matrix with one column. */
static tg_tensor *vector(tg_call *c, tg_tensor *x) {
    return tg_call_view_of(c, x, 0, 1, &x->numel, (const int64_t[]){1});
}

static tg_tensor *rows(tg_call *c, tg_tensor *x, int64_t n) {
    return tg_call_view_of(c, x, 0, 2, (const int64_t[]){n ? x->numel / n : 0, n}, (const int64_t[]){n, 1});
}

static tg_tensor *column(tg_call *c, tg_tensor *x) { return rows(c, x, 1); }

/* Facts about the rows and the weights that forward and backward use. */
typedef struct tally {
    tg_tensor *counts; /* [rows], bool: true where the row is not ignored */
    tg_tensor *total;  /* sum(w), a scalar */
} tally;

/* Fills *n for a contiguous target. */
static tg_status count(tg_call *c, tg_tensor *target, tally *n) {
    TG_TRY(tg_row_loss_counts(c, target, &n->counts));
    n->counts = vector(c, n->counts);
    n->total = tg_call_temp(c, (tg_dtype)weights_of(c)->dtype, 0, target->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    tg_extent e; /* of the scalar total, viewed as [1] */
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, tg_array_keep(tg_array_of(n->total), 1, 1, &e),
                                      tg_array_of(c->input[W]), 1, false);
}

/* weights[row] = w[target]; 0 in ignored rows. An ignored target may be any number, so class 0 is read for it. */
static tg_status pick(tg_call *c, tg_tensor *target, const tally *n) {
    tg_tensor *weights = weights_of(c), *at = tg_call_temp(c, TG_I64, 1, &target->numel), *t = vector(c, target);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_where_da, at, TG_T2(n->counts, t), 2, 0, 0, false));
    TG_TRY(tg_ctx_ops(c->ctx)->take(c->ctx, tg_array_of(weights), tg_array_of(c->input[W]), tg_array_of(at), 0, NULL));
    return tg_op_map(c, TG_FN_where_da, weights, TG_T2(n->counts, weights), 2, 0, 0, false);
}

/* loss := (1 - s) loss + (s / K) (log(mass) sum(w) - sum(w (x - top))) in rows that are not ignored. */
static tg_status smooth(tg_call *c, tg_tensor *x, const tg_tensor *loss, const tally *n) {
    const tg_row_loss_params *p = params(c);
    tg_tensor *top = c->saved[TG_ROW_LOSS_TOP], *top_col = column(c, top);
    tg_dtype wide = (tg_dtype)top->dtype;
    int64_t v = p->classes, all[] = {top->numel, v};
    tg_tensor *weighed = tg_call_temp(c, wide, 2, all), *u = tg_call_temp(c, wide, 1, all),
              *sum = tg_call_temp(c, wide, 1, all), *by_row = rows(c, x, v);
    tg_extent e; /* of sum, viewed as [rows, 1] */
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_sub_mul, weighed, TG_T3(by_row, top_col, c->input[W]), 3, 0, 0, false));
    TG_TRY(tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, tg_array_keep(tg_array_of(sum), 2, 2, &e), tg_array_of(weighed),
                                      1, false));
    TG_TRY(tg_op_map(c, TG_FN_log, u, TG_T1(c->saved[TG_ROW_LOSS_MASS]), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_mul, u, TG_T2(u, n->total), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_sub, u, TG_T2(u, sum), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_where_da, u, TG_T2(n->counts, u), 2, 0, 0, false));
    return tg_op_map(c, TG_FN_linear_sum, loss, TG_T2(loss, u), 2, 1 - p->smoothing, p->smoothing / (double)v, false);
}

tg_status tg_class_weights_forward(tg_call *c, tg_tensor *x, tg_tensor *target, tg_tensor *loss) {
    tally n;
    TG_TRY(count(c, target, &n));
    TG_TRY(pick(c, target, &n));
    loss = vector(c, loss);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_mul, loss, TG_T2(loss, weights_of(c)), 2, 0, 0, false));
    return params(c)->smoothing != 0 ? smooth(c, x, loss, &n) : TG_OK;
}

/* gx += (s / K) g (sum(w) softmax(x) - w) in rows that are not ignored; g is the gradient of the row's loss. An ignored
 * row may hold infinities or NaN, and their products with 0 are NaN, so ignored rows are masked. */
static tg_status smooth_gradient(tg_call *c, tg_tensor *gx, tg_tensor *x, tg_tensor *target, const tg_tensor *g) {
    const tg_row_loss_params *p = params(c);
    tg_tensor *top = c->saved[TG_ROW_LOSS_TOP];
    tg_dtype wide = (tg_dtype)top->dtype;
    int64_t v = p->classes, n_rows = top->numel;
    const int64_t all[] = {n_rows, v};
    tg_tensor *q = tg_call_temp(c, wide, 1, &n_rows), *of_all = tg_call_temp(c, wide, 1, &n_rows), *at = rows(c, x, v);
    tg_tensor *part = tg_call_temp(c, wide, 2, all);
    tally n;
    TG_TRY(count(c, target, &n));
    tg_tensor *top_col = column(c, top), *all_col = column(c, of_all), *q_col = column(c, q),
              *counts = column(c, n.counts);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_where_da, q, TG_T2(n.counts, g), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_affine, q, TG_T1(q), 1, p->smoothing / (double)v, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_mul, of_all, TG_T2(q, n.total), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_div, of_all, TG_T2(of_all, c->saved[TG_ROW_LOSS_MASS]), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_exp_sub_mul, part, TG_T3(at, top_col, all_col), 3, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_neg, q, TG_T1(q), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_mul, part, TG_T2(q_col, c->input[W]), 2, 0, 0, true));
    return tg_op_map(c, TG_FN_where_da, gx, TG_T2(counts, part), 2, 0, 0, true);
}

tg_status tg_class_weights_backward(tg_call *c, tg_tensor *gx, tg_tensor *x, tg_tensor *target, tg_tensor *g,
                                    bool add) {
    const tg_row_loss_params *p = params(c);
    tg_tensor *top = c->saved[TG_ROW_LOSS_TOP], *of_row = tg_call_temp(c, (tg_dtype)top->dtype, 1, &top->numel);
    int64_t v = p->classes, all[] = {top->numel, v};
    bool smoothed = p->smoothing != 0, wide = smoothed && gx->dtype != top->dtype;
    tg_tensor *to = wide ? tg_call_temp(c, (tg_dtype)top->dtype, 2, all) : rows(c, gx, v);
    tg_tensor *by_row = rows(c, gx, v), *each = g->ndim ? vector(c, g) : g, *logits = rows(c, x, v);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_op_map(c, TG_FN_mul, of_row, TG_T2(each, weights_of(c)), 2, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_affine, of_row, TG_T1(of_row), 1, 1 - p->smoothing, 0, false));
    TG_TRY(tg_row_loss_backward(c, tg_array_of(to), tg_array_of(logits), target, of_row, 0, add && !wide));
    if (smoothed) TG_TRY(smooth_gradient(c, to, x, target, each));
    return wide ? tg_op_map(c, TG_FN_id, by_row, TG_T1(to), 1, 0, 0, add) : TG_OK;
}
