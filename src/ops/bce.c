/* Binary cross-entropy of logits. The loss of an element is w (v softplus(-x) + (1 - y) softplus(x)), where v is pw y.
 * Weights w and pw that are absent count as 1. */
#include "ops/common/derive.h"
#include "ops/common/elementwise_loss.h"

#include <math.h>

enum { X, Y, W, PW };

static tg_status bce_infer(tg_call *c) { return tg_elementwise_loss_infer(c, TG_LOSS_NONE); }

/* Computes plus = softplus(x) = ln(1 + e^x) and minus = softplus(-x). They are relu(x) + l and relu(-x) + l, where
 * l = ln(1 + e^-|x|) does not overflow. */
static tg_status softpluses(tg_call *c, const tg_tensor *x, tg_tensor *plus, tg_tensor *minus) {
    tg_tensor *e = tg_elementwise_loss_temp(c), *one = tg_elementwise_loss_temp(c);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_PUT(abs, e, x);
    TG_PUT(neg, e, e);
    TG_PUT(exp, e, e);
    /* With u = 1 + e, rounded, ln(1 + e) is e ln(u) / (u - 1), or e where u is 1 (Kahan's log1p). */
    TG_PUT_P(affine, 1, 1, one, e);
    TG_PUT_P(affine, 1, -1, plus, one);
    TG_PUT(log, one, one);
    TG_PUT(mul, one, one, e);
    TG_PUT(div, one, one, plus);
    TG_PUT(where, e, plus, one, e);
    TG_PUT(neg, minus, x);
    TG_PUT(relu, minus, minus);
    TG_PUT(relu, plus, x);
    TG_PUT(add, plus, plus, e);
    TG_PUT(add, minus, minus, e);
    return TG_OK;
}

/* Sets *v to pw y, or to y itself if pw is absent, and computes not = 1 - y. */
static tg_status target_terms(tg_call *c, const tg_tensor **v, tg_tensor *not) {
    const tg_tensor *y = c->input[Y];
    TG_PUT_P(affine, -1, 1, not, y);
    *v = y;
    if (!c->input[PW]) return TG_OK;
    tg_tensor *product = tg_elementwise_loss_temp(c);
    *v = product;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_PUT(mul, product, y, c->input[PW]);
    return TG_OK;
}

/* Computes each element's loss without the weights w. */
static tg_status unweighted(tg_call *c, const tg_tensor *loss, const tg_tensor *plus, const tg_tensor *minus) {
    tg_tensor *not = tg_elementwise_loss_temp(c);
    const tg_tensor *v;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(target_terms(c, &v, not));
    TG_PUT(mul_mul_add, loss, v, minus, not, plus);
    return TG_OK;
}

static tg_status bce_forward(tg_call *c) {
    tg_tensor *loss = tg_elementwise_loss_buffer(c), *plus = tg_elementwise_loss_temp(c),
              *minus = tg_elementwise_loss_temp(c);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(softpluses(c, c->input[X], plus, minus));
    TG_TRY(unweighted(c, loss, plus, minus));
    if (c->input[W]) TG_PUT(mul, loss, loss, c->input[W]);
    return tg_elementwise_loss_reduce(c, loss);
}

/* gx (+)= g ((1 - y) sigmoid(x) - v sigmoid(-x)). */
static tg_status grad_x(tg_call *c, const tg_tensor *g) {
    tg_tensor *slope = tg_elementwise_loss_temp(c), *mirrored = tg_elementwise_loss_temp(c),
              *not = tg_elementwise_loss_temp(c);
    const tg_tensor *v;
    if (!c->gin_mode[X]) return TG_OK;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(target_terms(c, &v, not));
    TG_PUT(sigmoid, slope, c->input[X]);
    TG_PUT(neg, mirrored, c->input[X]);
    TG_PUT(sigmoid, mirrored, mirrored);
    TG_PUT(mul_mul_sub, slope, not, slope, v, mirrored);
    return tg_op_map(c, TG_FN_mul, c->gin[X], TG_T2(slope, g), 2, 0, 0, tg_adds(c, X));
}

