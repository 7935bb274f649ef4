/* Converts between model directories and saved state, without a model in memory: the model is made on device meta, for
 * the names and shapes of its parameters, and one tensor is read and written at a time. */
#include <stdio.h>

#include "base/host_memory.h"
#include "checkpoint/state_index.h"
#include "models/model_files.h"

/* The parameters in the form of a state, or of the files of a model. */
typedef struct form {
    tg_named_tensor *named; /* [n] */
    tg_tensor *like;        /* only dtype, shape and numel are set */
    int64_t (*dims)[TG_MAX_DIMS];
} form;

typedef struct conversion {
    tg_ctx *ctx;
    const char *prefix;
    tg_ctx *plan; /* on device meta */
    tg_module *gpt;
    int n; /* number of parameters */
    form state, file;
} conversion;

static tg_status form_make(tg_ctx *ctx, form *f, int n) {
    f->named = tg_host_alloc(ctx, (size_t)n * sizeof *f->named + 1);
    f->like = tg_host_alloc(ctx, (size_t)n * sizeof *f->like + 1);
    f->dims = tg_host_alloc(ctx, (size_t)n * sizeof *f->dims + 1);
    return ctx->run.status;
}

static void form_free(tg_ctx *ctx, form *f, int n) {
    for (int i = 0; f->named && i < n; i++) tg_host_strfree(ctx, (char *)f->named[i].name);
    tg_host_free(ctx, f->named, f->named ? (size_t)n * sizeof *f->named + 1 : 0);
    tg_host_free(ctx, f->like, f->like ? (size_t)n * sizeof *f->like + 1 : 0);
    tg_host_free(ctx, f->dims, f->dims ? (size_t)n * sizeof *f->dims + 1 : 0);
}

/* Sets tensor i of the form. Takes over the name. */
static void form_set(form *f, int i, char *name, tg_dtype dtype, const tg_shape *shape) {
    memcpy(f->dims[i], shape->dim, sizeof shape->dim);
    f->like[i] = (tg_tensor){.dtype = (uint8_t)dtype, .ndim = (uint8_t)shape->ndim, .shape = f->dims[i], .numel = 1};
    for (int d = 0; d < shape->ndim; d++) f->like[i].numel *= shape->dim[d];
    f->named[i] = (tg_named_tensor){name, &f->like[i]};
}

static void end(conversion *c) {
    form_free(c->ctx, &c->state, c->n);
    form_free(c->ctx, &c->file, c->n);
    tg_module_free(c->gpt);
    tg_ctx_free(c->plan);
}

/* Sets the keys, names and shapes, without padding rows, of parameter i. */
static tg_status add_param(conversion *c, int i) {
    const char *path, *prefix = c->prefix ? c->prefix : "";
    const tg_tensor *p = tg_module_param(c->gpt, i, &path);
    const tg_shape stored = tg_weight_shape(c->gpt, p, path);
    tg_shape own = tg_shape_make(p->ndim, p->shape);
    own.dim[0] = tg_weight_rows(c->gpt, p, path);
    char *key = tg_format_path(c->ctx, "%s%s%s", prefix, *prefix ? "." : "", path);
    form_set(&c->state, i, key, (tg_dtype)p->dtype, &own);
    form_set(&c->file, i, tg_host_strdup(c->ctx, path), (tg_dtype)p->dtype, &stored);
    return c->ctx->run.status;
}

/* Makes the model of a config on device meta, with parameters of that dtype. */
static tg_status begin(conversion *c, const char *config, tg_dtype dtype) {
    tg_ctx *ctx = c->ctx;
    c->plan = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .dtype = dtype, .allocator = ctx->run.allocator,
                                   .files = ctx->files));
    c->gpt = tg_gpt_from_config(c->plan, config);
    if (!tg_ok(c->plan)) return tg_fail(ctx, tg_ctx_status(c->plan), "%s", tg_ctx_message(c->plan));
    c->n = tg_module_param_count(c->gpt);
    TG_TRY(form_make(ctx, &c->state, c->n));
    TG_TRY(form_make(ctx, &c->file, c->n));
    for (int i = 0; i < c->n; i++) TG_TRY(add_param(c, i));
    return TG_OK;
}

/* The dtypes are those of the source. */
static void set_dtype(conversion *c, int i, tg_dtype dtype) {
    c->state.like[i].dtype = c->file.like[i].dtype = (uint8_t)dtype;
}

