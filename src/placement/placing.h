/* Placements: how a tensor is distributed over the ranks of each group axis. Comments and messages write I, R, P and V
 * for INVARIANT, REPLICATED, PARTIAL and VARYING (tg_placement_kind in types.h), and Vd for a shard of dim d.
 *
 * A tg_placements has one placement for each axis. It is interned: tensors of equal placements share one, so
 * comparing placements compares pointers. The rule that derives the placements of an op's outputs is in
 * placement/rule.h. */
#ifndef TG_PLACING_H
#define TG_PLACING_H

#include "placement/grid.h"

typedef struct tg_placements {
    tg_placement at[TG_MAX_AXES]; /* unused bytes are zero, so that equal placements have equal bytes */
    uint32_t varying, partial, replicated; /* the axes of each kind; all other axes are INVARIANT */
    struct tg_placements *next;
} tg_placements;

/* Returns the one tg_placements with these values; NULL if all are INVARIANT. Returns NULL after recording the error
 * if memory is short. */
const tg_placements *tg_place_intern(tg_ctx *ctx, const tg_placement at[TG_MAX_AXES]);
/* Returns x's placement on every axis, as the rule reads it. A caller's bytes that were never placed are opaque on
 * every axis of the dense grid. */
const tg_placements *tg_place_of(const tg_tensor *x);
/* Returns x's placement on one axis; INVARIANT on an axis that the grid does not use. */
tg_placement tg_place_on(const tg_tensor *x, tg_axis axis);
/* Returns whether the placements are equal in all fields that their kind and layout use. */
bool tg_placement_same(tg_placement a, tg_placement b);
/* Returns whether p shards a dim in a known layout. */
static inline bool tg_placement_shards(tg_placement p) { return p.kind == TG_VARYING && p.layout != TG_OPAQUE; }
/* Writes all placements other than I, in the order of tg_axis, such as "tp V0:s3, dp R" (V0 is a shard of dim 0, s3
 * says that it is strided with 3 chunks); "" if all are I. */
size_t tg_place_text(const tg_ctx *ctx, const tg_placements *p, char *buf, size_t n);
/* Returns whether p, which may be NULL, places a parameter on an axis of the expert grid: it then belongs to an
 * expert. */
static inline bool tg_place_is_expert(const tg_placements *p) {
    return p && (p->varying | p->replicated) & TG_EXPERT_AXES;
}
const char *tg_axis_name(tg_axis axis); /* such as "tp"; "none" for a number that is no axis */
size_t tg_placement_name(tg_placement p, char *buf, size_t n); /* writes "V0:s3" */
/* Returns the number of chunks that each rank's shard consists of. */
static inline int64_t tg_placement_chunks(tg_placement p) {
    return p.layout == TG_STRIDED ? p.chunks : p.layout == TG_ZIGZAG ? 2 : 1;
}
/* Returns the number, among the chunks of the whole dim, of chunk j of a rank's shard. n is the number of ranks. */
static inline int64_t tg_placement_chunk(tg_placement p, int64_t j, int64_t rank, int64_t n) {
    return p.layout == TG_ZIGZAG && j ? 2 * n - 1 - rank : j * n + rank;
}
/* Returns how many times larger dim d of the global tensor is than the local one, over all axes that shard it. */
int64_t tg_place_scale(const tg_tensor *x, int d);
/* tg_place_check_shard fails with TG_ERR_SHAPE unless the shard of an axis, which is placed as `is`, is divisible into
 * its chunks. The minor axes of the same dim divide this shard further. So its size is the local size in x times the
 * ranks of the minor axes: those that p has, and those in the bit mask `yet`, which may still be placed.
 * tg_place_check_shards makes the check for all axes of p. */
tg_status tg_place_check_shard(const tg_tensor *x, const tg_placements *p, tg_placement is, uint32_t yet,
                               const char *who);
tg_status tg_place_check_shards(const tg_tensor *x, const tg_placements *p, uint32_t yet, const char *who);
/* Returns the placement of a gradient of a tensor that is placed as p: R and P change places. */
const tg_placements *tg_place_dual(tg_ctx *ctx, const tg_placements *p);
/* Returns whether x is a copy of a parameter of tg_share that this rank must leave out of sums over all parameters,
 * such as norms: rank 0 of the group adds its own copy. x may be a range of such a parameter. */
bool tg_is_share_copy(const tg_tensor *x);
void tg_places_free(tg_ctx *ctx); /* frees all interned placements */

#endif
