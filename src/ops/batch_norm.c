/* Batch normalization: each channel of x [n, c, ..] is shifted and scaled to mean 0 and variance 1 over all other
 * dims, then multiplied by w and added to b. In training mode mean and variance are those of the batch, and the running
 * statistics, if there are any, are updated with them. In evaluation mode the running statistics are used, or those of
 * the batch if there are none. */
#include <math.h>

#include "placement/grid.h"
#include "ops/common/channel_norm.h"
#include "ops/common/derive.h"
#include "ops/common/nn_op.h"

/* Which statistics the op uses. */
typedef enum norm_mode { BY_TAPE, BY_BATCH, BY_RUNNING } norm_mode;

typedef struct batch_norm_params {
    double momentum, eps;
    norm_mode mode; /* BY_TAPE: infer chooses one of the others by the tape's mode */
} batch_norm_params;

enum { X = TG_NORM_X, W, B, RUNNING_MEAN, RUNNING_VAR, INPUTS };
enum { MEAN = TG_NORM_MEAN, RSTD };
enum { RUNNING_BOTH = 1u << RUNNING_MEAN | 1u << RUNNING_VAR };

static const batch_norm_params *params(const tg_call *c) { return c->params; }
static bool by_batch(const tg_call *c) { return params(c)->mode == BY_BATCH; }

/* Describes the normalization: every channel is a group. */
static tg_channel_norm norm_of(const tg_call *c) {
    const tg_tensor *x = c->input[X];
    tg_channel_norm k = tg_channel_norm_of(x, x->shape[1], 1u << 0 | 1u << 2 | 1u << 3, params(c)->eps);
    k.given = !by_batch(c);
    return k;
}

/* Checks a running statistic, which forward may write. */
static tg_status need_running(tg_call *c, int i, const char *what) {
    const tg_tensor *r = c->input[i];
    tg_dtype dtype = (tg_dtype)c->input[X]->dtype, wide = tg_accumulate_dtype(dtype);
    if (!r) return TG_OK;
    TG_TRY(tg_need_channels(c, i, what));
    if (r->dtype != dtype && r->dtype != wide)
        return tg_call_fail(c, TG_ERR_DTYPE, "%s is %s; it must be %s%s%s", what, tg_dtype_name((tg_dtype)r->dtype),
                            tg_dtype_name(dtype), dtype == wide ? "" : " or ",
                            dtype == wide ? "" : tg_dtype_name(wide));
    if (tg_needs(c, i))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "%s requires a gradient; it is a buffer that the op updates and must "
                            "not require one", what);
    return TG_OK;
}

static tg_status check_numbers(tg_call *c) {
    const batch_norm_params *p = params(c);
    if (!(p->eps >= 0 && isfinite(p->eps)))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "eps is %g; it must be finite and 0 or more", p->eps);
    if (!(p->momentum >= 0 && p->momentum <= 1))
        return tg_call_fail(c, TG_ERR_ARGUMENT, "momentum is %g; it must be from 0 to 1", p->momentum);
    if (!c->input[RUNNING_MEAN] == !c->input[RUNNING_VAR]) return TG_OK;
    return tg_call_fail(c, TG_ERR_ARGUMENT, "only one of running_mean and running_var is given; give both or neither");
}

/* Returns the number of elements of a channel; 0 if there are no channels. */
static int64_t members(const tg_tensor *x) { return x->shape[1] ? x->numel / x->shape[1] : 0; }

/* Checks that each channel has more than one value if forward updates the running variance, which is unbiased. */
static tg_status check_batch(tg_call *c) {
    if (!c->writes || members(c->input[X]) != 1) return TG_OK;
    return tg_call_fail(c, TG_ERR_SHAPE,
                        "x has one value per channel, which has no unbiased variance for running_var; give more "
                        "values in training mode");
}

/* States which dims may be sharded (tg_call_role): that of the channels and, unless the batch's statistics are used,
 * the other dims of x. */
static tg_status declare_roles(tg_call *c) {
    for (int d = 0; d < c->input[X]->ndim; d++)
        if (d == 1 || !by_batch(c)) TG_TRY(tg_call_role(c, X, d, d));
    for (int i = W; i < INPUTS; i++)
        if (c->input[i]) TG_TRY(tg_call_role(c, i, 0, 1));
    return tg_call_linear(c, c->input[W] ? 1u << W | 1u << B : 0); /* jointly in w and b, or in none */
}

/* Checks the placements of the running statistics if forward updates them. If x is opaque on an axis (TG_OPAQUE), each
 * rank has a batch of its own there, and updates the running statistics differently. The running statistics must then
 * be opaque there too, or they would no longer match their placement. The general placement rule does not check
 * that. */
