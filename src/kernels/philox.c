/* Which number of a random stream an element draws, for callers outside of the kernels. */
#include "kernels/philox.h"

uint64_t tg_draw_number(const tg_draws *d, int64_t position) {
    return d ? d->rng.counter + tg_draws_at(d, position) : 0;
}
