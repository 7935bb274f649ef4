/* Writes safetensors files. The header is formatted twice, first to learn its length. Space for it is left at the
 * start of the file. The data are written after that space, in pieces. The header with the checksums is written
 * last. */
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "core/memory/mapping.h"
#include "io/safetensors.h"
#include "kernels/scalar.h"

/* Arguments of one call. */
typedef struct job {
    tg_ctx *ctx;
    const char *path;
    const tg_named_tensor *tensors;
    const tg_metadata *metadata;
    int n_tensors, n_metadata;
    bool later; /* tensors arrive one at a time; `tensors` gives only names, dtypes and shapes */
} job;

/* ---- Checks ---- */

/* Fails unless s is a UTF-8 string. The message names s as `what` number i. */
static tg_status check_string(const job *j, const char *s, const char *what, int i) {
    if (!s) return tg_fail(j->ctx, TG_ERR_ARGUMENT, "tg_safetensors_save: %s %d is NULL", what, i);
    size_t n = strlen(s), bad = tg_utf8_check(s, n);
    if (bad == n) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_ARGUMENT, "tg_safetensors_save: %s %d is not UTF-8 from its byte %zu", what, i, bad);
}

static tg_status check_metadata(const job *j, int i) {
    const char *key = j->metadata[i].key;
    TG_TRY(check_string(j, key, "the key of metadata", i));
    TG_TRY(check_string(j, j->metadata[i].value, "the value of metadata", i));
    if (strcmp(key, TG_SAFETENSORS_SUMS) != 0 && strcmp(key, TG_SAFETENSORS_SUM) != 0) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_ARGUMENT, "tg_safetensors_save: the metadata key '%s' is reserved for checksums",
                   key);
}

static tg_status check_tensor(const job *j, int i) {
    const tg_named_tensor *t = &j->tensors[i];
    TG_TRY(check_string(j, t->name, "the name of tensor", i));
    if (strcmp(t->name, "__metadata__") == 0)
        return tg_fail(j->ctx, TG_ERR_ARGUMENT, "tg_safetensors_save: the format reserves the name '__metadata__'");
    if (!j->later && (tg_check(j->ctx, t->tensor, "tg_safetensors_save") != TG_OK ||
                      tg_refuse_partial(t->tensor, "tg_safetensors_save") != TG_OK))
        return tg_fail_note(j->ctx, " (tensor '%.128s')", t->name);
    if (!tg_safetensors_dtype_of(t->tensor->dtype))
        return tg_fail(j->ctx, TG_ERR_DTYPE,
                       "tg_safetensors_save: tensor '%.128s' is %s, for which the format has no name", t->name,
                       tg_dtype_name(t->tensor->dtype));
    return j->later ? TG_OK : tg_storage_need(t->tensor->storage, t->tensor);
}

static tg_status check_unique(const job *j, const void *items, int n, size_t size, const char *what) {
    size_t bytes = (size_t)n * sizeof(void *) + 1;
    const void **index = tg_host_alloc(j->ctx, bytes);
    if (!index) return tg_io_enter(j->ctx);
    const char *twice = tg_index_names(items, n, size, index);
    tg_host_free(j->ctx, index, bytes);
    return twice ? tg_fail(j->ctx, TG_ERR_ARGUMENT, "tg_safetensors_save: the %s '%.128s' is given twice", what, twice)
                 : TG_OK;
}

static tg_status check(const job *j) {
    if (!j->path || j->n_tensors < 0 || j->n_metadata < 0 || (!j->tensors && j->n_tensors) ||
        (!j->metadata && j->n_metadata))
        return tg_fail(j->ctx, TG_ERR_ARGUMENT,
                       "tg_safetensors_save: path %s, %s%s, %d metadata%s; expected counts of 0 or more and no NULL",
                       j->path ? j->path : "NULL", tg_count(j->n_tensors, "tensor").text, j->tensors ? "" : " at NULL",
                       j->n_metadata, j->metadata ? "" : " at NULL");
    if (j->ctx->meta)
        return tg_fail(j->ctx, TG_ERR_DEVICE, "tg_safetensors_save: tensors of device \"meta\" have no bytes");
    for (int i = 0; i < j->n_tensors; i++) TG_TRY(check_tensor(j, i));
    for (int i = 0; i < j->n_metadata; i++) TG_TRY(check_metadata(j, i));
    TG_TRY(check_unique(j, j->tensors, j->n_tensors, sizeof *j->tensors, "name"));
    return check_unique(j, j->metadata, j->n_metadata, sizeof *j->metadata, "metadata key");
}

/* ---- Header ---- */

/* The header while it is formatted: n bytes of buf, of which `at` are used. If buf is NULL, bytes are only counted. */
typedef struct text {
    char *buf;
    size_t n, at;
    size_t sums, sum; /* offsets of the checksums */
} text;

