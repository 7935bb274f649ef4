/* The negative log-likelihood of log-probabilities x [.., v] at targets t [..]: -w[t] x[t], or 0 in ignored rows, whose
 * target is ignore_index. The mean is the sum over the rows that are not ignored, divided by the sum of their w[t]. */
#include "ops/common/derive.h"
#include "ops/common/elementwise_loss.h"
#include "ops/common/nn_op.h"

enum { X, TARGET, W };
enum { TOTAL }; /* private saved buffer: the sum of the weights of rows that are not ignored, one number */

/* The greatest magnitude of ignore_index: slot fill takes it as a double, which holds integers up to here exactly. */
static const int64_t exact_in_double = (int64_t)1 << 53;

static const tg_elementwise_loss_params *params(const tg_call *c) { return c->params; }

static tg_status need_target(tg_call *c) {
    const tg_tensor *x = c->input[X], *target = c->input[TARGET];
    if (target->dtype != TG_I64)
        return tg_call_fail(c, TG_ERR_DTYPE, "target is %s; it must be i64", tg_dtype_name((tg_dtype)target->dtype));
    if (target->ndim != x->ndim - 1 || memcmp(target->shape, x->shape, target->ndim * sizeof *x->shape) != 0)
        return tg_call_fail(c, TG_ERR_SHAPE, "target must have the shape of input 0 without its last dim");
    return TG_OK;
}

static tg_status need_weights(tg_call *c, int64_t classes) {
    const tg_tensor *w = c->input[W];
    if (!w) return TG_OK;
    TG_TRY(tg_need_same_dtype(c, X, W));
    if (w->ndim == 1 && w->shape[0] == classes) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "w must be a vector of %s, one for each class",
                        tg_count(classes, "element").text);
}

/* States whether the dims of rows may be sharded (tg_call_role). For TG_LOSS_NONE they may. For TG_LOSS_SUM they may
 * too, as dims over which the op sums. For TG_LOSS_MEAN they may not, because the mean divides by the weights of all
 * rows. w need not be sharded as the rows are (tg_call_within), because every row uses all of w. */
static tg_status state_rows(tg_call *c) {
    tg_loss_reduction reduction = params(c)->reduction;
    for (int d = 0; reduction != TG_LOSS_MEAN && tg_call_places(c) && d < c->input[TARGET]->ndim; d++)
        for (int i = 0; i < 2; i++) TG_TRY(tg_call_role(c, i, d, reduction == TG_LOSS_NONE ? d : TG_SUMMED));
    return c->input[W] ? tg_call_within(c, 1u << W) : TG_OK;
}

static tg_status nll_infer(tg_call *c) {
    const tg_tensor *x = c->input[X], *target = c->input[TARGET];
    TG_TRY(tg_elementwise_loss_check(c, TG_LOSS_NONE));
    const tg_elementwise_loss_params *p = params(c);
    TG_TRY(tg_need_float(c, X));
    if (x->ndim < 1) return tg_call_fail(c, TG_ERR_SHAPE, "x is a scalar; it must be log-probabilities [.., v] with 1 "
                                         "or more dims");
    int64_t classes = x->shape[x->ndim - 1];
    TG_TRY(need_target(c));
    TG_TRY(need_weights(c, classes));
    if (classes == 0) return tg_call_fail(c, TG_ERR_SHAPE, "x has no classes: its last dim has size 0");
    if (p->ignore_index < -exact_in_double || p->ignore_index > exact_in_double)
        return tg_call_fail(c, TG_ERR_ARGUMENT, "ignore_index is %lld; its magnitude must be at most 2^53",
                            (long long)p->ignore_index);
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)x->dtype);
    TG_TRY(state_rows(c));
    if (p->reduction == TG_LOSS_MEAN) TG_TRY(tg_call_save(c, TOTAL, dtype, 0, target->shape));
    if (p->reduction != TG_LOSS_MEAN || !c->input[W] || !tg_needs(c, W)) c->saves_out = 0;
    return tg_call_out(c, 0, dtype, p->reduction == TG_LOSS_NONE ? target->ndim : 0, target->shape);
}

/* ---- Rows ---- */

/* Temporaries of target's shape. */
typedef struct rows {
    tg_tensor *counts; /* bool: true if the row is not ignored */
    tg_tensor *at;     /* the class, 0 in ignored rows */
    tg_tensor *picked; /* x at the class, 0 in ignored rows; reused for the row's loss, and for what it adds to gw */
    tg_tensor *weight; /* w at the class, 0 in ignored rows; reused for what the row adds to gx */
} rows;

