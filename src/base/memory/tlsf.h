/* Two-level segregated fit (Masmano et al., ECRTS 2004): finds a free range of bytes among segments in constant
 * time, splits it, and merges it with its neighbors when it is returned. The descriptors of ranges lie outside the
 * bytes that they describe. */
#ifndef TG_TLSF_H
#define TG_TLSF_H

#include "base/memory/heap.h"

/* Sizes are counted in units of TG_UNIT bytes. A bin is a list of free ranges of similar size. There are TG_COARSE
 * groups of TG_FINE bins. Each bin of the first group holds ranges of one size. In each later group, the TG_FINE bins
 * divide the sizes from one power of two to the next. */
enum { TG_UNIT = 64, TG_FINE = 32, TG_FINE_LOG = 5, TG_COARSE = 40 };

/* States of a descriptor. FREE: a range in a bin. LIVE: a block in use. CACHED: a small block that waits in its cache.
 * CARVED: a chunk, a range that small blocks are cut from (heap.c). SEGMENT: describes a whole segment. SPARE:
 * describes nothing. */
enum { TG_BLOCK_FREE, TG_BLOCK_LIVE, TG_BLOCK_CACHED, TG_BLOCK_CARVED, TG_BLOCK_SEGMENT, TG_BLOCK_SPARE };

struct tg_block {
    char *data;
    size_t bytes;
    /* The next block in the list that contains this one: a bin, a cache or an arena's segments. In a chunk (CARVED):
     * the first block that was cut from the chunk. */
    void *link;
    void *owner; /* tg_block_set_owner */
    uint8_t state : 4, category : 4;
    bool doomed : 1;  /* it was released, but is kept while `holds` or `graphs` is not 0 */
    bool used : 1;    /* `graphs` counts the step that is being captured now */
    bool adopted : 1; /* the heap does not own its memory */
    uint8_t arena;    /* the arena that it was cut from; 0: the heap itself */
    uint8_t graphs;   /* number of captured steps that use it */
    int32_t holds;    /* number of works in flight that read it, and of storages that share it */
};

/* The descriptor of a range of bytes, with its neighbors; one cache line. It may also describe a segment; `next` is
 * then the first range of the segment. */
typedef struct tg_range {
    tg_block block;
    struct tg_range *prev, *next; /* by address within the segment */
    struct tg_range *back;        /* the previous range of its bin; for a segment or a spare descriptor: the next one */
} tg_range;
_Static_assert(sizeof(tg_range) == 64, "one cache line");

typedef struct tg_tlsf {
    tg_heap_source source;
    uint64_t coarse;           /* bit c: fine[c] is not 0 */
    uint32_t fine[TG_COARSE];  /* bit f: bin c * TG_FINE + f is not empty */
    tg_range *bin[TG_COARSE * TG_FINE];
    tg_range *segments;        /* in address order */
    tg_range *spare;           /* spare descriptors */
    int n_spare;
    struct tg_descriptors *descriptors;
    size_t growth;             /* bytes of the next segment */
    int64_t reserved;
} tg_tlsf;

void tg_tlsf_init(tg_tlsf *t, const tg_heap_source *source);
void tg_tlsf_close(tg_tlsf *t);
/* Returns a range of exactly this many units, whose state the caller must set. Returns NULL when there is no more
 * memory; then nothing has changed. */
tg_range *tg_tlsf_take(tg_tlsf *t, size_t units);
void tg_tlsf_give(tg_tlsf *t, tg_range *b); /* frees a range that tg_tlsf_take returned */
/* Gives segments that are entirely free back to the source. */
void tg_tlsf_trim(tg_tlsf *t);
/* Ensures that n descriptors are spare. Returns false if there is no memory. n is at most 63. */
bool tg_tlsf_reserve(tg_tlsf *t, int n);
tg_range *tg_tlsf_descriptor(tg_tlsf *t); /* takes a spare descriptor, which tg_tlsf_reserve has ensured */
void tg_tlsf_descriptor_give(tg_tlsf *t, tg_range *b);

#endif
