/* Cross-entropy of logits with class targets. For a row x of logits [.., v], target t and smoothing s the loss is
 * (1 - s) (lse - x[t]) + s (lse - mean(x)), where lse is log(sum(exp(x))). */
#include "ops/common/derive.h"
#include "ops/common/row_loss.h"
#include "ops/common/nn_op.h"

static tg_status cross_entropy_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_float(c, 0));
    if (x->ndim < 1) return tg_call_fail(c, TG_ERR_SHAPE, "logits is a scalar; it must be [.., v] with 1 or more dims");
    TG_TRY(tg_class_weights_infer(c, x->shape[x->ndim - 1]));
    return tg_row_loss_infer(c, x->shape[x->ndim - 1]);
}

/* Views contiguous x [.., v] as rows. */
static tg_array rows_of(const tg_tensor *x, tg_extent *e) {
    int64_t v = x->shape[x->ndim - 1];
    return tg_rows_array(tg_data(x), (tg_dtype)x->dtype, x->numel / v, v, e);
}

static tg_status cross_entropy_forward(tg_call *c) {
    tg_tensor *x = c->input[0], *target = c->input[2], *loss;
    tg_extent e;
    TG_TRY(tg_op_dense(c, &x));
    TG_TRY(tg_op_dense(c, &target));
    TG_TRY(tg_row_loss_buffer(c, &loss));
    TG_TRY(tg_row_loss_forward(c, rows_of(x, &e), target, loss, 0));
    if (((const tg_row_loss_params *)c->params)->weighted) TG_TRY(tg_class_weights_forward(c, x, target, loss));
    return tg_row_loss_reduce(c, target, loss);
}

/* Without class weights: glogits (+)= (softmax(x) - (1 - s) onehot(t) - s / v) gloss; 0 in ignored rows. */
static tg_status cross_entropy_backward(tg_call *c) {
    tg_tensor *x = c->input[0], *target = c->input[2], *g;
    tg_extent e, eg;
    if (!c->gin_mode[0]) return TG_OK;
    TG_TRY(tg_op_dense(c, &x));
    TG_TRY(tg_op_dense(c, &target));
    TG_TRY(tg_row_loss_gradients(c, &g));
    if (((const tg_row_loss_params *)c->params)->weighted)
        return tg_class_weights_backward(c, c->gin[0], x, target, g, tg_adds(c, 0));
    return tg_row_loss_backward(c, rows_of(c->gin[0], &eg), rows_of(x, &e), target, g, 0, tg_adds(c, 0));
}

static tg_status cross_entropy_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    out[0] = tg_row_loss_compose(t, n, tg_node_in(n)[0]);
    return TG_OK;
}

TG_COMPOSED(cross_entropy)

