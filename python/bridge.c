/* Worlds, tapes and boxes with counts of owners, and calls of ops on them (bridge.h). */
#include "bridge.h"

#include "sequence.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* A call that tgpy_later has put off. */
typedef struct pending {
    void (*end)(void *object);
    void *object;
    struct pending *next;
} pending;

struct tgpy_world {
    tg_ctx *ctx;
    tgpy_tape *open, *own; /* the tape of tgpy_open, which is borrowed; the context's own tape; NULL: none */
    tgpy_tape *spare; /* tapes that were reset, for tgpy_tape_new */
    tgpy_sequence *recording; /* NULL unless a sequence is being recorded */
    bool grad, training; /* modes of ops: whether they record for backward, and whether they run in training mode */
    void *_Atomic user; /* the thread that uses the context now: the address of its `site`; NULL: none */
    int depth;          /* number of nested calls of tgpy_enter by that thread */
    uint64_t draws; /* the number of the next step of keyed draws */
    atomic_int owners;
    atomic_int watches; /* number of tgpy_watch, and one more while the world has owners */
    pthread_mutex_t lock; /* of ctx and `later`, which finalizers on other threads read */
    pending *_Atomic later; /* the newest first */
};

struct tgpy_tape {
    tg_tape *tape;
    tgpy_world *world;
    bool grad, training; /* modes of the tape */
    bool lent;           /* the library owns the tape, which it has given to a callback */
    bool recording;      /* the grad mode that the library gave the tape */
    bool own;            /* it is world->own, which is not an owner of the world */
    atomic_int owners;
    tgpy_tape *next; /* in world->spare */
};

struct tgpy_box {
    tg_ref ref;
    tgpy_world *world;
    tgpy_tape *tape; /* of which the tensor is a result; NULL: none */
    atomic_int owners;
    atomic_bool lent;
};

struct tgpy_watch {
    tg_tensor *tensor; /* held until the watch or the context ends */
    tgpy_world *world;
};

/* Of this thread: the place in the program that messages about ops name, and whether tgpy_enter has refused a call. */
static _Thread_local struct {
    const char *file;
    int line;
    bool refused;
} site;

/* ---- Contexts ---- */

