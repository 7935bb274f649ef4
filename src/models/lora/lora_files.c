/* Saves adapters, and loads them. With several ranks one of them writes whole matrices, and each reads its part. */
#include "models/lora/lora_files.h"

#include <stdio.h>

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "checkpoint/shards.h"
#include "models/lm/lm.h"
#include "placement/grid.h"

static const char *const suffix[2] = {".lora_A.weight", ".lora_B.weight"};

/* Writes the name that matrix i of the layer of this path has in files. */
static void name_of(const char *path, int i, char *name, size_t n) {
    snprintf(name, n, TG_LORA_PREFIX "%s%s", path, suffix[i]);
}

static tg_status check_dir(tg_module *m, const char *dir, const char *who) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    return dir ? TG_OK : tg_fail(m->ctx, TG_ERR_ARGUMENT, "%s: dir is NULL", who);
}

/* ---- Save ---- */

/* The matrices of all adapters, in the order of the file. Those of adapter k are 2 k and 2 k + 1. */
typedef struct matrices {
    tg_module *m;
    const tg_lora_list *l;
    const tg_parallel *p; /* NULL without a grid */
    bool writes;          /* this rank writes the files */
    tg_named_tensor *named;
    tg_tensor *like; /* the tensors of `named`, of which only dtype, shape and numel are set */
    int64_t (*dims)[2];
    char (*names)[TG_LORA_NAME];
} matrices;

static tg_tensor *matrix_at(const matrices *s, int i) { return tg_lora_matrix(s->l->list[i / 2], i % 2); }

static void describe(matrices *s, int i) {
    char path[TG_LORA_PATH];
    const tg_tensor *x = matrix_at(s, i);
    const tg_shape whole = tg_global_shape(x);
    tg_lora_path(s->m, s->l->list[i / 2], path, sizeof path);
    name_of(path, i % 2, s->names[i], sizeof s->names[i]);
    s->dims[i][0] = whole.dim[0], s->dims[i][1] = whole.dim[1];
    s->like[i] = (tg_tensor){.dtype = x->dtype, .ndim = 2, .shape = s->dims[i], .numel = whole.dim[0] * whole.dim[1]};
    s->named[i] = (tg_named_tensor){s->names[i], &s->like[i]};
}

/* Writes matrix i. With several ranks its parts are first gathered on the rank that writes. */
static tg_status put(const matrices *s, tg_safetensors_writer *w, int i) {
    tg_tensor *x = matrix_at(s, i), *whole = x;
    if (tg_grid_axes(s->m->ctx)) {
        const tg_shards list = {.ctx = s->m->ctx, .p = s->p};
        whole = tg_shard_whole(&list, &(tg_shard_item){.key = s->names[i], .x = x, .like = x, .rows = TG_NONE});
    }
    tg_status status = s->m->ctx->run.status;
    if (status == TG_OK && s->writes && whole) status = tg_safetensors_put(w, whole);
    if (whole && whole != x) tg_temp_free(whole);
    return status;
}

static tg_status write_all(const matrices *s, const char *path) {
    static const tg_metadata metadata[] = {{"format", "pt"}};
    tg_safetensors_writer w = {0};
    int n = 2 * s->l->n;
    tg_status status = TG_OK;
    if (s->writes) status = tg_safetensors_begin(&w, s->m->ctx, path, s->named, n, metadata, 1);
    for (int i = 0; i < n && status == TG_OK; i++) status = put(s, &w, i);
    tg_shard_note_missed(s->p, status);
    if (status == TG_OK && s->writes) status = tg_safetensors_commit(&w, NULL);
    if (status != TG_OK && s->writes) tg_safetensors_abandon(&w);
    return status;
}

