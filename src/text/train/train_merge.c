/* Merging: the most frequent pair of neighbors becomes a token, again and again, until the vocabulary is
 * full or no pair is frequent enough. */
#include "text/train/train.h"
#include "text/unicode.h"

/* A word as ids. */
typedef struct merged_word {
    uint32_t *ids;
    int64_t n, count;
} merged_word;

typedef struct merger {
    tg_bpe *b;
    tg_trained *t;
    merged_word *words;
    uint32_t *ids;    /* of all words */
    int64_t *lengths; /* by id: bytes of the token; of a special token: its characters */
    int64_t longest;  /* merged tokens of 3 bytes or more are shorter than that */
    int64_t most;     /* merging ends when the vocabulary has this many tokens */
    tg_pairs pairs;
    tg_candidates queue;
    int64_t *touched; /* pairs that have got words in this round */
    int64_t n_touched, touched_capacity;
    tg_growing joined;
} merger;

static tg_status fail_memory(const merger *m) {
    return tg_fail(m->b->ctx, TG_ERR_MEMORY, "tg_bpe_save: no memory for the pairs of %s",
                   tg_count(m->b->n_words, "word").text);
}

/* ---- The vocabulary ---- */

static int64_t count_characters(tg_span text) {
    int64_t n = 0;
    for (size_t at = 0; at < text.n; at += tg_char_length(text.at[at])) n++;
    return n;
}

/* Adds a token, unless it is there already. Its characters stand for its bytes. */
static tg_status add_token(merger *m, tg_span text) {
    tg_vocab *v = &m->t->vocab;
    if (tg_vocab_find(v, text.at, text.n) != TG_NO_ID) return TG_OK;
    text = tg_pieces_copy(&m->t->memory, text.at, text.n);
    if (!text.at) return TG_ERR_MEMORY;
    m->lengths[v->size] = count_characters(text);
    tg_vocab_add(v, text, (int32_t)v->size);
    return TG_OK;
}

/* The special tokens come first, then the characters of bytes in the order of Unicode. */
static tg_status begin_vocab(merger *m) {
    const char *at = m->b->opts.special;
    tg_span special;
    while (tg_next_special(&at, &special)) TG_TRY(add_token(m, special));
    for (uint32_t c = 0; c < 512; c++) {
        char text[4];
        if (tg_char_byte(c) >= 0) TG_TRY(add_token(m, (tg_span){text, tg_char_write(text, c)}));
    }
    return TG_OK;
}

/* Opens the vocabulary. Each merge makes a word shorter by a token or more, so there are at most as many merges as
 * bytes in the words. Short texts therefore take little memory, however large a vocabulary the options ask for. */
static tg_status open_vocab(merger *m) {
    int64_t begin = 256, capacity;
    const char *at = m->b->opts.special;
    for (tg_span special; tg_next_special(&at, &special);) begin++;
    m->most = begin + m->b->texts.n < m->b->opts.vocab ? begin + m->b->texts.n : m->b->opts.vocab;
    capacity = m->most > begin ? m->most : begin;
    TG_TRY(tg_vocab_open(&m->t->vocab, &m->t->memory, capacity));
    m->lengths = tg_pieces_alloc(&m->t->memory, (size_t)capacity * sizeof *m->lengths);
    return m->lengths ? begin_vocab(m) : TG_ERR_MEMORY;
}

/* ---- Words ---- */

/* Writes each word as the ids of its bytes. */
static tg_status open_words(merger *m) {
    const tg_bpe *b = m->b;
    uint32_t of_byte[256], *next;
    for (int i = 0; i < 256; i++) {
        char c[4];
        of_byte[i] = (uint32_t)tg_vocab_find(&m->t->vocab, c, tg_char_write(c, tg_byte_char((unsigned char)i)));
    }
    m->words = calloc((size_t)b->n_words + 1, sizeof *m->words);
    next = m->ids = malloc((size_t)b->texts.n * sizeof *m->ids + 1);
    if (!m->words || !m->ids) return fail_memory(m);
    for (int64_t w = 0; w < b->n_words; w++) {
        const tg_counted_word *word = b->words + w;
        m->words[w] = (merged_word){next, word->length, word->count};
        for (uint32_t i = 0; i < word->length; i++) *next++ = of_byte[(unsigned char)b->texts.at[word->text + i]];
    }
    return TG_OK;
}

/* ---- Pairs ---- */

/* Adds the count of a word to that of a pair (sign 1), or subtracts it (sign -1). A word whose count was added is
 * searched when the pair is merged. */
static bool change(merger *m, uint32_t left, uint32_t right, int64_t word, int sign) {
    int64_t at = tg_pairs_at(&m->pairs, left, right);
    if (at < 0) return false;
    tg_pair *pair = m->pairs.pairs + at;
    pair->count += sign * m->words[word].count;
    if (sign < 0) return true;
    if (!pair->n_words) {
        if (!tg_grown((void **)&m->touched, &m->touched_capacity, m->n_touched + 1, sizeof *m->touched)) return false;
        m->touched[m->n_touched++] = at;
    }
    return tg_pair_add_word(pair, word);
}

