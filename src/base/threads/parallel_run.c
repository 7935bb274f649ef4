/* tg_parallel_run: divides a range of work among the threads of a context. */
#include "base/runtime.h"

void tg_parallel_run(tg_ctx *ctx, int64_t n, tg_range_fn body, void *arg) {
    if (n <= 0 || !ctx) return;
    if (TG_UNLIKELY(!body)) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_parallel_run: body is NULL");
        return;
    }
    const tg_runtime *r = tg_runtime_of(ctx);
    if (r->threads == 1 || n == 1 || !r->parallel_for) { /* a context whose creation failed has no parallel_for */
        body(arg, 0, n);
        return;
    }
    r->parallel_for(r->parallel_user, n, body, arg);
}
