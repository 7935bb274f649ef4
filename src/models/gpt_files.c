/* Model directories: config.json and model.safetensors with the names, layouts and keys of the published GPT-2 and
 * Llama checkpoints. So other programs can load models that this library saved, and this library can load theirs. The
 * names of tensors in a checkpoint are the paths of parameters. The Conv1D weights of GPT-2 are [in, out] in files and
 * [out, in] in this library. */
#include <stdio.h>

#include "base/host_memory.h"
#include "placement/grid.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "models/gpt.h"
#include "checkpoint/shards.h"

/* ---- From config.json to a config ---- */

static tg_status optional_real(const tg_json *j, const char *key, double *out) {
    return tg_json_has(j, key) ? tg_json_real(j, key, out) : TG_OK;
}

/* Reads a number above 0. If the key is absent, *out stays 0, which means the default of the config. A 0 in the file
 * fails: it does not mean the default there, and this library cannot compute with it. */
static tg_status optional_positive(const tg_json *j, const char *key, double *out) {
    if (!tg_json_has(j, key)) return TG_OK;
    TG_TRY(tg_json_real(j, key, out));
    if (*out > 0) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is %g, expected a number above 0", j->path, key, *out);
}

/* Reads an integer from 1 to 2^40. If the key is absent, *out is unchanged. */
static tg_status optional_int(const tg_json *j, const char *key, int64_t *out) {
    return tg_json_has(j, key) ? tg_json_int(j, key, 1, (int64_t)1 << 40, out) : TG_OK;
}

static tg_status optional_bool(const tg_json *j, const char *key, bool *out) {
    return tg_json_has(j, key) ? tg_json_bool(j, key, out) : TG_OK;
}

/* Fails if the key has another value than `value` or `or_value` (which may be NULL), the only ones that this library
 * computes. Another value, if it were ignored, would change the logits. */
static tg_status must_be(const tg_json *j, const char *key, const char *value, const char *or_value) {
    const char *s;
    if (!tg_json_has(j, key)) return TG_OK;
    TG_TRY(tg_json_string(j, key, &s));
    if (strcmp(s, value) == 0 || (or_value && strcmp(s, or_value) == 0)) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is \"%s\", but only \"%s\" is supported", j->path, key, s,
                   value);
}

static tg_status must_be_bool(const tg_json *j, const char *key, bool value) {
    bool on = value;
    TG_TRY(optional_bool(j, key, &on));
    if (on == value) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED, "'%s': \"%s\" is %s, which is not supported", j->path, key,
                   on ? "true" : "false");
}

static tg_status read_gpt2(const tg_json *j, tg_gpt_config *c) {
    double attn = 0, embd = 0;
    bool tied = true;
    TG_TRY(tg_json_int(j, "n_embd", 1, 1 << 24, &c->hidden));
    TG_TRY(tg_json_int(j, "n_layer", 1, 1 << 20, &c->layers));
    TG_TRY(tg_json_int(j, "n_head", 1, 1 << 20, &c->heads));
    TG_TRY(tg_json_int(j, "n_positions", 1, (int64_t)1 << 40, &c->positions));
    TG_TRY(optional_int(j, "n_inner", &c->ffn));
    TG_TRY(optional_positive(j, "layer_norm_epsilon", &c->norm_eps));
    TG_TRY(optional_real(j, "resid_pdrop", &c->dropout));
    TG_TRY(optional_real(j, "attn_pdrop", &attn));
    TG_TRY(optional_real(j, "embd_pdrop", &embd));
    TG_TRY(optional_bool(j, "tie_word_embeddings", &tied));
    TG_TRY(must_be(j, "activation_function", "gelu_new", "gelu_pytorch_tanh"));
    TG_TRY(must_be_bool(j, "scale_attn_by_inverse_layer_idx", false));
    TG_TRY(must_be_bool(j, "scale_attn_weights", true));
    TG_TRY(must_be_bool(j, "add_cross_attention", false));
    c->untied = !tied;
    if (attn == c->dropout && embd == c->dropout) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_UNSUPPORTED,
                   "'%s': resid_pdrop %g, attn_pdrop %g and embd_pdrop %g differ, but only one dropout is supported",
                   j->path, c->dropout, attn, embd);
}

