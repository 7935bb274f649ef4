#ifndef TG_TOKENS_H
#define TG_TOKENS_H

#include "io/file.h"

#include <tapegrad/io.h>

struct tg_tokens {
    tg_file file;
    int width; /* bytes a token */
    bool is_signed;
    int64_t vocab, count;
};

/* Opens t's file, the .bin of an indexed dataset, whose .idx gives the tokens' type and number. path: either of
 * them, or both without their endings. */
tg_status tg_megatron_open(tg_tokens *t, tg_ctx *ctx, const char *path, int64_t *count);

#endif
