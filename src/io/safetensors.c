/* Opens safetensors files, lists their tensors, and reads them. */
#include "io/safetensors.h"
#include "base/memory/host_memory.h"
#include "core/memory/mapping.h"
#include "core/work.h"
#include "kernels/scalar.h"

/* ---- Open ---- */

/* Reads the length of the header and then the header. */
static tg_status read_header(tg_safetensors *f) {
    tg_ctx *ctx = f->file.ctx;
    uint64_t n = 0;
    if (f->file.size < TG_SAFETENSORS_PREFIX)
        return tg_fail(ctx, TG_ERR_FORMAT,
                       "'%s' has %s, expected a safetensors file: 8 bytes of length, then the header", f->file.path,
                       tg_count(f->file.size, "byte").text);
    TG_TRY(tg_file_read(&f->file, 0, &n, sizeof n));
    if (n > TG_SAFETENSORS_HEADER_MAX)
        return tg_fail(ctx, TG_ERR_FORMAT, "'%s', offset 0: a header of %llu bytes, expected at most %d", f->file.path,
                       (unsigned long long)n, TG_SAFETENSORS_HEADER_MAX);
    if (n > (uint64_t)f->file.size - TG_SAFETENSORS_PREFIX)
        return tg_fail(ctx, TG_ERR_FORMAT, "'%s', offset 0: a header of %llu bytes, but only %lld follow", f->file.path,
                       (unsigned long long)n, (long long)f->file.size - TG_SAFETENSORS_PREFIX);
    char *header = tg_host_alloc(ctx, (size_t)n + 1);
    if (!header) return tg_io_enter(ctx);
    tg_status s = tg_file_read(&f->file, TG_SAFETENSORS_PREFIX, header, (size_t)n);
    if (s == TG_OK) s = tg_safetensors_parse(f, header, (size_t)n);
    tg_host_free(ctx, header, (size_t)n + 1);
    return s;
}

tg_safetensors *tg_safetensors_open_file(tg_ctx *ctx, const char *path) {
    tg_safetensors *f = tg_host_alloc(ctx, sizeof *f);
    if (!f) return NULL;
    f->file.ctx = ctx;
    if (tg_file_open(&f->file, ctx, path) == TG_OK && read_header(f) == TG_OK) return f;
    tg_safetensors_close(f);
    return NULL;
}

tg_safetensors *tg_safetensors_open(tg_ctx *ctx, const char *path) {
    if (tg_io_enter(ctx) != TG_OK) return NULL;
    if (!path) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_safetensors_open: path is NULL");
        return NULL;
    }
    return tg_safetensors_is_index(path) ? tg_safetensors_open_index(ctx, path) : tg_safetensors_open_file(ctx, path);
}

void tg_safetensors_close(tg_safetensors *f) {
    if (!f) return;
    tg_ctx *ctx = f->file.ctx;
    for (int i = 0; i < f->n_files; i++) tg_safetensors_close(f->files[i]);
    tg_host_free(ctx, f->files, TG_SAFETENSORS_FILES * sizeof *f->files);
    tg_host_free(ctx, f->file_of, (size_t)f->count * sizeof *f->file_of + 1);
    tg_host_free(ctx, f->entries, (size_t)f->count * sizeof *f->entries + 1);
    tg_host_free(ctx, f->metadata, (size_t)f->n_metadata * sizeof *f->metadata + 1);
    tg_host_free(ctx, f->by_name, (size_t)f->count * sizeof *f->by_name + 1);
    tg_host_free(ctx, f->by_key, (size_t)f->n_metadata * sizeof *f->by_key + 1);
    tg_host_free(ctx, f->text, f->text_bytes);
    if (f->mapping) tg_mapping_unref(f->mapping);
    tg_file_close(&f->file);
    tg_host_free(ctx, f, sizeof *f);
}

/* ---- List ---- */

int tg_safetensors_count(const tg_safetensors *f) {
    return f ? f->count : 0;
}

const tg_safetensors_entry *tg_safetensors_at(const tg_safetensors *f, int i) {
    return f && i >= 0 && i < f->count ? &f->entries[i] : NULL;
}

