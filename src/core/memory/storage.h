/* Storages: reference-counted bytes on a device, which tensors share. The bytes are present, in flight (a work is
 * filling them), or discarded. */
#ifndef TG_STORAGE_H
#define TG_STORAGE_H

#include <stdatomic.h>

#include <tapegrad/tensor.h>

#include "base/runtime.h"
#include "core/later.h"

/* Fields that only few storages need. */
typedef struct tg_storage_extra {
    tg_work *work; /* the work that fills the bytes; NULL if none is in flight */
    struct tg_storage_extra *next_free;
    /* Called when the storage ends, or when its refill or mapped memory is replaced or removed. May be NULL. */
    void (*release)(void *user);
    /* Recreates the bytes after they were discarded (tg_discard_with). */
    tg_status (*refill)(void *user, tg_ctx *ctx, void *dst, size_t bytes);
    uint32_t version; /* version of the storage when refill was set; refill is invalid after a later write */
    void *user;       /* for release, refill and restore */
    /* Another way to make the bytes of a discarded storage present. If it returns TG_OK but the bytes are still absent,
     * they are lost. */
    tg_status (*restore)(void *user, tg_storage *s);
    struct tg_buffer *buffer; /* the named scratch buffer that the bytes are part of, or NULL */
    bool shared;              /* the block belongs to another storage; this one keeps it by tg_block_hold */
    bool read_only;           /* the bytes may not be written (tg_set_read_only) */
    bool lasting;             /* if a work that fills the bytes fails, they stay, and await another work */
    bool in_flat;             /* a buffer of a tg_flat: tg_discard refuses it, because other tensors lie there too */
    uint32_t pins;            /* number of exports, and of calls of tg_pin whose tg_unpin has not been done */
    uint32_t exports;         /* number of exports (dlpack.h) */
    tg_later unpin;           /* calls of tg_unpin that are still to be done */
    /* Valid while it is pinned: the storage, and the neighbors in the context's list of what is pinned. */
    tg_storage *of;
    struct tg_storage_extra *pinned_next, **pinned_before;
} tg_storage_extra;

struct tg_storage {
    atomic_int refs;  /* number of handles that use it, of its pins, and of works that read the caller's bytes in it */
    int32_t saves;    /* number of nodes, on any tape, that have saved it for backward */
    uint32_t version; /* how many times it was written in place */
    uint8_t state;    /* tg_storage_state. IN_FLIGHT without a work: tg_storage_await has been called */
    uint8_t category; /* tg_category */
    bool temporary;   /* made by a tape, and not kept: scopes and backward may release its bytes */
    bool marked;      /* set while a scope closes: it is one of the scope's outputs */
    tg_ctx *ctx;
    void *data; /* address of the bytes; in the list of free storages, the next free one */
    size_t bytes;
    tg_block *block;  /* block of the heap; NULL if the bytes are the caller's, or discarded */
    tg_tensor *maker; /* the handle that the storage was made for; valid while maker->serial equals birth */
    uint64_t birth;
    const char *by;      /* name of the op or function that last wrote the bytes in place or discarded them */
    const void *by_site; /* its call site */
    tg_storage_extra *extra; /* NULL if none of its fields are needed */
};

/* Makes a storage with undefined bytes and one reference. Returns NULL after recording the error. */
tg_storage *tg_storage_new(tg_ctx *ctx, size_t bytes, tg_category category);
/* Makes a storage on the caller's bytes. release(user), which may be NULL, is called when it ends. Returns NULL after
 * recording the error. */
tg_storage *tg_storage_wrap(tg_ctx *ctx, void *data, size_t bytes, void (*release)(void *), void *user);
static inline tg_storage *tg_storage_ref(tg_storage *s) {
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}
void tg_storage_unref(tg_storage *s); /* the last reference frees the storage and its bytes */
/* Releases the bytes now, unless they are pinned or discarded already. An error about a later access quotes `by`, a
 * static string that names the op or function that has discarded them, and its call site. */
void tg_storage_discard(tg_storage *s, const char *by, const void *site);
/* Removes the refill function, if there is one, and calls the function that frees the refill's state. x is the handle
 * for which this happens. */
