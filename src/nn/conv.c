/* Convolution layers in one and two dims. */
#include "base/memory/host_memory.h"
#include "base/options.h"
#include "base/text.h"
#include "nn/layer.h"

typedef struct conv {
    tg_ctx *ctx;
    tg_conv_opts o;
} conv;

static void conv_free(void *state) {
    conv *s = state;
    tg_host_free(s->ctx, s, sizeof *s);
}

static tg_tensor *conv1d(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_conv1d(t, x, tg_module_own(m, "weight"), tg_module_own(m, "bias"), &((conv *)m->state)->o);
}

static tg_tensor *conv2d(tg_module *m, tg_tape *t, tg_tensor *x) {
    return tg_conv2d(t, x, tg_module_own(m, "weight"), tg_module_own(m, "bias"), &((conv *)m->state)->o);
}

static size_t describe(const tg_module *m, char *buf, size_t n) {
    const tg_tensor *w = tg_module_own(m, "weight");
    int64_t groups = ((const conv *)m->state)->o.groups;
    char window[64];
    size_t at = 0;
    tg_shape_text(w->ndim - 2, w->shape + 2, window, sizeof window);
    tg_text(buf, n, &at, "in %lld, out %lld, window %s", (long long)(w->shape[1] * groups), (long long)w->shape[0],
            window);
    if (groups > 1) tg_text(buf, n, &at, ", groups %lld", (long long)groups);
    if (tg_module_own(m, "bias")) tg_text(buf, n, &at, ", bias");
    return at;
}

static const tg_module_ops conv1d_ops = {
    .size = sizeof(tg_module_ops), .kind = "conv1d", .forward = conv1d, .free = conv_free, .describe = describe};
static const tg_module_ops conv2d_ops = {
    .size = sizeof(tg_module_ops), .kind = "conv2d", .forward = conv2d, .free = conv_free, .describe = describe};

/* Reads the options, and checks that their groups divide the channels. */
static bool read(tg_ctx *ctx, const char *who, int64_t in, int64_t out, tg_conv_opts *o, const tg_conv_opts *given) {
    if (!tg_ok(ctx) || tg_options(ctx, o, &tg_conv_opts_struct, given, who) != TG_OK) return false;
    if (o->groups > 0 && in % o->groups == 0 && out % o->groups == 0) return true;
    tg_fail(ctx, TG_ERR_ARGUMENT,
            "%s: groups is %lld, expected a divisor of in, which is %lld, and of out, which is %lld", who,
            (long long)o->groups, (long long)in, (long long)out);
    return false;
}

/* Creates a layer with windows of this shape. */
static tg_module *conv_new(tg_ctx *ctx, const tg_module_ops *ops, const char *who, int64_t in, int64_t out,
                           tg_shape window, bool bias, double std, const tg_conv_opts *opts) {
    tg_conv_opts o;
    bool good = tg_layer_positive(ctx, who, "in", in) && tg_layer_positive(ctx, who, "out", out) &&
                read(ctx, who, in, out, &o, opts);
    conv *s = good ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (s) *s = (conv){ctx, o};
    tg_module *m = tg_module_new(s ? ctx : NULL, ops, s);
    if (!tg_module_ok(m)) return m;
    tg_shape shape = {window.ndim + 2, {out, in / o.groups, window.dim[0], window.dim[1]}};
    tg_layer_add(m, "weight", tg_param_new(ctx, "weight", TG_DTYPE_DEFAULT, shape, std));
    if (bias) tg_layer_add(m, "bias", tg_layer_vector(ctx, "bias", out, 0));
    return tg_layer_checked(m);
}

tg_module *tg_nn_conv1d(tg_ctx *ctx, int64_t in, int64_t out, int64_t size, bool bias, double std,
                        const tg_conv_opts *opts) {
    bool good = tg_layer_positive(ctx, "tg_nn_conv1d", "size", size);
    return conv_new(good ? ctx : NULL, &conv1d_ops, "tg_nn_conv1d", in, out, (tg_shape){1, {size}}, bias, std, opts);
}

tg_module *tg_nn_conv2d(tg_ctx *ctx, int64_t in, int64_t out, int64_t height, int64_t width, bool bias, double std,
                        const tg_conv_opts *opts) {
    static const char *const who = "tg_nn_conv2d";
    bool good = tg_layer_positive(ctx, who, "height", height) && tg_layer_positive(ctx, who, "width", width);
    return conv_new(good ? ctx : NULL, &conv2d_ops, who, in, out, (tg_shape){2, {height, width}}, bias, std, opts);
}
