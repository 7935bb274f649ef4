/* The op norm_linear: a norm over the last dim, and then the linear layer of linear_grad.c. For backward it keeps x and
 * two numbers per row (an RMS norm: one number), but not the norm's result, which the norm and the linear layer as two
 * ops keep too. Backward computes the norm again, as Transformer Engine's LayerNormLinear can. */
#include <math.h>

#include "base/options.h"
#include "ops/common/derive.h"
#include "kernels/composed.h"
#include "parallel/tp/linear_call.h"

/* The inputs after x, w and b; the saved buffers, [rows] each, except that MEAN is [0] for an RMS norm. */
enum { NORM_W = TG_LINEAR_B + 1, NORM_B, INPUTS };
enum { MEAN, RSTD };

typedef struct norm_linear_params {
    tg_linear_params linear; /* first, because it begins with the communicator */
    double eps;
    bool rms, zero_centered;
} norm_linear_params;

/* ---- infer ---- */

static tg_status check_norm(tg_call *c) {
    const norm_linear_params *p = c->params;
    int64_t h = c->input[TG_LINEAR_W]->shape[1];
    if (!(p->eps >= 0 && isfinite(p->eps)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "eps is %g; it must be finite and 0 or more", p->eps);
    if (p->rms && c->input[NORM_B])
        return tg_call_fail(c, TG_ERR_ARGUMENT, "norm_bias is given, but an RMS norm has none; leave it NULL");
    if (p->zero_centered && !c->input[NORM_W])
        return tg_call_fail(c, TG_ERR_ARGUMENT,
                            "zero_centered is set, but norm_weight is NULL; give a weight, or leave zero_centered "
                            "false");
    for (int i = NORM_W; i < INPUTS; i++) {
        const tg_tensor *v = c->input[i];
        if (!v) continue;
        TG_TRY(tg_need_same_dtype(c, TG_LINEAR_X, i));
        if (v->ndim != 1 || v->shape[0] != h)
            return tg_call_fail(c, TG_ERR_SHAPE, "%s must be a vector of %s, one for each column of x",
                                i == NORM_W ? "norm_weight" : "norm_bias", tg_count(h, "element").text);
    }
    return TG_OK;
}

/* States the placements: those of the norm and the linear layer as two ops. Under sequence parallelism each rank norms
 * other rows, so norm_weight and norm_bias are R, and each rank's gradient of them is an addend of a sum. */
static tg_status state_placements(tg_call *c) {
    const norm_linear_params *p = c->params;
    int last = c->input[TG_LINEAR_X]->ndim - 1;
    for (int d = 0; d < last; d++) TG_TRY(tg_call_role(c, TG_LINEAR_X, d, d));
    TG_TRY(tg_call_role(c, TG_LINEAR_W, 0, last));
    if (c->input[TG_LINEAR_B]) TG_TRY(tg_call_role(c, TG_LINEAR_B, 0, last));
    TG_TRY(tg_call_linear(c, 1u << TG_LINEAR_W | 1u << TG_LINEAR_B));
    if (!p->zero_centered && c->input[NORM_W])
        TG_TRY(tg_call_linear(c, 1u << NORM_W | 1u << NORM_B | 1u << TG_LINEAR_B));
    for (int i = NORM_W; i < INPUTS && tg_linear_reduces(&p->linear); i++)
        if (c->input[i])
            TG_TRY(tg_call_convert(c, i, p->linear.sequence_parallel ? TG_R : TG_I, 0, tg_linear_place_y(c, &p->linear),
                                   p->linear.comm,
                                   "place the norm's weight and bias R under sequence parallelism, I otherwise "
                                   "(tg_place)"));
    return TG_OK;
}

/* Clears the bits of inputs that backward does not read. To compute the norm again, for the gradient of w, it reads x,
 * norm_weight and norm_bias. For the gradients of x, norm_weight and norm_bias it reads x and w, and for that of x also
 * norm_weight. */
static void choose_saved(tg_call *c) {
    bool w = tg_needs(c, TG_LINEAR_W), x = tg_needs(c, TG_LINEAR_X),
         front = x || tg_needs(c, NORM_W) || tg_needs(c, NORM_B);
    if (!w && !front) c->saves_in &= ~(1u << TG_LINEAR_X);
    if (!front) c->saves_in &= ~(1u << TG_LINEAR_W);
    if (!w && !x) c->saves_in &= ~(1u << NORM_W);
    if (!w) c->saves_in &= ~(1u << NORM_B);
}

static tg_status norm_linear_infer(tg_call *c) {
    norm_linear_params *p = c->params;
    const tg_tensor *x = c->input[TG_LINEAR_X];
    tg_dtype stats = tg_accumulate_dtype((tg_dtype)x->dtype);
    int64_t rows = 1;
    choose_saved(c);
    TG_TRY(tg_linear_call_infer(c, &p->linear));
    TG_TRY(check_norm(c));
    TG_TRY(state_placements(c));
    for (int d = 0; d < x->ndim - 1; d++) rows *= x->shape[d];
    TG_TRY(tg_call_save(c, MEAN, stats, 1, p->rms ? (int64_t[]){0} : &rows));
    return tg_call_save(c, RSTD, stats, 1, &rows);
}

/* ---- The norm ---- */

/* Sets *factor to the factor of the norm: norm_weight, 1 + norm_weight if it is zero-centered, or absent. */
static tg_status factor_of(tg_call *c, tg_array *factor) {
    const norm_linear_params *p = c->params;
    const tg_tensor *w = c->input[NORM_W];
    *factor = tg_op_absent_or(w);
    if (!p->zero_centered) return TG_OK;
    const tg_tensor *one_more = tg_call_temp(c, (tg_dtype)w->dtype, 1, w->shape);
    TG_TRY(c->ctx->run.status);
    *factor = tg_array_of(one_more);
    return tg_op_map(c, TG_FN_affine, one_more, TG_T1(w), 1, 1, 1, false);
}

/* Computes the norm of x in a temporary, and sets *normed to that. Also computes mean and rstd, which have the shapes
 * of the saved buffers MEAN and RSTD. */
static tg_status norm(tg_call *c, const tg_tensor *mean, const tg_tensor *rstd, tg_tensor **normed) {
    const norm_linear_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    const tg_tensor *x = c->input[TG_LINEAR_X];
    tg_norm_args a = {.x = tg_array_of(x), .b = tg_op_absent_or(c->input[NORM_B]), .eps = p->eps, .rms = p->rms};
    *normed = tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, x->shape);
    TG_TRY(c->ctx->run.status);
    TG_TRY(factor_of(c, &a.w));
    a.y = tg_array_of(*normed);
    a.mean = tg_array_of(mean);
    a.rstd = tg_array_of(rstd);
    return (ops->norm ? ops->norm : tg_composed_norm)(c->ctx, &a);
}

