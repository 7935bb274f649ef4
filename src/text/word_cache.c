/* The cache of words. When its table is half full, or one of the other two arrays is full, it begins again: the words
 * of a text come again soon. */
#include "text/word.h"

/* Sizes: slots of the table, the most words in it, bytes of their texts, ids, and bytes of the longest word that is
 * kept. */
enum { SLOTS = 1 << 16, WORDS = SLOTS / 2, TEXTS = 1 << 20, IDS = 1 << 18, LONGEST = 256 };

static bool allocate(tg_word_cache *c) {
    if (!c->slots) c->slots = calloc(SLOTS, sizeof *c->slots);
    if (!c->texts) c->texts = malloc(TEXTS);
    if (!c->ids) c->ids = malloc(IDS * sizeof *c->ids);
    return c->slots && c->texts && c->ids;
}

int64_t tg_word_cache_find(const tg_word_cache *c, uint64_t hash, tg_span word, const uint32_t **ids) {
    *ids = NULL;
    if (!c->slots || !c->words) return -1;
    for (uint64_t i = hash % SLOTS; c->slots[i].length; i = (i + 1) % SLOTS) {
        const tg_word_entry *found = c->slots + i;
        if (found->hash != hash || found->length != word.n || memcmp(c->texts + found->text, word.at, word.n)) continue;
        *ids = c->ids + found->ids;
        return found->count;
    }
    return -1;
}

void tg_word_cache_add(tg_word_cache *c, uint64_t hash, tg_span word, const tg_symbol *symbols, int64_t count) {
    if (word.n > LONGEST || !allocate(c)) return;
    if (c->words == WORDS || c->n_texts + word.n > TEXTS || c->n_ids + count > IDS) {
        memset(c->slots, 0, SLOTS * sizeof *c->slots);
        c->words = c->n_texts = c->n_ids = 0;
    }
    uint64_t i = hash % SLOTS;
    while (c->slots[i].length) i = (i + 1) % SLOTS;
    c->slots[i] = (tg_word_entry){hash, c->n_texts, (uint32_t)word.n, c->n_ids, (uint32_t)count};
    memcpy(c->texts + c->n_texts, word.at, word.n);
    for (int64_t k = 0; k < count; k++) c->ids[c->n_ids + (uint32_t)k] = symbols[k].id;
    c->n_texts += (uint32_t)word.n;
    c->n_ids += (uint32_t)count;
    c->words++;
}

void tg_word_cache_free(tg_word_cache *c) {
    free(c->slots);
    free(c->texts);
    free(c->ids);
}