static tg_status check_running_placement(tg_call *c) {
    if (!c->writes || !tg_grid_axes(c->ctx)) return TG_OK;
    for (int a = 0; a < TG_MAX_AXES; a++) {
        tg_placement x = tg_place_on(c->input[X], (tg_axis)a);
        if (x.kind != TG_VARYING || x.layout != TG_OPAQUE) continue;
        for (int i = RUNNING_MEAN; i <= RUNNING_VAR; i++) {
            tg_placement r = tg_place_on(c->input[i], (tg_axis)a);
            if (r.kind == TG_VARYING && r.layout == TG_OPAQUE) continue;
            return tg_call_fail(c, TG_ERR_PLACEMENT,
                                "x is opaque on axis %s but %s is not, and each rank would update it from its own "
                                "batch; make the running statistics opaque there, or shard x", tg_axis_name((tg_axis)a),
                                i == RUNNING_MEAN ? "running_mean" : "running_var");
        }
    }
    return TG_OK;
}

static tg_status batch_norm_infer(tg_call *c) {
    batch_norm_params *p = c->params;
    const tg_tensor *x = c->input[X];
    TG_TRY(tg_need_float(c, X));
    if (x->ndim < 2) return tg_call_fail(c, TG_ERR_SHAPE, "x has too few dims; it must be [n, c, ..] with 2 or more");
    TG_TRY(check_numbers(c));
    const tg_channel_norm k = norm_of(c);
    TG_TRY(tg_channel_norm_infer(c, &k));
    TG_TRY(need_running(c, RUNNING_MEAN, "running_mean"));
    TG_TRY(need_running(c, RUNNING_VAR, "running_var"));
    if (p->mode == BY_TAPE) p->mode = c->tape->training || !c->input[RUNNING_MEAN] ? BY_BATCH : BY_RUNNING;
    if (!by_batch(c) || !c->tape->training || !members(x)) c->writes = 0;
    TG_TRY(check_batch(c));
    TG_TRY(check_running_placement(c));
    TG_TRY(declare_roles(c));
    return tg_infer_same(c);
}

/* Updates running statistic r, input i: r := (1 - momentum) r + momentum scale s. */
static tg_status update_running(tg_call *c, const tg_channel_norm *k, int i, const tg_tensor *s, double scale) {
    tg_tensor *r = tg_norm_by_channel(c, k, c->input[i]);
    double momentum = params(c)->momentum;
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    return tg_op_map(c, TG_FN_linear_sum, r, TG_T2(r, s), 2, 1 - momentum, momentum * scale, false);
}

/* Stores mean and variance in the saved buffers: the running statistics if k->given is true, otherwise the statistics
 * of the batch. In the second case, updates the running statistics if c->writes says so. t is a temporary. */
static tg_status statistics(tg_call *c, const tg_channel_norm *k, const tg_tensor *x, const tg_tensor *t) {
    const double n = tg_norm_members(k);
    for (int i = MEAN; k->given && i <= RSTD; i++) {
        tg_tensor *running = tg_norm_by_channel(c, k, c->input[RUNNING_MEAN + i]);
        if (!tg_ok(c->ctx)) return c->ctx->run.status;
        TG_TRY(tg_op_map(c, TG_FN_id, c->saved[i], TG_T1(running), 1, 0, 0, false));
    }
    if (k->given) return TG_OK;
    TG_TRY(tg_norm_moments(c, k, x, t));
    if (!c->writes) return TG_OK;
    TG_TRY(update_running(c, k, RUNNING_MEAN, c->saved[MEAN], 1));
    return update_running(c, k, RUNNING_VAR, c->saved[RSTD], n / (n - 1));
}

static tg_status batch_norm_forward(tg_call *c) {
    const tg_channel_norm k = norm_of(c);
    tg_tensor *x = tg_norm_inside(c, &k, c->input[X]), *t = tg_norm_temp(c, &k);
    if (!tg_ok(c->ctx)) return c->ctx->run.status;
    TG_TRY(statistics(c, &k, x, t));
    return tg_norm_apply(c, &k, x, t);
}

static tg_status batch_norm_backward(tg_call *c) {
    const tg_channel_norm k = norm_of(c);
    return tg_norm_back(c, &k);
}

static tg_tensor *column(tg_tape *t, tg_tensor *w) { return tg_unsqueeze(t, tg_wide(t, w), 1); }

/* Returns saved buffer k, the mean or 1 / deviation that forward used, as [c, 1]. The running statistics cannot be read
 * instead, because they may have changed since. */
