/* The shared computation of the cross-entropies; see row_loss.h. */
#include "ops/common/row_loss.h"

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "kernels/composed.h"

const tg_field tg_row_loss_fields[4] = {
    TG_ARG(tg_row_loss_params, ignore_index, INT64, "The loss of rows with this target is 0."),
    TG_ARG_AS(tg_row_loss_params, smoothing, "label_smoothing", DOUBLE,
              "Share of the target that is spread over all classes, in [0, 1]."),
    TG_ARG(tg_row_loss_params, reduction, ENUM, "How the losses of all rows become the result.",
           .of = "tg_loss_reduction"),
    TG_ARG_AS(tg_row_loss_params, kind, "smoothing_kind", ENUM, "How label_smoothing is spread.", .of = "tg_smoothing"),
};

/* The greatest magnitude of ignore_index: slot fill takes it as a double, which holds integers up to here exactly. */
static const int64_t exact_in_double = (int64_t)1 << 53;

tg_tensor *tg_class_weights_of(const tg_cross_entropy_opts *opts) {
    tg_cross_entropy_opts o;
    tg_op_options(&o, &tg_cross_entropy_opts_struct, opts);
    return o.weight;
}

tg_row_loss_params tg_row_loss_params_of(const tg_cross_entropy_opts *opts) {
    tg_cross_entropy_opts o;
    tg_op_options(&o, &tg_cross_entropy_opts_struct, opts);
    return (tg_row_loss_params){.size = o.size,
                                .known = sizeof o,
                                .ignore_index = o.ignore_index,
                                .smoothing = o.label_smoothing,
                                .kind = o.smoothing_kind,
                                .reduction = o.reduction,
                                .weighted = o.weight != NULL};
}

static tg_status need_target(tg_call *c, int i) {
    const tg_tensor *x = c->input[0], *target = c->input[i];
    if (target->dtype != TG_I64)
        return tg_call_fail(c, TG_ERR_DTYPE, "target is %s; it must be i64", tg_dtype_name((tg_dtype)target->dtype));
    if (target->ndim != x->ndim - 1 || memcmp(target->shape, x->shape, target->ndim * sizeof *x->shape) != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "target must have the shape of input 0 without its last dim");
    return TG_OK;
}

static tg_status check_options(tg_call *c) {
    const tg_row_loss_params *p = c->params;
    TG_TRY(tg_size_check(c->ctx, p->size, p->known, "the options"));
    if (!(p->smoothing >= 0 && p->smoothing <= 1))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "label_smoothing is %g; it must be from 0 to 1", p->smoothing);
    if (p->kind < TG_SMOOTHING_TORCH || p->kind > TG_SMOOTHING_MEGATRON_PARTITION)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "smoothing_kind is %d; it must be TG_SMOOTHING_TORCH, _MEGATRON or "
                            "_MEGATRON_PARTITION", (int)p->kind);
    if (p->kind != TG_SMOOTHING_TORCH && p->smoothing == 0)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "smoothing_kind is %d, but label_smoothing is 0, so nothing is smoothed; set "
                            "label_smoothing above 0, or leave smoothing_kind at TG_SMOOTHING_TORCH",
                            (int)p->kind);
    if (p->ignore_index < -exact_in_double || p->ignore_index > exact_in_double)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "ignore_index is %lld; its magnitude must be at most 2^53",
                            (long long)p->ignore_index);
    if (p->reduction < TG_LOSS_MEAN || p->reduction > TG_LOSS_NONE)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "reduction is %d; it must be TG_LOSS_MEAN, _SUM or _NONE",
                            (int)p->reduction);
    return TG_OK;
}

/* Converts Megatron's smoothing m to PyTorch's. Megatron gives m / (K - 1) to each of the K - 1 wrong classes, which is
 * what PyTorch's smoothing of m * K / (K - 1) does. K counts the classes over which the smoothing is spread. */
static void resolve_smoothing(tg_row_loss_params *p) {
    int64_t k = p->kind == TG_SMOOTHING_MEGATRON_PARTITION ? p->columns : p->classes;
    if (p->kind == TG_SMOOTHING_TORCH) return;
    p->smoothing = k > 1 ? p->smoothing * (double)k / (double)(k - 1) : 0;
}

/* States whether the row dims may be sharded (tg_call_role in op.h). They may if the result is not reduced. They may
 * also if it is the sum, as dims over which the op sums. They may not if it is the mean, which divides by the number of
 * all rows. About the class dim nothing is stated, so it must not be sharded. */
