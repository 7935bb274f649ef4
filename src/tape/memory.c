/* The memory of a tape: slabs of slots for handles, and chunks for nodes, shapes, params, scopes and lists. A reset
 * frees all of it at once, except the slots of held handles. The memory of what ends before a reset is used again for
 * what the tape makes next. */
#include "base/memory/host_memory.h"
#include "core/context.h"
#include "tape/tape.h"

/* ---- Chunks ---- */

/* Returns the chunk to allocate from when the current chunk is full: the next chunk if it is large enough, or a new
 * one. Returns NULL after recording the error. */
static tg_arena_chunk *next_chunk(tg_tape *t, size_t bytes) {
    tg_arena_chunk **link = t->mark.chunk ? &t->mark.chunk->next : &t->chunks;
    if (*link && (*link)->bytes >= bytes) return *link;
    size_t size = bytes > 65536 ? bytes : 65536;
    tg_arena_chunk *c = tg_host_alloc(t->ctx, sizeof *c + size);
    if (!c) return NULL;
    c->bytes = size;
    c->data = (char *)(c + 1);
    c->next = *link;
    return *link = c;
}

/* Returns the size of a piece of `bytes` bytes. It has room for a tg_free_piece, which lies in it once it is free. */
static size_t piece_bytes(size_t bytes) {
    return bytes < sizeof(tg_free_piece) ? sizeof(tg_free_piece) : (bytes + 7) & ~(size_t)7;
}

static tg_free_piece **piece_list(tg_tape *t, size_t bytes) {
    return &t->pieces[bytes / 8 < TG_PIECE_SIZES ? bytes / 8 : TG_PIECE_SIZES];
}

/* Takes a free piece of exactly this size. Returns NULL if there is none. */
static void *free_piece(tg_tape *t, size_t bytes) {
    tg_free_piece **link = piece_list(t, bytes), *p;
    while ((p = *link) && p->bytes != bytes) link = &p->next;
    if (p) *link = p->next;
    return p;
}

void *tg_tape_alloc(tg_tape *t, size_t bytes) {
    bytes = piece_bytes(bytes);
    void *p = TG_UNLIKELY(t->recycles) ? free_piece(t, bytes) : NULL;
    if (p) return p;
    if (TG_UNLIKELY(!t->mark.chunk || t->mark.chunk->bytes - t->mark.used < bytes)) {
        tg_arena_chunk *c = next_chunk(t, bytes);
        if (!c) return NULL;
        t->mark = (tg_mark){c, 0};
    }
    p = t->mark.chunk->data + t->mark.used;
    t->mark.used += bytes;
    return p;
}

void tg_tape_give(tg_tape *t, void *p, size_t bytes) {
    if (!p) return;
    tg_free_piece *f = p;
    f->bytes = piece_bytes(bytes);
    tg_free_piece **list = piece_list(t, f->bytes);
    f->next = *list;
    *list = f;
    t->recycles = true;
}

