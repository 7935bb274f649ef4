/* The state in a directory (tg_shards_save), as its index describes it. This version writes the index as index.json. A
 * directory of an earlier version has none; its index is made from the headers of its files.
 *
 * index.json is a JSON object with these members:
 * - "format" is TG_STATE_FORMAT. "xxh64" is the checksum of the file, computed with zeros in place of its digits.
 * - "world" is the number of ranks that saved, and "composition" an object with the sizes of the axes. Both are for
 *   information only.
 * - "metadata" is an object of strings: the optimizers' numbers of steps, the random streams, and the step of draws by
 *   key (shards_rng.c).
 * - "files" is an array of objects: the "name" of a file, and "xxh64", the checksum of its header.
 * - "tensors" is an object that has, for each key, the "dtype", the global "shape" and the "pieces". A piece has the
 *   number of its "file", the "name" of its tensor there, the block that it is (tg_block_text) as "at", and the
 *   checksum of its bytes, "xxh64".
 *
 * A file of pieces is a safetensors file. Its metadata TG_STATE_PIECES is a JSON object with the "key", the global
 * "shape" and "at" of each tensor, by name. Its metadata TG_STATE_STEPS is an object with the numbers of steps of the
 * rank's optimizers, which go into "metadata". */
#ifndef TG_STATE_INDEX_H
#define TG_STATE_INDEX_H

#include "checkpoint/shards_file.h"
#include "io/json.h"
#include "io/safetensors.h"

#define TG_STATE_INDEX  "%s/index.json"
#define TG_STATE_OLD    "%s/state-00000.safetensors" /* is in a directory of an earlier version */
#define TG_STATE_FORMAT "tapegrad-state-2"
#define TG_STATE_PIECES "tapegrad.pieces"
#define TG_STATE_STEPS  "tapegrad.steps"

enum { TG_STATE_NAME = 64 }; /* size of the longest name of a file, with its terminating zero */

typedef struct tg_state_file {
    const char *name, *sum; /* sum: the checksum of its header; NULL: not known */
    tg_safetensors *open;   /* NULL: not opened yet */
} tg_state_file;

/* A part of a tensor, in a file. */
typedef struct tg_state_piece {
    int file;
    const char *name, *sum; /* of the file's tensor; sum NULL: not known */
    int64_t skip;           /* how many elements that tensor has before the piece */
    tg_block block;
} tg_state_piece;

typedef struct tg_state_key {
    const char *key; /* first member, for tg_index_names */
    tg_dtype dtype;
    tg_shape whole; /* ndim -1: not known, because a directory of an earlier version does not have it */
    tg_state_piece *piece;
    int n, capacity;
    bool known; /* this rank's list has the key */
} tg_state_key;

typedef struct tg_state {
    tg_ctx *ctx;
    const char *dir;
    json_t *root;     /* owns all strings */
    json_t *metadata; /* borrowed */
    tg_state_file *file;
    int n_files;
    tg_state_key *key;
    int n_keys, capacity;
    const void **by_key;
} tg_state;

/* The list that a state is loaded into. A key of the state, "<from>.<rest>", is key "<to>.<rest>" of the list; prefixes
 * that are NULL or "" are left out. */
typedef struct tg_state_target {
    const tg_shards *s;
    const char *from, *to;
} tg_state_target;

/* ---- state.c ---- */

/* Opens the directory: reads and checks its index. The shapes of stacked tensors of a directory of an earlier version
 * are those that `target` has; it may be NULL. The caller calls tg_state_close afterward, after an error too. */
tg_status tg_state_open(tg_state *d, tg_ctx *ctx, const char *dir, const tg_state_target *target);
void tg_state_close(tg_state *d);
tg_state_key *tg_state_find(const tg_state *d, const char *key); /* NULL: there is none */
static inline const char *tg_state_metadata(const tg_state *d, const char *key) {
    return json_string_value(json_object_get(d->metadata, key));
}
/* Add a key at the end of the keys, or a piece with an empty block at the end of a key's pieces. Return NULL after
 * recording an error. The pointer is valid until the next call for the same list. */
tg_state_key *tg_state_add_key(tg_state *d, const char *key, tg_dtype dtype, const tg_shape *whole);
tg_state_piece *tg_state_add_piece(tg_state *d, tg_state_key *k);
/* Fails with TG_ERR_FORMAT if pieces of the key overlap, or leave out an element. A key of unknown shape passes. */
tg_status tg_state_check_key(const tg_state *d, const tg_state_key *k);
/* Returns an open file; NULL after recording the error. Fails if it is of another save. */
tg_safetensors *tg_state_file_open(tg_state *d, int file);
/* Opens the file of a piece, and returns the tensor there that has the piece; NULL after recording the error. */
const tg_safetensors_entry *tg_state_entry(tg_state *d, const tg_state_key *k, const tg_state_piece *p);
/* Sets *has to whether the directory has a file: format is TG_STATE_INDEX or TG_STATE_OLD. */
tg_status tg_state_has(tg_ctx *ctx, const char *dir, const char *format, bool *has);
json_t *tg_json_shape(const tg_shape *s); /* an array of the sizes; NULL: no memory */

/* ---- state_index.c ---- */

/* Reads index.json into d. */
tg_status tg_state_read_index(tg_state *d);
char *tg_state_sum_in(char *text, size_t n); /* the digits of the index's checksum in its text; NULL: it has none */
/* Fills d from an index. path: the name of its file in errors. d takes over root, after an error too. */
tg_status tg_state_from_json(tg_state *d, json_t *root, const char *path);

/* ---- state_old.c ---- */

/* Fills d from the files of a directory of an earlier version. */
tg_status tg_state_read_old(tg_state *d, const tg_state_target *target);

/* ---- state_write.c ---- */

/* Returns a new index of a state that `world` ranks save, with an empty composition and without files; NULL: no
 * memory. */
json_t *tg_state_root(int world);
/* Writes index.json for the n files names[] of the directory, which are complete, and removes files of earlier saves.
 * root has the members that are not made from the files; the function takes it over, after an error too. */
tg_status tg_state_write_index(tg_ctx *ctx, const char *dir, json_t *root, const char (*names)[TG_STATE_NAME], int n);

/* ---- state_whole.c ---- */

/* Writes a state of whole tensors from one process. tg_state_writer_begin needs their keys, dtypes and shapes, and
 * refuses a directory that has a state. tg_state_writer_put then writes one tensor per call, in this order, and
 * tg_state_writer_commit the index. tg_state_writer_abandon may be called after any failure, and after the commit. */
typedef struct tg_state_writer {
    tg_ctx *ctx;
    char *dir;
    tg_safetensors_writer file;
} tg_state_writer;

tg_status tg_state_writer_begin(tg_state_writer *w, tg_ctx *ctx, const char *dir, const tg_named_tensor *tensors,
                                int n);
tg_status tg_state_writer_put(tg_state_writer *w, tg_tensor *x);
tg_status tg_state_writer_commit(tg_state_writer *w);
void tg_state_writer_abandon(tg_state_writer *w);
tg_status tg_state_require_none(tg_ctx *ctx, const char *dir); /* fails if it has a state, of any version */
tg_status tg_state_make_directory(tg_ctx *ctx, const char *dir); /* unless it exists; its parent must exist */

/* ---- state_data.c ---- */

/* Reads the elements of `block` into memory, one after another. */
tg_status tg_state_read(tg_state *d, const tg_state_key *k, const tg_block *block, char *to);

#endif
