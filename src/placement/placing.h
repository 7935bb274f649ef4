/* Placements: how a tensor lies over the ranks of each group axis.
 *
 * A tg_placements, one placement an axis, is interned: tensors that lie alike share one, so comparing placements is
 * comparing pointers. The rule that derives them when an op is recorded is src/placement/rule.h's.
 */
#ifndef TG_PLACING_H
#define TG_PLACING_H

#include "placement/grid.h"

typedef struct tg_placements {
    tg_placement at[TG_MAX_AXES]; /* unused bytes are zero, so that equal placements are equal bytes */
    uint32_t varying, partial, replicated; /* the axes of each kind; the others are INVARIANT */
    struct tg_placements *next;
} tg_placements;

/* Returns the one tg_placements of these: NULL where all are INVARIANT. Without memory it records the error and returns
 * NULL. */
const tg_placements *tg_place_intern(tg_ctx *ctx, const tg_placement at[TG_MAX_AXES]);
/* x's placement on every axis, as the rule sees it: a caller's bytes that were never placed are opaque on every axis of
 * the dense grid. */
const tg_placements *tg_place_of(const tg_tensor *x);
tg_placement tg_place_on(const tg_tensor *x, tg_axis axis);
bool tg_placement_same(tg_placement a, tg_placement b);
/* "dp R, tp V0:s3"; "" when all are I. */
size_t tg_place_text(const tg_ctx *ctx, const tg_placements *p, char *buf, size_t n);
const char *tg_axis_name(tg_axis axis);
size_t tg_placement_name(tg_placement p, char *buf, size_t n); /* "V0:s3" */
/* In how many chunks a shard's dim is cut on each rank. */
static inline int64_t tg_placement_chunks(tg_placement p) {
    return p.layout == TG_STRIDED ? p.chunks : p.layout == TG_ZIGZAG ? 2 : 1;
}
/* How many times larger than the local one dim d of x is, over all axes that shard it. */
int64_t tg_place_scale(const tg_tensor *x, int d);
/* Whether an axis that lies so can have cut its dim in chunks: it has cut the local size times the ranks of the axes
 * within it, as p has them, and of those that may come within it yet. The second: of each axis of p. */
tg_status tg_place_check_shard(const tg_tensor *x, const tg_placements *p, tg_placement is, uint32_t yet,
                               const char *who);
tg_status tg_place_check_shards(const tg_tensor *x, const tg_placements *p, uint32_t yet, const char *who);
/* What a gradient of a tensor that lies so has: R and P change places. */
const tg_placements *tg_place_dual(tg_ctx *ctx, const tg_placements *p);
void tg_places_free(tg_ctx *ctx); /* all that were interned */

#endif