static tg_status read_rope_of(const tg_json *j, const char *key, tg_gpt_config *c) {
    tg_json rope;
    if (!tg_json_has(j, key)) return TG_OK;
    TG_TRY(tg_json_object(j, key, &rope));
    TG_TRY(must_be(&rope, "rope_type", "default", NULL));
    TG_TRY(must_be(&rope, "type", "default", NULL)); /* the key's older name */
    return optional_positive(&rope, "rope_theta", &c->rope_base);
}

/* Reads the options of rotary positions. If a file has both rope_parameters and the older rope_scaling, rope_scaling
 * takes precedence, as in Hugging Face transformers. */
static tg_status read_rope(const tg_json *j, tg_gpt_config *c) {
    TG_TRY(optional_positive(j, "rope_theta", &c->rope_base));
    TG_TRY(read_rope_of(j, "rope_parameters", c));
    return read_rope_of(j, "rope_scaling", c);
}

static tg_status read_llama(const tg_json *j, tg_gpt_config *c) {
    TG_TRY(tg_json_int(j, "hidden_size", 1, 1 << 24, &c->hidden));
    TG_TRY(tg_json_int(j, "num_hidden_layers", 1, 1 << 20, &c->layers));
    TG_TRY(tg_json_int(j, "num_attention_heads", 1, 1 << 20, &c->heads));
    TG_TRY(tg_json_int(j, "intermediate_size", 1, (int64_t)1 << 30, &c->ffn));
    TG_TRY(tg_json_int(j, "max_position_embeddings", 1, (int64_t)1 << 40, &c->positions));
    TG_TRY(optional_int(j, "num_key_value_heads", &c->kv_heads));
    TG_TRY(optional_int(j, "head_dim", &c->head_dim));
    TG_TRY(optional_positive(j, "rms_norm_eps", &c->norm_eps));
    TG_TRY(optional_bool(j, "tie_word_embeddings", &c->tied));
    TG_TRY(must_be(j, "hidden_act", "silu", NULL));
    TG_TRY(must_be_bool(j, "attention_bias", false));
    TG_TRY(must_be_bool(j, "mlp_bias", false));
    return read_rope(j, c);
}

static tg_status read_config(tg_ctx *ctx, const char *path, tg_gpt_config *c) {
    tg_json j;
    const char *type = "";
    TG_TRY(tg_json_load(&j, ctx, path));
    tg_status s = tg_json_string(&j, "model_type", &type);
    if (s == TG_OK) s = tg_json_int(&j, "vocab_size", 1, (int64_t)1 << 31, &c->vocab);
    if (s == TG_OK) s = optional_positive(&j, "initializer_range", &c->init_std);
    bool gpt2 = strcmp(type, "gpt2") == 0;
    c->arch = gpt2 ? TG_GPT2 : TG_LLAMA;
    if (s == TG_OK && !gpt2 && strcmp(type, "llama") != 0)
        s = tg_fail(ctx, TG_ERR_UNSUPPORTED,
                    "'%s': model_type is \"%s\", but only \"gpt2\" and \"llama\" are supported", path, type);
    if (s == TG_OK) s = gpt2 ? read_gpt2(&j, c) : read_llama(&j, c);
    tg_json_free(&j);
    return s;
}

/* ---- From a config to config.json ---- */

static json_t *gpt2_json(const tg_gpt_config *c) {
    return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:f, s:f, s:b}", "architectures",
                     "GPT2LMHeadModel", "model_type", "gpt2", "vocab_size", (json_int_t)c->vocab, "n_positions",
                     (json_int_t)c->positions, "n_embd", (json_int_t)c->hidden, "n_layer", (json_int_t)c->layers,
                     "n_head", (json_int_t)c->heads, "n_inner", (json_int_t)c->ffn, "activation_function", "gelu_new",
                     "resid_pdrop", c->dropout, "embd_pdrop", c->dropout, "attn_pdrop", c->dropout,
                     "layer_norm_epsilon", c->norm_eps, "initializer_range", c->init_std, "tie_word_embeddings",
                     !c->untied);
}

