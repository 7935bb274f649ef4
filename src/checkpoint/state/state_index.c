/* Reads index.json. */
#include "checkpoint/state/state_index.h"

#include "base/memory/host_memory.h"

enum { INDEX_MAX = 1 << 30 };

/* ---- The checksum ---- */

/* Verifies the checksum of the text, and overwrites its digits with zeros. */
static tg_status check_sum(const tg_state *d, const char *path, char *text, size_t n) {
    char expected[TG_CHECKSUM_DIGITS], sum[TG_CHECKSUM_DIGITS];
    char *digits = tg_state_sum_in(text, n);
    if (!digits) return tg_fail(d->ctx, TG_ERR_FORMAT, "'%s' has no checksum, expected the index of a state", path);
    memcpy(expected, digits, sizeof expected);
    memset(digits, '0', sizeof expected);
    tg_checksum_text(tg_checksum(text, n), sum);
    if (!memcmp(sum, expected, sizeof sum)) return TG_OK;
    return tg_fail(d->ctx, TG_ERR_FORMAT, "'%s': the checksum of its bytes is %.16s, expected %.16s: it is damaged",
                   path, sum, expected);
}

/* No string in the file can contain the key, because the quotes in it would be escaped. The index writes its own
 * checksum before those of files and pieces, so the first key found is the right one. */
char *tg_state_sum_in(char *text, size_t n) {
    static const char key[] = "\"xxh64\":\"";
    char *at = strstr(text, key);
    if (at) at += sizeof key - 1;
    return at && at + TG_CHECKSUM_DIGITS < text + n ? at : NULL;
}

/* ---- Members ---- */

static tg_status bad(const tg_json *j, const char *what, const char *name) {
    return tg_fail(j->ctx, TG_ERR_FORMAT, "'%s': %s of '%.128s' is malformed", j->path, what, name);
}

static tg_status read_files(tg_state *d, const tg_json *j) {
    json_t *files, *row;
    size_t i;
    TG_TRY(tg_json_array(j, "files", &files));
    size_t n = json_array_size(files);
    d->file = tg_host_alloc(d->ctx, n * sizeof *d->file);
    if (n && !d->file) return d->ctx->run.status;
    d->n_files = (int)n;
    json_array_foreach(files, i, row) {
        const char *name = json_string_value(json_object_get(row, "name")),
                   *sum = json_string_value(json_object_get(row, "xxh64"));
        if (!name || !*name || strchr(name, '/') || !sum || strlen(sum) != TG_CHECKSUM_DIGITS)
            return tg_fail(d->ctx, TG_ERR_FORMAT,
                           "'%s': row %zu of \"files\" is malformed, expected a name without a slash and a checksum",
                           j->path, i);
        d->file[i] = (tg_state_file){name, sum, NULL};
    }
    return TG_OK;
}

static tg_status read_shape(const tg_json *j, const char *key, const json_t *array, tg_shape *out) {
    size_t n = json_array_size(array);
    if (!json_is_array(array) || n > TG_MAX_DIMS) return bad(j, "the shape", key);
    *out = (tg_shape){.ndim = (int)n};
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        out->dim[i] = json_is_integer(v) ? json_integer_value(v) : -1;
        if (out->dim[i] < 0) return bad(j, "the shape", key);
    }
    return TG_OK;
}

static tg_status read_piece(tg_state *d, const tg_json *j, tg_state_key *k, const json_t *row) {
    const char *name = json_string_value(json_object_get(row, "name")),
               *at = json_string_value(json_object_get(row, "at")),
               *sum = json_string_value(json_object_get(row, "xxh64"));
    const json_t *file = json_object_get(row, "file");
    json_int_t number = json_is_integer(file) ? json_integer_value(file) : -1;
    if (!name || !at || !sum || strlen(sum) != TG_CHECKSUM_DIGITS || number < 0 || number >= d->n_files)
        return bad(j, "a piece", k->key);
    tg_state_piece *p = tg_state_add_piece(d, k);
    if (!p) return d->ctx->run.status;
    *p = (tg_state_piece){.file = (int)number, .name = name, .sum = sum};
    if (tg_block_parse(d->ctx, at, &k->whole, &p->block)) return TG_OK;
    TG_TRY(d->ctx->run.status);
    return bad(j, "the place of a piece", k->key);
}

static tg_status read_key(tg_state *d, const tg_json *tensors, const char *key) {
    tg_json j;
    const char *dtype;
    json_t *pieces, *row;
    size_t i;
    tg_shape whole;
    TG_TRY(tg_json_object(tensors, key, &j));
    TG_TRY(tg_json_string(&j, "dtype", &dtype));
    const tg_safetensors_dtype *t = tg_safetensors_dtype_named(dtype);
    if (!t || t->dtype == TG_DTYPE_DEFAULT) return bad(&j, "the dtype", key);
    TG_TRY(read_shape(&j, key, json_object_get(j.object, "shape"), &whole));
    TG_TRY(tg_shape_check(d->ctx, &whole, t->dtype, j.path));
    TG_TRY(tg_json_array(&j, "pieces", &pieces));
    tg_state_key *k = tg_state_add_key(d, key, t->dtype, &whole);
    if (!k) return d->ctx->run.status;
    json_array_foreach(pieces, i, row) TG_TRY(read_piece(d, &j, k, row));
    return TG_OK;
}

tg_status tg_state_from_json(tg_state *d, json_t *root, const char *path) {
    const tg_json j = {d->ctx, path, root};
    tg_json tensors, metadata;
    const char *format, *key;
    json_t *value;
    d->root = root;
    TG_TRY(tg_json_string(&j, "format", &format));
    if (strcmp(format, TG_STATE_FORMAT) != 0)
        return tg_fail(d->ctx, TG_ERR_FORMAT, "'%s' has format '%.64s', expected " TG_STATE_FORMAT, path, format);
    TG_TRY(tg_json_object(&j, "metadata", &metadata));
    TG_TRY(tg_json_object(&j, "tensors", &tensors));
    TG_TRY(read_files(d, &j));
    json_object_foreach(tensors.object, key, value) TG_TRY(read_key(d, &tensors, key));
    return TG_OK;
}

/* ---- The file ---- */

static tg_status read_text(tg_state *d, const char *path, char *text, size_t n) {
    tg_json j;
    TG_TRY(check_sum(d, path, text, n));
    TG_TRY(tg_json_parse(&j, d->ctx, path, text, n));
    return tg_state_from_json(d, j.object, path);
}

tg_status tg_state_read_index(tg_state *d) {
    char *text = NULL, *path = tg_format_path(d->ctx, TG_STATE_INDEX, d->dir);
    size_t n = 0;
    tg_status s = path ? tg_file_load(d->ctx, path, INDEX_MAX, &text, &n) : d->ctx->run.status;
    if (s == TG_OK) {
        s = read_text(d, path, text, n);
        tg_host_free(d->ctx, text, n + 1);
    }
    tg_host_strfree(d->ctx, path);
    return s;
}
