/* Internals of sharded state: the list of tensors, and where each rank's part lies in the global tensor. */
#ifndef TG_SHARDS_H
#define TG_SHARDS_H

#include <tapegrad/checkpoint.h>

#include "core/context.h"

/* One tensor x. Its elements are placed like those of `like`: x itself or, if x is state of an optimizer, the parameter
 * that the state belongs to. */
typedef struct tg_shard_item {
    const char *key; /* first member, for tg_index_names */
    tg_tensor *x, *like;
    tg_ref x_ref, like_ref;
    int64_t rows; /* number of rows (dim 0) in the file; later rows of x are padding. TG_NONE means no padding */
} tg_shard_item;

/* An optimizer, and the key under which the metadata of the files contain its number of steps. */
typedef struct tg_shard_steps {
    const char *key;
    tg_optim *optim;
} tg_shard_steps;

struct tg_shards {
    tg_ctx *ctx;
    const tg_parallel *p;
    tg_shard_item *item;
    int n, capacity; /* number of items, and how many the array can hold */
    tg_shard_steps steps[8];
    int n_steps;
    bool rng; /* true: includes the context's random streams */
};

tg_status tg_shards_check(const tg_shards *s, const char *who); /* fails if a tensor of the list was dropped */

/* ---- shard_layout.c ---- */

/* Returns the number of axes that shard x, and fills out[] with them, in the order in which they are gathered. */
int tg_shard_axes(const tg_tensor *x, tg_axis out[TG_MAX_AXES]);
/* Returns this rank's number among the ranks that have the same part of x, from 0. */
int tg_shard_replica(const tg_parallel *p, const tg_tensor *x);
/* Returns whether the placement says where each rank's elements belong in the global tensor: x is neither PARTIAL nor
 * VARYING without a layout on any axis. */
bool tg_shard_is_located(const tg_tensor *x);
tg_shape tg_shard_global(const tg_tensor *x); /* returns the shape of the global tensor of which x is a part */
/* Converts index `local` of dim d of a rank's part of x. Returns the index in dim d of the global tensor. at[a] is the
 * position of that rank on axis a. Sets *run to the number of local indices, from `local` on, whose global indices are
 * consecutive. */
int64_t tg_shard_index(const tg_tensor *x, int d, const int at[TG_MAX_AXES], int64_t local, int64_t *run);
/* Copies between `whole` and `part`, the part of it that the rank at position at[a] on each axis a has. The placement
 * and the shape of x say how ranks divide the tensor. Copies to `whole` if to_whole, else to `part`. */
tg_status tg_shard_copy(const tg_tensor *x, const int at[TG_MAX_AXES], tg_tensor *whole, tg_tensor *part,
                        bool to_whole);

/* ---- shard_gather.c ---- */

/* Returns the whole tensor of item i, as a temporary, on the rank that writes the item. Returns NULL on other ranks and
 * after an error. Collective over the axes that shard the tensor. */
tg_tensor *tg_shard_whole(const tg_shards *s, const tg_shard_item *i);
bool tg_shards_writer(const tg_shards *s); /* whether this rank is the one of its pipeline stage that writes a file */

#endif
