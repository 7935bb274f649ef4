#include "core/memory.h"

#include <string.h>

#include "core/tlsf.h"

/* Blocks of up to SMALL units are carved from chunks and, once released, wait in a list of their size for the next
 * request of that size. They never go back into the bins, so they do not cut the large free ranges into pieces. */
enum { SMALL = 16, CHUNK = 1024 };

static const size_t LARGEST = (size_t)1 << 45;

struct tg_heap {
    tg_block *cache[SMALL + 1];
    int64_t live, peak;
    int64_t by_category[TG_MEM_CATEGORIES], peak_by_category[TG_MEM_CATEGORIES];
    void (*on_peak)(void *user);
    void *on_peak_user;
    int64_t notify; /* on_peak is called when live reaches this */
    tg_block *chunk, *carved_last;
    size_t carved; /* units of chunk */
    tg_tlsf tlsf;
};

tg_heap *tg_heap_new(const tg_heap_source *source) {
    tg_heap *h = source->host(source->user, sizeof *h);
    if (!h) return NULL;
    memset(h, 0, sizeof *h);
    tg_tlsf_init(&h->tlsf, source);
    return h;
}

void tg_heap_free(tg_heap *h) {
    if (!h) return;
    tg_heap_source source = h->tlsf.source;
    tg_tlsf_close(&h->tlsf);
    source.host_free(source.user, h, sizeof *h);
}

/* ---- Small blocks ---- */

static bool chunk_new(tg_heap *h) {
    tg_block *chunk = tg_tlsf_take(&h->tlsf, CHUNK);
    if (!chunk) return false;
    chunk->state = TG_BLOCK_CARVED;
    h->chunk = chunk;
    h->carved_last = NULL;
    h->carved = 0;
    return true;
}

/* The chunk's link is the first block carved from it, each block's next the one behind it. */
static tg_block *carve(tg_heap *h, size_t units) {
    if ((!h->chunk || h->carved + units > CHUNK) && !chunk_new(h)) return NULL;
    if (!tg_tlsf_reserve(&h->tlsf, 1)) return NULL;
    tg_block *b = tg_tlsf_descriptor(&h->tlsf);
    b->data = h->chunk->data + h->carved * TG_UNIT;
    b->bytes = units * TG_UNIT;
    if (h->carved_last)
        h->carved_last->next = b;
    else
        h->chunk->link = b;
    h->carved_last = b;
    h->carved += units;
    return b;
}

static inline tg_block *small_take(tg_heap *h, size_t units) {
    tg_block *b = h->cache[units];
    if (!b) return carve(h, units);
    h->cache[units] = b->link;
    return b;
}

static inline void small_give(tg_heap *h, tg_block *b, size_t units) {
    b->state = TG_BLOCK_CACHED;
    b->link = h->cache[units];
    h->cache[units] = b;
}

/* ---- Live and peak ---- */

static int64_t next_notice(const tg_heap *h) {
    return h->peak + h->peak / 64;
}

static void peak_passed(tg_heap *h) {
    h->peak = h->live;
    if (!h->on_peak || h->live < h->notify) return;
    h->notify = next_notice(h);
    h->on_peak(h->on_peak_user);
}

static inline void count(tg_heap *h, const tg_block *b) {
    h->live += (int64_t)b->bytes;
    h->by_category[b->category] += (int64_t)b->bytes;
    if (h->live > h->peak) peak_passed(h);
}

/* The snapshot is taken when the peak ends rather than when it is reached: what is saved for backward has been
 * categorised so by then. */
static inline void uncount(tg_heap *h, const tg_block *b) {
    if (h->live == h->peak) memcpy(h->peak_by_category, h->by_category, sizeof h->by_category);
    h->live -= (int64_t)b->bytes;
    h->by_category[b->category] -= (int64_t)b->bytes;
}

void tg_heap_stats(const tg_heap *h, tg_memory *out) {
    out->live = h->live;
    out->peak = h->peak;
    out->reserved = h->tlsf.reserved;
    const int64_t *at_peak = h->live == h->peak ? h->by_category : h->peak_by_category;
    memcpy(out->by_category, h->by_category, sizeof h->by_category);
    memcpy(out->peak_by_category, at_peak, sizeof h->by_category);
}

void tg_heap_reset_peak(tg_heap *h) {
    h->peak = h->live;
    h->notify = next_notice(h);
}

void tg_heap_on_peak(tg_heap *h, void (*fn)(void *user), void *user) {
    h->on_peak = fn;
    h->on_peak_user = user;
    h->notify = next_notice(h);
}

/* ---- Blocks ---- */

tg_block *tg_heap_alloc(tg_heap *h, size_t bytes, tg_category category) {
    if (bytes > LARGEST) return NULL;
    size_t units = bytes ? (bytes + TG_UNIT - 1) / TG_UNIT : 1;
    tg_block *b = units <= SMALL ? small_take(h, units) : tg_tlsf_take(&h->tlsf, units);
    if (!b) return NULL;
    b->state = TG_BLOCK_LIVE;
    b->category = (uint8_t)category;
    b->owner = NULL;
    count(h, b);
    return b;
}

void tg_block_hold(tg_block *b) {
    b->holds++;
}

void tg_block_unhold(tg_heap *h, tg_block *b) {
    if (--b->holds > 0 || !b->doomed) return;
    b->doomed = false;
    tg_heap_release(h, b);
}

bool tg_block_held(const tg_block *b) { return b->holds > 0; }

void tg_heap_release(tg_heap *h, tg_block *b) {
    if (!b) return;
    if (b->holds) {
        b->doomed = true;
        b->owner = NULL;
        return;
    }
    size_t units = b->bytes / TG_UNIT;
    uncount(h, b);
    if (units <= SMALL)
        small_give(h, b, units);
    else
        tg_tlsf_give(&h->tlsf, b);
}

void tg_block_categorise(tg_heap *h, tg_block *b, tg_category category) {
    h->by_category[b->category] -= (int64_t)b->bytes;
    h->by_category[category] += (int64_t)b->bytes;
    b->category = (uint8_t)category;
}

static void each_carved(const tg_block *chunk, void (*fn)(void *user, const tg_block *b), void *user) {
    for (const tg_block *b = chunk->link; b; b = b->next)
        if (b->state == TG_BLOCK_LIVE) fn(user, b);
}

void tg_heap_each(const tg_heap *h, void (*fn)(void *user, const tg_block *b), void *user) {
    for (const tg_block *s = h->tlsf.segments; s; s = s->link)
        for (const tg_block *b = s->next; b; b = b->next) {
            if (b->state == TG_BLOCK_LIVE) fn(user, b);
            if (b->state == TG_BLOCK_CARVED) each_carved(b, fn, user);
        }
}

void *tg_block_data(const tg_block *b) {
    return b->data;
}

size_t tg_block_bytes(const tg_block *b) {
    return b->bytes;
}

void tg_block_set_owner(tg_block *b, void *owner) {
    b->owner = owner;
}

void *tg_block_owner(const tg_block *b) {
    return b->owner;
}

tg_category tg_block_category(const tg_block *b) {
    return (tg_category)b->category;
}
