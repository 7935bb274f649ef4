/* Writes files of token ids, each whole or not at all. */
#ifndef TAPEGRAD_TOKEN_OUTPUT_H
#define TAPEGRAD_TOKEN_OUTPUT_H

#include <tapegrad/io.h>

#include "io/file.h"

#define OUTPUT_FORMATS "megatron|u16|u32" /* in the order of output_format */
#define OUTPUT_FORMATS_HELP                                                                                            \
    "megatron: FILE.bin and FILE.idx of Megatron-LM, which know the documents; u16, u32: raw little-endian token ids"

typedef enum output_format { OUTPUT_MEGATRON, OUTPUT_U16, OUTPUT_U32 } output_format;

/* All zeros: none. */
typedef struct token_output {
    tg_ctx *ctx;
    output_format format;
    tg_token_writer *megatron;
    tg_writer raw;
    int64_t count, documents;
} token_output;

/* Begins a file. vocab: the number of ids, at most 65,536 for OUTPUT_U16. Errors of all these functions are recorded in
 * ctx; those that return bool then return false. */
bool output_open(token_output *o, tg_ctx *ctx, const char *path, output_format format, int64_t vocab);
/* Appends a document. */
bool output_put(token_output *o, const int64_t *ids, int64_t n);
/* Completes the file. */
bool output_commit(token_output *o);
/* Removes what was written. Does nothing after output_commit. */
void output_abandon(token_output *o);

#endif