/* Computes the norm in backward. It writes other buffers than the saved ones, which backward only reads. */
static tg_status norm_again(tg_call *c, tg_tensor **normed) {
    const tg_tensor *stats[2];
    for (int i = 0; i < 2; i++) stats[i] = tg_call_temp(c, (tg_dtype)c->saved[i]->dtype, 1, c->saved[i]->shape);
    TG_TRY(c->ctx->run.status);
    return norm(c, stats[MEAN], stats[RSTD], normed);
}

/* Computes the gradients of x, norm_weight and norm_bias from g, the gradient of the norm's result. */
static tg_status norm_grads(tg_call *c, tg_tensor *g) {
    const norm_linear_params *p = c->params;
    const tg_device_ops *ops = tg_ctx_ops(c->ctx);
    tg_norm_args a = {.x = tg_array_of(c->input[TG_LINEAR_X]),
                      .mean = tg_array_of(c->saved[MEAN]),
                      .rstd = tg_array_of(c->saved[RSTD]),
                      .eps = p->eps,
                      .rms = p->rms};
    TG_TRY(tg_storage_need(g->storage, g));
    if (c->gin_mode[TG_LINEAR_X]) TG_TRY(factor_of(c, &a.w));
    a.gy = tg_array_of(g);
    a.gx = tg_op_gin(c, TG_LINEAR_X), a.add_x = tg_adds(c, TG_LINEAR_X);
    a.gw = tg_op_gin(c, NORM_W), a.add_w = tg_adds(c, NORM_W);
    a.gb = tg_op_gin(c, NORM_B), a.add_b = tg_adds(c, NORM_B);
    return (ops->norm_grad ? ops->norm_grad : tg_composed_norm_grad)(c->ctx, &a);
}

