#include "core/tlsf.h"

#include <string.h>

/* How far a list is walked for the address order of a bin and for a fit in the bin that may be too small: a constant,
 * so every call takes constant time, and more than the lists of a training step hold. */
enum { WALK = 16, DESCRIPTORS = 63 };

static const size_t HUGE_PAGE = (size_t)2 << 20;
static const size_t GROWTH_LIMIT = (size_t)64 << 20;

struct tg_descriptors {
    struct tg_descriptors *next;
    tg_block block[DESCRIPTORS];
};

void tg_tlsf_init(tg_tlsf *t, const tg_heap_source *source) {
    memset(t, 0, sizeof *t);
    t->source = *source;
    t->growth = HUGE_PAGE;
}

void tg_tlsf_close(tg_tlsf *t) {
    for (tg_block *s = t->segments; s; s = s->link) t->source.segment_free(t->source.user, s->data, s->bytes);
    while (t->descriptors) {
        struct tg_descriptors *d = t->descriptors;
        t->descriptors = d->next;
        t->source.host_free(t->source.user, d, sizeof *d);
    }
}

/* ---- Descriptors ---- */

static void spare_push(tg_tlsf *t, tg_block *b) {
    b->state = TG_BLOCK_SPARE;
    b->link = t->spare;
    t->spare = b;
    t->n_spare++;
}

bool tg_tlsf_reserve(tg_tlsf *t, int n) {
    if (t->n_spare >= n) return true;
    struct tg_descriptors *d = t->source.host(t->source.user, sizeof *d);
    if (!d) return false;
    d->next = t->descriptors;
    t->descriptors = d;
    for (int i = DESCRIPTORS - 1; i >= 0; i--) spare_push(t, &d->block[i]);
    return true;
}

void tg_tlsf_descriptor_give(tg_tlsf *t, tg_block *b) { spare_push(t, b); }

tg_block *tg_tlsf_descriptor(tg_tlsf *t) {
    tg_block *b = t->spare;
    t->spare = b->link;
    t->n_spare--;
    *b = (tg_block){.data = NULL};
    return b;
}

/* ---- Bins ---- */

static int bin_of(size_t bytes) {
    size_t units = bytes / TG_UNIT;
    if (units < TG_FINE) return (int)units;
    int log = 63 - __builtin_clzll(units);
    return (log - TG_FINE_LOG + 1) * TG_FINE + (int)(units >> (log - TG_FINE_LOG)) - TG_FINE;
}

/* Short lists are in address order, so that the same free ranges serve the same requests alike, however they came to
 * be free: a training step that has run once finds its memory again. */
static void bin_insert(tg_tlsf *t, tg_block *b) {
    int bin = bin_of(b->bytes);
    tg_block *before = NULL, *after = t->bin[bin];
    for (int i = 0; i < WALK && after && (uintptr_t)after->data < (uintptr_t)b->data; i++) {
        before = after;
        after = after->link;
    }
    b->state = TG_BLOCK_FREE;
    b->back = before;
    b->link = after;
    if (after) after->back = b;
    if (before)
        before->link = b;
    else
        t->bin[bin] = b;
    t->fine[bin / TG_FINE] |= 1u << bin % TG_FINE;
    t->coarse |= (uint64_t)1 << bin / TG_FINE;
}

static void bin_remove(tg_tlsf *t, tg_block *b) {
    int bin = bin_of(b->bytes), coarse = bin / TG_FINE;
    if (b->link) b->link->back = b->back;
    if (b->back) {
        b->back->link = b->link;
        return;
    }
    t->bin[bin] = b->link;
    if (b->link) return;
    t->fine[coarse] &= ~(1u << bin % TG_FINE);
    if (!t->fine[coarse]) t->coarse &= ~((uint64_t)1 << coarse);
}

