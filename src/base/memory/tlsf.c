/* The implementation of two-level segregated fit: descriptors, bins, segments, and how ranges are taken and given
 * back. */
#include "base/memory/tlsf.h"

#include <string.h>

/* WALK is the largest number of ranges of a bin that one call looks at: to insert a range in address order, and to find
 * a large enough range in a bin whose ranges may be too small. It is constant, so a call takes constant time, unless it
 * takes a new segment. In a training step the lists are shorter. */
enum { WALK = 16, DESCRIPTORS = 63 };

static const size_t HUGE_PAGE = (size_t)2 << 20;
static const size_t GROWTH_LIMIT = (size_t)64 << 20;

struct tg_descriptors {
    struct tg_descriptors *next;
    tg_range block[DESCRIPTORS];
};

void tg_tlsf_init(tg_tlsf *t, const tg_heap_source *source) {
    memset(t, 0, sizeof *t);
    t->source = *source;
    t->growth = HUGE_PAGE;
}

void tg_tlsf_close(tg_tlsf *t) {
    for (tg_range *s = t->segments; s; s = s->back)
        t->source.segment_free(t->source.user, s->block.data, s->block.bytes);
    while (t->descriptors) {
        struct tg_descriptors *d = t->descriptors;
        t->descriptors = d->next;
        t->source.host_free(t->source.user, d, sizeof *d);
    }
}

/* ---- Descriptors ---- */

