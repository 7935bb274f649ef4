/* Storages: reference-counted bytes that are present, in flight, or discarded. Whatever frees bytes before the last
 * reference ends, such as a scope or backward, calls tg_storage_discard. */
#include <stdio.h>

#include "core/memory/scratch.h"
#include "base/callback.h"
#include "base/memory/device_memory.h"
#include "base/memory/host_memory.h"
#include "core/context.h"
#include "core/work.h"

static tg_status add_storages(tg_ctx *ctx) {
    enum { COUNT = 256 };
    size_t bytes = sizeof(tg_host_chunk) + COUNT * sizeof(tg_storage);
    tg_host_chunk *c = tg_host_alloc(ctx, bytes);
    if (!c) return ctx->run.status;
    c->bytes = bytes;
    c->next = ctx->chunks;
    ctx->chunks = c;
    tg_storage *s = (tg_storage *)c->slots;
    for (int i = COUNT - 1; i >= 0; i--) {
        s[i].data = ctx->free_storages;
        ctx->free_storages = &s[i];
    }
    return TG_OK;
}

static tg_storage *storage_slot(tg_ctx *ctx) {
    if (TG_UNLIKELY(!ctx->free_storages) && add_storages(ctx) != TG_OK) return NULL;
    tg_storage *s = ctx->free_storages;
    ctx->free_storages = s->data;
    *s = (tg_storage){.ctx = ctx};
    atomic_init(&s->refs, 1);
    return s;
}

static void storage_slot_free(tg_storage *s) {
    tg_ctx *ctx = s->ctx;
    s->data = ctx->free_storages;
    ctx->free_storages = s;
}

/* Takes the bytes of the storage from the heap. An error says how many were requested and what holds the memory. */
static tg_status storage_bytes(tg_storage *s) {
    tg_ctx *ctx = s->ctx;
    s->block = tg_take_block(ctx, s->bytes, s->category);
    if (TG_UNLIKELY(!s->block) && ctx->readers) { /* copies may still hold blocks that have been released */
        TG_TRY(tg_works_order_readers(ctx));
        s->block = tg_take_block(ctx, s->bytes, s->category);
    }
    if (TG_UNLIKELY(!s->block)) return tg_memory_fail(ctx, s->bytes, "");
    tg_block_set_owner(s->block, s);
    s->data = ctx->meta ? NULL : tg_block_data(s->block);
    return TG_OK;
}

tg_storage *tg_storage_new(tg_ctx *ctx, size_t bytes, tg_category category) {
    tg_storage *s = storage_slot(ctx);
    if (TG_UNLIKELY(!s)) return NULL;
    s->bytes = bytes;
    s->category = category;
    if (TG_LIKELY(storage_bytes(s) == TG_OK)) return s;
    storage_slot_free(s);
    return NULL;
}

tg_storage_extra *tg_storage_extra_of(tg_storage *s) {
    tg_ctx *ctx = s->ctx;
    if (s->extra) return s->extra;
    if (ctx->free_extras) {
        s->extra = ctx->free_extras;
        ctx->free_extras = s->extra->next_free;
        *s->extra = (tg_storage_extra){0};
    } else {
        s->extra = tg_host_alloc(ctx, sizeof *s->extra);
    }
    return s->extra;
}

void tg_storage_extras_free(tg_ctx *ctx) {
    for (tg_storage_extra *e = ctx->free_extras, *next; e; e = next) {
        next = e->next_free;
        tg_host_free(ctx, e, sizeof *e);
    }
    ctx->free_extras = NULL;
}

tg_storage *tg_storage_wrap(tg_ctx *ctx, void *data, size_t bytes, void (*release)(void *), void *user) {
    tg_storage *s = storage_slot(ctx);
    if (!s) return NULL;
    if (release && !tg_storage_extra_of(s)) {
        storage_slot_free(s);
        return NULL;
    }
    s->data = data;
    s->bytes = bytes;
    s->category = TG_MEM_TEMPORARY;
    if (release) {
        s->extra->release = release;
        s->extra->user = user;
    }
    return s;
}

/* Abandons a work that fills the bytes, if there is one, and returns the bytes to the buffer or the heap. Only ends the
 * hold if they are another storage's, and only forgets the address if they are the caller's. */
static void release_bytes(tg_storage *s) {
    if (s->extra && s->extra->work) {
        tg_work_abandon(s->extra->work);
        s->extra->work = NULL;
    }
    if (TG_UNLIKELY(s->extra && s->extra->buffer))
        tg_buffer_close(s);
    else if (TG_UNLIKELY(s->extra && s->extra->shared))
        tg_block_unhold(s->ctx->run.heap, s->block);
    else if (s->block)
        tg_heap_release(s->ctx->run.heap, s->block);
    if (s->extra) {
        s->extra->buffer = NULL;
        s->extra->shared = false;
    }
    s->block = NULL;
    s->data = NULL;
}

/* Called with 1 before, and with -1 after, a function of the program. In between, neither the context nor the tape of x
 * ends. x may be NULL. */