#define WEIGHTS(n_) {.shape = TG_S_SHAPE(n_), .layout = TG_SAMPLE_STRIDED, .lo = 0.5, .hi = 2, .frozen = true}
static const tg_sample cross_entropy_samples[] = {
    {.note = "mean", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_ABSENT, TG_S_INDEX(5, 4)}},
    {.note = "sum", .params = TG_ROW_LOSS(-100, 0, SUM), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_ABSENT, TG_S_INDEX(5, 4)}},
    {.note = "one loss a row", .params = TG_ROW_LOSS(-100, 0, NONE), .n_in = 3,
     .input = {TG_S(2, 3, 4), TG_S_ABSENT, TG_S_INDEX(4, 2, 3)}},
    {.note = "smoothing, class 0 ignored", .params = TG_ROW_LOSS(0, 0.1, MEAN), .n_in = 3,
     .input = {TG_S(12, 3), TG_S_ABSENT, TG_S_INDEX(3, 12)}},
    {.note = "ignored rows give 0", .params = TG_ROW_LOSS(1, 0.2, NONE), .n_in = 3,
     .input = {TG_S(3, 4, 2), TG_S_ABSENT, TG_S_INDEX(2, 3, 4)}},
    {.note = "smoothing alone", .params = TG_ROW_LOSS(-100, 1, SUM), .n_in = 3,
     .input = {TG_S(3, 4), TG_S_ABSENT, TG_S_INDEX(4, 3)}},
    {.note = "smoothing of the wrong classes", .params = TG_ROW_LOSS_AS(-100, 0.1, SUM, MEGATRON), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_ABSENT, TG_S_INDEX(5, 4)}},
    {.note = "all on the wrong classes", .params = TG_ROW_LOSS_AS(-100, 1, SUM, MEGATRON_PARTITION), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_ABSENT, TG_S_INDEX(5, 4)}},
    {.note = "no wrong class", .params = TG_ROW_LOSS_AS(-100, 0.1, SUM, MEGATRON), .n_in = 3,
     .input = {TG_S(4, 1), TG_S_ABSENT, TG_S_INDEX(1, 4)}},
    {.note = "transposed", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 5), TG_S_ABSENT, TG_S_INDEX(5, 4)}},
    {.note = "strided", .params = TG_ROW_LOSS(-100, 0.1, MEAN), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S_ABSENT,
            {.shape = TG_S_SHAPE(2, 3), .kind = TG_SAMPLE_INDEX, .layout = TG_SAMPLE_STRIDED, .hi = 4}}},
    {.note = "equal rows", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S_ABSENT, TG_S_INDEX(4, 3)}},
    {.note = "large logits", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S_IN(-50, 50, 3, 6), TG_S_ABSENT, TG_S_INDEX(6, 3)}},
    {.note = "one row", .params = TG_ROW_LOSS(-100, 0, NONE), .n_in = 3,
     .input = {TG_S(5), TG_S_ABSENT, {.shape = {.ndim = 0}, .kind = TG_SAMPLE_INDEX, .hi = 5}}},
    {.note = "one class", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(3, 1), TG_S_ABSENT, TG_S_INDEX(1, 3)}},
    {.note = "sum of no rows", .params = TG_ROW_LOSS(-100, 0, SUM), .n_in = 3,
     .input = {TG_S(0, 4), TG_S_ABSENT, TG_S_INDEX(4, 0)}},
    {.note = "weights", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 5), WEIGHTS(5), TG_S_INDEX(5, 4)}},
    {.note = "weights, smoothing, class 0 ignored", .params = TG_ROW_LOSS(0, 0.2, MEAN), .n_in = 3,
     .input = {TG_S(12, 3), WEIGHTS(3), TG_S_INDEX(3, 12)}},
    {.note = "weights, smoothing, one loss a row", .params = TG_ROW_LOSS(1, 0.1, NONE), .n_in = 3,
     .input = {TG_S(2, 3, 4), WEIGHTS(4), TG_S_INDEX(4, 2, 3)}},
    {.note = "weights, smoothing of the wrong classes", .params = TG_ROW_LOSS_AS(-100, 0.1, SUM, MEGATRON), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 4, 5), WEIGHTS(5), TG_S_INDEX(5, 4)}},
    {.note = "weights, no rows", .params = TG_ROW_LOSS(-100, 0.1, SUM), .n_in = 3,
     .input = {TG_S(0, 5), WEIGHTS(5), TG_S_INDEX(5, 0)}},
    {.note = "weights of other classes", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 5), WEIGHTS(4), TG_S_INDEX(5, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "weights with a gradient", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 5), TG_S(5), TG_S_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "target of another shape", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_ABSENT, TG_S_INDEX(5, 5)},
     .refused = TG_ERR_SHAPE},
    {.note = "target of floats", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_ABSENT, TG_S(4)}, .refused = TG_ERR_DTYPE},
    {.note = "class out of range", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_ABSENT, {.shape = TG_S_SHAPE(4), .kind = TG_SAMPLE_INDEX, .lo = 5, .hi = 6}},
     .refused = TG_ERR_DATA},
    {.note = "no classes", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(2, 0), TG_S_ABSENT, TG_S_INDEX(1, 2)}, .refused = TG_ERR_SHAPE},
    {.note = "smoothing above 1", .params = TG_ROW_LOSS(-100, 1.5, MEAN), .n_in = 3,
     .input = {TG_S(4, 5), TG_S_ABSENT, TG_S_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "no such smoothing", .n_in = 3,
     .params = &(const tg_row_loss_params){.size = sizeof(size_t), .known = sizeof(size_t), .kind = (tg_smoothing)3},
     .input = {TG_S(4, 5), TG_S_ABSENT, TG_S_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "512 rows of 50257", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(512, 50257), TG_S_ABSENT, TG_S_INDEX(50257, 512)},
     .bench = true},
};

const tg_op tg_op_cross_entropy = {
    .size = sizeof(tg_op),
    .name = "cross_entropy",
    .formula = "log(sum(exp(x))) - x[target]",
    .inputs = "logits weight target",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(tg_row_loss_params),
    .saves_in = 7,
    .optional = 2,
    .family = TG_FAMILY_LOSS,
    .infer = cross_entropy_infer,
    .forward = cross_entropy_forward,
    .backward = cross_entropy_backward,
    .vjp = cross_entropy_vjp,
    .jvp = cross_entropy_jvp,
    TG_ROW_LOSS_FIELDS,
    .preset = TG_ROW_LOSS(-100, 0, MEAN),
    TG_SAMPLES(cross_entropy_samples),
};

/* Returns the cross-entropy of logits [.., v] with the classes in target [..], int64. A row whose target is
 * ignore_index does not count; any other target outside [0, v) fails with TG_ERR_DATA. Smoothing s takes probability s
 * from the target, and gives s / v to every class, as in PyTorch, or s / (v - 1) to every wrong class, as in
 * Megatron-Core. The mean divides by the number of rows that count; if there are none it is NaN, as in PyTorch, and the
 * gradient is 0. With class weights, the term of each class in a row's loss is multiplied by the weight of the class,
 * and the mean divides by the sum of the targets' weights. The loss is float32 for 16-bit logits, float64 for float64.
 * The op saves its inputs and two numbers per row, or three with class weights. opts may be NULL. */
tg_tensor *tg_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, const tg_cross_entropy_opts *opts) {
    tg_row_loss_params p = tg_row_loss_params_of(opts);
    return TG_RECORD(t, tg_op_cross_entropy, &p, logits, tg_class_weights_of(opts), target);
}