static void spare_push(tg_tlsf *t, tg_range *b) {
    b->block.state = TG_BLOCK_SPARE;
    b->back = t->spare;
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

void tg_tlsf_descriptor_give(tg_tlsf *t, tg_range *b) { spare_push(t, b); }

tg_range *tg_tlsf_descriptor(tg_tlsf *t) {
    tg_range *b = t->spare;
    t->spare = b->back;
    t->n_spare--;
    *b = (tg_range){.next = NULL};
    return b;
}

/* ---- Bins ---- */

static int bin_of(size_t bytes) {
    size_t units = bytes / TG_UNIT;
    if (units < TG_FINE) return (int)units;
    int log = 63 - __builtin_clzll(units);
    return (log - TG_FINE_LOG + 1) * TG_FINE + (int)(units >> (log - TG_FINE_LOG)) - TG_FINE;
}

/* Adds a free range to its bin. A bin that has never had more than WALK ranges is in address order, so the same free
 * ranges serve the same requests, in whatever order they became free: a training step that has run once gets the same
 * memory again. */
static void bin_insert(tg_tlsf *t, tg_range *b) {
    int bin = bin_of(b->block.bytes);
    tg_range *before = NULL, *after = t->bin[bin];
    for (int i = 0; i < WALK && after && (uintptr_t)after->block.data < (uintptr_t)b->block.data; i++) {
        before = after;
        after = after->block.link;
    }
    b->block.state = TG_BLOCK_FREE;
    b->back = before;
    b->block.link = after;
    if (after) after->back = b;
    if (before)
        before->block.link = b;
    else
        t->bin[bin] = b;
    t->fine[bin / TG_FINE] |= 1u << bin % TG_FINE;
    t->coarse |= (uint64_t)1 << bin / TG_FINE;
}

static void bin_remove(tg_tlsf *t, tg_range *b) {
    int bin = bin_of(b->block.bytes), coarse = bin / TG_FINE;
    tg_range *after = b->block.link;
    if (after) after->back = b->back;
    if (b->back) {
        b->back->block.link = after;
        return;
    }
    t->bin[bin] = after;
    if (after) return;
    t->fine[coarse] &= ~(1u << bin % TG_FINE);
    if (!t->fine[coarse]) t->coarse &= ~((uint64_t)1 << coarse);
}

/* Returns a free range of at least this many bytes, or NULL if none was found. The bin of the request itself holds
 * ranges that may be a little too small. Every range of a later bin fits. */
static tg_range *find(const tg_tlsf *t, size_t bytes) {
    int bin = bin_of(bytes), coarse = bin / TG_FINE;
    tg_range *b = t->bin[bin];
    for (int i = 0; i < WALK && b; i++, b = b->block.link)
        if (b->block.bytes >= bytes) return b;
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

static void segment_insert(tg_tlsf *t, tg_range *s) {
    tg_range **at = &t->segments;
    while (*at && (uintptr_t)(*at)->block.data < (uintptr_t)s->block.data) at = &(*at)->back;
    s->back = *at;
    *at = s;
}

/* Takes a segment of `growth` bytes from the source, or of `least` bytes if `least` is more or if the source cannot
 * give more. Returns NULL if the source has no memory left. */
static void *segment_bytes(tg_tlsf *t, size_t least, size_t *bytes) {
    *bytes = t->growth > least ? t->growth : least;
    void *data = t->source.segment(t->source.user, *bytes, HUGE_PAGE);
    if (data || *bytes == least) return data;
    *bytes = least;
    return t->source.segment(t->source.user, least, HUGE_PAGE);
}

/* Returns a free range of at least this many bytes in a new segment. Segment sizes double up to the limit, so that a
 * small program stays small. Needs two spare descriptors. */
static tg_range *grow(tg_tlsf *t, size_t bytes) {
    size_t limit = t->source.segment_bytes ? t->source.segment_bytes : GROWTH_LIMIT, got;
    size_t least = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    char *data = segment_bytes(t, least, &got);
    if (!data) return NULL;
    t->growth = 2 * t->growth < limit ? 2 * t->growth : limit;
    t->reserved += (int64_t)got;
    tg_range *segment = tg_tlsf_descriptor(t), *b = tg_tlsf_descriptor(t);
    *segment = (tg_range){.block = {.data = data, .bytes = got, .state = TG_BLOCK_SEGMENT}, .next = b};
    *b = (tg_range){.block = {.data = data, .bytes = got}};
    segment_insert(t, segment);
    bin_insert(t, b);
    return b;
}

/* ---- Take and give ---- */

/* Cuts b down to this many bytes, and puts the rest into a bin. Needs a spare descriptor. */
static void split(tg_tlsf *t, tg_range *b, size_t bytes) {
    tg_range *rest = tg_tlsf_descriptor(t);
    *rest = (tg_range){
        .block = {.data = b->block.data + bytes, .bytes = b->block.bytes - bytes}, .prev = b, .next = b->next};
    if (rest->next) rest->next->prev = rest;
    b->next = rest;
    b->block.bytes = bytes;
    bin_insert(t, rest);
}

tg_range *tg_tlsf_take(tg_tlsf *t, size_t units) {
    size_t bytes = units * TG_UNIT;
    if (!tg_tlsf_reserve(t, 3)) return NULL;
    tg_range *b = find(t, bytes);
    if (!b) b = grow(t, bytes);
    if (!b) return NULL;
    bin_remove(t, b);
    if (b->block.bytes > bytes) split(t, b, bytes);
    b->block.link = NULL;
    b->back = NULL;
    return b;
}

/* Merges two neighbors into the left one. The right descriptor becomes spare. */
static void merge(tg_tlsf *t, tg_range *left, tg_range *right) {
    left->block.bytes += right->block.bytes;
    left->next = right->next;
    if (left->next) left->next->prev = left;
    spare_push(t, right);
}

void tg_tlsf_trim(tg_tlsf *t) {
    for (tg_range **at = &t->segments, *s; (s = *at);) {
        tg_range *b = s->next;
        if (b->block.state != TG_BLOCK_FREE || b->block.bytes != s->block.bytes) {
            at = &s->back;
            continue;
        }
        *at = s->back;
        bin_remove(t, b);
        t->reserved -= (int64_t)s->block.bytes;
        t->source.segment_free(t->source.user, s->block.data, s->block.bytes);
        spare_push(t, b);
        spare_push(t, s);
    }
}

void tg_tlsf_give(tg_tlsf *t, tg_range *b) {
    tg_range *left = b->prev, *right = b->next;
    if (right && right->block.state == TG_BLOCK_FREE) {
        bin_remove(t, right);
        merge(t, b, right);
    }
    if (left && left->block.state == TG_BLOCK_FREE) {
        bin_remove(t, left);
        merge(t, left, b);
        b = left;
    }
    bin_insert(t, b);
}
