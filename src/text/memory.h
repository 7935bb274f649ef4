/* Memory of tokenizers. What a tokenizer reads when it is loaded comes from its context, in pieces that are freed
 * together (tg_pieces). What grows while it works is malloc's (tg_grown, tg_growing), because several threads may
 * use one tokenizer and a context has one thread. */
#ifndef TG_TEXT_MEMORY_H
#define TG_TEXT_MEMORY_H

#include <stdlib.h>
#include <string.h>

#include "base/memory/host_memory.h"
#include "base/runtime.h"

/* Bytes that another object owns. */
typedef struct tg_span {
    const char *at;
    size_t n;
} tg_span;

/* Memory in pieces that are freed together. */
typedef struct tg_pieces {
    tg_ctx *ctx;
    struct tg_piece *last;
} tg_pieces;

/* Returns zeroed memory, or NULL after recording TG_ERR_MEMORY. */
void *tg_pieces_alloc(tg_pieces *p, size_t bytes);
/* Copies n bytes, and adds a zero. Returns a span whose `at` is NULL after recording TG_ERR_MEMORY. */
tg_span tg_pieces_copy(tg_pieces *p, const char *at, size_t n);
void tg_pieces_free(tg_pieces *p);

/* Ensures that an array of malloc has space for `count` elements of `size` bytes. Returns false if there is no memory;
 * then the array is as before. */
bool tg_grown(void **items, int64_t *capacity, int64_t count, size_t size);

/* Text that grows. Begin with {0}, and end with free(at). */
typedef struct tg_growing {
    char *at;
    int64_t n, capacity;
} tg_growing;

/* Appends bytes, and a zero that is not counted. Returns false if there is no memory. */
bool tg_growing_add(tg_growing *g, const char *at, size_t n);

/* Returns a hash of n bytes, whose low bits may number the slots of a table. It mixes 8 bytes at a time, with the
 * constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014). */
static inline uint64_t tg_span_hash(const char *at, size_t n) {
    uint64_t h = n * 0x9E3779B97F4A7C15u, word;
    for (; n >= 8; at += 8, n -= 8) {
        memcpy(&word, at, 8);
        h = (h ^ word) * 0xBF58476D1CE4E5B9u;
        h ^= h >> 29;
    }
    word = 0;
    for (size_t i = 0; i < n; i++) word |= (uint64_t)(unsigned char)at[i] << (8 * i);
    h = (h ^ word) * 0x94D049BB133111EBu;
    return h ^ h >> 32;
}

/* Returns such a hash of a pair of ids. */
static inline uint64_t tg_pair_hash(uint32_t left, uint32_t right) {
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

#endif
