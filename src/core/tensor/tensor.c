/* Handles of tensors: the slots that hold them until the context ends, and their storages and extensions. */
#include "base/memory/host_memory.h"
#include "core/context.h"

/* Returns zeroed memory that is kept until the context ends, or NULL after recording the error. */
static void *new_slots(tg_ctx *ctx, size_t bytes) {
    tg_host_chunk *c = tg_host_alloc(ctx, sizeof *c + bytes);
    if (!c) return NULL;
    c->bytes = sizeof *c + bytes;
    c->next = ctx->chunks;
    ctx->chunks = c;
    return c->slots;
}

/* Adds a handle to the queue of free ones, which are linked through their node pointer. */
static void handle_slot_free(tg_ctx *ctx, tg_tensor *x) {
    *x = (tg_tensor){.ctx = ctx};
    if (ctx->free_last)
        ctx->free_last->node = (tg_node *)x;
    else
        ctx->free_first = x;
    ctx->free_last = x;
}

static tg_tensor *handle_slot(tg_ctx *ctx) {
    enum { COUNT = 64 };
    if (!ctx->free_first) {
        tg_tensor *x = new_slots(ctx, COUNT * sizeof *x);
        if (!x) return NULL;
        for (int i = 0; i < COUNT; i++) handle_slot_free(ctx, &x[i]);
    }
    tg_tensor *x = ctx->free_first;
    ctx->free_first = (tg_tensor *)x->node;
    if (!ctx->free_first) ctx->free_last = NULL;
    x->node = NULL;
    return x;
}

static void fill_handle(tg_tensor *x, tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape,
                        const int64_t *stride, int64_t *dims, tg_storage *s, int64_t offset) {
    if (ndim) memcpy(dims, shape, (size_t)ndim * sizeof *dims);
    x->numel = tg_row_major(ndim, shape, dims + TG_MAX_DIMS);
    x->flags = TG_F_CONTIGUOUS;
    if (stride && ndim) {
        memcpy(dims + TG_MAX_DIMS, stride, (size_t)ndim * sizeof *dims);
        x->flags = tg_is_row_major(ndim, shape, stride) ? TG_F_CONTIGUOUS : 0;
    }
    x->serial = ++ctx->serial;
    x->ctx = ctx;
    x->tape = NULL;
    x->place = NULL;
    x->storage = s;
    x->offset = offset;
    x->shape = dims;
    x->stride = dims + TG_MAX_DIMS;
    x->ndim = (uint8_t)ndim;
    x->dtype = (uint8_t)dtype;
}

tg_ext *tg_ext_of(tg_tensor *x) {
    tg_ctx *ctx = x->ctx;
    if (x->ext) return x->ext;
    if (!ctx->free_exts) return x->ext = new_slots(ctx, sizeof *x->ext);
    x->ext = ctx->free_exts;
    ctx->free_exts = x->ext->next_free;
    memset(x->ext, 0, sizeof *x->ext);
    return x->ext;
}

void tg_owned_slot_free(tg_tensor *x) { handle_slot_free(x->ctx, x); }

/* Ends a handle that the context owns. While the program holds it, its slot is not reused. */
static void end_owned(tg_tensor *x) {
    if (!x->holds) {
        handle_slot_free(x->ctx, x);
        return;
    }
    x->serial = TG_SERIAL_HELD;
    x->flags = TG_F_LEAF;
    x->storage = NULL;
    x->ext = NULL;
}

tg_tensor *tg_owned_new(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                        tg_storage *s, int64_t offset) {
    tg_tensor *x = handle_slot(ctx);
    if (!x || !tg_ext_of(x)) {
        if (x) handle_slot_free(ctx, x);
        tg_storage_unref(s);
        return NULL;
    }
    fill_handle(x, ctx, dtype, ndim, shape, stride, x->ext->dims, s, offset);
    x->flags |= TG_F_LEAF;
    if (!s->birth) {
        s->birth = x->serial;
        s->maker = x;
    }
    x->ext->next_owned = ctx->owned;
    if (ctx->owned) ctx->owned->ext->prev_owned = x;
    ctx->owned = x;
    return x;
}

tg_hook *tg_hook_new(tg_ctx *ctx) {
    tg_hook *h = ctx->free_hooks;
    if (!h) return tg_host_alloc(ctx, sizeof *h);
    ctx->free_hooks = h->next;
    return h;
}

