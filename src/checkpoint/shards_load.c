/* Loads sharded state. Every rank reads the headers of all files, checks that the files have each key of the rank's own
 * tg_shards list, and verifies the checksums of a share of the tensors. No value changes before all ranks have passed
 * these checks. Then each rank reads the global tensors one at a time and keeps its part of each. */
#include <stdio.h>
#include <stdlib.h>

#include <tapegrad/optim.h>
#include <tapegrad/parallel.h>

#include "base/host_memory.h"
#include "placement/grid.h"
#include "io/safetensors.h"
#include "kernels/scalar.h"
#include "comm/comm.h"
#include "checkpoint/shards_file.h"

enum { MAX_FILES = 1024 }; /* the message of open_all has this number too */

/* The open files of one checkpoint, and what the checks have read from them. */
typedef struct source {
    const tg_shards *s;
    const char *dir;
    int n, count; /* number of files, and of tensors in them */
    tg_safetensors *file[MAX_FILES];
    uint8_t *known; /* [count] 1 if a list has the tensor's key; tensors are numbered in the order of the files */
    tg_rng *stream; /* [n_streams] states from the files; this rank's random streams take them over after the checks */
    int n_streams;
} source;

/* ---- The files ---- */

/* Reports a format error: in file i the metadata value of `key` is `got`, or is missing if `got` is NULL. */
static tg_status bad_file(const source *f, int i, const char *key, const char *got, const char *expected) {
    char path[64];
    snprintf(path, sizeof path, TG_SHARDS_FILE, "", i);
    return tg_fail(f->s->ctx, TG_ERR_FORMAT, "'%s%s': its metadata '%s' is %s, expected %s", f->dir, path, key,
                   got ? got : "missing", expected);
}

static tg_status open_one(source *f, int i) {
    char *path = tg_format_path(f->s->ctx, TG_SHARDS_FILE, f->dir, i);
    if (!path) return f->s->ctx->run.status;
    f->file[i] = tg_safetensors_open(f->s->ctx, path);
    tg_host_strfree(f->s->ctx, path);
    if (!f->file[i]) return f->s->ctx->run.status;
    f->n = i + 1;
    f->count += f->file[i]->count;
    const char *format = tg_safetensors_metadata(f->file[i], "format");
    if (!format || strcmp(format, TG_SHARDS_FORMAT) != 0) return bad_file(f, i, "format", format, TG_SHARDS_FORMAT);
    /* The number of files, and the number that identifies the save. */
    static const char *const common[] = {"files", "save"};
    for (int k = 0; k < TG_LEN(common); k++) {
        const char *first = tg_safetensors_metadata(f->file[0], common[k]),
                   *got = tg_safetensors_metadata(f->file[i], common[k]);
        if (!first || !got || strcmp(first, got) != 0)
            return bad_file(f, i, common[k], got,
                            "the same value in all files of the directory; take all of them from one tg_shards_save");
    }
    return TG_OK;
}

static tg_status open_all(source *f) {
    TG_TRY(open_one(f, 0));
    const char *text = tg_safetensors_metadata(f->file[0], "files");
    long n = strtol(text, NULL, 10);
    if (n < 1 || n > MAX_FILES) return bad_file(f, 0, "files", text, "a number of files from 1 to 1024");
    for (int i = 1; i < n; i++) TG_TRY(open_one(f, i));
    f->known = tg_host_alloc(f->s->ctx, (size_t)f->count + 1);
    f->n_streams = tg_shards_streams(f->s);
    f->stream = tg_host_alloc(f->s->ctx, (size_t)f->n_streams * sizeof *f->stream + 1);
    return f->s->ctx->run.status;
}

static void close_all(source *f) {
    tg_host_free(f->s->ctx, f->known, f->known ? (size_t)f->count + 1 : 0);
    tg_host_free(f->s->ctx, f->stream, f->stream ? (size_t)f->n_streams * sizeof *f->stream + 1 : 0);
    for (int i = 0; i < f->n; i++) tg_safetensors_close(f->file[i]);
}

/* Returns the first file that has the item under the key, or NULL, and sets *spot to the item's place in it. Marks the
 * key as known in every file that has it: several may have some places each, or, of an earlier version, a copy each of
 * what stages share. */
static tg_safetensors *find_key(source *f, const tg_shard_item *item, const char *key, tg_shard_spot *spot) {
    tg_safetensors *first = NULL;
    for (int i = 0, at = 0; i < f->n; at += f->file[i++]->count) {
        const tg_safetensors_entry *e = tg_safetensors_find(f->file[i], key);
        if (!e) continue;
        f->known[at + (e - f->file[i]->entries)] = 1;
        if (!first && tg_shard_find_spot(item, key, f->file[i], spot)) first = f->file[i];
    }
    return first;
}

