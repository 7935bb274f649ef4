/* Writing safetensors files: the header is formatted twice, once to learn its length; the data follow in pieces. */
#include "io/safetensors.h"
#include "kernels/scalar.h"

/* The arguments of one call. */
typedef struct job {
    tg_ctx *ctx;
    const char *path;
    const tg_named_tensor *tensors;
    const tg_metadata *metadata;
    int n_tensors, n_metadata;
    bool later; /* the tensors' bytes come one at a time: these say only what they will be */
} job;

/* ---- Checks ---- */

static tg_status check_string(const job *j, const char *s, const char *what, int i) {
    if (!s) return tg_fail(j->ctx, TG_ERR_ARGUMENT, "tg_safetensors_save: %s %d is NULL", what, i);
    size_t n = strlen(s), bad = tg_utf8_check(s, n);
    if (bad == n) return TG_OK;
    return tg_fail(j->ctx, TG_ERR_ARGUMENT, "tg_safetensors_save: %s %d is not UTF-8 from its byte %zu", what, i, bad);
}

static tg_status check_tensor(const job *j, int i) {
    const tg_named_tensor *t = &j->tensors[i];
    TG_TRY(check_string(j, t->name, "the name of tensor", i));
    if (strcmp(t->name, "__metadata__") == 0)
        return tg_fail(j->ctx, TG_ERR_ARGUMENT,
                       "tg_safetensors_save: the format keeps the name '__metadata__' for itself");
    if (!j->later && tg_check(j->ctx, t->tensor, "tg_safetensors_save") != TG_OK)
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
                       "tg_safetensors_save: path %s, %d tensors%s, %d metadata%s; expected counts of 0 or "
                       "more and no NULL",
                       j->path ? j->path : "NULL", j->n_tensors, j->tensors ? "" : " at NULL", j->n_metadata,
                       j->metadata ? "" : " at NULL");
    if (j->ctx->meta)
        return tg_fail(j->ctx, TG_ERR_DEVICE, "tg_safetensors_save: tensors of device \"meta\" have no bytes");
    for (int i = 0; i < j->n_tensors; i++) TG_TRY(check_tensor(j, i));
    for (int i = 0; i < j->n_metadata; i++) {
        TG_TRY(check_string(j, j->metadata[i].key, "the key of metadata", i));
        TG_TRY(check_string(j, j->metadata[i].value, "the value of metadata", i));
    }
    TG_TRY(check_unique(j, j->tensors, j->n_tensors, sizeof *j->tensors, "name"));
    return check_unique(j, j->metadata, j->n_metadata, sizeof *j->metadata, "metadata key");
}

/* ---- Header ---- */

typedef struct text {
    char *buf;
    size_t n, at;
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

static void put_metadata(text *t, const job *j) {
    tg_text(t->buf, t->n, &t->at, "\"__metadata__\":{");
    for (int i = 0; i < j->n_metadata; i++) {
        if (i > 0) tg_text(t->buf, t->n, &t->at, ",");
        put_string(t, j->metadata[i].key);
        tg_text(t->buf, t->n, &t->at, ":");
        put_string(t, j->metadata[i].value);
    }
    tg_text(t->buf, t->n, &t->at, "}%s", j->n_tensors > 0 ? "," : "");
}

static int64_t put_tensor(text *t, const tg_named_tensor *named, int64_t begin) {
    const tg_tensor *x = named->tensor;
    int64_t end = begin + x->numel * (int64_t)tg_dtype_size(x->dtype);
    put_string(t, named->name);
    tg_text(t->buf, t->n, &t->at, ":{\"dtype\":\"%s\",\"shape\":[", tg_safetensors_dtype_of(x->dtype)->name);
    for (int i = 0; i < x->ndim; i++) tg_text(t->buf, t->n, &t->at, "%s%lld", i > 0 ? "," : "", (long long)x->shape[i]);
    tg_text(t->buf, t->n, &t->at, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)end);
    return end;
}

/* Padded with spaces, so that the data begin at a multiple of 8. */
static size_t format_header(const job *j, char *buf, size_t n) {
    text t = {buf, n, 0};
    int64_t at = 0;
    tg_text(t.buf, t.n, &t.at, "{");
    if (j->n_metadata > 0) put_metadata(&t, j);
    for (int i = 0; i < j->n_tensors; i++) {
        if (i > 0) tg_text(t.buf, t.n, &t.at, ",");
        at = put_tensor(&t, &j->tensors[i], at);
    }
    tg_text(t.buf, t.n, &t.at, "}");
    while (t.at % 8 != 0) tg_text(t.buf, t.n, &t.at, " ");
    return t.at;
}