/* The bin of the request itself holds ranges a little smaller and a little larger; every range of a later bin fits. */
static tg_block *find(const tg_tlsf *t, size_t bytes) {
    int bin = bin_of(bytes), coarse = bin / TG_FINE;
    tg_block *b = t->bin[bin];
    for (int i = 0; i < WALK && b; i++, b = b->link)
        if (b->bytes >= bytes) return b;
    uint32_t fine = t->fine[coarse] & (~1u << bin % TG_FINE);
    if (!fine) {
        uint64_t later = t->coarse & (~(uint64_t)1 << coarse);
        if (!later) return NULL;
        coarse = __builtin_ctzll(later);
        fine = t->fine[coarse];
    }
    return t->bin[coarse * TG_FINE + __builtin_ctz(fine)];
}

/* ---- Segments ---- */

static void segment_insert(tg_tlsf *t, tg_block *s) {
    tg_block **at = &t->segments;
    while (*at && (uintptr_t)(*at)->data < (uintptr_t)s->data) at = &(*at)->link;
    s->link = *at;
    *at = s;
}

static void *segment_bytes(tg_tlsf *t, size_t least, size_t *bytes) {
    *bytes = t->growth > least ? t->growth : least;
    void *data = t->source.segment(t->source.user, *bytes, HUGE_PAGE);
    if (data || *bytes == least) return data;
    *bytes = least;
    return t->source.segment(t->source.user, least, HUGE_PAGE);
}

/* A free range of at least bytes in a new segment. Segments double up to the limit, so that a small program stays
 * small. Needs two spare descriptors. */
static tg_block *grow(tg_tlsf *t, size_t bytes) {
    size_t limit = t->source.segment_bytes ? t->source.segment_bytes : GROWTH_LIMIT, got;
    size_t least = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    char *data = segment_bytes(t, least, &got);
    if (!data) return NULL;
    t->growth = 2 * t->growth < limit ? 2 * t->growth : limit;
    t->reserved += (int64_t)got;
    tg_block *segment = tg_tlsf_descriptor(t), *b = tg_tlsf_descriptor(t);
    *segment = (tg_block){.data = data, .bytes = got, .next = b, .state = TG_BLOCK_SEGMENT};
    *b = (tg_block){.data = data, .bytes = got};
    segment_insert(t, segment);
    bin_insert(t, b);
    return b;
}

/* ---- Take and give ---- */

static void split(tg_tlsf *t, tg_block *b, size_t bytes) {
    tg_block *rest = tg_tlsf_descriptor(t);
    *rest = (tg_block){.data = b->data + bytes, .bytes = b->bytes - bytes, .prev = b, .next = b->next};
    if (rest->next) rest->next->prev = rest;
    b->next = rest;
    b->bytes = bytes;
    bin_insert(t, rest);
}

tg_block *tg_tlsf_take(tg_tlsf *t, size_t units) {
    size_t bytes = units * TG_UNIT;
    if (!tg_tlsf_reserve(t, 3)) return NULL;
    tg_block *b = find(t, bytes);
    if (!b) b = grow(t, bytes);
    if (!b) return NULL;
    bin_remove(t, b);
    if (b->bytes > bytes) split(t, b, bytes);
    b->link = b->back = NULL;
    return b;
}

/* The right one of two neighbours becomes part of the left one. */
static void merge(tg_tlsf *t, tg_block *left, tg_block *right) {
    left->bytes += right->bytes;
    left->next = right->next;
    if (left->next) left->next->prev = left;
    spare_push(t, right);
}

void tg_tlsf_trim(tg_tlsf *t) {
    for (tg_block **at = &t->segments, *s; (s = *at);) {
        tg_block *b = s->next;
        if (b->state != TG_BLOCK_FREE || b->bytes != s->bytes) {
            at = &s->link;
            continue;
        }
        *at = s->link;
        bin_remove(t, b);
        t->reserved -= (int64_t)s->bytes;
        t->source.segment_free(t->source.user, s->data, s->bytes);
        spare_push(t, b);
        spare_push(t, s);
    }
}

void tg_tlsf_give(tg_tlsf *t, tg_block *b) {
    tg_block *left = b->prev, *right = b->next;
    if (right && right->state == TG_BLOCK_FREE) {
        bin_remove(t, right);
        merge(t, b, right);
    }
    if (left && left->state == TG_BLOCK_FREE) {
        bin_remove(t, left);
        merge(t, left, b);
        b = left;
    }
    bin_insert(t, b);
}