/* Fails unless each adapter has both matrices, and a path that fits. */
static tg_status check_adapters(const tg_module *m, const tg_lora_list *l) {
    char path[TG_LORA_PATH];
    for (int i = 0; i < l->n; i++) {
        if (!tg_lora_matrix(l->list[i], 0) || !tg_lora_matrix(l->list[i], 1)) return m->ctx->run.status;
        size_t n = tg_lora_path(m, l->list[i], path, sizeof path);
        if (n >= sizeof path)
            return tg_fail(m->ctx, TG_ERR_UNSUPPORTED,
                           "tg_lora_save: the path of a layer has %zu bytes, expected at most %d; it begins with "
                           "\"%.64s\"",
                           n, TG_LORA_PATH - 1, path);
    }
    return TG_OK;
}

static tg_status save_matrices(tg_module *m, const tg_lora_list *l, const char *path, bool writes) {
    size_t n = 2 * (size_t)l->n,
           each = sizeof(tg_named_tensor) + sizeof(tg_tensor) + 2 * sizeof(int64_t) + TG_LORA_NAME;
    char *memory = tg_host_alloc(m->ctx, n * each);
    if (!memory) return tg_shard_note_missed(tg_grid_of(m->ctx)->owner, m->ctx->run.status);
    matrices s = {.m = m, .l = l, .p = tg_grid_of(m->ctx)->owner, .writes = writes};
    s.named = (tg_named_tensor *)memory;
    s.like = (tg_tensor *)(s.named + n);
    s.dims = (int64_t(*)[2])(s.like + n);
    s.names = (char(*)[TG_LORA_NAME])(s.dims + n);
    for (int i = 0; i < (int)n; i++) describe(&s, i);
    tg_status status = write_all(&s, path);
    tg_host_free(m->ctx, memory, n * each);
    return status;
}

static tg_status save(tg_module *m, const tg_lora_list *l, const char *dir, const char *base) {
    tg_ctx *ctx = m->ctx;
    const tg_parallel *p = tg_grid_of(ctx)->owner;
    bool writes = !p || tg_shards_writer(&(const tg_shards){.ctx = ctx, .p = p});
    char *weights = tg_format_path(ctx, "%s/" TG_LORA_WEIGHTS, dir),
         *config = tg_format_path(ctx, "%s/" TG_LORA_CONFIG, dir);
    if (weights && config && save_matrices(m, l, weights, writes) == TG_OK && writes)
        tg_lora_config_save(m, l, config, base);
    tg_host_strfree(ctx, config);
    tg_host_strfree(ctx, weights);
    return ctx->run.status;
}

tg_status tg_lora_save(tg_module *m, const char *dir, const char *base) {
    tg_lora_list l;
    TG_TRY(check_dir(m, dir, "tg_lora_save"));
    TG_TRY(tg_lora_need(m, &l, "tg_lora_save"));
    if (tg_is_lm(m) && tg_lm_of(m)->stage.parts > 1)
        tg_fail(m->ctx, TG_ERR_UNSUPPORTED,
                "tg_lora_save: the module is part %d of a model of %d parts, expected a whole model",
                tg_lm_of(m)->stage.part, tg_lm_of(m)->stage.parts);
    else if (base && tg_utf8_check(base, strlen(base)) < strlen(base))
        tg_fail(m->ctx, TG_ERR_ARGUMENT,
                "tg_lora_save: base is not UTF-8, in which " TG_LORA_CONFIG " is written; give another name, or NULL");
    else if (check_adapters(m, &l) == TG_OK)
        save(m, &l, dir, base);
    tg_lora_list_free(&l);
    return m->ctx->run.status;
}

/* ---- Load ---- */

/* The files that adapters are loaded from. */
typedef struct source {
    tg_module *m;
    tg_safetensors *f;
    tg_lora_config c;
    const char *path; /* of the matrices */
} source;

/* Writes to path the path of the layer whose matrix i the tensor is. Returns i; -1 if the tensor is no matrix. */
static int parse_name(const char *name, char *path, size_t n) {
    size_t prefix = strlen(TG_LORA_PREFIX), length = strlen(name);
    for (int i = 0; i < 2; i++) {
        size_t tail = strlen(suffix[i]);
        if (length <= prefix + tail || strncmp(name, TG_LORA_PREFIX, prefix) || strcmp(name + length - tail, suffix[i]))
            continue;
        snprintf(path, n, "%.*s", (int)(length - tail - prefix), name + prefix);
        return i;
    }
    return -1;
}

