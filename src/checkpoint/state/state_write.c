/* Writes index.json. Rank 0 makes it from the headers of the files of all ranks, and checks that each element of every
 * tensor is in exactly one piece. */
#include "checkpoint/state/state_index.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <tapegrad/io.h>

#include "base/memory/host_memory.h"

static tg_status no_memory(tg_ctx *ctx, const char *file) {
    return tg_fail(ctx, TG_ERR_MEMORY, "no memory to add '%s' to the index of its directory", file);
}

json_t *tg_state_root(int world) {
    return json_pack("{s:s, s:s, s:i, s:{}, s:{}, s:[], s:{}}", "format", TG_STATE_FORMAT, "xxh64", "0000000000000000",
                     "world", world, "composition", "metadata", "files", "tensors");
}

/* ---- Gathering the headers ---- */

/* Returns the member of the index's "tensors" that describes the tensor of this key. Adds it if there is none. NULL: no
 * memory. */
static json_t *tensor_of(json_t *tensors, const char *key, const char *dtype, json_t *shape) {
    json_t *t = json_object_get(tensors, key);
    if (t) return t;
    t = json_pack("{s:s, s:O, s:[]}", "dtype", dtype, "shape", shape, "pieces");
    return json_object_set_new(tensors, key, t) == 0 ? t : NULL;
}

/* Adds entry i of f, which is number `file` of the index's files, to the pieces of its tensor. `pieces` is the metadata
 * TG_STATE_PIECES of f: it has the entry's key and place. */
static tg_status add_entry(json_t *tensors, tg_safetensors *f, int i, const tg_json *pieces, int file) {
    const tg_safetensors_entry *e = &f->entries[i];
    const char *key, *at;
    tg_json j;
    json_t *shape;
    TG_TRY(tg_json_object(pieces, e->name, &j));
    TG_TRY(tg_json_string(&j, "key", &key));
    TG_TRY(tg_json_string(&j, "at", &at));
    TG_TRY(tg_json_array(&j, "shape", &shape));
    json_t *t = tensor_of(tensors, key, e->dtype_name, shape);
    const char *dtype = json_string_value(json_object_get(t, "dtype"));
    if (t && (strcmp(dtype, e->dtype_name) != 0 || !json_equal(json_object_get(t, "shape"), shape)))
        return tg_fail(j.ctx, TG_ERR_SHAPE,
                       "'%s': the tensor of the key '%.128s' has another dtype or global shape than on an earlier rank",
                       j.path, key);
    json_t *piece = json_pack("{s:i, s:s, s:s, s:s%}", "file", file, "name", e->name, "at", at, "xxh64",
                              f->sums + (size_t)i * TG_CHECKSUM_DIGITS, (size_t)TG_CHECKSUM_DIGITS);
    /* If t is NULL, for lack of memory, this call frees the piece and fails. */
    if (json_array_append_new(json_object_get(t, "pieces"), piece) == 0) return TG_OK;
    return no_memory(j.ctx, j.path);
}

/* Adds the metadata of a file, which are the numbers of steps of a rank's optimizers, to the metadata of the index. An
 * optimizer that several ranks have is in the metadata of each of them. */
static tg_status add_steps(json_t *to, const tg_json *steps) {
    const char *key;
    json_t *value;
    json_object_foreach(steps->object, key, value) {
        const char *here = json_string_value(value), *before = json_string_value(json_object_get(to, key));
        if (here && before && strcmp(here, before) != 0)
            return tg_fail(steps->ctx, TG_ERR_STATE,
                           "'%s': '%.128s' is %.24s, but %.24s on an earlier rank; the optimizers that ranks add with "
                           "one prefix must have made the same number of steps",
                           steps->path, key, here, before);
    }
    if (tg_json_add_missing(to, steps->object) == 0) return TG_OK;
    return no_memory(steps->ctx, steps->path);
}

/* Reads the JSON object that the file's metadata have under this key. */
static tg_status parse_metadata(tg_safetensors *f, const char *key, tg_json *out) {
    const char *text = tg_safetensors_metadata(f, key);
    if (text) return tg_json_parse(out, f->file.ctx, f->file.path, text, strlen(text));
    return tg_fail(f->file.ctx, TG_ERR_FORMAT, "'%s': its metadata '%s' is missing", f->file.path, key);
}

static tg_status add_tensors(json_t *root, tg_safetensors *f, int file) {
    tg_json pieces, steps;
    TG_TRY(parse_metadata(f, TG_STATE_PIECES, &pieces));
    tg_status s = TG_OK;
    for (int i = 0; i < f->count && s == TG_OK; i++)
        s = add_entry(json_object_get(root, "tensors"), f, i, &pieces, file);
    tg_json_free(&pieces);
    if (s == TG_OK) s = parse_metadata(f, TG_STATE_STEPS, &steps);
    if (s != TG_OK) return s;
    s = add_steps(json_object_get(root, "metadata"), &steps);
    tg_json_free(&steps);
    return s;
}

