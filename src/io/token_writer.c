/* Writes Megatron-LM's indexed datasets: the tokens as they come, and the index at the end. */
#include "io/tokens.h"

#include "base/memory/host_memory.h"

enum { CONTEXT = 1, LAST = 2, BUFFER = 1 << 16 }; /* LAST: the sequence ends its document */

typedef struct sequence {
    int32_t length;
    uint8_t flags;
} sequence;

struct tg_token_writer {
    tg_ctx *ctx;
    tg_writer data;
    char *index; /* path of the index */
    int64_t vocab, count;
    int width;
    bool has_context;
    bool open; /* the document has a token */
    int n, capacity;
    sequence *sequences;
    size_t used; /* bytes in the buffer */
    unsigned char buffer[BUFFER];
};

/* ---- The data ---- */

static int width_of(int64_t vocab) { return vocab <= 256 ? 1 : vocab <= 65536 ? 2 : 4; }

tg_token_writer *tg_token_writer_open(tg_ctx *ctx, const char *path, int64_t vocab) {
    if (tg_io_enter(ctx) != TG_OK) return NULL;
    if (!path || vocab < 1 || vocab > INT64_C(1) << 31) {
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "tg_token_writer_open: path %s, vocab %lld; expected a path and a vocab from 1 "
                "to 2^31",
                path ? path : "NULL", (long long)vocab);
        return NULL;
    }
    tg_token_writer *w = tg_host_alloc(ctx, sizeof *w);
    if (!w) return NULL;
    *w = (tg_token_writer){.ctx = ctx, .vocab = vocab, .width = width_of(vocab)};
    char *data = tg_megatron_path(ctx, path, ".bin");
    w->index = data ? tg_megatron_path(ctx, path, ".idx") : NULL;
    tg_status s = w->index ? tg_writer_open(&w->data, ctx, data) : tg_io_enter(ctx);
    tg_host_strfree(ctx, data);
    if (s == TG_OK) return w;
    tg_token_writer_abandon(w);
    return NULL;
}

/* Writes the buffer to the file. If that fails, the buffer stays as it is, so a later flush writes the same bytes. */
static tg_status flush(tg_token_writer *w) {
    TG_TRY(tg_writer_put(&w->data, w->buffer, w->used));
    w->used = 0;
    return TG_OK;
}

static tg_status check_ids(const tg_token_writer *w, const int64_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= w->vocab)
            return tg_fail(w->ctx, TG_ERR_DATA, "tg_token_writer_add: id %lld, expected 0 to %lld", (long long)ids[i],
                           (long long)(w->vocab - 1));
    return TG_OK;
}

/* Returns the sequence to which a token is appended: the last one, or a new one if the last one has ended, differs in
 * `context`, or is full. Returns NULL after recording the error. */
static sequence *sequence_for(tg_token_writer *w, bool context) {
    sequence *last = w->n ? &w->sequences[w->n - 1] : NULL;
    if (last && !(last->flags & LAST) && !(last->flags & CONTEXT) == !context && last->length < INT32_MAX) return last;
    if (w->n == INT32_MAX) {
        tg_fail(w->ctx, TG_ERR_UNSUPPORTED,
                "tg_token_writer_add: there are 2^31 - 1 sequences, the most that a dataset may have; write several "
                "datasets");
        return NULL;
    }
    if (!tg_host_grow(w->ctx, (void **)&w->sequences, w->n, &w->capacity, sizeof(sequence))) return NULL;
    w->sequences[w->n] = (sequence){.flags = context ? CONTEXT : 0};
    return &w->sequences[w->n++];
}

static tg_status put_id(tg_token_writer *w, int64_t id, bool context) {
    if (w->used + (size_t)w->width > BUFFER) TG_TRY(flush(w));
    sequence *s = sequence_for(w, context);
    if (!s) return tg_io_enter(w->ctx);
    uint32_t v = (uint32_t)id;
    memcpy(w->buffer + w->used, &v, (size_t)w->width);
    w->used += (size_t)w->width;
    w->open = true;
    w->has_context |= context;
    s->length++;
    w->count++;
    return TG_OK;
}

/* If writing fails, the tokens before the one that failed have been appended. */
tg_status tg_token_writer_add(tg_token_writer *w, const int64_t *ids, int64_t n, bool context) {
    if (!w) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(w->ctx));
    if (n < 0 || (!ids && n))
        return tg_fail(w->ctx, TG_ERR_ARGUMENT, "tg_token_writer_add: ids is %p and n %lld, expected an array of n ids",
                       (const void *)ids, (long long)n);
    TG_TRY(check_ids(w, ids, n));
    for (int64_t i = 0; i < n; i++) TG_TRY(put_id(w, ids[i], context));
    return TG_OK;
}

