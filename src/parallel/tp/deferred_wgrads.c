/* Lists of deferred weight gradients. Their products run when the caller has time for them, for example while a
 * pipeline stage is idle (Megatron-Core's defer_embedding_wgrad_compute). Each entry holds references to the input and
 * to the output gradient of its layer. */
#include "base/memory/host_memory.h"
#include "parallel/tp/wgrads.h"

#include "ops/linear.h"
#include "kernels/scalar.h"
#include "nn/module.h"
#include "comm/comm.h"
#include "autograd/gradients.h"
#include "autograd/hooks.h"
#include "autograd/grad_sink.h"

/* One entry: the deferred product gy^T x. x and gy are handles that the list owns; they share the storages of the
 * tensors that backward passed. The versions tell whether a storage was overwritten later. */
typedef struct wgrad {
    tg_tensor *x, *gy, *w;
    tg_ref ref; /* detects that the weight was dropped */
    uint32_t x_version, gy_version;
    bool owned; /* the tape would have discarded x's bytes after backward; instead the list does so after the product */
    tg_comm *comm; /* the communicator over which x is gathered first; NULL: x has all rows */
    const void *site;
} wgrad;

struct tg_wgrads {
    tg_ctx *ctx;
    int refs;   /* one of the caller, and one of each node and each tape whose backward may use the list */
    bool ended; /* the caller has freed the list */
    bool running; /* tg_wgrads_run is running: a hook that it calls must not run or free the list */
    int limit; /* the largest number of entries; TG_NONE: no limit */
    int n, capacity;
    int done; /* while the list runs: how many of the first entries are done; they are removed at the end of the run */
    wgrad *item;
    int64_t removed; /* number of entries that were removed so far: those that were added before item[0] */
    tg_tape *tape;   /* gathers and hooks record on it */
};

/* ---- Creation ---- */

tg_wgrads *tg_wgrads_new(tg_ctx *ctx, int limit) {
    if (!tg_ok(ctx)) return NULL;
    if (limit < TG_NONE) {
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_wgrads_new: limit is %d, expected 0 or more, or TG_NONE for no limit", limit);
        return NULL;
    }
    tg_wgrads *d = tg_host_alloc(ctx, sizeof *d);
    if (!d) return NULL;
    *d = (tg_wgrads){.ctx = ctx, .refs = 1, .limit = limit, .tape = tg_tape_new(ctx)};
    if (tg_ok(ctx)) return d;
    tg_wgrads_free(d);
    return NULL;
}

/* Releases what an entry holds. */
static void drop_entry(wgrad *i) {
    tg_storage *s = i->x->storage;
    if (--s->saves == 0 && i->owned && s->temporary) tg_storage_discard(s, "tg_wgrads_run", i->site);
    tg_temp_free(i->x);
    tg_temp_free(i->gy);
    if (i->w->serial == i->ref.serial) i->w->ext->deferred--;
}

tg_status tg_wgrads_check(const tg_wgrads *d, const tg_tape *t, const char *who) {
    if (!d || d->ctx == t->ctx) return TG_OK;
    return tg_fail(t->ctx, TG_ERR_ARGUMENT,
                   "%s is a list of another context than the tape; create it with tg_wgrads_new(tg_tape_ctx(t), ..)",
                   who);
}

tg_wgrads *tg_wgrads_keep(tg_wgrads *d) {
    d->refs++;
    return d;
}

void tg_wgrads_drop(void *wgrads) {
    tg_wgrads *d = wgrads;
    if (--d->refs == 0) tg_host_free(d->ctx, d, sizeof *d);
}

void tg_wgrads_clear(tg_wgrads *d) {
    for (int i = 0; i < d->n; i++) drop_entry(&d->item[i]);
    d->removed += d->n;
    d->n = 0;
}

void tg_wgrads_free(tg_wgrads *d) {
    if (!d) return;
    if (d->running) {
        tg_fail(d->ctx, TG_ERR_STATE,
                "tg_wgrads_free: the list is running; free it after tg_wgrads_run, not in a hook that it calls");
        return;
    }
    tg_wgrads_clear(d);
    tg_host_free(d->ctx, d->item, (size_t)d->capacity * sizeof *d->item);
    tg_tape_free(d->tape);
    d->capacity = 0;
    d->ended = true;
    tg_wgrads_drop(d);
}

