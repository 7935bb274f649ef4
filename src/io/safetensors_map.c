/* Tensors on the bytes of a mapped safetensors file, and pages of zeros in place of bytes that the file has lost. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "core/memory/mapping.h"
#include "io/safetensors.h"

/* Returns whether x can have the file's own bytes: the same dtype and shape, at least one element, all in order, at an
 * offset of the file that suits the dtype, and in memory that the host and the device share. Bytes that are pinned, or
 * that lie in a buffer of a tg_flat, must stay at their address. A program that has its own file functions may have no
 * file that the system could map. */
static bool can_map(const tg_safetensors *f, const tg_safetensors_entry *e, const tg_tensor *x) {
    const tg_ctx *ctx = x->ctx;
    bool own_files = ctx->files && (ctx->files->open || ctx->files->pread);
    bool stays = tg_storage_pins(x->storage) || (x->ext->flat && !tg_storage_is_own(x->storage));
    bool same = e->dtype == x->dtype && e->shape.ndim == x->ndim &&
                memcmp(e->shape.dim, x->shape, (size_t)x->ndim * sizeof *x->shape) == 0;
    bool all = x->flags & TG_F_CONTIGUOUS && x->offset == 0 && x->storage->bytes == (size_t)(e->stop - e->begin);
    return f->file.path && ctx->host && !ctx->meta && !own_files && !stays && same && all && e->stop > e->begin &&
           e->begin % (int64_t)tg_dtype_size(e->dtype) == 0;
}

bool tg_safetensors_map(tg_safetensors *f, const char *name, tg_tensor *x) {
    const tg_safetensors_entry *e = tg_safetensors_require(&f, name, "tg_lm_map");
    if (!e || !can_map(f, e, x)) return false;
    if (!f->mapping) f->mapping = tg_mapping_new(x->ctx, f->file.fd, (size_t)f->file.size, f->file.path);
    if (!f->mapping) return false;
    tg_mapping_ref(f->mapping);
    if (tg_storage_map(x->storage, atomic_load(&f->mapping->base) + e->begin, tg_mapping_unref, f->mapping) == TG_OK)
        return true;
    tg_mapping_unref(f->mapping);
    return false;
}

/* Calls only what may be called in a signal handler: mmap is a system call here. */
bool tg_mapping_fault(tg_ctx *ctx, const void *address) {
    const char *at = address;
    if (!ctx) return false;
    for (tg_mapping *m = atomic_load(&ctx->mappings); m; m = m->next) {
        char *base = atomic_load(&m->base);
        if (!base || at < base || at >= base + m->bytes) continue;
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *from = base + (size_t)(at - base) / page * page;
        atomic_store(&m->torn, true);
        return mmap(from, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == from;
    }
    return false;
}
