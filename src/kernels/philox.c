/* The public function that returns which draw of a random stream an element takes (device.h). */
#include "kernels/philox.h"

uint64_t tg_draw_number(const tg_draws *d, int64_t position) {
    return d ? d->rng.counter + tg_draws_at(d, position) : 0;
}
