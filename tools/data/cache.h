/* Token files made from data that cannot be read in place: standard input, compressed files, JSONL, text for a
 * tokenizer, and sources of many files. They are Megatron datasets in a directory, so that memory stays bounded and a
 * resumed run reads the same tokens. Functions that return bool return false after printing what is wrong. */
#ifndef TAPEGRAD_DATA_CACHE_H
#define TAPEGRAD_DATA_CACHE_H

#include "data/encode.h"

/* The formats of --data-format; the first four are those of tg_token_format. */
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
    int64_t vocab; /* of the model: limit of the ids of DATA_U16 and DATA_U32; 0: not known */
    double said;   /* seconds_now() when progress was last printed */
} token_cache;

/* Begins the dataset dir/name. e encodes its texts, and must live until cache_close. vocab: the model's vocabulary, or
 * 0 if it is not known; the dataset's is that of the encoder if that is larger. */
bool cache_open(token_cache *c, tg_ctx *ctx, const char *dir, const char *name, encoder *e, int64_t vocab);
/* Appends a file, or standard input if path is "-". format: DATA_TEXT, which makes one document, DATA_JSONL, DATA_U16
 * or DATA_U32. Adds the bytes read to *bytes. */
bool cache_add(token_cache *c, const char *path, data_format format, int64_t *bytes);
/* Completes the dataset, or removes it if `good` is false. */
bool cache_close(token_cache *c, bool good);

#endif