const tg_safetensors_entry *tg_safetensors_find(const tg_safetensors *f, const char *name) {
    return f && name ? tg_find_name(f->by_name, f->count, name) : NULL;
}

int tg_safetensors_metadata_count(const tg_safetensors *f) {
    return f ? f->n_metadata : 0;
}

const tg_metadata *tg_safetensors_metadata_at(const tg_safetensors *f, int i) {
    return f && i >= 0 && i < f->n_metadata ? &f->metadata[i] : NULL;
}

const char *tg_safetensors_metadata(const tg_safetensors *f, const char *key) {
    const tg_metadata *m = f && key ? tg_find_name(f->by_key, f->n_metadata, key) : NULL;
    return m ? m->value : NULL;
}

/* ---- Read ---- */

/* Fails if a byte is neither 0 nor 1. In memory such a bool would equal neither true nor false. */
static tg_status check_bools(const tg_safetensors *f, const tg_safetensors_entry *e, int64_t offset, const uint8_t *v,
                             size_t n) {
    for (size_t i = 0; i < n; i++)
        if (v[i] > 1)
            return tg_fail(f->file.ctx, TG_ERR_DATA,
                           "'%s': tensor '%.128s' (BOOL) holds the byte %d at offset %lld, expected 0 or 1",
                           f->file.path, e->name, v[i], (long long)(offset + (int64_t)i));
    return TG_OK;
}

tg_status tg_safetensors_check_sum(const tg_safetensors *f, const tg_safetensors_entry *e, const tg_summing *sum) {
    char digits[TG_CHECKSUM_DIGITS];
    if (!f->sums) return TG_OK;
    const char *expected = f->sums + (e - f->entries) * TG_CHECKSUM_DIGITS;
    tg_checksum_text(tg_summing_end(sum), digits);
    if (memcmp(digits, expected, sizeof digits) == 0) return TG_OK;
    return tg_fail(f->file.ctx, TG_ERR_DATA,
                   "'%s': tensor '%.128s': the checksum of its bytes is %.16s, expected %.16s: the file is damaged",
                   f->file.path, e->name, digits, expected);
}

tg_status tg_safetensors_read_bytes(tg_safetensors *f, const tg_safetensors_entry *e, int64_t offset, void *to,
                                    size_t bytes, tg_summing *sum) {
    TG_TRY(tg_file_read(&f->file, offset, to, bytes));
    tg_summing_add(sum, to, bytes);
    return e->dtype == TG_BOOL ? check_bools(f, e, offset, to, bytes) : TG_OK;
}

/* Reads the bytes at offset into the contiguous tensor x. chunk is a host buffer, needed if the host cannot write
 * x's memory. */
static tg_status fill_rows(tg_safetensors *f, const tg_safetensors_entry *e, int64_t offset, tg_tensor *x, void *chunk,
                           tg_summing *sum) {
    tg_ctx *ctx = f->file.ctx;
    size_t bytes = (size_t)x->numel * tg_dtype_size(x->dtype);
    void *to = ctx->host ? tg_data(x) : chunk;
    TG_TRY(tg_safetensors_read_bytes(f, e, offset, to, bytes, sum));
    return ctx->host ? TG_OK : ctx->run.ops->copy(ctx, tg_data(x), chunk, bytes, TG_COPY_FROM_HOST);
}

/* Reads the bytes at offset into x, a piece of the destination. If x is not contiguous, or has another dtype than the
 * file, the bytes go to a contiguous temporary tensor first. */
static tg_status fill_piece(tg_safetensors *f, const tg_safetensors_entry *e, int64_t offset, tg_tensor *x, void *chunk,
                            tg_summing *sum) {
    tg_ctx *ctx = f->file.ctx;
    if (x->dtype == e->dtype && x->flags & TG_F_CONTIGUOUS) return fill_rows(f, e, offset, x, chunk, sum);
    tg_tensor *stage = tg_temp_empty(ctx, e->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
    if (!stage) return tg_io_enter(ctx);
    const double none[2] = {0, 0};
    tg_array from = tg_array_of(stage);
    tg_status s = fill_rows(f, e, offset, stage, chunk, sum);
    if (s == TG_OK) s = ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(x), &from, 1, none, false);
    tg_temp_free(stage);
    return s;
}