/* Returns the module of that path in m; NULL if there is none. */
static tg_module *module_at(const tg_module *m, const char *path) {
    char name[TG_LORA_NAME];
    while (m && *path) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        m = tg_module_child(m, name);
        path += n + (path[n] == '.');
    }
    return (tg_module *)m;
}

/* Checks that a tensor of the file is a matrix of a linear layer of the model, and that its partner is there. */
static tg_status check_tensor(const source *s, const char *name) {
    char path[TG_LORA_PATH], other[TG_LORA_NAME];
    int i = parse_name(name, path, sizeof path);
    if (i < 0)
        return tg_fail(s->m->ctx, TG_ERR_UNSUPPORTED,
                       "'%s': tensor \"%.128s\" is no LoRA matrix of a linear layer, named \"" TG_LORA_PREFIX
                       "<layer>.lora_A.weight\" or \".lora_B.weight\"",
                       s->path, name);
    if (!tg_can_lora(module_at(s->m, path)))
        return tg_fail(s->m->ctx, TG_ERR_FORMAT,
                       "'%s': tensor \"%.128s\" does not belong to the model, which has no linear layer \"%.128s\"",
                       s->path, name, path);
    name_of(path, !i, other, sizeof other);
    if (tg_safetensors_find(s->f, other)) return TG_OK;
    return tg_fail(s->m->ctx, TG_ERR_FORMAT, "'%s': tensor \"%.128s\" is missing", s->path, other);
}

/* Returns the rank of the layer's matrices in the file, after a check of their shapes; 0 after an error. */
static int64_t rank_of(const source *s, const tg_module *layer, const char *path) {
    char name[TG_LORA_NAME], is[160];
    const tg_shape w = tg_global_shape(tg_module_own(layer, "weight"));
    tg_dtype dtype = tg_dtype_of(tg_module_own(layer, "weight"));
    name_of(path, 0, name, sizeof name);
    const tg_safetensors_entry *a = tg_safetensors_find(s->f, name);
    int64_t rank = a->shape.ndim == 2 ? a->shape.dim[0] : 0;
    if (rank < 1) {
        tg_shape_text((int)a->shape.ndim, a->shape.dim, is, sizeof is);
        tg_fail(s->m->ctx, TG_ERR_SHAPE, "'%s': tensor \"%.128s\" is %s, expected [rank, %lld]", s->path, name, is,
                (long long)w.dim[1]);
        return 0;
    }
    const tg_shape of_a = {2, {rank, w.dim[1]}}, of_b = {2, {w.dim[0], rank}};
    if (tg_safetensors_expect(s->f, name, &of_a, dtype, true) != TG_OK) return 0;
    name_of(path, 1, name, sizeof name);
    return tg_safetensors_expect(s->f, name, &of_b, dtype, true) == TG_OK ? rank : 0;
}

/* Keeps those layers of the list that the file has, and sets their numbers. */
static tg_status choose(const source *s, tg_lora_list *l, tg_lora_numbers *numbers) {
    char path[TG_LORA_PATH], name[TG_LORA_NAME];
    int kept = 0;
    for (int i = 0; i < l->n; i++) {
        tg_lora_path(s->m, l->list[i], path, sizeof path);
        name_of(path, 0, name, sizeof name);
        if (!tg_safetensors_find(s->f, name)) continue;
        int64_t rank = rank_of(s, l->list[i], path);
        if (!rank) return s->m->ctx->run.status;
        numbers[kept] = s->c.n;
        numbers[kept].rank = rank;
        numbers[kept].alpha = tg_lora_config_alpha(&s->c, path);
        l->list[kept++] = l->list[i];
    }
    for (int i = kept; i < l->n; i++) l->list[i] = NULL;
    return TG_OK;
}