static json_t *llama_json(const tg_gpt_config *c) {
    return json_pack("{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:f, s:b, s:b, s:b}",
                     "architectures", "LlamaForCausalLM", "model_type", "llama", "vocab_size", (json_int_t)c->vocab,
                     "max_position_embeddings", (json_int_t)c->positions, "hidden_size", (json_int_t)c->hidden,
                     "num_hidden_layers", (json_int_t)c->layers, "num_attention_heads", (json_int_t)c->heads,
                     "num_key_value_heads", (json_int_t)c->kv_heads, "head_dim", (json_int_t)c->head_dim,
                     "intermediate_size", (json_int_t)c->ffn, "hidden_act", "silu", "rms_norm_eps", c->norm_eps,
                     "rope_theta", c->rope_base, "initializer_range", c->init_std, "tie_word_embeddings", (int)c->tied,
                     "attention_bias", 0, "mlp_bias", 0);
}

/* Returns PyTorch's name of a dtype. */
static const char *torch_name(tg_dtype d) {
    return d == TG_F64 ? "float64" : d == TG_BF16 ? "bfloat16" : d == TG_F16 ? "float16" : "float32";
}

static tg_status no_memory_for_config(tg_ctx *ctx) {
    return tg_fail(ctx, TG_ERR_MEMORY, "tg_gpt_save: no memory for the config");
}

/* Returns the content of config.json, except the checksum of the weights, which is not known yet. Returns NULL after
 * recording an error. */
static json_t *config_json(tg_module *gpt) {
    const tg_gpt_config *c = tg_gpt_config_of(gpt);
    json_t *root = c->arch == TG_GPT2 ? gpt2_json(c) : llama_json(c);
    if (root && !json_object_set_new(root, "torch_dtype", json_string(torch_name(tg_gpt_head(gpt)->dtype))))
        return root;
    json_decref(root);
    no_memory_for_config(gpt->ctx);
    return NULL;
}

/* Returns the config as one line of JSON, for the weights' metadata "tapegrad.config". Free it with tg_host_strfree. */
static char *config_line(tg_ctx *ctx, const json_t *root) {
    enum { FLAGS = JSON_COMPACT | JSON_SORT_KEYS };
    size_t n = json_dumpb(root, NULL, 0, FLAGS | JSON_REAL_PRECISION(17));
    char *text = n ? tg_host_alloc(ctx, n + 1) : NULL;
    if (text) json_dumpb(root, text, n, FLAGS | JSON_REAL_PRECISION(17));
    char *copy = text ? tg_host_strdup(ctx, text) : NULL;
    if (text) tg_host_free(ctx, text, n + 1);
    if (!n) no_memory_for_config(ctx);
    return copy;
}

/* Adds the checksum of the weights to the config, and writes config.json. */
static tg_status save_config(tg_ctx *ctx, const char *path, json_t *root, const char *weights_sum) {
    if (json_object_set_new(root, "tapegrad_weights_xxh64", json_string(weights_sum))) return no_memory_for_config(ctx);
    return tg_json_save(ctx, path, root);
}

/* ---- Weights ---- */

