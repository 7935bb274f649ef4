/* The op vocab_parallel_cross_entropy: cross-entropy of logits whose classes (columns) are sharded over ranks
 * (Megatron-Core's _VocabParallelCrossEntropy). Let z be the log-sum-exp of a row over all ranks. The loss of the row
 * is z minus a weighted mean of its logits: without smoothing, the logit of its target. The gradient of a logit x is
 * exp(x - z) minus the weight of x in that mean, so backward needs no columns of other ranks. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "parallel/tp/vocab/vocab.h"

static const char discarded_by[] = "vocab_parallel_cross_entropy, in place";
static const char remedy[] = "pass whole logits to tg_cross_entropy; the target must be the same on every rank";

/* If in_place is set, fails unless backward may write the gradient over the logits: they are a result of this tape,
 * contiguous, no view and not in a named buffer, and no other handle uses their bytes. */
static tg_status check_in_place(tg_call *c) {
    const tg_tensor *x = c->input[0];
    if (!((const tg_row_loss_params *)c->params)->in_place) return TG_OK;
    if (x->storage->extra && x->storage->extra->buffer)
        return tg_call_fail(
            c, TG_ERR_STATE,
            "in_place is set, but the logits lie in a named buffer, which keeps its bytes; unset in_place");
    bool own = x->node && x->tape == c->tape && x->storage->temporary && !(x->flags & TG_F_VIEW);
    if (own && x->flags & TG_F_CONTIGUOUS && atomic_load(&x->storage->refs) == 1) return TG_OK;
    return tg_call_fail(c, TG_ERR_STATE,
                        "in_place is set, but the logits are a leaf, a view, not contiguous, or share their bytes with "
                        "another handle; unset in_place");
}

static tg_status vocab_cross_entropy_infer(tg_call *c) {
    const tg_tensor *x = c->input[0];
    TG_TRY(tg_need_float(c, 0));
    if (x->ndim < 1)
        return tg_call_fail(c, TG_ERR_SHAPE, "the logits are a scalar, expected [.., v/n] of 1 or more dims");
    TG_TRY(tg_vocab_loss_shard(c, x->shape[x->ndim - 1]));
    TG_TRY(tg_row_loss_infer(c, x->shape[x->ndim - 1]));
    if (c->needs) TG_TRY(check_in_place(c));
    return tg_vocab_loss_convert(c, 0, x->ndim - 1, remedy);
}

/* Returns columns [first, first + n) of x [.., v], which is contiguous, as an array [rows, n]. */
static tg_array columns(const tg_tensor *x, int64_t first, int64_t n, tg_extent *e) {
    int64_t v = x->shape[x->ndim - 1];
    char *data = tg_data(x);
    if (data) data += first * (int64_t)tg_dtype_size((tg_dtype)x->dtype);
    tg_array a = tg_rows_array(data, (tg_dtype)x->dtype, x->numel / v, n, e);
    e->stride[0] = v;
    a.contiguous = n == v;
    return a;
}

static tg_status vocab_cross_entropy_forward(tg_call *c) {
    const tg_row_loss_params *p = c->params;
    tg_tensor *x = c->input[0], *target = c->input[1], *rows, *parts;
    tg_extent e;
    TG_TRY(tg_op_dense(c, &x));
    TG_TRY(tg_op_dense(c, &target));
    TG_TRY(tg_vocab_loss_rows(c, &rows, &parts));
    TG_TRY(tg_row_loss_forward(c, columns(x, 0, p->columns, &e), target, parts, 0));
    return tg_vocab_loss_finish(c, rows);
}

/* Writes the gradient of the logits into glogits, or adds it if `add`. Columns that are padding get the gradient 0. */
static tg_status gradient_into(tg_call *c, const tg_tensor *glogits, bool add) {
    const tg_row_loss_params *p = c->params;
    tg_tensor *x = c->input[0], *target = c->input[1], *g;
    int64_t n = p->columns, v = x->shape[x->ndim - 1];
    tg_extent e, eg;
    TG_TRY(tg_op_dense(c, &x));
    TG_TRY(tg_op_dense(c, &target));
    TG_TRY(tg_vocab_loss_gradients(c, &g));
    TG_TRY(tg_row_loss_backward(c, columns(glogits, 0, n, &eg), columns(x, 0, n, &e), target, g, 0, add));
    if (add || n == v) return TG_OK;
    return tg_ctx_ops(c->ctx)->fill(c->ctx, columns(glogits, n, v - n, &eg), 0);
}