/* Queues the pairs that have got words, with these words. */
static bool queue_touched(merger *m) {
    for (int64_t i = 0; i < m->n_touched; i++) {
        tg_pair *pair = m->pairs.pairs + m->touched[i];
        tg_candidate one = {(uint64_t)pair->count, pair->left, pair->right, m->touched[i], pair->n_words, pair->words};
        if (pair->count > 0 && !tg_candidates_push(&m->queue, one)) return false;
        if (pair->count <= 0) free(pair->words);
        pair->words = NULL;
        pair->n_words = pair->capacity = 0;
    }
    m->n_touched = 0;
    return true;
}

static bool count_pairs(merger *m) {
    for (int64_t w = 0; w < m->b->n_words; w++)
        for (int64_t i = 0; i + 1 < m->words[w].n; i++)
            if (!change(m, m->words[w].ids[i], m->words[w].ids[i + 1], w, 1)) return false;
    return queue_touched(m);
}

/* ---- Merges ---- */

/* Updates the counts of pairs next to a merge in a word. The token `made` and its neighbor are the new pair left,
 * right; `before` says that the neighbor is left. `old` is the part of the merged pair that was next to the neighbor. A
 * new pair whose token would be too long is not counted. */
static bool change_neighbor(merger *m, int64_t word, uint32_t left, uint32_t right, uint32_t old, bool before,
                            uint32_t made) {
    uint32_t neighbor = before ? left : right;
    bool good = before ? change(m, left, old, word, -1) : change(m, old, right, word, -1);
    if (!good || m->lengths[neighbor] + m->lengths[made] >= m->longest) return good;
    return change(m, left, right, word, 1);
}

/* Merges a pair wherever it is in word w. */
static bool merge_word(merger *m, int64_t w, uint32_t left, uint32_t right, uint32_t made) {
    merged_word *word = m->words + w;
    int64_t to = 0;
    for (int64_t i = 0; i < word->n; i++) {
        bool here = word->ids[i] == left && i + 1 < word->n && word->ids[i + 1] == right;
        word->ids[to++] = here ? made : word->ids[i];
        if (!here) continue;
        i++;
        if (to > 1 && !change_neighbor(m, w, word->ids[to - 2], made, left, true, made)) return false;
        if (i + 1 < word->n && !change_neighbor(m, w, made, word->ids[i + 1], right, false, made)) return false;
    }
    word->n = to;
    return true;
}

/* Makes the token of a pair. Another pair may have made the same one before. */
static tg_status add_merge(merger *m, const tg_candidate *c, uint32_t *made) {
    tg_trained *t = m->t;
    tg_span left = t->vocab.token[c->left], right = t->vocab.token[c->right];
    m->joined.n = 0;
    if (!tg_growing_add(&m->joined, left.at, left.n) || !tg_growing_add(&m->joined, right.at, right.n) ||
        !tg_grown((void **)&t->merges, &t->merges_capacity, t->n_merges + 1, sizeof *t->merges))
        return fail_memory(m);
    tg_span joined = {m->joined.at, (size_t)m->joined.n};
    TG_TRY(add_token(m, joined));
    *made = (uint32_t)tg_vocab_find(&t->vocab, joined.at, joined.n);
    t->merges[t->n_merges] = (tg_merge){c->left, c->right, (uint32_t)t->n_merges, *made};
    t->n_merges++;
    return TG_OK;
}

static tg_status merge_candidate(merger *m, const tg_candidate *c) {
    uint32_t made = 0;
    TG_TRY(add_merge(m, c, &made));
    for (int64_t i = 0; i < c->n_words; i++)
        if (!merge_word(m, c->words[i], c->left, c->right, made)) return fail_memory(m);
    return queue_touched(m) ? TG_OK : fail_memory(m);
}

static tg_status merge_all(merger *m, tg_bpe_progress_fn progress, void *user) {
    const tg_bpe_opts *o = &m->b->opts;
    while (m->t->vocab.size < m->most && m->queue.count) {
        tg_candidate top = tg_candidates_pop(&m->queue);
        uint64_t now = (uint64_t)m->pairs.pairs[top.pair].count;
        if (top.count != now) { /* the count has changed since the pair was queued */
            top.count = now;
            tg_candidates_push(&m->queue, top); /* in the place of the one that was taken */
            continue;
        }
        bool rare = top.count < 1 || (uint64_t)o->min_frequency > top.count;
        tg_status s = rare ? TG_OK : merge_candidate(m, &top);
        free(top.words);
        if (rare || s != TG_OK) return s;
        if (progress) progress(user, m->t->vocab.size, o->vocab);
    }
    return TG_OK;
}

tg_status tg_bpe_merge(tg_bpe *b, tg_trained *t, tg_bpe_progress_fn progress, void *user) {
    merger m = {.b = b, .t = t, .longest = b->opts.max_length == TG_NONE ? INT64_MAX : b->opts.max_length};
    tg_status s = open_vocab(&m);
    if (s == TG_OK) s = open_words(&m);
    if (s == TG_OK && !count_pairs(&m)) s = fail_memory(&m);
    if (s == TG_OK) s = merge_all(&m, progress, user);
    for (int64_t i = 0; i < m.queue.count; i++) free(m.queue.heap[i].words);
    free(m.queue.heap);
    tg_pairs_free(&m.pairs);
    free(m.words);
    free(m.ids);
    free(m.touched);
    free(m.joined.at);
    return s;
}

void tg_trained_free(tg_trained *t) {
    free(t->merges);
    tg_pieces_free(&t->memory);
}