static void put_string(text *t, const char *s) {
    tg_text(t->buf, t->n, &t->at, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20)
            tg_text(t->buf, t->n, &t->at, "\\u%04x", c);
        else
            tg_text(t->buf, t->n, &t->at, c == '"' || c == '\\' ? "\\%c" : "%c", c);
    }
    tg_text(t->buf, t->n, &t->at, "\"");
}

/* Writes zeros for n checksums and returns their offset. */
static size_t put_sums(text *t, const char *key, int n) {
    tg_text(t->buf, t->n, &t->at, "\"%s\":\"", key);
    size_t at = t->at;
    for (int i = 0; i < n; i++) tg_text(t->buf, t->n, &t->at, "%0*d", TG_CHECKSUM_DIGITS, 0);
    tg_text(t->buf, t->n, &t->at, "\"");
    return at;
}

static void put_metadata(text *t, const job *j) {
    tg_text(t->buf, t->n, &t->at, "\"__metadata__\":{");
    for (int i = 0; i < j->n_metadata; i++) {
        put_string(t, j->metadata[i].key);
        tg_text(t->buf, t->n, &t->at, ":");
        put_string(t, j->metadata[i].value);
        tg_text(t->buf, t->n, &t->at, ",");
    }
    t->sums = put_sums(t, TG_SAFETENSORS_SUMS, j->n_tensors);
    tg_text(t->buf, t->n, &t->at, ",");
    t->sum = put_sums(t, TG_SAFETENSORS_SUM, 1);
    tg_text(t->buf, t->n, &t->at, "}%s", j->n_tensors > 0 ? "," : "");
}

/* Writes the description of a tensor whose data begin at offset `begin`. Returns the offset at which they end. */
static int64_t put_tensor(text *t, const tg_named_tensor *named, int64_t begin) {
    const tg_tensor *x = named->tensor;
    int64_t end = begin + x->numel * (int64_t)tg_dtype_size(x->dtype);
    put_string(t, named->name);
    tg_text(t->buf, t->n, &t->at, ":{\"dtype\":\"%s\",\"shape\":[", tg_safetensors_dtype_of(x->dtype)->name);
    for (int i = 0; i < x->ndim; i++) tg_text(t->buf, t->n, &t->at, "%s%lld", i > 0 ? "," : "", (long long)x->shape[i]);
    tg_text(t->buf, t->n, &t->at, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)end);
    return end;
}

/* Formats the header, padded with spaces so that the data begin at a multiple of 8. */
static text format_header(const job *j, char *buf, size_t n) {
    text t = {buf, n, 0, 0, 0};
    int64_t at = 0;
    tg_text(t.buf, t.n, &t.at, "{");
    put_metadata(&t, j);
    for (int i = 0; i < j->n_tensors; i++) {
        if (i > 0) tg_text(t.buf, t.n, &t.at, ",");
        at = put_tensor(&t, &j->tensors[i], at);
    }
    tg_text(t.buf, t.n, &t.at, "}");
    while (t.at % 8 != 0) tg_text(t.buf, t.n, &t.at, " ");
    return t;
}

/* Creates the header in memory, with zeros as checksums, and sets the offset at which the data begin. */
static tg_status make_header(const job *j, tg_safetensors_writer *w) {
    uint64_t n = format_header(j, NULL, 0).at;
    if (n > TG_SAFETENSORS_HEADER_MAX)
        return tg_fail(j->ctx, TG_ERR_ARGUMENT, "tg_safetensors_save: the header would have %s, the format allows %d",
                       tg_count(n, "byte").text, TG_SAFETENSORS_HEADER_MAX);
    w->bytes = TG_SAFETENSORS_PREFIX + (size_t)n;
    w->header = tg_host_alloc(j->ctx, w->bytes + 1);
    if (!w->header) return tg_io_enter(j->ctx);
    memcpy(w->header, &n, sizeof n);
    text t = format_header(j, w->header + TG_SAFETENSORS_PREFIX, (size_t)n + 1);
    w->sums = TG_SAFETENSORS_PREFIX + t.sums;
    w->sum = TG_SAFETENSORS_PREFIX + t.sum;
    w->count = j->n_tensors;
    w->file.offset = (int64_t)w->bytes;
    return TG_OK;
}

/* ---- Data ---- */

/* Writes the contiguous tensor x. chunk is a host buffer, needed if the host cannot read x's memory. */
static tg_status put_rows(tg_writer *w, tg_tensor *x, void *chunk, tg_summing *sum) {
    tg_ctx *ctx = w->ctx;
    size_t bytes = (size_t)x->numel * tg_dtype_size(x->dtype);
    if (!ctx->host) TG_TRY(ctx->run.ops->copy(ctx, chunk, tg_data(x), bytes, TG_COPY_TO_HOST));
    const void *from = ctx->host ? tg_data(x) : chunk;
    tg_summing_add(sum, from, bytes);
    return tg_writer_put(w, from, bytes);
}

