/* Checkpoints: directories that are complete or absent, state that all ranks save together and that ranks on any other
 * grid can load, and this rank's part of a whole tensor in a safetensors file. */
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
 * files of a new checkpoint are written into a subdirectory with a hidden name. The subdirectory gets its final name
 * when all its files are complete and on the disk, so every subdirectory named "step-..." is complete.
 *
 * Only one process at a time can have the directory open. With several ranks, one of them, such as rank 0, makes the
 * calls, and sends the path of tg_checkpoints_begin to the others.
 *
 * The directory must be on a file system of the operating system, even if the context has file functions of its own
 * (tg_config.files), because the library locks, lists and removes by system calls.
 *
 * All functions accept NULL as c. tg_checkpoints_newest then returns -1, tg_checkpoints_path 0, and
 * tg_checkpoints_begin NULL; functions that return a status return TG_ERR_ARGUMENT. */

typedef struct tg_checkpoints tg_checkpoints;

/* Opens the directory dir and locks it. Creates dir if it is missing; its parent must exist. Removes the unfinished
 * checkpoints of an interrupted run. Opening a directory that is open already, in this process or another one, fails
 * with TG_ERR_STATE. So does opening one that another process removes at the same time. The lock ends with the process,
 * even if the process is killed. Returns NULL on an error. */
TG_API tg_checkpoints *tg_checkpoints_open(tg_ctx *ctx, const char *dir);
/* Closes the directory, and abandons a checkpoint that has begun. Call it before the context is freed. */
TG_API void tg_checkpoints_close(tg_checkpoints *c);

/* Returns the greatest step that has a complete checkpoint; -1 if there is none or on an error. */
TG_API int64_t tg_checkpoints_newest(tg_checkpoints *c);
/* Writes the final path of the checkpoint of a step to buf[n], and returns the length of the whole path, like snprintf.
 * Returns 0 if step is negative. The checkpoint need not exist. */
TG_API size_t tg_checkpoints_path(const tg_checkpoints *c, int64_t step, char *buf, size_t n);

/* Begins the checkpoint of a step >= 0. Returns the path of the hidden directory to write its files into, for example
 * with tg_file_save, tg_safetensors_save or tg_shards_save. The string belongs to c, and is valid until the checkpoint
 * is committed or abandoned, or c is closed. Returns NULL on an error. Fails with TG_ERR_STATE if the step has a
 * checkpoint already, or if another checkpoint has begun. */
TG_API const char *tg_checkpoints_begin(tg_checkpoints *c, int64_t step);
/* Completes the checkpoint that has begun: syncs its directory to the disk, gives it its final name, and syncs the
 * parent directory. The files themselves must be on the disk already, as tg_file_save, tg_safetensors_save and
 * tg_shards_save leave them. An error before the renaming, or one that the context has already, abandons the
 * checkpoint. If only the last sync fails, the checkpoint is complete, but its name may not survive a crash of the
 * system. Fails with TG_ERR_STATE if no checkpoint has begun. */
TG_API tg_status tg_checkpoints_commit(tg_checkpoints *c);
/* Removes the checkpoint that has begun; does nothing if there is none. Works also while the context has an error. */
TG_API void tg_checkpoints_abandon(tg_checkpoints *c);
/* Removes all complete checkpoints except the n of the greatest steps, n >= 0. A checkpoint that has begun stays. */
TG_API tg_status tg_checkpoints_keep(tg_checkpoints *c, int n);

/* ---- Sharded state ----
 *
 * A tg_shards is a rank's list of tensors. Of each tensor, the rank has the whole or a part. Ranks may list different
 * tensors, as pipeline stages do. The lists of all ranks are saved as one global state, which ranks on a grid of the
 * same or any other shape (parallel.h) can load. The placement of a tensor (placement.h) says where in the global
 * tensor each rank's part lies. The state of an optimizer has the placement of its parameter. Saving and loading are
 * collective over the world: every rank makes the call. On device "meta" they fail with TG_ERR_DEVICE.
 *
 * Each rank writes its parts to a file whose name begins with "rank-NNNNN". If several ranks have the same part, as
 * data-parallel ranks do, only one of them writes it. The bytes are balanced: if two ranks have the same parts, what
 * they write differs by at most the size of the largest part. Rank 0 also writes index.json, the index of all files. No
 * bytes of tensors move between ranks. The format is described in src/checkpoint/state/state_index.h. Directories of
 * earlier versions can be loaded.
 *
 * A parameter that ranks share (tg_share in parallel.h) is saved once, and so is its state in an optimizer. The ranks
 * that share it are its owners. The state has it under the keys of the first owner, and all owners read it. Each owner
 * must add the parameter and its state; otherwise saving and loading fail with TG_ERR_MISMATCH. An owner may use other
 * keys than the first owner if it adds its shared parameters in the same order. A checkpoint of an earlier version,
 * which has every copy, can be loaded. */