static tg_status put_header(const job *j, tg_writer *w) {
    uint64_t n = format_header(j, NULL, 0);
    if (n > TG_SAFETENSORS_HEADER_MAX)
        return tg_fail(j->ctx, TG_ERR_ARGUMENT,
                       "tg_safetensors_save: the header would have %llu bytes, the format allows %d",
                       (unsigned long long)n, TG_SAFETENSORS_HEADER_MAX);
    char *buf = tg_host_alloc(j->ctx, (size_t)n + 1);
    if (!buf) return tg_io_enter(j->ctx);
    format_header(j, buf, (size_t)n + 1);
    tg_status s = tg_writer_put(w, &n, sizeof n);
    if (s == TG_OK) s = tg_writer_put(w, buf, (size_t)n);
    tg_host_free(j->ctx, buf, (size_t)n + 1);
    return s;
}

/* ---- Data ---- */

static tg_status put_rows(tg_writer *w, tg_tensor *x, void *chunk) {
    tg_ctx *ctx = w->ctx;
    size_t bytes = (size_t)x->numel * tg_dtype_size(x->dtype);
    if (ctx->host) return tg_writer_put(w, tg_data(x), bytes);
    TG_TRY(ctx->ops->copy(ctx, chunk, tg_data(x), bytes, TG_COPY_TO_HOST));
    return tg_writer_put(w, chunk, bytes);
}

static tg_status put_piece(tg_writer *w, tg_tensor *x, void *chunk) {
    if (x->flags & TG_F_CONTIGUOUS) return put_rows(w, x, chunk);
    tg_tensor *stage = tg_temp_empty(w->ctx, x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
    if (!stage) return tg_io_enter(w->ctx);
    const double none[2] = {0, 0};
    tg_array from = tg_array_of(x);
    tg_status s = w->ctx->ops->map(w->ctx, TG_FN_id, tg_array_of(stage), &from, 1, none, false);
    if (s == TG_OK) s = put_rows(w, stage, chunk);
    tg_temp_free(stage);
    return s;
}

static tg_status put_data(tg_writer *w, tg_tensor *tensor, void *chunk) {
    tg_pieces p;
    tg_pieces_begin(&p, tensor);
    for (tg_tensor *x; (x = tg_pieces_next(&p));) {
        tg_status s = put_piece(w, x, chunk);
        tg_temp_free(x);
        TG_TRY(s);
    }
    return tg_io_enter(w->ctx);
}

tg_status tg_safetensors_put(tg_writer *w, tg_tensor *x) {
    void *chunk = w->ctx->host ? NULL : tg_host_alloc(w->ctx, TG_IO_CHUNK);
    tg_status s = tg_io_enter(w->ctx);
    if (s == TG_OK) s = tg_storage_need(x->storage, x);
    if (s == TG_OK) s = put_data(w, x, chunk);
    tg_host_free(w->ctx, chunk, TG_IO_CHUNK);
    return s;
}

static tg_status put_all(const job *j, tg_writer *w) {
    TG_TRY(put_header(j, w));
    for (int i = 0; i < j->n_tensors; i++) TG_TRY(tg_safetensors_put(w, j->tensors[i].tensor));
    return TG_OK;
}

tg_status tg_safetensors_begin(tg_writer *w, tg_ctx *ctx, const char *path, const tg_named_tensor *tensors,
                               int n_tensors, const tg_metadata *metadata, int n_metadata) {
    job j = {ctx, path, tensors, metadata, n_tensors, n_metadata, true};
    TG_TRY(check(&j));
    TG_TRY(tg_writer_open(w, ctx, path));
    tg_status s = put_header(&j, w);
    if (s != TG_OK) tg_writer_abandon(w);
    return s;
}

tg_status tg_safetensors_save(tg_ctx *ctx, const char *path, const tg_named_tensor *tensors, int n_tensors,
                              const tg_metadata *metadata, int n_metadata) {
    job j = {ctx, path, tensors, metadata, n_tensors, n_metadata, false};
    TG_TRY(tg_io_enter(ctx));
    TG_TRY(check(&j));
    tg_writer w;
    TG_TRY(tg_writer_open(&w, ctx, path));
    tg_status s = put_all(&j, &w);
    if (s == TG_OK) return tg_writer_commit(&w);
    tg_writer_abandon(&w);
    return s;
}
