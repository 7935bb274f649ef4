/* The caching allocator: bytes of one device, in blocks cut from large segments. Segments are kept until the heap is
 * freed, so memory once touched is touched for good; blocks are found by two-level segregated fit (Masmano et al.,
 * ECRTS 2004) with their descriptors outside the bytes, so that the same code serves device memory. */
#ifndef TG_MEMORY_H
#define TG_MEMORY_H

#include <tapegrad/types.h>

typedef struct tg_block tg_block;
typedef struct tg_heap tg_heap;

/* What a heap takes its segments and descriptors from. */
typedef struct tg_heap_source {
    void *(*segment)(void *user, size_t bytes, size_t align); /* NULL when there is no more */
    void (*segment_free)(void *user, void *p, size_t bytes);
    void *(*host)(void *user, size_t bytes); /* descriptors */
    void (*host_free)(void *user, void *p, size_t bytes);
    void *user;
    bool on_host;         /* segments are memory that a checker may be told of: shadow.h */
    size_t segment_bytes; /* at least this much at a time; 0: 64 MiB, smaller at first */
} tg_heap_source;

tg_heap *tg_heap_new(const tg_heap_source *source); /* NULL: no memory */
void tg_heap_free(tg_heap *h);
/* A block of at least bytes, 64-byte aligned, rounded up to 64; NULL when there is no more. bytes 0 gives a block. */
tg_block *tg_heap_alloc(tg_heap *h, size_t bytes, tg_category category);
void tg_heap_release(tg_heap *h, tg_block *b);
/* A block on memory that is not the heap's: end(user) when it has been released, and nobody holds or uses it any more,
 * or with the heap. NULL when there is no room to remember it. */
tg_block *tg_heap_adopt(tg_heap *h, void *data, size_t bytes, tg_category category, void (*end)(void *user),
                        void *user);
/* A block that somebody still reads: tg_heap_release waits for the last of its holds to end. */
void tg_block_hold(tg_block *b);
void tg_block_unhold(tg_heap *h, tg_block *b);
bool tg_block_held(const tg_block *b);
void *tg_block_data(const tg_block *b);
size_t tg_block_bytes(const tg_block *b); /* as rounded */
void tg_block_categorize(tg_heap *h, tg_block *b, tg_category category);
/* Fills live, peak, reserved and the categories. */
void tg_heap_stats(const tg_heap *h, tg_memory_info *out);
void tg_heap_reset_peak(tg_heap *h);
/* Called whenever live passes the peak so far by 1/64 or more, after the block is live; NULL: off. */
void tg_heap_on_peak(tg_heap *h, void (*fn)(void *user), void *user);
/* Every live block, in address order. */
void tg_heap_each(const tg_heap *h, void (*fn)(void *user, const tg_block *b), void *user);

/* ---- Captured steps ---- */

/* What a step that is captured takes, but what outlives steps (parameters, gradients, buffers), comes from an arena: a
 * heap of its own, whose segments are blocks of this one. What is given back to it is used again by this step alone. An
 * arena's number is not 0; 0 is for no memory, or for 255 arenas that are there already. */
int tg_heap_arena_open(tg_heap *h);
void tg_heap_arena_close(tg_heap *h, int arena); /* takes no more: the step has been recorded */
/* Its graph has gone: what is free is the heap's again, the rest when it is given back. */
void tg_heap_arena_end(tg_heap *h, int arena);
int64_t tg_heap_arena_bytes(const tg_heap *h, int arena);
/* A block of the arena that ends with it, and not before. */
tg_block *tg_heap_arena_pin(tg_heap *h, int arena, size_t bytes);
void tg_heap_arena_each(const tg_heap *h, int arena, void (*fn)(void *user, const tg_block *b), void *user);
/* A block of the arena that is live and has an owner; NULL: there is none. */
tg_block *tg_heap_arena_any(const tg_heap *h, int arena);
/* The step that is being captured uses b, of other memory than its arena: true the first time, until
 * tg_block_forget_use. A block that is used is kept, though it be released, until its last graph has unused it. */
bool tg_heap_arena_use(tg_heap *h, tg_block *b);
void tg_block_forget_use(tg_block *b);
int tg_block_arena(const tg_block *b); /* 0: of the heap itself */
void tg_block_unuse(tg_heap *h, tg_block *b);

void tg_block_set_owner(tg_block *b, void *owner); /* the storage, for reports */
void *tg_block_owner(const tg_block *b);
tg_category tg_block_category(const tg_block *b);

#endif