static void keep_owners(tg_ctx *ctx, const tg_tensor *x, int by) {
    ctx->busy += by;
    for (int i = 0; x && i < TG_PARTS; i++)
        if (ctx->part[i].ops && ctx->part[i].ops->busy) ctx->part[i].ops->busy(x, by);
}

/* Calls the release function of s, if there is one, and removes it. x is as for keep_owners. */
static void call_release(tg_storage *s, const tg_tensor *x) {
    void (*release)(void *) = s->extra->release;
    s->extra->release = NULL;
    if (!release) return;
    keep_owners(s->ctx, x, 1);
    release(s->extra->user);
    keep_owners(s->ctx, x, -1);
}

void tg_storage_end_refill(tg_storage *s, const tg_tensor *x) {
    if (!s->extra || !s->extra->refill) return;
    s->extra->refill = NULL;
    call_release(s, x);
}

/* Drops a reference, and returns whether it was the last one. A count of one needs no atomic change, because no other
 * reference can appear while the only holder releases its own. */
static bool last_reference(tg_storage *s) {
    return atomic_load_explicit(&s->refs, memory_order_acquire) == 1 ||
           atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1;
}

void tg_storage_unref(tg_storage *s) {
    if (!last_reference(s)) return;
    release_bytes(s);
    if (TG_UNLIKELY(s->extra != NULL)) {
        call_release(s, NULL);
        s->extra->next_free = s->ctx->free_extras;
        s->ctx->free_extras = s->extra;
    }
    storage_slot_free(s);
}

void tg_storage_discard(tg_storage *s, const char *by, const void *site) {
    if (s->state == TG_DISCARDED || tg_storage_pins(s)) return;
    release_bytes(s);
    s->state = TG_DISCARDED;
    s->by = by;
    s->by_site = site;
}

tg_storage *tg_storage_take(tg_storage *s, const char *by, const void *site) {
    tg_storage *taken = storage_slot(s->ctx);
    if (!taken) return NULL;
    taken->bytes = s->bytes;
    taken->category = s->category;
    taken->temporary = true;
    taken->block = s->block;
    taken->data = s->data;
    if (taken->block) tg_block_set_owner(taken->block, taken);
    tg_storage_categorize(taken, TG_MEM_TEMPORARY);
    s->block = NULL;
    s->data = NULL;
    tg_storage_discard(s, by, site);
    return taken;
}

/* Waits for the work that fills the bytes. If the work fails, the bytes are discarded; lasting ones stay, but await
 * another work. */
static tg_status wait_for(tg_storage *s) {
    tg_work *w = s->extra->work;
    s->extra->work = NULL;
    s->state = TG_PRESENT;
    tg_status status = tg_work_finish(w);
    if (status == TG_OK) return TG_OK;
    if (s->extra->lasting)
        tg_storage_await(s);
    else
        tg_storage_discard(s, "a work that failed", NULL);
    return status;
}

void tg_storage_await(tg_storage *s) {
    if (s->state == TG_PRESENT) s->state = TG_IN_FLIGHT;
}

/* Fails, unless x is a range. x may be NULL. */
static tg_status refuse_awaiting(const tg_storage *s, const tg_tensor *x) {
    char what[128] = "a parameter";
    if (x && tg_range_whole(x) != x) return TG_OK;
    if (x) tg_describe(x, what, sizeof what);
    return tg_fail(s->ctx, TG_ERR_STATE,
                   "%s has values of different steps, because each rank has stepped only its range of the elements; "
                   "call tg_flat_gather after tg_optim_step",
                   what);
}

static tg_status refill(tg_storage *s, const tg_tensor *x) {
    tg_ctx *ctx = s->ctx;
    TG_TRY(storage_bytes(s));
    s->state = TG_PRESENT;
    keep_owners(ctx, x, 1);
    tg_status status = s->extra->refill(s->extra->user, ctx, s->data, s->bytes);
    keep_owners(ctx, x, -1);
    if (status == TG_OK) status = ctx->run.status;
    if (status == TG_OK) return TG_OK;
    tg_storage_discard(s, s->by, s->by_site);
    return tg_callback_end(ctx, status, "the refill of a discarded tensor");
}

tg_status tg_storage_bytes_again(tg_storage *s) {
    TG_TRY(storage_bytes(s));
    s->state = TG_PRESENT;
    return TG_OK;
}

tg_status tg_storage_renew(tg_storage *s) {
    if (s->state == TG_DISCARDED) return tg_storage_bytes_again(s);
    if (s->state == TG_IN_FLIGHT && !tg_storage_awaits(s)) {
        tg_work *w = s->extra->work;
        s->extra->work = NULL;
        tg_work_abandon(w);
    }
    s->state = TG_PRESENT;
    return TG_OK;
}

