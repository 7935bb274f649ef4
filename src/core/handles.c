/* How long handles last for the program: holds, which keep the memory of a handle from being reused, and releases,
 * which end a handle when nothing needs it any more. */
#include <tapegrad/handles.h>

#include "core/context.h"
#include "core/handles.h"

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

void tg_release(tg_tensor *x) {
    if (!x || x->serial < TG_SERIAL_FIRST || tg_is_lent(x)) return;
    tg_ctx *ctx = x->ctx;
    if (!x->tape) tg_drop(x);
    if (!x->tape && !(x->flags & TG_F_DROPPED)) return; /* it has ended, or tg_drop leaves it alone */
    for (int i = 0; i < TG_PARTS; i++)
        if (ctx->part[i].ops && ctx->part[i].ops->given_up) ctx->part[i].ops->given_up(x);
}

void tg_handle_drop(tg_tensor *x, unsigned holds) {
    tg_release(x);
    unhold(x, holds);
}

void tg_drop_later(tg_ctx *ctx, tg_ref r) {
    if (ctx && r.tensor) tg_later_ask(ctx, &r.tensor->later);
}
