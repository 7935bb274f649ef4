/* Defers the weight gradients of all linear layers of a tape (tg_tape_defer). The tape hands the products to a list; a
 * listener of the tape holds a reference to that list, and drops the reference when the tape is freed. */
#include "parallel/tp/wgrads.h"

typedef struct tape_list {
    tg_tape_listener listener; /* first, because callbacks convert its address */
    tg_wgrads *list;           /* NULL: none */
} tape_list;

static bool take(void *list, tg_call *c, int w, tg_tensor *x, tg_tensor *gy) {
    return tg_wgrads_take(list, c, w, x, gy, NULL);
}

/* Makes d, which may be NULL, the list of the tape. */
static void set_list(tape_list *l, tg_wgrads *d) {
    tg_wgrads *before = l->list;
    l->list = d ? tg_wgrads_keep(d) : NULL;
    l->listener.tape->deferral = (tg_deferral){d ? take : NULL, d};
    if (before) tg_wgrads_drop(before);
}

static void tape_ended(tg_tape_listener *l, bool freed) {
    if (freed) set_list((tape_list *)l, NULL);
}

static const tg_tape_listener_ops list_ops = {.size = sizeof(tape_list), .reset = tape_ended};

tg_status tg_tape_defer(tg_tape *t, tg_wgrads *d) {
    TG_TRY(tg_tape_check(t, "tg_tape_defer"));
    TG_TRY(tg_wgrads_check(d, t, "tg_tape_defer: d"));
    tape_list *l = (tape_list *)tg_tape_listen(t, &list_ops);
    if (!l) return t->ctx->run.status;
    set_list(l, d);
    return TG_OK;
}