tg_status tg_token_writer_end_document(tg_token_writer *w) {
    if (!w) return TG_ERR_ARGUMENT;
    TG_TRY(tg_io_enter(w->ctx));
    if (w->open) w->sequences[w->n - 1].flags |= LAST;
    w->open = false;
    return TG_OK;
}

int64_t tg_token_writer_count(const tg_token_writer *w) { return w ? w->count : 0; }

/* ---- The index ---- */

/* Bytes of the index that wait to be written. */
typedef struct index_file {
    tg_writer file;
    unsigned char bytes[1 << 13];
    size_t used;
} index_file;

static tg_status put(index_file *f, const void *bytes, size_t n) {
    if (f->used + n > sizeof f->bytes) {
        TG_TRY(tg_writer_put(&f->file, f->bytes, f->used));
        f->used = 0;
    }
    memcpy(f->bytes + f->used, bytes, n);
    f->used += n;
    return TG_OK;
}

static tg_status put_header(index_file *f, const tg_token_writer *w) {
    static const uint8_t codes[] = {[1] = 1, [2] = 8, [4] = 4}; /* uint8, uint16, int32 */
    const uint64_t version = 1, n = (uint64_t)w->n;
    uint64_t entries = 1;
    for (int i = 0; i < w->n; i++) entries += (w->sequences[i].flags & LAST) != 0;
    TG_TRY(put(f, TG_MEGATRON_MAGIC, 9));
    TG_TRY(put(f, &version, 8));
    TG_TRY(put(f, &codes[w->width], 1));
    TG_TRY(put(f, &n, 8));
    return put(f, &entries, 8);
}

static tg_status put_tables(index_file *f, const tg_token_writer *w) {
    int64_t at = 0, entry = 0;
    for (int i = 0; i < w->n; i++) TG_TRY(put(f, &w->sequences[i].length, 4));
    for (int i = 0; i < w->n; at += (int64_t)w->sequences[i++].length * w->width) TG_TRY(put(f, &at, 8));
    TG_TRY(put(f, &entry, 8));
    for (int i = 0; i < w->n; i++)
        if (entry = i + 1, w->sequences[i].flags & LAST) TG_TRY(put(f, &entry, 8));
    for (int i = 0; w->has_context && i < w->n; i++) {
        uint8_t mode = w->sequences[i].flags & CONTEXT ? 1 : 0;
        TG_TRY(put(f, &mode, 1));
    }
    return tg_writer_put(&f->file, f->bytes, f->used);
}

/* Writes the index under a temporary name, then gives both files their names. */
static tg_status write_index(tg_token_writer *w, index_file *f) {
    TG_TRY(tg_writer_open(&f->file, w->ctx, w->index));
    tg_status s = put_header(f, w);
    if (s == TG_OK) s = put_tables(f, w);
    if (s == TG_OK) s = tg_writer_commit(&w->data);
    if (s == TG_OK) s = tg_writer_commit(&f->file);
    tg_writer_abandon(&f->file);
    return s;
}

static tg_status commit(tg_token_writer *w) {
    TG_TRY(tg_token_writer_end_document(w));
    if (!w->count)
        return tg_fail(w->ctx, TG_ERR_DATA, "tg_token_writer_commit: '%s' would have no tokens", w->data.path);
    TG_TRY(flush(w));
    index_file *f = tg_host_alloc(w->ctx, sizeof *f);
    if (!f) return tg_io_enter(w->ctx);
    tg_status s = write_index(w, f);
    tg_host_free(w->ctx, f, sizeof *f);
    return s;
}

tg_status tg_token_writer_commit(tg_token_writer *w) {
    if (!w) return TG_ERR_ARGUMENT;
    tg_status s = commit(w);
    tg_token_writer_abandon(w);
    return s;
}

void tg_token_writer_abandon(tg_token_writer *w) {
    if (!w) return;
    tg_writer_abandon(&w->data);
    tg_host_strfree(w->ctx, w->index);
    tg_host_free(w->ctx, w->sequences, (size_t)w->capacity * sizeof(sequence));
    tg_host_free(w->ctx, w, sizeof *w);
}
