/* A linear head and its cross-entropy in one op: cross_entropy(x w^T, target) for x [.., h] and w [v, h]. The op
 * computes the logits of a chunk of rows at a time (chunked_head.h). */
#include "ops/common/derive.h"
#include "ops/common/chunked_head.h"

static tg_status linear_cross_entropy_infer(tg_call *c) {
    if (((const tg_row_loss_params *)c->params)->weighted)
        return tg_call_fail(c, TG_ERR_UNSUPPORTED, "weights of classes are given, which this op does not support; use "
                            "tg_linear and tg_cross_entropy");
    return tg_chunked_head_infer(c);
}

static tg_status linear_cross_entropy_forward(tg_call *c) {
    tg_tensor *loss;
    TG_TRY(tg_row_loss_buffer(c, &loss));
    TG_TRY(tg_chunked_head_forward(c, loss));
    return tg_row_loss_reduce(c, c->input[2], loss);
}

static tg_status linear_cross_entropy_backward(tg_call *c) {
    tg_tensor *row_grads;
    TG_TRY(tg_row_loss_gradients(c, &row_grads));
    return tg_chunked_head_backward(c, row_grads);
}

static tg_status linear_cross_entropy_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    tg_tensor *x = tg_wide(t, tg_node_in(n)[0]), *w = tg_wide(t, tg_node_in(n)[1]);
    out[0] = tg_row_loss_compose(t, n, tg_linear(t, x, w, NULL));
    return TG_OK;
}

TG_COMPOSED(linear_cross_entropy)

static const tg_sample linear_cross_entropy_samples[] = {
    {.note = "mean", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(5, 4)}},
    {.note = "sum", .params = TG_ROW_LOSS(-100, 0, SUM), .n_in = 3,
     .input = {TG_S(2, 2, 3), TG_S(5, 3), TG_S_INDEX(5, 2, 2)}},
    {.note = "one loss a row", .params = TG_ROW_LOSS(-100, 0, NONE), .n_in = 3,
     .input = {TG_S(2, 3, 4), TG_S(3, 4), TG_S_INDEX(3, 2, 3)}},
    {.note = "smoothing, class 0 ignored", .params = TG_ROW_LOSS(0, 0.1, MEAN), .n_in = 3,
     .input = {TG_S(12, 2), TG_S(3, 2), TG_S_INDEX(3, 12)}},
    {.note = "smoothing of the wrong classes", .params = TG_ROW_LOSS_AS(-100, 0.1, MEAN, MEGATRON), .n_in = 3,
     .input = {TG_S(4, 2), TG_S(5, 2), TG_S_INDEX(5, 4)}},
    {.note = "several chunks", .params = TG_ROW_LOSS(1, 0.1, MEAN), .n_in = 3,
     .input = {TG_S(1030, 1), TG_S(2049, 1), TG_S_INDEX(2049, 1030)}, .slow = true},
    {.note = "other strides", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3), TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 3), TG_S_INDEX(5, 4)}},
    {.note = "strided", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 2, 3), TG_S_AS(TG_SAMPLE_STRIDED, 4, 3), TG_S_INDEX(4, 2, 2)}},
    {.note = "equal rows", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(2, 4), TG_S_INDEX(2, 3)}},
    {.note = "one row, one class", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(1, 3), TG_S(1, 3), TG_S_INDEX(1, 1)}},
    {.note = "h = 0", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(2, 0), TG_S(3, 0), TG_S_INDEX(3, 2)}},
    {.note = "sum of no rows", .params = TG_ROW_LOSS(-100, 0, SUM), .n_in = 3,
     .input = {TG_S(0, 4), TG_S(3, 4), TG_S_INDEX(3, 0)}},
    {.note = "h differs", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 4), TG_S_INDEX(5, 4)},
     .refused = TG_ERR_SHAPE},
    {.note = "target of another shape", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(5, 4, 1)},
     .refused = TG_ERR_SHAPE},
    {.note = "class out of range", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 3), {.shape = TG_S_SHAPE(4), .kind = TG_SAMPLE_INDEX, .lo = -1, .hi = 0}},
     .refused = TG_ERR_DATA},
    {.note = "no such reduction", .n_in = 3,
     .params = &(const tg_row_loss_params){
         .size = sizeof(size_t), .known = sizeof(size_t), .reduction = (tg_loss_reduction)7},
     .input = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "256 x 768 over 50257", .params = TG_ROW_LOSS(-100, 0, MEAN), .n_in = 3,
     .input = {TG_S(256, 768), TG_S(50257, 768), TG_S_INDEX(50257, 256)}, .bench = true},
};

const tg_op tg_op_linear_cross_entropy = {
    .size = sizeof(tg_op),
    .name = "linear_cross_entropy",
    .formula = "cross_entropy(x w^T, target)",
    .inputs = "x w target",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(tg_row_loss_params),
    .saves_in = 7,
    .family = TG_FAMILY_LOSS,
    .sums_f32 = true,
    .infer = linear_cross_entropy_infer,
    .forward = linear_cross_entropy_forward,
    .backward = linear_cross_entropy_backward,
    .vjp = linear_cross_entropy_vjp,
    .jvp = linear_cross_entropy_jvp,
    .flops = tg_chunked_head_flops,
    TG_ROW_LOSS_FIELDS,
    .preset = TG_ROW_LOSS(-100, 0, MEAN),
    TG_SAMPLES(linear_cross_entropy_samples),
};

/* Returns cross_entropy(x w^T, target) for x [.., h], w [v, h] and target [..]: the head and the loss of a language
 * model. Forward and backward have the logits of one chunk of rows at a time. The op saves its inputs, two numbers per
 * row and the logits of the last chunk; backward computes the logits of the other chunks again. The logits of 16-bit
 * inputs are float32. Options and results are those of tg_cross_entropy, but class weights fail with
 * TG_ERR_UNSUPPORTED. */
tg_tensor *tg_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                   const tg_cross_entropy_opts *opts) {
    tg_row_loss_params p = tg_row_loss_params_of(opts);
    return TG_RECORD(t, tg_op_linear_cross_entropy, &p, x, w, target);
}
