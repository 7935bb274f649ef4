/* The linear layer of tensor parallelism. Its backward overlaps the communication of the input gradient with the
 * product of the weight gradient (Megatron-Core's LinearWithGradAccumulationAndAsyncCommunication; Shoeybi et al.,
 * arXiv 1909.08053; sequence parallelism: Korthikanti et al., arXiv 2205.05198). */
#include "base/options.h"
#include "ops/common/derive.h"
#include "parallel/tp/linear_call.h"

static tg_status linear_infer(tg_call *c) {
    if (!tg_needs(c, TG_LINEAR_W)) c->saves_in &= ~(1u << TG_LINEAR_X);
    if (!tg_needs(c, TG_LINEAR_X)) c->saves_in &= ~(1u << TG_LINEAR_W);
    return tg_linear_call_infer(c, c->params);
}

static tg_status linear_forward(tg_call *c) { return tg_linear_product(c, c->params, c->input[TG_LINEAR_X]); }

/* Computes gx = gy w. If one reduction over ranks must follow, sets *part to gx, this rank's contribution. Otherwise
 * writes or adds the gradient of x, and sets *part to NULL. */
static tg_status dgrad(tg_call *c, tg_tensor **part) {
    const tg_linear_params *p = c->params;
    bool one = tg_linear_reduces(p) && !tg_linear_rings(p);
    tg_tensor *gx = one ? NULL : tg_call_gin(c, TG_LINEAR_X);
    *part = one ? tg_linear_part(c) : NULL;
    TG_TRY(c->ctx->run.status);
    if (one) return TG_OK;
    if (tg_linear_rings(p)) return tg_linear_ring_dgrad(c, p, gx, tg_adds(c, TG_LINEAR_X));
    return tg_linear_dgrad(c->gout[0], c->input[TG_LINEAR_W], gx, tg_adds(c, TG_LINEAR_X));
}

/* Starts the reduction of `part` over the ranks, and makes its result the gradient of x without waiting for it. */
static tg_status reduce_dgrad(tg_call *c, tg_tensor *part) {
    tg_tensor *g;
    TG_TRY(tg_linear_reduce(c, c->params, part, &g));
    return tg_call_in_flight(c, TG_LINEAR_X, g, NULL);
}

/* Overlaps communication with products: the gather of x runs during the product of the input gradient, and the
 * reduction of the input gradient during the product of the weight gradient. The product of the weight gradient adds
 * straight into the accumulated gradient if the weight is a leaf. now: this call computes that product. */
static tg_status linear_backward(tg_call *c) {
    const tg_linear_params *p = c->params;
    tg_tensor *x = c->input[TG_LINEAR_X], *part = NULL;
    bool now = tg_linear_wgrad_is_due(c, x, c->gout[0], p->sequence_parallel ? p->comm : NULL);
    TG_TRY(c->ctx->run.status);
    if (now) TG_TRY(tg_linear_all_rows(c, p, &x));
    if (c->gin_mode[TG_LINEAR_X]) TG_TRY(dgrad(c, &part));
    if (now) TG_TRY(tg_storage_need(x->storage, x));
    if (part) TG_TRY(reduce_dgrad(c, part));
    if (now) {
        TG_TRY(tg_linear_add_wgrad(c, x, c->gout[0]));
        tg_linear_drop_rows(c, p, x);
    }
    return c->input[TG_LINEAR_B] ? tg_op_sum_to(c, TG_LINEAR_B, c->gout[0], 1) : TG_OK;
}

/* Records the layer as separate ops. */
static tg_status linear_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    tg_tensor *const *in = tg_node_in(n);
    out[0] = tg_linear_compose(t, tg_node_params(n), in[TG_LINEAR_X], in[TG_LINEAR_W], in[TG_LINEAR_B]);
    return TG_OK;
}

TG_COMPOSED(linear)

static const tg_linear_params plain = {.chunks = 1}, fused = {.fused = true, .chunks = 1},
                           both = {.sequence_parallel = true, .allreduce_dgrad = true, .chunks = 1},
                           alone = {.allreduce_dgrad = true, .chunks = 1}, divided = {.chunks = 2}, none = {0};

#define SAMPLE(p_, note_, ...)                                                                                         \
    { .note = note_, .params = &(p_), .n_in = 3, __VA_ARGS__ }