tgpy_world *tgpy_world_new(tg_ctx *ctx) {
    tgpy_world *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->ctx = ctx;
    w->grad = w->training = true;
    atomic_init(&w->owners, 1);
    atomic_init(&w->watches, 1);
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

tg_ctx *tgpy_ctx(const tgpy_world *w) { return w->ctx; }

static void free_spares(tgpy_world *w) {
    while (w->spare) {
        tgpy_tape *t = w->spare;
        w->spare = t->next;
        free(t);
    }
}

void tgpy_world_close(tgpy_world *w) {
    pthread_mutex_lock(&w->lock);
    tg_ctx *ctx = w->ctx;
    w->ctx = NULL;
    pthread_mutex_unlock(&w->lock);
    tgpy_catch_up(w); /* the list is complete: tgpy_later has found no context since */
    tg_ctx_free(ctx); /* it may call back into Python, whose finalizers now find no context */
    free_spares(w);
    if (w->own) tgpy_tape_drop(w->own);
    w->open = w->own = NULL;
}

void tgpy_world_keep(tgpy_world *w) { atomic_fetch_add(&w->owners, 1); }

static bool disowned(tgpy_world *w) { return atomic_fetch_sub(&w->owners, 1) == 1; }

void tgpy_world_drop(tgpy_world *w) {
    if (disowned(w)) tgpy_world_end(w);
}

static void unwatch(tgpy_world *w) {
    if (atomic_fetch_sub(&w->watches, 1) != 1) return;
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void tgpy_world_end(tgpy_world *w) {
    if (w->ctx) tgpy_world_close(w);
    unwatch(w);
}

void tgpy_later(tgpy_world *w, void (*end)(void *object), void *object) {
    pthread_mutex_lock(&w->lock);
    pending *p = w->ctx ? malloc(sizeof *p) : NULL; /* after the end of the context there is nothing to end */
    if (p) *p = (pending){end, object, atomic_load(&w->later)};
    while (p && !atomic_compare_exchange_weak(&w->later, &p->next, p)) continue; /* tgpy_catch_up takes no lock */
    pthread_mutex_unlock(&w->lock);
}

void tgpy_catch_up(tgpy_world *w) {
    if (!atomic_load_explicit(&w->later, memory_order_relaxed)) return;
    pending *newest = atomic_exchange(&w->later, NULL), *list = NULL;
    while (newest) {
        pending *next = newest->next;
        newest->next = list;
        list = newest;
        newest = next;
    }
    while (list) {
        pending *next = list->next;
        list->end(list->object);
        free(list);
        list = next;
    }
}

bool tgpy_enter(tgpy_world *w) {
    void *none = NULL;
    if (atomic_load_explicit(&w->user, memory_order_relaxed) != &site &&
        !atomic_compare_exchange_strong_explicit(&w->user, &none, &site, memory_order_acquire, memory_order_relaxed)) {
        site.refused = true;
        return false;
    }
    w->depth++;
    return true;
}

void tgpy_leave(tgpy_world *w) {
    if (--w->depth == 0) atomic_store_explicit(&w->user, NULL, memory_order_release);
}

bool tgpy_is_nested(const tgpy_world *w) { return w->depth > 1; }

bool tgpy_was_refused(void) {
    bool refused = site.refused;
    site.refused = false;
    return refused;
}

bool tgpy_set_grad(tgpy_world *w, bool on) {
    bool before = w->grad;
    w->grad = on;
    return before;
}

bool tgpy_set_training(tgpy_world *w, bool on) {
    bool before = w->training;
    w->training = on;
    return before;
}

void tgpy_set_recording(tgpy_world *w, tgpy_sequence *s) { w->recording = s; }

bool tgpy_grad(const tgpy_world *w) { return w->grad; }
bool tgpy_training(const tgpy_world *w) { return w->training; }

tg_status tgpy_next_draws(tgpy_world *w) {
    return w->open && w->open->lent ? TG_OK : tg_draws_step(w->ctx, w->draws++);
}

/* ---- Tapes ---- */

static tgpy_tape *tape_made(tgpy_world *w, tg_tape *tape, bool lent) {
    tgpy_tape *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->tape = tape;
    t->world = w;
    t->lent = lent;
    t->grad = t->recording = tg_is_grad_on(tape);
    t->training = tg_is_training(tape);
    atomic_init(&t->owners, 1);
    return t;
}

/* Returns a tape that was reset, or a new one. */
static tgpy_tape *spare_or_new(tgpy_world *w) {
    if (!w->ctx) return NULL;
    tgpy_catch_up(w);
    tgpy_tape *t = w->spare;
    if (t) {
        w->spare = t->next;
        atomic_store(&t->owners, 1);
    } else {
        tg_tape *tape = tg_tape_new(w->ctx);
        t = tg_ctx_status(w->ctx) ? NULL : tape_made(w, tape, false);
    }
    if (t) tgpy_world_keep(w);
    return t;
}

tgpy_tape *tgpy_tape_new(tgpy_world *w) {
    if (!tgpy_enter(w)) return NULL;
    tgpy_tape *t = spare_or_new(w);
    tgpy_leave(w);
    return t;
}

tgpy_tape *tgpy_tape_lent(tgpy_world *w, tg_tape *tape) {
    tgpy_tape *t = tape_made(w, tape, true);
    if (t) tgpy_world_keep(w);
    return t;
}

static void make_spare(void *object) {
    tgpy_tape *t = object;
    tg_tape_reset(t->tape);
    t->next = t->world->spare;
    t->world->spare = t;
}

void tgpy_tape_drop(tgpy_tape *t) {
    if (atomic_fetch_sub(&t->owners, 1) != 1) return;
    tgpy_world *w = t->own ? NULL : t->world;
    if (t->lent || !t->world->ctx) free(t);
    else tgpy_later(w, make_spare, t);
    if (w) tgpy_world_drop(w);
}

void tgpy_tape_end(tgpy_tape *t) {
    if (t->tape && t->grad != t->recording) tg_tape_set_grad_mode(t->tape, t->recording);
    t->tape = NULL;
}

tg_tape *tgpy_tape_of(const tgpy_tape *t) { return t && t->world->ctx ? t->tape : NULL; }

tgpy_tape *tgpy_open(tgpy_world *w, tgpy_tape *t) {
    tgpy_tape *before = w->open;
    w->open = t;
    return before;
}

tgpy_tape *tgpy_current(tgpy_world *w) {
    if (w->open) return w->open;
    if (!w->own && w->ctx) {
        tg_tape *tape = tg_tape_new(w->ctx);
        w->own = tg_ctx_status(w->ctx) ? NULL : tape_made(w, tape, false);
        if (w->own) w->own->own = true;
    }
    return w->own;
}

/* ---- Tensors ---- */

tgpy_box *tgpy_box_new(tgpy_world *w, tgpy_tape *t, tg_tensor *x, bool lent) {
    tg_ref ref = tg_ref_of(x);
    if (!ref.tensor || !tg_hold(x)) return NULL;
    tgpy_box *b = malloc(sizeof *b);
    if (!b) {
        tg_unhold(x);
        return NULL;
    }
    if (t && t->tape != tg_tape_of(x)) t = NULL;
    *b = (tgpy_box){.ref = ref, .world = w, .tape = t};
    atomic_init(&b->owners, 1);
    atomic_init(&b->lent, lent);
    tgpy_world_keep(w);
    if (t) atomic_fetch_add(&t->owners, 1);
    return b;
}

tgpy_box *tgpy_box_share(tgpy_box *b) {
    atomic_fetch_add(&b->owners, 1);
    return b;
}

static void unhold(void *x) { tg_unhold(x); }

static void release(tgpy_box *b) {
    tgpy_world *w = b->world;
    if (atomic_load(&b->lent)) {
        tgpy_later(w, unhold, b->ref.tensor);
        return;
    }
    pthread_mutex_lock(&w->lock);
    if (w->ctx) tg_drop_later(w->ctx, b->ref);
    pthread_mutex_unlock(&w->lock);
}

tgpy_world *tgpy_box_end(tgpy_box *b) {
    if (atomic_fetch_sub(&b->owners, 1) != 1) return NULL;
    tgpy_world *w = b->world;
    release(b);
    if (b->tape) tgpy_tape_drop(b->tape);
    free(b);
    return disowned(w) ? w : NULL;
}

void tgpy_box_drop(tgpy_box *b) {
    tgpy_world *ended = tgpy_box_end(b);
    if (ended) tgpy_world_end(ended);
}

void tgpy_box_give(tgpy_box *b) { atomic_store(&b->lent, true); }
tg_tensor *tgpy_tensor(const tgpy_box *b) { return b && b->world->ctx ? b->ref.tensor : NULL; }

tg_tensor *tgpy_usable(const tgpy_box *b) {
    if (!tgpy_enter(b->world)) return NULL;
    tgpy_leave(b->world);
    return tgpy_tensor(b);
}

tgpy_tape *tgpy_tape_of_box(const tgpy_box *b) { return b->tape; }
tgpy_world *tgpy_world_of(const tgpy_box *b) { return b->world; }

tgpy_watch *tgpy_watch_new(tgpy_world *w, tg_tensor *x) {
    tgpy_watch *v = malloc(sizeof *v);
    if (!v || !tg_hold(x)) {
        free(v);
        return NULL;
    }
    *v = (tgpy_watch){x, w};
    atomic_fetch_add(&w->watches, 1);
    return v;
}

bool tgpy_watch_is_alive(tgpy_watch *v) {
    pthread_mutex_lock(&v->world->lock); /* another thread may be about to free the context */
    bool alive = v->world->ctx && tg_is_alive(v->tensor);
    pthread_mutex_unlock(&v->world->lock);
    return alive;
}

void tgpy_watch_drop(tgpy_watch *v) {
    tgpy_later(v->world, unhold, v->tensor);
    unwatch(v->world);
    free(v);
}

/* ---- Ops ---- */

void tgpy_site(const char *file, int line) {
    site.file = file;
    site.line = line;
}

/* Prepares a call on t or, if that is NULL, has ended or is another context's, on the current tape: does what was put
 * off, and sets the tape's modes and site. Returns the tape; NULL if there is none. A tape of another context may have
 * been freed; the call then reports the operands of that context. */
static tgpy_tape *prepared(tgpy_world *w, tgpy_tape *t) {
    if (!w->ctx) return NULL;
    tgpy_catch_up(w);
    if (!t || !t->tape || t->world != w) t = tgpy_current(w);
    if (!t) return NULL;
    bool grad = w->grad && (t->recording || !t->lent);
    if (t->grad != grad) tg_tape_set_grad_mode(t->tape, t->grad = grad);
    if (t->training != w->training && !t->lent) tg_tape_set_training(t->tape, t->training = w->training);
    if (site.file) tg_tape_set_site(t->tape, site.file, site.line);
    return t;
}

tgpy_tape *tgpy_ready(tgpy_world *w, tgpy_box *const *in, int n) {
    tgpy_tape *t = NULL;
    for (int i = 0; i < n && !t; i++)
        if (in[i]) t = in[i]->tape;
    if (!tgpy_enter(w)) return NULL;
    t = prepared(w, t);
    tgpy_leave(w);
    return t;
}

/* Returns a box of the result y: that of an input if y is one. NULL if the context has an error. */
static tgpy_box *result(tgpy_world *w, tgpy_tape *t, tg_tensor *y, tgpy_box *const *in, int n) {
    if (tg_ctx_status(w->ctx)) return NULL;
    for (int i = 0; i < n; i++)
        if (in[i] && in[i]->ref.tensor == y) return tgpy_box_share(in[i]);
    tgpy_box *b = tgpy_box_new(w, t, y, false);
    if (!b) tg_release(y);
    return b;
}

tgpy_box *tgpy_unary(tg_tensor *(*op)(tg_tape *, tg_tensor *), tgpy_box *a) {
    if (!tgpy_enter(a->world)) return NULL;
    tgpy_tape *t = prepared(a->world, a->tape);
    tgpy_box *y = t ? result(a->world, t, op(t->tape, tgpy_tensor(a)), &a, 1) : NULL;
    tgpy_leave(a->world);
    return y;
}

tgpy_box *tgpy_binary(tg_tensor *(*op)(tg_tape *, tg_tensor *, tg_tensor *), tgpy_box *a, tgpy_box *b) {
    if (!tgpy_enter(a->world)) return NULL;
    tgpy_tape *t = prepared(a->world, a->tape ? a->tape : b->tape);
    tgpy_box *y =
        t ? result(a->world, t, op(t->tape, tgpy_tensor(a), tgpy_tensor(b)), (tgpy_box *[]){a, b}, 2) : NULL;
    tgpy_leave(a->world);
    return y;
}

tgpy_box *tgpy_with_number(tg_tensor *(*op)(tg_tape *, tg_tensor *, double), tgpy_box *a, double number) {
    if (!tgpy_enter(a->world)) return NULL;
    tgpy_tape *t = prepared(a->world, a->tape);
    tgpy_box *y = t ? result(a->world, t, op(t->tape, tgpy_tensor(a), number), &a, 1) : NULL;
    tgpy_leave(a->world);
    return y;
}

void tgpy_results(tgpy_world *w, tgpy_tape *t, tg_tensor *const *y, int n, tgpy_box *const *in, int n_in,
                  tgpy_box **out) {
    for (int i = 0; i < n; i++) out[i] = result(w, t, y[i], in, n_in);
}

/* Replaces the boxes in values by their tensors, and returns the first tape that one of them has. */
static tgpy_tape *unboxed(tg_value *values, int n) {
    tgpy_tape *t = NULL;
    for (int i = 0; i < n; i++) {
        if (values[i].kind != TG_VALUE_TENSOR) continue;
        const tgpy_box *b = values[i].pointer;
        if (!t) t = b->tape;
        values[i].tensor = tgpy_tensor(b);
    }
    return t;
}

static tg_status call(tgpy_world *w, const tg_op_binding *op, tgpy_box *const *in, int n_in, tg_value *values,
                      tgpy_box **out, int n_out) {
    tg_tensor **x = calloc((size_t)n_in + (size_t)n_out + 1, sizeof *x), **y = x ? x + n_in : NULL;
    if (!x || !w->ctx) {
        free(x);
        return TG_ERR_MEMORY;
    }
    if (w->recording) tgpy_sequence_note(w->recording, op, in, n_in, values, n_out);
    tgpy_tape *by_name = unboxed(values, op->n), *t = tgpy_ready(w, in, n_in);
    if (by_name && t == tgpy_current(w)) t = prepared(w, by_name);
    if (!t) {
        free(x);
        return TG_ERR_MEMORY;
    }
    for (int i = 0; i < n_in; i++) x[i] = tgpy_tensor(in[i]);
    tg_status status = tg_op_call_bound(t->tape, op, x, n_in, values, y, n_out);
    if (w->recording) tgpy_sequence_note_results(w->recording, status == TG_OK ? y : NULL);
    tgpy_results(w, t, y, n_out, in, n_in, out);
    free(x);
    return tg_ctx_status(w->ctx);
}

tg_status tgpy_call(tgpy_world *w, const tg_op_binding *op, tgpy_box *const *in, int n_in, tg_value *values,
                    tgpy_box **out, int n_out) {
    if (!tgpy_enter(w)) return TG_ERR_STATE;
    tg_status status = call(w, op, in, n_in, values, out, n_out);
    tgpy_leave(w);
    return status;
}