/* One tensor of a list (tg_shards_at). */
typedef struct tg_shard_info {
    size_t size;
    const char *key; /* valid until the list is freed */
    tg_tensor *tensor;
    /* whole is the shape of the global tensor, with the dims of tg_shards_push in front, and with the rows that
     * tg_shards_set_rows leaves out. offset has an index for each of these dims: that of the first element of this
     * rank's part or, if the part has several chunks, of the first chunk. For state of an optimizer, and for a tensor
     * of tg_shards_add_range, the part is that of the parameter. */
    tg_shape whole, offset;
    tg_placement placement[TG_MAX_AXES]; /* by axis (tg_axis) */
    /* Number of this rank among the ranks that have the same part by their placement, from 0. The owners of a shared
     * parameter (tg_share) have the same part too. */
    int replica;
} tg_shard_info;

#define TG_SHARD_INFO() ((tg_shard_info){.size = sizeof(tg_shard_info)})

/* Creates an empty list. Returns NULL on an error, or if p is NULL. The list does not own the tensors, optimizers and
 * averages that are added to it. They and p must outlive the list; saving or loading a list that has a dropped tensor
 * fails with TG_ERR_HANDLE. A program of one rank makes p from the communicator of tg_comm_self_new (comm.h). Functions
 * that take a list accept NULL, and then return TG_ERR_ARGUMENT, NULL or 0. */
TG_API tg_shards *tg_shards_new(const tg_parallel *p);
TG_API void tg_shards_free(tg_shards *s);
/* Adds the state dict of m (nn.h) under the keys "<prefix>.<path>", or "<path>" if prefix is NULL or "". For m, and
 * then for each module in it, these are the parameters and the buffers that are not transient. If the table of one of
 * these modules has the function `shards` (tg_module_ops), that function adds the state of the module and its children
 * instead; if it returns an error and the context has none, the call fails with TG_ERR_CALLBACK. A key has at most 511
 * bytes (TG_ERR_ARGUMENT). A tensor that is PARTIAL, or VARYING and opaque (TG_V), fails with TG_ERR_PLACEMENT. A key
 * that exists already fails with TG_ERR_STATE, except for another slice of one tensor (tg_shards_push). A tensor that m
 * has under several names is added once, under its first key. A call that fails adds nothing.
 *
 * While `shards` of a module runs, this function, tg_shards_add_tensor and tg_shards_add_range put the path of that
 * module in front of their prefix or key. So tg_shards_add_module(s, "body", tg_module_child(m, "body")) in `shards` of
 * m adds the child "body" under the keys that it would have without `shards`. */
TG_API tg_status tg_shards_add_module(tg_shards *s, const char *prefix, tg_module *m);
/* Stack the tensors of one key, so that a list of n >= 1 layers is saved as one tensor for each parameter, as with
 * Megatron-Core's prepended offsets. tg_shards_push says that the tensors that are added until the matching
 * tg_shards_pop are slices of larger tensors. A larger tensor has one more dim, of size n, in front of the others. Each
 * added tensor is its slice with index i in [0, n). Call tg_shards_push and tg_shards_pop once for each index that this
 * rank has. tg_shards_push puts "<name>." in front of the keys, or nothing if name is NULL or "". The keys do not have
 * i: tensors that are added with one key and different indices are slices of one larger tensor.
 *
 * Pushes nest, up to 4 (TG_ERR_STATE). A tensor and the dims in front of it have at most TG_MAX_DIMS dims together
 * (TG_ERR_SHAPE). A pop without a push, and one in `shards` of a module of a dim that was pushed before, fail with
 * TG_ERR_STATE. Tensors of one key must have the same dtype and global shape (TG_ERR_SHAPE), and the same dims in front
 * (TG_ERR_STATE). Different pipeline stages may add different indices. The state tensors of an optimizer get the same
 * dims in front as their parameter. A tensor that is added under several keys must have the same dims and indices in
 * front under each (TG_ERR_STATE). */
