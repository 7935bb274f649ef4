/* Symmetric buffers: one block of the same size on every rank, from which the tensors of fused collectives are
 * allocated. Ranks that share an address space use each other's blocks directly. A transport may offer windows, which
 * are memory that is registered on all ranks. On other transports a symmetric buffer has 0 bytes, and the caller works
 * without it. */
#include "base/memory/device_memory.h"
#include "base/memory/host_memory.h"
#include "comm/comm.h"
#include "comm/symmetric.h"

/* Sets *value to its minimum over the ranks, so that all ranks decide alike. */
static tg_status agree_on_minimum(tg_comm *c, int64_t *value) {
    tg_tensor *x = tg_from_host(c->ctx, TG_I64, TG_SHAPE(1), value);
    tg_comm_all_reduce(c, x, x, TG_REDUCE_MIN);
    tg_status s = tg_read(x, value, sizeof *value);
    tg_drop(x);
    return s;
}

static bool shares_memory(const tg_comm *c) {
    const char *transport = tg_comm_transport(c);
    if (c->ctx->meta) return false;
    return !strcmp(transport, "self") || (c->ctx->host && !strcmp(transport, "threads"));
}

/* Returns a scratch buffer (core/memory/scratch.h) for a new symmetric buffer: one that a freed symmetric buffer no
 * longer uses, or else a new one. Returns NULL after recording the error. */
static tg_buffer *buffer_of(tg_ctx *ctx) {
    for (tg_buffer *b = ctx->buffers; b; b = b->next)
        if (b->ended && !b->open) {
            b->ended = false;
            return b;
        }
    return tg_buffer_new(ctx, "", TG_U8, 0);
}

/* Owns a transport's window until the memory of the window is released. */
typedef struct window {
    tg_ctx *ctx;
    const tg_comm_ops *ops;
    void *data, *handle; /* its memory on this rank; the transport's window */
} window;

static void window_free(void *user) {
    window *w = user;
    if (w->data) w->ops->window_free(w->ctx, w->handle);
    tg_host_free(w->ctx, w, sizeof *w);
}

/* Registers the memory of all ranks as a window. No rank registers before all ranks have allocated their memory. If the
 * allocation fails on one rank, or would exceed its limit (tg_config.memory), no rank registers, and s keeps 0
 * bytes. */
static tg_status open_window(tg_symmetric *s, tg_comm *c, window *w, size_t bytes) {
    bool fits = bytes <= tg_memory_available(c->ctx);
    w->data = fits ? c->ops->window_alloc(c->ctx, c->state, bytes, &w->handle) : NULL;
    int64_t all = w->data != NULL;
    TG_TRY(agree_on_minimum(c, &all));
    if (!all) return TG_OK;
    TG_TRY(c->ops->window_join(c->ctx, c->state, w->handle));
    s->buffer = buffer_of(s->ctx);
    if (!s->buffer) return s->ctx->run.status;
    s->buffer->block = tg_heap_adopt(s->ctx->run.heap, w->data, bytes, TG_MEM_BUFFER, window_free, w);
    if (!s->buffer->block) return tg_fail(s->ctx, TG_ERR_MEMORY, "tg_symmetric_new: no memory for a window");
    s->bytes = bytes;
    return TG_OK;
}

static tg_status open_windows(tg_symmetric *s, tg_comm *c, size_t bytes) {
    enum { GRAIN = 64 };
    int64_t least = (int64_t)((bytes + GRAIN - 1) / GRAIN * GRAIN);
    TG_TRY(agree_on_minimum(c, &least));
    if (!least) return TG_OK;
    window *w = tg_host_alloc(s->ctx, sizeof *w);
    if (!w) return s->ctx->run.status;
    *w = (window){.ctx = s->ctx, .ops = c->ops};
    tg_status status = open_window(s, c, w, (size_t)least);
    if (!s->bytes) window_free(w);
    return status;
}

static bool has_windows(const tg_comm *c) {
    return c->size > 1 && c->ops->window_alloc && c->ops->window_join && c->ops->window_free;
}

static tg_status open_arena(tg_symmetric *s, tg_comm *c, size_t bytes) {
    int64_t least = shares_memory(c) ? (int64_t)bytes : 0;
    if (has_windows(c)) return open_windows(s, c, bytes);
    if (!c->ops->silent) TG_TRY(agree_on_minimum(c, &least));
    if (!least) return TG_OK;
    s->buffer = buffer_of(s->ctx);
    if (!s->buffer) return s->ctx->run.status;
    s->bytes = (size_t)least;
    return tg_buffer_reserve(s->ctx, s->buffer, s->bytes);
}

/* Returns a symmetric buffer without memory; NULL after recording the error. */
static tg_symmetric *empty(tg_comm *c, size_t bytes) {
    if (!tg_comm_ok(c)) return NULL;
    if (bytes > PTRDIFF_MAX / 2) {
        tg_fail(c->ctx, TG_ERR_ARGUMENT, "tg_symmetric_new: bytes is %zu, expected at most %zu", bytes,
                (size_t)PTRDIFF_MAX / 2);
        return NULL;
    }
    tg_symmetric *s = tg_host_alloc(c->ctx, sizeof *s);
    if (s) *s = (tg_symmetric){.ctx = c->ctx};
    return s;
}

tg_symmetric *tg_symmetric_new(tg_comm *c, size_t bytes) {
    tg_symmetric *s = empty(c, bytes);
    if (tg_comm_note_missed(c, s ? TG_OK : TG_ERR_ABORTED) != TG_OK) return NULL;
    if (open_arena(s, c, bytes) == TG_OK) return s;
    tg_symmetric_free(s);
    return NULL;
}

void tg_symmetric_free(tg_symmetric *s) {
    if (!s) return;
    if (s->buffer) tg_buffer_end(s->ctx, s->buffer);
    tg_host_free(s->ctx, s, sizeof *s);
}