/* Reads all of tensor e into dst, piece by piece, and compares the checksum. */
static tg_status fill(tg_safetensors *f, const tg_safetensors_entry *e, tg_tensor *dst, void *chunk) {
    tg_pieces p;
    tg_pieces_begin(&p, dst);
    tg_summing sum = tg_summing_begin();
    int64_t offset = e->begin;
    for (tg_tensor *x; (x = tg_pieces_next(&p));) {
        tg_status s = fill_piece(f, e, offset, x, chunk, &sum);
        offset += x->numel * (int64_t)tg_dtype_size(e->dtype);
        tg_temp_free(x);
        TG_TRY(s);
    }
    TG_TRY(tg_io_enter(f->file.ctx));
    return tg_safetensors_check_sum(f, e, &sum);
}

static tg_status check_shape(tg_safetensors *f, const tg_safetensors_entry *e, const tg_shape *dst) {
    char has[160], wants[160];
    if (e->shape.ndim == dst->ndim && memcmp(e->shape.dim, dst->dim, (size_t)dst->ndim * sizeof *dst->dim) == 0)
        return TG_OK;
    tg_shape_text((int)e->shape.ndim, e->shape.dim, has, sizeof has);
    tg_shape_text((int)dst->ndim, dst->dim, wants, sizeof wants);
    return tg_fail(f->file.ctx, TG_ERR_SHAPE, "'%s': tensor '%.128s' is %s, expected %s", f->file.path, e->name, has,
                   wants);
}

static tg_status check_fit(tg_safetensors *f, const tg_safetensors_entry *e, const tg_shape *shape, tg_dtype dtype,
                           bool convert) {
    TG_TRY(check_shape(f, e, shape));
    if (e->dtype == dtype || (convert && tg_is_real(e->dtype) && tg_is_real(dtype))) return TG_OK;
    return tg_fail(f->file.ctx, TG_ERR_DTYPE, "'%s': tensor '%.128s' is %s, expected %s%s", f->file.path, e->name,
                   e->dtype_name, tg_dtype_name(dtype), convert ? "; only floats and float8 are converted" : "");
}

tg_status tg_safetensors_check_destination(tg_safetensors *f, const tg_safetensors_entry *e, const tg_tensor *dst,
                                           const tg_shape *whole, bool convert, const char *who) {
    TG_TRY(check_fit(f, e, whole, (tg_dtype)dst->dtype, convert));
    TG_TRY(tg_refuse_shared_elements(dst, who));
    return tg_storage_check_write(dst->storage, who);
}

static tg_status read_entry(tg_safetensors *f, const tg_safetensors_entry *e, tg_tensor *dst, bool convert,
                            const void *site) {
    tg_ctx *ctx = f->file.ctx;
    const tg_shape shape = tg_shape_make(dst->ndim, dst->shape);
    TG_TRY(tg_safetensors_check_destination(f, e, dst, &shape, convert, "tg_safetensors_read"));
    if (ctx->meta) return TG_OK;
    TG_TRY(tg_storage_may_change(dst));
    tg_tensor_wrote(dst, "tg_safetensors_read", site);
    void *chunk = ctx->host ? NULL : tg_host_alloc(ctx, TG_IO_CHUNK);
    tg_status s = ctx->host || chunk ? fill(f, e, dst, chunk) : tg_io_enter(ctx);
    tg_host_free(ctx, chunk, TG_IO_CHUNK);
    return s;
}

/* Returns e if *f is a file. If *f is an index, replaces it by the file that has the tensor, and returns the entry of
 * that file. */
static const tg_safetensors_entry *in_its_file(tg_safetensors **f, const tg_safetensors_entry *e) {
    const tg_safetensors *index = *f;
    if (!index->files) return e;
    *f = index->files[index->file_of[e - index->entries]];
    return tg_safetensors_find(*f, e->name);
}

