/* Loads the parameters of a model from model.safetensors, or from the files that model.safetensors.index.json lists.
 * Each rank reads the tensors of its own layers and keeps its part of each tensor. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "checkpoint/shards.h"
#include "comm/comm.h"
#include "models/files/model_files.h"
#include "placement/grid.h"

/* The open files that a model is loaded from. */
typedef struct source {
    const tg_lm_chunks *m;
    const char *path;
    tg_safetensors *f;
    bool map;
    uint8_t *known; /* for each tensor of f: 1 if it is a parameter of some stage or may be ignored */
} source;

/* ---- Names ---- */

/* Published GPT-2 files omit the prefix "transformer.". */
const char *tg_weight_stored_name(const tg_safetensors *f, const char *path) {
    static const char prefix[] = "transformer.";
    if (tg_safetensors_find(f, path) || strncmp(path, prefix, sizeof prefix - 1) != 0) return path;
    return path + sizeof prefix - 1;
}

/* Returns whether this is a tensor of published files that is no parameter, such as GPT-2's masks "attn.bias". */
static bool ignorable(const char *name) {
    return tg_ends_with(name, ".attn.bias") || tg_ends_with(name, ".attn.masked_bias") ||
           tg_ends_with(name, ".rotary_emb.inv_freq");
}

bool tg_weight_is_known(const tg_module *lm, const char *name) {
    char full[256];
    if (ignorable(name) || tg_module_find(lm, name)) return true;
    snprintf(full, sizeof full, "transformer.%s", name);
    if (tg_module_find(lm, full)) return true;
    /* Some files of tied models store the embedding a second time, as the output matrix. */
    return strcmp(name, TG_WEIGHT_HEAD) == 0 && tg_lm_of(lm)->stage.head && !tg_module_child(lm, "lm_head");
}

/* ---- The checks ---- */

/* Sets s->known. Collective over the stages of the pipeline, because each stage knows only its own tensors. */
static tg_status note_known(source *s) {
    tg_ctx *ctx = s->m->ctx;
    int n = tg_safetensors_count(s->f);
    tg_comm *pp = tg_parallel_comm(tg_chunks_parallel(s->m), TG_PP);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s->m->n; k++)
            s->known[i] |= tg_weight_is_known(s->m->lm[k], tg_safetensors_at(s->f, i)->name);
    if (!n || tg_parallel_size(tg_chunks_parallel(s->m), TG_PP) == 1) return TG_OK;
    tg_tensor *x = tg_from_host(ctx, TG_U8, TG_SHAPE(n), s->known);
    if (tg_comm_all_reduce(pp, x, x, TG_REDUCE_MAX)) tg_read(x, s->known, (size_t)n);
    tg_drop(x);
    return ctx->run.status;
}

static tg_status check_known(const source *s) {
    for (int i = 0; i < tg_safetensors_count(s->f); i++)
        if (!s->known[i])
            return tg_fail(s->m->ctx, TG_ERR_FORMAT,
                           "'%s': tensor \"%s\" does not belong to the model that config.json describes", s->path,
                           tg_safetensors_at(s->f, i)->name);
    return TG_OK;
}

/* Checks that the file has the parameters of this part, in their shapes. */
static tg_status check_part(const source *s, tg_module *lm) {
    for (int i = 0, n = tg_module_param_count(lm); i < n; i++) {
        const char *name;
        tg_tensor *p = tg_module_param(lm, i, &name);
        if (tg_weight_is_adapter(name)) continue;
        const char *stored = tg_weight_stored_name(s->f, name);
        if (!tg_safetensors_find(s->f, stored))
            return tg_fail(lm->ctx, TG_ERR_FORMAT, "'%s': tensor \"%s\", which the model needs, is missing", s->path,
                           name);
        const tg_shape shape = tg_weight_shape(lm, p, name);
        TG_TRY(tg_safetensors_expect(s->f, stored, &shape, (tg_dtype)p->dtype, true));
    }
    return TG_OK;
}