void tg_storage_end_refill(tg_storage *s, const tg_tensor *x);
/* Makes a new, temporary storage that takes over the bytes of s, and discards s. The bytes must be present, not pinned,
 * and not those of another storage or of a scratch buffer. Returns NULL after recording the error. */
tg_storage *tg_storage_take(tg_storage *s, const char *by, const void *site);
/* Makes the bytes present: waits for the work that fills them, or recreates them. If that is impossible, fails with
 * TG_ERR_DISCARDED, or with TG_ERR_STATE if they await tg_flat_gather. The message says what has discarded the bytes,
 * and names x, which may be NULL. */
tg_status tg_storage_need_slow(tg_storage *s, const tg_tensor *x);
static inline tg_status tg_storage_need(tg_storage *s, const tg_tensor *x) {
    return TG_LIKELY(s->state == TG_PRESENT) ? TG_OK : tg_storage_need_slow(s, x);
}
/* Notes that the bytes await a call that will start the work that fills them (tg_flat_gather). Until then only ranges
 * (tg_ext.range_of) may be read or written, and any other access fails with TG_ERR_STATE. s must have an extra. */
void tg_storage_await(tg_storage *s);
static inline bool tg_storage_awaits(const tg_storage *s) {
    return TG_UNLIKELY(s->state == TG_IN_FLIGHT && !s->extra->work);
}
/* Makes the bytes present, with undefined values, whatever their state was. Abandons a work that fills them. */
tg_status tg_storage_renew(tg_storage *s);
/* For a restore function: allocates new, undefined bytes for the storage. */
tg_status tg_storage_bytes_again(tg_storage *s);
/* For a restore function: makes the bytes of `from`, a storage of the same size, the bytes of s too. They stay
 * allocated while either storage needs them. Copies them instead if they belong to the caller or to a named scratch
 * buffer, or if tg_keep has been called for them. */
tg_status tg_storage_share(tg_storage *s, tg_storage *from);
/* Makes memory that the caller provides the bytes of s, and returns its own bytes to the heap. data has as many bytes.
 * release(user) is called when s ends. If s has a release function, as after an earlier call, it is called now. */
tg_status tg_storage_map(tg_storage *s, void *data, void (*release)(void *), void *user);
void tg_storage_categorize(tg_storage *s, tg_category c);

/* Returns how often the bytes are pinned. While they are, they stay where they are. */
static inline uint32_t tg_storage_pins(const tg_storage *s) { return s->extra ? s->extra->pins : 0; }
tg_storage_extra *tg_storage_extra_of(tg_storage *s); /* the first call creates it; NULL after recording the error */
void tg_storage_extras_free(tg_ctx *ctx); /* called when the context ends */
/* Returns whether only one handle uses these bytes, and no work in flight reads them. */
static inline bool tg_storage_is_own(const tg_storage *s) {
    return atomic_load_explicit(&s->refs, memory_order_relaxed) == 1 && !(s->block && tg_block_held(s->block));
}
/* Called before the bytes change in place. Waits for works in flight that read them. Fails if they are read-only. */
tg_status tg_storage_await_readers(tg_storage *s);
/* Waits until the bytes of x are present and no work in flight reads them, before they change. Fails if they are
 * read-only. */
tg_status tg_storage_may_change(const tg_tensor *x);
/* tg_capture_uses notes that the step being recorded (tg_graph_new) uses these bytes, and tg_capture_writes that it
 * changes them. Both are in capture.c. */
void tg_capture_uses(tg_storage *s);
void tg_capture_writes(tg_storage *s);
/* Called when the bytes are changed in place. From now on, a backward that needs the older bytes fails, and its error
 * quotes `by`, a static string that names the op or function. */
static inline void tg_storage_wrote(tg_storage *s, const char *by, const void *site) {
    s->version++;
    s->by = by;
    s->by_site = site;
    if (TG_UNLIKELY(tg_runtime_of(s->ctx)->recording)) tg_capture_writes(s);
}

#endif
