/* An allocator for tests: a chosen call fails, and the blocks that it has given are counted. Pass it to a context as
 * .allocator = {counted_alloc, counted_free, &memory}. */
#ifndef TG_TEST_COUNTED_ALLOCATOR_H
#define TG_TEST_COUNTED_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct counted {
    _Atomic int64_t calls, held; /* calls so far, and blocks that have not been freed */
    _Atomic int64_t fail_at;     /* number of the call that fails; 0: none */
    bool lasting;                /* the calls after it fail too */
} counted;

static inline void *counted_alloc(void *user, size_t bytes, size_t align) {
    counted *c = user;
    int64_t call = ++c->calls;
    if (call == c->fail_at || (c->lasting && c->fail_at && call > c->fail_at)) return NULL;
    c->held++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static inline void counted_free(void *user, void *p, size_t bytes) {
    (void)bytes;
    ((counted *)user)->held -= p != NULL;
    free(p);
}

#endif