/* Finds an item under its own key or, if it is a copy that is saved only once, under that of its first owner. */
static tg_safetensors *find(source *f, const tg_shard_item *item, tg_shard_spot *spot) {
    tg_safetensors *own = find_key(f, item, item->key, spot);
    return own || !item->owner ? own : find_key(f, item, item->owner, spot);
}

/* ---- The checks ---- */

/* Fails unless the files have the item's tensor, with its shape and dtype. */
static tg_status check_entry(source *f, const tg_shard_item *item) {
    char has[160], wants[160];
    tg_ctx *ctx = f->s->ctx;
    tg_shard_spot spot;
    tg_safetensors *file = find(f, item, &spot);
    if (!file)
        return tg_fail(ctx, TG_ERR_FORMAT, "'%s' has no tensor '%.128s'%s", f->dir, item->key,
                       item->front.n ? " with the index that tg_shards_push gave" : "");
    const tg_safetensors_entry *e = tg_safetensors_find(file, spot.key);
    tg_shape g = spot.shape;
    bool same = e->shape.ndim == g.ndim && memcmp(e->shape.dim, g.dim, (size_t)g.ndim * sizeof *g.dim) == 0;
    if (same && e->dtype == (tg_dtype)item->x->dtype) return TG_OK;
    tg_shape_text((int)e->shape.ndim, e->shape.dim, has, sizeof has);
    tg_shape_text((int)g.ndim, g.dim, wants, sizeof wants);
    return tg_fail(ctx, TG_ERR_FORMAT, "'%s': tensor '%.128s' is %s%s, expected %s%s%s", f->dir, item->key,
                   e->dtype_name, has, tg_dtype_name((tg_dtype)item->x->dtype), wants,
                   same || item->rows != TG_NONE
                       ? ""
                       : "; call tg_shards_set_rows if the shapes differ only by padding rows");
}

/* Returns the metadata text of an optimizer's number of steps, or NULL if no file has the key. */
static const char *steps_text(const source *f, const char *key) {
    for (int i = 0; i < f->n; i++) {
        const char *text = tg_safetensors_metadata(f->file[i], key);
        if (text) return text;
    }
    return NULL;
}

static tg_status check_steps(const source *f, const char *key) {
    const char *text = steps_text(f, key);
    char *end;
    if (text && strtoll(text, &end, 10) >= 0 && end != text && !*end) return TG_OK;
    return tg_fail(f->s->ctx, TG_ERR_FORMAT, "'%s': the optimizer's step count '%.128s' is %s, expected 0 or more",
                   f->dir, key, text ? text : "missing");
}

/* Fails if the files have a tensor that is in no pipeline stage's list. Collective over the pipeline. */
static tg_status check_unknown(source *f) {
    tg_ctx *ctx = f->s->ctx;
    tg_comm *pp = tg_parallel_comm(f->s->p, TG_PP);
    if (tg_parallel_size(f->s->p, TG_PP) > 1 && f->count) {
        tg_tensor *x = tg_from_host(ctx, TG_U8, TG_SHAPE(f->count), f->known);
        if (tg_comm_all_reduce(pp, x, x, TG_REDUCE_MAX)) tg_read(x, f->known, (size_t)f->count);
        tg_drop(x);
        TG_TRY(ctx->run.status);
    }
    for (int i = 0, at = 0; i < f->n; at += f->file[i++]->count)
        for (int k = 0; k < f->file[i]->count; k++)
            if (!f->known[at + k])
                return tg_fail(ctx, TG_ERR_FORMAT, "'%s' has a tensor '%.128s' that is in no rank's list", f->dir,
                               f->file[i]->entries[k].name);
    return TG_OK;
}

/* Verifies the checksums of this rank's share of the tensors. */
static tg_status check_bytes(const source *f) {
    tg_comm *world = tg_parallel_world(f->s->p);
    for (int i = 0; i < f->n; i++) TG_TRY(tg_safetensors_verify(f->file[i], tg_comm_rank(world), tg_comm_size(world)));
    return TG_OK;
}

static tg_status check_all(source *f) {
    for (int i = 0; i < f->s->n; i++) TG_TRY(check_entry(f, &f->s->item[i]));
    for (int i = 0; i < f->s->n_steps; i++) TG_TRY(check_steps(f, f->s->steps[i].key));
    TG_TRY(tg_shards_read_streams(f->s, f->dir, f->file[0], f->stream));
    TG_TRY(check_unknown(f));
    return check_bytes(f);
}

/* ---- The data ---- */

/* Reads the rows that the file has into the first rows of `whole`, and sets the padding rows to zero. */
static tg_status read_whole(source *f, const tg_shard_item *item, tg_tensor *whole, const void *site) {
    tg_ctx *ctx = f->s->ctx;
    tg_shard_spot spot;
    tg_shape g = tg_shard_in_file(item);
    tg_tensor *rows =
        tg_temp_new(ctx, whole->dtype, (int)g.ndim, g.dim, NULL, tg_storage_ref(whole->storage), whole->offset);
    if (!rows) return ctx->run.status;
    tg_status s = rows->numel == whole->numel ? TG_OK : ctx->run.ops->fill(ctx, tg_array_of(whole), 0);
    tg_safetensors *file = find(f, item, &spot);
    if (s == TG_OK) s = tg_shard_read_spot(file, item, &spot, rows, site);
    tg_temp_free(rows);
    return s;
}