/* gy (+)= g (pw softplus(-x) - softplus(x)). gpw (+)= g y softplus(-x), summed to the shape of pw. */
static tg_status grad_y(tg_call *c, const tg_tensor *g, const tg_tensor *plus, const tg_tensor *minus) {
    tg_tensor *t = tg_elementwise_loss_temp(c);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    if (c->gin_mode[Y]) {
        const tg_tensor *from = c->input[PW] ? t : minus;
        if (c->input[PW]) TG_PUT(mul, t, minus, c->input[PW]);
        TG_TRY(tg_op_map(c, TG_FN_sub_mul, c->gin[Y], TG_T3(from, plus, g), 3, 0, 0, tg_adds(c, Y)));
    }
    if (!c->gin_mode[PW]) return TG_OK;
    TG_PUT(mul3, t, minus, c->input[Y], g);
    return tg_op_sum_to(c, PW, t, 1);
}

static tg_status bce_backward(tg_call *c) {
    tg_tensor *g = tg_elementwise_loss_gradient(c, 1), *weighted = g;
    if (c->input[W] && tg_ok(c->ctx)) {
        weighted = tg_elementwise_loss_temp(c);
        if (!tg_ok(c->ctx)) return c->ctx->run.status;
        TG_PUT(mul, weighted, c->input[W], g);
    }
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(grad_x(c, weighted));
    if (!c->gin_mode[Y] && !c->gin_mode[W] && !c->gin_mode[PW]) return TG_OK;
    tg_tensor *plus = tg_elementwise_loss_temp(c), *minus = tg_elementwise_loss_temp(c);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(softpluses(c, c->input[X], plus, minus));
    TG_TRY(grad_y(c, weighted, plus, minus));
    if (!c->gin_mode[W]) return TG_OK;
    TG_TRY(unweighted(c, plus, plus, minus));
    TG_PUT(mul, plus, plus, g);
    return tg_op_sum_to(c, W, plus, 1);
}

static tg_tensor *softplus(tg_tape *t, tg_tensor *x) { return tg_softplus(t, x, 1, INFINITY); }

static tg_status bce_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    tg_tensor *const *in = tg_node_in(n);
    tg_tensor *x = tg_wide(t, in[X]), *y = tg_wide(t, in[Y]);
    tg_tensor *v = in[PW] ? tg_mul(t, y, tg_wide(t, in[PW])) : y;
    tg_tensor *loss = tg_add(t, tg_mul(t, v, softplus(t, tg_neg(t, x))), tg_mul(t, tg_one_minus(t, y), softplus(t, x)));
    if (in[W]) loss = tg_mul(t, loss, tg_wide(t, in[W]));
    out[0] = tg_elementwise_loss_compose(t, n, loss);
    return TG_OK;
}

TG_COMPOSED(bce)

#define MEAN TG_LOSS_P(MEAN, .width = 0)
#define SUM TG_LOSS_P(SUM, .width = 0)
#define EACH TG_LOSS_P(NONE, .width = 0)
#define P(...) TG_S_IN(0, 1, __VA_ARGS__)
#define CONSTANT(...) {.shape = TG_S_SHAPE(__VA_ARGS__), .lo = 0, .hi = 1, .frozen = true}