const tg_safetensors_entry *tg_safetensors_require(tg_safetensors **at, const char *name, const char *who) {
    const tg_safetensors *f = *at;
    const tg_safetensors_entry *e = tg_safetensors_find(f, name);
    if (!name)
        tg_fail(f->file.ctx, TG_ERR_ARGUMENT, "%s: name is NULL", who);
    else if (!e)
        tg_fail(f->file.ctx, TG_ERR_DATA, "'%s' has no tensor '%.128s'", f->file.path, name);
    else if (!tg_is_stored(e->dtype))
        tg_fail(f->file.ctx, TG_ERR_UNSUPPORTED, "'%s': tensor '%.128s' is %s, which cannot be read", f->file.path,
                name, e->dtype_name);
    else
        return in_its_file(at, e);
    return NULL;
}

tg_status tg_safetensors_expect(tg_safetensors *f, const char *name, const tg_shape *shape, tg_dtype dtype,
                                bool convert) {
    const tg_safetensors_entry *e = tg_safetensors_require(&f, name, "tg_safetensors_read");
    return e ? check_fit(f, e, shape, dtype, convert) : tg_io_enter(f->file.ctx);
}

/* Reads a tensor only to compare its checksum, if its file has checksums. */
static tg_status verify_entry(tg_safetensors *f, const tg_safetensors_entry *e, void *chunk) {
    tg_summing sum = tg_summing_begin();
    e = in_its_file(&f, e);
    if (!f->sums) return TG_OK;
    for (int64_t at = e->begin; at < e->stop; at += TG_IO_CHUNK) {
        size_t n = e->stop - at < TG_IO_CHUNK ? (size_t)(e->stop - at) : TG_IO_CHUNK;
        TG_TRY(tg_file_read(&f->file, at, chunk, n));
        tg_summing_add(&sum, chunk, n);
    }
    return tg_safetensors_check_sum(f, e, &sum);
}

tg_status tg_safetensors_verify(tg_safetensors *f, int first, int stride) {
    tg_ctx *ctx = f->file.ctx;
    if ((!f->sums && !f->files) || ctx->meta) return TG_OK;
    void *chunk = tg_host_alloc(ctx, TG_IO_CHUNK);
    tg_status s = tg_io_enter(ctx);
    for (int i = first; i < f->count && s == TG_OK; i += stride) s = verify_entry(f, &f->entries[i], chunk);
    tg_host_free(ctx, chunk, TG_IO_CHUNK);
    return s;
}

tg_status tg_safetensors_fill(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert, const void *site) {
    if (!f) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = f->file.ctx;
    TG_TRY(tg_io_enter(ctx));
    const tg_safetensors_entry *e = tg_safetensors_require(&f, name, "tg_safetensors_read");
    if (!e) return tg_io_enter(ctx);
    TG_TRY(tg_check(ctx, dst, "tg_safetensors_read"));
    return read_entry(f, e, dst, convert, site);
}

tg_status tg_safetensors_read(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert) {
    TG_TRY(tg_safetensors_fill(f, name, dst, convert, TG_SITE));
    tg_tensor_given(dst);
    return TG_OK;
}

tg_tensor *tg_safetensors_load(tg_safetensors *f, const char *name) {
    if (!f) return tg_inert(&tg_dead_ctx);
    tg_ctx *ctx = f->file.ctx;
    if (tg_io_enter(ctx) != TG_OK) return tg_inert(ctx);
    const tg_safetensors_entry *e = tg_safetensors_require(&f, name, "tg_safetensors_load");
    if (!e || tg_shape_check(ctx, &e->shape, e->dtype, "tg_safetensors_load") != TG_OK) return tg_inert(ctx);
    tg_tensor *x = tg_owned_empty(ctx, e->dtype, (int)e->shape.ndim, e->shape.dim, TG_MEM_TEMPORARY);
    if (x) tg_tensor_given(x); /* x may differ from rank to rank, as the files may */
    if (x && read_entry(f, e, x, false, TG_SITE) == TG_OK) return x;
    if (x) tg_owned_free(x);
    return tg_inert(ctx);
}
