/* The caching heap: its cache of small blocks, its live and peak counts, and the arenas of captured steps. Ranges of
 * larger sizes are found in tlsf.c. */
#include "base/memory/heap.h"

#include <string.h>

#include "base/memory/shadow.h"
#include "base/memory/tlsf.h"

/* Blocks of up to SMALL units are cut from chunks of CHUNK units. A released small block waits in a list of its size
 * for the next request of that size. It never returns to the bins of tlsf.h, so small blocks do not cut the large free
 * ranges into pieces. Descriptors of small blocks have no links to neighbors. They lie in arrays of CARVED, in the
 * order in which the blocks were cut. */
enum { SMALL = 16, CHUNK = 1024, ARENAS = 256, CARVED = 100 };

static const size_t LARGEST = (size_t)1 << 45; /* bytes; within the range of the bins */

/* Memory that the heap does not own. */
typedef struct adopted {
    tg_block *block;
    void (*end)(void *user);
    void *user;
    struct adopted *next;
} adopted;

/* Descriptors of small blocks. */
typedef struct carved {
    struct carved *next;
    tg_block block[CARVED];
    tg_block end; /* not a block: its link is the first block of `next` */
} carved;

struct tg_heap {
    tg_block *cache[SMALL + 1];
    int64_t live, peak;
    int64_t by_category[TG_MEM_CATEGORIES], peak_by_category[TG_MEM_CATEGORIES];
    void (*on_peak)(void *user, const tg_block *b);
    void *on_peak_user;
    int64_t notify;  /* on_peak is called when live reaches this */
    tg_range *chunk; /* the chunk that small blocks are being cut from; NULL: none yet */
    size_t used;     /* units of the chunk that have been cut */
    carved *carved, *carved_last;
    int n_carved; /* number of blocks in carved_last */
    tg_tlsf tlsf;
    adopted *adopted; /* all adopted blocks, linked */
    /* Fields of captured steps: see heap.h. */
    tg_heap *arena[ARENAS]; /* indexed by number; arena[0] stays NULL */
    int capturing;          /* number of the arena that new blocks come from; 0: none */
    tg_heap *outer;         /* in an arena: the heap that its segments come from */
    tg_block *borrowed;     /* in an arena: the blocks of `outer` that are its segments, linked */
    tg_block *pin;          /* in an arena: the block of tg_heap_arena_pin; NULL: none */
    uint8_t number;         /* in an arena: its number; 0: not an arena */
    bool ended;             /* in an arena: its captured step has been freed */
};

tg_heap *tg_heap_new(const tg_heap_source *source) {
    tg_heap *h = source->host(source->user, sizeof *h);
    if (!h) return NULL;
    memset(h, 0, sizeof *h);
    tg_tlsf_init(&h->tlsf, source);
    return h;
}

static void arena_free(tg_heap *a);

/* Unlinks the entry that *at points to, calls its end function, and frees it. */
static void adopted_end(tg_heap *h, adopted **at) {
    adopted *a = *at;
    *at = a->next;
    a->end(a->user);
    h->tlsf.source.host_free(h->tlsf.source.user, a, sizeof *a);
}

static void heap_close(tg_heap *h) {
    const tg_heap_source *source = &h->tlsf.source;
    for (carved *c = h->carved, *next; c; c = next) {
        next = c->next;
        source->host_free(source->user, c, sizeof *c);
    }
    tg_tlsf_close(&h->tlsf);
}

void tg_heap_free(tg_heap *h) {
    if (!h) return;
    for (int i = 1; i < ARENAS; i++)
        if (h->arena[i]) arena_free(h->arena[i]);
    while (h->adopted) adopted_end(h, &h->adopted);
    heap_close(h);
    tg_heap_source source = h->tlsf.source;
    source.host_free(source.user, h, sizeof *h);
}

/* ---- Small blocks ---- */

static bool chunk_new(tg_heap *h) {
    tg_range *chunk = tg_tlsf_take(&h->tlsf, CHUNK);
    if (!chunk) return false;
    chunk->block.state = TG_BLOCK_CARVED;
    h->chunk = chunk;
    h->used = 0;
    return true;
}

