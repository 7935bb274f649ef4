/* The one rule of placements (docs/placements.md), applied when an op is recorded. */
#ifndef TG_PLACEMENT_H
#define TG_PLACEMENT_H

#include "autograd/record.h"

/* Gives every output of c its placement, or refuses the call with TG_ERR_PLACEMENT: what would have gone wrong, and
 * which op mends it. After infer, before forward; only where the context's grid has an axis. */
tg_status tg_placement_derive(tg_call *c);

#endif
