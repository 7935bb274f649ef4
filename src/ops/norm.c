/* Layer normalization and RMS normalization over the last dim: x [.., h], w and b [h] or absent. */
#include <math.h>

#include "ops/common/derive.h"
#include "ops/common/nn_op.h"
#include "kernels/composed.h"

typedef struct norm_params {
    double eps;
    bool rms;
} norm_params;

enum { MEAN, RSTD }; /* private saved buffers, [rows] each */

static tg_status need_weight(tg_call *c, int i, const char *what, int64_t h) {
    const tg_tensor *w = i < c->n_in ? c->input[i] : NULL;
    if (!w) return TG_OK;
    TG_TRY(tg_need_same_dtype(c, 0, i));
    if (w->ndim == 1 && w->shape[0] == h) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE, "%s must be a vector of %s, the size of the last dim of x", what,
                        tg_count(h, "element").text);
}

static tg_status norm_infer(tg_call *c) {
    const norm_params *p = c->params;
    const tg_tensor *x = c->input[0];
    tg_dtype stats = tg_accumulate_dtype((tg_dtype)x->dtype);
    int64_t rows = 1;
    TG_TRY(tg_need_float(c, 0));
    if (x->ndim < 1) return tg_call_fail(c, TG_ERR_SHAPE, "x is a scalar; it must have 1 or more dims, of which the "
                                         "last is normalized");
    if (!(p->eps >= 0 && isfinite(p->eps)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "eps is %g; it must be finite and 0 or more", p->eps);
    TG_TRY(need_weight(c, 1, "w", x->shape[x->ndim - 1]));
    TG_TRY(need_weight(c, 2, "b", x->shape[x->ndim - 1]));
    for (int d = 0; d < x->ndim - 1; d++) rows *= x->shape[d];
    if (c->input[1]) TG_TRY(tg_call_linear(c, 6)); /* jointly linear in w and b */
    if (!tg_needs(c, 0)) c->saves_in &= ~2u;
    TG_TRY(tg_call_save(c, MEAN, stats, 1, p->rms ? (int64_t[]){0} : &rows));
    TG_TRY(tg_call_save(c, RSTD, stats, 1, &rows));
    return tg_infer_same(c);
}

/* Returns the arguments that forward and backward share. The weight is one of them only if weighted is true. */
static tg_norm_args norm_args(const tg_call *c, bool weighted) {
    const norm_params *p = c->params;
    return (tg_norm_args){
        .x = tg_array_of(c->input[0]),
        .w = tg_op_absent_or(weighted ? c->input[1] : NULL),
        .mean = tg_array_of(c->saved[MEAN]),
        .rstd = tg_array_of(c->saved[RSTD]),
        .eps = p->eps,
        .rms = p->rms,
    };
}

static tg_status norm_forward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_norm_args a = norm_args(c, true);
    a.b = tg_op_absent_or(c->n_in > 2 ? c->input[2] : NULL);
    a.y = tg_array_of(c->out[0]);
    return (ops->norm ? ops->norm : tg_composed_norm)(c->ctx, &a);
}

/* With n = (x - mean) rstd and g = gy w: gx = rstd (g - mean(g) - n mean(g n)), gw = sum(gy n), gb = sum(gy). For RMS
 * norm, n = x rstd, and gx has no term mean(g). */
static tg_status norm_backward(tg_call *c) {
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_norm_args a = norm_args(c, c->gin_mode[0] != TG_GRAD_NONE);
    a.gy = tg_array_of(c->gout[0]);
    a.gx = tg_op_gin(c, 0);
    a.add_x = tg_adds(c, 0);
    a.gw = tg_op_gin(c, 1);
    a.add_w = tg_adds(c, 1);
    if (c->n_in > 2) {
        a.gb = tg_op_gin(c, 2);
        a.add_b = tg_adds(c, 2);
    }
    return (ops->norm_grad ? ops->norm_grad : tg_composed_norm_grad)(c->ctx, &a);
}

