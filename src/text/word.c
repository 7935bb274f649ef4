/* One word to ids: byte pair encoding (Sennrich, Haddow and Birch, ACL 2016). Of all neighbors that can be merged,
 * those with the earliest merge are merged first, and of equal ones the leftmost. The ids of words are kept, because
 * most words of a text have been seen before. */
#include "text/unicode.h"
#include "text/word.h"

struct tg_word_memory *tg_word_memory_new(void) {
    return calloc(1, sizeof(struct tg_word_memory));
}

void tg_word_memory_free(struct tg_word_memory *w) {
    if (!w) return;
    free(w->symbols);
    free(w->queue);
    free(w->mapped.at);
    tg_word_cache_free(&w->cache);
    free(w);
}

/* ---- The queue: a binary heap of rank << 32 | place ---- */

static void queue_push(struct tg_word_memory *w, uint64_t key) {
    int64_t i = w->queued++;
    for (int64_t above; i > 0 && w->queue[above = (i - 1) / 2] > key; i = above) w->queue[i] = w->queue[above];
    w->queue[i] = key;
}

static uint64_t queue_pop(struct tg_word_memory *w) {
    uint64_t top = w->queue[0], key = w->queue[--w->queued];
    int64_t i = 0, n = w->queued;
    for (int64_t below; (below = 2 * i + 1) < n; i = below) {
        if (below + 1 < n && w->queue[below + 1] < w->queue[below]) below++;
        if (w->queue[below] >= key) break;
        w->queue[i] = w->queue[below];
    }
    w->queue[i] = key;
    return top;
}

/* ---- Symbols ---- */

static void add_symbol(struct tg_word_memory *w, int32_t id) {
    w->symbols[w->count] = (tg_symbol){.id = (uint32_t)id, .next = (uint32_t)w->count + 1};
    w->count++;
}

/* Adds the tokens of the bytes of a character that the vocabulary lacks. Returns false if one of them is missing. */
static bool add_bytes(struct tg_word_memory *w, const tg_model *m, const char *at, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (m->fallback_ids[(unsigned char)at[i]] == TG_NO_ID) return false;
    for (size_t i = 0; i < n; i++) add_symbol(w, m->fallback_ids[(unsigned char)at[i]]);
    return true;
}

/* Notes a character that becomes no other tokens. Its token is added later, so that a run of such characters can be one
 * token; unless they are fused, the token of the one before is added now. Bytes of other characters do not end the run:
 * the token is added after them, as in the library tokenizers. */
static void add_unknown(struct tg_word_memory *w, const tg_model *m) {
    if (m->unknown == TG_NO_ID) return;
    if (w->unknown && !m->fuse_unknown) add_symbol(w, m->unknown);
    w->unknown = true;
}

static void end_unknown(struct tg_word_memory *w, const tg_model *m) {
    if (w->unknown) add_symbol(w, m->unknown);
    w->unknown = false;
}

static void add_character(struct tg_word_memory *w, const tg_model *m, const char *at, size_t n) {
    int32_t id = m->byte_level ? m->byte_ids[(unsigned char)*at] : tg_vocab_find(&m->vocab, at, n);
    if (id != TG_NO_ID)
        end_unknown(w, m), add_symbol(w, id);
    else if (!m->byte_fallback || m->byte_level || !add_bytes(w, m, at, n))
        add_unknown(w, m);
}

/* Fills w->symbols with one symbol for each byte or character. */
static void add_characters(struct tg_word_memory *w, const tg_model *m, tg_span word) {
    w->count = 0;
    w->unknown = false;
    for (size_t at = 0, n; at < word.n; at += n) {
        n = m->byte_level ? 1 : tg_char_length(word.at[at]);
        add_character(w, m, word.at + at, n);
    }
    end_unknown(w, m);
    for (int64_t i = 0; i < w->count; i++) w->symbols[i].previous = (uint32_t)i - 1;
}

/* ---- Merges ---- */