static const tg_sample samples[] = {
    SAMPLE(plain, "rows", .input = {TG_S(4, 3), TG_S(5, 3), TG_S(5)}),
    SAMPLE(plain, "no bias", .input = {TG_S(4, 3), TG_S(2, 3), TG_S_ABSENT}),
    SAMPLE(plain, "leading dims", .input = {TG_S(2, 3, 4), TG_S(5, 4), TG_S(5)}),
    SAMPLE(plain, "one vector", .input = {TG_S(4), TG_S(3, 4), TG_S(3)}),
    SAMPLE(
        plain, "no unit strides",
        .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 5, 4), TG_S_AS(TG_SAMPLE_STRIDED,
                                                                                                 5)}),
    SAMPLE(plain, "transposed",
           .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 4), TG_S(5)}),
    SAMPLE(plain, "frozen weight", .input = {TG_S(4, 3), {.shape = TG_S_SHAPE(5, 3), .frozen = true}, TG_S(5)}),
    SAMPLE(plain, "frozen input", .input = {{.shape = TG_S_SHAPE(4, 3), .frozen = true}, TG_S(5, 3), TG_S(5)}),
    SAMPLE(plain, "in = out = 1", .input = {TG_S(1, 1), TG_S(1, 1), TG_S(1)}),
    SAMPLE(plain, "in = 0 leaves the bias", .input = {TG_S(2, 0), TG_S(3, 0), TG_S(3)}),
    SAMPLE(plain, "no rows", .input = {TG_S(0, 3), TG_S(2, 3), TG_S(2)}),
    SAMPLE(plain, "rows differ", .input = {TG_S(4, 3), TG_S(3, 4), TG_S_ABSENT}, .refused = TG_ERR_SHAPE),
    SAMPLE(plain, "bias of in", .input = {TG_S(4, 3), TG_S(5, 3), TG_S(3)}, .refused = TG_ERR_SHAPE),
    SAMPLE(plain, "scalar x", .input = {TG_S_SCALAR, TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_SHAPE),
    SAMPLE(plain, "integer w", .input = {TG_S(2, 3), TG_S_INDEX(3, 2, 3), TG_S_ABSENT}, .refused = TG_ERR_DTYPE),
    SAMPLE(both, "reduced in two ways", .input = {TG_S(4, 3), TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(alone, "reduced over no ranks", .input = {TG_S(4, 3), TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(divided, "chunks of no gather", .input = {TG_S(4, 3), TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(none, "no chunks", .input = {TG_S(4, 3), TG_S(5, 3), TG_S_ABSENT}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(fused, "512 x 768 to 3072", .input = {TG_S(512, 768), TG_S(3072, 768), TG_S(3072)}, .bench = true),
};

static const tg_field linear_fields[] = {
    TG_ARG_AS(tg_linear_params, comm, "c", POINTER, "The ranks that call the op together.", .of = "tg_comm"),
    TG_ARG(tg_linear_params, sequence_parallel, BOOL, "x has only this rank's rows of dim 0."),
    TG_ARG(tg_linear_params, allreduce_dgrad, BOOL, "Backward sums the gradient of x over the ranks."),
    TG_ARG_AS(tg_linear_params, fused, "fused_wgrad", BOOL, "w must be a leaf if it needs a gradient."),
    TG_ARG(tg_linear_params, chunks, INT, "Number of messages that carry a rank's rows; 1: one collective."),
};

const tg_op tg_op_LinearWithGradAccumulationAndAsyncCommunication = {
    .size = sizeof(tg_op),
    .name = "LinearWithGradAccumulationAndAsyncCommunication",
    .alias = "linear_with_grad_accumulation",
    .formula = "x w^T + b; backward overlaps communication and products",
    .inputs = "x w b",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(tg_linear_params),
    .saves_in = 3,
    .optional = 4,
    .passes = 7,
    .family = TG_FAMILY_LINEAR,
    .sums_f32 = true,
    .collective = true,
    .infer = linear_infer,
    .forward = linear_forward,
    .backward = linear_backward,
    .vjp = linear_vjp,
    .jvp = linear_jvp,
    .flops = tg_linear_call_flops,
    TG_FIELDS(linear_fields),
    .preset = &plain,
    TG_SAMPLES(samples),
};

/* Reads and checks the options. who: the public function. frozen: whether it is tg_linear_with_frozen_weight. */
static tg_status options(tg_tape *t, tg_tensor *const xw[2], const tg_linear_grad_opts *given, bool frozen,
                         const char *who, tg_linear_grad_opts *o) {
    TG_TRY(tg_tape_check_with(t, xw, 2, who));
    TG_TRY(tg_options(t->ctx, o, &tg_linear_grad_opts_struct, given, who));
    if (frozen && (o->deferred || o->fused_wgrad))
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: %s is set, but a frozen weight has no gradient", who,
                       o->deferred ? "deferred" : "fused_wgrad");
    return tg_wgrads_check(o->deferred, t, "tg_linear_with_grad_accumulation: opts.deferred"); /* NULL if frozen */
}

static tg_tensor *record(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *comm,
                         const tg_linear_grad_opts *given, bool frozen, const char *who, const void *site) {
    tg_linear_grad_opts o;
    tg_tensor *const xw[] = {x, w};
    if (tg_comm_note_missed(comm, options(t, xw, given, frozen, who, &o)) != TG_OK) return tg_tape_inert(t, xw, 2);
    if (frozen && tg_requires_grad(w)) w = tg_detach(t, w);
    tg_linear_params p = tg_linear_params_of(comm, &o);
    tg_tensor *y = tg_inert(t->ctx);
    tg_apply(t, &tg_op_LinearWithGradAccumulationAndAsyncCommunication, &p, (tg_tensor *const[]){x, w, b}, 3, &y, 1,
             o.deferred ? tg_wgrads_keep(o.deferred) : NULL, tg_wgrads_drop, site);
    return y;
}

/* Records the linear layer x @ w^T + b, whose input gradient is reduced over ranks during the product of the weight
 * gradient (tensor_parallel.h). The node saves x only if w needs a gradient, and w only if x needs one. Of x it saves
 * only this rank's rows. */
tg_tensor *tg_linear_with_grad_accumulation(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *comm,
                                            const tg_linear_grad_opts *opts) {
    return record(t, x, w, b, comm, opts, false, "tg_linear_with_grad_accumulation", TG_SITE);
}

tg_tensor *tg_linear_with_frozen_weight(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_comm *comm,
                                        const tg_linear_grad_opts *opts) {
    return record(t, x, w, b, comm, opts, true, "tg_linear_with_frozen_weight", TG_SITE);
}