static bool ends_with(const char *s, const char *tail) {
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

/* Returns whether the weight is one of GPT-2's four projections, which are stored transposed. */
static bool conv1d(const char *path) {
    return ends_with(path, ".c_attn.weight") || ends_with(path, ".c_proj.weight") || ends_with(path, ".c_fc.weight");
}

/* Returns a view of the first `rows` rows of p, with the dims in the order of the file. Free it with tg_temp_free. */
static tg_tensor *as_stored(const tg_module *gpt, const tg_tensor *p, int64_t rows, const char *path) {
    bool swap = tg_gpt_config_of(gpt)->arch == TG_GPT2 && conv1d(path);
    int64_t shape[TG_MAX_DIMS], stride[TG_MAX_DIMS];
    for (int i = 0; i < p->ndim; i++) {
        int d = swap ? 1 - i : i;
        shape[i] = d == 0 ? rows : p->shape[d];
        stride[i] = p->stride[d];
    }
    return tg_temp_new(gpt->ctx, p->dtype, p->ndim, shape, stride, tg_storage_ref(p->storage), p->offset);
}

/* Returns the number of rows of the whole parameter, without the padding of a vocabulary. */
static int64_t true_rows(const tg_module *gpt, const tg_tensor *p, const char *path) {
    const tg_gpt_config *c = tg_gpt_config_of(gpt);
    bool padded = ends_with(path, "wte.weight") || ends_with(path, "embed_tokens.weight") ||
                  strcmp(path, "lm_head.weight") == 0;
    return padded ? c->vocab : tg_global_shape(p).dim[0];
}

/* Returns the shape of the whole parameter in the file. */
static tg_shape stored_shape(const tg_module *gpt, const tg_tensor *p, const char *path) {
    tg_shape g = tg_global_shape(p), stored = g;
    bool swap = tg_gpt_config_of(gpt)->arch == TG_GPT2 && conv1d(path);
    stored.dim[0] = g.dim[0] = true_rows(gpt, p, path);
    for (int d = 0; swap && d < 2; d++) stored.dim[d] = g.dim[1 - d];
    return stored;
}

/* Returns the name of the parameter in the file. Published GPT-2 files have no prefix "transformer.". */
static const char *stored_name(const tg_safetensors *f, const char *path) {
    static const char prefix[] = "transformer.";
    if (tg_safetensors_find(f, path) || strncmp(path, prefix, sizeof prefix - 1) != 0) return path;
    return path + sizeof prefix - 1;
}

/* Returns whether published files have this tensor although it is not a parameter. */
static bool ignorable(const char *name) {
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
           ends_with(name, ".rotary_emb.inv_freq");
}

/* Returns whether the file's tensor belongs to the model or may be ignored, such as GPT-2's masks "attn.bias". */
static bool known(const tg_module *gpt, const char *name) {
    char full[256];
    if (ignorable(name) || tg_module_find(gpt, name)) return true;
    snprintf(full, sizeof full, "transformer.%s", name);
    if (tg_module_find(gpt, full)) return true;
    return strcmp(name, "lm_head.weight") == 0 && !tg_module_child(gpt, "lm_head"); /* the tied matrix, stored twice */
}

/* Reads one parameter. Every rank reads the whole tensor and keeps its part. */
static tg_status load_part(tg_module *gpt, tg_safetensors *f, tg_tensor *p, const char *stored, const char *path) {
    tg_ctx *ctx = gpt->ctx;
    tg_shape g = tg_global_shape(p);
    bool part = memcmp(g.dim, p->shape, (size_t)p->ndim * sizeof *p->shape) != 0;
    tg_tensor *whole = part ? tg_temp_empty(ctx, p->dtype, p->ndim, g.dim, TG_MEM_TEMPORARY) : p;
    if (!whole) return ctx->run.status;
    tg_status s = part ? ctx->run.ops->fill(ctx, tg_array_of(whole), 0) : TG_OK; /* padding is not in the file */
    tg_tensor *view = s == TG_OK ? as_stored(gpt, whole, true_rows(gpt, p, path), path) : NULL;
    if (view) {
        s = tg_safetensors_fill(f, stored, view, true, NULL);
        tg_temp_free(view);
    }
    if (part && s == TG_OK && view) s = tg_storage_may_change(p);
    if (part && s == TG_OK && view) s = tg_shard_copy(p, tg_grid_of(ctx)->rank, whole, p, false);
    if (part) tg_temp_free(whole);
    tg_storage_wrote(p->storage, "tg_gpt_load", NULL);
    return s == TG_OK ? ctx->run.status : s;
}

/* Makes every check that can refuse a file. The model is not changed before all checks have passed. */
static tg_status check_weights(tg_module *gpt, tg_safetensors *f, const char *path) {
    tg_ctx *ctx = gpt->ctx;
    for (int i = 0; i < tg_safetensors_count(f); i++)
        if (!known(gpt, tg_safetensors_at(f, i)->name))
            return tg_fail(ctx, TG_ERR_FORMAT,
                           "'%s': tensor \"%s\" does not belong to the model that config.json describes", path,
                           tg_safetensors_at(f, i)->name);
    for (int i = 0, n = tg_module_param_count(gpt); i < n; i++) {
        const char *name;
        tg_tensor *p = tg_module_param(gpt, i, &name);
        const char *stored = stored_name(f, name);
        if (!tg_safetensors_find(f, stored))
            return tg_fail(ctx, TG_ERR_FORMAT, "'%s': tensor \"%s\", which the model needs, is missing", path, name);
        const tg_shape shape = stored_shape(gpt, p, name);
        TG_TRY(tg_safetensors_expect(f, stored, &shape, (tg_dtype)p->dtype, true));
    }
    return tg_safetensors_verify(f, 0, 1);
}

static tg_status load_weights(tg_module *gpt, tg_safetensors *f, const char *path) {
    TG_TRY(check_weights(gpt, f, path));
    for (int i = 0, n = tg_module_param_count(gpt); i < n; i++) {
        const char *name;
        tg_tensor *p = tg_module_param(gpt, i, &name);
        TG_TRY(load_part(gpt, f, p, stored_name(f, name), name));
    }
    return TG_OK;
}

/* Begins the file with the names of all parameters, their shapes in the file, and the config as metadata. */
static tg_status begin_weights(tg_module *gpt, tg_safetensors_writer *w, const char *path, const char *config) {
    tg_ctx *ctx = gpt->ctx;
    int n = tg_module_param_count(gpt);
    size_t bytes = (size_t)n * (sizeof(tg_named_tensor) + sizeof(tg_tensor) + TG_MAX_DIMS * sizeof(int64_t));
    tg_named_tensor *named = tg_host_alloc(ctx, bytes);
    if (!named) return ctx->run.status;
    tg_tensor *x = (tg_tensor *)(named + n);
    int64_t *dims = (int64_t *)(x + n);
    for (int i = 0; i < n; i++, dims += TG_MAX_DIMS) {
        const char *name;
        tg_tensor *p = tg_module_param(gpt, i, &name);
        const tg_shape shape = stored_shape(gpt, p, name);
        x[i] = (tg_tensor){.dtype = p->dtype, .ndim = p->ndim, .shape = dims, .numel = 1};
        for (int d = 0; d < p->ndim; d++) x[i].numel *= dims[d] = shape.dim[d];
        named[i] = (tg_named_tensor){tg_host_strdup(ctx, name), &x[i]};
    }
    const tg_metadata metadata[] = {{"format", "pt"}, {"tapegrad.config", config}};
    if (tg_ok(ctx)) tg_safetensors_begin(w, ctx, path, named, n, metadata, TG_LEN(metadata));
    for (int i = 0; i < n; i++) tg_host_strfree(ctx, (char *)named[i].name);
    tg_host_free(ctx, named, bytes);
    return ctx->run.status;
}

/* Writes one parameter. With several ranks its parts are first gathered on the rank that writes. On the other ranks w
 * is NULL. */
static tg_status save_param(tg_module *gpt, tg_safetensors_writer *w, tg_tensor *p, const char *path) {
    const tg_parallel *parallel = tg_gpt_config_of(gpt)->parallel;
    tg_tensor *whole = p;
    if (tg_grid_axes(gpt->ctx)) {
        const tg_shards s = {.ctx = gpt->ctx, .p = parallel};
        const tg_shard_item item = {.key = path, .x = p, .like = p, .rows = TG_NONE};
        whole = tg_shard_whole(&s, &item);
    }
    tg_status status = gpt->ctx->run.status;
    tg_tensor *view = w && whole && status == TG_OK ? as_stored(gpt, whole, true_rows(gpt, p, path), path) : NULL;
    if (view) {
        status = tg_safetensors_put(w, view);
        tg_temp_free(view);
    }
    if (whole && whole != p) tg_temp_free(whole);
    return status == TG_OK ? gpt->ctx->run.status : status;
}

/* Writes model.safetensors, and the checksum of its header to sum. If path is NULL, this rank only sends its parts. */
static tg_status save_weights(tg_module *gpt, const char *path, const char *config, char sum[TG_CHECKSUM_DIGITS + 1]) {
    tg_safetensors_writer w = {0};
    tg_status s = path ? begin_weights(gpt, &w, path, config) : TG_OK;
    for (int i = 0, n = tg_module_param_count(gpt); i < n && s == TG_OK; i++) {
        const char *name;
        tg_tensor *p = tg_module_param(gpt, i, &name);
        s = save_param(gpt, path ? &w : NULL, p, name);
    }
    if (path && s == TG_OK) s = tg_safetensors_commit(&w, sum);
    if (path) tg_safetensors_abandon(&w);
    return s;
}

/* Writes both files, config.json last: a directory that has it is complete. */
static tg_status save_files(tg_module *gpt, const char *config, const char *weights) {
    tg_ctx *ctx = gpt->ctx;
    char sum[TG_CHECKSUM_DIGITS + 1] = "";
    json_t *root = config_json(gpt);
    char *line = root ? config_line(ctx, root) : NULL;
    if (line && save_weights(gpt, weights, line, sum) == TG_OK) save_config(ctx, config, root, sum);
    tg_host_strfree(ctx, line);
    json_decref(root);
    return ctx->run.status;
}

/* ---- Load and save ---- */

tg_module *tg_gpt_from_config(tg_ctx *ctx, const char *path) {
    tg_gpt_config c = {.size = sizeof c};
    if (tg_ok(ctx) && !path) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_from_config: the path is NULL");
    if (tg_ok(ctx)) read_config(ctx, path, &c);
    return tg_gpt_new(ctx, &c);
}

tg_status tg_gpt_load_weights(tg_module *gpt, const char *dir) {
    if (!gpt) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = gpt->ctx;
    TG_TRY(ctx->run.status);
    if (!tg_gpt_config_of(gpt) || !dir)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_load_weights: %s",
                       dir ? "the module is not a gpt" : "dir is NULL");
    char *path = tg_format_path(ctx, "%s/model.safetensors", dir);
    tg_safetensors *f = path ? tg_safetensors_open(ctx, path) : NULL;
    if (f) load_weights(gpt, f, path);
    tg_safetensors_close(f);
    tg_host_strfree(ctx, path);
    return ctx->run.status;
}

