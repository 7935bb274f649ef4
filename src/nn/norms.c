/* Norm layers: layer, RMS, group and batch norm. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "nn/layer.h"

typedef struct norm {
    tg_ctx *ctx;
    double eps, momentum; /* momentum: of batch norm */
    int64_t groups;       /* of group norm */
} norm;

static const norm *norm_of(const tg_module *m) { return m->state; }

static void norm_free(void *state) {
    norm *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

/* ---- Kinds ---- */

static tg_tensor *layer_norm(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_layer_norm(t, x, tg_module_own(m, "weight"), tg_module_own(m, "bias"), norm_of(m)->eps);
}

static tg_tensor *rms_norm(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_rms_norm(t, x, tg_module_own(m, "weight"), norm_of(m)->eps);
}

static tg_tensor *group_norm(tg_module *m, tg_tape *t, tg_tensor *x) {
    const norm *s = norm_of(m);
    return tg_group_norm(t, x, s->groups, tg_module_own(m, "weight"), tg_module_own(m, "bias"), s->eps);
}

static tg_tensor *batch_norm(tg_module *m, tg_tape *t, tg_tensor *x) {
    const norm *s = norm_of(m);
    return tg_batch_norm(t, x, tg_module_own(m, "weight"), tg_module_own(m, "bias"), tg_module_own(m, "running_mean"),
                         tg_module_own(m, "running_var"), s->momentum, s->eps);
}

static size_t describe(const tg_module *m, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "eps %g", norm_of(m)->eps);
    return at;
}

static size_t describe_group(const tg_module *m, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "groups %lld, eps %g", (long long)norm_of(m)->groups, norm_of(m)->eps);
    return at;
}

static size_t describe_batch(const tg_module *m, char *buf, size_t n) {
    size_t at = 0;
    tg_text(buf, n, &at, "momentum %g, eps %g", norm_of(m)->momentum, norm_of(m)->eps);
    return at;
}

static const tg_module_ops layer_norm_ops = {.size = sizeof(tg_module_ops),
                                             .kind = "layer_norm",
                                             .forward = layer_norm,
                                             .free = norm_free,
                                             .describe = describe};
static const tg_module_ops rms_norm_ops = {
    .size = sizeof(tg_module_ops), .kind = "rms_norm", .forward = rms_norm, .free = norm_free, .describe = describe};
static const tg_module_ops group_norm_ops = {.size = sizeof(tg_module_ops),
                                             .kind = "group_norm",
                                             .forward = group_norm,
                                             .free = norm_free,
                                             .describe = describe_group};
static const tg_module_ops batch_norm_ops = {.size = sizeof(tg_module_ops),
                                             .kind = "batch_norm",
                                             .forward = batch_norm,
                                             .free = norm_free,
                                             .describe = describe_batch};

/* ---- Creation ---- */

/* Creates a norm of this kind with a weight and, if `bias` is true, a bias. */
static tg_module *norm_new(tg_ctx *ctx, const tg_module_ops *ops, int64_t size, norm with, bool bias) {
    norm *s = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (s) *s = with, s->ctx = ctx;
    tg_module *m = tg_module_new(s ? ctx : NULL, ops, s);
    if (!tg_module_ok(m)) return m;
    tg_layer_add(m, "weight", tg_layer_vector(ctx, "weight", size, 1));
    if (bias) tg_layer_add(m, "bias", tg_layer_vector(ctx, "bias", size, 0));
    return tg_layer_checked(m);
}

/* Creates a norm over the last dim. */
static tg_module *row_norm_new(tg_ctx *ctx, const tg_module_ops *ops, const char *who, int64_t hidden, double eps,
                               bool bias) {
    bool good = tg_layer_positive(ctx, who, "hidden", hidden) && tg_layer_finite(ctx, who, "eps", eps);
    return norm_new(good ? ctx : NULL, ops, hidden, (norm){.eps = eps}, bias);
}

tg_module *tg_nn_layer_norm(tg_ctx *ctx, int64_t hidden, double eps) {
    return row_norm_new(ctx, &layer_norm_ops, "tg_nn_layer_norm", hidden, eps, true);
}

tg_module *tg_nn_rms_norm(tg_ctx *ctx, int64_t hidden, double eps) {
    return row_norm_new(ctx, &rms_norm_ops, "tg_nn_rms_norm", hidden, eps, false);
}

tg_module *tg_nn_group_norm(tg_ctx *ctx, int64_t groups, int64_t channels, double eps) {
    static const char *const who = "tg_nn_group_norm";
    bool good = tg_layer_positive(ctx, who, "groups", groups) && tg_layer_positive(ctx, who, "channels", channels) &&
                tg_layer_finite(ctx, who, "eps", eps);
    if (good && channels % groups)
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: groups is %lld, expected a divisor of the %lld channels", who,
                (long long)groups, (long long)channels);
    return norm_new(ctx, &group_norm_ops, channels, (norm){.eps = eps, .groups = groups}, true);
}

/* Adds a running statistic, which the batch norm writes. */
static void add_statistic(tg_module *m, const char *name, int64_t channels, double value) {
    tg_tensor *x = tg_zeros(m->ctx, TG_DTYPE_DEFAULT, (tg_shape){1, {channels}});
    if (tg_ok(m->ctx) && value != 0) m->ctx->run.ops->fill(m->ctx, tg_array_of(x), value);
    if (tg_module_add_buffer(m, name, x, TG_BUFFER(.keep_f32 = true)) != TG_OK) tg_drop(x);
}

tg_module *tg_nn_batch_norm(tg_ctx *ctx, int64_t channels, double momentum, double eps) {
    static const char *const who = "tg_nn_batch_norm";
    bool good = tg_layer_positive(ctx, who, "channels", channels) && tg_layer_finite(ctx, who, "eps", eps);
    if (good && !(momentum >= 0 && momentum <= 1))
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: momentum is %g, expected 0 to 1", who, momentum);
    tg_module *m = norm_new(ctx, &batch_norm_ops, channels, (norm){.eps = eps, .momentum = momentum}, true);
    if (!tg_module_ok(m)) return m;
    add_statistic(m, "running_mean", channels, 0);
    add_statistic(m, "running_var", channels, 1);
    return tg_layer_checked(m);
}
