/* What one thread needs to encode words, and the words that it has encoded. */
#ifndef TG_TEXT_WORD_H
#define TG_TEXT_WORD_H

#include "text/tokenizer.h"

/* A part of a word: at first a character or a byte, later what merges have made of several. */
typedef struct tg_symbol {
    uint32_t id;
    uint32_t previous, next; /* places of its neighbors: UINT32_MAX and the number of symbols at the word's ends */
    uint32_t rank, made;     /* of the merge with the next symbol; rank is TG_NO_RANK if there is none */
    bool gone;               /* merged into the symbol before it */
} tg_symbol;

#define TG_NO_RANK UINT32_MAX

/* ---- The cache (word_cache.c) ---- */

typedef struct tg_word_entry {
    uint64_t hash;
    uint32_t text, length; /* in the texts */
    uint32_t ids, count;   /* in the ids */
} tg_word_entry;

/* Words and their ids: a hash table. The cache is emptied when there is no room for a word. */
typedef struct tg_word_cache {
    tg_word_entry *slots; /* length 0: empty */
    char *texts;
    uint32_t *ids;
    uint32_t words, n_texts, n_ids;
} tg_word_cache;

/* Returns the number of ids of a word, and sets *ids; returns -1, and sets *ids to NULL, if the word is not there. */
int64_t tg_word_cache_find(const tg_word_cache *c, uint64_t hash, tg_span word, const uint32_t **ids);
/* Keeps a word, unless it is long. Without memory it does nothing. */
void tg_word_cache_add(tg_word_cache *c, uint64_t hash, tg_span word, const tg_symbol *symbols, int64_t count);
void tg_word_cache_free(tg_word_cache *c);

struct tg_word_memory {
    tg_symbol *symbols; /* of the word that is encoded now */
    int64_t count, capacity;
    uint64_t *queue; /* merges that can be made: a binary heap of rank << 32 | place of the left symbol */
    int64_t queued, queue_capacity;
    bool unknown;      /* the token of an unknown character has not been added yet */
    tg_growing mapped; /* the word with its bytes as characters */
    tg_word_cache cache;
};

#endif
