/* Storages: counted bytes on a device, which tensors share. The bytes may be present, in flight, or discarded. */
#ifndef TG_STORAGE_H
#define TG_STORAGE_H

#include <stdatomic.h>

#include <tapegrad/tensor.h>

#include "base/runtime.h"

/* What only few storages have. */
typedef struct tg_storage_extra {
    tg_work *work; /* that fills the bytes; NULL: none is in flight */
    struct tg_storage_extra *next_free;
    void (*release)(void *user); /* the caller's, when the storage ends */
    /* Makes the bytes again after they were discarded (tg_discard_with). */
    tg_status (*refill)(void *user, tg_ctx *ctx, void *dst, size_t bytes);
    uint32_t version; /* of the storage when refill was given: after a later write refill serves no more */
    void *user;
    /* Makes the bytes of a discarded storage present in its own way. If they are still absent then, they are gone. */
    tg_status (*restore)(void *user, tg_storage *s);
    struct tg_buffer *buffer; /* the named scratch buffer that the bytes are part of; NULL: none */
    bool shared;              /* the block belongs to another storage and is held */
} tg_storage_extra;

struct tg_storage {
    atomic_int refs;  /* handles that use it */
    int32_t saves;    /* nodes, of any tape, that keep it for backward */
    uint32_t version; /* how often it was written in place */
    uint8_t state;    /* tg_storage_state */
    uint8_t category; /* tg_category */
    bool temporary;   /* made by a tape: scopes, backward and tg_discard may take its bytes */
    bool marked;      /* while a scope closes: it is one of the scope's outputs */
    tg_ctx *ctx;
    void *data; /* on the list of free storages: the next one */
    size_t bytes;
    tg_block *block;  /* of the heap; NULL: the bytes are the caller's, or discarded */
    tg_tensor *maker; /* the handle that it was made for, as long as maker->serial equals birth */
    uint64_t birth;
    const char *by; /* the op or function that last wrote it in place, or discarded it; and that one's call site */
    const void *by_site;
    tg_storage_extra *extra; /* NULL: it has none of that */
};

/* Makes a storage with undefined bytes. NULL after recording the error. */
tg_storage *tg_storage_new(tg_ctx *ctx, size_t bytes, tg_category category);
/* Makes a storage on the caller's bytes. NULL after recording the error. */
tg_storage *tg_storage_wrap(tg_ctx *ctx, void *data, size_t bytes, void (*release)(void *), void *user);
static inline tg_storage *tg_storage_ref(tg_storage *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}
void tg_storage_unref(tg_storage *s);
/* Gives the bytes back now. by and site are quoted when somebody needs them later. */
void tg_storage_discard(tg_storage *s, const char *by, const void *site);
/* Makes a new, temporary storage that takes over the bytes of s, which must be present, and discards s. NULL after
 * recording the error. */
tg_storage *tg_storage_take(tg_storage *s, const char *by, const void *site);
/* Makes the bytes present: waits for the work that fills them, or makes them again. Otherwise fails with
 * TG_ERR_DISCARDED, which says what discarded them. x is named in the error; it may be NULL. */
tg_status tg_storage_need_slow(tg_storage *s, const tg_tensor *x);
static inline tg_status tg_storage_need(tg_storage *s, const tg_tensor *x) {
    return TG_LIKELY(s->state == TG_PRESENT) ? TG_OK : tg_storage_need_slow(s, x);
}
/* Makes the bytes present and undefined, whatever they were. A work that was to fill them is abandoned. */
tg_status tg_storage_renew(tg_storage *s);
/* For a restore function: gives the storage bytes of its own again, undefined. */
tg_status tg_storage_bytes_again(tg_storage *s);
/* For a restore function: gives it the bytes of another storage of its size, which stay as long as either needs them.
 */
tg_status tg_storage_share(tg_storage *s, tg_storage *from);
void tg_storage_categorize(tg_storage *s, tg_category c);

tg_storage_extra *tg_storage_extra_of(tg_storage *s); /* made on demand; NULL after recording the error */
void tg_storage_extras_free(tg_ctx *ctx);
/* Returns whether nothing else reads or will read these bytes: no other handle, no work in flight. */
static inline bool tg_storage_is_own(const tg_storage *s) {
    return atomic_load_explicit(&s->refs, memory_order_relaxed) == 1 && !(s->block && tg_block_held(s->block));
}
/* Waits, before the bytes change in place, for works in flight that read them. */
tg_status tg_storage_await_readers(tg_storage *s);
/* Waits, before the bytes of x change, until they are present and no work in flight reads them. */
tg_status tg_storage_may_change(const tg_tensor *x);
/* capture.c: the step that is being recorded uses, or changes, these bytes. */
void tg_capture_uses(tg_storage *s);
void tg_capture_writes(tg_storage *s);
/* Called when the bytes have changed in place: what was saved of them before is refused later, with `by` in the error.
 */
static inline void tg_storage_wrote(tg_storage *s, const char *by, const void *site) {
    s->version++;
    s->by = by;
    s->by_site = site;
    if (TG_UNLIKELY(tg_runtime_of(s->ctx)->recording)) tg_capture_writes(s);
}

#endif
