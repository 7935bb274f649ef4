/* tg_gpt_from_state: from saved state to a model directory. */
#include "base/memory/host_memory.h"
#include "models/files/convert.h"

/* ---- The state ---- */

/* Finds parameter i in the state, and checks its shape. NULL after recording an error. */
static const tg_state_key *require(const tg_conversion *c, const tg_state *d, int i) {
    char has[160], wants[160];
    const tg_tensor *like = &c->state.like[i];
    const tg_state_key *k = tg_state_find(d, c->state.named[i].name);
    size_t bytes = (size_t)like->ndim * sizeof *like->shape;
    if (k && k->whole.ndim == like->ndim && !memcmp(k->whole.dim, like->shape, bytes)) return k;
    if (k) tg_shape_text((int)k->whole.ndim, k->whole.dim, has, sizeof has);
    tg_shape_text(like->ndim, like->shape, wants, sizeof wants);
    tg_fail(c->ctx, TG_ERR_FORMAT, "'%s': tensor '%.128s' is %s, expected %s", d->dir, c->state.named[i].name,
            k ? has : "missing", wants);
    return NULL;
}

/* Fails if the state has keys but none with the prefix, or if a key with the prefix is not one of the model. */
static tg_status check_keys(const tg_conversion *c, const tg_state *d) {
    int n = 0;
    for (int i = 0; i < d->n_keys; i++) {
        const char *path = tg_key_after(d->key[i].key, c->prefix);
        n += path != NULL;
        if (path && !tg_module_find(c->lm, path))
            return tg_fail(c->ctx, TG_ERR_FORMAT,
                           "'%s': tensor '%.128s' does not belong to the model that the config describes", d->dir,
                           d->key[i].key);
    }
    if (n || !d->n_keys) return TG_OK;
    return tg_fail(c->ctx, TG_ERR_FORMAT,
                   "'%s' has no tensor whose key begins with '%.128s.'; the first one is '%.128s'", d->dir, c->prefix,
                   d->key[0].key);
}

/* Makes all checks of the state, and takes its dtypes. */
static tg_status check_state(tg_conversion *c, tg_state *d) {
    TG_TRY(check_keys(c, d));
    for (int i = 0; i < c->n; i++) {
        const tg_state_key *k = require(c, d, i);
        if (!k) return c->ctx->run.status;
        TG_TRY(tg_state_check_key(d, k));
        tg_conversion_set_dtype(c, i, k->dtype);
    }
    for (int i = 0; i < d->n_files; i++) {
        tg_safetensors *f = tg_state_file_open(d, i);
        TG_TRY(f ? tg_safetensors_verify(f, 0, 1) : c->ctx->run.status);
    }
    return TG_OK;
}

/* ---- The files of the model ---- */

/* Copies parameter i from the state to the file of weights. */
static tg_status move(const tg_conversion *c, tg_state *d, tg_safetensors_writer *w, int i) {
    tg_block all;
    const tg_state_key *k = tg_state_find(d, c->state.named[i].name);
    tg_tensor *view, *x = tg_conversion_tensor(c, i, &view);
    if (!x) return c->ctx->run.status;
    tg_status s = tg_block_all(c->ctx, &k->whole, &all);
    if (s == TG_OK) s = tg_state_read(d, k, &all, tg_data(x));
    if (s == TG_OK) s = tg_safetensors_put(w, view);
    tg_block_free(c->ctx, &all);
    tg_temp_free(view);
    tg_temp_free(x);
    return s;
}

/* Returns the number of parameters, from number `first` on, that fit in a file. */
static int count_of_file(const tg_conversion *c, int first) {
    const int64_t most = TG_LM_SAVE()->file_bytes;
    int64_t bytes = 0;
    int n = 0;
    for (; first + n < c->n; n++) {
        const tg_tensor *x = &c->file.like[first + n];
        bytes += x->numel * (int64_t)tg_dtype_size((tg_dtype)x->dtype);
        if (n && bytes > most) break;
    }
    return n;
}

