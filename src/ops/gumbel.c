/* Noise with the Gumbel distribution (gumbel), and differentiable draws of classes (gumbel_softmax; Jang, Gu and Poole,
 * Categorical Reparameterization with Gumbel-Softmax, 2017). */
#include "ops/common/derive.h"
#include "ops/common/op.h"

#include <float.h>

typedef struct gumbel_params {
    bool classes; /* the call comes from gumbel_softmax: infer checks tau and dim before it takes draws */
    double tau;
    int dim;
    tg_draws draws; /* filled by infer */
} gumbel_params;

static tg_status gumbel_infer(tg_call *c) {
    gumbel_params *p = c->params;
    TG_TRY(tg_infer_float(c));
    if (p->classes) TG_TRY(tg_need_dim(c, 0, &p->dim));
    /* Logits are multiplied by 1 / tau in the accumulation dtype, so 1 / tau must be finite there. */
    double most = tg_greatest((tg_dtype)c->input[0]->dtype);
    if (p->classes && !(p->tau > 0 && p->tau <= DBL_MAX && 1 / p->tau <= most))
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "tau is %g; it must be finite and above 0, and 1 / tau must not overflow in %s", p->tau,
                            tg_dtype_name(tg_accumulate_dtype((tg_dtype)c->input[0]->dtype)));
    p->draws = tg_call_draws(c, c->input[0]);
    return c->ctx->run.status;
}

/* Computes -ln(-ln(u)). u is drawn in float32 from [2^-25, 1) for every dtype of x, so it is neither 0 nor 1, and the
 * noise differs between dtypes only by rounding. */
static tg_status gumbel_forward(tg_call *c) {
    const tg_tensor *x = c->input[0];
    tg_dtype wide = tg_accumulate_dtype((tg_dtype)x->dtype);
    tg_tensor *u = tg_call_temp(c, TG_F32, x->ndim, x->shape), *v = tg_call_temp(c, wide, x->ndim, x->shape);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    const tg_draws *draws = &((const gumbel_params *)c->params)->draws;
    TG_TRY(tg_ctx_ops(c->ctx)->random(c->ctx, TG_RANDOM_UNIFORM, tg_array_of(u), 0x1p-25, 1, draws));
    TG_TRY(tg_op_map(c, TG_FN_id, v, TG_T1(u), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_log, v, TG_T1(v), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_neg, v, TG_T1(v), 1, 0, 0, false));
    TG_TRY(tg_op_map(c, TG_FN_log, v, TG_T1(v), 1, 0, 0, false));
    return tg_op_map(c, TG_FN_neg, c->out[0], TG_T1(v), 1, 0, 0, false);
}

static const gumbel_params plain = {.classes = false};

