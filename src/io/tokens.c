/* Token streams: bytes of text, raw little-endian ids, or Megatron-LM's indexed datasets. */
#include "io/tokens.h"

#include "base/memory/host_memory.h"

static const char *const format_names[] = {"text", "u16", "u32", "megatron"};
static const int format_widths[] = {1, 2, 4, 0}; /* bytes per token; 0 means that the index says it */

/* Returns token i of packed tokens at any alignment. */
static inline int64_t unpack(const tg_tokens *t, const char *packed, int64_t i) {
    uint64_t v;
    uint32_t u32;
    uint16_t u16;
    switch (t->width) {
    case 1: v = (unsigned char)packed[i]; break;
    case 2: memcpy(&u16, packed + 2 * i, sizeof u16), v = u16; break;
    case 4: memcpy(&u32, packed + 4 * i, sizeof u32), v = u32; break;
    default: memcpy(&v, packed + 8 * i, sizeof v); break;
    }
    uint64_t sign = t->is_signed ? UINT64_C(1) << (8 * t->width - 1) : 0;
    return (int64_t)((v ^ sign) - sign);
}

/* Fails because the id of token `index` is not in the vocabulary. */
static tg_status refuse_id(const tg_tokens *t, int64_t id, int64_t index) {
    return tg_fail(t->ctx, TG_ERR_DATA,
                   "'%s': token %lld at offset %lld is %lld, expected %sless than %lld (the vocabulary)", t->file.path,
                   (long long)index, (long long)(index * t->width), (long long)id, id < 0 ? "at least 0 and " : "",
                   (long long)t->vocab);
}

static tg_status validate_chunk(const tg_tokens *t, const char *packed, int64_t first, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        int64_t id = unpack(t, packed, i);
        if (TG_UNLIKELY(id >= t->vocab || id < 0)) return refuse_id(t, id, first + i);
    }
    return TG_OK;
}

/* Reads the whole stream once, and fails if an id is not in the vocabulary. */
static tg_status validate_ids(tg_tokens *t) {
    if (!t->is_signed && t->vocab > (int64_t)UINT32_MAX >> (32 - 8 * t->width))
        return TG_OK; /* no id of this width is too large */
    char *chunk = tg_host_alloc(t->ctx, TG_IO_CHUNK);
    if (!chunk) return tg_io_enter(t->ctx);
    tg_status s = TG_OK;
    int64_t most = TG_IO_CHUNK / t->width;
    for (int64_t first = 0; first < t->count && s == TG_OK; first += most) {
        int64_t n = t->count - first < most ? t->count - first : most;
        s = tg_file_read(&t->file, first * t->width, chunk, (size_t)(n * t->width));
        if (s == TG_OK) s = validate_chunk(t, chunk, first, n);
    }
    tg_host_free(t->ctx, chunk, TG_IO_CHUNK);
    return s;
}

/* Fails for a file of size 0. If such a file has bytes nevertheless, it is generated when it is read, like the files of
 * /proc, and the message says so. */
static tg_status refuse_empty(const tg_tokens *t, tg_token_format format) {
    char byte;
    if (t->file.ops.pread(t->file.ops.user, t->file.fd, &byte, 1, 0) > 0)
        return tg_fail(t->ctx, TG_ERR_DATA,
                       "'%s' says that it has 0 bytes but gives more when it is read, as files of /proc do; copy it to "
                       "a regular file first",
                       t->file.path);
    return tg_fail(t->ctx, TG_ERR_DATA, "'%s' is empty, expected tokens (%s)", t->file.path, format_names[format]);
}

