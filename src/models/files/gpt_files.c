/* Model directories: config.json and the weights, with the names, layouts and members of published checkpoints. So
 * other programs can load models that this library saved, and this library can load models that other programs
 * saved. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "checkpoint/shards.h"
#include "comm/comm.h"
#include "models/files/model_files.h"

/* Returns s. If it is an error and there are several stages, reports to all other ranks that this rank misses a
 * collective (tg_comm_note_missed). */
static tg_status leave(const tg_lm_chunks *m, tg_status s) {
    const tg_parallel *p = tg_chunks_parallel(m);
    return tg_parallel_size(p, TG_PP) > 1 ? tg_comm_note_missed(tg_parallel_world(p), s) : s;
}

/* ---- Load ---- */

/* Creates the GPT that a config describes; it keeps the members of config.json that the library does not know. */
static tg_module *gpt_of(tg_ctx *ctx, const tg_config_file *f, const char *path, const char *who, const void *site) {
    tg_gpt_config c;
    tg_lm_config lm = f->c;
    if (tg_gpt_of_lm(ctx, &f->c, path, who, &c) != TG_OK || tg_lm_complete(ctx, &lm, who) != TG_OK)
        return tg_gpt_new(ctx, NULL); /* inert */
    return tg_lm_make(ctx, &lm, &c, who, site);
}

/* Copies from `with` the fields that config.json does not have. */
static void take_run(tg_lm_config *c, const tg_lm_config *with) {
    c->recompute = with->recompute;
    c->wgrad = with->wgrad;
    c->backend = with->backend;
    c->cp_kind = with->cp_kind;
    c->cp_inner = with->cp_inner;
    c->parallel = with->parallel;
    c->layout = with->layout;
    c->chunk = with->chunk;
    c->key = with->key;
    c->unfilled = with->unfilled;
}

static tg_module *lm_of(tg_ctx *ctx, const tg_config_file *f, const tg_lm_config *given, const char *who,
                        const void *site) {
    tg_lm_config c = f->c, with;
    if (tg_options(ctx, &with, &tg_lm_config_struct, given, who) == TG_OK) take_run(&c, &with);
    if (!tg_ok(ctx) || tg_lm_complete(ctx, &c, who) != TG_OK) return tg_module_new(NULL, NULL, NULL);
    return tg_lm_make(ctx, &c, NULL, who, site);
}

static tg_module *gpt_from_config(tg_ctx *ctx, const char *path, const char *who, const void *site) {
    tg_config_file f = {.kinds = NULL};
    bool good = tg_ok(ctx) && tg_config_read(ctx, path, &f) == TG_OK;
    tg_module *gpt = good ? gpt_of(ctx, &f, path, who, site) : tg_module_new(NULL, NULL, NULL);
    if (ctx) tg_config_free(ctx, &f);
    return gpt;
}

tg_module *tg_gpt_from_config(tg_ctx *ctx, const char *path) {
    if (tg_ok(ctx) && !path) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_from_config: the path is NULL");
    return gpt_from_config(ctx, path, "tg_gpt_from_config", TG_SITE);
}

static tg_module *lm_from_config(tg_ctx *ctx, const char *path, const tg_lm_config *with, const char *who,
                                 const void *site) {
    tg_config_file f = {.kinds = NULL};
    bool good = tg_ok(ctx) && tg_config_read(ctx, path, &f) == TG_OK;
    tg_module *lm = good ? lm_of(ctx, &f, with, who, site) : tg_module_new(NULL, NULL, NULL);
    if (ctx) tg_config_free(ctx, &f);
    return lm;
}

tg_module *tg_lm_from_config(tg_ctx *ctx, const char *path, const tg_lm_config *with) {
    if (tg_ok(ctx) && !path) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_lm_from_config: the path is NULL");
    return lm_from_config(ctx, path, with, "tg_lm_from_config", TG_SITE);
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

/* While this is on, models are created without initial weights, and draw nothing. */
static void set_unfilled(tg_ctx *ctx, bool on) {
    if (tg_ok(ctx) || (ctx && !on)) ctx->unfilled = on;
}

/* Returns the model, or an inert module after an error. */
static tg_module *loaded(tg_ctx *ctx, tg_module *lm) {
    if (tg_ok(ctx)) return lm;
    tg_module_free(lm);
    return tg_module_new(NULL, NULL, NULL);
}

tg_module *tg_gpt_load(tg_ctx *ctx, const char *dir) {
    if (tg_ok(ctx) && !dir) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_gpt_load: the directory is NULL");
    char *config = tg_ok(ctx) ? tg_format_path(ctx, "%s/config.json", dir) : NULL;
    set_unfilled(ctx, true);
    tg_module *gpt = gpt_from_config(ctx, config, "tg_gpt_load", TG_SITE);
    set_unfilled(ctx, false);
    tg_gpt_load_weights(gpt, dir);
    if (ctx) tg_host_strfree(ctx, config);
    return loaded(ctx, gpt);
}

tg_module *tg_lm_load_dir(tg_ctx *ctx, const char *dir, const tg_lm_config *with) {
    if (tg_ok(ctx) && !dir) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_lm_load_dir: the directory is NULL");
    char *config = tg_ok(ctx) ? tg_format_path(ctx, "%s/config.json", dir) : NULL;
    set_unfilled(ctx, true);
    tg_module *lm = lm_from_config(ctx, config, with, "tg_lm_load_dir", TG_SITE);
    set_unfilled(ctx, false);
    if (tg_ok(ctx)) tg_lm_load(&lm, 1, dir);
    if (ctx) tg_host_strfree(ctx, config);
    return loaded(ctx, lm);
}

/* ---- Save ---- */

bool tg_lm_has_config(const tg_module *lm) {
    json_t *root = tg_is_lm(lm) && lm->ctx->run.status == TG_OK ? tg_lm_config_json(lm) : NULL;
    bool has = root != NULL;
    json_decref(root);
    return has;
}

/* Returns whether this rank writes config.json. */
static bool writes_config(const tg_lm_chunks *m) {
    const tg_parallel *p = tg_chunks_parallel(m);
    return !p || (tg_parallel_rank(p, TG_PP) == 0 && tg_shards_writer(&(const tg_shards){.ctx = m->ctx, .p = p}));
}

/* Writes the weights and then config.json, so that a directory with config.json has a whole model. root is the content
 * of config.json. NULL means that it cannot describe the model; then no config.json is written. */
static tg_status save_files(const tg_lm_chunks *m, const char *dir, int64_t file_bytes, json_t *root) {
    char sum[TG_CHECKSUM_DIGITS + 1];
    char *line = root ? tg_config_line(m->ctx, root) : NULL;
    char *path = tg_format_path(m->ctx, "%s/config.json", dir);
    if (m->ctx->run.status == TG_OK && tg_weights_save(m, dir, file_bytes, line, sum) == TG_OK && root &&
        writes_config(m))
        tg_config_save(m->ctx, path, root, sum);
    tg_host_strfree(m->ctx, path);
    tg_host_strfree(m->ctx, line);
    return m->ctx->run.status;
}

static tg_status save(const tg_lm_chunks *m, const char *dir, int64_t file_bytes) {
    json_t *root = tg_lm_config_json(m->lm[0]);
    TG_TRY(m->ctx->run.status);
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