TG_API tg_status tg_shards_push(tg_shards *s, const char *name, int64_t n, int64_t i);
TG_API tg_status tg_shards_pop(tg_shards *s);
/* Adds the state tensors of an optimizer under "<prefix>.<key of the parameter>.<name of the state>", its number of
 * steps under "<prefix>.steps", and its loss scale, if that is dynamic, under "<prefix>.loss_scale". Master weights
 * count as a state with the name "master". prefix may be NULL or "", which leaves out "<prefix>.". Add the module
 * first, because the key of a parameter is the one that it has in the list. If the list does not have the parameter,
 * its name is used instead. A list has at most 8 optimizers (TG_ERR_STATE). */
TG_API tg_status tg_shards_add_optim(tg_shards *s, const char *prefix, tg_optim *o);
/* Adds averages of parameters (average.h) under "<prefix>.<key of the parameter>.average", and their number of updates
 * under "<prefix>.updates". prefix and keys are as for tg_shards_add_optim. */
TG_API tg_status tg_shards_add_average(tg_shards *s, const char *prefix, tg_average *a);
/* Adds one tensor under a key of 1 to 511 bytes of UTF-8. Fails with TG_ERR_STATE if the tensor belongs to a tape.
 * Otherwise errors are as for tg_shards_add_module. */
TG_API tg_status tg_shards_add_tensor(tg_shards *s, const char *key, tg_tensor *x);
/* Adds x [end - begin], which has only the elements begin to end - 1, in row-major order, of this rank's part of param.
 * Other ranks add the other elements under the same key. All ranks together must have each element of the global
 * tensor. begin and end may be equal. If param is in the list, the key gets the dims in front and the limit of rows
 * (tg_shards_set_rows) that param has. In addition to the errors of tg_shards_add_tensor, a range that is not in [0,
 * elements of the part) fails with TG_ERR_ARGUMENT, and an x of another shape with TG_ERR_SHAPE. */
TG_API tg_status tg_shards_add_range(tg_shards *s, const char *key, tg_tensor *x, tg_tensor *param, int64_t begin,
                                     int64_t end);
/* Adds the random streams of the context and the step of keyed draws (tg_draws_step). A save writes the states at the
 * time of tg_shards_save_begin. The default stream must have the same state on every rank or, with TG_RNG_MEGATRON, on
 * every rank of a pipeline stage. The context must have the same named streams, in the same order, on every rank. A
 * second call fails with TG_ERR_STATE.
 *
 * Loading gives a named stream the state that it had on a rank with the same positions on the axes tp, pp, etp and ep.
 * If one of these axes now has another size, a named stream keeps the seed that it has in the context. Its counter
 * becomes the largest of its own and those that all ranks have saved, so that no number is drawn twice. With
 * TG_RNG_MEGATRON and several pipeline stages, loading treats the default stream in the same way. If the directory or
 * the context lacks a stream that the other one has, loading fails with TG_ERR_FORMAT. */
TG_API tg_status tg_shards_add_rng(tg_shards *s);
/* Limits what is saved of a tensor to the first `rows` rows (dim 0) of the global tensor, from 1 to all of them. The
 * other rows, such as those of a padded vocabulary, are not saved, and are zero after loading. If the key is that of a
 * parameter, its state in an optimizer is limited too. Fails with TG_ERR_ARGUMENT if the list lacks the key, if rows is
 * out of range, or if the tensor was added between tg_shards_push and tg_shards_pop. */
TG_API tg_status tg_shards_set_rows(tg_shards *s, const char *key, int64_t rows);
/* List the tensors of this rank, in the order in which they were added. tg_shards_count returns their number.
 * tg_shards_at fills *out, which TG_SHARD_INFO() initializes, for tensor i. An index out of range fails with
 * TG_ERR_ARGUMENT. */
TG_API int tg_shards_count(const tg_shards *s);
TG_API tg_status tg_shards_at(const tg_shards *s, int i, tg_shard_info *out);

typedef struct tg_save tg_save;