static tg_status declare_rows(tg_call *c) {
    static const int roles[] = {[TG_LOSS_MEAN] = TG_WHOLE, [TG_LOSS_SUM] = TG_SUMMED};
    tg_loss_reduction reduction = ((const tg_row_loss_params *)c->params)->reduction;
    int target = c->n_in - 1;
    for (int d = 0; tg_call_places(c) && d < c->input[target]->ndim; d++) {
        TG_TRY(tg_call_role(c, 0, d, reduction == TG_LOSS_NONE ? d : roles[reduction]));
        TG_TRY(tg_call_role(c, target, d, reduction == TG_LOSS_NONE ? d : roles[reduction]));
    }
    /* Input 1 (bit mask 2), the class weights, need not be sharded as the rows are: every row needs all of them. */
    return target > 1 && c->input[1] ? tg_call_within(c, 2) : TG_OK;
}

tg_status tg_row_loss_infer(tg_call *c, int64_t classes) {
    tg_row_loss_params *p = c->params;
    const tg_tensor *target = c->input[c->n_in - 1];
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)c->input[0]->dtype);
    TG_TRY(check_options(c));
    TG_TRY(need_target(c, c->n_in - 1));
    if (classes == 0) return tg_call_fail(c, TG_ERR_SHAPE, "x has no classes: its last dim has size 0");
    TG_TRY(declare_rows(c));
    if (!p->comm) p->columns = p->classes = classes;
    resolve_smoothing(p);
    TG_TRY(tg_call_save(c, TG_ROW_LOSS_TOP, dtype, 1, &target->numel));
    TG_TRY(tg_call_save(c, TG_ROW_LOSS_MASS, dtype, 1, &target->numel));
    if (p->reduction == TG_LOSS_MEAN) TG_TRY(tg_call_save(c, TG_ROW_LOSS_COUNT, TG_F64, 0, target->shape));
    if (p->weighted) TG_TRY(tg_call_save(c, c->n_saved, dtype, 1, &target->numel));
    return tg_call_out(c, 0, dtype, p->reduction == TG_LOSS_NONE ? target->ndim : 0, target->shape);
}

tg_array tg_rows_array(void *data, tg_dtype dtype, int64_t rows, int64_t n, tg_extent *e) {
    e->shape[0] = rows;
    e->shape[1] = n;
    e->stride[0] = n;
    e->stride[1] = 1;
    return (tg_array){data, e->shape, e->stride, rows * n, 2, (uint8_t)dtype, true};
}

/* Returns elements [first, first + n) of a contiguous tensor; for a scalar, its value repeated n times. */
static tg_array part(const tg_tensor *x, int64_t first, int64_t n, tg_extent *e) {
    bool one = x->ndim == 0;
    char *data = tg_data(x);
    e->shape[0] = n;
    e->stride[0] = !one;
    if (data && !one) data += first * (int64_t)tg_dtype_size((tg_dtype)x->dtype);
    return (tg_array){data, e->shape, e->stride, n, 1, x->dtype, !one};
}

tg_status tg_row_loss_buffer(tg_call *c, tg_tensor **loss) {
    const tg_row_loss_params *p = c->params;
    const tg_tensor *target = c->input[c->n_in - 1];
    *loss = c->out[0];
    if (p->reduction != TG_LOSS_NONE) *loss = tg_call_temp(c, (tg_dtype)c->out[0]->dtype, 1, &target->numel);
    return c->ctx->run.status;
}

/* Reports the invalid target of a row. The message quotes the target if the host can read it, and otherwise only its
 * position. */
static tg_status bad_target(tg_call *c, const tg_tensor *target, int64_t row, int64_t classes) {
    if (!c->ctx->host) return tg_op_bad(c, row + 1, "target");
    return tg_call_fail(c, TG_ERR_DATA, "target of row %lld is %lld; it must be from 0 to %lld, or ignore_index",
                        (long long)row, (long long)((const int64_t *)tg_data(target))[row], (long long)classes - 1);
}

/* Views a vector as a column, so that it broadcasts against rows of logits. */
static tg_array column(tg_array x, tg_extent *e) {
    e->shape[0] = x.shape[0];
    e->shape[1] = 1;
    e->stride[0] = x.stride[0];
    e->stride[1] = 0;
    return (tg_array){x.data, e->shape, e->stride, x.numel, 2, x.dtype, false};
}

/* mean = the mean of each row of logits, minus the row's top. top is the greatest logit of a row, and mass the sum of
 * exp(logit - top). If no logit is above -inf, mass is 0 (tg_cross_entropy_args), and nothing is subtracted. */
