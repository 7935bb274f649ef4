/* Where a rank's part of a tensor lies in the global tensor. */
#ifndef TG_SHARD_INDEX_H
#define TG_SHARD_INDEX_H

#include "placement/placing.h"

/* Returns the number of axes that shard x, and fills out[] with them, in rising order. */
int tg_shard_axes(const tg_tensor *x, tg_axis out[TG_MAX_AXES]);
/* Returns whether the placement says where each rank's elements belong in the global tensor: x is neither PARTIAL nor
 * opaque on any axis. */
bool tg_shard_is_located(const tg_tensor *x);
tg_shape tg_shard_global(const tg_tensor *x); /* returns the shape of the global tensor of which x is a part */
/* Converts index `local` of dim d of a rank's part of x. Returns the index in dim d of the global tensor. at[a] is the
 * position of that rank on axis a. Sets *run to a number of local indices, from `local` on, whose global indices are
 * consecutive; more may follow. Dim d has elements, and is divisible into its chunks (tg_place_check_shards). */
int64_t tg_shard_index(const tg_tensor *x, int d, const int at[TG_MAX_AXES], int64_t local, int64_t *run);

#endif