tg_status tg_storage_share(tg_storage *s, tg_storage *from) {
    tg_ctx *ctx = s->ctx;
    if (from->temporary && from->block && !(from->extra && from->extra->buffer)) {
        if (!tg_storage_extra_of(s)) return ctx->run.status;
        tg_block_hold(from->block);
        s->block = from->block;
        s->data = from->data;
        s->extra->shared = true;
        s->state = TG_PRESENT;
        return TG_OK;
    }
    TG_TRY(tg_storage_bytes_again(s));
    tg_status status = s->data ? ctx->run.ops->copy(ctx, s->data, from->data, s->bytes, TG_COPY_DEVICE) : TG_OK;
    if (status != TG_OK) tg_storage_discard(s, s->by, s->by_site); /* a later read must not find undefined bytes */
    return status;
}

tg_status tg_storage_map(tg_storage *s, void *data, void (*release)(void *), void *user) {
    if (!tg_storage_extra_of(s)) return s->ctx->run.status;
    release_bytes(s);
    if (s->extra->release) s->extra->release(s->extra->user);
    s->data = data;
    s->state = TG_PRESENT;
    s->extra->restore = NULL;
    s->extra->release = release;
    s->extra->user = user;
    return TG_OK;
}

tg_status tg_storage_need_slow(tg_storage *s, const tg_tensor *x) {
    if (s->state == TG_PRESENT) return TG_OK;
    if (tg_storage_awaits(s)) return refuse_awaiting(s, x);
    if (s->state == TG_IN_FLIGHT) return wait_for(s);
    if (s->extra && s->extra->refill && s->extra->version == s->version) return refill(s, x);
    if (s->extra && s->extra->restore) {
        TG_TRY(s->extra->restore(s->extra->user, s));
        if (s->state == TG_PRESENT) return TG_OK;
        s->extra->restore = NULL;
    }
    char what[128] = "a tensor", where[160] = "";
    if (x) tg_describe(x, what, sizeof what);
    if (s->by_site) tg_describe_site(s->ctx, s->by_site, where, sizeof where);
    return tg_fail(
        s->ctx, TG_ERR_DISCARDED,
        "the bytes of %s were discarded by %s%s%s; call tg_keep before, or, if a backward has freed it, run that "
        "backward with .retain",
        what, s->by ? s->by : "its owner", *where ? ", called from " : "", where);
}

void tg_storage_categorize(tg_storage *s, tg_category c) {
    if (s->category == c || s->category == TG_MEM_BUFFER) return;
    s->category = c;
    if (s->block) tg_block_categorize(s->ctx->run.heap, s->block, c);
}

/* ---- Public functions ---- */

tg_storage_state tg_storage_state_of(const tg_tensor *x) {
    return tg_is_alive(x) ? (tg_storage_state)x->storage->state : TG_DISCARDED;
}

static tg_status check_discard(tg_tensor *x, const char *who) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, x, who));
    TG_TRY(tg_refuse_lent(x, who));
    if (!x->storage->block)
        return tg_fail(ctx, TG_ERR_STATE, "%s: the tensor's memory belongs to the caller or is discarded already", who);
    if (tg_storage_pins(x->storage))
        return tg_fail(ctx, TG_ERR_STATE, "%s: the tensor is pinned or exported; call tg_unpin or the deleter first",
                       who);
    if (x->storage->saves)
        return tg_fail(ctx, TG_ERR_STATE, "%s: a node has saved the tensor; discard the tensor after backward", who);
    if (x->storage->category == TG_MEM_PARAMETER || x->storage->category == TG_MEM_OPTIMIZER)
        return tg_fail(ctx, TG_ERR_STATE, "%s: the memory of parameters and optimizers cannot be discarded", who);
    if (x->storage->extra && x->storage->extra->in_flat)
        return tg_fail(ctx, TG_ERR_STATE,
                       "%s: the tensor is part of a buffer of a tg_flat, in which other gradients lie too; to clear a "
                       "gradient call tg_zero_grad, and to free the buffer call tg_flat_free",
                       who);
    return TG_OK;
}

tg_status tg_discard(tg_tensor *x) {
    TG_TRY(check_discard(x, "tg_discard"));
    tg_storage *s = tg_storage_ref(x->storage); /* the function that frees the refill may drop x */
    tg_storage_end_refill(s, x); /* set by an earlier tg_discard_with; now the bytes are to be lost */
    tg_storage_discard(s, "tg_discard", TG_SITE);
    tg_storage_unref(s);
    return TG_OK;
}

tg_status tg_discard_with(tg_tensor *x, tg_status (*fill)(void *, tg_ctx *, void *, size_t), void (*end)(void *),
                          void *user) {
    tg_status s = check_discard(x, "tg_discard_with");
    if (s == TG_OK && !fill) s = tg_fail(x->ctx, TG_ERR_ARGUMENT, "tg_discard_with: refill is NULL");
    tg_storage_extra *e = s == TG_OK ? tg_storage_extra_of(x->storage) : NULL;
    if (!e) {
        if (end) end(user);
        return s == TG_OK ? x->ctx->run.status : s;
    }
    tg_storage *kept = tg_storage_ref(x->storage); /* the function that frees an earlier refill may drop x */
    call_release(kept, x);
    e->refill = fill;
    e->version = kept->version;
    e->release = end;
    e->user = user;
    tg_storage_discard(kept, "tg_discard_with", TG_SITE);
    tg_storage_unref(kept);
    return TG_OK;
}
