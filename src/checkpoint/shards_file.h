/* The files of sharded state. */
#ifndef TG_SHARDS_FILE_H
#define TG_SHARDS_FILE_H

#include "checkpoint/shards.h"

#include <tapegrad/io.h>

#define TG_SHARDS_FILE   "%s/state-%05d.safetensors" /* of a pipeline stage */
#define TG_SHARDS_FORMAT "tapegrad-state-1"

enum { TG_SHARDS_KEY = 512 }; /* bytes of a key with its zero */

tg_shape tg_shard_in_file(const tg_shard_item *i); /* global, without padding rows */

/* ---- shards_rng.c ---- */

/* A random stream as metadata. */
typedef struct tg_shards_stream {
    char key[TG_SHARDS_KEY], *text;
    size_t bytes; /* of text, the host's memory */
} tg_shards_stream;

int tg_shards_streams(const tg_shards *s); /* 0 without tg_shards_add_rng */
/* Fills out, which is zeroed and as long; after an error perhaps in part. Collective over the world. */
tg_status tg_shards_describe_streams(const tg_shards *s, tg_shards_stream *out);
/* The states that this rank goes on with, as many; nothing changes yet. */
tg_status tg_shards_read_streams(const tg_shards *s, const char *dir, const tg_safetensors *file, tg_rng *out);
void tg_shards_set_streams(const tg_shards *s, const tg_rng *from);

#endif
