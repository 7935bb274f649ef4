/* Two-level segregated fit (Masmano et al., ECRTS 2004): finds a free range of bytes among segments in constant
 * time, splits it, and merges it with its neighbors when it is returned. Descriptors lie outside the bytes. */
#ifndef TG_TLSF_H
#define TG_TLSF_H

#include "base/heap.h"

/* Sizes are counted in units of 64 bytes. Each of the first 32 bins holds one size. Above that, every power of two
 * is divided into 32 bins. */
enum { TG_UNIT = 64, TG_FINE = 32, TG_FINE_LOG = 5, TG_COARSE = 40 };

enum { TG_BLOCK_FREE, TG_BLOCK_LIVE, TG_BLOCK_CACHED, TG_BLOCK_CARVED, TG_BLOCK_SEGMENT, TG_BLOCK_SPARE };

struct tg_block {
    char *data;
    size_t bytes;
    /* the next in the list that it is in: ranges of a bin, blocks of a cache; for a chunk: its first block */
    void *link;
    void *owner;
    uint8_t state : 4, category : 4;
    bool doomed : 1; /* released, but holds or graphs still keep it */
    bool used : 1;   /* the step that is being captured uses it and has noted so */
    bool adopted : 1; /* its memory belongs to no segment */
    uint8_t arena;   /* the arena that it was cut from; 0: the heap itself */
    uint8_t graphs;  /* number of captured steps that use it */
    int32_t holds;   /* number of works in flight that read it */
};

/* A range of bytes with its neighbors; one cache line. It also describes a segment: then `next` is the first range
 * in it. */
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
/* Returns a range of exactly this many units, which is neither free nor live yet. Returns NULL when there is no more
 * memory; then nothing has changed. */
tg_range *tg_tlsf_take(tg_tlsf *t, size_t units);
void tg_tlsf_give(tg_tlsf *t, tg_range *b);
/* Returns the segments that are entirely free to their source. */
void tg_tlsf_trim(tg_tlsf *t);
/* Ensures that n descriptors are spare; tg_tlsf_descriptor takes one of them. */
bool tg_tlsf_reserve(tg_tlsf *t, int n);
tg_range *tg_tlsf_descriptor(tg_tlsf *t);
void tg_tlsf_descriptor_give(tg_tlsf *t, tg_range *b);

#endif
