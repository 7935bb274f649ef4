/* What both conversions have in common: the config, and the parameters in the two forms. */
#include "models/files/convert.h"

#include "base/memory/host_memory.h"

tg_status tg_conversion_check(tg_ctx *ctx, const char *who, const char *from, const char *to) {
    TG_TRY(tg_io_enter(ctx));
    if (!from || !to) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: a directory is NULL", who);
    if (ctx->host && !ctx->meta) return TG_OK;
    return tg_fail(ctx, TG_ERR_DEVICE, "%s: device \"%s\", expected one whose memory the host uses", who,
                   ctx->run.ops->name);
}

tg_status tg_conversion_open(tg_conversion *c, tg_ctx *ctx, const char *prefix, const char *config) {
    tg_json j;
    *c = (tg_conversion){.ctx = ctx, .prefix = prefix ? prefix : ""};
    TG_TRY(tg_json_load(&j, ctx, config));
    c->config = j.object;
    return TG_OK;
}

void tg_conversion_close(tg_conversion *c) {
    for (int i = 0; i < c->n; i++) {
        if (c->state.named) tg_host_strfree(c->ctx, (char *)c->state.named[i].name);
        if (c->file.named) tg_host_strfree(c->ctx, (char *)c->file.named[i].name);
    }
    tg_outlines_free(c->ctx, &c->state);
    tg_outlines_free(c->ctx, &c->file);
    tg_module_free(c->lm);
    tg_ctx_free(c->plan);
    json_decref(c->config);
}

/* Sets the key, the name and the shapes of parameter i. The shapes have no padding rows. */
static tg_status add_param(tg_conversion *c, int i) {
    const char *path;
    const tg_tensor *p = tg_module_param(c->lm, i, &path);
    if (!tg_ok(c->plan)) return tg_fail(c->ctx, tg_ctx_status(c->plan), "%s", tg_ctx_message(c->plan));
    const tg_shape stored = tg_weight_shape(c->lm, p, path);
    tg_shape own = tg_shape_make(p->ndim, p->shape);
    own.dim[0] = tg_weight_rows(c->lm, p, path);
    char *key = tg_format_path(c->ctx, "%s%s%s", c->prefix, *c->prefix ? "." : "", path);
    tg_outlines_set(&c->state, i, key, (tg_dtype)p->dtype, &own);
    tg_outlines_set(&c->file, i, tg_host_strdup(c->ctx, path), (tg_dtype)p->dtype, &stored);
    return c->ctx->run.status;
}

tg_status tg_conversion_plan(tg_conversion *c, const char *config, tg_dtype dtype) {
    tg_ctx *ctx = c->ctx;
    c->plan = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .dtype = dtype, .allocator = ctx->run.allocator,
                                   .files = ctx->files));
    c->lm = tg_lm_from_config(c->plan, config, NULL);
    if (!tg_ok(c->plan)) return tg_fail(ctx, tg_ctx_status(c->plan), "%s", tg_ctx_message(c->plan));
    c->n = tg_module_param_count(c->lm);
    TG_TRY(tg_outlines_new(ctx, &c->state, c->n));
    TG_TRY(tg_outlines_new(ctx, &c->file, c->n));
    for (int i = 0; i < c->n; i++) TG_TRY(add_param(c, i));
    return TG_OK;
}

void tg_conversion_set_dtype(tg_conversion *c, int i, tg_dtype dtype) {
    c->state.like[i].dtype = c->file.like[i].dtype = (uint8_t)dtype;
}

tg_tensor *tg_conversion_tensor(const tg_conversion *c, int i, tg_tensor **view) {
    const tg_tensor *like = &c->state.like[i];
    tg_tensor *x = tg_temp_empty(c->ctx, (tg_dtype)like->dtype, like->ndim, like->shape, TG_MEM_TEMPORARY);
    *view = x ? tg_weight_view(c->lm, x, like->shape[0], c->file.named[i].name) : NULL;
    if (*view) return x;
    tg_temp_free(x);
    return NULL;
}

json_t *tg_conversion_config(const tg_conversion *c) {
    json_t *own = tg_lm_config_json(c->lm), *all = json_object(), *value;
    const char *name;
    int failed = !own || !all;
    if (!own && tg_ok(c->plan))
        tg_fail(c->ctx, TG_ERR_UNSUPPORTED, "the config.json of family \"%s\" cannot describe the model of the config",
                tg_lm_config_of(c->lm)->family);
    else if (!own)
        tg_fail(c->ctx, tg_ctx_status(c->plan), "%s", tg_ctx_message(c->plan));
    json_object_foreach(c->config, name, value) /* keeps the order of the source */
        if (json_object_get(own, name)) failed |= json_object_set(all, name, value);
    bool good = !failed && json_object_update(all, own) == 0;
    json_decref(own);
    if (good) return all;
    json_decref(all);
    tg_fail(c->ctx, TG_ERR_MEMORY, "no memory for the config"); /* unless there is an error already */
    return NULL;
}
