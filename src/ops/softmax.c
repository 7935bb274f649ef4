/* softmax and log_softmax of x over one dim, with any strides. */
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "kernels/composed.h"

typedef struct softmax_params {
    int dim;
    bool log;
} softmax_params;

static tg_status softmax_infer(tg_call *c) {
    softmax_params *p = c->params;
    TG_TRY(tg_need_dim(c, 0, &p->dim));
    c->dims = 1u << p->dim;
    return tg_infer_float(c);
}

static tg_status softmax_forward(tg_call *c) {
    const softmax_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_extent ex, ey;
    tg_array x = tg_array_last(tg_array_of(c->input[0]), p->dim, &ex);
    tg_array y = tg_array_last(tg_array_of(c->out[0]), p->dim, &ey);
    return (ops->softmax ? ops->softmax : tg_composed_softmax)(c->ctx, y, x, p->log);
}

/* gx = y (gy - sum(gy y)), and for log_softmax gx = gy - exp(y) sum(gy). */
static tg_status softmax_backward(tg_call *c) {
    const softmax_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_extent ey, egx, egy;
    tg_array y = tg_array_last(tg_array_of(c->out[0]), p->dim, &ey);
    tg_array gx = tg_array_last(tg_array_of(c->gin[0]), p->dim, &egx);
    tg_array gy = tg_array_last(tg_array_of(c->gout[0]), p->dim, &egy);
    return (ops->softmax_grad ? ops->softmax_grad : tg_composed_softmax_grad)(c->ctx, gx, gy, y, p->log, tg_adds(c, 0));
}

/* The Jacobian of softmax is symmetric, so its vjp is also its jvp. */
static tg_tensor *softmax_gradient(tg_tape *t, const tg_node *n, tg_tensor *g, tg_tensor *y) {
    tg_dims dim = TG_DIMS(((const softmax_params *)tg_node_params(n))->dim);
    return tg_mul(t, y, tg_sub(t, g, tg_sum(t, tg_mul(t, g, y), dim, true)));
}

TG_VJP(softmax_vjp, softmax_gradient(t, n, g, y))

static tg_tensor *log_softmax_gradient(tg_tape *t, const tg_node *n, tg_tensor *g, tg_tensor *y) {
    tg_dims dim = TG_DIMS(((const softmax_params *)tg_node_params(n))->dim);
    return tg_sub(t, g, tg_mul(t, tg_exp(t, y), tg_sum(t, g, dim, true)));
}

TG_VJP(log_softmax_vjp, log_softmax_gradient(t, n, g, y))

#define SAMPLE(log_, dim_, note_, ...) \
    {.note = note_, .params = &(const softmax_params){dim_, log_}, .n_in = 1, __VA_ARGS__}
#define SOFTMAX_SAMPLES(log)                                                          \
    SAMPLE(log, -1, "rows", .input = {TG_S(3, 5)}),                                   \
    SAMPLE(log, 0, "first dim", .input = {TG_S(4, 3)}),                               \
    SAMPLE(log, 1, "middle dim", .input = {TG_S(2, 4, 3)}),                           \
    SAMPLE(log, -1, "transposed", .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 4, 3)}), \
    SAMPLE(log, -2, "strided", .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4)}),          \
    SAMPLE(log, 0, "equal rows", .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4)}),       \
    SAMPLE(log, -1, "large values", .input = {TG_S_IN(-40, 40, 2, 6)}),               \
    SAMPLE(log, 0, "one element", .input = {TG_S(1)}),                                \
    SAMPLE(log, -1, "rows of one", .input = {TG_S(3, 1)}),                            \
    SAMPLE(log, -1, "no rows", .input = {TG_S(0, 4)}),                                \
    SAMPLE(log, -1, "empty rows", .input = {TG_S(3, 0)}),                             \
    SAMPLE(log, 2, "no such dim", .input = {TG_S(2, 3)}, .refused = TG_ERR_SHAPE),    \
    SAMPLE(log, 0, "scalar", .input = {TG_S_SCALAR}, .refused = TG_ERR_SHAPE),        \
    SAMPLE(log, 0, "integers", .input = {TG_S_INDEX(4, 3)}, .refused = TG_ERR_DTYPE), \
    SAMPLE(log, -1, "4096 rows of 1024", .input = {TG_S(4096, 1024)}, .bench = true)

static const tg_sample softmax_samples[] = {SOFTMAX_SAMPLES(false)};
static const tg_sample log_softmax_samples[] = {SOFTMAX_SAMPLES(true)};

static const tg_field softmax_fields[] = {
    TG_ARG(softmax_params, dim, INT, "Dim of x; a negative number counts from the end.", .required = true),
};

const tg_op tg_op_softmax = {
    .size = sizeof(tg_op),
    .name = "softmax",
    .formula = "exp(x) / sum(exp(x))",
    .inputs = "x",
    .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(softmax_params),
    .saves_out = 1,
    .family = TG_FAMILY_SOFTMAX,
    .infer = softmax_infer,
    .forward = softmax_forward,
    .backward = softmax_backward,
    .vjp = softmax_vjp,
    .jvp = tg_jvp_pointwise,
    TG_FIELDS(softmax_fields),
    TG_SAMPLES(softmax_samples),
};

const tg_op tg_op_log_softmax = {
    .size = sizeof(tg_op),
    .name = "log_softmax",
    .formula = "x - log(sum(exp(x)))",
    .inputs = "x",
    .n_in = 1,
    .n_out = 1,
    .params_size = sizeof(softmax_params),
    .saves_out = 1,
    .family = TG_FAMILY_SOFTMAX,
    .infer = softmax_infer,
    .forward = softmax_forward,
    .backward = softmax_backward,
    .vjp = log_softmax_vjp,
    .jvp = tg_jvp_by_vjp,
    TG_FIELDS(softmax_fields),
    .preset = &(const softmax_params){.log = true},
    TG_SAMPLES(log_softmax_samples),
};

/* Returns exp(x) / sum(exp(x)) over dim, computed relative to the greatest element so that nothing overflows. dim
 * may be negative; any strides are allowed. The op saves y. */
tg_tensor *tg_softmax(tg_tape *t, tg_tensor *x, int dim) {
    return TG_RECORD(t, tg_op_softmax, (&(softmax_params){dim, false}), x);
}

/* Returns log(softmax(x)) over dim without the rounding of two separate steps. The op saves y. */
tg_tensor *tg_log_softmax(tg_tape *t, tg_tensor *x, int dim) {
    return TG_RECORD(t, tg_op_log_softmax, (&(softmax_params){dim, true}), x);
}
