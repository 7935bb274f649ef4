/* The training of a byte-level BPE: words are counted (train.c), neighbors are merged in them (train_merge.c, with the
 * tables of train_pairs.c), and the result is written (train_save.c). */
#ifndef TG_TEXT_TRAIN_H
#define TG_TEXT_TRAIN_H

#include "text/tokenizer.h"

/* A word of the texts, and how often it was there. */
typedef struct tg_counted_word {
    int64_t text, count; /* text: offset in tg_bpe.texts */
    uint32_t length;
} tg_counted_word;

struct tg_bpe {
    tg_ctx *ctx;
    tg_bpe_opts opts;       /* its texts are in splitter->memory */
    tg_tokenizer *splitter; /* cuts text into words */
    tg_encoder *encoder;
    tg_growing texts;
    tg_counted_word *words;
    int64_t n_words, words_capacity;
    int64_t *slots; /* a hash table of words: their numbers plus 1; 0: empty */
    uint64_t mask;
};

/* ---- Pairs (train_pairs.c) ---- */

/* Two neighbors, and how often they are next to each other in all texts. If their token would be too long, they are not
 * counted when merges make them neighbors, and count may be negative. */
typedef struct tg_pair {
    uint32_t left, right; /* ids */
    int64_t count;
    int64_t *words; /* words that have got the pair since it was last queued */
    int64_t n_words, capacity;
} tg_pair;

/* All pairs, in a hash table that grows. */
typedef struct tg_pairs {
    tg_pair *pairs;
    int64_t count, capacity;
    int64_t *slots; /* numbers of pairs plus 1; 0: empty */
    uint64_t mask;
} tg_pairs;

/* Returns the number of a pair, which is added if it is new; -1: no memory. */
int64_t tg_pairs_at(tg_pairs *p, uint32_t left, uint32_t right);
bool tg_pair_add_word(tg_pair *p, int64_t word); /* false: no memory */
void tg_pairs_free(tg_pairs *p);

/* A pair that may be merged next, in the words that had got it when it was queued. A pair whose parts are made again
 * later is queued again, with the words that have got it since. */
typedef struct tg_candidate {
    uint64_t count;
    uint32_t left, right;
    int64_t pair, n_words;
    int64_t *words;
} tg_candidate;

/* A binary heap: the most frequent pair first, and of equally frequent pairs the one with the smallest ids. */
typedef struct tg_candidates {
    tg_candidate *heap;
    int64_t count, capacity;
} tg_candidates;

bool tg_candidates_push(tg_candidates *c, tg_candidate one); /* false: no memory */
tg_candidate tg_candidates_pop(tg_candidates *c);            /* there must be one */

/* ---- The result (train_merge.c) ---- */

typedef struct tg_trained {
    tg_pieces memory;
    tg_vocab vocab;
    tg_merge *merges; /* in order */
    int64_t n_merges, merges_capacity;
} tg_trained;

/* Merges pairs until the vocabulary is full or no pair is frequent enough. *t must be zeroed but for its memory.ctx.
 * The caller frees it with tg_trained_free, also after an error. */
tg_status tg_bpe_merge(tg_bpe *b, tg_trained *t, tg_bpe_progress_fn progress, void *user);
void tg_trained_free(tg_trained *t);
/* Writes tokenizer.json and tokenizer_config.json to the directory. */
tg_status tg_trained_save(const tg_bpe *b, const tg_trained *t, const char *directory);
/* Sets *token to the next special token from *at on, and *at to the byte after it. Returns false if there is none. */
bool tg_next_special(const char **at, tg_span *token);

#endif