/* Makes all checks of the file. No rank changes its part of the model until the checks of all stages have passed. */
static tg_status check(source *s) {
    const tg_parallel *p = tg_chunks_parallel(s->m);
    TG_TRY(note_known(s));
    TG_TRY(check_known(s));
    for (int i = 0; i < s->m->n; i++) TG_TRY(check_part(s, s->m->lm[i]));
    TG_TRY(tg_safetensors_verify(s->f, 0, 1));
    return tg_parallel_size(p, TG_PP) > 1 ? tg_comm_barrier(tg_parallel_comm(p, TG_PP)) : TG_OK;
}

/* ---- The data ---- */

/* Reads one parameter. If this rank has a shard of it, reads the whole tensor and keeps the shard. */
static tg_status load_one(const source *from, const tg_module *lm, tg_tensor *p, const char *path) {
    tg_ctx *ctx = lm->ctx;
    tg_shape g = tg_global_shape(p);
    bool part = memcmp(g.dim, p->shape, (size_t)p->ndim * sizeof *p->shape) != 0;
    bool as_it_is = !part && !tg_weight_is_transposed(lm, path);
    if (from->map && as_it_is && tg_safetensors_map(from->f, tg_weight_stored_name(from->f, path), p)) {
        tg_tensor_wrote(p, "tg_lm_map", NULL);
        return TG_OK;
    }
    TG_TRY(ctx->run.status);
    TG_TRY(tg_param_fill(p));
    tg_tensor *whole = part ? tg_temp_empty(ctx, p->dtype, p->ndim, g.dim, TG_MEM_TEMPORARY) : p;
    if (!whole) return ctx->run.status;
    tg_status s = part ? ctx->run.ops->fill(ctx, tg_array_of(whole), 0) : TG_OK; /* the file has no padding rows */
    tg_tensor *view = s == TG_OK ? tg_weight_view(lm, whole, tg_weight_rows(lm, p, path), path) : NULL;
    if (view) {
        s = tg_safetensors_fill(from->f, tg_weight_stored_name(from->f, path), view, true, NULL);
        tg_temp_free(view);
    }
    if (part && s == TG_OK && view) s = tg_storage_may_change(p);
    if (part && s == TG_OK && view) s = tg_shard_copy(p, tg_grid_of(ctx)->rank, whole, p, false);
    if (part) tg_temp_free(whole);
    tg_tensor_wrote(p, from->map ? "tg_lm_map" : "tg_lm_load", NULL);
    return s == TG_OK ? ctx->run.status : s;
}

static tg_status load_part(const source *s, tg_module *lm) {
    for (int i = 0, n = tg_module_param_count(lm); i < n; i++) {
        const char *name;
        tg_tensor *p = tg_module_param(lm, i, &name);
        if (!tg_weight_is_adapter(name)) TG_TRY(load_one(s, lm, p, name));
    }
    return TG_OK;
}

static tg_status load(source *s) {
    TG_TRY(check(s));
    for (int i = 0; i < s->m->n; i++) TG_TRY(load_part(s, s->m->lm[i]));
    return TG_OK;
}

char *tg_weights_find(tg_ctx *ctx, const char *dir) {
    bool one = false, several = false;
    char *file = tg_format_path(ctx, "%s/%s", dir, TG_WEIGHTS_FILE);
    char *index = tg_format_path(ctx, "%s/%s", dir, TG_WEIGHTS_INDEX);
    tg_status s = tg_file_exists(ctx, file, &one);
    if (s == TG_OK && !one) s = tg_file_exists(ctx, index, &several);
    char *found = s != TG_OK ? NULL : several ? index : file; /* the error of no file names the first */
    if (found != file) tg_host_strfree(ctx, file);
    if (found != index) tg_host_strfree(ctx, index);
    return found;
}

tg_status tg_weights_load(const tg_lm_chunks *m, const char *dir, bool map) {
    tg_ctx *ctx = m->ctx;
    char *path = tg_weights_find(ctx, dir);
    source s = {.m = m, .map = map, .path = path, .f = path ? tg_safetensors_open(ctx, path) : NULL};
    size_t n = s.f ? (size_t)tg_safetensors_count(s.f) + 1 : 0;
    if (n && (s.known = tg_host_alloc(ctx, n))) load(&s);
    tg_host_free(ctx, s.known, n);
    tg_safetensors_close(s.f);
    tg_host_strfree(ctx, path);
    return ctx->run.status;
}