/* Returns r viewed as [.., 1]. */
static tg_array column(const tg_tensor *r, tg_extent *e) {
    tg_array a = tg_array_of(r);
    memcpy(e->shape, r->shape, r->ndim * sizeof *r->shape);
    memcpy(e->stride, r->stride, r->ndim * sizeof *r->stride);
    e->shape[r->ndim] = 1;
    e->stride[r->ndim] = 0;
    a.shape = e->shape;
    a.stride = e->stride;
    a.ndim++;
    a.contiguous = false;
    return a;
}

/* Returns r, which is contiguous, viewed as one dim. */
static tg_array flat(const tg_tensor *r, tg_extent *e) {
    tg_array a = tg_array_of(r);
    e->shape[0] = r->numel;
    e->stride[0] = 1;
    a.shape = e->shape;
    a.stride = e->stride;
    a.ndim = 1;
    return a;
}

/* Fails if a target is out of range. The message quotes the target if the host can read it, and otherwise only its
 * position. */
static tg_status check_targets(tg_call *c, int64_t bad, const tg_tensor *at) {
    const tg_tensor *x = c->input[X];
    if (TG_LIKELY(!bad) || !c->ctx->host) return tg_op_bad(c, bad, "target");
    return tg_call_fail(c, TG_ERR_DATA, "target of row %lld is %lld; it must be from 0 to %lld, or ignore_index",
                        (long long)bad - 1, (long long)((const int64_t *)tg_data(at))[bad - 1],
                        (long long)x->shape[x->ndim - 1] - 1);
}

static tg_status read_classes(tg_call *c, rows *r) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_extent e[2];
    int64_t bad = 0;
    TG_TRY(ops->take(c->ctx, column(r->picked, &e[0]), tg_array_of(c->input[X]), column(r->at, &e[1]),
                     c->input[X]->ndim - 1, &bad));
    TG_TRY(check_targets(c, bad, r->at));
    if (!c->input[W]) return ops->fill(c->ctx, tg_array_of(r->weight), 1);
    return ops->take(c->ctx, flat(r->weight, &e[0]), tg_array_of(c->input[W]), flat(r->at, &e[1]), 0, NULL);
}