/* Writes a piece. If it is not contiguous, it is copied to a contiguous temporary tensor first. */
static tg_status put_piece(tg_writer *w, tg_tensor *x, void *chunk, tg_summing *sum) {
    if (x->flags & TG_F_CONTIGUOUS) return put_rows(w, x, chunk, sum);
    tg_tensor *stage = tg_temp_empty(w->ctx, x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
    if (!stage) return tg_io_enter(w->ctx);
    const double none[2] = {0, 0};
    tg_array from = tg_array_of(x);
    tg_status s = w->ctx->run.ops->apply(w->ctx, TG_FN_id, tg_array_of(stage), &from, 1, none, false);
    if (s == TG_OK) s = put_rows(w, stage, chunk, sum);
    tg_temp_free(stage);
    return s;
}

/* Writes all pieces of the next tensor, and puts its checksum into the header. */
static tg_status put_data(tg_safetensors_writer *w, tg_tensor *tensor, void *chunk) {
    tg_pieces p;
    tg_pieces_begin(&p, tensor);
    tg_summing sum = tg_summing_begin();
    for (tg_tensor *x; (x = tg_pieces_next(&p));) {
        tg_status s = put_piece(&w->file, x, chunk, &sum);
        tg_temp_free(x);
        TG_TRY(s);
    }
    TG_TRY(tg_io_enter(w->ctx));
    tg_checksum_text(tg_summing_end(&sum), w->header + w->sums + (size_t)w->next++ * TG_CHECKSUM_DIGITS);
    return TG_OK;
}

tg_status tg_safetensors_put(tg_safetensors_writer *w, tg_tensor *x) {
    tg_ctx *ctx = w->ctx;
    if (w->next == w->count)
        return tg_fail(ctx, TG_ERR_INTERNAL, "tg_safetensors_put: '%s' has only %d tensors", w->file.path, w->count);
    void *chunk = ctx->host ? NULL : tg_host_alloc(ctx, TG_IO_CHUNK);
    tg_status s = tg_io_enter(ctx);
    if (s == TG_OK) s = tg_storage_need(x->storage, x);
    if (s == TG_OK) s = put_data(w, x, chunk);
    tg_host_free(ctx, chunk, TG_IO_CHUNK);
    return s;
}

/* ---- The writer ---- */

static tg_status begin(tg_safetensors_writer *w, const job *j) {
    *w = (tg_safetensors_writer){.file = {.fd = -1}};
    TG_TRY(check(j));
    w->ctx = j->ctx;
    tg_status s = tg_writer_open(&w->file, j->ctx, j->path);
    if (s == TG_OK) s = make_header(j, w);
    if (s != TG_OK) tg_safetensors_abandon(w);
    return s;
}

tg_status tg_safetensors_begin(tg_safetensors_writer *w, tg_ctx *ctx, const char *path, const tg_named_tensor *tensors,
                               int n_tensors, const tg_metadata *metadata, int n_metadata) {
    const job j = {ctx, path, tensors, metadata, n_tensors, n_metadata, true};
    return begin(w, &j);
}

/* Completes the header's checksum and writes the header. Fails if some of the data came from a mapped file that has
 * lost its bytes: what was written for them are zeros. */
static tg_status seal(tg_safetensors_writer *w) {
    tg_ctx *ctx = w->ctx;
    if (w->next != w->count)
        return tg_fail(ctx, TG_ERR_INTERNAL, "tg_safetensors_commit: '%s' has %d of %d tensors", w->file.path, w->next,
                       w->count);
    TG_TRY(tg_mappings_check(ctx));
    tg_checksum_text(tg_checksum(w->header, w->bytes), w->header + w->sum);
    return tg_writer_put_at(&w->file, 0, w->header, w->bytes);
}

tg_status tg_safetensors_commit(tg_safetensors_writer *w, char sum[TG_CHECKSUM_DIGITS + 1]) {
    tg_status s = seal(w);
    if (s == TG_OK && sum) {
        memcpy(sum, w->header + w->sum, TG_CHECKSUM_DIGITS);
        sum[TG_CHECKSUM_DIGITS] = 0;
    }
    if (s == TG_OK) s = tg_writer_commit(&w->file);
    tg_safetensors_abandon(w);
    return s;
}

void tg_safetensors_abandon(tg_safetensors_writer *w) {
    tg_ctx *ctx = w->ctx;
    if (!ctx) return;
    tg_host_free(ctx, w->header, w->bytes + 1);
    tg_writer_abandon(&w->file);
    *w = (tg_safetensors_writer){.file = {.fd = -1}};
}

tg_status tg_safetensors_save(tg_ctx *ctx, const char *path, const tg_named_tensor *tensors, int n_tensors,
                              const tg_metadata *metadata, int n_metadata) {
    const job j = {ctx, path, tensors, metadata, n_tensors, n_metadata, false};
    tg_safetensors_writer w;
    TG_TRY(tg_io_enter(ctx));
    TG_TRY(begin(&w, &j));
    tg_status s = TG_OK;
    for (int i = 0; i < n_tensors && s == TG_OK; i++) s = tg_safetensors_put(&w, tensors[i].tensor);
    if (s == TG_OK) return tg_safetensors_commit(&w, NULL);
    tg_safetensors_abandon(&w);
    return s;
}
