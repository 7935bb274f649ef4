/* The random streams in saved state. */
#ifndef TG_SHARDS_FILE_H
#define TG_SHARDS_FILE_H

#include "checkpoint/shards.h"

#include <tapegrad/io.h>

struct tg_state;

/* A key and a value of the state's metadata. */
typedef struct tg_shards_metadata {
    char key[TG_SHARDS_KEY + 8], *text;
    size_t bytes; /* size of the host memory of text */
} tg_shards_metadata;

/* ---- shards_rng.c ---- */

int tg_shards_streams(const tg_shards *s); /* number of streams, plus 1 for the step; 0 without tg_shards_add_rng */
/* Fills out[tg_shards_streams(s)], which the caller has zeroed, with the random streams and the step of draws by key.
 * The caller frees every text, after an error too, since some may be filled then. Collective over the world. */
tg_status tg_shards_describe_streams(const tg_shards *s, tg_shards_metadata *out);
/* Reads the states with which this rank's streams are to continue into out[tg_shards_streams(s)]; the step is the
 * counter of the last one. Changes no stream. */
tg_status tg_shards_read_streams(const tg_shards *s, const struct tg_state *d, tg_rng *out);
/* Sets the context's streams, and the step, to from[tg_shards_streams(s)]. */
void tg_shards_set_streams(const tg_shards *s, const tg_rng *from);

#endif
