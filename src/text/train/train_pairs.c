/* The pairs of neighbors in all words, and the order in which they are merged. */
#include "text/train/train.h"

static bool grow(tg_pairs *p) {
    uint64_t slots = p->mask ? 2 * (p->mask + 1) : 1 << 12;
    int64_t *made = calloc(slots, sizeof *made);
    if (!made) return false;
    for (int64_t k = 0; k < p->count; k++) {
        uint64_t i = tg_pair_hash(p->pairs[k].left, p->pairs[k].right) & (slots - 1);
        while (made[i]) i = (i + 1) & (slots - 1);
        made[i] = k + 1;
    }
    free(p->slots);
    p->slots = made;
    p->mask = slots - 1;
    return true;
}

int64_t tg_pairs_at(tg_pairs *p, uint32_t left, uint32_t right) {
    if ((!p->mask || 2 * (uint64_t)p->count >= p->mask) && !grow(p)) return -1;
    uint64_t i = tg_pair_hash(left, right) & p->mask;
    for (; p->slots[i]; i = (i + 1) & p->mask) {
        const tg_pair *found = p->pairs + p->slots[i] - 1;
        if (found->left == left && found->right == right) return p->slots[i] - 1;
    }
    if (!tg_grown((void **)&p->pairs, &p->capacity, p->count + 1, sizeof *p->pairs)) return -1;
    p->pairs[p->count] = (tg_pair){.left = left, .right = right};
    return (p->slots[i] = ++p->count) - 1;
}

/* All changes of a word follow each other, so a word that was added before is the last one. */
bool tg_pair_add_word(tg_pair *p, int64_t word) {
    if (p->n_words && p->words[p->n_words - 1] == word) return true;
    if (!tg_grown((void **)&p->words, &p->capacity, p->n_words + 1, sizeof *p->words)) return false;
    p->words[p->n_words++] = word;
    return true;
}

void tg_pairs_free(tg_pairs *p) {
    for (int64_t i = 0; i < p->count; i++) free(p->pairs[i].words);
    free(p->pairs);
    free(p->slots);
}

/* ---- Candidates ---- */

static bool comes_before(const tg_candidate *a, const tg_candidate *b) {
    if (a->count != b->count) return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

bool tg_candidates_push(tg_candidates *c, tg_candidate one) {
    if (!tg_grown((void **)&c->heap, &c->capacity, c->count + 1, sizeof *c->heap)) return false;
    int64_t i = c->count++;
    for (int64_t above; i > 0 && comes_before(&one, c->heap + (above = (i - 1) / 2)); i = above)
        c->heap[i] = c->heap[above];
    c->heap[i] = one;
    return true;
}

tg_candidate tg_candidates_pop(tg_candidates *c) {
    tg_candidate top = c->heap[0], last = c->heap[--c->count];
    int64_t i = 0;
    for (int64_t below; (below = 2 * i + 1) < c->count; i = below) {
        if (below + 1 < c->count && comes_before(c->heap + below + 1, c->heap + below)) below++;
        if (!comes_before(c->heap + below, &last)) break;
        c->heap[i] = c->heap[below];
    }
    c->heap[i] = last;
    return top;
}
