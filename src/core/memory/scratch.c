/* Named scratch buffers (tg_lease): blocks of memory that the context keeps from one lease to the next. */
#include "core/memory/scratch.h"

#include <math.h>

#include "base/memory/device_memory.h"
#include "base/memory/host_memory.h"
#include "base/text.h"
#include "base/memory/tlsf.h"
#include "core/work.h"

tg_buffer *tg_buffer_new(tg_ctx *ctx, const char *name, tg_dtype dtype, int instance) {
    tg_buffer *b = tg_host_alloc(ctx, sizeof *b);
    if (!b) return NULL;
    *b = (tg_buffer){.next = ctx->buffers, .name = tg_host_strdup(ctx, name), .dtype = dtype, .instance = instance};
    if (b->name) return ctx->buffers = b;
    tg_host_free(ctx, b, sizeof *b);
    return NULL;
}

/* In check mode, fills the buffer with NaN, or with -1 if it holds integers, so that a read of values from an earlier
 * lease is noticed. */
static void poison(tg_ctx *ctx, tg_buffer *b) {
    b->dirty = false;
    if (!ctx->check || ctx->meta || !b->block) return;
    int64_t stride = 1, n = (int64_t)(tg_block_bytes(b->block) / tg_dtype_size(b->dtype));
    tg_array all = {.data = tg_block_data(b->block),
                    .shape = &n,
                    .stride = &stride,
                    .numel = n,
                    .ndim = 1,
                    .dtype = (uint8_t)b->dtype,
                    .contiguous = true};
    ctx->run.ops->fill(ctx, all, tg_is_float(b->dtype) ? (double)NAN : -1);
}

tg_status tg_buffer_reserve(tg_ctx *ctx, tg_buffer *b, size_t bytes) {
    if (b->block) TG_TRY(tg_works_wait_readers(ctx, b->block));
    if (b->block && tg_block_bytes(b->block) >= bytes) {
        if (b->dirty) poison(ctx, b);
        return TG_OK;
    }
    tg_heap_release(ctx->run.heap, b->block);
    /* The heap rounds sizes up to whole units, and a later lease may use all of them. So whole units are requested: a
     * memory checker allows access only to the requested bytes. */
    size_t whole = bytes < PTRDIFF_MAX ? (bytes + TG_UNIT - 1) / TG_UNIT * TG_UNIT : bytes;
    b->block = tg_take_block(ctx, whole, TG_MEM_BUFFER);
    if (!b->block)
        return tg_fail(ctx, TG_ERR_MEMORY, "out of memory on device \"%s\": %zu bytes for buffer \"%s\"",
                       ctx->run.ops->name, bytes, b->name);
    poison(ctx, b);
    return TG_OK;
}

tg_storage *tg_buffer_open(tg_ctx *ctx, tg_buffer *b, size_t offset, size_t bytes) {
    void *data = ctx->meta ? NULL : (char *)tg_block_data(b->block) + offset;
    tg_storage *s = tg_storage_wrap(ctx, data, bytes, NULL, NULL);
    if (!s) return NULL;
    if (!tg_storage_extra_of(s)) {
        tg_storage_unref(s);
        return NULL;
    }
    s->extra->buffer = b;
    s->block = b->block;
    s->category = TG_MEM_BUFFER;
    s->temporary = true;
    b->open++;
    if (!tg_block_owner(b->block)) tg_block_set_owner(b->block, s);
    return s;
}

void tg_buffer_close(const tg_storage *s) {
    tg_ctx *ctx = s->ctx;
    tg_buffer *b = s->extra->buffer;
    if (tg_block_owner(b->block) == s) tg_block_set_owner(b->block, NULL);
    if (--b->open > 0) return;
    if (b->ended)
        tg_buffer_end(ctx, b);
    else if (tg_block_held(b->block))
        b->dirty = true;
    else
        poison(ctx, b);
}

void tg_buffer_end(tg_ctx *ctx, tg_buffer *b) {
    b->ended = true;
    if (b->open) return;
    tg_heap_release(ctx->run.heap, b->block);
    b->block = NULL;
}

void tg_buffers_free(tg_ctx *ctx) {
    for (tg_buffer *b = ctx->buffers, *next; b; b = next) {
        next = b->next;
        tg_host_strfree(ctx, b->name);
        tg_host_free(ctx, b, sizeof *b);
    }
    ctx->buffers = NULL;
}

void tg_buffers_text(const tg_ctx *ctx, char *buf, size_t n, size_t *at) {
    for (const tg_buffer *b = ctx->buffers; b; b = b->next) {
        if (b->ended) continue;
        tg_text(buf, n, at, "%20s %14zu bytes", "buffer", b->block ? tg_block_bytes(b->block) : 0);
        if (*b->name)
            tg_text(buf, n, at, " \"%s\" %s", b->name, tg_dtype_name(b->dtype));
        else
            tg_text(buf, n, at, " symmetric");
        if (b->instance) tg_text(buf, n, at, ", instance %d: other leases held the earlier ones", b->instance + 1);
        tg_text(buf, n, at, "\n");
    }
}
