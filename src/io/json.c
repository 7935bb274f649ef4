/* Typed access to JSON documents, and saving them. */
#include "io/json.h"

#include <stdlib.h>
#include <tapegrad/io.h>

#include "base/memory/host_memory.h"

enum { JSON_LIMIT = 16 << 20 };

/* The parser leaves the text of the error empty if it has no memory for a value. */
bool tg_json_lacks_memory(const json_error_t *e) {
    return !*e->text || json_error_code(e) == json_error_out_of_memory;
}

tg_status tg_json_parse(tg_json *j, tg_ctx *ctx, const char *path, const char *text, size_t bytes) {
    json_error_t e;
    const char *zero = bytes ? memchr(text, 0, bytes) : NULL;
    *j = (tg_json){.ctx = ctx, .path = path};
    if (zero) /* jansson ignores a zero byte after a number */
        return tg_fail(ctx, TG_ERR_FORMAT, "'%s' is not JSON: it has a zero byte at offset %zu", path,
                       (size_t)(zero - text));
    j->object = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (json_is_object(j->object)) return TG_OK;
    if (j->object) {
        tg_json_free(j);
        return tg_fail(ctx, TG_ERR_FORMAT, "'%s' holds a JSON array, expected an object", path);
    }
    if (tg_json_lacks_memory(&e))
        return tg_fail(ctx, TG_ERR_MEMORY, "no memory for the JSON tree of '%s'", path);
    return tg_fail(ctx, TG_ERR_FORMAT, "'%s' is not JSON: line %d, offset %d: %s", path, e.line, e.position, e.text);
}

tg_status tg_json_load(tg_json *j, tg_ctx *ctx, const char *path) {
    char *text;
    size_t bytes;
    TG_TRY(tg_file_load(ctx, path, JSON_LIMIT, &text, &bytes));
    tg_status s = tg_json_parse(j, ctx, path, text, bytes);
    tg_host_free(ctx, text, bytes + 1);
    return s;
}

int tg_json_add_missing(json_t *to, json_t *from) {
    const char *key;
    json_t *value;
    int failed = 0;
    json_object_foreach(from, key, value)
        if (!json_object_get(to, key)) failed |= json_object_set(to, key, value);
    return failed;
}

void tg_json_free(tg_json *j) {
    json_decref(j->object);
    j->object = NULL;
}

/* Writes root to text[size]. Its reals have the fewest digits, 15 to 17 and the same for all, with which every real
 * reads back unchanged: 1e-05, not 1.0000000000000001e-05. Returns the length; 0 if there is no memory. */
static size_t dump_shortest(const json_t *root, char *text, size_t size) {
    size_t flags = JSON_INDENT(2);
    for (int digits = 15; digits < 17; digits++) {
        size_t n = json_dumpb(root, text, size, flags | JSON_REAL_PRECISION(digits));
        json_t *back = n && n < size ? json_loadb(text, n, 0, NULL) : NULL;
        bool same = back && json_equal(back, root), missing = !n || (n < size && !back);
        json_decref(back);
        if (same || missing) return same ? n : 0;
    }
    return json_dumpb(root, text, size, flags | JSON_REAL_PRECISION(17));
}

tg_status tg_json_save(tg_ctx *ctx, const char *path, const json_t *root) {
    TG_TRY(tg_io_enter(ctx));
    /* Room for the form with 17 digits, and for the final newline. A form with fewer digits is used only if it fits. */
    size_t size = json_dumpb(root, NULL, 0, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) + 1;
    if (size == 1) return tg_fail(ctx, TG_ERR_MEMORY, "cannot format JSON for '%s'", path);
    char *text = tg_host_alloc(ctx, size);
    if (!text) return tg_io_enter(ctx);
    size_t n = dump_shortest(root, text, size);
    text[n] = '\n';
    tg_status s = n ? tg_file_save(ctx, path, text, n + 1)
                    : tg_fail(ctx, TG_ERR_MEMORY, "no memory to format JSON for '%s'", path);
    tg_host_free(ctx, text, size);
    return s;
}

char *tg_json_text(const json_t *root, size_t flags) {
    size_t n = json_dumpb(root, NULL, 0, flags);
    char *text = n ? malloc(n + 1) : NULL;
    if (!text) return NULL;
    text[n] = 0;
    if (json_dumpb(root, text, n, flags) == n) return text;
    free(text);
    return NULL;
}

bool tg_json_has(const tg_json *j, const char *key) {
    const json_t *v = json_object_get(j->object, key);
    return v && !json_is_null(v);
}

static const char *kind_of(const json_t *v) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real",    [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return v ? names[json_typeof(v)] : "nothing";
}

static tg_status mismatch(const tg_json *j, const char *key, const char *expected) {
    return tg_fail(j->ctx, TG_ERR_FORMAT, "'%s': key \"%s\": expected %s, found %s", j->path, key, expected,
                   kind_of(json_object_get(j->object, key)));
}

tg_status tg_json_int(const tg_json *j, const char *key, int64_t lo, int64_t hi, int64_t *out) {
    const json_t *v = json_object_get(j->object, key);
    if (!json_is_integer(v)) return mismatch(j, key, "an integer");
    int64_t i = json_integer_value(v);
    if (i < lo || i > hi)
        return tg_fail(j->ctx, TG_ERR_FORMAT, "'%s': key \"%s\": expected an integer in [%lld, %lld], found %lld",
                       j->path, key, (long long)lo, (long long)hi, (long long)i);
    *out = i;
    return TG_OK;
}

tg_status tg_json_real(const tg_json *j, const char *key, double *out) {
    const json_t *v = json_object_get(j->object, key);
    if (!json_is_number(v)) return mismatch(j, key, "a number");
    *out = json_number_value(v);
    return TG_OK;
}

tg_status tg_json_bool(const tg_json *j, const char *key, bool *out) {
    const json_t *v = json_object_get(j->object, key);
    if (!json_is_boolean(v)) return mismatch(j, key, "true or false");
    *out = json_is_true(v);
    return TG_OK;
}

tg_status tg_json_string(const tg_json *j, const char *key, const char **out) {
    const json_t *v = json_object_get(j->object, key);
    if (!json_is_string(v)) return mismatch(j, key, "a string");
    *out = json_string_value(v);
    return TG_OK;
}

tg_status tg_json_object(const tg_json *j, const char *key, tg_json *out) {
    json_t *v = json_object_get(j->object, key);
    if (!json_is_object(v)) return mismatch(j, key, "an object");
    *out = (tg_json){.ctx = j->ctx, .path = j->path, .object = v};
    return TG_OK;
}

tg_status tg_json_array(const tg_json *j, const char *key, json_t **out) {
    json_t *v = json_object_get(j->object, key);
    if (!json_is_array(v)) return mismatch(j, key, "an array");
    *out = v;
    return TG_OK;
}
