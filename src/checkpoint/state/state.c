/* The index of a state in memory: its keys, their pieces, and the files that have these. */
#include "checkpoint/state/state_index.h"

#include <stdio.h>

#include "base/memory/host_memory.h"

/* ---- Keys and pieces ---- */

tg_state_key *tg_state_find(const tg_state *d, const char *key) {
    return (tg_state_key *)tg_find_name(d->by_key, d->n_keys, key);
}

tg_state_key *tg_state_add_key(tg_state *d, const char *key, tg_dtype dtype, const tg_shape *whole) {
    void *keys = d->key;
    if (!tg_host_grow(d->ctx, &keys, d->n_keys, &d->capacity, sizeof *d->key)) return NULL;
    d->key = keys;
    d->key[d->n_keys] = (tg_state_key){.key = key, .dtype = dtype, .whole = *whole};
    return &d->key[d->n_keys++];
}

tg_state_piece *tg_state_add_piece(tg_state *d, tg_state_key *k) {
    void *pieces = k->piece;
    if (!tg_host_grow(d->ctx, &pieces, k->n, &k->capacity, sizeof *k->piece)) return NULL;
    k->piece = pieces;
    k->piece[k->n] = (tg_state_piece){0};
    return &k->piece[k->n++];
}

json_t *tg_json_shape(const tg_shape *s) {
    json_t *array = json_array();
    for (int i = 0; i < s->ndim; i++)
        if (json_array_append_new(array, json_integer(s->dim[i])) != 0) return json_decref(array), NULL;
    return array;
}

/* ---- The directory ---- */

tg_status tg_state_has(tg_ctx *ctx, const char *dir, const char *format, bool *has) {
    char *path = tg_format_path(ctx, format, dir);
    tg_status s = tg_file_exists(ctx, path, has);
    tg_host_strfree(ctx, path);
    return s;
}

static tg_status fill(tg_state *d, const tg_state_target *target) {
    bool index = false, old = false;
    TG_TRY(tg_state_has(d->ctx, d->dir, TG_STATE_INDEX, &index));
    if (!index) TG_TRY(tg_state_has(d->ctx, d->dir, TG_STATE_OLD, &old));
    return old ? tg_state_read_old(d, target) : tg_state_read_index(d);
}

tg_status tg_state_open(tg_state *d, tg_ctx *ctx, const char *dir, const tg_state_target *target) {
    *d = (tg_state){.ctx = ctx, .dir = dir};
    TG_TRY(fill(d, target));
    d->metadata = json_object_get(d->root, "metadata");
    d->by_key = tg_host_alloc(ctx, (size_t)d->n_keys * sizeof *d->by_key + 1);
    if (d->by_key) tg_index_names(d->key, d->n_keys, sizeof *d->key, d->by_key);
    return ctx->run.status;
}

static void free_key(tg_ctx *ctx, tg_state_key *k) {
    for (int i = 0; i < k->n; i++) tg_block_free(ctx, &k->piece[i].block);
    tg_host_free(ctx, k->piece, (size_t)k->capacity * sizeof *k->piece);
}

void tg_state_close(tg_state *d) {
    for (int i = 0; i < d->n_keys; i++) free_key(d->ctx, &d->key[i]);
    tg_host_free(d->ctx, d->key, (size_t)d->capacity * sizeof *d->key);
    tg_host_free(d->ctx, d->by_key, (size_t)d->n_keys * sizeof *d->by_key + 1);
    for (int i = 0; i < d->n_files; i++) tg_safetensors_close(d->file[i].open);
    tg_host_free(d->ctx, d->file, (size_t)d->n_files * sizeof *d->file);
    json_decref(d->root);
    *d = (tg_state){0};
}

/* ---- Checks ---- */

static tg_status overlap(const tg_state *d, const tg_state_key *k, const tg_state_piece *a, const tg_state_piece *b) {
    return tg_fail(d->ctx, TG_ERR_FORMAT, "'%s': the pieces '%.160s' and '%.160s' of the tensor '%.128s' overlap",
                   d->dir, a->name, b->name, k->key);
}