/* ---- forward and backward ---- */

static tg_status norm_linear_forward(tg_call *c) {
    const norm_linear_params *p = c->params;
    tg_tensor *x;
    TG_TRY(norm(c, c->saved[MEAN], c->saved[RSTD], &x));
    return tg_linear_product(c, &p->linear, x);
}

/* Computes the gradient of the norm's result. If one reduction over ranks must follow, *g is this rank's addend. */
static tg_status dgrad(tg_call *c, tg_tensor **g) {
    const norm_linear_params *p = c->params;
    const tg_tensor *x = c->input[TG_LINEAR_X];
    bool rings = tg_linear_rings(&p->linear);
    *g = rings ? tg_call_temp(c, (tg_dtype)x->dtype, x->ndim, x->shape) : tg_linear_part(c);
    TG_TRY(c->ctx->run.status);
    return rings ? tg_linear_ring_dgrad(c, &p->linear, *g, false) : TG_OK;
}

/* Communication overlaps with products as in linear_grad.c. The norm's gradients need the reduced gradient of its
 * result, so they come last. now: this call computes the gradient of w, from the rows x of the norm. */
static tg_status norm_linear_backward(tg_call *c) {
    const tg_linear_params *p = c->params;
    bool front = c->gin_mode[TG_LINEAR_X] || c->gin_mode[NORM_W] || c->gin_mode[NORM_B];
    tg_tensor *x = NULL, *g = NULL;
    if (c->gin_mode[TG_LINEAR_W]) TG_TRY(norm_again(c, &x));
    bool now = tg_linear_wgrad_is_due(c, x, c->gout[0], p->sequence_parallel ? p->comm : NULL);
    TG_TRY(c->ctx->run.status);
    if (now) TG_TRY(tg_linear_all_rows(c, p, &x));
    if (front) TG_TRY(dgrad(c, &g));
    if (now) TG_TRY(tg_storage_need(x->storage, x));
    if (front && tg_linear_reduces(p) && !tg_linear_rings(p)) TG_TRY(tg_linear_reduce(c, p, g, &g));
    if (now) {
        TG_TRY(tg_linear_add_wgrad(c, x, c->gout[0]));
        tg_linear_drop_rows(c, p, x);
    }
    if (c->input[TG_LINEAR_B]) TG_TRY(tg_op_sum_to(c, TG_LINEAR_B, c->gout[0], 1));
    return front ? norm_grads(c, g) : TG_OK;
}

/* Records the norm and the linear layer as separate ops. */
static tg_status norm_linear_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const norm_linear_params *p = tg_node_params(n);
    tg_tensor *const *in = tg_node_in(n);
    tg_tensor *factor = p->zero_centered ? tg_add_scalar(t, in[NORM_W], 1) : in[NORM_W];
    tg_tensor *x = p->rms ? tg_rms_norm(t, in[TG_LINEAR_X], factor, p->eps)
                          : tg_layer_norm(t, in[TG_LINEAR_X], factor, in[NORM_B], p->eps);
    out[0] = tg_linear_compose(t, &p->linear, x, in[TG_LINEAR_W], in[TG_LINEAR_B]);
    return TG_OK;
}

TG_COMPOSED(norm_linear)

static int64_t norm_linear_flops(const tg_node *n) {
    return tg_linear_call_flops(n) + tg_numel(tg_node_input(n, TG_LINEAR_X));
}

/* ---- The op ---- */

#define PARAMS(...)                                                                                                    \
    { .linear = {.chunks = 1}, .eps = 1e-5, __VA_ARGS__ }
static const norm_linear_params layer = PARAMS(.rms = false), rms = PARAMS(.rms = true),
                                centered = PARAMS(.zero_centered = true),
                                rms_centered = PARAMS(.rms = true, .zero_centered = true),
                                negative = {.linear = {.chunks = 1}, .eps = -1},
                                alone = {.linear = {.allreduce_dgrad = true, .chunks = 1}, .eps = 1e-5};

