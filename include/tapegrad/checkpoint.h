/* Checkpoints: directories that are complete or absent, state that all ranks save together and any other composition
 * of ranks can load, and this rank's part of a whole tensor in a safetensors file. */
#ifndef TAPEGRAD_CHECKPOINT_H
#define TAPEGRAD_CHECKPOINT_H

#include <tapegrad/average.h>
#include <tapegrad/context.h>
#include <tapegrad/io.h>
#include <tapegrad/placement.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Checkpoints ----
 *
 * A tg_checkpoints is a directory with one subdirectory for each checkpoint, named "step-" and ten or more digits. The
 * files of a new checkpoint are written into a subdirectory with a hidden name. That is renamed when all its files are
 * complete and on the disk, so every subdirectory named "step-..." is complete.
 *
 * The system must know the directory: it is locked, listed and emptied by system calls, also in a context with file
 * functions of its own (tg_config.files). */

typedef struct tg_checkpoints tg_checkpoints;

/* Opens the directory dir and locks it. Creates dir if it is missing; its parent must exist. Removes the unfinished
 * checkpoints of an interrupted run. While dir is open, opening it again, also in another process, fails with
 * TG_ERR_STATE, as does opening it while another process removes it. The lock ends with the process, even if the
 * process is killed. Returns NULL on an error. All functions below accept NULL. */
TG_API tg_checkpoints *tg_checkpoints_open(tg_ctx *ctx, const char *dir);
/* Closes the directory. Abandons a checkpoint that has begun. */
TG_API void tg_checkpoints_close(tg_checkpoints *c);

/* Returns the step of the newest complete checkpoint; -1 if there is none or on an error. */
TG_API int64_t tg_checkpoints_newest(tg_checkpoints *c);
/* Writes the path of the checkpoint of a step to buf[n], and returns the length of the whole path, like snprintf.
 * Returns 0 on an error. The checkpoint need not exist. */
TG_API size_t tg_checkpoints_path(const tg_checkpoints *c, int64_t step, char *buf, size_t n);

/* Begins the checkpoint of a step >= 0. Returns the path of the directory to write its files into (with tg_file_save,
 * tg_safetensors_save or tg_shards_save). The string belongs to c, and is valid until the checkpoint is committed or
 * abandoned. Returns NULL on an error. Fails with TG_ERR_STATE if the step has a checkpoint already, or if another
 * checkpoint has begun. */
TG_API const char *tg_checkpoints_begin(tg_checkpoints *c, int64_t step);
/* Completes the checkpoint that has begun: syncs its directory to the disk and renames it. If this fails, the
 * checkpoint is abandoned. */
TG_API tg_status tg_checkpoints_commit(tg_checkpoints *c);
/* Removes the checkpoint that has begun. Works also while the context has an error. */
TG_API void tg_checkpoints_abandon(tg_checkpoints *c);
/* Removes all complete checkpoints except the newest n. n = 0 removes all of them. */
TG_API tg_status tg_checkpoints_keep(tg_checkpoints *c, int n);

/* ---- Sharded state ----
 *
 * A tg_shards is a list of tensors. Of each tensor, every rank has the whole or a part. The list is saved as one global
 * state, which a grid of ranks of any other shape (parallel.h) can load. The placement of a tensor (placement.h) says
 * where in the global tensor each rank's part lies. The state of an optimizer has the placement of its parameter.
 * Saving and loading are collective over the world: every rank makes the call.
 *
 * Each rank writes a file, rank-NNNNN.safetensors, of parts that it has, and rank 0 an index of all, index.json. If
 * several ranks have the same part, as data-parallel ranks do, one of them writes it. Two ranks that have the same
 * parts write numbers of bytes that differ by at most the size of the largest part. No bytes of tensors move between
 * ranks. The format is described in src/checkpoint/state_index.h. Directories of earlier versions can be loaded.
 *
 * A parameter that ranks share (tg_share in parallel.h) is saved once, with its state in an optimizer, under the keys
 * of the first of its owners, the ranks that share it. All owners read it. So each owner must add the parameter and its
 * state (TG_ERR_MISMATCH). If an owner uses other keys than the first owner, it adds its shared parameters in the same
 * order. A checkpoint of an earlier version, which has every copy, can be loaded. */

/* One tensor of a list (tg_shards_at). */
typedef struct tg_shard_info {
    size_t size;
    const char *key; /* the same on every rank; valid until the list is freed */
    tg_tensor *tensor;
    /* whole is the shape of the global tensor, with the dims of tg_shards_push in front. offset has an index for each
     * of these dims: that of the first element of this rank's part or, if the part has several chunks, of the first
     * chunk. */
    tg_shape whole, offset;
    tg_placement placement[TG_MAX_AXES]; /* by axis */
    /* Number of this rank among the ranks that have the same part by their placement, from 0. The owners of a shared
     * parameter (tg_share) have the same part too. */
    int replica;
} tg_shard_info;

