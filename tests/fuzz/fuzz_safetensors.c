/* Takes any bytes as a safetensors file: it is refused with a reason, or every tensor can be read, and a copy that is
 * written again is equal. Another reader of JSON must refuse and accept the same files, except for checksums, which it
 * does not know. */
#define _GNU_SOURCE
#include <jansson.h>

#include <tapegrad/extend.h>

#include "files.h"

#define T(name, dtype, shape, offsets)                                                                                \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

const char *const fuzz_words[] = {
    "\"__metadata__\":{", "\"dtype\":\"", "\"shape\":[", "\"data_offsets\":[", "\"F32\"", "\"BOOL\"", "\"F4\"",
    "\"U64\"", "\"BF16\"", "\"I8\"", "\"F8_E4M3\"", "{}", "[]", "[0,0]", "tapegrad.xxh64", "{", "}", "[", "]", ",", ":",
    "\"", "\\", "\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\xc3\xa9", "\xf0\x9f\x98\x80", "\xc0\x80",
    "\xed\xa0\x80", " ", "\n",
    T("x", "F32", "[1]", "[0,4]"), T("y", "U8", "[0]", "[0,0]"), NULL};

static const struct {
    const char *header;
    size_t data;
} seeds[] = {
    {"{}", 0},
    {"{\"__metadata__\":{\"format\":\"pt\",\"caf\\u00e9\":\"\\ud83d\\ude00\"}}", 0},
    {"{" T("x", "F32", "[2,3]", "[0,24]") "}", 24},
    {"{" T("b", "BOOL", "[2]", "[24,26]") "," T("x", "F64", "[3]", "[0,24]") "," T("e", "U8", "[0]", "[26,26]") "}",
     26},
    {"{" T("h", "BF16", "[2,1,2]", "[0,8]") "," T("i", "I64", "[]", "[8,16]") "," T("k", "F16", "[1]", "[16,18]") "}",
     18},
    {"{ \"x\" : { \"shape\" : [ 4 ] , \"data_offsets\" : [ 0 , 2 ] , \"dtype\" : \"F4\" } }", 2},
    {"{" T("q", "F8_E5M2", "[2]", "[0,2]") "," T("u", "U16", "[1]", "[2,4]") "," T("j", "I32", "[1]", "[4,8]") "}", 8},
    {"{" T("x", "U8", "[1,1,1,1,1,1,1,3]", "[0,3]") "," T("", "U8", "[0,9223372036854775807]", "[3,3]") "}   ", 3},
};

/* Writes a file as this library does, with checksums. */
static size_t saved_seed(uint8_t *out, size_t max) {
    static const double v[] = {1, 2, 3};
    files disk = {.open = 0};
    files_start(&disk);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .files = FILES_OPS(&disk)));
    const tg_named_tensor x[] = {{"x", tg_from_host(ctx, TG_F64, TG_SHAPE(3), v)},
                                 {"b", tg_zeros(ctx, TG_BOOL, TG_SHAPE(2))}};
    const tg_metadata metadata[] = {{"format", "pt"}};
    tg_safetensors_save(ctx, "a", x, COUNT(x), metadata, COUNT(metadata));
    fuzz_must(tg_ctx_status(ctx) == TG_OK, "no seed: %s", tg_ctx_message(ctx));
    ssize_t n = pread(disk.at[file_find(&disk, "a")].fd, out, max, 0);
    tg_ctx_free(ctx);
    files_end(&disk);
    return n < 0 ? 0 : (size_t)n;
}

size_t fuzz_seed(int i, uint8_t *out, size_t max) {
    if (i == (int)COUNT(seeds)) return saved_seed(out, max);
    if (i > (int)COUNT(seeds)) return 0;
    uint64_t n = strlen(seeds[i].header);
    if (8 + n + seeds[i].data > max) return 0;
    memcpy(out, &n, 8);
    memcpy(out + 8, seeds[i].header, n);
    for (size_t k = 0; k < seeds[i].data; k++) out[8 + n + k] = k % 2;
    return 8 + n + seeds[i].data;
}