#define SAMPLE(p_, note_, ...)                                                                                         \
    { .note = note_, .params = &(p_), .n_in = INPUTS, __VA_ARGS__ }
#define FROZEN(...)                                                                                                    \
    { .shape = TG_S_SHAPE(__VA_ARGS__), .frozen = true }
#define NO TG_S_ABSENT
static const tg_sample samples[] = {
    SAMPLE(layer, "layer norm", .input = {TG_S(4, 6), TG_S(5, 6), TG_S(5), TG_S(6), TG_S(6)}),
    SAMPLE(rms, "RMS norm", .input = {TG_S(4, 6), TG_S(5, 6), TG_S(5), TG_S(6), NO}),
    SAMPLE(centered, "zero-centered", .input = {TG_S(2, 3, 4), TG_S(5, 4), NO, TG_S(4), TG_S(4)}),
    SAMPLE(rms_centered, "zero-centered RMS norm", .input = {TG_S(2, 3, 4), TG_S(5, 4), TG_S(5), TG_S(4), NO}),
    SAMPLE(layer, "no weights of the norm", .input = {TG_S(3, 5), TG_S(2, 5), TG_S(2), NO, NO}),
    SAMPLE(layer, "the norm's bias alone", .input = {TG_S(3, 5), TG_S(2, 5), NO, NO, TG_S(5)}),
    SAMPLE(layer, "one vector", .input = {TG_S(4), TG_S(3, 4), TG_S(3), TG_S(4), TG_S(4)}),
    SAMPLE(layer, "strided and transposed",
           .input = {TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 3, 4), TG_S_AS(TG_SAMPLE_TRANSPOSED, 5, 4),
                     TG_S_AS(TG_SAMPLE_STRIDED, 5), TG_S_AS(TG_SAMPLE_STRIDED, 4), TG_S_AS(TG_SAMPLE_STRIDED, 4)}),
    SAMPLE(layer, "frozen weight", .input = {TG_S(4, 3), FROZEN(5, 3), TG_S(5), TG_S(3), TG_S(3)}),
    SAMPLE(layer, "frozen input", .input = {FROZEN(4, 3), TG_S(5, 3), TG_S(5), TG_S(3), TG_S(3)}),
    SAMPLE(centered, "weights of the norm alone", .input = {FROZEN(4, 3), FROZEN(5, 3), NO, TG_S(3), TG_S(3)}),
    SAMPLE(rms, "frozen norm", .input = {TG_S(4, 3), TG_S(5, 3), TG_S(5), FROZEN(3), NO}),
    SAMPLE(layer, "b alone", .input = {FROZEN(4, 3), FROZEN(5, 3), TG_S(5), FROZEN(3), FROZEN(3)}),
    SAMPLE(layer, "no rows", .input = {TG_S(0, 3), TG_S(2, 3), TG_S(2), TG_S(3), TG_S(3)}),
    SAMPLE(layer, "columns differ", .input = {TG_S(4, 3), TG_S(3, 4), NO, TG_S(3), NO}, .refused = TG_ERR_SHAPE),
    SAMPLE(layer, "norm_weight of out", .input = {TG_S(4, 3), TG_S(5, 3), NO, TG_S(5), NO}, .refused = TG_ERR_SHAPE),
    SAMPLE(rms, "RMS norm with a bias", .input = {TG_S(4, 3), TG_S(5, 3), NO, TG_S(3), TG_S(3)},
           .refused = TG_ERR_ARGUMENT),
    SAMPLE(centered, "zero-centered nothing", .input = {TG_S(4, 3), TG_S(5, 3), NO, NO, NO},
           .refused = TG_ERR_ARGUMENT),
    SAMPLE(negative, "negative eps", .input = {TG_S(4, 3), TG_S(5, 3), NO, NO, NO}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(alone, "reduced over no ranks", .input = {TG_S(4, 3), TG_S(5, 3), NO, NO, NO}, .refused = TG_ERR_ARGUMENT),
    SAMPLE(layer, "512 x 768 to 3072", .input = {TG_S(512, 768), TG_S(3072, 768), TG_S(3072), TG_S(768), TG_S(768)},
           .bench = true),
};