#define TG_SHARD_INFO() ((tg_shard_info){.size = sizeof(tg_shard_info)})

/* Creates an empty list; NULL on an error. The list does not own the tensors that are added to it. p and these tensors
 * must outlive the list; a tensor that was dropped fails with TG_ERR_HANDLE. A program of one rank makes p from the
 * communicator of tg_comm_self_new (comm.h). */
TG_API tg_shards *tg_shards_new(const tg_parallel *p);
TG_API void tg_shards_free(tg_shards *s);
/* Adds the state dict of m (nn.h) under the keys "<prefix>.<path>", or "<path>" if prefix is NULL or "": of each module
 * its parameters, its buffers that are not transient, and its children. For m and each module in it, if the module's
 * table has the function `shards` (tg_module_ops), that function adds the module's state instead. A key has at most 511
 * bytes. A tensor that is PARTIAL, or VARYING and opaque (TG_V), fails with TG_ERR_PLACEMENT. A key that exists already
 * fails with TG_ERR_STATE. A tensor that m has under several names is added once, under its first key. A call that
 * fails adds nothing.
 *
 * While `shards` of a module runs, this function and tg_shards_add_tensor put the path of that module in front of their
 * prefix or key. So tg_shards_add_module(s, "body", tg_module_child(m, "body")) in `shards` of m adds the child "body"
 * under the keys that it would have without `shards`. */
TG_API tg_status tg_shards_add_module(tg_shards *s, const char *prefix, tg_module *m);
/* Stack the tensors of one key, so that a list of layers is saved as one tensor for each parameter, as Megatron-Core's
 * prepended offsets do. tg_shards_push says that the tensors that are added until the matching tg_shards_pop are slices
 * of larger tensors. A larger tensor has one more dim, of size n, in front of the others. Each added tensor is its
 * slice with index i in [0, n). Call tg_shards_push and tg_shards_pop once for each index. tg_shards_push puts
 * "<name>." in front of the keys (name may be NULL or ""), but not i: tensors that are added with one key and different
 * indices are slices of one larger tensor.
 *
 * Pushes nest, up to 4. Tensors of one key must have the same dtype and global shape (TG_ERR_SHAPE), and the same dims
 * in front (TG_ERR_STATE). Different pipeline stages may add different indices. The state tensors of an optimizer get
 * the same dims in front as their parameter. */
TG_API tg_status tg_shards_push(tg_shards *s, const char *name, int64_t n, int64_t i);
TG_API tg_status tg_shards_pop(tg_shards *s);
/* Adds the state tensors of an optimizer and its number of steps. The key of a state tensor is made from the prefix and
 * the key that the parameter has in the list, so add the module first. If the list does not have the parameter, the
 * name of the parameter is used instead. A list has at most 8 optimizers (TG_ERR_STATE). */
TG_API tg_status tg_shards_add_optim(tg_shards *s, const char *prefix, tg_optim *o);
/* Adds averages of parameters (average.h) and their number of updates, under "<key of the parameter>.average" and
 * "updates", with the prefix in front. */
TG_API tg_status tg_shards_add_average(tg_shards *s, const char *prefix, tg_average *a);
/* Adds one tensor, which must belong to the context and not to a tape (TG_ERR_STATE). */
TG_API tg_status tg_shards_add_tensor(tg_shards *s, const char *key, tg_tensor *x);
/* Adds x [end - begin], which has only the elements begin to end - 1 of this rank's part of param, row-major. Other
 * ranks add the other elements under the same key; together they must have each element of the global tensor, and a
 * range may be empty. If param is in the list, the key gets the dims in front and the limit of rows
 * (tg_shards_set_rows) that param has. In addition to the errors of tg_shards_add_tensor, a range that leaves the part
 * fails with TG_ERR_ARGUMENT, and an x of another shape with TG_ERR_SHAPE. */
TG_API tg_status tg_shards_add_range(tg_shards *s, const char *key, tg_tensor *x, tg_tensor *param, int64_t begin,
                                     int64_t end);
/* Adds the random streams of the context, with the states that they have when the list is saved, and the step of keyed
 * draws (tg_draws_step). The default stream must be the same on every rank, or, with TG_RNG_MEGATRON, on every rank of
 * a pipeline stage. Named streams must have the same names in the same order on every rank.
 *
 * Loading gives a named stream the state that it had on a rank with the same positions on the axes tp, pp, etp and ep.
 * If one of these axes now has another size, a named stream keeps the seed that it has in the context, and its counter
 * becomes at least the largest that any rank has saved, so that no number is drawn twice. If the file or the context
 * lacks one of the names, loading fails with TG_ERR_FORMAT. */
