/* Sharded state: the list, and where each rank's part lies in the global tensor. */
#ifndef TG_SHARDS_H
#define TG_SHARDS_H

#include <tapegrad/checkpoint.h>

#include "core/context.h"

/* One tensor. It lies as `like` does: itself, or the parameter whose state of an optimiser it is. */
typedef struct tg_shard_item {
    const char *key; /* first, for tg_index_names */
    tg_tensor *x, *like;
    tg_ref x_ref, like_ref;
    int64_t rows; /* of dim 0 in the file; the others are padding */
} tg_shard_item;

/* An optimiser's count of steps is kept in the file's metadata. */
typedef struct tg_shard_steps {
    const char *key;
    tg_optim *optim;
} tg_shard_steps;

struct tg_shards {
    tg_ctx *ctx;
    const tg_parallel *p;
    tg_shard_item *item;
    int n, room;
    tg_shard_steps steps[8];
    int n_steps;
    bool rng; /* with the context's random streams */
};

tg_status tg_shards_check(const tg_shards *s, const char *who); /* every tensor is still there */

/* ---- shard_map.c ---- */

/* The axes that shard x, one after the other as they are gathered; returns how many. */
int tg_shard_axes(const tg_tensor *x, tg_axis out[TG_MAX_AXES]);
/* The ranks that have this rank's part of x too: 0 on the first of them. */
int tg_shard_replica(const tg_parallel *p, const tg_tensor *x);
tg_shape tg_shard_global(const tg_tensor *x);
/* Where index `local` of dim d of x's part on the rank at these places of the axes lies in the whole dim; *run: how
 * many follow each other there. */
int64_t tg_shard_index(const tg_tensor *x, int d, const int at[TG_MAX_AXES], int64_t local, int64_t *run);
/* Copies between the part of x that the rank at these places has (data, row-major) and the whole tensor (row-major). */
tg_status tg_shard_copy(const tg_tensor *x, const int at[TG_MAX_AXES], tg_tensor *whole, tg_tensor *part,
                        bool to_whole);

/* ---- shard_gather.c ---- */

/* The whole of s's tensor on the rank that writes it, a temp (NULL elsewhere, and on error). Collective over the axes
 * that shard it. */
tg_tensor *tg_shard_whole(const tg_shards *s, const tg_shard_item *i);
bool tg_shards_writer(const tg_shards *s); /* whether this rank writes a file: the first of its pipeline stage */

#endif