/* Writes the gradient over the logits, and makes it a tensor of its own that takes over their bytes. Afterwards the
 * logits have no bytes. */
static tg_status give_bytes(tg_call *c) {
    tg_tensor *x = c->input[0], *g = tg_call_view_of(c, x, 0, x->ndim, x->shape, x->stride);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(tg_storage_await_readers(x->storage));
    TG_TRY(gradient_into(c, x, false));
    tg_storage *bytes = tg_storage_take(x->storage, discarded_by, tg_call_site(c));
    if (!bytes) return c->ctx->run.status;
    tg_storage_unref(g->storage);
    g->storage = bytes;
    return tg_call_pass(c, 0, g);
}

static tg_status vocab_cross_entropy_backward(tg_call *c) {
    if (!c->gin_mode[0]) return TG_OK;
    bool in_place = ((const tg_row_loss_params *)c->params)->in_place;
    tg_storage *s = c->input[0]->storage;
    if (in_place && !(s->extra && s->extra->shared) && !tg_storage_pins(s)) return give_bytes(c);
    const tg_tensor *g = tg_call_gin(c, 0);
    TG_TRY(tg_ctx_status(c->ctx));
    TG_TRY(gradient_into(c, g, tg_adds(c, 0)));
    /* The bytes of these logits are not overwritten: the program has pinned them, or recomputation has made the logits
     * again, and an op of the recomputed function may have saved them. Unless they are pinned, the logits are
     * discarded, as they are without recomputation. */
    if (in_place) tg_storage_discard(s, discarded_by, tg_call_site(c));
    return TG_OK;
}

static tg_status vocab_cross_entropy_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    out[0] = tg_vocab_loss_compose(t, n, tg_node_input(n, 0));
    return TG_OK;
}

TG_COMPOSED(vocab_cross_entropy)

#define V_INDEX(v_, ...) TG_S_INDEX(v_, __VA_ARGS__)
static const tg_sample vocab_cross_entropy_samples[] = {
    {.note = "mean", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S(4, 5), V_INDEX(10, 4)}},
    {.note = "sum", .ranks = 3, .params = TG_VOCAB_P(-100, 0, SUM, .in_place = false), .n_in = 2,
     .input = {TG_S(4, 2), V_INDEX(6, 4)}},
    {.note = "one loss a row", .ranks = 4, .params = TG_VOCAB_P(-100, 0, NONE, .in_place = false), .n_in = 2,
     .input = {TG_S(2, 3, 4), V_INDEX(16, 2, 3)}},
    {.note = "smoothing, class 0 ignored", .ranks = 2, .params = TG_VOCAB_P(0, 0.1, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S(12, 2), V_INDEX(4, 12)}},
    {.note = "smoothing of the wrong classes", .ranks = 3,
     .params = TG_VOCAB_P(2, 0.2, NONE, .kind = TG_SMOOTHING_MEGATRON), .n_in = 2, .input = {TG_S(9, 1), V_INDEX(3,
                                                                                                                 9)}},
    {.note = "padding", .ranks = 4, .params = TG_VOCAB_P(-100, 0.1, SUM, .classes = 5), .n_in = 2,
     .input = {TG_S(6, 2), V_INDEX(5, 6)}},
    {.note = "transposed", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 5), V_INDEX(10, 4)}},
    {.note = "strided", .ranks = 2, .params = TG_VOCAB_P(-100, 0.1, SUM, .in_place = false), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4),
            {.shape = TG_S_SHAPE(2, 3), .kind = TG_SAMPLE_INDEX, .layout = TG_SAMPLE_STRIDED, .hi = 8}}},
    {.note = "equal rows", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), V_INDEX(8, 3)}},
    {.note = "large logits", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S_IN(-50, 50, 3, 6), V_INDEX(12, 3)}},
    {.note = "one row", .ranks = 2, .params = TG_VOCAB_P(-100, 0, NONE, .in_place = false), .n_in = 2,
     .input = {TG_S(5), {.shape = {.ndim = 0}, .kind = TG_SAMPLE_INDEX, .hi = 10}}},
    {.note = "sum of no rows", .ranks = 2, .params = TG_VOCAB_P(-100, 0, SUM, .in_place = false), .n_in = 2,
     .input = {TG_S(0, 4), V_INDEX(8, 0)}},
    {.note = "class out of range", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S(4, 5), {.shape = TG_S_SHAPE(4), .kind = TG_SAMPLE_INDEX, .lo = 10, .hi = 11}},
     .refused = TG_ERR_DATA},
    {.note = "a class that is padding", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .classes = 5), .n_in = 2,
     .input = {TG_S(4, 5), {.shape = TG_S_SHAPE(4), .kind = TG_SAMPLE_INDEX, .lo = 5, .hi = 6}},
         .refused = TG_ERR_DATA},
    {.note = "no classes", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S(4, 0), V_INDEX(1, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "too many classes", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .classes = 11), .n_in = 2,
     .input = {TG_S(4, 5), V_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
    {.note = "in place, a leaf", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = true), .n_in = 2,
     .input = {TG_S(4, 5), V_INDEX(5, 4)}, .refused = TG_ERR_STATE},
    {.note = "target of another shape", .ranks = 2, .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S(4, 5), V_INDEX(5, 5)}, .refused = TG_ERR_SHAPE},
    {.note = "no communicator", .params = TG_VOCAB_P(-100, 0, MEAN, .in_place = false), .n_in = 2,
     .input = {TG_S(4, 5), V_INDEX(5, 4)}, .refused = TG_ERR_ARGUMENT},
};

