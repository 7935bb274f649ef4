/* Reads a part of a tensor from a safetensors file. Only the bytes of the part are read. They are collected in a
 * temporary tensor first, so that an error leaves the destination as it was. */
#include "base/memory/host_memory.h"
#include "io/safetensors.h"
#include "kernels/scalar.h"

typedef struct part_reader {
    tg_safetensors *f;
    const tg_safetensors_entry *e;
    const tg_tensor *x; /* the destination */
    const tg_safetensors_part *part;
    int split;        /* the last dim in which x is smaller than the whole tensor; -1 if x is the whole tensor */
    int64_t stride;   /* bytes in the file for each index of dim split */
    tg_tensor *stage; /* the bytes read so far: x's shape, row-major, in the dtype of the file */
    char *buffer;     /* host memory; NULL if the stage is host memory, into which the file is read directly */
    size_t at;        /* number of bytes of the stage that are complete */
    size_t held;      /* number of bytes read after them, in the buffer or, without one, in the stage */
    tg_summing sum;
} part_reader;

/* Copies the held bytes from the buffer, if there is one, to the stage, and counts them as complete. */
static tg_status flush(part_reader *r) {
    tg_ctx *ctx = r->f->file.ctx;
    char *to = (char *)tg_data(r->stage) + r->at;
    size_t n = r->held;
    r->at += n;
    r->held = 0;
    return r->buffer && n ? ctx->run.ops->copy(ctx, to, r->buffer, n, TG_COPY_FROM_HOST) : TG_OK;
}

/* Reads bytes that are adjacent in the file, and appends them to the stage. */
static tg_status read_run(part_reader *r, int64_t offset, int64_t bytes) {
    while (bytes > 0) {
        int64_t most = (int64_t)(TG_IO_CHUNK - r->held), n = bytes < most ? bytes : most;
        char *to = r->buffer ? r->buffer : (char *)tg_data(r->stage) + r->at;
        TG_TRY(tg_safetensors_read_bytes(r->f, r->e, offset, to + r->held, (size_t)n, &r->sum));
        r->held += (size_t)n;
        offset += n;
        bytes -= n;
        if (r->held == TG_IO_CHUNK) TG_TRY(flush(r));
    }
    return TG_OK;
}

/* Reads the part's elements for all indices of dim d. The indices of the dims before d are fixed: `outer` is their
 * position in the row-major order of the whole tensor. */
static tg_status read_dim(part_reader *r, int d, int64_t outer) {
    for (int64_t i = 0, run; i < r->x->shape[d]; i += run) {
        int64_t first = outer * r->part->whole.dim[d] + r->part->index(r->x, d, r->part->at, i, &run);
        if (d == r->split) TG_TRY(read_run(r, r->e->begin + first * r->stride, run * r->stride));
        for (int64_t k = 0; k < run && d < r->split; k++) TG_TRY(read_dim(r, d + 1, first + k));
    }
    return TG_OK;
}

/* Reads the part into the stage. Compares the checksum if the part is the whole tensor. */
static tg_status read_runs(part_reader *r) {
    const int64_t *whole = r->part->whole.dim;
    r->stride = (int64_t)tg_dtype_size(r->e->dtype);
    r->split = r->x->ndim - 1;
    while (r->split >= 0 && r->x->shape[r->split] == whole[r->split]) r->stride *= whole[r->split--];
    r->sum = tg_summing_begin();
    TG_TRY(r->split < 0 ? read_run(r, r->e->begin, r->stride) : read_dim(r, 0, 0));
    TG_TRY(flush(r));
    return r->split < 0 ? tg_safetensors_check_sum(r->f, r->e, &r->sum) : TG_OK;
}

/* Reads the part into the stage, and then copies it to dst. */
static tg_status fill(part_reader *r, tg_tensor *dst, const char *who, const void *site) {
    const double none[2] = {0, 0};
    tg_ctx *ctx = dst->ctx;
    if (dst->numel) TG_TRY(read_runs(r));
    tg_tensor_wrote(dst, who, site);
    tg_array from = tg_array_of(r->stage);
    return dst->numel ? ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(dst), &from, 1, none, false) : TG_OK;
}

tg_status tg_safetensors_fill_part(tg_safetensors *f, const char *name, tg_tensor *dst, const tg_safetensors_part *part,
                                   bool convert, const char *who, const void *site) {
    tg_ctx *ctx = f->file.ctx;
    const tg_safetensors_entry *e = tg_safetensors_require(&f, name, who);
    if (!e) return tg_io_enter(ctx);
    TG_TRY(tg_safetensors_check_destination(f, e, dst, &part->whole, convert, who));
    if (ctx->meta) return TG_OK;
    TG_TRY(tg_storage_may_change(dst));
    part_reader r = {.f = f, .e = e, .x = dst, .part = part};
    r.stage = tg_temp_empty(ctx, e->dtype, dst->ndim, dst->shape, TG_MEM_TEMPORARY);
    if (!r.stage) return tg_io_enter(ctx);
    r.buffer = ctx->host ? NULL : tg_host_alloc(ctx, TG_IO_CHUNK);
    tg_status s = ctx->host || r.buffer ? fill(&r, dst, who, site) : tg_io_enter(ctx);
    tg_host_free(ctx, r.buffer, TG_IO_CHUNK);
    tg_temp_free(r.stage);
    return s;
}
