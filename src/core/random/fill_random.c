/* Fills a tensor with random numbers of one stream, or of the open key. The position of an element in this rank's
 * tensor selects its draw. Draws that are selected by the position in the tensor over all ranks are in
 * src/placement/draws.c. */
#include "core/context.h"

tg_status tg_fill_random_from(tg_tensor *x, tg_rng *from, uint64_t micro, tg_random kind, double a, double b) {
    tg_draws d;
    TG_TRY(tg_rng_take(x->ctx, from, micro, x->numel, &d));
    return x->ctx->run.ops->random(x->ctx, kind, tg_array_of(x), a, b, &d);
}

tg_status tg_fill_random(tg_tensor *x, tg_random kind, double a, double b) {
    return tg_fill_random_from(x, &x->ctx->rng, 0, kind, a, b);
}
