/* Saves the parameters of a model: model.safetensors or, if there are several stages or much data, several files with
 * an index, model.safetensors.index.json. The first rank of each pipeline stage writes the stage's tensors. No file
 * gets its name before all files of all stages are complete. */
#include <stdio.h>

#include "base/memory/host_memory.h"
#include "checkpoint/shards.h"
#include "comm/comm.h"
#include "models/files/model_files.h"
#include "placement/grid.h"

/* A tensor of the files, and the file of this stage that has it. */
typedef struct entry {
    tg_module *lm;
    tg_tensor *p;
    char *name;
    tg_tensor like; /* only dtype, shape and numel are set */
    int64_t dims[TG_MAX_DIMS];
    int file;
} entry;

/* What this rank saves. The files of all stages are numbered from 1; those of this stage begin at `before` + 1. */
typedef struct plan {
    const tg_lm_chunks *m;
    const char *dir, *config;
    bool writes; /* whether this rank writes the stage's files; the others only send their parts */
    entry *entries;
    int n, capacity;
    int files, before, total;       /* files of this stage, of the stages before it, and of all */
    tg_safetensors_writer *writers; /* [files] */
} plan;

static bool is_grid(const plan *s) { return tg_grid_axes(s->m->ctx) != 0; }

/* ---- Which file has which tensor ---- */

static tg_status add_entry(plan *s, tg_module *lm, tg_tensor *p, const char *path) {
    entry *e = &s->entries[s->n];
    const tg_shape shape = tg_weight_shape(lm, p, path);
    *e = (entry){.lm = lm, .p = p, .name = tg_host_strdup(lm->ctx, path)};
    e->like = (tg_tensor){.dtype = p->dtype, .ndim = p->ndim, .shape = e->dims, .numel = 1};
    for (int d = 0; d < p->ndim; d++) e->like.numel *= e->dims[d] = shape.dim[d];
    if (!e->name) return lm->ctx->run.status;
    s->n++;
    return TG_OK;
}

/* Lists the tensors of this stage's chunks, except copies of those of another stage, and matrices of adapters. */
static tg_status list_entries(plan *s) {
    for (int k = 0; k < s->m->n; k++) s->capacity += tg_module_param_count(s->m->lm[k]);
    s->entries = tg_host_alloc(s->m->ctx, (size_t)s->capacity * sizeof *s->entries + 1);
    if (!s->entries) return s->m->ctx->run.status;
    for (int k = 0; k < s->m->n; k++)
        for (int i = 0, n = tg_module_param_count(s->m->lm[k]); i < n; i++) {
            const char *path;
            tg_tensor *p = tg_module_param(s->m->lm[k], i, &path);
            bool skip = tg_weight_is_copy(s->m->lm[k], path) || tg_weight_is_adapter(path);
            if (!skip) TG_TRY(add_entry(s, s->m->lm[k], p, path));
        }
    return TG_OK;
}

/* Fills the files one after another, up to a number of bytes each. */
static void assign_files(plan *s, int64_t limit) {
    int64_t used = 0;
    s->files = s->n > 0;
    for (int i = 0; i < s->n; i++) {
        int64_t bytes = s->entries[i].like.numel * (int64_t)tg_dtype_size((tg_dtype)s->entries[i].like.dtype);
        if (used && used + bytes > limit) s->files++, used = 0;
        used += bytes;
        s->entries[i].file = s->files - 1;
    }
}

/* Adds up the numbers of files of all stages. Collective over the pipeline. */
static tg_status count_files(plan *s) {
    enum { MOST = 4096 };
    int64_t files[MOST] = {0};
    const tg_parallel *p = tg_chunks_parallel(s->m);
    int pp = tg_parallel_size(p, TG_PP), mine = tg_parallel_rank(p, TG_PP);
    s->total = s->files;
    if (pp == 1) return TG_OK;
    if (pp > MOST) return tg_fail(s->m->ctx, TG_ERR_UNSUPPORTED, "tg_lm_save: pp is %d, expected at most %d", pp, MOST);
    files[mine] = s->files;
    tg_tensor *x = tg_from_host(s->m->ctx, TG_I64, TG_SHAPE(pp), files);
    if (tg_comm_all_reduce(tg_parallel_comm(p, TG_PP), x, x, TG_REDUCE_SUM))
        tg_read(x, files, (size_t)pp * sizeof *files);
    tg_drop(x);
    s->total = 0;
    for (int i = 0; i < pp; i++) {
        if (i < mine) s->before += (int)files[i];
        s->total += (int)files[i];
    }
    return s->m->ctx->run.status;
}

/* ---- The data ---- */

