/* The files of sharded state. */
#ifndef TG_SHARDS_FILE_H
#define TG_SHARDS_FILE_H

#include "parallel/shards.h"

#define TG_SHARDS_FILE   "%s/state-%05d.safetensors" /* of a pipeline stage */
#define TG_SHARDS_FORMAT "tapegrad-state-1"

tg_shape tg_shard_in_file(const tg_shard_item *i); /* global, without padding rows */

#endif