static tg_status norm_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const norm_params *p = tg_node_params(n);
    tg_tensor *const *in = tg_node_in(n);
    out[0] = tg_norm_compose(t, in[0], in[1], n->n_in > 2 ? in[2] : NULL, p->eps, p->rms);
    return TG_OK;
}

TG_COMPOSED(norm)

static const norm_params layer_params = {.eps = 1e-5};
static const norm_params rms_params = {.eps = 1e-6, .rms = true};

static const tg_sample layer_norm_samples[] = {
    {.note = "rows", .params = &layer_params, .n_in = 3, .input = {TG_S(4, 6), TG_S(6), TG_S(6)}},
    {.note = "no weights", .params = &layer_params, .n_in = 3, .input = {TG_S(3, 5), TG_S_ABSENT, TG_S_ABSENT}},
    {.note = "no bias", .params = &layer_params, .n_in = 3, .input = {TG_S(3, 5), TG_S(5), TG_S_ABSENT}},
    {.note = "bias alone", .params = &layer_params, .n_in = 3, .input = {TG_S(3, 5), TG_S_ABSENT, TG_S(5)}},
    {.note = "leading dims", .params = &layer_params, .n_in = 3, .input = {TG_S(2, 3, 7), TG_S(7), TG_S(7)}},
    {.note = "transposed", .params = &layer_params, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S(4), TG_S(4)}},
    {.note = "strided", .params = &layer_params, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4)}},
    {.note = "equal rows", .params = &layer_params, .n_in = 3,
     .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(4), TG_S(4)}},
    {.note = "one row", .params = &layer_params, .n_in = 3, .input = {TG_S(5), TG_S(5), TG_S(5)}},
    {.note = "far from zero", .params = &layer_params, .n_in = 3, .input = {TG_S_IN(100, 102, 2, 8), TG_S(8), TG_S(8)}},
    {.note = "rows of one", .params = &layer_params, .n_in = 3, .input = {TG_S(3, 1), TG_S(1), TG_S(1)}},
    {.note = "no rows", .params = &layer_params, .n_in = 3, .input = {TG_S(0, 4), TG_S(4), TG_S(4)}},
    {.note = "empty rows", .params = &layer_params, .n_in = 3, .input = {TG_S(3, 0), TG_S(0), TG_S(0)}},
    {.note = "w of another size", .params = &layer_params, .n_in = 3,
     .input = {TG_S(4, 6), TG_S(4), TG_S(6)}, .refused = TG_ERR_SHAPE},
    {.note = "b of two dims", .params = &layer_params, .n_in = 3,
     .input = {TG_S(4, 6), TG_S(6), TG_S(1, 6)}, .refused = TG_ERR_SHAPE},
    {.note = "scalar", .params = &layer_params, .n_in = 3,
     .input = {TG_S_SCALAR, TG_S_ABSENT, TG_S_ABSENT}, .refused = TG_ERR_SHAPE},
    {.note = "negative eps", .params = &(const norm_params){.eps = -1}, .n_in = 3, .input = {TG_S(2, 3), TG_S(3),
                                                                                             TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "2048 rows of 768", .params = &layer_params, .n_in = 3,
     .input = {TG_S(2048, 768), TG_S(768), TG_S(768)}, .bench = true},
};

static const tg_field norm_fields[] = {
    TG_ARG(norm_params, eps, DOUBLE, "Is added to the variance, or to the mean of the squares."),
};

const tg_op tg_op_layer_norm = {
    .size = sizeof(tg_op),
    .name = "layer_norm",
    .formula = "(x - mean) / sqrt(var + eps) w + b",
    .inputs = "x w b",
    .n_in = 3,
    .n_out = 1,
    .params_size = sizeof(norm_params),
    .saves_in = 3,
    .optional = 6,
    .family = TG_FAMILY_SOFTMAX,
    .sums_f32 = true,
    .infer = norm_infer,
    .forward = norm_forward,
    .backward = norm_backward,
    .vjp = norm_vjp,
    .jvp = norm_jvp,
    TG_FIELDS(norm_fields),
    .preset = &(const norm_params){.eps = 1e-5},
    TG_SAMPLES(layer_norm_samples),
};