int tg_wgrads_count(const tg_wgrads *d) { return d ? d->n - d->done : 0; }
int64_t tg_wgrads_mark(const tg_wgrads *d) { return d ? d->removed + d->n : 0; }

/* ---- Deferring in backward ---- */

/* Makes sure that there is space for one more entry. */
static tg_status grow(tg_wgrads *d) {
    if (d->n < d->capacity) return TG_OK;
    int capacity = d->capacity ? 2 * d->capacity : 8;
    wgrad *more = tg_host_alloc(d->ctx, (size_t)capacity * sizeof *more);
    if (!more) return d->ctx->run.status;
    if (d->n) memcpy(more, d->item, (size_t)d->n * sizeof *more);
    tg_host_free(d->ctx, d->item, (size_t)d->capacity * sizeof *d->item);
    d->item = more;
    d->capacity = capacity;
    return TG_OK;
}

/* Returns a new handle of x's data. */
static tg_tensor *reference_to(const tg_tensor *x) {
    return tg_temp_new(x->ctx, x->dtype, x->ndim, x->shape, x->stride, tg_storage_ref(x->storage), x->offset);
}

bool tg_wgrads_take(tg_wgrads *d, tg_call *c, int w, tg_tensor *x, tg_tensor *gy, tg_comm *comm) {
    bool full = d->limit != TG_NONE && tg_wgrads_count(d) >= d->limit;
    if (d->ended || full || !tg_call_accumulates(c, w) || grow(d) != TG_OK) return false;
    wgrad i = {.x = reference_to(x), .gy = reference_to(gy), .w = c->input[w], .ref = tg_ref_of(c->input[w]),
               .comm = comm};
    if (!i.x || !i.gy) {
        if (i.x) tg_temp_free(i.x);
        if (i.gy) tg_temp_free(i.gy);
        return false;
    }
    i.x_version = x->storage->version;
    i.gy_version = gy->storage->version;
    i.owned = tg_storage_is_of(x->storage, c->tape);
    i.site = tg_call_site(c);
    x->storage->saves++; /* keeps the bytes alive when the node ends */
    i.w->ext->deferred++;
    d->item[d->n++] = i;
    tg_call_decline(c, w);
    return true;
}

/* ---- Running ---- */

static tg_status fail_dropped(const tg_wgrads *d, const wgrad *i) {
    char site[160];
    tg_describe_site(d->ctx, i->site, site, sizeof site);
    return tg_fail(d->ctx, TG_ERR_HANDLE,
                   "tg_wgrads_run: a weight with a deferred gradient was dropped; call tg_wgrads_run before (the "
                   "linear was called from %s)",
                   site);
}

/* role: what `written` is of the linear layer. */
static tg_status fail_overwritten(const tg_wgrads *d, const wgrad *i, const tg_tensor *written, const char *role) {
    char what[160], site[160];
    tg_describe(written, what, sizeof what);
    tg_describe_site(d->ctx, i->site, site, sizeof site);
    return tg_fail(d->ctx, TG_ERR_VERSION,
                   "tg_wgrads_run: the %s of a linear with a deferred weight gradient, %s, was overwritten by %s; "
                   "call tg_wgrads_run before (the linear was called from %s)",
                   role, what, written->storage->by ? written->storage->by : "its owner", site);
}

/* Fails if the weight was dropped or a storage was overwritten. Waits for x and gy. Describes call sites only when it
 * fails, because that reads debug information and takes longer than many a product. */
static tg_status check_item(const tg_wgrads *d, const wgrad *i) {
    if (i->w->serial != i->ref.serial) return fail_dropped(d, i);
    if (i->x->storage->version != i->x_version) return fail_overwritten(d, i, i->x, "input");
    if (i->gy->storage->version != i->gy_version) return fail_overwritten(d, i, i->gy, "output gradient");
    TG_TRY(tg_storage_need(i->x->storage, i->x));
    return tg_storage_need(i->gy->storage, i->gy);
}

/* Returns x with the rows of all ranks, in flight; x itself if the entry has no communicator. turn: which of two
 * buffers is used, 0 or 1. The caller alternates them, so that the rows of the next entry are gathered during the
 * product of this one. */