/* A file of weights: its path, and its parameters, n of them from number `first` on. */
typedef struct part {
    char *path;
    int first, n;
} part;

static tg_status write_file(const tg_conversion *c, tg_state *d, const part *p, const char *config, char *sum) {
    const tg_metadata metadata[] = {{"format", "pt"}, {"tapegrad.config", config}};
    tg_safetensors_writer w = {0};
    tg_status s = tg_safetensors_begin(&w, c->ctx, p->path, c->file.named + p->first, p->n, metadata, TG_LEN(metadata));
    for (int i = 0; i < p->n && s == TG_OK; i++) s = move(c, d, &w, p->first + i);
    if (s == TG_OK) s = tg_safetensors_commit(&w, sum);
    tg_safetensors_abandon(&w); /* has no effect after the commit */
    return s;
}

static tg_status write_files(const tg_conversion *c, tg_state *d, const char *dir, const char *config, char *sum) {
    int files = 0;
    for (int first = 0; first < c->n; first += count_of_file(c, first)) files++;
    tg_status s = tg_weights_retract(c->ctx, dir, files > 1);
    part p = {0};
    for (int file = 1; file <= files && s == TG_OK; file++, p.first += p.n) {
        p.n = count_of_file(c, p.first);
        p.path = tg_weights_path(c->ctx, dir, file, files);
        s = p.path ? write_file(c, d, &p, config, files > 1 ? NULL : sum) : c->ctx->run.status;
        tg_host_strfree(c->ctx, p.path);
    }
    if (s == TG_OK && files > 1) s = tg_weights_write_index(c->ctx, dir, files, sum);
    return s == TG_OK ? tg_weights_remove_stale(c->ctx, dir, files) : s;
}

/* Writes the weights and then config.json, so that a directory with config.json has a whole model. */
static tg_status write_model(const tg_conversion *c, tg_state *d, const char *dir, json_t *root) {
    char sum[TG_CHECKSUM_DIGITS + 1];
    char *line = tg_config_line(c->ctx, root), *path = tg_format_path(c->ctx, "%s/config.json", dir);
    tg_status s = line && path ? tg_state_make_directory(c->ctx, dir) : c->ctx->run.status;
    if (s == TG_OK) s = write_files(c, d, dir, line, sum);
    if (s == TG_OK) s = tg_config_save(c->ctx, path, root, sum);
    tg_host_strfree(c->ctx, line);
    tg_host_strfree(c->ctx, path);
    return s;
}

/* ---- The function ---- */

/* Returns a dtype of the state's parameters that config.json can name. */
static tg_dtype dtype_of(const tg_conversion *c, const tg_state *d) {
    for (int i = 0; i < d->n_keys; i++) {
        tg_dtype dtype = d->key[i].dtype;
        if (tg_key_after(d->key[i].key, c->prefix) && tg_is_float(dtype) && tg_dtype_size(dtype) > 1) return dtype;
    }
    return TG_F32;
}

static tg_status convert(tg_conversion *c, tg_state *d, const char *config, const char *model) {
    TG_TRY(tg_conversion_plan(c, config, dtype_of(c, d)));
    TG_TRY(check_state(c, d));
    json_t *root = tg_conversion_config(c);
    tg_status s = root ? write_model(c, d, model, root) : c->ctx->run.status;
    json_decref(root);
    return s;
}

tg_status tg_gpt_from_state(tg_ctx *ctx, const char *state, const char *prefix, const char *config, const char *model) {
    tg_conversion c = {.ctx = ctx};
    tg_state d = {.ctx = ctx};
    TG_TRY(tg_conversion_check(ctx, "tg_gpt_from_state", state, model));
    if (!config) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_from_state: config is NULL");
    tg_status s = tg_state_open(&d, ctx, state, NULL);
    if (s == TG_OK) s = tg_conversion_open(&c, ctx, prefix, config);
    if (s == TG_OK) s = convert(&c, &d, config, model);
    tg_state_close(&d);
    tg_conversion_close(&c);
    return s;
}
