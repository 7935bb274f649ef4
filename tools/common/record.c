/* Reads recorded steps (record.h), and checks every line and field, because files may be damaged or written by other
 * programs. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/record.h"
#include "common/text.h"

uint64_t record_hash(uint64_t h, const void *p, size_t n) {
    const unsigned char *at = p;
    h ^= (uint64_t)n;
    for (size_t some; n > 0; n -= some, at += some) {
        uint64_t word = 0;
        some = n < 8 ? n : 8;
        memcpy(&word, at, some);
        h = (h ^ word) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

int64_t record_distance(int64_t n, int64_t kept) {
    if (!kept || n <= kept) return 1;
    return ((n + kept - 1) / kept) | 1;
}

/* ---- The file ---- */

static bool bad(const record_file *r, const char *what) {
    return fail("'%s' is not a whole record of a step: %s", r->path, what), false;
}

/* Reads a line. Returns its length; 0 at the end of the file and after an error; -1 if no newline ends the line. */
static ssize_t next_line(record_file *r) {
    ssize_t n = getline(&r->line, &r->capacity, r->f);
    return n <= 0 ? 0 : r->line[n - 1] == '\n' ? n : -1;
}

static bool read_head(record_file *r, ssize_t n) {
    r->head = n > 0 ? json_loadb(r->line, (size_t)n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const json_t *format = json_object_get(r->head, "tapegrad_record");
    if (!json_is_integer(format)) return bad(r, "its first line is not the header of a record");
    if (json_integer_value(format) == RECORD_FORMAT) return true;
    return fail("'%s' has format %" JSON_INTEGER_FORMAT ", expected %d, which this version reads", r->path,
                json_integer_value(format), RECORD_FORMAT),
           false;
}

/* Checks the last line: the number of ops, and the hash of the lines before it. */
static bool read_end(const record_file *r, ssize_t n, int64_t ops, uint64_t hash) {
    char text[20];
    json_t *end = json_loadb(r->line, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    const char *check = json_string_value(json_object_get(end, "check"));
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    bool whole = json_is_integer(json_object_get(end, "end")) && check;
    bool good = whole && json_integer_value(json_object_get(end, "end")) == ops && !strcmp(check, text);
    json_decref(end);
    return good || bad(r, whole ? "it was changed or damaged" : "its end is missing");
}

/* Reads the file once, and checks its header, its last line and the hash of all others. Sets the number of ops. */
static bool check_whole(record_file *r) {
    uint64_t hash = 0, before = 0;
    int64_t lines = 0;
    ssize_t n, last = next_line(r);
    if (!read_head(r, last)) return false;
    hash = record_hash(hash, r->line, (size_t)last);
    while ((n = next_line(r)) > 0) {
        before = hash;
        hash = record_hash(hash, r->line, (size_t)n);
        last = n;
        lines++;
    }
    if (ferror(r->f)) return fail("cannot read '%s': %s", r->path, strerror(errno)), false;
    if (n < 0 || !lines) return bad(r, "its end is missing");
    r->ops = lines - 1;
    return read_end(r, last, r->ops, before);
}

bool record_open(record_file *r, const char *path) {
    *r = (record_file){.path = path, .f = open_regular(path)}; /* it is read twice, which a pipe cannot be */
    if (!r->f || !check_whole(r)) return false;
    record_rewind(r);
    return true;
}

void record_rewind(record_file *r) {
    rewind(r->f);
    r->at = 0;
    next_line(r); /* the header */
}

json_t *record_next(record_file *r) {
    if (r->at == r->ops) return NULL;
    ssize_t n = next_line(r);
    json_t *op = n > 0 ? json_loadb(r->line, (size_t)n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    bool good = json_is_string(json_object_get(op, "pass")) && json_is_string(json_object_get(op, "op")) &&
                json_is_string(json_object_get(op, "site")) && json_is_array(json_object_get(op, "in")) &&
                json_is_array(json_object_get(op, "out"));
    if (good) {
        r->at++;
        return op;
    }
    json_decref(op);
    bad(r, "the line of an op is malformed");
    return NULL;
}

void record_close(record_file *r) {
    if (r->f) fclose(r->f);
    json_decref(r->head);
    free(r->line);
}

/* ---- Tensors ---- */

static tg_dtype dtype_named(const char *name) {
    for (int d = 1; name && d < TG_DTYPE_COUNT; d++)
        if (!strcmp(name, tg_dtype_name((tg_dtype)d)) && tg_dtype_bits((tg_dtype)d) >= 8) return (tg_dtype)d;
    return TG_DTYPE_DEFAULT;
}

static size_t size_of(tg_dtype d) { return (size_t)tg_dtype_bits(d) / 8; }

static bool read_shape(const json_t *shape, recorded *out) {
    out->ndim = (int)json_array_size(shape);
    out->numel = 1;
    if (!json_is_array(shape) || json_array_size(shape) > TG_MAX_DIMS) return false;
    for (int i = 0; i < out->ndim; i++) {
        const json_t *n = json_array_get(shape, (size_t)i);
        out->shape[i] = json_integer_value(n);
        if (!json_is_integer(n) || out->shape[i] < 0) return false;
        if (out->shape[i] && out->numel > INT64_MAX / 8 / out->shape[i]) return false;
        out->numel *= out->shape[i];
    }
    return true;
}

static bool read_hash(const json_t *hash, recorded *out) {
    const char *text = json_string_value(hash);
    if (!hash) return true;
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    out->hash = strtoull(text, NULL, 16);
    return out->hashed = true;
}

static bool read_kept(const json_t *tensor, recorded *out) {
    const json_t *values = json_object_get(tensor, "values"), *every = json_object_get(tensor, "every");
    if (!values) return true;
    out->hex = json_string_value(values);
    out->every = json_integer_value(every);
    if (!out->hex || out->every < 1) return false;
    out->kept = out->numel / out->every + (out->numel % out->every != 0);
    size_t length = json_string_length(values);
    return length == 2 * (size_t)out->kept * size_of(out->dtype) && strspn(out->hex, "0123456789abcdef") == length;
}

bool recorded_of(const json_t *tensor, recorded *out) {
    *out = (recorded){.name = "", .numel = 0};
    if (!tensor) return false;
    if (json_is_null(tensor)) return true;
    const char *name = json_string_value(json_object_get(tensor, "name"));
    if (name) out->name = name;
    out->dtype = dtype_named(json_string_value(json_object_get(tensor, "dtype")));
    return out->dtype != TG_DTYPE_DEFAULT && read_shape(json_object_get(tensor, "shape"), out) &&
           read_hash(json_object_get(tensor, "hash"), out) && read_kept(tensor, out);
}

size_t recorded_text(const recorded *x, char *buf, size_t n) {
    size_t at = 0;
    char name[160];
    text_escape(name, sizeof name, x->name);
    int k = snprintf(buf, n, x->dtype ? "%s%s%s[" : "nothing", name, *name ? " " : "", tg_dtype_name(x->dtype));
    at += (size_t)k;
    for (int i = 0; i < x->ndim && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, "%s%" PRId64, i ? ", " : "", x->shape[i]);
    if (x->dtype && at < n) at += (size_t)snprintf(buf + at, n - at, "]");
    return at;
}

static unsigned digit(char c) { return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10); }

void recorded_element(const recorded *x, int64_t i, uint8_t out[8]) {
    size_t size = size_of(x->dtype);
    const char *hex = x->hex + 2 * (size_t)i * size;
    memset(out, 0, 8);
    for (size_t b = 0; b < size; b++) out[b] = (uint8_t)(digit(hex[2 * b]) << 4 | digit(hex[2 * b + 1]));
}