/* Begins a file with the names and shapes of its tensors, and the config as metadata. */
static tg_status begin_file(plan *s, int file) {
    tg_ctx *ctx = s->m->ctx;
    int n = 0;
    size_t bytes = (size_t)s->n * sizeof(tg_named_tensor);
    tg_named_tensor *named = tg_host_alloc(ctx, bytes);
    if (!named) return ctx->run.status;
    for (int i = 0; i < s->n; i++)
        if (s->entries[i].file == file) named[n++] = (tg_named_tensor){s->entries[i].name, &s->entries[i].like};
    const tg_metadata metadata[] = {{"format", "pt"}, {"tapegrad.config", s->config}};
    char *path = tg_weights_path(ctx, s->dir, s->before + file + 1, s->total);
    if (path) tg_safetensors_begin(&s->writers[file], ctx, path, named, n, metadata, s->config ? 2 : 1);
    tg_host_strfree(ctx, path);
    tg_host_free(ctx, named, bytes);
    return ctx->run.status;
}

/* Writes one tensor. With several ranks its parts are first gathered on the rank that writes. */
static tg_status save_one(plan *s, const entry *e) {
    tg_ctx *ctx = s->m->ctx;
    tg_tensor *whole = e->p;
    if (is_grid(s)) {
        const tg_shards list = {.ctx = ctx, .p = tg_chunks_parallel(s->m)};
        const tg_shard_item item = {.key = e->name, .x = e->p, .like = e->p, .rows = TG_NONE};
        whole = tg_shard_whole(&list, &item);
    }
    tg_status status = ctx->run.status;
    tg_tensor *view = s->writes && whole && status == TG_OK
                          ? tg_weight_view(e->lm, whole, tg_weight_rows(e->lm, e->p, e->name), e->name)
                          : NULL;
    if (view) {
        status = tg_safetensors_put(&s->writers[e->file], view);
        tg_temp_free(view);
    }
    if (whole && whole != e->p) tg_temp_free(whole);
    return status == TG_OK ? ctx->run.status : status;
}

static tg_status write_files(plan *s) {
    s->writers = tg_host_alloc(s->m->ctx, (size_t)s->files * sizeof *s->writers + 1);
    if (!s->writers) return s->m->ctx->run.status;
    for (int i = 0; i < s->n; i++) {
        bool first = i == 0 || s->entries[i].file != s->entries[i - 1].file;
        if (s->writes && first) TG_TRY(begin_file(s, s->entries[i].file));
        TG_TRY(save_one(s, &s->entries[i]));
    }
    return TG_OK;
}

/* ---- From the files to a model ---- */

static tg_status meet(const plan *s) { /* with several stages, waits until all ranks of the model are here */
    const tg_parallel *p = tg_chunks_parallel(s->m);
    return tg_parallel_size(p, TG_PP) > 1 ? tg_comm_barrier(tg_parallel_world(p)) : s->m->ctx->run.status;
}

/* Gives the complete files their names. A reader finds the old model, the new one, or none: config.json is removed
 * first and the caller writes it last, and there is no index while new files of several get their names. An old index
 * stays until the only file of a new model has its name; readers prefer that file. */
static tg_status publish(plan *s, char *sum) {
    tg_ctx *ctx = s->m->ctx;
    bool first = s->writes && tg_parallel_rank(tg_chunks_parallel(s->m), TG_PP) == 0, several = s->total > 1;
    TG_TRY(meet(s));
    if (first) TG_TRY(tg_weights_retract(ctx, s->dir, several));
    TG_TRY(meet(s));
    for (int i = 0; s->writes && i < s->files; i++) TG_TRY(tg_safetensors_commit(&s->writers[i], several ? NULL : sum));
    TG_TRY(meet(s));
    if (first && several) TG_TRY(tg_weights_write_index(ctx, s->dir, s->total, sum));
    if (first) TG_TRY(tg_weights_remove_stale(ctx, s->dir, s->total));
    return meet(s);
}

/* Writes the files of this stage, without giving them their names. */
static tg_status write_stage(plan *s, int64_t file_bytes) {
    TG_TRY(list_entries(s));
    assign_files(s, file_bytes);
    TG_TRY(count_files(s));
    return write_files(s);
}

static tg_status save(plan *s, int64_t file_bytes, char *sum) {
    TG_TRY(tg_shard_note_missed(tg_chunks_parallel(s->m), write_stage(s, file_bytes)));
    return publish(s, sum);
}

tg_status tg_weights_save(const tg_lm_chunks *m, const char *dir, int64_t file_bytes, const char *config,
                          char sum[TG_CHECKSUM_DIGITS + 1]) {
    tg_ctx *ctx = m->ctx;
    const tg_parallel *p = tg_chunks_parallel(m);
    plan s = {.m = m, .dir = dir, .config = config};
    s.writes = !p || tg_shards_writer(&(const tg_shards){.ctx = ctx, .p = p});
    sum[0] = 0;
    tg_status status = save(&s, file_bytes, sum);
    for (int i = 0; s.writers && i < s.files; i++) tg_safetensors_abandon(&s.writers[i]);
    tg_host_free(ctx, s.writers, s.writers ? (size_t)s.files * sizeof *s.writers + 1 : 0);
    for (int i = 0; i < s.n; i++) tg_host_strfree(ctx, s.entries[i].name);
    tg_host_free(ctx, s.entries, s.entries ? (size_t)s.capacity * sizeof *s.entries + 1 : 0);
    return status;
}
