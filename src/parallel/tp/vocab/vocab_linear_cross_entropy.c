/* The op vocab_parallel_linear_cross_entropy: vocab_parallel_cross_entropy(x @ w^T, target), where x is [.., h] and w
 * is [v/n, h]. It computes the logits of a few rows at a time (chunked_head.h). Each rank's gradient of x is the
 * contribution of its own classes; the whole gradient is the sum over ranks. */
#include "ops/common/derive.h"
#include "ops/common/chunked_head.h"
#include "parallel/tp/vocab/vocab.h"

static tg_status vocab_linear_infer(tg_call *c) {
    const tg_row_loss_params *p = c->params;
    const tg_tensor *w = c->input[1];
    TG_TRY(tg_mapping_check(c));
    if (p->in_place)
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "in_place is set, but this op keeps no logits to overwrite; unset in_place");
    TG_TRY(tg_vocab_loss_shard(c, w->ndim ? w->shape[0] : 0));
    TG_TRY(tg_chunked_head_infer(c));
    tg_placement to = tg_row_loss_by_partition(p) ? tg_at_v : tg_at_i;
    TG_TRY(tg_call_convert(c, 0, tg_at_r, 0, to, p->comm, "pass x to tg_copy_to_tp first"));
    return tg_vocab_loss_convert(c, 1, 0,
                                 "w must be this rank's rows of the vocabulary, and the target the same on every rank");
}

static tg_status vocab_linear_forward(tg_call *c) {
    tg_tensor *rows, *parts;
    TG_TRY(tg_vocab_loss_rows(c, &rows, &parts));
    TG_TRY(tg_chunked_head_forward(c, parts));
    return tg_vocab_loss_finish(c, rows);
}

static tg_status vocab_linear_backward(tg_call *c) {
    tg_tensor *row_grads;
    TG_TRY(tg_vocab_loss_gradients(c, &row_grads));
    return tg_chunked_head_backward(c, row_grads);
}

static tg_status vocab_linear_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    tg_tensor *x = tg_wide(t, tg_node_input(n, 0)), *w = tg_wide(t, tg_node_input(n, 1));
    out[0] = tg_vocab_loss_compose(t, n, tg_linear(t, x, w, NULL));
    return TG_OK;
}

TG_COMPOSED(vocab_linear)

static const tg_sample vocab_linear_samples[] = {
    {.note = "mean", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(10, 4)}},
    {.note = "sum", .ranks = 3, .params = TG_VOCAB_P(-100, 0, SUM, .in_place = false), .n_in = 3,
     .input = {TG_S(2, 2, 3), TG_S(2, 3), TG_S_INDEX(6, 2, 2)}},
    {.note = "one loss a row", .ranks = 4, .params = TG_VOCAB_P(-100, 0, NONE, .in_place = false), .n_in = 3,
     .input = {TG_S(2, 3, 4), TG_S(3, 4), TG_S_INDEX(12, 2, 3)}},
    {.note = "smoothing, class 0 ignored", .ranks = 2, .params = TG_VOCAB_P(0, 0.1, MEAN, .in_place = false), .n_in = 3,
     .input = {TG_S(12, 2), TG_S(2, 2), TG_S_INDEX(4, 12)}},
    {.note = "smoothing of the wrong classes", .ranks = 3,
     .params = TG_VOCAB_P(2, 0.2, NONE, .kind = TG_SMOOTHING_MEGATRON), .n_in = 3,
     .input = {TG_S(9, 2), TG_S(2, 2), TG_S_INDEX(6, 9)}},
    {.note = "padding", .ranks = 4, .params = TG_VOCAB_P(-100, 0.1, SUM, .classes = 5), .n_in = 3,
     .input = {TG_S(6, 3), TG_S(2, 3), TG_S_INDEX(5, 6)}},
    {.note = "other strides", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3), TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 3), TG_S_INDEX(10, 4)}},
    {.note = "sum of no rows", .ranks = 2, .params = TG_VOCAB_P(-100, 0, SUM, .in_place = false), .n_in = 3,
     .input = {TG_S(0, 4), TG_S(3, 4), TG_S_INDEX(6, 0)}},
    {.note = "several chunks", .ranks = 2, .params = TG_VOCAB_P(1, 0.1, MEAN, .in_place = false), .n_in = 3,
     .input = {TG_S(1030, 1), TG_S(2049, 1), TG_S_INDEX(4098, 1030)}, .slow = true},
    {.note = "class out of range", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 3), {.shape = TG_S_SHAPE(4), .kind = TG_SAMPLE_INDEX, .lo = -1, .hi = 0}},
     .refused = TG_ERR_DATA},
    {.note = "no classes", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(0, 3), TG_S_INDEX(1, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "h differs", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 4), TG_S_INDEX(5, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "in place", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = true), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "no communicator", .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 3,
     .input = {TG_S(4, 3), TG_S(5, 3), TG_S_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
};

static const tg_field vocab_parallel_linear_cross_entropy_fields[] = {
    TG_ARG_AS(tg_row_loss_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
    TG_ARG(tg_row_loss_params, ignore_index, INT64, "The loss of rows with this target is 0."),
    TG_ARG_AS(tg_row_loss_params, smoothing, "label_smoothing", DOUBLE,
              "Share of the target that is spread over all classes, in [0, 1]."),
    TG_ARG_AS(tg_row_loss_params, kind, "smoothing_kind", ENUM, "How label_smoothing is spread.", .of = "tg_smoothing"),
    TG_ARG(tg_row_loss_params, reduction, ENUM, "How the losses of all rows become the result.",
           .of = "tg_loss_reduction"),
    TG_ARG(tg_row_loss_params, classes, INT64, "Number of classes over all ranks; -1: there is no padding."),
};

const tg_op tg_op_vocab_parallel_linear_cross_entropy = {
    .size = sizeof(tg_op),
    .name = "vocab_parallel_linear_cross_entropy",
    .formula = "vocab_parallel_cross_entropy(x w^T, target)",
    .inputs = "x w target",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(tg_row_loss_params),
    .saves_in = 7,
    .family = TG_FAMILY_LOSS,
    .sums_f32 = true,
    .collective = true,
    .infer = vocab_linear_infer,
    .forward = vocab_linear_forward,
    .backward = vocab_linear_backward,
    .vjp = vocab_linear_vjp,
    .jvp = vocab_linear_jvp,
    .flops = tg_chunked_head_flops,
    TG_FIELDS(vocab_parallel_linear_cross_entropy_fields),
    .preset = TG_VOCAB_P(-100, 0, MEAN, .in_place = false),
    TG_SAMPLES(vocab_linear_samples),
};

/* Records tg_vocab_parallel_cross_entropy of the logits x @ w^T, where x [.., h] is R, and w [v/n, h] has this rank's
 * rows of the vocabulary. Computes the logits in chunks of rows, as tg_linear_cross_entropy does; the ranks exchange
 * their results once, for all chunks together. The gradient of x is this rank's addend of a sum over ranks. in_place is
 * refused. opts may be NULL. */
tg_tensor *tg_vocab_parallel_linear_cross_entropy(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *target,
                                                  tg_comm *c, const tg_vocab_opts *opts) {
    tg_row_loss_params p = tg_vocab_loss_params(c, opts);
    return TG_RECORD(t, tg_op_vocab_parallel_linear_cross_entropy, &p, x, w, target);
}