/* Creates a GPT whose weights will be overwritten. So its keys count as if they had not drawn. */
static tg_module *gpt_to_fill(tg_ctx *ctx, const char *config) {
    if (!tg_ok(ctx)) return tg_gpt_from_config(ctx, config);
    bool repeats = ctx->keys.repeats;
    ctx->keys.repeats = true;
    tg_module *gpt = tg_gpt_from_config(ctx, config);
    ctx->keys.repeats = repeats;
    return gpt;
}

tg_module *tg_gpt_load(tg_ctx *ctx, const char *dir) {
    if (tg_ok(ctx) && !dir) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_load: the directory is NULL");
    char *config = tg_ok(ctx) ? tg_format_path(ctx, "%s/config.json", dir) : NULL;
    tg_module *gpt = gpt_to_fill(ctx, config);
    tg_gpt_load_weights(gpt, dir);
    if (ctx) tg_host_strfree(ctx, config);
    if (tg_ok(ctx)) return gpt;
    tg_module_free(gpt);
    return tg_gpt_new(ctx, NULL); /* inert */
}

tg_status tg_gpt_save(tg_module *gpt, const char *dir) {
    if (!gpt) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = gpt->ctx;
    TG_TRY(ctx->run.status);
    if (!tg_gpt_config_of(gpt) || !dir)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_save: %s", dir ? "the module is not a gpt" : "dir is NULL");
    if (!tg_gpt_head(gpt)) return ctx->run.status;
    const tg_parallel *p = tg_gpt_config_of(gpt)->parallel;
    bool writes = !p || tg_shards_writer(&(const tg_shards){.ctx = ctx, .p = p});
    char *config = tg_format_path(ctx, "%s/config.json", dir),
         *weights = tg_format_path(ctx, "%s/model.safetensors", dir);
    if (config && weights && writes)
        save_files(gpt, config, weights);
    else if (config && weights)
        save_weights(gpt, NULL, NULL, NULL);
    tg_host_strfree(ctx, config);
    tg_host_strfree(ctx, weights);
    return ctx->run.status;
}
