/* Parser of the header of a safetensors file.
 *
 * It does not use the JSON library, for three reasons. The grammar has just three levels. A general JSON tree needs
 * up to a hundred bytes for each byte of a malicious header; this parser needs a few. Its errors give the offset of the
 * wrong byte in the file. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "io/safetensors.h"

#include <stdio.h>
#include <stdlib.h>

static const tg_safetensors_dtype dtypes[] = {
    {"F32", 32, TG_F32},
    {"F64", 64, TG_F64},
    {"BF16", 16, TG_BF16},
    {"F16", 16, TG_F16},
    {"I64", 64, TG_I64},
    {"I32", 32, TG_I32},
    {"U8", 8, TG_U8},
    {"I8", 8, TG_I8},
    {"I16", 16, TG_I16},
    {"U16", 16, TG_U16},
    {"U32", 32, TG_U32},
    {"U64", 64, TG_U64},
    {"BOOL", 8, TG_BOOL},
    {"F8_E4M3", 8, TG_F8E4M3},
    {"F8_E5M2", 8, TG_F8E5M2},
    {"F8_E8M0", 8, TG_F8E8M0},
    {"C64", 64, TG_DTYPE_DEFAULT},
    {"F4", 4, TG_DTYPE_DEFAULT},
    {"F6_E2M3", 6, TG_DTYPE_DEFAULT},
    {"F6_E3M2", 6, TG_DTYPE_DEFAULT},
    {"F8_E4M3FNUZ", 8, TG_DTYPE_DEFAULT},
    {"F8_E5M2FNUZ", 8, TG_DTYPE_DEFAULT},
};

const tg_safetensors_dtype *tg_safetensors_dtype_named(const char *name) {
    for (int i = 0; i < TG_LEN(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

const tg_safetensors_dtype *tg_safetensors_dtype_of(tg_dtype dtype) {
    for (int i = 0; i < TG_LEN(dtypes) && dtype != TG_DTYPE_DEFAULT; i++)
        if (dtypes[i].dtype == dtype) return &dtypes[i];
    return NULL;
}

/* ---- Tokens of the grammar ---- */

/* Parser state. The header is parsed twice: first to count entries, while the arrays are NULL, then to fill the
 * arrays. */
typedef struct reader {
    tg_safetensors *f;
    const char *text;
    size_t n, at;
    char *strings;      /* where the next decoded string goes; decoding never makes a string longer */
    const char *tensor; /* name of the tensor whose description is being read, or NULL */
    tg_safetensors_entry entry;
    const tg_safetensors_dtype *dtype;
    bool has_shape, has_offsets, has_metadata;
    int count, n_metadata;
    const char *sums, *sum; /* decoded checksums of the metadata; NULL if absent */
    size_t sum_at;          /* offset of the digits of `sum` in the header */
} reader;

/* Records an error at byte `at` of the header. The message has the byte's offset in the file, and the tensor if one is
 * being read. */
