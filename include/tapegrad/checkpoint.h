/* Checkpoints that exist whole or not at all, and the state of all ranks as one. */
#ifndef TAPEGRAD_CHECKPOINT_H
#define TAPEGRAD_CHECKPOINT_H

#include <tapegrad/context.h>
#include <tapegrad/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Checkpoints ----
 *
 * A directory that holds one subdirectory for each checkpoint, "step-" and ten or more digits. A new one is filled
 * under a hidden name and renamed when it is complete and on the disk, so whatever has a checkpoint's name is whole. */

typedef struct tg_checkpoints tg_checkpoints;

/* Opens dir, made where it is missing (its parent must exist), and locks it: while one process has it open, others, and
 * other contexts, are refused with TG_ERR_STATE. Removes what an interrupted run left unfinished. The lock ends with
 * the process, however that ends. */
TG_API tg_checkpoints *tg_checkpoints_open(tg_ctx *ctx, const char *dir);
TG_API void tg_checkpoints_close(tg_checkpoints *c); /* abandons one that has begun */

/* Step of the newest complete checkpoint; -1: there is none, or an error. */
TG_API int64_t tg_checkpoints_newest(tg_checkpoints *c);
/* Directory of a step's checkpoint, whether it exists or not; as snprintf, 0 on error. */
TG_API size_t tg_checkpoints_path(const tg_checkpoints *c, int64_t step, char *buf, size_t n);

/* Begins the checkpoint of a step that has none: the directory to write files into, with this header's functions;
 * NULL on error. Valid until commit or abandon; one at a time. */
TG_API const char *tg_checkpoints_begin(tg_checkpoints *c, int64_t step);
/* Gives it its name. On failure it is abandoned. */
TG_API tg_status tg_checkpoints_commit(tg_checkpoints *c);
TG_API void tg_checkpoints_abandon(tg_checkpoints *c); /* works after errors too */
/* Removes all but the newest n; n 0 removes all. */
TG_API tg_status tg_checkpoints_keep(tg_checkpoints *c, int n);

/* ---- Sharded state ----
 *
 * Tensors of all ranks as one global state, which any other composition of ranks loads. Where each rank's part lies is
 * read off placements: of the tensor, or of the parameter for the state of an optimiser. Every rank of a pipeline
 * stage adds the same, in the same order; save and load are collective over the world. */

typedef struct tg_shards tg_shards;

typedef struct tg_shard_info {
    size_t size;
    const char *key; /* global: the same on every rank */
    tg_tensor *tensor;
    tg_shape global, offset; /* offset of a strided or zigzag shard: of its first chunk */
    tg_placement placement[TG_MAX_AXES];
    int replica; /* counts the ranks that have this part; it is written from 0 */
} tg_shard_info;

#define TG_SHARD_INFO() ((tg_shard_info){.size = sizeof(tg_shard_info)})

/* NULL on an error. The list holds no tensor: those must outlive it. In a program of one rank p is made of
 * tg_comm_self_new's communicator. */
TG_API tg_shards *tg_shards_new(const tg_parallel *p);
TG_API void tg_shards_free(tg_shards *s);
/* Keys are "<prefix>.<path>", the path alone where prefix is NULL or "". A tensor that is PARTIAL, or VARYING without a
 * layout, is TG_ERR_PLACEMENT; a key that is there already TG_ERR_STATE. A failed call adds nothing. */
TG_API tg_status tg_shards_add_module(tg_shards *s, const char *prefix, tg_module *m);
/* An optimiser's state and count of steps, by its parameters' keys in the list: add those before. */
TG_API tg_status tg_shards_add_optim(tg_shards *s, const char *prefix, tg_optim *o);
TG_API tg_status tg_shards_add_tensor(tg_shards *s, const char *key, tg_tensor *x);
/* The context's random streams as they are when the list is saved: the default one, the same on every rank, and those
 * with names (the same names in the same order on every rank), of which each rank goes on with the state of the rank
 * that had its places on tp, pp, etp and ep. Where one of these axes has another size a named stream keeps its seed and
 * goes on behind all that was drawn. A name that either side lacks is TG_ERR_FORMAT when it is loaded. */
TG_API tg_status tg_shards_add_rng(tg_shards *s);
/* The file has so many rows of dim 0: what lies beyond, a padded vocabulary's, is not written, and zero when loaded.
 * Holds for the parameter of that key and for its state in an optimiser. */
TG_API tg_status tg_shards_set_rows(tg_shards *s, const char *key, int64_t rows);
TG_API int tg_shards_count(const tg_shards *s);
TG_API tg_status tg_shards_at(const tg_shards *s, int i, tg_shard_info *out);
/* dir, made where it is missing, receives a safetensors file of global tensors from each pipeline stage, written by its
 * first rank; they get their names when all are complete. Needs there the memory of the largest tensor and of its
 * parts. */
TG_API tg_status tg_shards_save(tg_shards *s, const char *dir);
/* Every rank reads dir. Keys that are missing, unknown, or of another shape or dtype are TG_ERR_FORMAT, and nothing is
 * changed on any rank; nor where a tensor does not fit its checksum, which is TG_ERR_DATA. */
TG_API tg_status tg_shards_load(tg_shards *s, const char *dir);

#ifdef __cplusplus
}
#endif

#endif