static const tg_sample rms_norm_samples[] = {
    {.note = "rows", .params = &rms_params, .n_in = 2, .input = {TG_S(4, 6), TG_S(6)}},
    {.note = "no weight", .params = &rms_params, .n_in = 2, .input = {TG_S(3, 5), TG_S_ABSENT}},
    {.note = "leading dims", .params = &rms_params, .n_in = 2, .input = {TG_S(2, 3, 7), TG_S(7)}},
    {.note = "transposed", .params = &rms_params, .n_in = 2, .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4),
                                                                       TG_S(4)}},
    {.note = "strided", .params = &rms_params, .n_in = 2,
     .input = {TG_S_AS(TG_SAMPLE_STRIDED, 3, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4)}},
    {.note = "equal rows", .params = &rms_params, .n_in = 2, .input = {TG_S_AS(TG_SAMPLE_EXPANDED, 3, 4), TG_S(4)}},
    {.note = "one row", .params = &rms_params, .n_in = 2, .input = {TG_S(5), TG_S(5)}},
    {.note = "rows of one", .params = &rms_params, .n_in = 2, .input = {TG_S_IN(0.5, 2, 3, 1), TG_S(1)}},
    {.note = "no rows", .params = &rms_params, .n_in = 2, .input = {TG_S(0, 4), TG_S(4)}},
    {.note = "empty rows", .params = &rms_params, .n_in = 2, .input = {TG_S(3, 0), TG_S(0)}},
    {.note = "w of another size", .params = &rms_params, .n_in = 2,
     .input = {TG_S(4, 6), TG_S(4)}, .refused = TG_ERR_SHAPE},
    {.note = "eps is NaN", .params = &(const norm_params){.eps = NAN, .rms = true}, .n_in = 2,
     .input = {TG_S(2, 3), TG_S(3)},
     .refused = TG_ERR_ARGUMENT},
    {.note = "integers", .params = &rms_params, .n_in = 2,
     .input = {TG_S_INDEX(5, 2, 3), TG_S_ABSENT}, .refused = TG_ERR_DTYPE},
    {.note = "2048 rows of 768", .params = &rms_params, .n_in = 2, .input = {TG_S(2048, 768), TG_S(768)},
     .bench = true},
};

const tg_op tg_op_rms_norm = {
    .size = sizeof(tg_op),
    .name = "rms_norm",
    .formula = "x / sqrt(mean(x^2) + eps) w",
    .inputs = "x w",
    .n_in = 2,
    .n_out = 1,
    .params_size = sizeof(norm_params),
    .saves_in = 3,
    .optional = 2,
    .family = TG_FAMILY_SOFTMAX,
    .sums_f32 = true,
    .infer = norm_infer,
    .forward = norm_forward,
    .backward = norm_backward,
    .vjp = norm_vjp,
    .jvp = norm_jvp,
    TG_FIELDS(norm_fields),
    .preset = &(const norm_params){.eps = 1e-5, .rms = true},
    TG_SAMPLES(rms_norm_samples),
};

/* Normalizes every row of the last dim to mean 0 and (biased) variance 1, then multiplies by w and adds b. w and b are
 * [h] or NULL. Statistics are float32 (float64 for float64). The op saves x, w, and the mean and the reciprocal
 * deviation of each row, but not y. */
tg_tensor *tg_layer_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, double eps) {
    return TG_RECORD(t, tg_op_layer_norm, &(norm_params){.eps = eps}, x, w, b);
}

/* Divides every row of the last dim by the root of its mean square, then multiplies by w. w is [h] or NULL. */
tg_tensor *tg_rms_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, double eps) {
    norm_params p = {.eps = eps, .rms = true};
    return TG_RECORD(t, tg_op_rms_norm, &p, x, w);
}
