/* Files that are mapped into memory: each mapping is private, so what is written to it never reaches the file. Pages
 * are read when they are used for the first time.
 *
 * A page of a file that was truncated after it was mapped cannot be read: the system then sends SIGBUS. The library has
 * no signal handlers. A program that has one passes the address to tg_mapping_fault (io.h), which puts a page of zeros
 * there and notes that in tg_mapping.torn. The next call that gives values to the program or to a file, or steps
 * parameters, reports the error. */
#ifndef TG_MAPPING_H
#define TG_MAPPING_H

#include "core/context.h"

/* A mapped file. The struct lives until its context ends, because a signal handler may look at the list at any time. */
typedef struct tg_mapping {
    tg_ctx *ctx;
    struct tg_mapping *next;
    char *path;
    _Atomic(char *) base; /* NULL: unmapped */
    size_t bytes;
    int refs;
    atomic_bool torn; /* pages of zeros have replaced pages that could not be read */
    bool reported;    /* the error has been reported; once the file is unmapped, it is not reported again */
} tg_mapping;

/* Maps the first `bytes` bytes of an open file, with one reference. Returns NULL after recording the error. */
tg_mapping *tg_mapping_new(tg_ctx *ctx, int fd, size_t bytes, const char *path);
static inline tg_mapping *tg_mapping_ref(tg_mapping *m) {
    m->refs++;
    return m;
}
void tg_mapping_unref(void *mapping); /* a release function of storages; the last reference unmaps the file */
void tg_mappings_free(tg_ctx *ctx);   /* called when the context ends */
/* Fails with TG_ERR_IO if a page of a mapped file could not be read, for example because the file has become
 * shorter. */
tg_status tg_mappings_check_all(tg_ctx *ctx);
static inline tg_status tg_mappings_check(tg_ctx *ctx) {
    return TG_LIKELY(!atomic_load_explicit(&ctx->mappings, memory_order_relaxed)) ? TG_OK : tg_mappings_check_all(ctx);
}

#endif