static tg_status read_rows(tg_call *c, rows *r) {
    const tg_tensor *target = c->input[TARGET];
    tg_dtype dtype = tg_accumulate_dtype((tg_dtype)c->input[X]->dtype);
    tg_tensor *ignored = tg_call_temp(c, TG_I64, 0, target->shape);
    r->counts = tg_call_temp(c, TG_BOOL, target->ndim, target->shape);
    r->at = tg_call_temp(c, TG_I64, target->ndim, target->shape);
    r->picked = tg_call_temp(c, dtype, target->ndim, target->shape);
    r->weight = tg_call_temp(c, dtype, target->ndim, target->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(tg_ctx_ops(c->ctx)->fill(c->ctx, tg_array_of(ignored), (double)params(c)->ignore_index));
    TG_PUT(ne, r->counts, target, ignored);
    TG_PUT(where_da, r->at, r->counts, target);
    TG_TRY(read_classes(c, r));
    TG_PUT(where_da, r->picked, r->counts, r->picked);
    TG_PUT(where_da, r->weight, r->counts, r->weight);
    return TG_OK;
}

static tg_status sum(tg_call *c, const tg_tensor *out, const tg_tensor *x) {
    tg_extent e;
    tg_array to = tg_array_keep(tg_array_of(out), x->ndim, (1u << x->ndim) - 1, &e);
    return tg_ctx_ops(c->ctx)->reduce(c->ctx, TG_SUM, to, tg_array_of(x), 1, false);
}

static tg_status nll_forward(tg_call *c) {
    tg_tensor *y = c->out[0];
    rows r;
    TG_TRY(read_rows(c, &r));
    const tg_tensor *loss = params(c)->reduction == TG_LOSS_NONE ? y : r.picked;
    TG_PUT(neg, r.picked, r.picked);
    TG_PUT(mul, loss, r.picked, r.weight);
    if (params(c)->reduction == TG_LOSS_NONE) return TG_OK;
    TG_TRY(sum(c, y, loss));
    if (params(c)->reduction == TG_LOSS_SUM) return TG_OK;
    TG_TRY(sum(c, c->saved[TOTAL], r.weight));
    TG_PUT(div, y, y, c->saved[TOTAL]);
    return TG_OK;
}

/* Adds the value of each row to the gradient of x, at the class of the row. */
static tg_status put_x(tg_call *c, const tg_tensor *value, const rows *r) {
    tg_extent e[2];
    if (c->gin_mode[X] == TG_GRAD_WRITE) TG_TRY(tg_op_zero(c, X));
    return tg_ctx_ops(c->ctx)->put_add(c->ctx, tg_array_of(c->gin[X]), column(value, &e[0]), column(r->at, &e[1]),
                                       c->input[X]->ndim - 1, NULL);
}

/* Adds the values of all rows of each class to the gradient of w. */
static tg_status put_w(tg_call *c, const tg_tensor *value, const rows *r) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_extent e[2];
    tg_tensor *sums = tg_call_temp(c, (tg_dtype)value->dtype, 1, c->input[W]->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(ops->fill(c->ctx, tg_array_of(sums), 0));
    TG_TRY(ops->put_add(c->ctx, tg_array_of(sums), flat(value, &e[0]), flat(r->at, &e[1]), 0, NULL));
    return tg_op_map(c, TG_FN_id, c->gin[W], TG_T1(sums), 1, 0, 0, tg_adds(c, W));
}

/* Let L be the mean loss, and T the sum of weights by which it was divided. A row with target t gives -g w[t] / T to
 * gx[t], and adds g (-x[t] - L) / T to gw[t]. For TG_LOSS_SUM and TG_LOSS_NONE, T is 1 and L is 0. */
static tg_status nll_backward(tg_call *c) {
    bool mean = params(c)->reduction == TG_LOSS_MEAN;
    const tg_tensor *g = c->gout[0];
    rows r;
    TG_TRY(read_rows(c, &r));
    tg_tensor *share = tg_call_temp(c, (tg_dtype)g->dtype, g->ndim, g->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_PUT(neg, share, g);
    if (mean) TG_PUT(div, share, share, c->saved[TOTAL]);
    if (c->gin_mode[X]) {
        TG_PUT(mul, r.weight, r.weight, share);
        TG_PUT(where_da, r.weight, r.counts, r.weight);
        TG_TRY(put_x(c, r.weight, &r));
    }
    if (!c->gin_mode[W]) return TG_OK;
    if (mean) TG_PUT(add, r.picked, r.picked, c->out[0]);
    TG_PUT(mul, r.picked, r.picked, share);
    TG_PUT(where_da, r.picked, r.counts, r.picked);
    return put_w(c, r.picked, &r);
}

static tg_status nll_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const tg_elementwise_loss_params *p = tg_node_params(n);
    tg_tensor *const *in = tg_node_in(n), *x = tg_wide(t, in[X]);
    tg_tensor *ignored = tg_equals(t, in[TARGET], (double)p->ignore_index);
    tg_tensor *at = tg_masked_fill(t, in[TARGET], ignored, 0);
    tg_tensor *picked = tg_squeeze(t, tg_gather(t, x, -1, tg_unsqueeze(t, at, -1)), -1), *w;
    if (in[W]) {
        w = tg_index_select(t, tg_wide(t, in[W]), 0, tg_reshape(t, at, TG_SHAPE(-1)));
        w = tg_reshape(t, w, tg_shape_of(at));
    } else {
        w = tg_full(t, (tg_dtype)picked->dtype, tg_shape_of(at), 1);
    }
    w = tg_masked_fill(t, w, ignored, 0);
    tg_tensor *loss = tg_mul(t, w, tg_neg(t, tg_masked_fill(t, picked, ignored, 0)));
    if (p->reduction != TG_LOSS_NONE) loss = tg_sum(t, loss, TG_ALL_DIMS, false);
    if (p->reduction == TG_LOSS_MEAN) loss = tg_div(t, loss, tg_sum(t, w, TG_ALL_DIMS, false));
    out[0] = loss;
    return TG_OK;
}

TG_COMPOSED(nll)

#define OPTS(reduction_, ignore_) TG_LOSS_P(reduction_, .ignore_index = (ignore_))
#define WEIGHTS(...) TG_S_IN(0.5, 2, __VA_ARGS__)

static const tg_sample nll_samples[] = {
    {.note = "mean", .params = OPTS(MEAN, -100), .n_in = 3, .input = {TG_S(4, 5), TG_S_INDEX(5, 4), TG_S_ABSENT}},
    {.note = "sum", .params = OPTS(SUM, -100), .n_in = 3, .input = {TG_S(4, 5), TG_S_INDEX(5, 4), TG_S_ABSENT}},
    {.note = "one a row", .params = OPTS(NONE, -100), .n_in = 3,
     .input = {TG_S(2, 3, 4), TG_S_INDEX(4, 2, 3), TG_S_ABSENT}},
    {.note = "weights", .params = OPTS(MEAN, -100), .n_in = 3, .input = {TG_S(6, 3), TG_S_INDEX(3, 6), WEIGHTS(3)}},
    {.note = "weights, sum", .params = OPTS(SUM, -100), .n_in = 3,
     .input = {TG_S(2, 3, 3), TG_S_INDEX(3, 2, 3), WEIGHTS(3)}},
    {.note = "weights, one a row", .params = OPTS(NONE, 2), .n_in = 3,
     .input = {TG_S(6, 3), TG_S_INDEX(3, 6), WEIGHTS(3)}},
    {.note = "class 0 ignored", .params = OPTS(MEAN, 0), .n_in = 3,
     .input = {TG_S(12, 3), TG_S_INDEX(3, 12), TG_S_ABSENT}},
    {.note = "class 1 ignored, weights", .params = OPTS(MEAN, 1), .n_in = 3,
     .input = {TG_S(12, 3), TG_S_INDEX(3, 12), WEIGHTS(3)}},
    {.note = "constant weights", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S(4, 3), TG_S_INDEX(3, 4), {.shape = TG_S_SHAPE(3), .lo = 0.5, .hi = 2, .frozen = true}}},
    {.note = "transposed", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 5), TG_S_INDEX(5, 4), TG_S_ABSENT}},
    {.note = "strided", .params = OPTS(SUM, -100), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4),
            {.shape = TG_S_SHAPE(2, 3), .kind = TG_SAMPLE_INDEX, .layout = TG_SAMPLE_STRIDED, .hi = 4},
            {.shape = TG_S_SHAPE(4), .layout = TG_SAMPLE_STRIDED, .lo = 0.5, .hi = 2}}},
    {.note = "equal rows", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S_INDEX(4, 3), TG_S_ABSENT}},
    {.note = "one row", .params = OPTS(NONE, -100), .n_in = 3,
     .input = {TG_S(5), {.shape = {.ndim = 0}, .kind = TG_SAMPLE_INDEX, .hi = 5}, WEIGHTS(5)}},
    {.note = "one class", .params = OPTS(MEAN, -100), .n_in = 3, .input = {TG_S(3, 1), TG_S_INDEX(1, 3), TG_S_ABSENT}},
    {.note = "sum of no rows", .params = OPTS(SUM, -100), .n_in = 3,
     .input = {TG_S(0, 4), TG_S_INDEX(4, 0), WEIGHTS(4)}},
    {.note = "target of another shape", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_INDEX(5, 5), TG_S_ABSENT}, .refused = TG_ERR_SHAPE},
    {.note = "target of floats", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S(4, 5), TG_S(4), TG_S_ABSENT}, .refused = TG_ERR_DTYPE},
    {.note = "class out of range", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S(4, 5), {.shape = TG_S_SHAPE(4), .kind = TG_SAMPLE_INDEX, .lo = 5, .hi = 6}, TG_S_ABSENT},
     .refused = TG_ERR_DATA},
    {.note = "weights of another size", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_INDEX(5, 4), WEIGHTS(4)}, .refused = TG_ERR_SHAPE},
    {.note = "no classes", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S(2, 0), TG_S_INDEX(1, 2), TG_S_ABSENT}, .refused = TG_ERR_SHAPE},
    {.note = "no such reduction", .params = TG_LOSS_P(BATCH_MEAN, .ignore_index = -100), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_INDEX(5, 4), TG_S_ABSENT}, .refused = TG_ERR_ARGUMENT},
    {.note = "512 rows of 50257", .params = OPTS(MEAN, -100), .n_in = 3,
     .input = {TG_S(512, 50257), TG_S_INDEX(50257, 512), TG_S_ABSENT}, .bench = true},
};