/* Computes the header's checksum again, if it is where the library writes it. */
static void sum_again(uint8_t *data, size_t header) {
    static const char key[] = "\"tapegrad.xxh64.header\":\"";
    uint8_t *at = memmem(data + 8, header, key, sizeof key - 1);
    if (!at || (size_t)(data + 8 + header - at) < sizeof key - 1 + 16) return;
    at += sizeof key - 1;
    memset(at, '0', 16);
    uint64_t sum = tg_checksum(data, 8 + header);
    for (int i = 15; i >= 0; i--, sum >>= 4) at[i] = (uint8_t)"0123456789abcdef"[sum & 15];
}

/* Mutates mostly the header, with its length updated; sometimes the data, or anything. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    uint64_t n = 0, state = seed;
    uint8_t header[FUZZ_MAX];
    if (size >= 8) memcpy(&n, data, 8);
    if (size < 8 || n > size - 8 || size > sizeof header || !fuzz_below(&state, 6))
        return fuzz_below(&state, 2) ? fuzz_mutate(data, size, max, &state) : LLVMFuzzerMutate(data, size, max);
    size_t rest = size - 8 - (size_t)n;
    if (rest && !fuzz_below(&state, 6))
        return 8 + (size_t)n + fuzz_mutate(data + 8 + n, rest, max - 8 - (size_t)n, &state);
    size_t room = (max < sizeof header ? max : sizeof header) - 8 - rest;
    memcpy(header, data + 8, (size_t)n);
    uint64_t now = fuzz_below(&state, 2) ? fuzz_mutate(header, (size_t)n, room, &state)
                                         : LLVMFuzzerMutate(header, (size_t)n, room);
    memmove(data + 8 + now, data + 8 + n, rest);
    memcpy(data + 8, header, (size_t)now);
    memcpy(data, &now, 8);
    if (fuzz_below(&state, 4)) sum_again(data, (size_t)now);
    return 8 + (size_t)now + rest;
}

/* ---- The same file for another reader ---- */

static int bits_of(const char *dtype) {
    static const struct {
        const char *name;
        int bits;
    } known[] = {{"F4", 4},       {"F6_E2M3", 6},     {"F6_E3M2", 6},     {"BOOL", 8}, {"U8", 8},   {"I8", 8},
                 {"F8_E4M3", 8},  {"F8_E5M2", 8},     {"F8_E8M0", 8},     {"U16", 16}, {"I16", 16}, {"F16", 16},
                 {"BF16", 16},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"U32", 32}, {"I32", 32}, {"F32", 32},
                 {"F64", 64},     {"I64", 64},        {"U64", 64},        {"C64", 64}};
    for (size_t i = 0; i < COUNT(known); i++)
        if (!strcmp(known[i].name, dtype)) return known[i].bits;
    return 0;
}

/* Returns the bytes of a tensor; -1 if they are no whole number or too many. */
static int64_t bytes_of(const json_t *shape, int bits) {
    int64_t n = bits;
    bool empty = false;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0) return -1;
        empty |= json_integer_value(d) == 0;
        if (json_integer_value(d) && __builtin_mul_overflow(n, (int64_t)json_integer_value(d), &n)) return -1;
    }
    return empty ? 0 : n % 8 ? -1 : n / 8;
}

typedef struct range {
    int64_t begin, end;
} range;

static bool tensor_of(const json_t *v, int64_t data, range *out) {
    const json_t *shape = json_object_get(v, "shape"), *at = json_object_get(v, "data_offsets");
    const char *dtype = json_string_value(json_object_get(v, "dtype"));
    if (json_object_size(v) != 3 || !dtype || !bits_of(dtype) || !json_is_array(shape) || json_array_size(shape) > 8 ||
        json_array_size(at) != 2 || !json_is_integer(json_array_get(at, 0)) || !json_is_integer(json_array_get(at, 1)))
        return false;
    *out = (range){json_integer_value(json_array_get(at, 0)), json_integer_value(json_array_get(at, 1))};
    int64_t bytes = bytes_of(shape, bits_of(dtype));
    return bytes >= 0 && out->begin >= 0 && out->end >= out->begin && out->end <= data &&
           out->end - out->begin == bytes;
}