/* Looks up the merge of a symbol and the one after it, and queues it. */
static void consider(struct tg_word_memory *w, const tg_model *m, uint32_t place) {
    tg_symbol *s = w->symbols + place;
    s->rank = TG_NO_RANK;
    if (s->next >= (uint64_t)w->count) return;
    const tg_merge *merge = tg_merges_find(m, s->id, w->symbols[s->next].id);
    if (!merge) return;
    s->rank = merge->rank;
    s->made = merge->made;
    queue_push(w, (uint64_t)merge->rank << 32 | place);
}

static void merge_at(struct tg_word_memory *w, const tg_model *m, uint32_t place) {
    tg_symbol *s = w->symbols + place, *right = w->symbols + s->next;
    s->id = s->made;
    s->next = right->next;
    right->rank = TG_NO_RANK;
    right->gone = true;
    if (s->next < (uint64_t)w->count) w->symbols[s->next].previous = place;
    if (s->previous != UINT32_MAX) consider(w, m, s->previous);
    consider(w, m, place);
}

static void merge_all(struct tg_word_memory *w, const tg_model *m) {
    w->queued = 0;
    for (int64_t i = 0; i < w->count; i++) consider(w, m, (uint32_t)i);
    while (w->queued) {
        uint64_t key = queue_pop(w);
        uint32_t place = (uint32_t)key;
        if (w->symbols[place].rank == key >> 32) merge_at(w, m, place);
    }
}

/* ---- Words ---- */

/* Sets *id to the token that is the whole word, for a model that takes such tokens before it merges; TG_NO_ID if there
 * is none. Returns false if there is no memory. */
static bool find_whole(struct tg_word_memory *w, const tg_model *m, tg_span word, int32_t *id) {
    *id = TG_NO_ID;
    if (!m->ignore_merges) return true;
    if (m->byte_level) {
        w->mapped.n = 0;
        for (size_t i = 0; i < word.n; i++) {
            char c[4];
            if (!tg_growing_add(&w->mapped, c, tg_char_write(c, tg_byte_char((unsigned char)word.at[i])))) return false;
        }
        word = (tg_span){w->mapped.at, (size_t)w->mapped.n};
    }
    *id = tg_vocab_find(&m->vocab, word.at, word.n);
    return true;
}

/* Leaves the ids of a word in w->symbols, w->count of them. */
static bool encode(struct tg_word_memory *w, const tg_model *m, tg_span word) {
    int32_t whole;
    /* There are at most as many symbols as bytes, and fewer merges than symbols. Each merge queues up to two pairs. */
    if (!tg_grown((void **)&w->symbols, &w->capacity, (int64_t)word.n, sizeof *w->symbols) ||
        !tg_grown((void **)&w->queue, &w->queue_capacity, 3 * (int64_t)word.n, sizeof *w->queue) ||
        !find_whole(w, m, word, &whole))
        return false;
    w->count = 0;
    if (whole != TG_NO_ID) return add_symbol(w, whole), true;
    add_characters(w, m, word);
    merge_all(w, m);
    int64_t left = 0;
    for (int64_t i = 0; i < w->count; i++)
        if (!w->symbols[i].gone) w->symbols[left++].id = w->symbols[i].id;
    w->count = left;
    return true;
}

bool tg_word_encode(tg_encoder *e, tg_span word) {
    struct tg_word_memory *w = e->words;
    uint64_t hash = tg_span_hash(word.at, word.n);
    const uint32_t *known;
    int64_t n = tg_word_cache_find(&w->cache, hash, word, &known);
    if (n < 0) {
        if (word.n >= UINT32_MAX) return e->problem = "a word has 4 GiB or more", false;
        if (!encode(w, &e->k->model, word)) return false;
        tg_word_cache_add(&w->cache, hash, word, w->symbols, w->count);
        n = w->count;
    }
    tg_ids *out = e->out;
    if (!tg_grown((void **)&out->ids, &out->capacity, out->count + n, sizeof *out->ids)) return false;
    for (int64_t i = 0; i < n; i++) out->ids[out->count + i] = known ? known[i] : w->symbols[i].id;
    out->count += n;
    return true;
}
