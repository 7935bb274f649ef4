/* Works: operations in flight that fill or read storages. This file starts them, waits for them, orders the device's
 * later work after them, and ends them. */
#include "core/work.h"

#include "base/memory/host_memory.h"

tg_work *tg_work_new(tg_ctx *ctx, const tg_work_ops *ops, void *self) {
    if (!tg_ok(ctx)) return NULL;
    if (!ops || tg_table_check(ctx, ops->size, sizeof *ops, "tg_work_new: the table") != TG_OK || !ops->wait) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_work_new: the table %s", ops ? "has no wait" : "is NULL");
        return NULL;
    }
    tg_work *w = ctx->free_works;
    if (w)
        ctx->free_works = w->next;
    else if (!(w = tg_host_alloc(ctx, sizeof *w)))
        return NULL;
    *w = (tg_work){.ctx = ctx, .ops = ops, .self = self, .graph = ctx->capture, .after = ctx->works};
    if (w->after) w->after->before = w;
    return ctx->works = w;
}

bool tg_work_test(tg_work *w) { return !w || !w->ops || !w->ops->test || w->ops->test(w->self); }

void tg_work_end(tg_work *w) {
    tg_ctx *ctx = w->ctx;
    if (w->ops->free) w->ops->free(w->self);
    tg_work_stop_reading(w);
    if (w->after) w->after->before = w->before;
    *(w->before ? &w->before->after : &ctx->works) = w->after;
    *w = (tg_work){.ctx = ctx, .next = ctx->free_works};
    ctx->free_works = w;
}

tg_status tg_works_reserve(tg_ctx *ctx, int n) {
    for (int i = 0; i < n; i++) {
        tg_work *w = tg_host_alloc(ctx, sizeof *w);
        if (!w) return ctx->run.status;
        *w = (tg_work){.ctx = ctx, .next = ctx->free_works};
        ctx->free_works = w;
    }
    return TG_OK;
}

void tg_works_free(tg_ctx *ctx) {
    for (tg_work *w = ctx->free_works, *next; w; w = next) {
        next = w->next;
        tg_host_free(ctx, w, sizeof *w);
    }
    ctx->free_works = NULL;
}

tg_status tg_work_finish(tg_work *w) {
    tg_ctx *ctx = w->ctx;
    tg_status s = w->ops->wait(ctx, w->self);
    const char *name = w->ops->name ? w->ops->name : "work";
    tg_work_end(w);
    if (s != TG_OK) return tg_fail(ctx, s, "waiting for %s failed with %s", name, tg_status_name(s));
    return TG_OK;
}

tg_status tg_work_wait(tg_work *w) {
    if (!w) return TG_ERR_ARGUMENT;
    if (!w->ops) return w->ctx->run.status;
    return w->fills ? tg_storage_need(w->fills, NULL) : tg_work_finish(w);
}

void tg_work_abandon(tg_work *w) {
    if (w->ops->abort)
        w->ops->abort(w->self);
    else
        w->ops->wait(w->ctx, w->self);
    tg_work_end(w);
}

void tg_work_reads(tg_work *w, tg_storage *src) {
    tg_ctx *ctx = w->ctx;
    if (w->reads || w->holds) return;
    if (!src->block) {
        w->holds = tg_storage_ref(src);
        return;
    }
    w->reads = src->block;
    tg_block_hold(w->reads);
    w->prev = NULL;
    w->next = ctx->readers;
    if (w->next) w->next->prev = w;
    ctx->readers = w;
}

void tg_work_stop_reading(tg_work *w) {
    tg_ctx *ctx = w->ctx;
    if (w->holds) tg_storage_unref(w->holds);
    w->holds = NULL;
    if (!w->reads) return;
    tg_block_unhold(ctx->run.heap, w->reads);
    w->reads = NULL;
    if (w->next) w->next->prev = w->prev;
    if (w->prev)
        w->prev->next = w->next;
    else
        ctx->readers = w->next;
}

void tg_work_over(tg_work *w) {
    w->ordered = true;
    tg_work_stop_reading(w);
}

tg_status tg_work_order(tg_work *w) {
    if (w->ordered) return TG_OK;
    TG_TRY(w->ops->order(w->ctx, w->self));
    tg_work_over(w);
    return TG_OK;
}

tg_status tg_works_order_readers(tg_ctx *ctx) {
    for (tg_work *w = ctx->readers, *next; w; w = next) {
        next = w->next;
        if (!w->fills && w->ops->order) TG_TRY(tg_work_order(w));
    }
    return TG_OK;
}

/* Waits for w and ends it if it fills a storage. Otherwise orders the device's later work after w, or waits for w if it
 * has no `order` function; the owner of w ends it later. */
static tg_status wait_reader(tg_work *w) {
    if (w->fills) return tg_storage_need(w->fills, NULL);
    if (w->ordered) return TG_OK;
    if (w->ops->order) return tg_work_order(w);
    tg_status s = w->ops->wait(w->ctx, w->self);
    tg_work_stop_reading(w);
    return s;
}

/* When a work ends, others may end with it. So the loop then starts again from the first work. */
tg_status tg_works_settle(tg_ctx *ctx, bool (*but)(const void *arg, const tg_work *w), const void *arg) {
    for (tg_work *w = ctx->works; w;) {
        if (but && but(arg, w)) {
            w = w->after;
            continue;
        }
        bool ends = w->fills != NULL;
        TG_TRY(wait_reader(w));
        w = ends ? ctx->works : w->after;
    }
    return TG_OK;
}

tg_status tg_works_wait_readers(tg_ctx *ctx, const tg_block *b) {
    for (tg_work *w = ctx->readers; w;) {
        bool reads = w->reads == b;
        if (reads) TG_TRY(wait_reader(w));
        w = reads ? ctx->readers : w->next;
    }
    return TG_OK;
}

/* Waits for works that read the caller's bytes. Such bytes have no block, so the works hold their storage instead. */
static tg_status wait_holders(const tg_storage *s) {
    for (tg_work *w = s->ctx->works; w;) {
        bool holds = w->holds == s;
        if (holds) TG_TRY(wait_reader(w));
        w = holds ? s->ctx->works : w->after;
    }
    return TG_OK;
}

tg_status tg_storage_check_write(const tg_storage *s, const char *who) {
    if (TG_LIKELY(!s->extra || !s->extra->read_only)) return TG_OK;
    return tg_fail(s->ctx, TG_ERR_STATE, "%s: the tensor's memory is read-only; %s", who,
                   s->category != TG_MEM_PARAMETER
                       ? "write to a copy"
                       : "a parameter that is divided (tg_flat with zero 3) may be written while tg_flat_set_whole is "
                         "on, and its ranges while it is off");
}

tg_status tg_storage_await_readers(tg_storage *s) {
    TG_TRY(tg_storage_check_write(s, s->ctx->run.running ? s->ctx->run.running : "a write"));
    if (!s->block) return tg_storage_is_own(s) ? TG_OK : wait_holders(s);
    return tg_block_held(s->block) ? tg_works_wait_readers(s->ctx, s->block) : TG_OK;
}

tg_status tg_storage_may_change(const tg_tensor *x) {
    TG_TRY(tg_storage_need(x->storage, x));
    return tg_storage_await_readers(x->storage);
}

tg_status tg_work_fills(tg_work *w, tg_storage *s) {
    tg_storage_extra *e = tg_storage_extra_of(s);
    if (!e) {
        tg_work_abandon(w);
        return s->ctx->run.status;
    }
    if (e->work) tg_work_abandon(e->work);
    e->work = w;
    w->fills = s;
    s->state = TG_IN_FLIGHT;
    return TG_OK;
}