/* Returns memory for parameter i, row-major in the library's order of dims, and in *view the same in that of files. */
static tg_tensor *make(const conversion *c, int i, tg_tensor **view) {
    const tg_tensor *like = &c->state.like[i];
    tg_tensor *x = tg_temp_empty(c->ctx, (tg_dtype)like->dtype, like->ndim, like->shape, TG_MEM_TEMPORARY);
    tg_tensor *stored = x ? tg_weight_view(c->gpt, x, like->shape[0], c->file.named[i].name) : NULL;
    *view = stored;
    if (stored) return x;
    tg_temp_free(x);
    return NULL;
}

static tg_status check(tg_ctx *ctx, const char *who, const char *from, const char *to) {
    TG_TRY(tg_io_enter(ctx));
    if (!from || !to) return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: a directory is NULL", who);
    if (ctx->host && !ctx->meta) return TG_OK;
    return tg_fail(ctx, TG_ERR_DEVICE, "%s: device \"%s\", expected one whose memory the host uses", who,
                   ctx->run.ops->name);
}

/* ---- From a model directory ---- */

/* Fails if the files have a tensor that the model lacks. */
static tg_status check_files(const conversion *c, const tg_safetensors *f) {
    for (int i = 0; i < tg_safetensors_count(f); i++)
        if (!tg_weight_is_known(c->gpt, tg_safetensors_at(f, i)->name))
            return tg_fail(c->ctx, TG_ERR_FORMAT,
                           "'%s': tensor \"%s\" does not belong to the model that config.json describes", f->file.path,
                           tg_safetensors_at(f, i)->name);
    return TG_OK;
}

/* Takes the dtypes of the files, and checks the shapes. */
static tg_status take_dtypes(conversion *c, tg_safetensors *f) {
    for (int i = 0; i < c->n; i++) {
        const char *path = c->file.named[i].name;
        const tg_shape shape = tg_shape_make(c->file.like[i].ndim, c->file.dims[i]);
        const tg_safetensors_entry *e = tg_safetensors_find(f, tg_weight_stored_name(f, path));
        if (!e)
            return tg_fail(c->ctx, TG_ERR_FORMAT, "'%s': tensor \"%s\", which the model needs, is missing",
                           f->file.path, path);
        TG_TRY(tg_safetensors_expect(f, e->name, &shape, e->dtype, false));
        set_dtype(c, i, e->dtype);
    }
    return TG_OK;
}

static tg_status move_to_state(const conversion *c, tg_safetensors *f, tg_state_writer *w, int i) {
    tg_tensor *view, *x = make(c, i, &view);
    if (!x) return c->ctx->run.status;
    tg_status s = tg_safetensors_fill(f, tg_weight_stored_name(f, c->file.named[i].name), view, false, NULL);
    if (s == TG_OK) s = tg_state_writer_put(w, x);
    tg_temp_free(view);
    tg_temp_free(x);
    return s;
}

static tg_status write_state(conversion *c, tg_safetensors *f, const char *state) {
    tg_state_writer w = {0};
    TG_TRY(check_files(c, f));
    TG_TRY(take_dtypes(c, f));
    tg_status s = tg_state_writer_begin(&w, c->ctx, state, c->state.named, c->n);
    for (int i = 0; i < c->n && s == TG_OK; i++) s = move_to_state(c, f, &w, i);
    if (s == TG_OK) s = tg_state_writer_commit(&w);
    tg_state_writer_abandon(&w);
    return s;
}

tg_status tg_gpt_to_state(tg_ctx *ctx, const char *model, const char *state, const char *prefix) {
    conversion c = {.ctx = ctx, .prefix = prefix};
    TG_TRY(check(ctx, "tg_gpt_to_state", model, state));
    char *config = tg_format_path(ctx, "%s/config.json", model), *weights = tg_weights_find(ctx, model);
    tg_status s = config && weights ? begin(&c, config, TG_F32) : ctx->run.status;
    tg_safetensors *f = s == TG_OK ? tg_safetensors_open(ctx, weights) : NULL;
    if (s == TG_OK) s = f ? write_state(&c, f, state) : ctx->run.status;
    tg_safetensors_close(f);
    tg_host_strfree(ctx, config);
    tg_host_strfree(ctx, weights);
    end(&c);
    return s;
}

/* ---- To a model directory ---- */

/* Returns what follows the prefix in a key of the state; NULL: the key has another prefix. */
static const char *path_in(const conversion *c, const char *key) {
    size_t n = c->prefix ? strlen(c->prefix) : 0;
    if (!n) return key;
    return strncmp(key, c->prefix, n) == 0 && key[n] == '.' ? key + n + 1 : NULL;
}