static tg_status mean_logits(tg_call *c, tg_array logits, tg_array top, tg_array mass, tg_array mean) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_tensor *wide = tg_call_temp(c, TG_F64, 1, logits.shape); /* wide enough that the difference loses no digits */
    tg_extent e;
    int64_t n = logits.shape[1];
    const double none[2] = {0};
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(ops->reduce(c->ctx, TG_SUM, column(tg_array_of(wide), &e), logits, n ? 1.0 / (double)n : 0, false));
    /* mean = top, or 0 where mass is 0 */
    TG_TRY(ops->apply(c->ctx, TG_FN_where_da, mean, (const tg_array[]){mass, top}, 2, none, false));
    return ops->apply(c->ctx, TG_FN_sub, mean, (const tg_array[]){tg_array_of(wide), mean}, 2, none, false);
}

tg_status tg_row_loss_forward(tg_call *c, tg_array logits, const tg_tensor *target, const tg_tensor *loss,
                              int64_t first) {
    const tg_row_loss_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    int64_t n = logits.shape[0], bad = 0;
    tg_extent e[4];
    tg_cross_entropy_args a = {
        .logits = logits,
        .target = part(target, first, n, &e[0]),
        .loss = part(loss, first, n, &e[1]),
        .top = part(c->saved[TG_ROW_LOSS_TOP], first, n, &e[2]),
        .mass = part(c->saved[TG_ROW_LOSS_MASS], first, n, &e[3]),
        .ignore_index = p->ignore_index,
        .first = p->first,
        .classes = p->comm ? p->classes : 0,
        .smoothing = tg_row_loss_by_partition(p) || p->weighted ? 0 : p->smoothing,
        .bad = &bad,
    };
    TG_TRY((ops->cross_entropy ? ops->cross_entropy : tg_composed_cross_entropy)(c->ctx, &a));
    if (tg_row_loss_by_partition(p))
        TG_TRY(mean_logits(c, logits, a.top, a.mass, part(loss, target->numel + first, n, &e[0])));
    return bad ? bad_target(c, target, first + bad - 1, p->classes) : TG_OK;
}

tg_status tg_row_loss_counts(tg_call *c, const tg_tensor *target, tg_tensor **counts) {
    const tg_row_loss_params *p = c->params;
    tg_tensor *ignored = tg_call_temp(c, TG_I64, 0, target->shape);
    *counts = tg_call_temp(c, TG_BOOL, target->ndim, target->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(ignored), (double)p->ignore_index));
    return tg_op_map(c, TG_FN_ne, *counts, TG_T2(target, ignored), 2, 0, 0, false);
}

/* count = the number of targets that are not ignored or, with class weights, the sum of the weights of these targets.
 * It stays on the device, because no shape depends on it. */
static tg_status count_rows(tg_call *c, const tg_tensor *target, const tg_tensor *count) {
    tg_tensor *counts = c->saved[c->n_saved - 1];
    tg_extent e;
    if (!((const tg_row_loss_params *)c->params)->weighted) TG_TRY(tg_row_loss_counts(c, target, &counts));
    tg_array sum = tg_array_keep(tg_array_of(count), 1, 1, &e); /* the scalar as [1] */
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, sum, part(counts, 0, target->numel, &(tg_extent){0}), 1, false);
}

tg_status tg_row_loss_reduce(tg_call *c, const tg_tensor *target, const tg_tensor *loss) {
    const tg_row_loss_params *p = c->params;
    tg_tensor *y = c->out[0];
    tg_extent e;
    if (p->reduction == TG_LOSS_NONE) return TG_OK;
    tg_array sum = tg_array_keep(tg_array_of(y), 1, 1, &e); /* the scalar as [1] */
    TG_TRY(tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, sum, tg_array_of(loss), 1, false));
    if (p->reduction == TG_LOSS_SUM) return TG_OK;
    const tg_tensor *count = c->saved[TG_ROW_LOSS_COUNT];
    TG_TRY(count_rows(c, target, count));
    return tg_op_map(c, TG_FN_div, y, TG_T2(y, count), 2, 0, 0, false);
}