TG_API tg_status tg_shards_add_rng(tg_shards *s);
/* Limits what is saved of a tensor to the first `rows` rows (dim 0) of the global tensor. rows is at least 1 and at
 * most the number of rows. The other rows, such as those of a padded vocabulary, are not saved, and are zero after
 * loading. If the key is that of a parameter, its state in an optimizer is limited too. A tensor added after
 * tg_shards_push cannot be limited (TG_ERR_ARGUMENT). */
TG_API tg_status tg_shards_set_rows(tg_shards *s, const char *key, int64_t rows);
/* List the tensors. tg_shards_count returns their number. tg_shards_at fills *out, which TG_SHARD_INFO() initializes,
 * for tensor i. */
TG_API int tg_shards_count(const tg_shards *s);
TG_API tg_status tg_shards_at(const tg_shards *s, int i, tg_shard_info *out);

typedef struct tg_save tg_save;

typedef struct tg_save_opts {
    size_t size;
    bool background; /* true: the call copies the bytes and returns, and a thread writes them; false: it writes them */
} tg_save_opts;
#define TG_SAVE_DEFAULTS .size = sizeof(tg_save_opts)
#define TG_SAVE(...) (&(tg_save_opts){TG_SAVE_DEFAULTS, __VA_ARGS__})

/* Begin and finish a save of the state into dir, which is created if it is missing; its parent must exist. Both are
 * collective.
 *
 * When tg_shards_save_begin returns, the bytes that the tensors have now are held, and the program may change them.
 * Without .background this rank's file has been written then. With .background the parts that this rank writes have
 * been copied to host memory (memory that the device can write directly, if there is some), and a thread writes the
 * file while training goes on. The thread calls the functions of tg_config.files and the allocator. It has the lowest
 * priority, so that it gives way to training where cores are scarce. tg_save_test returns whether this rank's file has
 * been written, or has failed; true if w is NULL.
 *
 * tg_save_finish waits for the files of all ranks, writes the index, and frees w, after an error too. The new state is
 * complete when it returns TG_OK. If a call fails, or the program ends between the two calls, the state that dir had
 * before is still complete. To keep that state even if the save succeeds, save into the directory of
 * tg_checkpoints_begin, and call tg_checkpoints_commit after tg_save_finish. A list has at most one save at a time
 * (TG_ERR_STATE); the list may be freed before tg_save_finish.
 *
 * Fails with TG_ERR_FORMAT if the parts that the ranks have added overlap, or leave out elements of a tensor, and with
 * TG_ERR_SHAPE if ranks have given one key tensors of different dtypes or global shapes.
 *
 * The ranks communicate by two barriers, an all-gather of 16 bytes, and one of 16 bytes for each part that a rank has;
 * they also send the random streams and the keys of shared parameters. Without .background the call needs 1 MiB of
 * memory, and none for tensors that are contiguous and on the CPU. (Distributed checkpoints of parts by any rank:
 * Megatron-Core's dist_checkpointing, PyTorch's torch.distributed.checkpoint.) */
TG_API tg_save *tg_shards_save_begin(tg_shards *s, const char *dir, const tg_save_opts *opts); /* NULL on an error */
TG_API bool tg_save_test(tg_save *w);
TG_API tg_status tg_save_finish(tg_save *w);
/* Does what tg_shards_save_begin without .background and tg_save_finish do. */
TG_API tg_status tg_shards_save(tg_shards *s, const char *dir);

typedef struct tg_shards_load_opts {
    size_t size;
    bool partial; /* keys that are missing or unknown are reported, not refused; missing tensors keep their values */
    /* Load only the keys of the directory that begin with "<from_prefix>.". Each is loaded into the key of the list
     * that begins with "<to_prefix>." and continues in the same way. All other keys are ignored. NULL or "" stands for
     * no prefix. If either is given, the random streams are not loaded. The numbers of steps of optimizers have keys
     * too, and are loaded if these match. */
    const char *from_prefix, *to_prefix;
    /* Memory of report_size bytes for a report: a line "missing KEY" or "unknown KEY" for each such key, cut to
     * report_size, with a terminating zero. NULL means no report. */
    char *report;
    size_t report_size;
    /* Set by the call: the number of keys of this rank's list that dir lacks, and that of keys of dir that are in no
     * rank's list. */
    int missing, unknown;
} tg_shards_load_opts;
#define TG_SHARDS_LOAD_DEFAULTS .size = sizeof(tg_shards_load_opts)
#define TG_SHARDS_LOAD(...) (&(tg_shards_load_opts){TG_SHARDS_LOAD_DEFAULTS, __VA_ARGS__})