#define CLASSES(tau_, dim_) &(const gumbel_params){.classes = true, .tau = (tau_), .dim = (dim_)}
static const tg_sample gumbel_samples[] = {
    {.note = "matrix", .params = &plain, .n_in = 1, .input = {TG_S(4, 5)}},
    {.note = "cube", .params = &plain, .n_in = 1, .input = {TG_S(3, 2, 5)}},
    {.note = "transposed", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 3, 4)}},
    {.note = "strided", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}},
    {.note = "equal rows, different draws", .params = &plain, .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}},
    {.note = "scalar", .params = &plain, .n_in = 1, .input = {TG_S_SCALAR}},
    {.note = "size 1", .params = &plain, .n_in = 1, .input = {TG_S(1)}},
    {.note = "empty", .params = &plain, .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "integers", .params = &plain, .n_in = 1, .input = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE},
    {.note = "for classes", .params = CLASSES(0.5, -1), .n_in = 1, .input = {TG_S(2, 3)}},
    {.note = "for classes along a dim that x does not have", .params = CLASSES(0.5, 2), .n_in = 1,
     .input = {TG_S(2, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "tau 0", .params = CLASSES(0, -1), .n_in = 1, .input = {TG_S(2, 3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "tau without a reciprocal", .params = CLASSES(1e-310, -1), .n_in = 1, .input = {TG_S(2, 3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "big", .params = &plain, .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

const tg_op tg_op_gumbel = {
    .size = sizeof(tg_op), .name = "gumbel", .formula = "-ln(-ln(u)), u uniform, of x's shape", .inputs = "x",
    .n_in = 1, .n_out = 1, .params_size = sizeof(gumbel_params), .family = TG_FAMILY_POINTWISE, .infer = gumbel_infer,
    .forward = gumbel_forward, TG_SAMPLES(gumbel_samples)};

/* Returns noise of the standard Gumbel distribution with x's shape and dtype; the values of x do not matter. Takes one
 * draw per element of the global tensor from the current random stream (tg_call_draws), in evaluation mode too. Has no
 * gradient. */
tg_tensor *tg_gumbel(tg_tape *t, tg_tensor *x) { return TG_RECORD(t, tg_op_gumbel, &plain, x); }

/* Returns a tensor of y's shape with 1 at the first of the greatest elements along dim, and 0 elsewhere. */
static tg_tensor *first_greatest(tg_tape *t, tg_tensor *y, int dim) {
    int64_t n = tg_dim(y, dim);
    tg_shape along = {.ndim = tg_ndim(y)};
    for (int d = 0; d < along.ndim; d++) along.dim[d] = 1;
    if (tg_is_alive(y)) along.dim[dim < 0 ? dim + along.ndim : dim] = n;
    tg_tensor *places = tg_reshape(t, tg_arange(t, TG_I64, 0, (double)n, 1), along);
    return tg_cast(t, tg_eq(t, tg_argmax(t, y, dim, true), places), (tg_dtype)y->dtype);
}

typedef struct gumbel_softmax_params {
    double tau;
    bool hard;
    int dim;
} gumbel_softmax_params;

static tg_status gumbel_softmax_compose(tg_tape *t, const void *params, tg_tensor *const *in, tg_tensor **out,
                                        const void *site) {
    const gumbel_softmax_params *p = params;
    const gumbel_params noise = {.classes = true, .tau = p->tau, .dim = p->dim};
    tg_tensor *x = in[0], *noisy = tg_add(t, x, tg_record(t, &tg_op_gumbel, &noise, &x, 1, site));
    tg_tensor *soft = tg_softmax(t, tg_scale(t, noisy, 1 / p->tau), p->dim);
    out[0] = soft;
    if (p->hard) out[0] = tg_add(t, first_greatest(t, soft, p->dim), tg_sub(t, soft, tg_detach(t, soft)));
    return t->ctx->run.status;
}

#define SOFT(tau_, dim_) &(const gumbel_softmax_params){.tau = (tau_), .dim = (dim_)}
static const tg_sample gumbel_softmax_samples[] = {
    {.note = "rows", .params = SOFT(1, -1), .n_in = 1, .input = {TG_S(3, 5)}},
    {.note = "columns, colder", .params = SOFT(0.5, 0), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 4, 3)}},
    {.note = "strided", .params = SOFT(2, 1), .n_in = 1, .input = {TG_S_AS(TG_SAMPLE_STRIDED, 2, 3)}},
    {.note = "empty", .params = SOFT(1, 1), .n_in = 1, .input = {TG_S(0, 3)}},
    {.note = "no such dim", .params = SOFT(1, 2), .n_in = 1, .input = {TG_S(2, 3)}, .refused = TG_ERR_SHAPE},
    {.note = "tau 0", .params = SOFT(0, -1), .n_in = 1, .input = {TG_S(2, 3)}, .refused = TG_ERR_ARGUMENT},
    {.note = "big", .params = SOFT(1, -1), .n_in = 1, .input = {TG_S(1024, 1024)}, .bench = true},
};

static const tg_field gumbel_softmax_fields[] = {
    TG_ARG(gumbel_softmax_params, tau, DOUBLE, "Temperature: rows are closer to one-hot if it is smaller."),
    TG_ARG(gumbel_softmax_params, hard, BOOL, "The result is exactly one-hot."),
    TG_ARG(gumbel_softmax_params, dim, INT, "Dim of x; a negative number counts from the end."),
};

const tg_op tg_op_gumbel_softmax = {
    .size = sizeof(tg_op), .name = "gumbel_softmax", .formula = "softmax((x + gumbel(x)) / tau) along a dim",
    .inputs = "x", .n_in = 1, .n_out = 1, .params_size = sizeof(gumbel_softmax_params),
    .compose = gumbel_softmax_compose, TG_FIELDS(gumbel_softmax_fields), .preset = SOFT(1, -1),
    TG_SAMPLES(gumbel_softmax_samples)};

/* Returns softmax((x + gumbel) / tau) along dim. The position of the greatest element is drawn with the probabilities
 * softmax(x), and the smaller tau is, the closer the result is to one-hot along dim. tau must be finite and above 0,
 * and 1 / tau must be finite in the accumulation dtype. If hard is true, the result is exactly one-hot, with the 1 at
 * the greatest element of the softmax, and the gradient is that of the softmax. */
tg_tensor *tg_gumbel_softmax(tg_tape *t, tg_tensor *x, double tau, bool hard, int dim) {
    return TG_RECORD(t, tg_op_gumbel_softmax, (&(gumbel_softmax_params){tau, hard, dim}), x);
}
