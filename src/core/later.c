/* The list of the requests of other threads to a context (later.h). Any thread adds entries; the context's own thread,
 * or after tg_ctx_free one of the last users, takes the whole list with one exchange. */
#include "core/context.h"

void tg_later_ask(tg_ctx *ctx, tg_later *e) {
    if (atomic_fetch_add_explicit(&e->times, 1, memory_order_acq_rel)) return;
    tg_later *first = atomic_load_explicit(&ctx->later, memory_order_relaxed);
    do e->next = first;
    while (!atomic_compare_exchange_weak_explicit(&ctx->later, &first, e, memory_order_release, memory_order_relaxed));
}

void tg_later_run(tg_ctx *ctx) {
    for (tg_later *e = atomic_exchange_explicit(&ctx->later, NULL, memory_order_acquire), *next; e; e = next) {
        next = e->next; /* read first: another thread may add the entry again as soon as its times are 0 */
        ctx->do_request(e, atomic_exchange_explicit(&e->times, 0, memory_order_acq_rel));
    }
}
