/* How long handles last for the program: tg_keep and tg_drop; holds, which keep the memory of a handle from being
 * reused; and releases, which end a handle when nothing needs it any more. */
#include <tapegrad/handles.h>

#include "core/context.h"
#include "core/tensor/handles.h"

/* ---- Keeping and dropping ---- */

tg_tensor *tg_keep(tg_tensor *x) {
    if (!x) return tg_inert(&tg_dead_ctx);
    tg_ctx *ctx = x->ctx;
    if (!ctx) return tg_inert(&tg_dead_ctx);
    if (ctx->run.status != TG_OK) return tg_inert(ctx);
    tg_later_settle(ctx);
    if (tg_check(ctx, x, "tg_keep") != TG_OK || tg_storage_need(x->storage, x) != TG_OK) return tg_inert(ctx);
    if (tg_refuse_partial(x, "tg_keep") != TG_OK) return tg_inert(ctx); /* tg_grads_finalize changes x alone */
    tg_tensor *k = tg_owned_new(ctx, x->dtype, x->ndim, x->shape, x->stride, tg_storage_ref(x->storage), x->offset);
    if (!k) return tg_inert(ctx);
    k->place = x->place;
    k->flags |= x->flags & TG_F_GIVEN;
    x->storage->temporary = false;
    tg_storage_end_refill(k->storage, x); /* the bytes belong to the caller and stay from now on */
    return k;
}

/* Returns whether tg_drop may end the handle. */
static bool may_end(const tg_tensor *x) {
    return !x->tape && x->ext && x->flags & TG_F_LEAF && !x->ext->owners && !x->ext->grad_of;
}

void tg_drop(tg_tensor *x) {
    if (!x || x->serial < TG_SERIAL_FIRST || !may_end(x)) return;
    if (!x->uses) {
        tg_owned_free(x);
        return;
    }
    /* the caller may no longer use it; it is freed when the nodes that use it have ended */
    x->serial = x->holds ? TG_SERIAL_HELD : TG_SERIAL_NONE;
    x->flags |= TG_F_DROPPED;
}

/* ---- Holds and releases ---- */

/* Returns whether the fields of x can be read: x is a live handle, or an ended one that is held. */
static bool is_readable(const tg_tensor *x) { return x && x->serial >= TG_SERIAL_HELD; }

bool tg_hold(tg_tensor *x) {
    if (!is_readable(x)) return false;
    x->holds++;
    return true;
}

static void free_slot(tg_tensor *x) {
    if (x->tape)
        for (int i = 0; i < TG_PARTS; i++) {
            const tg_part *p = &x->ctx->part[i];
            if (p->ops && p->ops->unheld) p->ops->unheld(x);
        }
    else if (tg_is_lent(x))
        tg_temp_slot_free(x);
    else if (!(x->flags & TG_F_DROPPED)) /* otherwise nodes still use the handle */
        tg_owned_slot_free(x);
}

static void unhold(tg_tensor *x, unsigned holds) {
    if (!is_readable(x) || !x->holds) return;
    x->holds -= holds < x->holds ? holds : x->holds;
    if (x->holds || x->serial >= TG_SERIAL_FIRST) return;
    x->serial -= TG_SERIAL_HELD;
    free_slot(x);
}

void tg_unhold(tg_tensor *x) { unhold(x, 1); }

static void give_up(tg_tensor *x) {
    const tg_ctx *ctx = x->ctx;
    for (int i = 0; i < TG_PARTS; i++)
        if (ctx->part[i].ops && ctx->part[i].ops->given_up) ctx->part[i].ops->given_up(x);
}

/* Returns whether x is a tensor of the context that was dropped or released, and that nodes still use. */
static bool is_dropped(const tg_tensor *x) { return !x->tape && x->flags & TG_F_DROPPED; }

void tg_release(tg_tensor *x) {
    if (!x || x->serial < TG_SERIAL_FIRST || tg_is_lent(x)) return;
    if (!x->tape && x->uses && may_end(x))
        x->flags |= TG_F_DROPPED; /* the handle stays alive, because derivatives of the nodes may use it */
    else if (!x->tape)
        tg_drop(x);
    if (x->tape || is_dropped(x)) give_up(x); /* otherwise it has ended, or tg_drop leaves it alone */
}

void tg_handle_drop(tg_tensor *x, unsigned holds) {
    if (x->serial < TG_SERIAL_FIRST && is_dropped(x))
        give_up(x); /* again: tg_release had to wait */
    else
        tg_release(x);
    unhold(x, holds);
}

void tg_handle_drop_later(tg_tensor *x) {
    if (x->serial == TG_SERIAL_NONE && is_dropped(x)) x->serial = TG_SERIAL_HELD;
    if (tg_hold(x)) tg_drop_later(x->ctx, (tg_ref){x, x->serial});
}

void tg_drop_later(tg_ctx *ctx, tg_ref r) {
    if (ctx && r.tensor) tg_later_ask(ctx, &r.tensor->later);
}
