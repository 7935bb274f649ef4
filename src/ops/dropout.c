/* Dropout: y = x keep / (1 - p). keep is 1 for an element whose draw from the default stream is at least p,
 * otherwise 0. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "kernels/composed.h"

typedef struct dropout_params {
    double p;
    tg_draws draws;
    bool identity; /* set by infer if p is 0 or the tape is in evaluation mode */
    bool drawn;    /* draws are given: those of an earlier call */
} dropout_params;

static tg_status dropout_infer(tg_call *c) {
    dropout_params *p = c->params;
    const tg_tensor *x = c->in[0];
    TG_TRY(tg_need_float(c, 0));
    if (!(p->p >= 0 && p->p < 1)) return tg_call_fail(c, TG_ERR_ARGUMENT, "p is %g; it must be at least 0 and less "
                                                      "than 1", p->p);
    if (p->drawn) return tg_infer_same(c);
    p->identity = p->p == 0 || !tg_is_training(c->tape);
    if (p->identity) return tg_call_view(c, 0, 0, x->ndim, x->shape, x->stride);
    p->draws = tg_call_draws(c, x);
    return tg_infer_same(c);
}

/* y (+)= x keep / (1 - p). */
static tg_status drop(tg_call *c, const tg_tensor *y, const tg_tensor *x, bool add) {
    const dropout_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_array ay = tg_array_of(y), ax = tg_array_of(x);
    return (ops->dropout ? ops->dropout : tg_composed_dropout)(c->ctx, ay, ax, p->p, &p->draws, add);
}

static tg_status dropout_forward(tg_call *c) {
    return ((const dropout_params *)c->params)->identity ? TG_OK : drop(c, c->out[0], c->in[0], false);
}

/* Backward draws the same numbers again, so nothing is saved. */
static tg_status dropout_backward(tg_call *c) {
    if (((const dropout_params *)c->params)->identity) return tg_call_pass(c, 0, c->gout[0]);
    const tg_tensor *gx = tg_call_gin(c, 0);
    return tg_ok(c->ctx) ? drop(c, gx, c->gout[0], tg_adds(c, 0)) : c->ctx->run.status;
}

/* Drops the same elements of g, a gradient or a tangent. */
static tg_tensor *drop_again(tg_tape *t, const tg_node *n, tg_tensor *g) {
    const dropout_params *p = tg_node_params(n);
    return p->identity ? g : tg_dropout_again(t, g, p->p, &p->draws);
}

TG_VJP(dropout_vjp, drop_again(t, n, g))

static const tg_sample dropout_samples[] = {
    {.note = "some", .params = &(const dropout_params){.p = 0.3}, .n_in = 1, .in = {TG_S(4, 5)}},
    {.note = "most", .params = &(const dropout_params){.p = 0.9}, .n_in = 1, .in = {TG_S(3, 2, 5)}},
    {.note = "none: a view", .params = &(const dropout_params){.p = 0}, .n_in = 1, .in = {TG_S(3, 4)}},
    {.note = "transposed", .params = &(const dropout_params){.p = 0.5}, .n_in = 1,
     .in = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4)}},
    {.note = "strided", .params = &(const dropout_params){.p = 0.5}, .n_in = 1,
     .in = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "equal rows, own draws", .params = &(const dropout_params){.p = 0.5}, .n_in = 1,
     .in = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "scalar", .params = &(const dropout_params){.p = 0.2}, .n_in = 1, .in = {TG_S_SCALAR}},
    {.note = "one element", .params = &(const dropout_params){.p = 0.2}, .n_in = 1, .in = {TG_S(1, 1)}},
    {.note = "empty", .params = &(const dropout_params){.p = 0.2}, .n_in = 1, .in = {TG_S(0, 3)}},
    {.note = "p = 1", .params = &(const dropout_params){.p = 1}, .n_in = 1,
     .in = {TG_S(2)}, .refused = TG_ERR_ARGUMENT},
    {.note = "negative p", .params = &(const dropout_params){.p = -0.1}, .n_in = 1,
     .in = {TG_S(2)}, .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = &(const dropout_params){.p = 0.1}, .n_in = 1,
     .in = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "4 M elements", .params = &(const dropout_params){.p = 0.1}, .n_in = 1,
     .in = {TG_S(2048, 2048)}, .bench = true},
};

const tg_op tg_op_dropout = {
    .size = sizeof(tg_op),
    .name = "dropout",
    .formula = "x keep / (1 - p)",
    .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(dropout_params),
    .passes = 1,
    .family = TG_FAMILY_SCALE,
    .infer = dropout_infer,
    .forward = dropout_forward,
    .backward = dropout_backward,
    .vjp = dropout_vjp,
    .jvp = tg_jvp_pointwise,
    TG_SAMPLES(dropout_samples),
};

/* Sets each element to 0 with probability p, 0 <= p < 1, and divides the others by 1 - p. Takes one draw per element
 * of the global tensor from the default stream. No mask is saved, because backward draws the same numbers again. If
 * p is 0, or the tape is in evaluation mode, the result is a view of x and nothing is drawn. */
tg_tensor *tg_dropout(tg_tape *t, tg_tensor *x, double p) {
    return TG_RECORD(t, tg_op_dropout, &(dropout_params){.p = p}, x);
}

/* Runs dropout with the draws of an earlier call. */
tg_tensor *tg_dropout_again(tg_tape *t, tg_tensor *x, double p, const tg_draws *draws) {
    return TG_RECORD(t, tg_op_dropout, (&(dropout_params){.p = p, .draws = *draws, .drawn = true}), x);
}