static tg_status refuse(const reader *r, size_t at, const char *format, ...) TG_PRINTF(3, 4);
static tg_status refuse(const reader *r, size_t at, const char *format, ...) {
    char what[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    return tg_fail(r->f->file.ctx, TG_ERR_FORMAT, "'%s': header, offset %zu%s%.128s%s: %s", r->f->file.path,
                   at + TG_SAFETENSORS_PREFIX, r->tensor ? ", tensor '" : "", r->tensor ? r->tensor : "",
                   r->tensor ? "'" : "", what);
}

/* Skips white space and returns the next byte, or -1 at the end. */
static int peek(reader *r) {
    while (r->at < r->n && r->text[r->at] && strchr(" \t\n\r", r->text[r->at])) r->at++;
    return r->at < r->n ? (unsigned char)r->text[r->at] : -1;
}

/* Records that `what` was expected where another byte, or the end, was found. */
static tg_status expected(reader *r, const char *what) {
    int c = peek(r);
    if (c < 0) return refuse(r, r->at, "expected %s, found the end of the header", what);
    if (c <= ' ' || c >= 127) return refuse(r, r->at, "expected %s, found the byte 0x%02x", what, (unsigned)c);
    return refuse(r, r->at, "expected %s, found '%c'", what, c);
}

/* Consumes the next byte if it is c. Returns whether it was. */
static bool accept(reader *r, char c) {
    if (peek(r) != c) return false;
    r->at++;
    return true;
}

/* Consumes the next byte, which must be c. */
static tg_status take(reader *r, char c) {
    char what[] = {'\'', c, '\'', 0};
    return accept(r, c) ? TG_OK : expected(r, what);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads the four digits of \uXXXX; returns -1 if they are not there. */
static int32_t hex4(reader *r) {
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int d = r->at < r->n ? hex_digit(r->text[r->at]) : -1;
        if (d < 0) return -1;
        v = v * 16 + d;
        r->at++;
    }
    return v;
}

/* Reads a code point after \u, from two escapes if the first is a high surrogate. Returns -1 if it is invalid.
 * U+0000 is refused too, because strings end at a zero. */
static int32_t code_point(reader *r) {
    int32_t c = hex4(r);
    if (c < 0xD800 || c > 0xDFFF) return c > 0 ? c : -1;
    if (c > 0xDBFF || r->n - r->at < 6 || r->text[r->at] != '\\' || r->text[r->at + 1] != 'u') return -1;
    r->at += 2;
    int32_t low = hex4(r);
    return low >= 0xDC00 && low <= 0xDFFF ? 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00) : -1;
}

static void put_utf8(char **out, int32_t c) {
    static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    int length = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = length - 1; i > 0; i--, c >>= 6) (*out)[i] = (char)(0x80 | (c & 0x3F));
    **out = (char)(lead[length < 2 ? 0 : length] | c);
    *out += length;
}

/* Decodes the escape whose backslash was consumed. */
static tg_status escape(reader *r, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t start = r->at - 1;
    char c = r->at < r->n ? r->text[r->at++] : 0;
    const char *simple = c ? strchr(from, c) : NULL;
    int32_t point = simple ? to[simple - from] : c == 'u' ? code_point(r) : -1;
    if (point < 0) return refuse(r, start, "a string has a bad escape");
    put_utf8(out, point);
    return TG_OK;
}

/* Reads a string and decodes it into the file's text. The caller has checked that the header is UTF-8. */
static tg_status string(reader *r, const char *what, const char **out) {
    if (!accept(r, '"')) return expected(r, what);
    char *to = r->strings;
    *out = to;
    while (r->at < r->n && r->text[r->at] != '"') {
        char c = r->text[r->at++];
        if ((unsigned char)c < 0x20) return refuse(r, r->at - 1, "a string has the control byte 0x%02x", (unsigned)c);
        if (c != '\\')
            *to++ = c;
        else
            TG_TRY(escape(r, &to));
    }
    *to++ = 0;
    r->strings = to;
    return accept(r, '"') ? TG_OK : expected(r, "the end of a string");
}

static tg_status integer(reader *r, int64_t *out) {
    int c = peek(r);
    size_t start = r->at;
    int64_t v = 0;
    if (c < '0' || c > '9') return expected(r, "an integer, 0 or more");
    for (; r->at < r->n && (c = r->text[r->at]) >= '0' && c <= '9'; r->at++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, c - '0', &v))
            return refuse(r, start, "an integer overflows 63 bits");
    if (r->text[start] == '0' && r->at > start + 1) return refuse(r, start, "an integer begins with 0");
    *out = v;
    return TG_OK;
}

/* ---- Rules of the grammar ---- */

/* Reads a list of at most `most` integers. */
static tg_status list(reader *r, const char *what, int most, int64_t *v, int *n) {
    size_t start = r->at;
    *n = 0;
    TG_TRY(take(r, '['));
    if (accept(r, ']')) return TG_OK;
    do {
        if (*n == most) return refuse(r, start, "%s has more than %d numbers", what, most);
        TG_TRY(integer(r, &v[(*n)++]));
    } while (accept(r, ','));
    return accept(r, ']') ? TG_OK : expected(r, "',' or ']'");
}

