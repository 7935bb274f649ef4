/* Maps files, and reports pages that could not be read, which io/safetensors_map.c has noted. */
#define _GNU_SOURCE
#include "core/memory/mapping.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/memory/host_memory.h"

tg_mapping *tg_mapping_new(tg_ctx *ctx, int fd, size_t bytes, const char *path) {
    tg_mapping *m = tg_host_alloc(ctx, sizeof *m);
    if (!m) return NULL;
    m->path = tg_host_strdup(ctx, path);
    /* Without reservation: frozen parameters never need a page of their own. */
    void *p = m->path ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        if (m->path) tg_fail(ctx, TG_ERR_IO, "cannot map '%s': %s", path, strerror(errno));
        tg_host_strfree(ctx, m->path);
        tg_host_free(ctx, m, sizeof *m);
        return NULL;
    }
    m->ctx = ctx;
    m->bytes = bytes;
    m->refs = 1;
    m->next = atomic_load(&ctx->mappings);
    atomic_store(&m->base, p);
    atomic_store(&ctx->mappings, m);
    return m;
}

void tg_mapping_unref(void *mapping) {
    tg_mapping *m = mapping;
    if (--m->refs) return;
    munmap(atomic_exchange(&m->base, NULL), m->bytes);
}

void tg_mappings_free(tg_ctx *ctx) {
    for (tg_mapping *m = atomic_load(&ctx->mappings), *next; m; m = next) {
        next = m->next;
        tg_host_strfree(ctx, m->path);
        tg_host_free(ctx, m, sizeof *m);
    }
    atomic_store(&ctx->mappings, NULL);
}

tg_status tg_mappings_check_all(tg_ctx *ctx) {
    TG_TRY(ctx->run.status);
    for (tg_mapping *m = atomic_load(&ctx->mappings); m; m = m->next) {
        if (!atomic_load(&m->torn) || (m->reported && !atomic_load(&m->base))) continue;
        m->reported = true;
        return tg_fail(ctx, TG_ERR_IO,
                       "'%s' has become shorter, or cannot be read, while its bytes were in use as parameters; "
                       "write a changed file under another name and rename it",
                       m->path);
    }
    return TG_OK;
}