static tg_tensor *kept(tg_tape *t, const tg_node *n, int k) {
    const tg_tensor *s = tg_node_kept(n)[k];
    tg_tensor *y = tg_tape_tensor(t, s->dtype, 2, s->shape + 1, s->stride + 1, tg_storage_ref(s->storage), s->offset);
    if (!y) return tg_inert(t->ctx);
    y->place = tg_node_in(n)[RUNNING_MEAN]->place;
    return y;
}

static tg_status batch_norm_compose(tg_tape *t, const tg_node *n, tg_tensor **out) {
    const batch_norm_params *p = tg_node_params(n);
    tg_tensor *const *in = tg_node_in(n), *x = in[X];
    tg_tensor *h = tg_reshape(t, tg_wide(t, x), TG_SHAPE(x->shape[0], x->shape[1], x->numel ? -1 : 0));
    if (p->mode == BY_BATCH) {
        h = tg_sub(t, h, tg_mean(t, h, TG_DIMS(0, 2), true));
        tg_tensor *var = tg_mean(t, tg_square(t, h), TG_DIMS(0, 2), true);
        h = tg_mul(t, h, tg_rsqrt(t, tg_add_scalar(t, var, p->eps)));
    } else {
        h = tg_mul(t, tg_sub(t, h, kept(t, n, MEAN)), kept(t, n, RSTD));
    }
    if (in[W]) h = tg_mul(t, h, column(t, in[W]));
    if (in[B]) h = tg_add(t, h, column(t, in[B]));
    out[0] = tg_cast(t, tg_reshape(t, h, tg_shape_kept(x)), (tg_dtype)x->dtype);
    return TG_OK;
}

TG_COMPOSED(batch_norm)