/* Reads one matrix. If this rank has a shard of it, reads the whole matrix and keeps the shard. */
static tg_status fill(const source *s, tg_tensor *x, const char *name) {
    tg_ctx *ctx = s->m->ctx;
    const tg_shape whole = tg_global_shape(x);
    if (memcmp(whole.dim, x->shape, 2 * sizeof *x->shape) == 0) return tg_safetensors_fill(s->f, name, x, true, NULL);
    tg_tensor *all = tg_temp_empty(ctx, x->dtype, 2, whole.dim, TG_MEM_TEMPORARY);
    if (!all) return ctx->run.status;
    tg_status status = tg_safetensors_fill(s->f, name, all, true, NULL);
    if (status == TG_OK) status = tg_storage_may_change(x);
    if (status == TG_OK) status = tg_shard_copy(x, tg_grid_of(ctx)->rank, all, x, false);
    tg_temp_free(all);
    tg_tensor_wrote(x, "tg_lora_load", NULL);
    return status;
}

static tg_status fill_all(const source *s, const tg_lora_list *adapters) {
    char path[TG_LORA_PATH], name[TG_LORA_NAME];
    for (int k = 0; k < 2 * adapters->n; k++) {
        tg_lora_path(s->m, adapters->list[k / 2], path, sizeof path);
        name_of(path, k % 2, name, sizeof name);
        TG_TRY(fill(s, tg_lora_matrix(adapters->list[k / 2], k % 2), name));
    }
    return TG_OK;
}

/* Adapts the layers of the list, and freezes all other parameters. If the matrices cannot be read, takes the adapters
 * away again and freezes nothing. */
static tg_status adapt(const source *s, tg_lora_list *l, tg_lora_numbers *numbers) {
    tg_lora_list kept = *l;
    TG_TRY(choose(s, l, numbers));
    for (kept.n = 0; kept.n < l->n && l->list[kept.n]; kept.n++) {}
    if (!kept.n) return tg_fail(s->m->ctx, TG_ERR_FORMAT, "'%s' has no matrices", s->path);
    TG_TRY(tg_lora_adapt(s->m, &kept, numbers, "tg_lora_load"));
    if (fill_all(s, &kept) == TG_OK) return tg_lora_freeze(s->m);
    for (int i = 0; i < kept.n; i++) tg_lora_free(kept.list[i]);
    return s->m->ctx->run.status;
}

static tg_status load(source *s) {
    tg_lora_list l;
    for (int i = 0; i < tg_safetensors_count(s->f); i++) TG_TRY(check_tensor(s, tg_safetensors_at(s->f, i)->name));
    TG_TRY(tg_lora_list_layers(s->m, &l));
    size_t bytes = (size_t)l.n * sizeof(tg_lora_numbers) + 1;
    tg_lora_numbers *numbers = tg_host_alloc(s->m->ctx, bytes);
    if (numbers) adapt(s, &l, numbers);
    tg_host_free(s->m->ctx, numbers, bytes);
    tg_lora_list_free(&l);
    return s->m->ctx->run.status;
}

tg_status tg_lora_load(tg_module *m, const char *dir) {
    TG_TRY(check_dir(m, dir, "tg_lora_load"));
    TG_TRY(tg_lora_check_new(m, "tg_lora_load"));
    tg_ctx *ctx = m->ctx;
    char *weights = tg_format_path(ctx, "%s/" TG_LORA_WEIGHTS, dir),
         *config = tg_format_path(ctx, "%s/" TG_LORA_CONFIG, dir);
    source s = {.m = m, .path = weights};
    if (weights && config && tg_lora_config_load(ctx, config, &s.c) == TG_OK) {
        s.f = tg_safetensors_open(ctx, weights);
        if (s.f) load(&s);
        tg_safetensors_close(s.f);
        tg_json_free(&s.c.json);
    }
    tg_host_strfree(ctx, config);
    tg_host_strfree(ctx, weights);
    return ctx->run.status;
}
