/* State of a token stream (tokens.c), and the part that reads Megatron-LM's index (megatron_index.c). A stream is one
 * file, or several that are joined (tokens_join.c). */
#ifndef TG_TOKENS_H
#define TG_TOKENS_H

#include "io/file.h"

#include <tapegrad/io.h>

struct tg_tokens {
    tg_ctx *ctx;
    tg_file file;  /* has no path if the stream is joined */
    tg_file index; /* of an indexed dataset; has no path otherwise */
    int width;     /* bytes per token */
    bool is_signed;
    int64_t vocab;     /* valid ids are 0 to vocab - 1 */
    int64_t count;     /* number of tokens */
    int64_t documents; /* number of documents */
    int64_t sequences; /* number of sequences of an indexed dataset; 0 otherwise */
    bool has_modes;    /* the index has a mode for each sequence */
    tg_token_windows windows;
    /* Joined streams: their number, the streams, and the token and the document with which each begins. */
    int n_parts;
    tg_tokens **part;
    int64_t *first_token, *first_document;
};

/* Fails unless the range of n tokens from `first` on is in the stream, and out is not NULL if n is not 0. who: the
 * function that was called. */
tg_status tg_tokens_check_range(const tg_tokens *t, int64_t first, int64_t n, const void *out, const char *who);
/* Closes the parts of a joined stream, and frees the arrays. Does nothing if the stream is not joined. */
void tg_tokens_close_parts(tg_tokens *t);
/* Returns the part of a joined stream that has a token. */
int tg_tokens_part_of(const tg_tokens *t, int64_t token);

/* The bytes in the header of an index: magic 9, version 8, dtype 1, sequences 8, entries of the table of documents 8.
 * After it there are the length of each sequence (4 bytes), where each begins in the data (8 bytes), the table of
 * documents (8 bytes an entry), and in some files a mode for each sequence (1 byte). Entry i of the table is the first
 * sequence of document i; one more entry is the number of sequences. */
enum { TG_MEGATRON_HEADER = 34 };
#define TG_MEGATRON_MAGIC "MMIDIDX\0" /* with the zero that ends the literal, 9 bytes */

/* Opens the .bin file of an indexed dataset as t's file, and the .idx file as t's index, and checks the whole index.
 * Sets the type of the tokens, and the numbers of documents and sequences; *count is the number of tokens. path names
 * one of the two files, or is their common name without the ending. */
tg_status tg_megatron_open(tg_tokens *t, tg_ctx *ctx, const char *path, int64_t *count);
/* Returns path with the given ending, which replaces ".bin" or ".idx"; the caller frees it. NULL after recording an
 * error. */
char *tg_megatron_path(tg_ctx *ctx, const char *path, const char *ending);
/* Finds the run of a token, or the next run, in the index of a stream that is not joined (token_runs.c has the public
 * functions). */
tg_status tg_megatron_find(tg_tokens *t, int64_t token, tg_token_run *out);
tg_status tg_megatron_next(tg_tokens *t, tg_token_run *run);

#endif
