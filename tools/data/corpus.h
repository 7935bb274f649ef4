/* What `train` and `eval` read: the files that --data and --val-data name, as one stream of tokens. Text whose bytes
 * are tokens, files of ids and Megatron datasets are read in place, unless they are compressed or one source has many
 * of them; everything else becomes a token file first (data/cache.h). */
#ifndef TAPEGRAD_CORPUS_H
#define TAPEGRAD_CORPUS_H

#include <jansson.h>

#include "data/cache.h"

#define CORPUS_FORMATS "text|u16|u32|megatron|jsonl|auto" /* in the order of data_format */
#define CORPUS_FORMATS_HELP                                                                                            \
    "text: tokens of the tokenizer, or bytes; u16, u32: raw little-endian token ids; megatron: FILE.bin and FILE.idx " \
    "of Megatron-LM; jsonl: an object on each line, {\"text\"}, {\"prompt\", \"completion\"} or {\"messages\"}; auto: "\
    "megatron for FILE.bin with FILE.idx, jsonl for FILE.jsonl, else text"

typedef struct corpus_options {
    const char *data, *val_data; /* words separated by line breaks; val_data may be NULL */
    data_format format;
    const char *cache; /* directory for token files, made if it is missing; NULL: no token files may be made */
    int64_t vocab;     /* of the model; 0: not known */
    const char *tokenizer; /* a tokenizer.json, or a directory that has one; NULL: bytes are tokens */
} corpus_options;

/* A part of the stream: what one word of --data names, or all words together if they have no weights. */
typedef struct corpus_source {
    const char *name;     /* belongs to the plan */
    double weight;        /* of training: share of the sequences, above 0; these add up to 1 */
    bool validation;      /* of --val-data */
    int64_t first, count; /* tokens */
    int64_t files, bytes, documents;
} corpus_source;

typedef struct corpus {
    tg_tokens *tokens;
    corpus_source *source; /* those of --data first */
    int n;
    bool is_bytes; /* each byte of text is a token */
} corpus;

/* Finds the files, and makes token files in the cache directory where that is necessary, after removing the token files
 * that are there. Returns a plan of what corpus_open opens; NULL after printing what is wrong. If there are token
 * files, the plan is saved next to them. */
json_t *corpus_plan(tg_ctx *ctx, const corpus_options *o);
/* Returns the plan in the cache directory, if it was made for the same words, format and tokenizer, and no file has
 * changed since. A file that no longer exists counts as unchanged. NULL if there is no such plan; prints nothing. */
json_t *corpus_saved_plan(const corpus_options *o);
/* Returns the directory `dir` if it has a tokenizer.json; else NULL. */
const char *corpus_tokenizer_of(const char *dir);
/* Removes the token files and, unless it has other files, their directory. NULL is ignored. */
void corpus_remove_cache(const char *cache);
/* A run may need other token files, because its options or its files have changed. Its old ones are kept until it goes
 * on, because their text may be gone, as that of standard input is. corpus_set_aside renames their directory, and
 * returns false after printing what is wrong. corpus_end_aside removes the old files if the run goes on with the new
 * ones. Otherwise it removes the new files and gives the old ones their name again; it also does this for a run that
 * was killed in between. Both do nothing if there are no such files. */
bool corpus_set_aside(const char *cache);
void corpus_end_aside(const char *cache, bool goes_on);
/* Returns whether bytes are tokens in all files of the plan. */
bool corpus_is_bytes(const json_t *plan);
/* Returns whether the plan has a file whose text the planner has encoded. */
bool corpus_has_encoded(const json_t *plan);

/* Opens the stream. The plan must outlive it. Returns false after printing what is wrong. corpus_close is needed in
 * both cases. */
bool corpus_open(corpus *c, tg_ctx *ctx, const corpus_options *o, const json_t *plan);
void corpus_close(corpus *c);

#endif