/* Finds parameter i in the state, and checks its shape. NULL after recording an error. */
static const tg_state_key *require(const conversion *c, const tg_state *d, int i) {
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

/* Fails if the state has a key behind the prefix that the model lacks. */
static tg_status check_keys(const conversion *c, const tg_state *d) {
    for (int i = 0; i < d->n_keys; i++) {
        const char *path = path_in(c, d->key[i].key);
        if (path && !tg_module_find(c->gpt, path))
            return tg_fail(c->ctx, TG_ERR_FORMAT,
                           "'%s': tensor '%.128s' does not belong to the model that the config describes", d->dir,
                           d->key[i].key);
    }
    return TG_OK;
}

/* Makes all checks of the state, and takes its dtypes. */
static tg_status check_state(conversion *c, tg_state *d) {
    for (int i = 0; i < c->n; i++) {
        const tg_state_key *k = require(c, d, i);
        if (!k) return c->ctx->run.status;
        TG_TRY(tg_state_check_key(d, k));
        set_dtype(c, i, k->dtype);
    }
    TG_TRY(check_keys(c, d));
    for (int i = 0; i < d->n_files; i++) {
        tg_safetensors *f = tg_state_file_open(d, i);
        TG_TRY(f ? tg_safetensors_verify(f, 0, 1) : c->ctx->run.status);
    }
    return TG_OK;
}

static tg_status move_to_file(const conversion *c, tg_state *d, tg_safetensors_writer *w, int i) {
    tg_block all;
    const tg_state_key *k = tg_state_find(d, c->state.named[i].name);
    tg_tensor *view, *x = make(c, i, &view);
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
static int count_of_file(const conversion *c, int first) {
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

static tg_status write_file(const conversion *c, tg_state *d, const part *p, const char *config, char *sum) {
    const tg_metadata metadata[] = {{"format", "pt"}, {"tapegrad.config", config}};
    tg_safetensors_writer w = {0};
    tg_status s = tg_safetensors_begin(&w, c->ctx, p->path, c->file.named + p->first, p->n, metadata, TG_LEN(metadata));
    for (int i = 0; i < p->n && s == TG_OK; i++) s = move_to_file(c, d, &w, p->first + i);
    if (s == TG_OK) s = tg_safetensors_commit(&w, sum);
    tg_safetensors_abandon(&w); /* has no effect after the commit */
    return s;
}

static tg_status write_files(const conversion *c, tg_state *d, const char *dir, const char *config, char *sum) {
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
static tg_status write_model(const conversion *c, tg_state *d, const char *dir, json_t *root) {
    char sum[TG_CHECKSUM_DIGITS + 1];
    char *line = tg_gpt_config_line(c->ctx, root), *path = tg_format_path(c->ctx, "%s/config.json", dir);
    tg_status s = line && path ? tg_state_make_directory(c->ctx, dir) : c->ctx->run.status;
    if (s == TG_OK) s = write_files(c, d, dir, line, sum);
    if (s == TG_OK) s = tg_gpt_save_config(c->ctx, path, root, sum);
    tg_host_strfree(c->ctx, line);
    tg_host_strfree(c->ctx, path);
    return s;
}

/* Returns the dtype of the state's parameters, which config.json names. */
static tg_dtype dtype_of(const conversion *c, const tg_state *d) {
    for (int i = 0; i < d->n_keys; i++)
        if (path_in(c, d->key[i].key) && tg_is_float(d->key[i].dtype) && tg_dtype_size(d->key[i].dtype) > 1)
            return d->key[i].dtype;
    return TG_F32;
}

static tg_status write_from_state(conversion *c, tg_state *d, const char *config, const char *model) {
    TG_TRY(begin(c, config, dtype_of(c, d)));
    TG_TRY(check_state(c, d));
    json_t *root = tg_gpt_config_json(c->gpt);
    if (!root) return tg_fail(c->ctx, tg_ctx_status(c->plan), "%s", tg_ctx_message(c->plan));
    tg_status s = write_model(c, d, model, root);
    json_decref(root);
    return s;
}

tg_status tg_gpt_from_state(tg_ctx *ctx, const char *state, const char *prefix, const char *config, const char *model) {
    conversion c = {.ctx = ctx, .prefix = prefix};
    tg_state d = {.ctx = ctx};
    TG_TRY(check(ctx, "tg_gpt_from_state", state, model));
    if (!config) return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_from_state: config is NULL");
    tg_status s = tg_state_open(&d, ctx, state, NULL);
    if (s == TG_OK) s = write_from_state(&c, &d, config, model);
    tg_state_close(&d);
    end(&c);
    return s;
}