typedef struct tg_save_opts {
    size_t size;
    bool background; /* a thread writes the file; false by default: the call writes it before it returns */
} tg_save_opts;
#define TG_SAVE_DEFAULTS .size = sizeof(tg_save_opts)
#define TG_SAVE(...) (&(tg_save_opts){TG_SAVE_DEFAULTS, __VA_ARGS__})

/* Begin and finish a save of the state into dir, which is created if it is missing; its parent must exist. Every rank
 * calls both functions, with the same dir. opts may be NULL.
 *
 * tg_shards_save_begin takes the bytes that the tensors have at the call. When it returns, the program may change or
 * drop the tensors. Without .background this rank's file has then been written. With .background the parts that this
 * rank writes have been copied to host memory, which is pinned if the device has pinned memory, and a thread writes the
 * file while training goes on. The thread calls the functions of tg_config.files and tg_config.allocator, which must
 * allow calls from several threads. It has the lowest priority, so that training goes first where cores are scarce.
 * tg_save_test returns whether this rank's file is no longer being written, because it is complete or has failed; true
 * if w is NULL.
 *
 * tg_save_finish waits for the files of all ranks, writes the index on rank 0, and frees w, after an error too. It must
 * be called before the context and the tg_parallel of the list are freed. When it returns TG_OK, the new state is
 * complete, and files of older saves have been removed from dir, except those whose removal failed. If a call fails, or
 * the program ends between the two calls, dir still has a complete state if it had one before: the old one or, if only
 * the end of tg_save_finish failed, the new one. To keep the old state even if the save succeeds, save into the
 * directory of tg_checkpoints_begin, and call tg_checkpoints_commit after tg_save_finish. A list has at most one save
 * at a time (TG_ERR_STATE); the list may be freed before tg_save_finish.
 *
 * tg_save_finish fails with TG_ERR_FORMAT if the parts that the ranks have added overlap, or leave out elements of a
 * tensor, with TG_ERR_SHAPE if ranks have given one key tensors of different dtypes or global shapes, and with
 * TG_ERR_STATE if ranks have given one prefix optimizers that have made different numbers of steps. Rank 0 finds these
 * errors; the other ranks then fail with TG_ERR_REMOTE.
 *
 * The ranks communicate by two barriers and two all-gathers, one of 16 bytes for each rank and one of 16 bytes for each
 * part of each rank. They also exchange the random streams and the keys of shared parameters. Without .background a
 * buffer of 1 MiB is allocated, or none if all tensors are contiguous and on the CPU. Megatron-Core's
 * dist_checkpointing and PyTorch's torch.distributed.checkpoint save in a similar way. */
TG_API tg_save *tg_shards_save_begin(tg_shards *s, const char *dir, const tg_save_opts *opts); /* NULL on an error */
TG_API bool tg_save_test(tg_save *w);
TG_API tg_status tg_save_finish(tg_save *w);
/* Saves the state into dir: calls tg_shards_save_begin without .background, and then tg_save_finish. */
TG_API tg_status tg_shards_save(tg_shards *s, const char *dir);

typedef struct tg_shards_load_opts {
    size_t size;
    /* Missing and unknown keys, which `missing` and `unknown` count, are no errors. Missing tensors and numbers of
     * steps keep their values. Random streams (tg_shards_add_rng) must be there nevertheless. false by default. */
    bool partial;
    /* Load only the keys of the directory that begin with "<from_prefix>.". Each is loaded into the key of the list
     * that begins with "<to_prefix>." and has the same rest. All other keys, of the directory and of the list, are
     * ignored. NULL, the default, or "" means no prefix. If either prefix is given, the random streams are not loaded.
     * The number of steps of an optimizer has a key too, and is loaded like a tensor. */
    const char *from_prefix, *to_prefix;
    /* Memory of report_size bytes for a report: a line "missing KEY" or "unknown KEY" for each such key, cut to
     * report_size, with a terminating zero. NULL, the default, means no report. */
    char *report;
    size_t report_size;
    /* Set by the call: the number of keys of this rank's list that dir lacks, and the number of keys of dir that are in
     * no rank's list. Without .partial, missing keys end the call before it looks for unknown ones. */
    int missing, unknown;
} tg_shards_load_opts;
#define TG_SHARDS_LOAD_DEFAULTS .size = sizeof(tg_shards_load_opts)
#define TG_SHARDS_LOAD(...) (&(tg_shards_load_opts){TG_SHARDS_LOAD_DEFAULTS, __VA_ARGS__})

