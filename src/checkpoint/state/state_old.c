/* Directories of state of earlier versions. They have no index, and for each pipeline stage a file
 * "state-NNNNN.safetensors" with global tensors. The metadata of a file have its "format"; "files", which is the number
 * of files; "save", a text that is the same in all files of a save; the optimizers' numbers of steps; and the random
 * streams. If a stage has only some slices of a stacked tensor (tg_shards_push), the file has these along a single dim
 * in front, and their places are in the metadata as "places.KEY". */
#include "checkpoint/state/state_index.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory/host_memory.h"

#define OLD_FILE   "state-%05d.safetensors"
#define OLD_FORMAT "tapegrad-state-1"
#define OLD_PLACES "places."

enum { MAX_FILES = 1024 }; /* the message of open_files has this number too */

/* ---- The files ---- */

/* Reports that in file i the metadata value of `key` is `got`, or is missing if `got` is NULL. */
static tg_status bad_file(const tg_state *d, int i, const char *key, const char *got, const char *expected) {
    return tg_fail(d->ctx, TG_ERR_FORMAT, "'%s/%s': its metadata '%s' is %s, expected %s", d->dir, d->file[i].name, key,
                   got ? got : "missing", expected);
}

/* Opens file i, and checks that it is of the same save as file 0. */
static tg_status open_file(tg_state *d, int i) {
    char name[40];
    snprintf(name, sizeof name, OLD_FILE, i);
    json_t *text = json_string(name);
    if (json_array_append_new(json_object_get(d->root, "files"), text) != 0)
        return tg_fail(d->ctx, TG_ERR_MEMORY, "no memory for the names of the files in '%s'", d->dir);
    d->file[i].name = json_string_value(text);
    tg_safetensors *f = tg_state_file_open(d, i);
    if (!f) return d->ctx->run.status;
    const char *format = tg_safetensors_metadata(f, "format");
    if (!format || strcmp(format, OLD_FORMAT) != 0) return bad_file(d, i, "format", format, OLD_FORMAT);
    static const char *const common[] = {"files", "save"};
    for (int k = 0; k < TG_LEN(common); k++) {
        const char *first = tg_safetensors_metadata(d->file[0].open, common[k]),
                   *got = tg_safetensors_metadata(f, common[k]);
        if (!first || !got || strcmp(first, got) != 0)
            return bad_file(d, i, common[k], got,
                            "the same value in all files of the directory; take all of them from one tg_shards_save");
    }
    return TG_OK;
}

/* Reallocates the array for n files; keeps the first file. */
static tg_status resize(tg_state *d, int n) {
    tg_state_file *more = tg_host_alloc(d->ctx, (size_t)n * sizeof *more);
    if (!more) return d->ctx->run.status;
    if (d->n_files) *more = *d->file;
    tg_host_free(d->ctx, d->file, (size_t)d->n_files * sizeof *d->file);
    d->file = more;
    d->n_files = n;
    return TG_OK;
}

static tg_status open_files(tg_state *d) {
    TG_TRY(resize(d, 1));
    TG_TRY(open_file(d, 0));
    const char *text = tg_safetensors_metadata(d->file[0].open, "files");
    long n = strtol(text, NULL, 10);
    if (n < 1 || n > MAX_FILES) return bad_file(d, 0, "files", text, "a number of files from 1 to 1024");
    TG_TRY(resize(d, (int)n));
    for (int i = 1; i < n; i++) TG_TRY(open_file(d, i));
    return TG_OK;
}

/* ---- Their tensors ---- */

static tg_state_key *find_key(const tg_state *d, const char *key) { /* the keys are not sorted yet */
    for (int i = 0; i < d->n_keys; i++)
        if (!strcmp(d->key[i].key, key)) return &d->key[i];
    return NULL;
}

/* Returns whether a key of the list has the same rest after its prefix. */
static bool is_key(const tg_state_target *target, const char *key, const char *rest) {
    const char *own = tg_key_after(key, target->to);
    return own && strcmp(own, rest) == 0;
}

/* Returns the item of the list that a key of the state is loaded into; NULL: there is none. */
static const tg_shard_item *find_item(const tg_state_target *target, const char *key) {
    const char *rest = target ? tg_key_after(key, target->from) : NULL;
    for (int i = 0; rest && i < target->s->n; i++) {
        const tg_shard_item *e = &target->s->item[i];
        if (is_key(target, e->key, rest) || is_key(target, tg_shard_key(e), rest)) return e;
    }
    return NULL;
}

/* Fills *out with the elements of a tensor of that shape whose row-major index over the first `fronts` dims is `place`:
 * those of one slice, or all of them if `fronts` is 0. */
static tg_status make_block(tg_ctx *ctx, const tg_shape *whole, int fronts, int64_t place, tg_block *out) {
    int64_t at[TG_MAX_DIMS] = {0};
    for (int d = fronts - 1; d >= 0; d--, place /= whole->dim[d + 1]) at[d] = place % whole->dim[d];
    TG_TRY(tg_block_open(ctx, out, (int)whole->ndim, (int)whole->ndim));
    for (int d = 0; d < whole->ndim; d++) tg_block_add(out, d, at[d], d < fronts ? 1 : whole->dim[d]);
    tg_block_close(out);
    return TG_OK;
}

