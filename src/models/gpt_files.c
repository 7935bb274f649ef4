/* Model directories: config.json and the weights, with the names, layouts and keys of the published GPT-2 and Llama
 * checkpoints. So other programs can load models that this library saved, and this library can load models that other
 * programs saved. */
#include <stdio.h>

#include "base/host_memory.h"
#include "base/options.h"
#include "checkpoint/shards.h"
#include "comm/comm.h"
#include "models/model_files.h"

/* Returns s. If it is an error, tells the other stages that this rank misses a collective (tg_comm_note_missed). */
static tg_status leave(const tg_lm_chunks *m, tg_status s) {
    const tg_parallel *p = tg_chunks_parallel(m);
    return tg_parallel_size(p, TG_PP) > 1 ? tg_comm_note_missed(tg_parallel_world(p), s) : s;
}

/* ---- Load ---- */

tg_module *tg_gpt_from_config(tg_ctx *ctx, const char *path) {
    tg_gpt_config c = *TG_GPT();
    if (tg_ok(ctx) && !path) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_from_config: the path is NULL");
    if (tg_ok(ctx)) tg_gpt_read_config(ctx, path, &c);
    return tg_gpt_new(ctx, &c);
}

tg_status tg_gpt_load_weights(tg_module *gpt, const char *dir) {
    if (!gpt) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = gpt->ctx;
    TG_TRY(ctx->run.status);
    if (!tg_gpt_config_of(gpt) || !dir)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_load_weights: %s",
                       dir ? "the module is not a gpt" : "dir is NULL");
    return tg_lm_load(&gpt, 1, dir);
}

static tg_status load(tg_module *const *lm, int n, const char *dir, const char *who, bool map) {
    tg_lm_chunks m;
    TG_TRY(tg_chunks_check(lm, n, dir, who, &m));
    return leave(&m, tg_weights_load(&m, dir, map));
}

tg_status tg_lm_load(tg_module *const *lm, int n, const char *dir) { return load(lm, n, dir, "tg_lm_load", false); }
tg_status tg_lm_map(tg_module *const *lm, int n, const char *dir) { return load(lm, n, dir, "tg_lm_map", true); }

/* Creates a GPT that will be loaded. It draws nothing. */
static tg_module *to_fill(tg_ctx *ctx, const char *config) {
    if (!tg_ok(ctx)) return tg_gpt_from_config(ctx, config);
    ctx->unfilled = true;
    tg_module *gpt = tg_gpt_from_config(ctx, config);
    ctx->unfilled = false;
    return gpt;
}

tg_module *tg_gpt_load(tg_ctx *ctx, const char *dir) {
    if (tg_ok(ctx) && !dir) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_load: the directory is NULL");
    char *config = tg_ok(ctx) ? tg_format_path(ctx, "%s/config.json", dir) : NULL;
    tg_module *gpt = to_fill(ctx, config);
    tg_gpt_load_weights(gpt, dir);
    if (ctx) tg_host_strfree(ctx, config);
    if (tg_ok(ctx)) return gpt;
    tg_module_free(gpt);
    return tg_gpt_new(ctx, NULL); /* inert */
}

/* ---- Save ---- */

/* Returns whether this rank writes config.json. */
static bool writes_config(const tg_lm_chunks *m) {
    const tg_parallel *p = tg_chunks_parallel(m);
    return !p || (tg_parallel_rank(p, TG_PP) == 0 && tg_shards_writer(&(const tg_shards){.ctx = m->ctx, .p = p}));
}

/* Writes the weights and then config.json, so that a directory with config.json has a whole model. root is the content
 * of config.json. NULL means that the model is not a GPT; then no config.json is written. */
static tg_status save_files(const tg_lm_chunks *m, const char *dir, int64_t file_bytes, json_t *root) {
    char sum[TG_CHECKSUM_DIGITS + 1];
    char *line = root ? tg_gpt_config_line(m->ctx, root) : NULL;
    char *path = tg_format_path(m->ctx, "%s/config.json", dir);
    if (m->ctx->run.status == TG_OK && tg_weights_save(m, dir, file_bytes, line, sum) == TG_OK && root &&
        writes_config(m))
        tg_gpt_save_config(m->ctx, path, root, sum);
    tg_host_strfree(m->ctx, path);
    tg_host_strfree(m->ctx, line);
    return m->ctx->run.status;
}

static tg_status save(const tg_lm_chunks *m, const char *dir, int64_t file_bytes) {
    bool gpt = tg_gpt_config_of(m->lm[0]);
    json_t *root = gpt ? tg_gpt_config_json(m->lm[0]) : NULL;
    if (gpt && !root) return m->ctx->run.status;
    tg_status s = save_files(m, dir, file_bytes, root);
    json_decref(root);
    return s;
}

tg_status tg_lm_save(tg_module *const *lm, int n, const char *dir, const tg_lm_save_opts *given) {
    tg_lm_chunks m;
    tg_lm_save_opts o;
    TG_TRY(tg_chunks_check(lm, n, dir, "tg_lm_save", &m));
    TG_TRY(tg_options(m.ctx, &o, &tg_lm_save_opts_struct, given, "tg_lm_save"));
    if (o.file_bytes < 1)
        return tg_fail(m.ctx, TG_ERR_ARGUMENT, "tg_lm_save: file_bytes is %lld, expected 1 or more",
                       (long long)o.file_bytes);
    return leave(&m, save(&m, dir, o.file_bytes));
}

tg_status tg_gpt_save(tg_module *gpt, const char *dir) {
    if (!gpt) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = gpt->ctx;
    TG_TRY(ctx->run.status);
    if (!tg_gpt_config_of(gpt) || !dir)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_save: %s", dir ? "the module is not a gpt" : "dir is NULL");
    if (tg_lm_of(gpt)->stage.head && !tg_lm_output_weight(gpt)) return ctx->run.status;
    return tg_lm_save(&gpt, 1, dir, TG_LM_SAVE(.file_bytes = INT64_MAX));
}