/* Load the state from dir into the tensors of the list. Every rank makes the call, with the same dir, and reads the
 * index and the bytes of its own parts. opts may be NULL; tg_shards_load uses the defaults.
 *
 * Loading fails with TG_ERR_FORMAT
 * - if dir lacks a key of the list, or has a key that is in no rank's list, unless opts->partial is set;
 * - if dir has a tensor of another global shape or dtype than the list;
 * - if the index or a header is damaged, if pieces of a tensor overlap or are missing, or if a file is of another save.
 *
 * It fails with TG_ERR_DATA if the bytes of a tensor do not match their checksum, and with TG_ERR_IO if dir has no
 * state or a file is missing; the ranks together verify all files. All these checks are made on all ranks before a
 * value changes. If reading fails after that, some tensors have new values. */
TG_API tg_status tg_shards_load(tg_shards *s, const char *dir);
TG_API tg_status tg_shards_load_with(tg_shards *s, const char *dir, tg_shards_load_opts *opts);

/* Reads all of the state in dir, and compares all checksums. One rank alone makes the call. Sets *damaged to the number
 * of faults, and writes a line for each to report, cut to report_size bytes with the terminating zero; report may be
 * NULL. A fault is a file, such as the index, that is missing, damaged or of another save, a tensor whose bytes are
 * damaged, or pieces that overlap or are missing. If ctx is on device "meta", the bytes of tensors are not compared.
 * Faults are no errors: the call returns TG_OK if it could make all comparisons. */
TG_API tg_status tg_shards_verify(tg_ctx *ctx, const char *dir, char *report, size_t report_size, int *damaged);

/* ---- The state dict of a module in a safetensors file ---- */

typedef struct tg_load_opts {
    size_t size;
    bool partial; /* missing and unknown keys do not fail; missing tensors keep their values; false by default */
    bool convert; /* floats (not float8) of another dtype are converted, rounded to nearest even; false by default */
    /* The keys of the file are "<prefix>.<path>". Other keys are ignored. NULL, the default, or "" means no prefix: a
     * key is a path. */
    const char *prefix;
    /* Memory of report_size bytes for a report: a line "missing KEY" or "unknown KEY" for each such key, cut to
     * report_size, with a terminating zero. NULL, the default, means no report. */
    char *report;
    size_t report_size;
    /* Set by the call: how many tensors of m the file lacks, and how many keys of the file m lacks. */
    int missing, unknown;
} tg_load_opts;
#define TG_LOAD_DEFAULTS .size = sizeof(tg_load_opts)
#define TG_LOAD(...) (&(tg_load_opts){TG_LOAD_DEFAULTS, __VA_ARGS__})

/* Loads the state dict of m (nn.h) from a safetensors file or an index of several (tg_safetensors_open). Each rank
 * reads its parts of the whole tensors, as the placements say; the call communicates with no other rank. opts may be
 * NULL.
 *
 * A tensor of another global shape fails with TG_ERR_FORMAT. So does one of another dtype, unless opts->convert is set
 * and both are floats. Missing and unknown keys fail with TG_ERR_FORMAT too, unless opts->partial is set; the report is
 * written in either case. A tensor of m that is PARTIAL, or VARYING and opaque (TG_V), fails with TG_ERR_PLACEMENT.
 * Tensors that this rank reads as a whole are compared with their checksums (TG_ERR_DATA). All these checks are made
 * before a value changes. */
TG_API tg_status tg_module_load(tg_module *m, const char *file, tg_load_opts *opts);

/* Saves the state dict of m (nn.h) to one safetensors file, which tg_module_load reads: the tensors with their paths as
 * names. A tensor that has several names is saved under the first one. The file is written completely or not at all, as
 * io.h says. One rank alone makes the call. A tensor that is a shard, PARTIAL or opaque fails with TG_ERR_PLACEMENT,
 * because this rank has only a part of it; use tg_shards_save to save the modules of several ranks. */
TG_API tg_status tg_module_save(tg_module *m, const char *file);

/* ---- Parts of whole tensors ---- */

/* Reads this rank's part of the named tensor, which is whole in the file, into dst. The placement of dst says which
 * part that is. dst may be a shard of any layout, along several dims and over several axes. All ranks of an axis on
 * which dst is I or R (TG_I, TG_R in placement.h) read the same part. If no axis shards dst, or if the context has no
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