/* Copies the part of `whole` that this rank has by the placement of `like` to `part`. */
static tg_status take_part(const tg_shard_item *item, tg_tensor *whole, tg_tensor *part) {
    return tg_shard_copy(item->like, tg_grid_of(whole->ctx)->rank, whole, part, false);
}

/* Copies the range of this rank's part that item->x has. */
static tg_status take_range(const tg_shard_item *item, tg_tensor *whole) {
    const tg_tensor *like = item->like, *x = item->x;
    tg_tensor *part = tg_temp_empty(whole->ctx, (tg_dtype)x->dtype, like->ndim, like->shape, TG_MEM_TEMPORARY);
    if (!part) return whole->ctx->run.status;
    tg_tensor *range = tg_temp_new(whole->ctx, (tg_dtype)x->dtype, 1, x->shape, NULL, tg_storage_ref(part->storage),
                                   item->leaf.tensor->ext->range_begin);
    tg_status s = range ? take_part(item, whole, part) : whole->ctx->run.status;
    tg_array from = tg_array_of(range);
    if (s == TG_OK && x->numel)
        s = x->ctx->run.ops->apply(x->ctx, TG_FN_id, tg_array_of(x), &from, 1, (const double[2]){0}, false);
    tg_temp_free(range);
    tg_temp_free(part);
    return s;
}

/* Reads a tensor and keeps this rank's part. A tensor that this rank has as a whole is read in place. */
static tg_status read_part(source *f, const tg_shard_item *item, const void *site) {
    tg_ctx *ctx = f->s->ctx;
    tg_axis axes[TG_MAX_AXES];
    tg_shape g = tg_shard_global(item->like);
    tg_shard_spot spot;
    if (!tg_shard_axes(item->like, axes) && !item->leaf.tensor && !item->front.n &&
        (item->rows == TG_NONE || item->rows == g.dim[0])) {
        tg_safetensors *file = find(f, item, &spot);
        return tg_safetensors_fill(file, spot.key, item->x, false, site);
    }
    tg_tensor *whole = tg_temp_empty(ctx, item->x->dtype, (int)g.ndim, g.dim, TG_MEM_TEMPORARY);
    if (!whole) return ctx->run.status;
    tg_status s = read_whole(f, item, whole, site);
    if (s == TG_OK) s = tg_storage_may_change(item->x);
    if (s == TG_OK) tg_storage_wrote(item->x->storage, "tg_shards_load", site);
    if (s == TG_OK) s = item->leaf.tensor ? take_range(item, whole) : take_part(item, whole, item->x);
    tg_temp_free(whole);
    return s;
}

static tg_status load(source *f, const void *site) {
    tg_comm *world = tg_parallel_world(f->s->p);
    TG_TRY(open_all(f));
    TG_TRY(check_all(f));
    TG_TRY(tg_comm_barrier(world)); /* all ranks have passed the checks: from here on values change */
    for (int i = 0; i < f->s->n; i++) TG_TRY(read_part(f, &f->s->item[i], site));
    for (int i = 0; i < f->s->n_steps; i++)
        TG_TRY(tg_optim_set_steps(f->s->steps[i].optim, strtoll(steps_text(f, f->s->steps[i].key), NULL, 10)));
    tg_shards_set_streams(f->s, f->stream);
    return tg_comm_barrier(world);
}

static tg_status check_and_load(tg_shards *s, const char *dir, const void *site) {
    TG_TRY(s->ctx->run.status);
    if (!dir || !*dir) return tg_fail(s->ctx, TG_ERR_ARGUMENT, "tg_shards_load: dir is %s", dir ? "empty" : "NULL");
    if (s->ctx->meta) return tg_fail(s->ctx, TG_ERR_DEVICE, "tg_shards_load: tensors of device \"meta\" have no bytes");
    TG_TRY(tg_shards_check(s, "tg_shards_load"));
    TG_TRY(tg_shards_find_owners(s, "tg_shards_load"));
    source *f = tg_host_alloc(s->ctx, sizeof *f);
    if (!f) return s->ctx->run.status;
    f->s = s;
    f->dir = dir;
    tg_status status = load(f, site);
    close_all(f);
    tg_host_free(s->ctx, f, sizeof *f);
    return status;
}

tg_status tg_shards_load(tg_shards *s, const char *dir) {
    if (!s) return TG_ERR_ARGUMENT;
    return tg_comm_note_missed(tg_parallel_world(s->p), check_and_load(s, dir, TG_SITE));
}