static const tg_field nll_fields[] = {
    TG_ARG(tg_elementwise_loss_params, reduction, ENUM,
           "How the losses of the rows become the result.", .of = "tg_loss_reduction"),
    TG_ARG(tg_elementwise_loss_params, ignore_index, INT64, "The loss of rows with this target is 0."),
};

const tg_op tg_op_nll = {
    .size = sizeof(tg_op),
    .name = "nll",
    .formula = "-w[target] x[target]",
    .inputs = "x target w",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(tg_elementwise_loss_params),
    .saves_in = 7,
    .saves_out = 1,
    .optional = 4,
    .family = TG_FAMILY_LOSS,
    .infer = nll_infer,
    .forward = nll_forward,
    .backward = nll_backward,
    .vjp = nll_vjp,
    .jvp = nll_jvp,
    TG_FIELDS(nll_fields),
    .preset = OPTS(MEAN, -100),
    TG_SAMPLES(nll_samples),
};

/* Returns the negative log-likelihood of log-probabilities x [.., v] (as tg_log_softmax gives them) for classes
 * target [..], int64. The classes are the last dim. A row whose target is ignore_index does not count; any other
 * target outside [0, v) fails with TG_ERR_DATA. w [v] weighs the classes, 1 if NULL. The mean divides by the sum of
 * the weights of the rows that count, as in PyTorch; without such rows it is NaN with gradient 0. */
tg_tensor *tg_nll(tg_tape *t, tg_tensor *x, tg_tensor *target, tg_tensor *w, const tg_loss_opts *opts) {
    tg_elementwise_loss_params p = tg_elementwise_loss_params_of(opts, TG_LOSS_USES_IGNORE_INDEX);
    return TG_RECORD(t, tg_op_nll, &p, x, target, w);
}
