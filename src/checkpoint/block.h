/* Blocks: where a part of a tensor lies in the global tensor. Parts of any two grids of ranks are compared as blocks.
 */
#ifndef TG_BLOCK_H
#define TG_BLOCK_H

#include "core/context.h"

/* n consecutive indices of a dim of the global tensor, from `first` on. */
typedef struct tg_span {
    int64_t first, n;
} tg_span;

/* The elements of a global tensor whose index in each dim lies in one of the dim's spans. Of these, in row-major order,
 * the block has elements begin to end - 1. The spans of a dim are ascending and have gaps between them, so only one
 * list of spans has a given set of indices. */
typedef struct tg_block {
    tg_shape shape;              /* number of indices in each dim */
    tg_span *span[TG_MAX_DIMS];  /* the spans of each dim, all in one allocation */
    int n[TG_MAX_DIMS], n_spans; /* number of spans of each dim, and the capacity of the allocation */
    int64_t begin, end;
} tg_block;

void tg_block_free(tg_ctx *ctx, tg_block *b);
/* tg_block_open begins a block of ndim dims with at most n_spans spans. tg_block_add then adds a span of n indices to a
 * dim. The calls must be in ascending order of the dims, and of the indices in each dim. A dim without indices needs a
 * call too, with n = 0. tg_block_close completes the block, which has all elements of its spans. */
tg_status tg_block_open(tg_ctx *ctx, tg_block *b, int ndim, int n_spans);
void tg_block_add(tg_block *b, int dim, int64_t first, int64_t n);
void tg_block_close(tg_block *b);
/* Fills *out with all elements of a tensor of that shape. */
tg_status tg_block_all(tg_ctx *ctx, const tg_shape *whole, tg_block *out);
int64_t tg_block_full(const tg_block *b); /* number of elements of all spans, whatever begin and end are */
static inline int64_t tg_block_count(const tg_block *b) { return b->end - b->begin; }
/* Returns whether the block has only some of the elements of its spans. */
static inline bool tg_block_is_range(const tg_block *b) { return tg_block_count(b) != tg_block_full(b); }

/* Writes the block as text, like snprintf: the spans of each dim, "first:stop", joined by "+", the dims joined by ",",
 * and, if it is a range, ";" with begin and end: "0:4+8:12,0:16;5:40". The text of a 0-dim tensor is "". */
size_t tg_block_text(const tg_block *b, char *buf, size_t n);
/* Reads such a text of a block in a tensor of shape `whole`. Returns false, without an error, if the text is malformed
 * or leaves the shape; false with the context's error if memory is short. */
bool tg_block_parse(tg_ctx *ctx, const char *text, const tg_shape *whole, tg_block *out);

/* Called with n elements that are consecutive in two blocks, from element number a of the first block and b of the
 * second block on. Element 0 of a block is its element `begin`. */
typedef tg_status (*tg_block_fn)(void *user, int64_t a, int64_t b, int64_t n);
/* Calls fn for the elements that both blocks have, in the row-major order of the global tensor. */
tg_status tg_block_meet(const tg_block *a, const tg_block *b, tg_block_fn fn, void *user);
int64_t tg_block_common(const tg_block *a, const tg_block *b); /* number of elements that both have */
/* Returns the first element, in the row-major order of a tensor of shape `whole`, that none of n blocks has; *stop is
 * the next element that one of them has, or the number of elements. Returns -1 if there is none. */
int64_t tg_block_hole(const tg_block *const *blocks, int n, const tg_shape *whole, int64_t *stop);

#endif