/* Reads an object. After each key calls `member` to read the value. `at` is the offset of the key in the header. */
static tg_status object(reader *r, tg_status (*member)(reader *r, const char *key, size_t at)) {
    TG_TRY(take(r, '{'));
    if (accept(r, '}')) return TG_OK;
    do {
        const char *key;
        peek(r);
        size_t at = r->at;
        TG_TRY(string(r, "a name in quotes", &key));
        TG_TRY(take(r, ':'));
        TG_TRY(member(r, key, at));
    } while (accept(r, ','));
    return accept(r, '}') ? TG_OK : expected(r, "',' or '}'");
}

static tg_status repeated(const reader *r, size_t at, const char *key) {
    return refuse(r, at, "the key \"%s\" is repeated", key);
}

static tg_status dtype_member(reader *r, size_t at) {
    const char *name;
    if (r->dtype) return repeated(r, at, "dtype");
    TG_TRY(string(r, "a dtype in quotes", &name));
    r->dtype = tg_safetensors_dtype_named(name);
    return r->dtype ? TG_OK : refuse(r, at, "dtype \"%.32s\" is unknown", name);
}

static tg_status shape_member(reader *r, size_t at) {
    int n;
    if (r->has_shape) return repeated(r, at, "shape");
    r->has_shape = true;
    TG_TRY(list(r, "shape", TG_MAX_DIMS, r->entry.shape.dim, &n));
    r->entry.shape.ndim = n;
    return TG_OK;
}

static tg_status offsets_member(reader *r, size_t at) {
    int64_t v[2];
    int n;
    if (r->has_offsets) return repeated(r, at, "data_offsets");
    r->has_offsets = true;
    TG_TRY(list(r, "data_offsets", 2, v, &n));
    if (n != 2) return refuse(r, at, "data_offsets has %s, expected 2", tg_count(n, "number").text);
    r->entry.begin = v[0];
    r->entry.stop = v[1];
    return TG_OK;
}

static tg_status tensor_member(reader *r, const char *key, size_t at) {
    if (strcmp(key, "dtype") == 0) return dtype_member(r, at);
    if (strcmp(key, "shape") == 0) return shape_member(r, at);
    if (strcmp(key, "data_offsets") == 0) return offsets_member(r, at);
    return refuse(r, at, "the key \"%.64s\" is unknown, expected dtype, shape, data_offsets", key);
}

/* Computes the number of bytes that shape and dtype require. Returns false if it overflows or is not whole. */
static bool entry_bytes(const reader *r, int64_t *bytes) {
    int64_t numel = 1, bits;
    bool empty = false;
    for (int i = 0; i < r->entry.shape.ndim; i++) {
        int64_t d = r->entry.shape.dim[i];
        empty |= d == 0;
        if (d > 0 && __builtin_mul_overflow(numel, d, &numel)) return false;
    }
    if (__builtin_mul_overflow(numel, r->dtype->bits, &bits)) return false;
    *bytes = empty ? 0 : bits / 8;
    return empty || bits % 8 == 0;
}

/* Checks that shape, dtype and offsets match each other and the file, and makes the offsets relative to the file's
 * start. */
static tg_status check_entry(reader *r, size_t at) {
    tg_safetensors_entry *e = &r->entry;
    int64_t bytes, begin = TG_SAFETENSORS_PREFIX + (int64_t)r->n, size = r->f->file.size - begin;
    if (!r->dtype || !r->has_shape || !r->has_offsets)
        return refuse(r, at, "%s is missing", !r->dtype ? "dtype" : !r->has_shape ? "shape" : "data_offsets");
    if (!entry_bytes(r, &bytes))
        return refuse(r, at, "the size of its shape overflows, or is not a whole number of bytes");
    if (e->begin > e->stop)
        return refuse(r, at, "data_offsets [%lld, %lld] run backwards", (long long)e->begin, (long long)e->stop);
    if (e->stop > size)
        return refuse(r, at, "data_offsets [%lld, %lld] pass the end of the file, which holds %s of data",
                      (long long)e->begin, (long long)e->stop, tg_count(size, "byte").text);
    if (e->stop - e->begin != bytes)
        return refuse(r, at, "data_offsets [%lld, %lld] hold %s, expected %lld for its shape and dtype",
                      (long long)e->begin, (long long)e->stop, tg_count(e->stop - e->begin, "byte").text,
                      (long long)bytes);
    e->begin += begin;
    e->stop += begin;
    return TG_OK;
}

