/* The list of the requests of other threads to a context (later.h). Any thread adds entries; the context's own thread
 * takes the whole list with one exchange. */
#include "core/context.h"
#include "core/dlpack.h"
#include "core/handles.h"

void tg_later_ask(tg_ctx *ctx, tg_later *e) {
    if (atomic_fetch_add_explicit(&e->times, 1, memory_order_acq_rel)) return;
    tg_later *first = atomic_load_explicit(&ctx->later, memory_order_relaxed);
    do e->next = first;
    while (!atomic_compare_exchange_weak_explicit(&ctx->later, &first, e, memory_order_release, memory_order_relaxed));
}

/* Does what an entry asks for, once for each request. */
static void settle(tg_later *e) {
    uint8_t kind = e->kind;
    unsigned times = atomic_exchange_explicit(&e->times, 0, memory_order_acq_rel);
    if (kind == TG_LATER_DROP)
        tg_handle_drop((tg_tensor *)((char *)e - offsetof(tg_tensor, later)), times);
    else if (kind == TG_LATER_UNPIN)
        tg_storage_unpin((tg_storage_extra *)((char *)e - offsetof(tg_storage_extra, unpin)), times);
    else
        tg_export_end((tg_export *)((char *)e - offsetof(tg_export, later)));
}

void tg_later_run(tg_ctx *ctx) {
    for (tg_later *e = atomic_exchange_explicit(&ctx->later, NULL, memory_order_acquire), *next; e; e = next) {
        next = e->next; /* read first: another thread may add the entry again as soon as its times are 0 */
        settle(e);
    }
}
