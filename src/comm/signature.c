/* Signatures of calls: how they are made, compared and quoted. */
#include "comm/signature.h"

/* Returns the FNV-1a hash of n counts. counts NULL: all of them are `count`. */
static uint64_t digest(const int64_t *counts, int64_t count, int n) {
    uint64_t h = 14695981039346656037u;
    for (int r = 0; r < n; r++) h = (h ^ (uint64_t)(counts ? counts[r] : count)) * 1099511628211u;
    return h;
}

tg_signature tg_signature_of(const tg_transfer *t, int size, uint64_t missed) {
    bool parts = t->kind == TG_ALL_GATHER || t->kind == TG_REDUCE_SCATTER;
    bool reduces = t->kind == TG_ALL_REDUCE || t->kind == TG_REDUCE_SCATTER;
    bool rooted = t->kind == TG_BROADCAST || t->kind == TG_GATHER || t->kind == TG_SCATTER;
    return (tg_signature){
        .kind = (uint8_t)t->kind,
        .dtype = t->kind == TG_BARRIER ? 0 : (uint8_t)t->dtype,
        .op = reduces ? (uint8_t)t->op : 0,
        .root = rooted ? t->root : -1,
        .count = parts || t->kind == TG_ALL_TO_ALL ? 0 : t->count,
        .counts = parts ? digest(t->kind == TG_ALL_GATHER ? t->recv : t->send, t->count, size) : 0,
        .missed = missed,
    };
}

bool tg_signature_equal(const tg_signature *a, const tg_signature *b) {
    return a->kind == b->kind && a->dtype == b->dtype && a->op == b->op && a->root == b->root &&
           a->count == b->count && a->counts == b->counts;
}

tg_call_entry tg_signature_entry(const tg_signature *s, int64_t count, int peer, uint64_t sequence) {
    return (tg_call_entry){
        .kind = s->kind,
        .dtype = s->dtype,
        .op = s->op,
        .root = s->kind == TG_SEND || s->kind == TG_RECV ? peer : s->root,
        .count = count,
        .sequence = sequence + 1,
    };
}

int64_t *tg_parts_begin(int64_t *at, const int64_t *counts, int n) {
    int64_t sum = 0;
    if (!counts) return NULL;
    for (int r = 0; r < n; r++) at[r] = sum, sum += counts[r];
    at[n] = sum;
    return at;
}