const char *tg_tape_text(tg_tape *t, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = tg_tape_alloc(t, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

/* ---- Slots of handles ---- */

static tg_status next_slab(tg_tape *t) {
    tg_slab **link = t->at.slab ? &t->at.slab->next : &t->slabs;
    if (!*link) *link = tg_host_alloc(t->ctx, sizeof **link);
    if (!*link) return t->ctx->run.status;
    t->at = (tg_cursor){*link, 0};
    return TG_OK;
}

/* Returns the address of the handle in the slot, at the position that the current generation of handles uses. */
static tg_tensor *handle_in(const tg_tape *t, tg_handle_slot *s) {
    return t->generation ? (tg_tensor *)((tg_tombstone *)s + 1) : &s->first;
}

/* Returns whether the program holds an ended handle in a slot in which no handle is alive. */
static bool is_held(const tg_handle_slot *s) {
    const tg_tombstone *at = (const tg_tombstone *)s;
    return (at[0].serial | at[1].serial) & TG_SERIAL_HELD;
}

/* Returns the slot for the next handle, as the address of the handle, or NULL after recording the error. */
static tg_tensor *next_slot(tg_tape *t) {
    tg_tensor *x = t->slots_first;
    if (TG_UNLIKELY(x != NULL)) {
        t->slots_first = (tg_tensor *)x->node;
        t->reused = t->ctx->serial + 1;
        return x;
    }
    tg_handle_slot *s;
    do {
        if (TG_UNLIKELY(!t->at.slab || t->at.used == TG_SLAB_HANDLES) && next_slab(t) != TG_OK) return NULL;
        s = &t->at.slab->slot[t->at.used++];
    } while (TG_UNLIKELY(is_held(s)));
    return handle_in(t, s);
}

tg_tensor *tg_tape_handle(tg_tape *t) {
    tg_tensor *x = next_slot(t);
    if (TG_UNLIKELY(!x)) return NULL;
    *x = (tg_tensor){.serial = ++t->ctx->serial, .ctx = t->ctx, .other = {TG_SERIAL_RESET, t->ctx}, .tape = t};
    return x;
}

tg_status tg_tape_set_dims(tg_tape *t, tg_tensor *x, int ndim, const int64_t *shape) {
    tg_tape_dims *d = tg_tape_alloc(t, sizeof *d + 2 * (size_t)ndim * sizeof *d->dims);
    if (TG_UNLIKELY(!d)) return t->ctx->run.status;
    d->uses = 1;
    for (int i = 0; i < ndim; i++) d->dims[i] = shape[i];
    x->numel = tg_row_major(ndim, d->dims, d->dims + ndim);
    x->shape = d->dims;
    x->stride = d->dims + ndim;
    x->ndim = (uint8_t)ndim;
    return TG_OK;
}

tg_tensor *tg_tape_tensor(tg_tape *t, tg_dtype dtype, int ndim, const int64_t *shape, const int64_t *stride,
                          tg_storage *s, int64_t offset) {
    tg_tensor *x = tg_tape_handle(t);
    if (!x || tg_tape_set_dims(t, x, ndim, shape) != TG_OK) {
        if (x) x->serial = TG_SERIAL_NONE;
        tg_storage_unref(s);
        return NULL;
    }
    if (stride && ndim) memcpy((int64_t *)x->stride, stride, (size_t)ndim * sizeof *stride);
    x->flags = !stride || tg_is_row_major(ndim, shape, stride) ? TG_F_CONTIGUOUS : 0;
    x->dtype = (uint8_t)dtype;
    x->storage = s;
    x->offset = offset;
    if (!s->birth) {
        s->birth = x->serial;
        s->maker = x;
    }
    return x;
}

tg_tensor *tg_tape_alias(tg_tape *t, const tg_tensor *x) {
    return tg_tape_tensor(t, x->dtype, x->ndim, x->shape, x->stride, tg_storage_ref(x->storage), x->offset);
}

/* ---- Ends of handles ---- */

/* Ends a handle. Its slot keeps the tombstone, with `serial`. */
static inline void end_handle(tg_tensor *x, uint64_t serial) {
    if (x->serial < TG_SERIAL_FIRST) return; /* it has ended before */
    if (x->ext) tg_ext_free(x->ctx, x->ext);
    if (x->storage) tg_storage_unref(x->storage);
    x->ext = NULL;
    x->storage = NULL;
    x->node = NULL;
    x->serial = serial;
    if (TG_LIKELY(!x->holds)) return;
    x->serial += TG_SERIAL_HELD;
    x->numel = 0; /* read by tg_tape_unheld */
}

static void give_shape(tg_tape *t, const tg_tensor *x) {
    if (!x->shape) return; /* its allocation failed */
    tg_tape_dims *d = (tg_tape_dims *)((int64_t *)x->shape - 1);
    if (--d->uses == 0) tg_tape_give(t, d, sizeof *d + 2 * (size_t)x->ndim * sizeof *d->dims);
}

static void give_slot(tg_tape *t, tg_tensor *x) {
    x->node = NULL;
    if (t->slots_first)
        t->slots_last->node = (tg_node *)x;
    else
        t->slots_first = x;
    t->slots_last = x;
    t->recycles = true;
}

void tg_tape_give_handle(tg_tensor *x) {
    tg_tape *t = x->tape;
    tg_storage *s = x->storage;
    give_shape(t, x);
    x->shape = x->stride = NULL;
    if (s && s->maker == x) s->temporary = false; /* other handles of the bytes now decide how long these last */
    end_handle(x, TG_SERIAL_NONE);
    if (x->holds)
        x->numel = (int64_t)t->epoch;
    else
        give_slot(t, x);
}

/* If the handle ended before the reset, numel is the epoch in which it did; otherwise 0, which is also the epoch of a
 * freed tape. Unless a reset has come since, the slot goes to the queue. */
void tg_tape_unheld(tg_tensor *x) {
    if (x->numel && (uint64_t)x->numel == x->tape->epoch) give_slot(x->tape, x);
}

tg_handle_walk tg_walk_from(const tg_tape *t, tg_cursor from) {
    if (!t->at.slab) return (tg_handle_walk){t, NULL, 0};
    return from.slab ? (tg_handle_walk){t, from.slab, from.used} : (tg_handle_walk){t, t->slabs, 0};
}

/* Where the handles of the current generation begin in their slots, and where those of the other one do. */
typedef struct positions {
    size_t this, other;
} positions;

static inline positions positions_of(const tg_tape *t) {
    size_t this = t->generation ? sizeof(tg_tombstone) : 0;
    return (positions){this, sizeof(tg_tombstone) - this};
}

/* Returns the handle of the current generation in a slot that this step has used or skipped, or NULL if the slot has a
 * held handle of the other generation. If the handle has ended, or if the slot was skipped for a handle that is no
 * longer held, only the serial may be read. */
static inline tg_tensor *used_slot(positions p, tg_handle_slot *s) {
    uint64_t other = ((const tg_tombstone *)((char *)s + p.other))->serial;
    return TG_LIKELY((other | TG_SERIAL_RESET) != TG_SERIAL_HELD + TG_SERIAL_RESET) ? (tg_tensor *)((char *)s + p.this)
                                                                                    : NULL;
}

static inline int used_of(const tg_tape *t, const tg_slab *s) { return s == t->at.slab ? t->at.used : TG_SLAB_HANDLES; }

tg_tensor *tg_walk_next(tg_handle_walk *w) {
    const positions p = positions_of(w->t);
    while (w->slab) {
        for (const int end = used_of(w->t, w->slab); w->i < end;) {
            tg_tensor *x = used_slot(p, &w->slab->slot[w->i++]);
            if (x && x->serial >= TG_SERIAL_FIRST) return x;
        }
        w->slab = w->slab == w->t->at.slab ? NULL : w->slab->next;
        w->i = 0;
    }
    return NULL;
}

void tg_tape_end_handles(tg_tape *t) {
    const positions p = positions_of(t);
    for (tg_slab *s = t->at.slab ? t->slabs : NULL; s; s = s == t->at.slab ? NULL : s->next)
        for (int i = 0, end = used_of(t, s); i < end; i++) {
            tg_tensor *x = used_slot(p, &s->slot[i]);
            if (x) end_handle(x, TG_SERIAL_RESET);
        }
}

void tg_tape_rollback(tg_tape *t, uint64_t serial) {
    tg_handle_walk w = tg_walk_from(t, (tg_cursor){0});
    t->busy++; /* the function that frees the refill of a tensor must not end the tape */
    for (tg_tensor *x; (x = tg_walk_next(&w));)
        if (x->serial > serial) tg_tape_give_handle(x);
    t->busy--;
}

/* ---- All memory ---- */

void tg_tape_memory_reset(tg_tape *t) {
    t->mark = (tg_mark){0};
    t->at = (tg_cursor){0};
    t->reused = 0;
    if (!t->recycles) return;
    t->recycles = false;
    memset(t->pieces, 0, sizeof t->pieces);
    t->slots_first = t->slots_last = NULL;
}

void tg_tape_memory_free(tg_tape *t) {
    for (tg_slab *s = t->slabs, *next; s; s = next) {
        next = s->next;
        tg_host_free(t->ctx, s, sizeof *s);
    }
    for (tg_arena_chunk *c = t->chunks, *next; c; c = next) {
        next = c->next;
        tg_host_free(t->ctx, c, sizeof *c + c->bytes);
    }
}
