/* Token files that are made from what cannot be read in place: standard input, compressed files, JSONL, and many small
 * files. They are Megatron datasets in a directory of the run, so that memory stays bounded and a resumed run reads the
 * same tokens. */
#ifndef TAPEGRAD_DATA_CACHE_H
#define TAPEGRAD_DATA_CACHE_H

#include "data/encode.h"

/* How --data-format names formats; the first four are those of tg_token_format. */
typedef enum data_format {
    DATA_TEXT = TG_TOKENS_TEXT,
    DATA_U16 = TG_TOKENS_U16,
    DATA_U32 = TG_TOKENS_U32,
    DATA_MEGATRON = TG_TOKENS_MEGATRON,
    DATA_JSONL,
    DATA_AUTO, /* by the name of each file */
} data_format;

/* A dataset that is being written. All zeros: none. */
typedef struct token_cache {
    tg_ctx *ctx;
    encoder *encoder; /* borrowed */
    tg_token_writer *writer;
    int64_t vocab; /* of the dataset */
    double said;   /* when progress was last printed */
} token_cache;

/* Begins the dataset dir/name, of texts that the encoder encodes. vocab: of the model; 0: that of the encoder. */
bool cache_open(token_cache *c, tg_ctx *ctx, const char *dir, const char *name, encoder *e, int64_t vocab);
/* Appends a file, or standard input if path is "-". format: DATA_TEXT, which makes one document, DATA_JSONL, DATA_U16
 * or DATA_U32. Adds the bytes read to *bytes. */
bool cache_add(token_cache *c, const char *path, data_format format, int64_t *bytes);
/* Completes the dataset, or removes it if `good` is false. */
bool cache_close(token_cache *c, bool good);

#endif