static const tg_field vocab_parallel_cross_entropy_fields[] = {
    TG_ARG_AS(tg_row_loss_params, comm, "c", POINTER, "The ranks that call the op together.",
              .of = "tg_comm", .required = true),
    TG_ARG(tg_row_loss_params, ignore_index, INT64, "The loss of rows with this target is 0."),
    TG_ARG_AS(tg_row_loss_params, smoothing, "label_smoothing", DOUBLE,
              "Share of the target that is spread over all classes, in [0, 1]."),
    TG_ARG_AS(tg_row_loss_params, kind, "smoothing_kind", ENUM, "How label_smoothing is spread.", .of = "tg_smoothing"),
    TG_ARG(tg_row_loss_params, reduction, ENUM, "How the losses of all rows become the result.",
           .of = "tg_loss_reduction"),
    TG_ARG(tg_row_loss_params, classes, INT64, "Number of classes over all ranks; -1: there is no padding."),
    TG_ARG(tg_row_loss_params, in_place, BOOL, "Backward writes the gradient of the logits over the logits."),
};

const tg_op tg_op_vocab_parallel_cross_entropy = {
    .size = sizeof(tg_op),
    .name = "vocab_parallel_cross_entropy",
    .formula = "log(sum(exp(x))) - x[target], classes over the group",
    .inputs = "logits target",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(tg_row_loss_params),
    .saves_in = 3,
    .passes = 1,
    .family = TG_FAMILY_LOSS,
    .collective = true,
    .infer = vocab_cross_entropy_infer,
    .forward = vocab_cross_entropy_forward,
    .backward = vocab_cross_entropy_backward,
    .vjp = vocab_cross_entropy_vjp,
    .jvp = vocab_cross_entropy_jvp,
    TG_FIELDS(vocab_parallel_cross_entropy_fields),
    .preset = TG_VOCAB_P(-100, 0, MEAN, .in_place = false),
    TG_SAMPLES(vocab_cross_entropy_samples),
};

/* Records the cross-entropy of logits [.., v/n], this rank's part of the classes. target [..] has global classes,
 * int64. The result is a scalar or [..], the same on every rank; it is float32 for 16-bit logits. The options of
 * tg_cross_entropy apply, except class weights. In addition, columns from `classes` on (counted over all ranks) are
 * padding: they do not count, and their gradient is 0.
 *
 * in_place gives the bytes of the logits to their gradient: the logits are discarded afterwards, and a second backward
 * fails. If a recomputation has made the logits again, they are discarded too, but their gradient has bytes of its own.
 * Pinned logits keep their values. Logits that need a gradient are refused if backward may not write over them.
 *
 * With TG_SMOOTHING_MEGATRON_PARTITION each rank has a different loss. Forward saves the logits and two numbers per
 * row. It runs two all-reduces, of one and of two numbers per row; backward runs none. opts may be NULL. */
tg_tensor *tg_vocab_parallel_cross_entropy(tg_tape *t, tg_tensor *logits, tg_tensor *target, tg_comm *c,
                                           const tg_vocab_opts *opts) {
    tg_row_loss_params p = tg_vocab_loss_params(c, opts);
    return TG_RECORD(t, tg_op_vocab_parallel_cross_entropy, &p, logits, target);
}
