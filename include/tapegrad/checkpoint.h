/* Checkpoints: directories that are complete or absent, state that all ranks save together and any other composition
 * of ranks can load, and this rank's part of a whole tensor in a safetensors file. */
#ifndef TAPEGRAD_CHECKPOINT_H
#define TAPEGRAD_CHECKPOINT_H

#include <tapegrad/context.h>
#include <tapegrad/io.h>
#include <tapegrad/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Checkpoints ----
 *
 * tg_checkpoints is a directory with one subdirectory for each checkpoint, named "step-" and ten or more digits. A new
 * checkpoint is filled under a hidden name, and renamed when it is complete and on the disk. So every directory with
 * such a name is complete. */

typedef struct tg_checkpoints tg_checkpoints;

/* Opens dir, or creates it (its parent must exist), and locks it: as long as it is open, other processes and contexts
 * fail with TG_ERR_STATE. Removes unfinished checkpoints of an interrupted run. The lock ends with the process, even if
 * that is killed. Returns NULL on error; all functions accept NULL. */
TG_API tg_checkpoints *tg_checkpoints_open(tg_ctx *ctx, const char *dir);
TG_API void tg_checkpoints_close(tg_checkpoints *c); /* abandons a checkpoint that has begun */

/* Returns the step of the newest complete checkpoint, or -1 if there is none, and on error. */
TG_API int64_t tg_checkpoints_newest(tg_checkpoints *c);
/* Writes the directory of a step's checkpoint, which need not exist, to buf[n], and returns its length, like snprintf.
 * Returns 0 on error. */
TG_API size_t tg_checkpoints_path(const tg_checkpoints *c, int64_t step, char *buf, size_t n);

/* Begins the checkpoint of a step >= 0 and returns the directory to write files into (with tg_file_save,
 * tg_safetensors_save or tg_shards_save). The string belongs to c until commit or abandon. Returns NULL on error;
 * TG_ERR_STATE: the step has a checkpoint, or another one has begun. */
TG_API const char *tg_checkpoints_begin(tg_checkpoints *c, int64_t step);
/* Completes the checkpoint: syncs its directory and gives it its name. If this fails the checkpoint is abandoned. */
TG_API tg_status tg_checkpoints_commit(tg_checkpoints *c);
TG_API void tg_checkpoints_abandon(tg_checkpoints *c); /* removes it; works also if the context has an error */
/* Removes all complete checkpoints but the newest n; n = 0 removes all of them. */
TG_API tg_status tg_checkpoints_keep(tg_checkpoints *c, int n);

/* ---- Sharded state ----
 *
 * A list of tensors of all ranks, which is saved as one global state and can be loaded by any other grid of ranks.
 * The placement of a tensor says where each rank's part lies; the state of an optimizer has the placement of its
 * parameter. Every rank of a pipeline stage must add the same keys in the same order. Save and load are collective
 * over the world. */

typedef struct tg_shards tg_shards;

typedef struct tg_shard_info {
    size_t size;
    const char *key; /* the same on every rank; valid until the list is freed */
    tg_tensor *tensor;
    tg_shape global, offset; /* global shape, and first index of this rank's (first) chunk */
    tg_placement placement[TG_MAX_AXES]; /* by axis */
    int replica; /* number of this rank among those with the same part, from 0; replica 0 is saved */
} tg_shard_info;

#define TG_SHARD_INFO() ((tg_shard_info){.size = sizeof(tg_shard_info)})

/* Creates an empty list; NULL on error. The list does not own its tensors: they must outlive it (TG_ERR_HANDLE). p must
 * outlive it too. A program of one rank makes p from the communicator of tg_comm_self_new. */
TG_API tg_shards *tg_shards_new(const tg_parallel *p);
TG_API void tg_shards_free(tg_shards *s);
/* Adds the parameters of m under the keys "<prefix>.<path>", or "<path>" if prefix is NULL or "". A key has at most 511
 * bytes. A tensor that is PARTIAL, or VARYING without a layout, fails with TG_ERR_PLACEMENT; a key that exists already
 * with TG_ERR_STATE. A call that fails adds nothing. */
TG_API tg_status tg_shards_add_module(tg_shards *s, const char *prefix, tg_module *m);
/* Adds the state of an optimizer and its number of steps. Keys are made from the prefix and the keys of its
 * parameters in the list, or their names if they are not in it; so add the module first. At most 8 optimizers. */
TG_API tg_status tg_shards_add_optim(tg_shards *s, const char *prefix, tg_optim *o);
/* Adds one tensor, which must belong to the context and not to a tape (TG_ERR_STATE). */
TG_API tg_status tg_shards_add_tensor(tg_shards *s, const char *key, tg_tensor *x);
/* Adds the context's random streams, with their state at the time of saving. The default stream must be the same on
 * every rank, and named streams must have the same names in the same order. After loading, a rank continues a named
 * stream with the state of the rank that had the same positions on the axes tp, pp, etp and ep. If one of these axes
 * has another size, a named stream keeps its seed and continues after everything that any rank has drawn. If the
 * file or the context lacks a name, loading fails with TG_ERR_FORMAT. */
TG_API tg_status tg_shards_add_rng(tg_shards *s);
/* Limits the file to the first `rows` rows (dim 0) of a tensor, 1 <= rows <= its global size. The others, such as
 * those of a padded vocabulary, are not saved, and are zero after loading. Applies to the parameter of that key and
 * to its state in an optimizer. */
TG_API tg_status tg_shards_set_rows(tg_shards *s, const char *key, int64_t rows);
/* List the tensors. tg_shards_at fills *out for tensor i; out->size must be set (TG_SHARD_INFO). */
TG_API int tg_shards_count(const tg_shards *s);
TG_API tg_status tg_shards_at(const tg_shards *s, int i, tg_shard_info *out);
/* Saves the state into dir, which is created if it is missing: a safetensors file of global tensors for each
 * pipeline stage, written by the stage's first rank, which needs memory for the largest tensor and its parts. The
 * files get their names when all are complete. */
TG_API tg_status tg_shards_save(tg_shards *s, const char *dir);
/* Loads the state from dir; every rank reads the files. A key that is missing, unknown, or of another shape or dtype
 * fails with TG_ERR_FORMAT, and a tensor that does not match its checksum with TG_ERR_DATA. In both cases nothing is
 * changed on any rank. */
TG_API tg_status tg_shards_load(tg_shards *s, const char *dir);

/* ---- Parts of whole tensors ---- */

/* Reads this rank's part of the named tensor, which is whole in the file, into dst. dst's placement says which part
 * that is: shards of any layout, of several dims, over several axes. On an axis where dst is I or R nothing is cut, so
 * a dst that no axis shards, and any dst of a context without a tg_parallel, reads the whole tensor.
 *
 * The tensor in the file must have dst's global shape (tg_global_shape), or the call fails with TG_ERR_SHAPE. A dst
 * that is PARTIAL, or VARYING without a layout, fails with TG_ERR_PLACEMENT: tensors made from the caller's bytes are
 * VARYING until tg_place declares them. Dtypes, strides, devices and the other errors are as with tg_safetensors_read
 * (io.h), but a call that fails leaves dst as it was.
 *
 * The call reads only the bytes of the part, in runs that are adjacent in the file, of at most 1 MiB. It needs memory
 * for the part in the file's dtype. A checksum covers a whole tensor, so it is compared only if dst is whole. dst
 * keeps its placement, because every rank must read the same file. The call communicates with no other rank. */
TG_API tg_status tg_safetensors_read_part(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert);

#ifdef __cplusplus
}
#endif

#endif
