/* The positions of maxima in windows, from which pools with indices are composed. */
#ifndef TG_MAX_POOL_H
#define TG_MAX_POOL_H

#include "ops/common/windows.h"

/* Records the search for the greatest element of each window of x [n, c, ..]. Returns its position in its plane of x,
 * int64, in the shape of the pool's result. */
tg_tensor *tg_max_pool_positions(tg_tape *t, tg_tensor *x, const tg_windows *w);
/* Records the taking of the elements of x [n, c, ..] at positions in its channels (pool3d.c). Returns them in the shape
 * of the positions. */
tg_tensor *tg_take_positions(tg_tape *t, tg_tensor *x, tg_tensor *at);

#endif