/* Load the state from dir. Every rank reads the index, and the bytes of its own parts. Loading fails with TG_ERR_FORMAT
 * if dir lacks a key of the list, has a key that is in no rank's list, or has a tensor of another shape or dtype; if
 * pieces of a tensor overlap or are missing; or if a file is of another save. It fails with TG_ERR_DATA if a checksum
 * does not match; the ranks together verify all files. In these cases nothing is changed on any rank. opts may be
 * NULL. */
TG_API tg_status tg_shards_load(tg_shards *s, const char *dir);
TG_API tg_status tg_shards_load_with(tg_shards *s, const char *dir, tg_shards_load_opts *opts);

/* Reads all of the state in dir, on one rank, and compares all checksums. Sets *damaged to the number of faults, and
 * writes a line for each to report, cut to report_size bytes with the terminating zero; report may be NULL. A fault is
 * a file that is missing, damaged or of another save, a tensor whose bytes are damaged, or pieces that overlap or are
 * missing. Returns TG_OK if the comparison could be made, whatever it found. */
TG_API tg_status tg_shards_verify(tg_ctx *ctx, const char *dir, char *report, size_t report_size, int *damaged);

/* ---- The state dict of a module in a safetensors file ---- */

typedef struct tg_load_opts {
    size_t size;
    bool partial;       /* keys that are missing or unknown are reported, not refused */
    bool convert;       /* floats of another dtype are converted, as by tg_safetensors_read */
    const char *prefix; /* the keys begin with "<prefix>."; other keys are ignored. NULL or "" means no prefix */
    /* Memory of report_size bytes for a report: a line "missing KEY" or "unknown KEY" for each such key, cut to
     * report_size, with a terminating zero. NULL means no report. */
    char *report;
    size_t report_size;
    int missing, unknown; /* set by the call: number of tensors that the file lacks, and of keys that m lacks */
} tg_load_opts;
#define TG_LOAD_DEFAULTS .size = sizeof(tg_load_opts)
#define TG_LOAD(...) (&(tg_load_opts){TG_LOAD_DEFAULTS, __VA_ARGS__})

/* Loads the state dict of m (nn.h) from a safetensors file or an index of several (tg_safetensors_open). Each rank
 * reads its parts of the whole tensors, as the placements say; the call communicates with no other rank. A tensor of
 * another shape or dtype fails with TG_ERR_FORMAT, and so do missing and unknown keys unless opts->partial is set. The
 * report is written in either case. Tensors that this rank reads as a whole are compared with their checksums
 * (TG_ERR_DATA). All checks are made before anything changes. opts may be NULL. */
TG_API tg_status tg_module_load(tg_module *m, const char *file, tg_load_opts *opts);

/* Saves the state dict of m (nn.h) to one safetensors file, which tg_module_load reads: the tensors with their paths as
 * names. A tensor that has several names is saved under the first one. The file gets its name when it is complete and
 * on the disk, so an older file of that name is replaced as a whole or, on an error, not at all. One rank alone makes
 * the call. A tensor that is a shard, PARTIAL or opaque fails with TG_ERR_PLACEMENT, because this rank has only a part
 * of it; tg_shards_save saves modules of several ranks. */
TG_API tg_status tg_module_save(tg_module *m, const char *file);

/* ---- Parts of whole tensors ---- */

/* Reads this rank's part of the named tensor, which is whole in the file, into dst. The placement of dst says which
 * part that is. dst may be a shard of any layout, along several dims and over several axes. On an axis on which dst is
 * I or R (TG_I, TG_R in placement.h), its ranks all read the same. If no axis shards dst, or if the context has no
 * tg_parallel, the whole tensor is read.
 *
 * The tensor in the file must have dst's global shape (tg_global_shape); otherwise the call fails with TG_ERR_SHAPE. A
 * dst that is PARTIAL, or VARYING and opaque (TG_V), fails with TG_ERR_PLACEMENT. A tensor made from the caller's bytes
 * is opaque until tg_place declares it. Everything else about dtypes, strides, devices and errors is as for
 * tg_safetensors_read (io.h), except that a call that fails leaves dst unchanged.
 *
 * Only the bytes of the part are read, in pieces of at most 1 MiB that are contiguous in the file. The call needs
 * memory for the part in the file's dtype. A checksum covers a whole tensor, so it is compared only if dst is whole.
 * The call communicates with no other rank, and dst keeps its placement. So every rank must read from equal files. */
TG_API tg_status tg_safetensors_read_part(tg_safetensors *f, const char *name, tg_tensor *dst, bool convert);

#ifdef __cplusplus
}
#endif

#endif