/* Opens the file, checks its size, and checks every token. */
static tg_status open_stream(tg_tokens *t, tg_ctx *ctx, const char *path, tg_token_format format, int64_t vocab) {
    int64_t expected = -1;
    if (format == TG_TOKENS_MEGATRON) {
        TG_TRY(tg_megatron_open(t, ctx, path, &expected));
        path = t->file.path;
    } else {
        t->width = format_widths[format];
        TG_TRY(tg_file_open(&t->file, ctx, path));
    }
    t->vocab = vocab ? vocab : t->width == 8 ? INT64_MAX : (int64_t)1 << (8 * t->width - t->is_signed);
    if (expected >= 0 && t->file.size != expected * t->width)
        return tg_fail(ctx, TG_ERR_FORMAT, "'%s' has %s, expected %lld: its index lists %lld tokens of %d bytes", path,
                       tg_count(t->file.size, "byte").text, (long long)(expected * t->width), (long long)expected,
                       t->width);
    if (t->file.size == 0) return refuse_empty(t, format);
    t->count = t->file.size / t->width;
    if (format != TG_TOKENS_MEGATRON) t->documents = 1;
    if (t->file.size % t->width != 0)
        return tg_fail(ctx, TG_ERR_FORMAT, "'%s' has %s, expected a multiple of %d (%s): %s left over at offset %lld",
                       path, tg_count(t->file.size, "byte").text, t->width, format_names[format],
                       tg_count(t->file.size % t->width, "byte").text, (long long)(t->count * t->width));
    return validate_ids(t);
}

tg_tokens *tg_tokens_open(tg_ctx *ctx, const char *path, tg_token_format format, int64_t vocab) {
    if (tg_io_enter(ctx) != TG_OK) return NULL;
    if (!path || (unsigned)format >= TG_LEN(format_widths) || vocab < 0) {
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "tg_tokens_open: path %s, format %d, vocab %lld; expected a path, a tg_token_format "
                "and a vocab of at least 1, or 0 for all ids of the format",
                path ? path : "NULL", (int)format, (long long)vocab);
        return NULL;
    }
    tg_tokens *t = tg_host_alloc(ctx, sizeof *t);
    if (!t) return NULL;
    t->ctx = ctx;
    if (open_stream(t, ctx, path, format, vocab) == TG_OK) return t;
    tg_tokens_close(t);
    return NULL;
}

void tg_tokens_close(tg_tokens *t) {
    if (!t) return;
    tg_tokens_close_parts(t);
    tg_file_close(&t->file);
    tg_file_close(&t->index);
    tg_host_free(t->ctx, t, sizeof *t);
}

int64_t tg_tokens_count(const tg_tokens *t) {
    return t ? t->count : 0;
}

/* Reads from one file. */
static tg_status read_file(tg_tokens *t, int64_t first, int64_t n, int64_t *out) {
    /* The packed tokens are read into the end of out and widened from the start. A token has at most the 8 bytes of an
     * element of out, so packed token i + 1 begins at out[i + 1] or later, and writing out[i] does not change it. */
    size_t bytes = (size_t)(n * t->width);
    char *packed = n ? (char *)(out + n) - bytes : NULL;
    TG_TRY(tg_file_read(&t->file, first * t->width, packed, bytes));
    for (int64_t i = 0; i < n; i++) {
        int64_t id = unpack(t, packed, i);
        if (TG_UNLIKELY(id >= t->vocab || id < 0)) return refuse_id(t, id, first + i);
        memcpy(out + i, &id, sizeof id); /* memcpy, because the bytes there are packed tokens, of another type */
    }
    return TG_OK;
}

/* Reads a range of a joined stream, which may begin in one file and end in a later one. */
static tg_status read_parts(tg_tokens *t, int64_t first, int64_t n, int64_t *out) {
    for (int p = n ? tg_tokens_part_of(t, first) : 0; n > 0; p++) {
        int64_t from = first - t->first_token[p], left = t->part[p]->count - from, here = n < left ? n : left;
        TG_TRY(read_file(t->part[p], from, here, out));
        first += here, n -= here, out += here;
    }
    return TG_OK;
}

tg_status tg_tokens_check_range(const tg_tokens *t, int64_t first, int64_t n, const void *out, const char *who) {
    if (first < 0 || n < 0 || first > t->count || n > t->count - first)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: asked for %s from token %lld on, but %s%s%s %lld", who,
                       tg_count(n, "token").text, (long long)first, t->n_parts ? "" : "'",
                       t->n_parts ? "the joined files have" : t->file.path, t->n_parts ? "" : "' has",
                       (long long)t->count);
    if (!out && n > 0)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "%s: out is NULL, expected an array of %lld tokens", who, (long long)n);
    return TG_OK;
}

tg_status tg_tokens_read(tg_tokens *t, int64_t first, int64_t n, int64_t *out) {
    if (!t) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(t->ctx));
    TG_TRY(tg_tokens_check_range(t, first, n, out, "tg_tokens_read"));
    return t->n_parts ? read_parts(t, first, n, out) : read_file(t, first, n, out);
}