void tg_hook_free(tg_ctx *ctx, tg_hook *h) {
    h->next = ctx->free_hooks;
    ctx->free_hooks = h;
}

void tg_hooks_free(tg_ctx *ctx) {
    for (tg_hook *h = ctx->free_hooks, *next; h; h = next) {
        next = h->next;
        tg_host_free(ctx, h, sizeof *h);
    }
    ctx->free_hooks = NULL;
}

void tg_ext_free(tg_ctx *ctx, tg_ext *e) {
    tg_host_strfree(ctx, e->name);
    for (tg_hook *h = e->hooks; h;) {
        tg_hook *next = h->next;
        tg_hook_free(ctx, h);
        h = next;
    }
    if (e->grad) { /* tg_drop keeps the gradient for nodes that still use it */
        e->grad->ext->grad_of = NULL;
        tg_drop(e->grad);
    }
    if (e->used) tg_drop(e->used);
    if (e->grad_of) {
        e->grad_of->grad = NULL;
        e->grad_of->has_grad = e->grad_of->has_grad && e->grad_of->main_grad;
    }
    e->next_free = ctx->free_exts;
    ctx->free_exts = e;
}

void tg_owned_free(tg_tensor *x) {
    tg_ctx *ctx = x->ctx;
    tg_ext *e = x->ext;
    if (e->prev_owned)
        e->prev_owned->ext->next_owned = e->next_owned;
    else
        ctx->owned = e->next_owned;
    if (e->next_owned) e->next_owned->ext->prev_owned = e->prev_owned;
    tg_storage *s = x->storage;
    end_owned(x);
    tg_ext_free(ctx, e);
    tg_storage_unref(s);
}

tg_tensor *tg_owned_empty(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, tg_category category) {
    int64_t numel = tg_row_major(ndim, shape, NULL);
    tg_storage *s = tg_storage_new(ctx, (size_t)numel * tg_dtype_size(dtype), category);
    return s ? tg_owned_new(ctx, dtype, ndim, shape, NULL, s, 0) : NULL;
}

tg_tensor *tg_temp_new(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                       tg_storage *s, int64_t offset) {
    enum { COUNT = 32 };
    if (TG_UNLIKELY(!ctx->free_temps)) {
        tg_temp *more = new_slots(ctx, COUNT * sizeof *more);
        for (int i = 0; more && i < COUNT; i++) {
            more[i].next = ctx->free_temps;
            ctx->free_temps = &more[i];
        }
        if (!more) {
            tg_storage_unref(s);
            return NULL;
        }
    }
    tg_temp *p = ctx->free_temps;
    ctx->free_temps = p->next;
    p->x.node = NULL;
    p->x.ext = NULL;
    fill_handle(&p->x, ctx, dtype, ndim, shape, stride, p->dims, s, offset);
    return &p->x;
}

tg_tensor *tg_temp_empty(tg_ctx *ctx, tg_dtype dtype, int ndim, const int64_t *shape, tg_category category) {
    int64_t numel = tg_row_major(ndim, shape, NULL);
    tg_storage *s = tg_storage_new(ctx, (size_t)numel * tg_dtype_size(dtype), category);
    return s ? tg_temp_new(ctx, dtype, ndim, shape, NULL, s, 0) : NULL;
}

void tg_temp_free(tg_tensor *x) {
    if (!x) return;
    tg_storage *s = x->storage;
    if (TG_UNLIKELY(x->ext != NULL)) tg_ext_free(x->ctx, x->ext); /* a hook has named the gradient x */
    x->storage = NULL;
    x->serial = TG_SERIAL_NONE;
    if (TG_LIKELY(!x->holds))
        tg_temp_slot_free(x);
    else
        x->serial = TG_SERIAL_HELD;
    if (s) tg_storage_unref(s);
}

void tg_temp_slot_free(tg_tensor *x) {
    tg_temp *p = (tg_temp *)x;
    p->next = x->ctx->free_temps;
    x->ctx->free_temps = p;
}

void tg_tensor_given(tg_tensor *x) {
    const tg_ext *e = x->ext;
    bool own_leaf = !x->tape || (x->flags & TG_F_LEAF && x->storage->temporary); /* not tg_tape_input of a parameter */
    if (own_leaf && !(x->flags & (TG_F_PARAM | TG_F_GRADIENT)) && !(e && (e->placed || e->grad_of || e->buffer)))
        x->flags |= TG_F_GIVEN;
    x->flags &= (uint16_t)~TG_F_COMPARED;
}