static bool more_carved(tg_heap *h) {
    const tg_heap_source *source = &h->tlsf.source;
    carved *c = source->host(source->user, sizeof *c);
    if (!c) return false;
    memset(c, 0, sizeof *c);
    if (h->carved_last) {
        h->carved_last->next = c;
        h->carved_last->end.link = c->block;
    } else {
        h->carved = c;
    }
    h->carved_last = c;
    h->n_carved = 0;
    return true;
}

static tg_block *carve(tg_heap *h, size_t units) {
    if ((!h->carved_last || h->n_carved == CARVED) && !more_carved(h)) return NULL;
    if ((!h->chunk || h->used + units > CHUNK) && !chunk_new(h)) return NULL;
    tg_block *b = &h->carved_last->block[h->n_carved++];
    b->data = h->chunk->block.data + h->used * TG_UNIT;
    b->bytes = units * TG_UNIT;
    if (!h->used) h->chunk->block.link = b;
    h->used += units;
    return b;
}

/* Returns the block that was cut after b. Its data is NULL if there is none. */
static const tg_block *next_carved(const tg_block *b) {
    b++;
    return b->link && !b->data ? b->link : b;
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

/* Returns the live bytes at which on_peak is called next. The step of 1/64 bounds the number of calls while a peak
 * grows block by block. */
static int64_t next_notify(const tg_heap *h) {
    return h->peak + h->peak / 64;
}

static void peak_passed(tg_heap *h, const tg_block *b) {
    h->peak = h->live;
    if (!h->on_peak || h->live < h->notify) return;
    h->notify = next_notify(h);
    h->on_peak(h->on_peak_user, b);
}

static inline void count(tg_heap *h, const tg_block *b) {
    h->live += (int64_t)b->bytes;
    h->by_category[b->category] += (int64_t)b->bytes;
    if (h->live > h->peak) peak_passed(h, b);
}

/* The categories are copied when the peak ends, not when it is reached: when it ends, the bytes that were saved for
 * backward have already been moved to category TG_MEM_SAVED. */
static inline void uncount(tg_heap *h, const tg_block *b) {
    if (h->live == h->peak) memcpy(h->peak_by_category, h->by_category, sizeof h->by_category);
    h->live -= (int64_t)b->bytes;
    h->by_category[b->category] -= (int64_t)b->bytes;
}

void tg_heap_stats(const tg_heap *h, tg_memory_info *out) {
    out->live = h->live;
    out->peak = h->peak;
    out->reserved = h->tlsf.reserved;
    const int64_t *at_peak = h->live == h->peak ? h->by_category : h->peak_by_category;
    memcpy(out->by_category, h->by_category, sizeof h->by_category);
    memcpy(out->peak_by_category, at_peak, sizeof h->by_category);
}

void tg_heap_reset_peak(tg_heap *h) {
    h->peak = h->live;
    h->notify = next_notify(h);
}

void tg_heap_on_peak(tg_heap *h, void (*fn)(void *user, const tg_block *b), void *user) {
    h->on_peak = fn;
    h->on_peak_user = user;
    h->notify = next_notify(h);
}

/* ---- Blocks ---- */

static tg_block *range_take(tg_heap *h, size_t units) {
    tg_range *r = tg_tlsf_take(&h->tlsf, units);
    return r ? &r->block : NULL;
}

/* Returns whether tensors of the category live longer than a step, so that their memory must not come from an arena. */
static bool outlives_steps(tg_category c) {
    return c != TG_MEM_TEMPORARY && c != TG_MEM_SAVED && c != TG_MEM_WORKSPACE;
}

tg_block *tg_heap_alloc(tg_heap *h, size_t bytes, tg_category category) {
    if (bytes > LARGEST) return NULL;
    if (h->capturing && !outlives_steps(category)) h = h->arena[h->capturing];
    size_t units = bytes ? (bytes + TG_UNIT - 1) / TG_UNIT : 1;
    tg_block *b = units <= SMALL ? small_take(h, units) : range_take(h, units);
    if (!b) return NULL;
    b->state = TG_BLOCK_LIVE;
    b->category = (uint8_t)category;
    b->arena = h->number;
    b->owner = NULL;
    if (TG_SHADOWED && h->tlsf.source.on_host) tg_shadow_open(b->data, bytes);
    count(h, b);
    return b;
}

tg_block *tg_heap_adopt(tg_heap *h, void *data, size_t bytes, tg_category category, void (*end)(void *user),
                        void *user) {
    const tg_heap_source *source = &h->tlsf.source;
    adopted *a = tg_tlsf_reserve(&h->tlsf, 1) ? source->host(source->user, sizeof *a) : NULL;
    if (!a) return NULL;
    tg_block *b = &tg_tlsf_descriptor(&h->tlsf)->block;
    *b = (tg_block){.data = data, .bytes = bytes, .state = TG_BLOCK_LIVE, .category = (uint8_t)category & 15,
                    .adopted = true};
    *a = (adopted){b, end, user, h->adopted};
    h->adopted = a;
    count(h, b);
    return b;
}

static void give_adopted(tg_heap *h, tg_block *b) {
    adopted **at = &h->adopted;
    while ((*at)->block != b) at = &(*at)->next;
    adopted_end(h, at);
    tg_tlsf_descriptor_give(&h->tlsf, (tg_range *)b);
}

/* Returns the heap that b was cut from: h or one of its arenas. */
static inline tg_heap *heap_of(tg_heap *h, const tg_block *b) { return b->arena ? h->arena[b->arena] : h; }

void tg_block_hold(tg_block *b) {
    b->holds++;
}

void tg_block_unhold(tg_heap *h, tg_block *b) {
    if (--b->holds > 0 || b->graphs > 0 || !b->doomed) return;
    b->doomed = false;
    tg_heap_release(h, b);
}

bool tg_block_held(const tg_block *b) { return b->holds > 0; }

/* ---- Arenas ---- */

/* Takes a segment of an arena as a block of the outer heap. */
static void *arena_segment(void *user, size_t bytes, size_t align) {
    tg_heap *h = user;
    tg_block *b = tg_heap_alloc(h->outer, bytes, TG_MEM_GRAPH);
    (void)align;
    if (!b) return NULL;
    b->link = h->borrowed;
    h->borrowed = b;
    return b->data;
}

static void arena_segment_free(void *user, void *p, size_t bytes) {
    tg_heap *h = user;
    tg_block *b = h->borrowed, *before = NULL;
    (void)bytes;
    for (; b->data != p; b = b->link) before = b;
    if (before)
        before->link = b->link;
    else
        h->borrowed = b->link;
    tg_heap_release(h->outer, b);
}

static void *arena_host(void *user, size_t bytes) {
    const tg_heap_source *s = &((tg_heap *)user)->outer->tlsf.source;
    return s->host(s->user, bytes);
}

static void arena_host_free(void *user, void *p, size_t bytes) {
    const tg_heap_source *s = &((tg_heap *)user)->outer->tlsf.source;
    s->host_free(s->user, p, bytes);
}

int tg_heap_arena_open(tg_heap *h) {
    int number = 1;
    while (number < ARENAS && h->arena[number]) number++;
    if (number == ARENAS) return 0;
    tg_heap *a = h->tlsf.source.host(h->tlsf.source.user, sizeof *a);
    if (!a) return 0;
    memset(a, 0, sizeof *a);
    a->outer = h;
    a->number = (uint8_t)number;
    tg_tlsf_init(&a->tlsf, &(tg_heap_source){.segment = arena_segment, .segment_free = arena_segment_free,
                                             .host = arena_host, .host_free = arena_host_free, .user = a});
    h->arena[number] = a;
    h->capturing = number;
    return number;
}

void tg_heap_arena_close(tg_heap *h, int arena) {
    if (h->capturing == arena) h->capturing = 0;
}

static void arena_free(tg_heap *a) {
    tg_heap *h = a->outer;
    h->arena[a->number] = NULL;
    heap_close(a);
    h->tlsf.source.host_free(h->tlsf.source.user, a, sizeof *a);
}

/* Shrinks an arena whose captured step has been freed. Frees the arena if no block but its pin is live. Otherwise
 * returns its segments that are entirely free. */
static void arena_shrink(tg_heap *a) {
    if (a->live > (a->pin ? (int64_t)a->pin->bytes : 0)) {
        tg_tlsf_trim(&a->tlsf);
        return;
    }
    arena_free(a);
}

void tg_heap_arena_end(tg_heap *h, int arena) {
    h->arena[arena]->ended = true;
    arena_shrink(h->arena[arena]);
}

int64_t tg_heap_arena_bytes(const tg_heap *h, int arena) { return h->arena[arena]->tlsf.reserved; }

tg_block *tg_heap_arena_pin(tg_heap *h, int arena, size_t bytes) {
    tg_heap *a = h->arena[arena];
    tg_block *b = tg_heap_alloc(a, bytes, TG_MEM_GRAPH);
    if (b) a->pin = b;
    return b;
}

void tg_heap_arena_each(const tg_heap *h, int arena, void (*fn)(void *user, const tg_block *b), void *user) {
    tg_heap_each(h->arena[arena], fn, user);
}

static void find_owned(void *user, const tg_block *b) {
    const tg_block **found = user;
    if (!*found && b->owner) *found = b;
}

tg_block *tg_heap_arena_any(const tg_heap *h, int arena) {
    const tg_block *found = NULL;
    tg_heap_arena_each(h, arena, find_owned, &found);
    return (tg_block *)found;
}

bool tg_heap_arena_use(tg_heap *h, tg_block *b) {
    if (b->used || b->arena == h->capturing) return false;
    b->used = true;
    b->graphs++;
    return true;
}

void tg_block_forget_use(tg_block *b) { b->used = false; }

bool tg_block_captured(const tg_block *b) { return b->graphs > 0; }

int tg_block_arena(const tg_block *b) { return b->arena; }

void tg_block_unuse(tg_heap *h, tg_block *b) {
    if (--b->graphs > 0 || b->holds > 0 || !b->doomed) return;
    b->doomed = false;
    tg_heap_release(h, b);
}

void tg_heap_release(tg_heap *h, tg_block *b) {
    if (!b) return;
    if (b->holds || b->graphs) {
        b->doomed = true;
        b->owner = NULL;
        return;
    }
    h = heap_of(h, b);
    size_t units = b->bytes / TG_UNIT;
    uncount(h, b);
    if (TG_SHADOWED && h->tlsf.source.on_host && !b->adopted) tg_shadow_close(b->data, b->bytes);
    if (b->adopted)
        give_adopted(h, b);
    else if (units <= SMALL)
        small_give(h, b, units);
    else
        tg_tlsf_give(&h->tlsf, (tg_range *)b);
    if (h->ended) arena_shrink(h);
}

void tg_block_categorize(tg_heap *h, tg_block *b, tg_category category) {
    h = heap_of(h, b);
    h->by_category[b->category] -= (int64_t)b->bytes;
    h->by_category[category] += (int64_t)b->bytes;
    b->category = (uint8_t)category;
}

static void each_carved(const tg_block *chunk, void (*fn)(void *user, const tg_block *b), void *user) {
    for (const tg_block *b = chunk->link; b && b->data >= chunk->data && b->data < chunk->data + chunk->bytes;
         b = next_carved(b))
        if (b->state == TG_BLOCK_LIVE) fn(user, b);
}

void tg_heap_each(const tg_heap *h, void (*fn)(void *user, const tg_block *b), void *user) {
    for (const tg_range *s = h->tlsf.segments; s; s = s->back)
        for (const tg_range *r = s->next; r; r = r->next) {
            if (r->block.state == TG_BLOCK_LIVE) fn(user, &r->block);
            if (r->block.state == TG_BLOCK_CARVED) each_carved(&r->block, fn, user);
        }
    for (int i = 1; i < ARENAS; i++)
        if (h->arena[i]) tg_heap_each(h->arena[i], fn, user);
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
