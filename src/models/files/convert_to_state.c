/* tg_gpt_to_state: from a model directory to saved state. */

#include "base/memory/host_memory.h"
#include "models/files/convert.h"

/* Fails if the files have a tensor that the model lacks. */
static tg_status check_names(const tg_conversion *c, const tg_safetensors *f) {
    for (int i = 0; i < tg_safetensors_count(f); i++)
        if (!tg_weight_is_known(c->lm, tg_safetensors_at(f, i)->name))
            return tg_fail(c->ctx, TG_ERR_FORMAT,
                           "'%s': tensor \"%s\" does not belong to the model that config.json describes", f->file.path,
                           tg_safetensors_at(f, i)->name);
    return TG_OK;
}

/* Takes the dtypes of the files, and checks the shapes. */
static tg_status take_dtypes(tg_conversion *c, tg_safetensors *f) {
    for (int i = 0; i < c->n; i++) {
        const char *path = c->file.named[i].name;
        const tg_shape shape = tg_shape_make(c->file.like[i].ndim, c->file.dims[i]);
        const tg_safetensors_entry *e = tg_safetensors_find(f, tg_weight_stored_name(f, path));
        if (!e)
            return tg_fail(c->ctx, TG_ERR_FORMAT, "'%s': tensor \"%s\", which the model needs, is missing",
                           f->file.path, path);
        TG_TRY(tg_safetensors_expect(f, e->name, &shape, e->dtype, false));
        tg_conversion_set_dtype(c, i, e->dtype);
    }
    return TG_OK;
}

/* Copies parameter i from the files of the model to the state. */
static tg_status move(const tg_conversion *c, tg_safetensors *f, tg_state_writer *w, int i) {
    tg_tensor *view, *x = tg_conversion_tensor(c, i, &view);
    if (!x) return c->ctx->run.status;
    tg_status s = tg_safetensors_fill(f, tg_weight_stored_name(f, c->file.named[i].name), view, false, NULL);
    if (s == TG_OK) s = tg_state_writer_put(w, x);
    tg_temp_free(view);
    tg_temp_free(x);
    return s;
}

static tg_status write_state(const tg_conversion *c, tg_safetensors *f, const char *state) {
    tg_state_writer w = {0};
    tg_status s = tg_state_writer_begin(&w, c->ctx, state, c->state.named, c->n);
    for (int i = 0; i < c->n && s == TG_OK; i++) s = move(c, f, &w, i);
    if (s == TG_OK) s = tg_state_writer_commit(&w);
    tg_state_writer_abandon(&w);
    return s;
}

/* Writes the config next to the complete state, for those who load it. */
static tg_status write_config(const tg_conversion *c, const char *path) {
    json_t *config = tg_conversion_config(c);
    tg_status s = config ? tg_json_save(c->ctx, path, config) : c->ctx->run.status;
    json_decref(config);
    return s;
}

/* Fails if the directory has a state, or a model, whose config must not be lost. */
static tg_status check_target(tg_ctx *ctx, const char *state, const char *config) {
    TG_TRY(tg_state_require_none(ctx, state));
    bool there = false;
    TG_TRY(tg_file_exists(ctx, config, &there));
    if (!there) return TG_OK;
    return tg_fail(ctx, TG_ERR_STATE, "'%s' has a model already; give another directory", state);
}

/* Returns a dtype of the files that config.json can name. */
static tg_dtype dtype_of(const tg_safetensors *f) {
    for (int i = 0; i < tg_safetensors_count(f); i++) {
        tg_dtype dtype = tg_safetensors_at(f, i)->dtype;
        if (tg_is_float(dtype) && tg_dtype_size(dtype) > 1) return dtype;
    }
    return TG_F32;
}

/* from, to: the paths of both config.json. */
static tg_status convert(tg_conversion *c, const char *from, const char *to, const char *model, const char *state) {
    char *weights = tg_weights_find(c->ctx, model);
    tg_safetensors *f = weights ? tg_safetensors_open(c->ctx, weights) : NULL;
    tg_status s = f ? check_target(c->ctx, state, to) : c->ctx->run.status;
    if (s == TG_OK) s = tg_conversion_plan(c, from, dtype_of(f));
    if (s == TG_OK) s = check_names(c, f);
    if (s == TG_OK) s = take_dtypes(c, f);
    if (s == TG_OK) s = write_state(c, f, state);
    if (s == TG_OK) s = write_config(c, to);
    tg_safetensors_close(f);
    tg_host_strfree(c->ctx, weights);
    return s;
}

tg_status tg_gpt_to_state(tg_ctx *ctx, const char *model, const char *state, const char *prefix) {
    tg_conversion c = {.ctx = ctx};
    TG_TRY(tg_conversion_check(ctx, "tg_gpt_to_state", model, state));
    char *from = tg_format_path(ctx, "%s/config.json", model), *to = tg_format_path(ctx, "%s/config.json", state);
    tg_status s = from && to ? tg_conversion_open(&c, ctx, prefix, from) : ctx->run.status;
    if (s == TG_OK) s = convert(&c, from, to, model, state);
    tg_conversion_close(&c);
    tg_host_strfree(ctx, from);
    tg_host_strfree(ctx, to);
    return s;
}
