/* The caching allocator: bytes of one device, in blocks that are cut from large segments. Segments are kept until
 * the heap is freed, so memory that was touched once stays mapped. Blocks are found by two-level segregated fit
 * (Masmano et al., ECRTS 2004). Their descriptors lie outside the bytes, so the same code serves device memory. */
#ifndef TG_MEMORY_H
#define TG_MEMORY_H

#include <tapegrad/types.h>

typedef struct tg_block tg_block;
typedef struct tg_heap tg_heap;

/* Where a heap takes its segments and descriptors from. */
typedef struct tg_heap_source {
    void *(*segment)(void *user, size_t bytes, size_t align); /* NULL when there is no more memory */
    void (*segment_free)(void *user, void *p, size_t bytes);
    void *(*host)(void *user, size_t bytes); /* memory for descriptors */
    void (*host_free)(void *user, void *p, size_t bytes);
    void *user;
    bool on_host;         /* a memory checker may be notified about the segments: shadow.h */
    size_t segment_bytes; /* smallest size of a segment; 0: 64 MiB, with smaller ones at first */
} tg_heap_source;

tg_heap *tg_heap_new(const tg_heap_source *source); /* NULL: out of memory */
void tg_heap_free(tg_heap *h);
/* Returns a 64-byte aligned block of at least this many bytes, rounded up to 64, or NULL when there is no more
 * memory. `bytes` may be 0. */
tg_block *tg_heap_alloc(tg_heap *h, size_t bytes, tg_category category);
void tg_heap_release(tg_heap *h, tg_block *b);
/* Returns a block on memory that the heap does not own. end(user) is called when the block has been released and
 * nothing holds or uses it any more, or when the heap is freed. Returns NULL if there is no memory to record the
 * block. */
tg_block *tg_heap_adopt(tg_heap *h, void *data, size_t bytes, tg_category category, void (*end)(void *user),
                        void *user);
/* Holds a block that is still being read: tg_heap_release takes effect when its last hold ends. */
void tg_block_hold(tg_block *b);
void tg_block_unhold(tg_heap *h, tg_block *b);
bool tg_block_held(const tg_block *b);
void *tg_block_data(const tg_block *b);
size_t tg_block_bytes(const tg_block *b); /* the rounded size */
void tg_block_categorize(tg_heap *h, tg_block *b, tg_category category);
/* Fills in the live, peak and reserved bytes and the bytes of each category. */
void tg_heap_stats(const tg_heap *h, tg_memory_info *out);
void tg_heap_reset_peak(tg_heap *h);
/* The function is called whenever the live bytes exceed the peak so far by 1/64 or more, after the block has become
 * live. NULL turns this off. */
void tg_heap_on_peak(tg_heap *h, void (*fn)(void *user), void *user);
/* Visits every live block in address order. */
void tg_heap_each(const tg_heap *h, void (*fn)(void *user, const tg_block *b), void *user);

/* ---- Captured steps ---- */

/* A captured step takes its memory from an arena, except for what outlives steps (parameters, gradients, buffers).
 * An arena is a heap of its own whose segments are blocks of this heap. Memory returned to it is used again by this
 * step alone. The number of an arena is never 0. The functions return 0 if there is no memory, or if 255 arenas
 * exist already. */
int tg_heap_arena_open(tg_heap *h);
void tg_heap_arena_close(tg_heap *h, int arena); /* the step has been recorded: takes no more blocks from the arena */
/* Called when the graph of the arena is freed. Free memory returns to the heap at once, the rest when it is
 * released. */
void tg_heap_arena_end(tg_heap *h, int arena);
int64_t tg_heap_arena_bytes(const tg_heap *h, int arena);
/* Returns a block of the arena that lives exactly as long as the arena. */
tg_block *tg_heap_arena_pin(tg_heap *h, int arena, size_t bytes);
void tg_heap_arena_each(const tg_heap *h, int arena, void (*fn)(void *user, const tg_block *b), void *user);
/* Returns a live block of the arena that has an owner, or NULL if there is none. */
tg_block *tg_heap_arena_any(const tg_heap *h, int arena);
/* Notes that the step being captured uses block b, which lies outside its arena. Returns true the first time, until
 * tg_block_forget_use. A used block is kept, even after its release, until the last graph that uses it has unused
 * it. */
bool tg_heap_arena_use(tg_heap *h, tg_block *b);
void tg_block_forget_use(tg_block *b);
int tg_block_arena(const tg_block *b); /* 0: the heap itself */
void tg_block_unuse(tg_heap *h, tg_block *b);

void tg_block_set_owner(tg_block *b, void *owner); /* the storage that owns the block, for reports */
void *tg_block_owner(const tg_block *b);
tg_category tg_block_category(const tg_block *b);

#endif
