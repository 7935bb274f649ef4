/* State of a token stream (tokens.c), and the part that reads Megatron-LM's index (megatron_index.c). */
#ifndef TG_TOKENS_H
#define TG_TOKENS_H

#include "io/file.h"

#include <tapegrad/io.h>

struct tg_tokens {
    tg_file file;
    int width; /* bytes per token */
    bool is_signed;
    int64_t vocab; /* valid ids are 0 to vocab - 1 */
    int64_t count; /* number of tokens */
};

/* Opens the .bin file of an indexed dataset as t's file. Reads the type of its tokens from the .idx file into t, and
 * their number into *count. path names one of the two files, or is their common name without the ending. */
tg_status tg_megatron_open(tg_tokens *t, tg_ctx *ctx, const char *path, int64_t *count);

#endif
