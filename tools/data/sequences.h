/* The sequences of a run: which windows of the tokens there are, and in which order they come. */
#ifndef TAPEGRAD_SEQUENCES_H
#define TAPEGRAD_SEQUENCES_H

#include <tapegrad/io.h>

/* The windows of a part of the tokens, seq_len each, in an order that depends on the seed and the epoch alone. They
 * do not overlap. If documents are padded, each that has two tokens or more begins a window, and a long one has
 * several. */
typedef struct sequence_pool {
    double weight;         /* share of all sequences; the weights of a run add up to 1 */
    int64_t first, tokens; /* the part: its first token, and how many there are */
    int64_t seq_len, windows;
    int64_t read; /* tokens in all windows together, without padding */
    uint64_t seed;
    int64_t *start;           /* the first token of each window; NULL: they follow each other from `first` on */
    int64_t *shuffled, epoch; /* the numbers of the windows in their order in `epoch`; epoch -1: not yet shuffled */
    int64_t taken;            /* sequences that pools_next and pools_seek have taken */
} sequence_pool;

/* Finds the windows of `tokens` tokens from `first` on. Windows that are not padded need one token more than their
 * length, which is the target of their last one; padded windows are those of the documents that begin in the part.
 * p->windows may be 0 in the end. Returns false after printing what is wrong. An error in reading is recorded in the
 * context of t instead, whose status the caller checks. */
bool pool_open(sequence_pool *p, tg_tokens *t, int64_t first, int64_t tokens, int64_t seq_len,
               tg_token_windows windows);
/* Prepares pool_shuffled. */
bool pool_shuffle(sequence_pool *p, uint64_t seed);
void pool_close(sequence_pool *p);
/* Returns the first token of window i. */
int64_t pool_at(const sequence_pool *p, int64_t i);
/* Returns the first token of sequence number n of a run that reads this pool alone, epoch after epoch. */
int64_t pool_shuffled(sequence_pool *p, int64_t n);

/* Returns the first token of the next sequence of a run that reads n pools by their weights. *at is its number, from 0,
 * and goes up by one. The sequence comes from the pool that lacks most of its share so far. */
int64_t pools_next(sequence_pool *pools, int n, int64_t *at);
/* Makes sequence number `to` the next one that pools_next returns. *at: as for pools_next; becomes `to`. */
void pools_seek(sequence_pool *pools, int n, int64_t *at, int64_t to);

#endif
