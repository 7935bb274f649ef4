/* What the constructors of layers share: checks of sizes, and parameters with constant values. */
#include "nn/layer.h"

#include <math.h>

bool tg_layer_positive(tg_ctx *ctx, const char *who, const char *name, int64_t size) {
    if (tg_ok(ctx) && size < 1)
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %lld, expected 1 or more", who, name, (long long)size);
    return tg_ok(ctx);
}

bool tg_layer_finite(tg_ctx *ctx, const char *who, const char *name, double x) {
    if (tg_ok(ctx) && !(x >= 0 && isfinite(x)))
        tg_fail(ctx, TG_ERR_ARGUMENT, "%s: %s is %g, expected a finite number, 0 or more", who, name, x);
    return tg_ok(ctx);
}

tg_tensor *tg_layer_vector(tg_ctx *ctx, const char *name, int64_t n, double value) {
    tg_tensor *p = tg_param_new(ctx, name, TG_DTYPE_DEFAULT, (tg_shape){1, {n}}, 0);
    if (tg_ok(ctx) && value != 0) ctx->run.ops->fill(ctx, tg_array_of(p), value);
    return p;
}

void tg_layer_add(tg_module *m, const char *name, tg_tensor *param) {
    if (tg_module_add_param(m, name, param) != TG_OK) tg_drop(param);
}

tg_module *tg_layer_checked(tg_module *m) {
    if (tg_module_ok(m)) return m;
    if (m && m->ops) tg_module_free(m);
    return tg_module_new(NULL, NULL, NULL);
}