static tg_status add_file(tg_ctx *ctx, const char *dir, json_t *root, const char *name, int file) {
    char *path = tg_format_path(ctx, "%s/%s", dir, name);
    tg_safetensors *f = path ? tg_safetensors_open_file(ctx, path) : NULL;
    tg_status s = f ? add_tensors(root, f, file) : ctx->run.status;
    json_t *row =
        s == TG_OK ? json_pack("{s:s, s:s%}", "name", name, "xxh64", f->sum, (size_t)TG_CHECKSUM_DIGITS) : NULL;
    if (s == TG_OK && json_array_append_new(json_object_get(root, "files"), row) != 0) s = no_memory(ctx, path);
    tg_safetensors_close(f);
    tg_host_strfree(ctx, path);
    return s;
}

/* ---- Checking and writing ---- */

/* Fails if pieces of a tensor overlap or leave out an element of it. The cause is then that the lists of the ranks
 * (tg_shards) disagree about which part of the tensor each rank has. */
static tg_status check_pieces(tg_ctx *ctx, const char *dir, json_t *root) {
    tg_state d = {.ctx = ctx, .dir = dir};
    tg_status s = tg_state_from_json(&d, json_incref(root), dir);
    for (int i = 0; i < d.n_keys && s == TG_OK; i++) s = tg_state_check_key(&d, &d.key[i]);
    tg_state_close(&d);
    return s;
}

/* Writes index.json, with its checksum in place of the zeros that tg_state_root has put there. */
static tg_status write_index(tg_ctx *ctx, const char *path, json_t *root) {
    char *text = tg_json_text(root, JSON_COMPACT);
    if (!text) return tg_fail(ctx, TG_ERR_MEMORY, "no memory for the text of '%s'", path);
    size_t n = strlen(text);
    tg_checksum_text(tg_checksum(text, n), tg_state_sum_in(text, n));
    tg_status s = tg_file_save(ctx, path, text, n);
    free(text);
    return s;
}

/* ---- Files of earlier saves ---- */

/* Return what follows `begin`, or a run of at least so many digits, at the beginning of text. NULL: text is NULL, or
 * begins in another way. */
static const char *after(const char *text, const char *begin) {
    size_t n = strlen(begin);
    return text && strncmp(text, begin, n) == 0 ? text + n : NULL;
}
static const char *after_digits(const char *text, size_t at_least) {
    size_t n = text ? strspn(text, "0123456789") : 0;
    return n >= at_least ? text + n : NULL;
}

/* Returns what follows the name of a file of pieces: "rank-00000.safetensors", "rank-00000-17.safetensors" or, in a
 * directory of an earlier version, "state-00000.safetensors". NULL: the name is none of these. */
static const char *after_pieces(const char *name) {
    const char *rank = after_digits(after(name, "rank-"), 5), *number = after_digits(after(rank, "-"), 1);
    return after(number ? number : rank ? rank : after_digits(after(name, "state-"), 5), ".safetensors");
}

/* Returns whether an earlier save has left the file: it has the name of a file of pieces that the new index does not
 * list, or the temporary name of a file that an interrupted save was writing. Files of any other name are the
 * caller's. */
static bool is_stale(const char *file, const char (*names)[TG_STATE_NAME], int n) {
    const char *pieces = after_pieces(file), *end = pieces ? pieces : after(file, "index.json");
    if (end && tg_is_temporary_suffix(end)) return true;
    if (!pieces || *pieces) return false;
    for (int i = 0; i < n; i++)
        if (!strcmp(file, names[i])) return false;
    return true;
}

/* Removes the files of earlier saves. Ignores failures, because the new state is complete without this. path: memory,
 * of `size` bytes, for the path of any file in the directory. tg_file_ops has no function that lists a directory, so
 * the system lists it; files that the caller's tg_file_ops keep elsewhere are not removed. */
static void remove_stale(tg_ctx *ctx, const char *dir, const char (*names)[TG_STATE_NAME], int n, char *path,
                         size_t size) {
    tg_file_ops ops = tg_file_ops_of(ctx);
    DIR *list = opendir(dir);
    for (struct dirent *e; list && (e = readdir(list));) {
        if (!is_stale(e->d_name, names, n)) continue;
        snprintf(path, size, "%s/%s", dir, e->d_name);
        ops.unlink(ops.user, path);
    }
    if (list) closedir(list);
}

tg_status tg_state_write_index(tg_ctx *ctx, const char *dir, json_t *root, const char (*names)[TG_STATE_NAME], int n) {
    /* The memory for the paths of earlier files is taken now, because the save must not fail once the index is
     * there. */
    size_t size = strlen(dir) + 1 + sizeof((struct dirent *)0)->d_name;
    char *path = tg_host_alloc(ctx, size);
    tg_status s = path ? TG_OK : ctx->run.status;
    for (int i = 0; i < n && s == TG_OK; i++) s = add_file(ctx, dir, root, names[i], i);
    if (s == TG_OK) s = check_pieces(ctx, dir, root);
    if (s == TG_OK) {
        snprintf(path, size, TG_STATE_INDEX, dir);
        s = write_index(ctx, path, root);
    }
    if (s == TG_OK) remove_stale(ctx, dir, names, n, path, size);
    tg_host_free(ctx, path, size);
    json_decref(root);
    return s;
}
