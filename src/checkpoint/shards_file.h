/* Files of sharded state: names, format, and the random streams in their metadata. */
#ifndef TG_SHARDS_FILE_H
#define TG_SHARDS_FILE_H

#include "checkpoint/shards.h"

#include <tapegrad/io.h>

#define TG_SHARDS_FILE   "%s/state-%05d.safetensors" /* path of a file: directory, pipeline stage */
#define TG_SHARDS_FORMAT "tapegrad-state-1"

enum { TG_SHARDS_KEY = 512 }; /* size of the longest key in bytes, with its terminating zero */

tg_shape tg_shard_in_file(const tg_shard_item *i); /* returns the global shape without padding rows */

/* ---- shards_rng.c ---- */

/* A random stream, or the step of draws by key, as a key and a value of the file's metadata. */
typedef struct tg_shards_stream {
    char key[TG_SHARDS_KEY], *text;
    size_t bytes; /* size of the host memory of text */
} tg_shards_stream;

int tg_shards_streams(const tg_shards *s); /* number of streams, and one for the step; 0 without tg_shards_add_rng */
/* Fills out[tg_shards_streams(s)], which the caller has zeroed. The caller frees every text, after an error too, since
 * some may be filled then. Collective over the world. */
tg_status tg_shards_describe_streams(const tg_shards *s, tg_shards_stream *out);
/* Reads the states with which this rank's streams are to continue into out[tg_shards_streams(s)]; the step is the
 * counter of the last one. Changes no stream. */
tg_status tg_shards_read_streams(const tg_shards *s, const char *dir, const tg_safetensors *file, tg_rng *out);
/* Sets the context's streams, and the step, to from[tg_shards_streams(s)]. */
void tg_shards_set_streams(const tg_shards *s, const tg_rng *from);

#endif