tg_status tg_row_loss_gradients(tg_call *c, tg_tensor **g) {
    const tg_row_loss_params *p = c->params;
    *g = c->gout[0];
    if (p->reduction != TG_LOSS_MEAN) return tg_op_dense(c, g);
    *g = tg_call_temp(c, (tg_dtype)c->gout[0]->dtype, 0, c->gout[0]->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    return tg_op_map(c, TG_FN_div, *g, TG_T2(c->gout[0], c->saved[TG_ROW_LOSS_COUNT]), 2, 0, 0, false);
}

/* Corrects the gradient of slot cross_entropy_grad. The slot spreads the smoothing over all classes; the correction
 * spreads it over the classes of this rank only. */
static tg_status spread_over_partition(tg_call *c, tg_array glogits, tg_array g) {
    const tg_row_loss_params *p = c->params;
    tg_extent e;
    int64_t stride[2];
    if (!p->columns) return TG_OK;
    tg_array in = tg_array_expand(column(g, &e), 2, glogits.shape, stride);
    double more = p->smoothing / (double)p->classes - p->smoothing / (double)p->columns;
    return tg_ctx_ops(c->ctx)->apply(c->ctx, TG_FN_affine, glogits, &in, 1, (const double[2]){more, 0}, true);
}

tg_status tg_row_loss_backward(tg_call *c, tg_array glogits, tg_array logits, const tg_tensor *target,
                               const tg_tensor *g, int64_t first, bool add) {
    const tg_row_loss_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    int64_t n = logits.shape[0];
    tg_extent e[4];
    tg_cross_entropy_args a = {
        .logits = logits,
        .target = part(target, first, n, &e[0]),
        .top = part(c->saved[TG_ROW_LOSS_TOP], first, n, &e[1]),
        .mass = part(c->saved[TG_ROW_LOSS_MASS], first, n, &e[2]),
        .ignore_index = p->ignore_index,
        .first = p->first,
        .classes = p->comm ? p->classes : 0,
        .smoothing = p->weighted ? 0 : p->smoothing,
        .gloss = part(g, first, n, &e[3]),
        .glogits = glogits,
        .add = add,
    };
    TG_TRY((ops->cross_entropy_grad ? ops->cross_entropy_grad : tg_composed_cross_entropy_grad)(c->ctx, &a));
    return tg_row_loss_by_partition(p) ? spread_over_partition(c, glogits, a.gloss) : TG_OK;
}

tg_tensor *tg_row_loss_compose_reduce(tg_tape *t, const tg_row_loss_params *p, tg_tensor *loss, const tg_tensor *target,
                                      tg_tensor *ignored) {
    loss = tg_masked_fill(t, loss, ignored, 0);
    if (p->reduction == TG_LOSS_NONE) return loss;
    loss = tg_sum(t, loss, TG_ALL_DIMS, false);
    if (p->reduction == TG_LOSS_SUM) return loss;
    tg_tensor *all = tg_full(t, TG_I64, TG_SHAPE(), (double)target->numel);
    tg_tensor *count = tg_sub(t, all, tg_sum(t, ignored, TG_ALL_DIMS, false));
    return tg_div(t, loss, tg_cast(t, count, (tg_dtype)loss->dtype));
}

/* Returns the mean loss: the sum over rows, divided by the sum of the targets' weights. */
static tg_tensor *weighed_mean(tg_tape *t, tg_tensor *loss, tg_tensor *weights, tg_tensor *ignored) {
    tg_tensor *all = tg_sum(t, tg_masked_fill(t, weights, ignored, 0), TG_ALL_DIMS, false);
    return tg_div(t, tg_sum(t, tg_masked_fill(t, loss, ignored, 0), TG_ALL_DIMS, false), all);
}

tg_tensor *tg_row_loss_compose(tg_tape *t, const tg_node *n, tg_tensor *logits) {
    const tg_row_loss_params *p = tg_node_params(n);
    tg_tensor *target = tg_node_in(n)[n->n_in - 1], *w = p->weighted ? tg_wide(t, tg_node_in(n)[1]) : NULL;
    tg_tensor *ignored = tg_equals(t, target, (double)p->ignore_index);
    logits = tg_masked_fill(t, logits, tg_unsqueeze(t, ignored, -1), 0); /* ignored rows may hold NaN */
    tg_tensor *log_p = tg_log_softmax(t, tg_wide(t, logits), -1), *at = tg_masked_fill(t, target, ignored, 0);
    tg_tensor *likely = tg_squeeze(t, tg_gather(t, log_p, -1, tg_unsqueeze(t, at, -1)), -1);
    tg_tensor *of_target = w ? tg_squeeze(t, tg_embedding(t, tg_unsqueeze(t, w, 1), at), -1) : NULL;
    if (w) log_p = tg_mul(t, log_p, w);
    if (w) likely = tg_mul(t, likely, of_target);
    tg_tensor *spread = tg_mean(t, log_p, TG_DIMS(-1), false);
    tg_tensor *loss = tg_add(t, tg_scale(t, likely, p->smoothing - 1), tg_scale(t, spread, -p->smoothing));
    return w && p->reduction == TG_LOSS_MEAN ? weighed_mean(t, loss, of_target, ignored)
                                             : tg_row_loss_compose_reduce(t, p, loss, target, ignored);
}