/* Reads one string of the metadata. The library's own two keys are kept apart from the list. */
static tg_status metadata_member(reader *r, const char *key, size_t at) {
    const char *value, **own = NULL;
    if (strcmp(key, TG_SAFETENSORS_SUMS) == 0) own = &r->sums;
    if (strcmp(key, TG_SAFETENSORS_SUM) == 0) own = &r->sum;
    if (own && *own) return refuse(r, at, "the metadata key '%s' is repeated", key);
    peek(r);
    if (own == &r->sum) r->sum_at = r->at + 1;
    TG_TRY(string(r, "a string (metadata)", &value));
    if (own) {
        *own = value;
        return TG_OK;
    }
    if (r->f->metadata) r->f->metadata[r->n_metadata] = (tg_metadata){key, value};
    r->n_metadata++;
    return TG_OK;
}

static tg_status top_member(reader *r, const char *key, size_t at) {
    if (strcmp(key, "__metadata__") == 0) {
        if (r->has_metadata) return repeated(r, at, key);
        r->has_metadata = true;
        return object(r, metadata_member);
    }
    r->tensor = key;
    r->entry = (tg_safetensors_entry){.name = key};
    r->dtype = NULL;
    r->has_shape = r->has_offsets = false;
    TG_TRY(object(r, tensor_member));
    TG_TRY(check_entry(r, at));
    r->entry.dtype_name = r->dtype->name;
    r->entry.dtype = r->dtype->dtype;
    if (r->f->entries) r->f->entries[r->count] = r->entry;
    r->count++;
    r->tensor = NULL;
    return TG_OK;
}

/* ---- The whole header ---- */

static tg_status read_header(reader *r, tg_safetensors *f, const char *header, size_t n) {
    *r = (reader){.f = f, .text = header, .n = n, .strings = f->text};
    if (n == 0 || header[0] != '{') return refuse(r, 0, "the first byte is not '{'");
    TG_TRY(object(r, top_member));
    return peek(r) < 0 ? TG_OK : expected(r, "nothing but white space");
}

static tg_status allocate(tg_safetensors *f, const reader *r) {
    tg_ctx *ctx = f->file.ctx;
    f->count = r->count;
    f->n_metadata = r->n_metadata;
    f->entries = tg_host_alloc(ctx, (size_t)f->count * sizeof *f->entries + 1);
    f->metadata = tg_host_alloc(ctx, (size_t)f->n_metadata * sizeof *f->metadata + 1);
    f->by_name = tg_host_alloc(ctx, (size_t)f->count * sizeof *f->by_name + 1);
    f->by_key = tg_host_alloc(ctx, (size_t)f->n_metadata * sizeof *f->by_key + 1);
    return tg_io_enter(ctx);
}

/* Orders entries by their offsets. Empty tensors at the same offset keep the header's order: that of the addresses of
 * their names, which were decoded in this order. */
static int compare_entries(const void *a, const void *b) {
    const tg_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->stop != y->stop) return x->stop < y->stop ? -1 : 1;
    return x->name < y->name ? -1 : 1;
}

/* Fails unless the tensors cover the data without holes, without overlap and to the end of the file. */
static tg_status check_layout(const tg_safetensors *f, int64_t data) {
    tg_ctx *ctx = f->file.ctx;
    int64_t at = data;
    for (int i = 0; i < f->count; at = f->entries[i++].stop) {
        const tg_safetensors_entry *e = &f->entries[i];
        if (e->begin > at)
            return tg_fail(ctx, TG_ERR_FORMAT,
                           "'%s': tensor '%.128s' begins at offset %lld, expected %lld: a hole of %s", f->file.path,
                           e->name, (long long)e->begin, (long long)at, tg_count(e->begin - at, "byte").text);
        if (e->begin < at)
            return tg_fail(ctx, TG_ERR_FORMAT,
                           "'%s': tensor '%.128s' begins at offset %lld, inside tensor '%.128s', which ends at %lld",
                           f->file.path, e->name, (long long)e->begin, f->entries[i - 1].name, (long long)at);
    }
    if (at != f->file.size)
        return tg_fail(ctx, TG_ERR_FORMAT,
                       "'%s': the tensors end at offset %lld, the file at %lld: a rest of %s that belongs to no tensor",
                       f->file.path, (long long)at, (long long)f->file.size,
                       tg_count(f->file.size - at, "byte").text);
    return TG_OK;
}