static tg_tensor *rows_of(tg_wgrads *d, const wgrad *i, int turn) {
    if (!i->comm) return i->x;
    tg_tensor *x = i->x;
    if (!(x->flags & TG_F_CONTIGUOUS)) {
        x = tg_contiguous(d->tape, tg_tape_enter(d->tape, x));
        if (!tg_ok(d->ctx)) return x;
    }
    return tg_gather_rows(d->tape, turn ? "mpu_1" : "mpu_0", x, i->comm, i->site);
}

/* Adds the product gy^T x to the gradient of the weight. x has the rows of all ranks. */
static tg_status add_product(const wgrad *i, const tg_tensor *x) {
    tg_tensor *w = i->w, *sum = tg_gradient_buffer(w);
    if (!sum) return w->ctx->run.status;
    TG_TRY(tg_storage_need(x->storage, x));
    TG_TRY(tg_linear_wgrad(i->gy, x, sum, w->ext->has_grad));
    tg_gradient_reached(w);
    return TG_OK;
}

/* Runs the hooks of w, unless some list still holds a gradient of it. */
static tg_status run_hooks(tg_wgrads *d, tg_tensor *w) {
    if (w->ext->deferred || !tg_hooks_any(w, true)) return TG_OK;
    tg_tensor *sum = tg_gradient_of(w);
    return tg_hooks_run(d->tape, w, &sum, true);
}

/* Runs the first n entries in order, and removes those that are done. */
static tg_status run(tg_wgrads *d, int n) {
    for (int i = 0; i < n; i++) TG_TRY(check_item(d, &d->item[i]));
    tg_tensor *next = n ? rows_of(d, &d->item[0], 0) : NULL;
    tg_status s = d->ctx->run.status;
    while (d->done < n && s == TG_OK) {
        wgrad *i = &d->item[d->done];
        tg_tensor *x = next, *w = i->w;
        if (i->comm) s = tg_storage_need(x->storage, x);
        if (s == TG_OK && d->done + 1 < n) next = rows_of(d, i + 1, (d->done + 1) & 1);
        if (s == TG_OK) s = d->ctx->run.status;
        if (s == TG_OK) s = add_product(i, x);
        if (s != TG_OK) break;
        if (i->comm) tg_storage_discard(x->storage, "tg_wgrads_run", i->site);
        drop_entry(i);
        d->done++;
        s = run_hooks(d, w);
    }
    if (d->done) memmove(d->item, d->item + d->done, (size_t)(d->n - d->done) * sizeof *d->item);
    d->n -= d->done;
    d->removed += d->done;
    d->done = 0;
    return s;
}

/* Returns whether some entry needs communication between ranks. */
static bool communicates(const tg_wgrads *d) {
    for (int i = 0; i < d->n; i++)
        if (tg_comm_size(d->item[i].comm) > 1) return true;
    return false;
}

/* Runs the first n entries. */
static tg_status run_first(tg_wgrads *d, int n) {
    tg_status s = d->ctx->run.status;
    if (s == TG_OK && d->running)
        return tg_fail(d->ctx, TG_ERR_STATE,
                       "tg_wgrads_run: the list is running already; do not run it in a hook that it calls");
    if (s == TG_OK) {
        d->running = true;
        s = run(d, n);
        d->running = false;
        tg_tape_reset(d->tape);
    }
    if (s != TG_OK && communicates(d)) tg_ctx_skip(d->ctx);
    return s;
}

tg_status tg_wgrads_run(tg_wgrads *d) { return d ? run_first(d, d->n) : TG_ERR_ARGUMENT; }

tg_status tg_wgrads_run_to(tg_wgrads *d, int64_t mark) {
    if (!d) return TG_ERR_ARGUMENT;
    if (mark < 0 || mark > tg_wgrads_mark(d)) {
        if (d->ctx->run.status == TG_OK)
            tg_fail(d->ctx, TG_ERR_ARGUMENT,
                    "tg_wgrads_run_to: mark is %lld, expected a result of tg_wgrads_mark on this list, 0 to %lld",
                    (long long)mark, (long long)tg_wgrads_mark(d));
        if (communicates(d)) tg_ctx_skip(d->ctx);
        return d->ctx->run.status;
    }
    return run_first(d, mark > d->removed ? (int)(mark - d->removed) : 0);
}
