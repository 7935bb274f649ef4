/* Files of sharded state: names, format, and the random streams in their metadata. */
#ifndef TG_SHARDS_FILE_H
#define TG_SHARDS_FILE_H

#include "checkpoint/shards.h"

#include <tapegrad/io.h>

#define TG_SHARDS_FILE   "%s/state-%05d.safetensors" /* path of a file: directory, pipeline stage */
#define TG_SHARDS_FORMAT "tapegrad-state-1"

/* Returns the global shape of the item without padding rows, and without the dims in front. */
tg_shape tg_shard_in_file(const tg_shard_item *i);

/* A key and a value of a file's metadata. */
typedef struct tg_shards_metadata {
    char key[TG_SHARDS_KEY + 8], *text;
    size_t bytes; /* size of the host memory of text */
} tg_shards_metadata;

/* ---- shards_front.c ---- */

/* Items with the same key, which differ in their places (tg_shard_front), are slices of one tensor of the file. A
 * pipeline stage that has all places writes the tensor with the dims in front. A stage that has only some of them
 * writes its slices in the order of their places along a single dim in front, and lists the places in the metadata
 * under this key. */
#define TG_SHARDS_PLACES "places.%s"

/* Returns whether item i is the first one with its key that this stage saves. A stage saves no copies (tg_share). */
bool tg_shard_is_first(const tg_shards *s, int i);
/* Returns the number of items with the key of item i, and fills order[] (s->n numbers, may be NULL) with the indices of
 * these items, in the order of their places. Copies do not count. */
int tg_shard_places(const tg_shards *s, int i, int *order);
/* Returns the shape of the file's tensor with the key of item i, if this stage has n of its places. */
tg_shape tg_shard_stacked(const tg_shard_item *i, int n);

int tg_shards_partial_keys(const tg_shards *s); /* number of keys of which this stage has only some of the places */
/* Fills out[tg_shards_partial_keys(s)], which the caller has zeroed, with the lists of places. The caller frees every
 * text, after an error too. */
tg_status tg_shards_describe_places(const tg_shards *s, tg_shards_metadata *out);

/* Where an item lies in a file. */
typedef struct tg_shard_spot {
    const char *key;             /* of the file's tensor: the item's own, or that of its first owner */
    tg_shape shape;              /* of the file's tensor */
    int at[1 + TG_SHARD_FRONTS]; /* number of dims in front, and the item's index in each */
} tg_shard_spot;

/* Finds item i in file f, which has a tensor with that key. Returns false if that tensor does not have the item's
 * place. */
bool tg_shard_find_spot(const tg_shard_item *i, const char *key, const tg_safetensors *f, tg_shard_spot *out);
/* Reads the item's elements from the tensor of the file into `rows`, which has the shape tg_shard_in_file. */
tg_status tg_shard_read_spot(tg_safetensors *f, const tg_shard_item *i, const tg_shard_spot *spot, tg_tensor *rows,
                             const void *site);

/* ---- shards_rng.c ---- */

int tg_shards_streams(const tg_shards *s); /* number of streams, and one for the step; 0 without tg_shards_add_rng */
/* Fills out[tg_shards_streams(s)], which the caller has zeroed, with the random streams and the step of draws by key.
 * The caller frees every text, after an error too, since some may be filled then. Collective over the world. */
tg_status tg_shards_describe_streams(const tg_shards *s, tg_shards_metadata *out);
/* Reads the states with which this rank's streams are to continue into out[tg_shards_streams(s)]; the step is the
 * counter of the last one. Changes no stream. */
tg_status tg_shards_read_streams(const tg_shards *s, const char *dir, const tg_safetensors *file, tg_rng *out);
/* Sets the context's streams, and the step, to from[tg_shards_streams(s)]. */
void tg_shards_set_streams(const tg_shards *s, const tg_rng *from);

#endif