static const tg_field norm_linear_fields[] = {
    TG_ARG_AS(norm_linear_params, linear.comm, "c", POINTER, "The ranks that call the op together.", .of = "tg_comm"),
    TG_ARG(norm_linear_params, rms, BOOL, "The norm is an RMS norm."),
    TG_ARG(norm_linear_params, eps, DOUBLE, "Is added to the variance, or to the mean of the squares."),
    TG_ARG(norm_linear_params, zero_centered, BOOL, "The norm multiplies by 1 + norm_weight."),
    TG_ARG_AS(norm_linear_params, linear.sequence_parallel, "sequence_parallel", BOOL,
              "x has only this rank's rows of dim 0."),
    TG_ARG_AS(norm_linear_params, linear.allreduce_dgrad, "allreduce_dgrad", BOOL,
              "Backward sums the gradient of the norm's result over the ranks."),
    TG_ARG_AS(norm_linear_params, linear.fused, "fused_wgrad", BOOL, "w must be a leaf if it needs a gradient."),
    TG_ARG_AS(norm_linear_params, linear.chunks, "chunks", INT,
              "Number of messages that carry a rank's rows; 1: one collective."),
};

const tg_op tg_op_norm_linear = {
    .size = sizeof(tg_op),
    .name = "norm_linear",
    .formula = "norm(x) w^T + b",
    .inputs = "x w b norm_weight norm_bias",
    .n_in = INPUTS,
    .n_out = 1,
    .params_size = sizeof(norm_linear_params),
    .saves_in = 1u << TG_LINEAR_X | 1u << TG_LINEAR_W | 1u << NORM_W | 1u << NORM_B,
    .optional = 1u << TG_LINEAR_B | 1u << NORM_W | 1u << NORM_B,
    .passes = 1u << TG_LINEAR_W | 1u << TG_LINEAR_B,
    .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true,
    .collective = true,
    .infer = norm_linear_infer,
    .forward = norm_linear_forward,
    .backward = norm_linear_backward,
    .vjp = norm_linear_vjp,
    .jvp = norm_linear_jvp,
    .flops = norm_linear_flops,
    TG_FIELDS(norm_linear_fields),
    .preset = &layer,
    TG_SAMPLES(samples),
};

/* ---- The public function ---- */

static norm_linear_params params_of(const tg_comm *comm, const tg_norm_linear_opts *o) {
    const tg_linear_grad_opts linear = {.sequence_parallel = o->sequence_parallel,
                                        .allreduce_dgrad = o->allreduce_dgrad,
                                        .fused_wgrad = o->fused_wgrad,
                                        .chunks = o->chunks};
    return (norm_linear_params){
        .linear = tg_linear_params_of(comm, &linear), .eps = o->eps, .rms = o->rms, .zero_centered = o->zero_centered};
}

static tg_status read_options(tg_tape *t, tg_tensor *const xw[2], const tg_norm_linear_opts *given,
                              tg_norm_linear_opts *o) {
    TG_TRY(tg_tape_check_with(t, xw, 2, "tg_norm_linear"));
    TG_TRY(tg_options(t->ctx, o, &tg_norm_linear_opts_struct, given, "tg_norm_linear"));
    return tg_wgrads_check(o->deferred, t, "tg_norm_linear: opts.deferred");
}

tg_tensor *tg_norm_linear(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_tensor *norm_weight,
                          tg_tensor *norm_bias, tg_comm *c, const tg_norm_linear_opts *opts) {
    tg_norm_linear_opts o;
    tg_tensor *const xw[] = {x, w};
    if (tg_comm_note_missed(c, read_options(t, xw, opts, &o)) != TG_OK) return tg_tape_inert(t, xw, 2);
    norm_linear_params p = params_of(c, &o);
    tg_tensor *y = tg_inert(t->ctx);
    tg_apply(t, &tg_op_norm_linear, &p, (tg_tensor *const[]){x, w, b, norm_weight, norm_bias}, INPUTS, &y, 1,
             o.deferred ? tg_wgrads_keep(o.deferred) : NULL, tg_wgrads_drop, TG_SITE);
    return y;
}