/* Compares the checksum of the bytes before the data. A header may still parse after one of its bits was damaged. */
static tg_status check_sums(const reader *r) {
    static const char zeros[] = "0000000000000000";
    char digits[TG_CHECKSUM_DIGITS];
    uint64_t n = r->n;
    if (!r->sums && !r->sum) return TG_OK;
    if (!r->sums || !r->sum)
        return refuse(r, 0, "the metadata have no \"%s\", which must accompany \"%s\"",
                      r->sums ? TG_SAFETENSORS_SUM : TG_SAFETENSORS_SUMS,
                      r->sums ? TG_SAFETENSORS_SUMS : TG_SAFETENSORS_SUM);
    if (strlen(r->sum) != sizeof digits || memcmp(r->sum, r->text + r->sum_at, sizeof digits) != 0)
        return refuse(r, r->sum_at, "\"%s\" is not a checksum of %zu digits", TG_SAFETENSORS_SUM, sizeof digits);
    tg_summing sum = tg_summing_begin();
    tg_summing_add(&sum, &n, sizeof n);
    tg_summing_add(&sum, r->text, r->sum_at);
    tg_summing_add(&sum, zeros, sizeof digits);
    tg_summing_add(&sum, r->text + r->sum_at + sizeof digits, r->n - r->sum_at - sizeof digits);
    tg_checksum_text(tg_summing_end(&sum), digits);
    if (memcmp(digits, r->sum, sizeof digits) != 0)
        return refuse(r, r->sum_at,
                      "the header's checksum is %.16s, expected %s: it is damaged, or was written by a program that "
                      "kept the metadata of another file",
                      digits, r->sum);
    if (strlen(r->sums) != (size_t)r->count * sizeof digits)
        return refuse(r, 0, "\"%s\" has %s, expected %zu for %s", TG_SAFETENSORS_SUMS,
                      tg_count(strlen(r->sums), "digit").text, (size_t)r->count * sizeof digits,
                      tg_count(r->count, "tensor").text);
    return TG_OK;
}

/* Sorts the lists of names. Fails if a name or key is repeated. */
static tg_status index_names(tg_safetensors *f) {
    const char *twice = tg_index_names(f->entries, f->count, sizeof *f->entries, f->by_name);
    const char *key = tg_index_names(f->metadata, f->n_metadata, sizeof *f->metadata, f->by_key);
    if (!twice && !key) return TG_OK;
    return tg_fail(f->file.ctx, TG_ERR_FORMAT, "'%s': the %s '%.128s' is repeated", f->file.path,
                   twice ? "tensor" : "metadata key", twice ? twice : key);
}

tg_status tg_safetensors_parse(tg_safetensors *f, const char *header, size_t n) {
    reader r = {.f = f};
    size_t bad = tg_utf8_check(header, n);
    if (bad < n) return refuse(&r, bad, "not UTF-8 from the byte 0x%02x", (unsigned)(unsigned char)header[bad]);
    f->text_bytes = n + 1;
    f->text = tg_host_alloc(f->file.ctx, f->text_bytes);
    if (!f->text) return tg_io_enter(f->file.ctx);
    TG_TRY(read_header(&r, f, header, n));
    TG_TRY(allocate(f, &r));
    TG_TRY(read_header(&r, f, header, n));
    TG_TRY(check_sums(&r));
    f->sums = r.sums;
    f->sum = r.sum;
    if (f->count > 1) qsort(f->entries, (size_t)f->count, sizeof *f->entries, compare_entries);
    TG_TRY(index_names(f));
    return check_layout(f, TG_SAFETENSORS_PREFIX + (int64_t)n);
}