#define BATCH &(const batch_norm_params){.momentum = 0.1, .eps = 1e-5, .mode = BY_BATCH}
#define RUNNING &(const batch_norm_params){.momentum = 0.1, .eps = 1e-5, .mode = BY_RUNNING}
#define WITH(momentum_, eps_) &(const batch_norm_params){.momentum = momentum_, .eps = eps_}
#define BUFFER(n_) {.shape = TG_S_SHAPE(n_), .lo = 0.5, .hi = 1.5, .frozen = true}
#define SAMPLE(note_, params_, ...) {.note = note_, .params = params_, .n_in = INPUTS, .input = {__VA_ARGS__}}
#define REFUSED(status_, note_, params_, ...) \
    {.note = note_, .params = params_, .n_in = INPUTS, .input = {__VA_ARGS__}, .refused = TG_ERR_##status_}

static const tg_sample batch_norm_samples[] = {
    SAMPLE("lines", BATCH, TG_S(4, 3, 2), TG_S(3), TG_S(3), TG_S_ABSENT, TG_S_ABSENT),
    SAMPLE("images, with buffers", BATCH, TG_S(2, 3, 2, 3), TG_S(3), TG_S(3), BUFFER(3), BUFFER(3)),
    SAMPLE("channels alone", BATCH, TG_S(5, 3), TG_S(3), TG_S(3), BUFFER(3), BUFFER(3)),
    SAMPLE("no weights", BATCH, TG_S(3, 2, 2), TG_S_ABSENT, TG_S_ABSENT, BUFFER(2), BUFFER(2)),
    SAMPLE("no bias", BATCH, TG_S(3, 2, 2), TG_S(2), TG_S_ABSENT, TG_S_ABSENT, TG_S_ABSENT),
    SAMPLE("bias alone", BATCH, TG_S(3, 2, 2), TG_S_ABSENT, TG_S(2), TG_S_ABSENT, TG_S_ABSENT),
    SAMPLE("by running statistics", RUNNING, TG_S(2, 3, 4), TG_S(3), TG_S(3), BUFFER(3), BUFFER(3)),
    SAMPLE("images by running statistics", RUNNING, TG_S(2, 3, 2, 2), TG_S(3), TG_S(3), BUFFER(3), BUFFER(3)),
    SAMPLE("by running statistics alone", RUNNING, TG_S(1, 3), TG_S_ABSENT, TG_S_ABSENT, BUFFER(3), BUFFER(3)),
    SAMPLE("transposed", BATCH, TG_S_AS(TG_SAMPLE_TRANSPOSED, 2, 4, 3), TG_S(4), TG_S(4), BUFFER(4), BUFFER(4)),
    SAMPLE("strided", BATCH, TG_S_AS(TG_SAMPLE_STRIDED, 2, 4, 3), TG_S_AS(TG_SAMPLE_STRIDED, 4),
           TG_S_AS(TG_SAMPLE_STRIDED, 4), TG_S_ABSENT, TG_S_ABSENT),
    SAMPLE("equal members", BATCH, TG_S_AS(TG_SAMPLE_EXPANDED, 2, 4, 3), TG_S(4), TG_S(4), TG_S_ABSENT, TG_S_ABSENT),
    SAMPLE("far from zero", BATCH, TG_S_IN(100, 102, 2, 4, 3), TG_S(4), TG_S(4), BUFFER(4), BUFFER(4)),
    SAMPLE("empty batch", BATCH, TG_S(0, 4, 3), TG_S(4), TG_S(4), BUFFER(4), BUFFER(4)),
    REFUSED(SHAPE, "no channels", BATCH, TG_S(4), TG_S_ABSENT, TG_S_ABSENT, TG_S_ABSENT, TG_S_ABSENT),
    REFUSED(SHAPE, "w of another size", BATCH, TG_S(2, 4, 3), TG_S(3), TG_S(4), TG_S_ABSENT, TG_S_ABSENT),
    REFUSED(SHAPE, "one value a channel", BATCH, TG_S(1, 4, 1), TG_S(4), TG_S(4), BUFFER(4), BUFFER(4)),
    REFUSED(ARGUMENT, "a mean alone", BATCH, TG_S(2, 4, 3), TG_S(4), TG_S(4), BUFFER(4), TG_S_ABSENT),
    REFUSED(ARGUMENT, "a mean with a gradient", BATCH, TG_S(2, 4, 3), TG_S(4), TG_S(4), TG_S(4), BUFFER(4)),
    REFUSED(ARGUMENT, "momentum above 1", WITH(1.5, 1e-5), TG_S(2, 4, 3), TG_S(4), TG_S(4), BUFFER(4), BUFFER(4)),
    REFUSED(ARGUMENT, "negative eps", WITH(0.1, -1), TG_S(2, 4, 3), TG_S(4), TG_S(4), BUFFER(4), BUFFER(4)),
    {.note = "32 images of 64 channels", .params = BATCH, .n_in = INPUTS,
     .input = {TG_S(32, 64, 28, 28), TG_S(64), TG_S(64), BUFFER(64), BUFFER(64)}, .bench = true},
};

static const tg_field batch_norm_fields[] = {
    TG_ARG(batch_norm_params, momentum, DOUBLE, "Share of the new statistics in the running ones, in [0, 1]."),
    TG_ARG(batch_norm_params, eps, DOUBLE, "Is added to the variance."),
};

const tg_op tg_op_batch_norm = {
    .size = sizeof(tg_op),
    .name = "batch_norm",
    .formula = "(x - mean) / sqrt(var + eps) w + b, of channels",
    .inputs = "x w b running_mean running_var",
    .n_in = INPUTS,
    .n_out = 1,
    .params_size = sizeof(batch_norm_params),
    .saves_in = 1u << X | 1u << W,
    .optional = 30,
    .writes = RUNNING_BOTH,
    .family = TG_FAMILY_CUSTOM,
    .sums_f32 = true,
    .infer = batch_norm_infer,
    .forward = batch_norm_forward,
    .backward = batch_norm_backward,
    .vjp = batch_norm_vjp,
    .jvp = batch_norm_jvp,
    TG_FIELDS(batch_norm_fields),
    .preset = WITH(0.1, 1e-5),
    TG_SAMPLES(batch_norm_samples),
};

/* Normalizes the channels of x [n, c, ..]: each channel gets mean 0 and variance 1 over all other dims, is multiplied
 * by its element of w, and its element of b is added. w and b are [c] or NULL.
 *
 * On a tape in training mode the op uses the batch's mean and biased variance. running_mean and running_var [c], if
 * given, are then updated in place: forward sets r to (1 - momentum) r + momentum s, where s is the batch's mean or
 * unbiased variance. The second run of a recomputation does not update them again. In evaluation mode the op uses these
 * two buffers and leaves them unchanged. Without the buffers, it uses the batch's statistics in both modes. The buffers
 * have x's dtype, or float32 for 16-bit x, and must not require a gradient. Statistics are float32 (float64 for
 * float64).
 *
 * x may be sharded over ranks along its channels, together with w, b and the buffers. A sharded batch is refused if the
 * op uses the batch's statistics, because a rank's statistics are not those of the batch. */
tg_tensor *tg_batch_norm(tg_tape *t, tg_tensor *x, tg_tensor *w, tg_tensor *b, tg_tensor *running_mean,
                         tg_tensor *running_var, double momentum, double eps) {
    batch_norm_params p = {.momentum = momentum, .eps = eps};
    return TG_RECORD(t, tg_op_batch_norm, &p, x, w, b, running_mean, running_var);
}