/* Reports the first elements that no piece has. */
static tg_status hole(const tg_state *d, const tg_state_key *k) {
    int64_t stop = 0;
    size_t bytes = (size_t)k->n * sizeof(tg_block *) + 1;
    const tg_block **blocks = tg_host_alloc(d->ctx, bytes);
    if (!blocks) return d->ctx->run.status;
    for (int i = 0; i < k->n; i++) blocks[i] = &k->piece[i].block;
    int64_t first = tg_block_hole(blocks, k->n, &k->whole, &stop);
    tg_host_free(d->ctx, blocks, bytes);
    return tg_fail(d->ctx, TG_ERR_FORMAT,
                   "'%s': no piece of the tensor '%.128s' has its elements [%lld, %lld) in row-major order", d->dir,
                   k->key, (long long)first, (long long)stop);
}

tg_status tg_state_check_key(const tg_state *d, const tg_state_key *k) {
    int64_t count = 0;
    if (k->whole.ndim < 0) return TG_OK;
    for (int i = 0; i < k->n; i++) {
        count += tg_block_count(&k->piece[i].block);
        for (int j = 0; j < i; j++)
            if (tg_block_common(&k->piece[i].block, &k->piece[j].block))
                return overlap(d, k, &k->piece[j], &k->piece[i]);
    }
    return count == tg_shape_numel(&k->whole) ? TG_OK : hole(d, k);
}

/* ---- Files ---- */

static tg_status check_file(const tg_state *d, const tg_state_file *f) {
    if (!f->sum || (f->open->sum && !memcmp(f->open->sum, f->sum, TG_CHECKSUM_DIGITS))) return TG_OK;
    return tg_fail(d->ctx, TG_ERR_FORMAT,
                   "'%s' is not the file that the index was saved with: the checksum of its header is %.16s, expected "
                   "%.16s; take all files from one save",
                   f->open->file.path, f->open->sum ? f->open->sum : "missing", f->sum);
}

tg_safetensors *tg_state_file_open(tg_state *d, int file) {
    tg_state_file *f = &d->file[file];
    if (f->open) return f->open;
    char *path = tg_format_path(d->ctx, "%s/%s", d->dir, f->name);
    f->open = path ? tg_safetensors_open_file(d->ctx, path) : NULL;
    tg_host_strfree(d->ctx, path);
    if (!f->open || check_file(d, f) == TG_OK) return f->open;
    tg_safetensors_close(f->open);
    return f->open = NULL;
}

/* Returns whether the tensor has the dtype, the size and the checksum that the index gives. */
static bool fits(const tg_safetensors *f, const tg_safetensors_entry *e, const tg_state_key *k,
                 const tg_state_piece *p) {
    int64_t bytes = (p->skip + tg_block_count(&p->block)) * (int64_t)tg_dtype_size(k->dtype);
    bool size = p->sum ? e->stop - e->begin == bytes : e->stop - e->begin >= bytes;
    const char *sum = f->sums ? f->sums + (e - f->entries) * TG_CHECKSUM_DIGITS : "";
    return e->dtype == k->dtype && size && (!p->sum || !strncmp(sum, p->sum, TG_CHECKSUM_DIGITS));
}

const tg_safetensors_entry *tg_state_entry(tg_state *d, const tg_state_key *k, const tg_state_piece *p) {
    tg_safetensors *f = tg_state_file_open(d, p->file);
    const tg_safetensors_entry *e = tg_safetensors_find(f, p->name);
    if (!f) return NULL;
    if (e && fits(f, e, k, p)) return e;
    tg_fail(d->ctx, TG_ERR_FORMAT, "'%s': tensor '%.160s' %s", f->file.path, p->name,
            e ? "has another dtype, size or checksum than the index gives" : "is missing, but the index has it");
    return NULL;
}