static int by_place(const void *a, const void *b) {
    const range *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* Returns the number of tensors, or -1. */
static int count_tensors(const json_t *root, int64_t data) {
    static range at[FUZZ_MAX];
    int n = 0;
    const char *key;
    json_t *v, *value;
    json_object_foreach((json_t *)root, key, v) {
        if (strcmp(key, "__metadata__")) {
            if (!tensor_of(v, data, &at[n++])) return -1;
            continue;
        }
        const char *k;
        if (!json_is_object(v)) return -1;
        json_object_foreach(v, k, value) if (!json_is_string(value)) return -1;
    }
    qsort(at, (size_t)n, sizeof *at, by_place);
    int64_t end = 0;
    for (int i = 0; i < n; end = at[i++].end)
        if (at[i].begin != end) return -1;
    return end == data ? n : -1;
}

static bool has_sums(const json_t *root) {
    const json_t *m = json_object_get(root, "__metadata__");
    return json_object_get(m, "tapegrad.xxh64") || json_object_get(m, "tapegrad.xxh64.header");
}

/* Returns the number of tensors; -1: it is no such file. *sums: the library may refuse the file for its checksums,
 * or for a 0 that is written as -0. */
static int expected(const uint8_t *data, size_t size, bool *sums) {
    uint64_t n = 0;
    if (size < 8) return -1;
    memcpy(&n, data, 8);
    if (n > size - 8 || !n || data[8] != '{') return -1;
    if (memchr(data + 8, 0, (size_t)n)) return -1; /* jansson 2.14 ignores a zero byte after a number */
    json_t *root = json_loadb((const char *)data + 8, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    int count = json_is_object(root) ? count_tensors(root, (int64_t)(size - 8 - n)) : -1;
    *sums = has_sums(root) || memmem(data + 8, (size_t)n, "-0", 2);
    json_decref(root);
    return count;
}

/* ---- Accepted files ---- */

static const tg_status reasons[] = {TG_ERR_FORMAT};
static const tg_status unreadable[] = {TG_ERR_DATA, TG_ERR_UNSUPPORTED, TG_ERR_SHAPE, TG_ERR_DTYPE};

/* Returns the tensor with the file's bytes; NULL if the library has no such type, or the bytes are no values of it. */
static tg_tensor *load(tg_ctx *ctx, tg_safetensors *f, const tg_safetensors_entry *e, const uint8_t *file, bool sums) {
    uint8_t bytes[FUZZ_MAX];
    size_t n = (size_t)(e->stop - e->begin);
    tg_tensor *x = tg_safetensors_load(f, e->name);
    if (tg_ctx_status(ctx) != TG_OK) {
        bool bad = e->dtype == TG_BOOL && !sums;
        for (size_t i = 0; bad && i < n; i++) bad = file[(size_t)e->begin + i] <= 1;
        fuzz_must(!bad, "zeros and ones are refused: %s", tg_ctx_message(ctx));
        fuzz_refused(ctx, unreadable, COUNT(unreadable));
        return NULL;
    }
    fuzz_must(tg_is_alive(x) && tg_dtype_of(x) == e->dtype, "'%s' is not what its entry says", e->name);
    tg_read(x, bytes, n);
    fuzz_must(tg_ctx_status(ctx) == TG_OK && !memcmp(bytes, file + e->begin, n), "'%s' has other bytes", e->name);
    return x;
}

/* Writes the file and opens it again: tensors, bytes and metadata must be the same. */
static void write_again(tg_ctx *ctx, tg_safetensors *f, const tg_named_tensor *x, int n) {
    static tg_metadata metadata[FUZZ_MAX];
    int n_metadata = tg_safetensors_metadata_count(f);
    for (int i = 0; i < n_metadata; i++) metadata[i] = *tg_safetensors_metadata_at(f, i);
    tg_safetensors_save(ctx, "b", x, n, metadata, n_metadata);
    fuzz_must(tg_ctx_status(ctx) == TG_OK, "cannot be written again: %s", tg_ctx_message(ctx));
    tg_safetensors *again = tg_safetensors_open(ctx, "b");
    fuzz_must(again, "cannot be read again: %s", tg_ctx_message(ctx));
    fuzz_must(tg_safetensors_count(again) == n && tg_safetensors_metadata_count(again) == n_metadata, "%d tensors", n);
    for (int i = 0; i < n; i++) {
        uint8_t was[FUZZ_MAX], is[FUZZ_MAX];
        const tg_safetensors_entry *e = tg_safetensors_find(again, x[i].name);
        size_t bytes = e ? (size_t)(e->stop - e->begin) : 0;
        fuzz_must(e && bytes <= sizeof was, "'%s' was lost", x[i].name);
        tg_tensor *y = tg_safetensors_load(again, x[i].name);
        tg_read(x[i].tensor, was, bytes);
        tg_read(y, is, bytes);
        fuzz_must(tg_ctx_status(ctx) == TG_OK && !memcmp(was, is, bytes), "'%s' was changed: %s", x[i].name,
                  tg_ctx_message(ctx));
        tg_drop(y);
    }
    for (int i = 0; i < n_metadata; i++) {
        const char *value = tg_safetensors_metadata(again, metadata[i].key);
        fuzz_must(value && !strcmp(value, metadata[i].value), "the metadata '%s' were changed", metadata[i].key);
    }
    tg_safetensors_close(again);
}

static void use(tg_ctx *ctx, tg_safetensors *f, const uint8_t *data, size_t size, bool sums) {
    static tg_named_tensor x[FUZZ_MAX];
    int n = 0;
    for (int i = 0; i < tg_safetensors_count(f); i++) {
        const tg_safetensors_entry *e = tg_safetensors_at(f, i);
        fuzz_must(e->begin >= 8 && e->stop >= e->begin && e->stop <= (int64_t)size, "'%s' lies outside the file",
                  e->name);
        fuzz_must(tg_safetensors_find(f, e->name) == e, "'%s' is not found", e->name);
        tg_tensor *y = load(ctx, f, e, data, sums);
        if (y) x[n++] = (tg_named_tensor){e->name, y};
    }
    for (int i = 0; i < tg_safetensors_metadata_count(f); i++) {
        const tg_metadata *m = tg_safetensors_metadata_at(f, i);
        fuzz_must(tg_safetensors_metadata(f, m->key) == m->value, "the metadata '%s' are not found", m->key);
    }
    write_again(ctx, f, x, n);
    for (int i = 0; i < n; i++) tg_drop(x[i].tensor);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static files disk;
    if (size > FUZZ_MAX) return 0;
    if (!disk.at[0].fd) files_start(&disk);
    budget memory = {.limit = (size_t)64 << 20};
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .files = FILES_OPS(&disk), .allocator = BUDGET(&memory)));
    size_t held = memory.held;
    file_put(&disk, "a", data, size);
    tg_safetensors *f = tg_safetensors_open(ctx, "a");
    fuzz_must(memory.peak - held <= 4096 + 128 * size, "%zu bytes to open a file of %zu", memory.peak - held, size);
    bool sums = false;
    int count = expected(data, size, &sums);
    fuzz_must(f ? tg_safetensors_count(f) == count : count < 0 || sums, "%d tensors, expected %d: %s",
              tg_safetensors_count(f), count, tg_ctx_message(ctx));
    if (f) use(ctx, f, data, size, sums);
    else fuzz_refused(ctx, reasons, COUNT(reasons));
    tg_safetensors_close(f);
    tg_ctx_free(ctx);
    fuzz_must(!memory.held && !disk.open, "%zu bytes and %d files are left", memory.held, disk.open);
    files_clear(&disk);
    return 0;
}
