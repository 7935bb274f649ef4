/* The caching allocator of one device's memory. It cuts blocks from large segments, which it keeps until the heap is
 * freed, so memory that was touched once stays mapped. Free memory is found by two-level segregated fit (Masmano et
 * al., ECRTS 2004). The descriptors of blocks lie outside the memory that they describe, so the same code serves memory
 * that the host cannot access. */
#ifndef TG_MEMORY_H
#define TG_MEMORY_H

#include <tapegrad/types.h>

#include "base/private_api.h"

typedef struct tg_block tg_block;
typedef struct tg_heap tg_heap;

/* Where a heap takes its segments and descriptors from. */
typedef struct tg_heap_source {
    void *(*segment)(void *user, size_t bytes, size_t align); /* returns NULL when there is no more memory */
    void (*segment_free)(void *user, void *p, size_t bytes);
    void *(*host)(void *user, size_t bytes); /* memory for descriptors */
    void (*host_free)(void *user, void *p, size_t bytes);
    void *user;
    bool on_host; /* the host can access the segments, so a memory checker is notified (shadow.h) */
    /* Size up to which segments grow: the first has 2 MiB, and each next one is twice as large. 0: 64 MiB. A request
     * for more gets a segment of its own size. */
    size_t segment_bytes;
} tg_heap_source;

tg_heap *tg_heap_new(const tg_heap_source *source); /* copies *source; NULL: out of memory */
void tg_heap_free(tg_heap *h); /* h may be NULL */
/* Returns a 64-byte aligned block of at least this many bytes, rounded up to 64, or NULL when there is no more
 * memory. `bytes` may be 0. */
tg_block *tg_heap_alloc(tg_heap *h, size_t bytes, tg_category category);
TG_PRIVATE_API void tg_heap_release(tg_heap *h, tg_block *b); /* b may be NULL */
/* Returns a block that describes `bytes` of memory which the heap does not own. end(user) is called when the block has
 * been released and nothing holds or uses it any more, or when the heap is freed. Returns NULL if there is no memory
 * for the descriptor. */
tg_block *tg_heap_adopt(tg_heap *h, void *data, size_t bytes, tg_category category, void (*end)(void *user),
                        void *user);
/* Holds a block that a work in flight still reads, or that a second storage shares (tg_storage_share). tg_heap_release
 * then takes effect when the last hold has ended (tg_block_unhold) and no captured step uses the block. */
void tg_block_hold(tg_block *b);
void tg_block_unhold(tg_heap *h, tg_block *b);
bool tg_block_held(const tg_block *b);
TG_PRIVATE_API void *tg_block_data(const tg_block *b);
size_t tg_block_bytes(const tg_block *b); /* the rounded size; of an adopted block, the size that was given */
void tg_block_categorize(tg_heap *h, tg_block *b, tg_category category);
/* Fills in the live, peak and reserved bytes and the bytes of each category. */
void tg_heap_stats(const tg_heap *h, tg_memory_info *out);
void tg_heap_reset_peak(tg_heap *h);
/* Makes the heap call fn each time that the peak of the live bytes has grown by 1/64 since the last such call,
 * tg_heap_on_peak or tg_heap_reset_peak. b is the block that caused the peak, which is live, but has no owner yet. fn
 * NULL: ends the calls. */
void tg_heap_on_peak(tg_heap *h, void (*fn)(void *user, const tg_block *b), void *user);
/* Calls fn for every live block, in address order, and then for those of each arena. Adopted blocks are left out. */
void tg_heap_each(const tg_heap *h, void (*fn)(void *user, const tg_block *b), void *user);

/* ---- Captured steps ---- */

/* A captured step takes its memory from an arena, except for what outlives steps (parameters, gradients, states of
 * optimizers, named buffers). An arena is a heap of its own whose segments are blocks of this heap. Memory that the
 * step releases is used again by this step alone. */

/* Opens an arena and takes blocks from it until tg_heap_arena_close. Returns its number, from 1 to 255. Returns 0 if
 * there is no memory, or if 255 arenas exist already. */
int tg_heap_arena_open(tg_heap *h);
/* Ends the use of the arena for new blocks. Called when its step has been recorded. */
void tg_heap_arena_close(tg_heap *h, int arena);
/* Called when the captured step of the arena is freed. Returns the segments of the arena that are entirely free to the
 * heap at once, and the others when their blocks have been released. */
void tg_heap_arena_end(tg_heap *h, int arena);
int64_t tg_heap_arena_bytes(const tg_heap *h, int arena); /* bytes of its segments, free ones included */
/* Returns a block of the arena that lives as long as the arena; NULL: out of memory. At most one call per arena. */
tg_block *tg_heap_arena_pin(tg_heap *h, int arena, size_t bytes);
void tg_heap_arena_each(const tg_heap *h, int arena, void (*fn)(void *user, const tg_block *b), void *user);
/* Returns a live block of the arena that has an owner, or NULL if there is none. */
tg_block *tg_heap_arena_any(const tg_heap *h, int arena);
/* Counts the step being captured as a user of block b. Returns false, and counts nothing, if the step has been counted
 * already or if b comes from the arena that is open now. A block with users is kept, even after its release, until
 * tg_block_unuse has been called for each of them. */
bool tg_heap_arena_use(tg_heap *h, tg_block *b);
void tg_block_forget_use(tg_block *b); /* the capture has ended; the next capture can count its own step */
void tg_block_unuse(tg_heap *h, tg_block *b); /* a step that used b has been freed */
bool tg_block_captured(const tg_block *b); /* whether a captured step uses b, from its recording until it is freed */
int tg_block_arena(const tg_block *b); /* 0: the heap itself */

void tg_block_set_owner(tg_block *b, void *owner); /* the storage that owns the block, for reports */
void *tg_block_owner(const tg_block *b);
tg_category tg_block_category(const tg_block *b);

#endif
