/* The tables of a model: its tokens, and the pairs that are merged. Both are open-addressing hash tables of fixed size.
 */
#include "text/tokenizer.h"

/* Returns the number of slots of a table for n entries, at most half of them used, minus 1. */
static uint64_t mask_for(int64_t n) {
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n) slots *= 2;
    return slots - 1;
}

tg_status tg_vocab_open(tg_vocab *v, tg_pieces *memory, int64_t size) {
    *v = (tg_vocab){.capacity = size, .mask = mask_for(size)};
    v->token = tg_pieces_alloc(memory, (size_t)size * sizeof *v->token);
    v->slots = tg_pieces_alloc(memory, (v->mask + 1) * sizeof *v->slots);
    if (!v->token || !v->slots) return TG_ERR_MEMORY;
    memset(v->slots, 0xff, (v->mask + 1) * sizeof *v->slots); /* TG_NO_ID */
    return TG_OK;
}

void tg_vocab_add(tg_vocab *v, tg_span token, int32_t id) {
    uint64_t i = tg_span_hash(token.at, token.n) & v->mask;
    while (v->slots[i] != TG_NO_ID) i = (i + 1) & v->mask;
    v->slots[i] = id;
    v->token[id] = token;
    if (id >= v->size) v->size = id + 1;
}

int32_t tg_vocab_find(const tg_vocab *v, const char *at, size_t n) {
    if (!v->slots) return TG_NO_ID;
    for (uint64_t i = tg_span_hash(at, n) & v->mask; v->slots[i] != TG_NO_ID; i = (i + 1) & v->mask) {
        const tg_span *token = v->token + v->slots[i];
        if (token->n == n && memcmp(token->at, at, n) == 0) return v->slots[i];
    }
    return TG_NO_ID;
}

tg_status tg_merges_open(tg_model *m, tg_pieces *memory, int64_t count) {
    m->merge_mask = mask_for(count);
    m->merges = tg_pieces_alloc(memory, (m->merge_mask + 1) * sizeof *m->merges);
    if (!m->merges) return TG_ERR_MEMORY;
    memset(m->merges, 0xff, (m->merge_mask + 1) * sizeof *m->merges);
    return TG_OK;
}

void tg_merges_add(tg_model *m, tg_merge merge) {
    uint64_t i = tg_pair_hash(merge.left, merge.right) & m->merge_mask;
    while (m->merges[i].left != UINT32_MAX && (m->merges[i].left != merge.left || m->merges[i].right != merge.right))
        i = (i + 1) & m->merge_mask;
    m->merges[i] = merge;
}
