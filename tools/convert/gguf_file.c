/* Makes the part of a GGUF file before the bytes of its tensors (gguf_file.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/gguf_file.h"

/* ---- Bytes ---- */

static bool reserve(gguf_bytes *b, size_t n) {
    if (b->failed || b->n + n <= b->capacity) return !b->failed;
    size_t capacity = 2 * (b->n + n) + 1024;
    char *data = realloc(b->data, capacity);
    if (!data) return b->failed = true, false;
    b->data = data;
    b->capacity = capacity;
    return true;
}

void gguf_put(gguf_bytes *b, const void *data, size_t n) {
    if (!n || !reserve(b, n)) return;
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_u32(gguf_bytes *b, uint32_t v) { gguf_put(b, &v, sizeof v); }
static void put_u64(gguf_bytes *b, uint64_t v) { gguf_put(b, &v, sizeof v); }

void gguf_put_text(gguf_bytes *b, const char *text, size_t n) {
    put_u64(b, n);
    gguf_put(b, text, n);
}

void gguf_free(gguf_head *h) {
    free(h->values.data);
    free(h->tensors.data);
    *h = (gguf_head){0};
}

/* ---- Values ---- */

static void put_key(gguf_head *h, const char *key, gguf_type type) {
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s", *key == '.' ? h->prefix : "", key);
    gguf_put_text(&h->values, whole, strlen(whole));
    put_u32(&h->values, type);
    h->n_values++;
}

void gguf_u32(gguf_head *h, const char *key, int64_t value) {
    put_key(h, key, GGUF_U32);
    put_u32(&h->values, (uint32_t)value);
}

void gguf_f32(gguf_head *h, const char *key, double value) {
    float v = (float)value;
    put_key(h, key, GGUF_F32);
    gguf_put(&h->values, &v, sizeof v);
}

void gguf_bool(gguf_head *h, const char *key, bool value) {
    char v = value;
    put_key(h, key, GGUF_BOOL);
    gguf_put(&h->values, &v, 1);
}

void gguf_text(gguf_head *h, const char *key, const char *value) {
    put_key(h, key, GGUF_TEXT);
    gguf_put_text(&h->values, value, strlen(value));
}

void gguf_array(gguf_head *h, const char *key, gguf_type type, size_t n) {
    put_key(h, key, GGUF_ARRAY);
    put_u32(&h->values, type);
    put_u64(&h->values, n);
}

/* ---- Tensors ---- */

static uint64_t aligned(uint64_t n) { return (n + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT; }

void gguf_tensor(gguf_head *h, const char *name, gguf_dtype dtype, tg_shape shape) {
    uint64_t bytes = dtype == GGUF_TENSOR_F32 ? 4 : 2;
    gguf_put_text(&h->tensors, name, strlen(name));
    put_u32(&h->tensors, (uint32_t)shape.ndim);
    for (int64_t i = shape.ndim - 1; i >= 0; i--) {
        put_u64(&h->tensors, (uint64_t)shape.dim[i]);
        bytes *= (uint64_t)shape.dim[i];
    }
    put_u32(&h->tensors, dtype);
    put_u64(&h->tensors, h->offset);
    h->offset += aligned(bytes);
    h->n_tensors++;
}

/* ---- Writing ---- */

tg_status gguf_align(tg_writer *w) {
    static const char zeros[GGUF_ALIGNMENT];
    uint64_t at = (uint64_t)w->offset;
    return tg_writer_put(w, zeros, aligned(at) - at);
}

tg_status gguf_write_head(const gguf_head *h, tg_writer *w) {
    gguf_bytes first = {0};
    gguf_put(&first, "GGUF", 4);
    put_u32(&first, 3);
    put_u64(&first, h->n_tensors);
    put_u64(&first, h->n_values);
    tg_status s = TG_OK;
    if (first.failed || h->values.failed || h->tensors.failed)
        s = tg_ctx_fail(w->ctx, TG_ERR_MEMORY, "no memory for the header of '%s'", w->path);
    if (!s) s = tg_writer_put(w, first.data, first.n);
    if (!s) s = tg_writer_put(w, h->values.data, h->values.n);
    if (!s) s = tg_writer_put(w, h->tensors.data, h->tensors.n);
    free(first.data);
    return s ? s : gguf_align(w);
}