static const tg_sample bce_samples[] = {
    {.note = "mean", .params = MEAN, .n_in = 4, .input = {TG_S(3, 4), P(3, 4), TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "sum", .params = SUM, .n_in = 4, .input = {TG_S(3, 4), P(3, 4), TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "one loss per element", .params = EACH, .n_in = 4,
     .input = {TG_S(2, 3, 2), P(2, 3, 2), TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "weights of rows", .params = MEAN, .n_in = 4, .input = {TG_S(3, 4), P(3, 4), P(3, 1), TG_S_ABSENT}},
    {.note = "weights of classes", .params = EACH, .n_in = 4, .input = {TG_S(3, 4), P(3, 4), TG_S_ABSENT, P(4)}},
    {.note = "both weights", .params = SUM, .n_in = 4, .input = {TG_S(3, 4), P(3, 4), P(3, 4), P(4)}},
    {.note = "both weights, one loss per element", .params = EACH, .n_in = 4,
     .input = {TG_S(3, 4), P(3, 4), TG_S_SCALAR, P(1, 4)}},
    {.note = "constant targets", .params = MEAN, .n_in = 4,
     .input = {TG_S(3, 4), CONSTANT(3, 4), CONSTANT(3, 4), CONSTANT(4)}},
    {.note = "other strides", .params = MEAN, .n_in = 4,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4),
            {.shape = TG_S_SHAPE(3, 4), .layout = TG_SAMPLE_STRIDED, .hi = 1}, TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4),
            TG_S_AS(TG_SAMPLE_STRIDED, 4)}},
    {.note = "far out", .params = MEAN, .n_in = 4, .input = {TG_S_IN(-60, 60, 3, 4), P(3, 4), TG_S_ABSENT,
                                                             TG_S_ABSENT}},
    {.note = "one element", .params = MEAN, .n_in = 4, .input = {TG_S(1), P(1), TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "scalars", .params = EACH, .n_in = 4, .input = {TG_S_SCALAR, {.hi = 1}, TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "as many dims as there are", .params = MEAN, .n_in = 4,
     .input = {TG_S(1, 1, 1, 1, 1, 1, 2, 2), P(1, 1, 1, 1, 1, 1, 2, 2), TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "no elements", .params = SUM, .n_in = 4, .input = {TG_S(0, 3), P(0, 3), TG_S_ABSENT, P(3)}},
    {.note = "shapes differ", .params = MEAN, .n_in = 4,
     .input = {TG_S(3, 4), P(4), TG_S_ABSENT, TG_S_ABSENT}, .refused = TG_ERR_SHAPE},
    {.note = "weights that do not fit", .params = MEAN, .n_in = 4,
     .input = {TG_S(3, 4), P(3, 4), P(3), TG_S_ABSENT}, .refused = TG_ERR_SHAPE},
    {.note = "weights of more dims", .params = MEAN, .n_in = 4,
     .input = {TG_S(3, 4), P(3, 4), TG_S_ABSENT, P(1, 3, 4)}, .refused = TG_ERR_SHAPE},
    {.note = "integers", .params = MEAN, .n_in = 4,
     .input = {TG_S(3), TG_S_INDEX(2, 3), TG_S_ABSENT, TG_S_ABSENT}, .refused = TG_ERR_DTYPE},
    {.note = "4 M elements", .params = MEAN, .n_in = 4,
     .input = {TG_S(2048, 2048), P(2048, 2048), TG_S_ABSENT, TG_S_ABSENT}, .bench = true},
};

static const tg_field bce_with_logits_fields[] = {
    TG_ARG(tg_elementwise_loss_params, reduction, ENUM, "How the losses of all elements become the result.",
           .of = "tg_loss_reduction"),
};

const tg_op tg_op_bce_with_logits = {
    .size = sizeof(tg_op),
    .name = "bce_with_logits",
    .formula = "-w (pw y log(sigmoid(x)) + (1 - y) log(1 - sigmoid(x)))",
    .inputs = "x y w pw",
    .n_in = 4,
    .n_out = 1,
    .params_size = sizeof(tg_elementwise_loss_params),
    .saves_in = 15,
    .optional = 12,
    .family = TG_FAMILY_LOSS,
    .infer = bce_infer,
    .forward = bce_forward,
    .backward = bce_backward,
    .vjp = bce_vjp,
    .jvp = bce_jvp,
    TG_FIELDS(bce_with_logits_fields),
    .preset = MEAN,
    TG_SAMPLES(bce_samples),
};

/* Returns the binary cross-entropy of logits x with targets y in [0, 1] of the same shape. w weighs elements and pw
 * weighs positive targets; both are 1 if NULL and broadcast to x. Every input that requires a gradient gets one. The
 * mean divides by the number of elements whatever the weights are, as in PyTorch. */
tg_tensor *tg_bce_with_logits(tg_tape *t, tg_tensor *x, tg_tensor *y, tg_tensor *w, tg_tensor *pw,
                              const tg_loss_opts *opts) {
    tg_elementwise_loss_params p = tg_elementwise_loss_params_of(opts, 0);
    return TG_RECORD(t, tg_op_bce_with_logits, &p, x, y, w, pw);
}