static tg_status add_piece(tg_state *d, tg_state_key *k, int file, const char *name, int64_t row, int fronts,
                           int64_t place) {
    tg_state_piece *p = tg_state_add_piece(d, k);
    if (!p) return d->ctx->run.status;
    *p = (tg_state_piece){.file = file, .name = name};
    TG_TRY(make_block(d->ctx, &k->whole, fronts, place, &p->block));
    p->skip = row * tg_block_count(&p->block);
    return TG_OK;
}

/* Adds the slices of a stacked tensor whose places are listed. */
static tg_status add_slices(tg_state *d, tg_state_key *k, int file, const tg_safetensors_entry *e, const char *list,
                            const tg_shard_item *item) {
    char *end;
    int64_t places = 1, row = 0;
    for (int i = 0; i < item->front.n; i++) places *= item->front.size[i];
    for (const char *at = list; *at; at = end) {
        int64_t place = strtoll(at, &end, 10);
        if (end == at || place < 0 || place >= places || row >= e->shape.dim[0])
            return tg_fail(d->ctx, TG_ERR_FORMAT, "'%s/%s': the places of '%.128s' are malformed", d->dir,
                           d->file[file].name, e->name);
        TG_TRY(add_piece(d, k, file, e->name, row++, item->front.n, place));
    }
    return TG_OK;
}

static bool same_shape(const tg_shape *a, const tg_shape *b) {
    return a->ndim == b->ndim && !memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim);
}

/* Returns whether the rows of the file's tensor have the shape `whole` without its `fronts` dims in front. */
static bool are_slices(const tg_safetensors_entry *e, const tg_shape *whole, int fronts) {
    return e->shape.ndim == 1 + whole->ndim - fronts &&
           !memcmp(e->shape.dim + 1, whole->dim + fronts, (size_t)(whole->ndim - fronts) * sizeof *whole->dim);
}

/* Adds a tensor of a file. If several stages have a copy of a tensor, each has it under the same key; the first file
 * counts. Slices are left out if they do not fit the item, or if an earlier file has a tensor of another shape under
 * the key: the loader then reports the shape of the key, or the elements that are missing. */
static tg_status add_tensor(tg_state *d, const tg_state_target *target, int file, const tg_safetensors_entry *e) {
    char places[sizeof OLD_PLACES + TG_SHARDS_KEY];
    snprintf(places, sizeof places, OLD_PLACES "%s", e->name);
    const char *list = tg_safetensors_metadata(d->file[file].open, places);
    const tg_shard_item *item = list ? find_item(target, e->name) : NULL;
    const tg_shape unknown = {.ndim = -1}, whole = !list ? e->shape : item ? tg_shard_whole_shape(item) : unknown;
    tg_state_key *k = find_key(d, e->name);
    if (k && !list) return TG_OK;
    if (!k && !(k = tg_state_add_key(d, e->name, e->dtype, &whole))) return d->ctx->run.status;
    if (!list) return add_piece(d, k, file, e->name, 0, 0, 0);
    if (!item || !same_shape(&k->whole, &whole) || !are_slices(e, &whole, item->front.n)) return TG_OK;
    return add_slices(d, k, file, e, list, item);
}

/* Adds the metadata of a file, except what describes files, and what an earlier file has. */
static tg_status add_metadata(tg_state *d, const tg_safetensors *f) {
    static const char *const own[] = {"format", "files", "save"};
    json_t *all = json_object_get(d->root, "metadata");
    for (int i = 0; i < tg_safetensors_metadata_count(f); i++) {
        const tg_metadata *m = tg_safetensors_metadata_at(f, i);
        bool skip = !strncmp(m->key, OLD_PLACES, sizeof OLD_PLACES - 1) || json_object_get(all, m->key);
        for (int k = 0; k < TG_LEN(own); k++) skip |= !strcmp(m->key, own[k]);
        if (!skip && json_object_set_new(all, m->key, json_string(m->value)) != 0)
            return tg_fail(d->ctx, TG_ERR_MEMORY, "no memory for the metadata of '%s'", d->dir);
    }
    return TG_OK;
}

tg_status tg_state_read_old(tg_state *d, const tg_state_target *target) {
    d->root = json_pack("{s:{}, s:[]}", "metadata", "files");
    if (!d->root) return tg_fail(d->ctx, TG_ERR_MEMORY, "no memory for the list of the files in '%s'", d->dir);
    TG_TRY(open_files(d));
    for (int i = 0; i < d->n_files; i++) {
        tg_safetensors *f = d->file[i].open;
        TG_TRY(add_metadata(d, f));
        for (int k = 0; k < f->count; k++) TG_TRY(add_tensor(d, target, i, &f->entries[k]));
    }
    return TG_OK;
}
