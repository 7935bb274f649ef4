/* Encodes many texts with a tokenizer, on several threads. What reads the texts, and what becomes of their ids, is the
 * caller's: train and eval make token files of them (encode.h), and tapegrad tokenize writes a dataset. */
#ifndef TAPEGRAD_DATA_ENCODE_TEXTS_H
#define TAPEGRAD_DATA_ENCODE_TEXTS_H

#include <tapegrad/tokenizer.h>

enum { MOST_ENCODERS = 1024 }; /* upper limit of threads */

typedef struct encode_text {
    const char *text; /* n bytes */
    size_t n;
    const char *path; /* where the text comes from, for messages */
    int64_t line;     /* from 1; 0: the text is a whole file */
    bool special, literal; /* as in tg_encode_opts */
    tg_ids *ids;           /* gets the ids in place of those that it has */
} encode_text;

/* Encodes n texts. at(of, i) returns text i; any of the threads calls it. threads: at most MOST_ENCODERS, the calling
 * one included; if some cannot be started, the others do their work. ctx: the tokenizer's. Returns false after printing
 * which text cannot be encoded, the first one if there are several, and why. After an interrupt (interrupts.h) returns
 * false without a message. */
bool encode_texts(const tg_tokenizer *tokenizer, tg_ctx *ctx, int threads, int n,
                  encode_text (*at)(const void *of, int i), const void *of);
/* Frees the memory of ids that will be used again, if it is that of a long text. Long texts are rare, but sooner or
 * later each place for ids would have had one, and would keep its memory. */
void encode_trim(tg_ids *ids);

#endif
