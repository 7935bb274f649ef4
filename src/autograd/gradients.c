/* Gradients: how contributions are summed, and where a leaf keeps its gradient. */
#include "autograd/gradients.h"

#include <tapegrad/backward.h>

#include "autograd/apply.h"
#include "core/capture/capture.h"
#include "kernels/scalar.h"
#include "placement/rule.h"

tg_status tg_gradient_put(tg_tensor *dst, const tg_tensor *src, bool add) {
    tg_ctx *ctx = dst->ctx;
    const double none[2] = {0, 0};
    tg_array in = tg_array_of(src);
    return ctx->run.ops->apply(ctx, TG_FN_id, tg_array_of(dst), &in, 1, none, add);
}

/* Returns whether g has bytes of its own in row-major order. */
static bool exclusive(const tg_tensor *g) { return tg_storage_is_own(g->storage) && g->flags & TG_F_CONTIGUOUS; }

tg_tensor *tg_gradient_copy(const tg_tensor *g) {
    tg_tensor *c = tg_temp_empty(g->ctx, g->dtype, g->ndim, g->shape, TG_MEM_TEMPORARY);
    if (c && tg_gradient_put(c, g, false) != TG_OK) {
        tg_temp_free(c);
        c = NULL;
    }
    return c;
}

tg_tensor *tg_gradient_alias(const tg_tensor *g) {
    return tg_temp_new(g->ctx, g->dtype, g->ndim, g->shape, g->stride, tg_storage_ref(g->storage), g->offset);
}

tg_tensor *tg_gradient_share(const tg_tensor *g) {
    bool shared = g->storage->temporary || g->storage->category == TG_MEM_GRADIENT;
    return shared ? tg_gradient_copy(g) : tg_gradient_alias(g);
}

tg_status tg_gradient_own(tg_tensor **g) {
    if (atomic_load_explicit(&(*g)->storage->refs, memory_order_relaxed) == 1) return TG_OK;
    TG_TRY(tg_storage_need((*g)->storage, *g));
    tg_tensor *copy = tg_gradient_copy(*g);
    if (!copy) return (*g)->ctx->run.status;
    tg_temp_free(*g);
    *g = copy;
    return TG_OK;
}

tg_status tg_slot_add(tg_slot *s, tg_tensor *g) {
    if (!s->g) {
        s->g = g;
        return TG_OK;
    }
    tg_tensor *into = s->g, *from = g;
    if (!exclusive(into) && exclusive(g)) into = g, from = s->g;
    if (!exclusive(into)) {
        tg_tensor *copy = tg_gradient_copy(into);
        if (!copy) {
            tg_temp_free(g);
            return g->ctx->run.status;
        }
        tg_temp_free(into);
        into = copy;
        from = g;
    }
    s->g = into;
    tg_status status = tg_gradient_put(into, from, true);
    tg_temp_free(from);
    return status;
}

tg_status tg_slot_finish(tg_slot *s) {
    while (s->pending) {
        tg_tensor *g = s->pending;
        TG_TRY(tg_storage_need(g->storage, g));
        s->pending = (tg_tensor *)g->node;
        g->node = NULL;
        TG_TRY(tg_slot_add(s, g));
    }
    return TG_OK;
}

void tg_slot_drop(tg_slot *s) {
    for (tg_tensor *g = s->pending, *next; g; g = next) {
        next = (tg_tensor *)g->node;
        tg_temp_free(g);
    }
    if (s->g) tg_temp_free(s->g);
    *s = (tg_slot){0};
}

/* ---- Whether a leaf has a gradient ---- */

static void forget(tg_tensor *x) {
    tg_ext *e = x->ext;
    if (TG_UNLIKELY(x->ctx->capture != NULL)) tg_capture_gradient(x, false);
    e->has_grad = e->partial = e->summed = e->divided = e->unsure = false;
}

void tg_gradient_forget(tg_tensor *x) {
    tg_tensor *whole = tg_range_whole(x);
    if (!x->ext) return;
    forget(x);
    if (whole != x) forget(whole);
    if (x->ext->range) forget(x->ext->range);
}

tg_status tg_gradient_unsure(tg_tensor *x, tg_array ranks) {
    static const int64_t one = 1;
    const double zero_to_one[2] = {0, 1};
    tg_ext *e = x->ext;
    if (!e->used && !(e->used = tg_owned_empty(x->ctx, TG_F32, 1, &one, TG_MEM_GRADIENT))) return x->ctx->run.status;
    if (TG_UNLIKELY(x->ctx->capture != NULL)) tg_capture_gradient(x, false);
    e->has_grad = e->unsure = true;
    if (e->divided) tg_gradient_divide(x);
    return x->ctx->run.ops->apply(x->ctx, TG_FN_clamp, tg_array_of(e->used), &ranks, 1, zero_to_one, false);
}

const float *tg_gradient_used(const tg_tensor *x) {
    const tg_ext *e = tg_range_whole(x)->ext;
    return e && e->unsure ? tg_data(e->used) : NULL;
}

/* Reads from the device whether some rank has contributed to x's gradient, if the host does not know. Within a captured
 * step and on device meta nothing is read: there the gradient counts as present, although it may be 0. */
static void find_out(const tg_tensor *x) {
    const tg_tensor *whole = tg_range_whole(x);
    float used = 1;
    if (TG_LIKELY(!whole->ext || !whole->ext->unsure) || x->ctx->capture || x->ctx->meta) return;
    if (x->ctx->run.ops->copy(x->ctx, &used, tg_data(whole->ext->used), sizeof used, TG_COPY_TO_HOST) != TG_OK) return;
    whole->ext->unsure = false;
    if (used == 0) tg_gradient_forget((tg_tensor *)x);
}

/* ---- A leaf's accumulated gradient ---- */

/* Returns g, or NULL after recording the error that its bytes may not change now. */
static tg_tensor *changeable(tg_tensor *g) { return tg_storage_may_change(g) == TG_OK ? g : NULL; }

/* Returns the buffer that the caller gave. NULL after recording an error, such as that it was dropped. */
static tg_tensor *main_buffer(tg_tensor *x) {
    tg_tensor *g = x->ext->main_grad;
    char what[160];
    if (g->serial == x->ext->main_serial) return changeable(g);
    tg_describe(x, what, sizeof what);
    tg_fail(x->ctx, TG_ERR_HANDLE, "the main_grad of %s was dropped; it must outlive its use", what);
    return NULL;
}

/* Records an error and returns true if the gradient has been summed over ranks: one rank's share cannot be added to
 * that sum. */
static bool refused_as_summed(const tg_tensor *x) {
    char what[160];
    if (TG_LIKELY(!x->ext->summed || !x->ext->has_grad)) return false;
    find_out(x);
    if (!x->ext->has_grad) return false;
    tg_describe(x, what, sizeof what);
    tg_fail(x->ctx, TG_ERR_STATE,
            "the gradient of %s has been summed by tg_grads_finalize; zero it before the next backward", what);
    return true;
}

tg_tensor *tg_gradient_buffer(tg_tensor *x) {
    tg_ext *e = tg_ext_of(x);
    if (!e || refused_as_summed(x)) return NULL;
    if (e->main_grad) return main_buffer(x);
    if (e->grad && e->grad->storage->state == TG_DISCARDED && !e->has_grad) {
        e->grad->ext->grad_of = NULL; /* a new buffer replaces it */
        tg_drop(e->grad);
        e->grad = NULL;
    }
    if (e->grad) return changeable(e->grad);
    e->grad = tg_owned_empty(x->ctx, tg_accumulate_dtype(x->dtype), x->ndim, x->shape, TG_MEM_GRADIENT);
    if (e->grad) e->grad->ext->grad_of = e;
    return e->grad;
}

tg_tensor *tg_gradient_of(const tg_tensor *x) {
    const tg_ext *e = x->ext;
    if (e && TG_UNLIKELY(x->ctx->capture != NULL)) tg_capture_gradient(x, true);
    if (!e || !e->has_grad || e->divided) return NULL;
    if (!e->main_grad) return e->grad;
    return e->main_grad->serial == e->main_serial ? e->main_grad : NULL;
}

void tg_gradient_place(tg_tensor *x) {
    tg_tensor *g = tg_gradient_of(x);
    if (!g || !tg_grid_axes(x->ctx)) return;
    g->place = tg_placement_of_gradient(x, !x->ext->partial);
    if (g->flags & TG_F_GRADIENT && g->place && g->place->partial)
        g->flags |= TG_F_PARTIAL;
    else
        g->flags &= (uint16_t)~TG_F_PARTIAL;
}

/* Marks x's gradient as overwritten by `by` if nodes have saved it as an input, because they would now read other
 * bytes. While a step is being captured it is always marked: each replay writes the gradient too, and nodes of other
 * tapes may have saved it by then. */
static void wrote_gradient(const tg_tensor *x, const char *by) {
    const tg_tensor *g = tg_gradient_of(x);
    if (g && TG_UNLIKELY(g->storage->saves || x->ctx->capture)) tg_storage_wrote(g->storage, by, NULL);
}

void tg_gradient_reached(tg_tensor *x) {
    tg_ext *e = x->ext;
    if (TG_UNLIKELY(x->ctx->capture != NULL)) tg_capture_gradient(x, true);
    if (!e->has_grad) e->summed = e->divided = e->unsure = false; /* the old value is gone */
    e->has_grad = true;
    wrote_gradient(x, "a backward, which accumulates a gradient there");
    if (TG_LIKELY(!x->place) || e->partial || !(x->place->replicated & tg_grid_axes(x->ctx))) return;
    e->partial = true;
    tg_gradient_place(x);
}

void tg_gradient_summed(tg_tensor *x) {
    tg_ext *e = x->ext;
    e->partial = false;
    e->summed = e->has_grad && x->place && x->place->replicated & tg_grid_axes(x->ctx);
    if (e->summed) wrote_gradient(x, "tg_grads_finalize");
    tg_gradient_place(x);
}

void tg_gradient_divide(tg_tensor *x) {
    if (TG_UNLIKELY(x->ctx->capture != NULL)) tg_capture_gradient(x->ext->range, false);
    x->ext->range->ext->has_grad = x->ext->has_grad;
    x->ext->range->ext->partial = false;
    x->ext->divided = true;
}

void tg_gradient_move(tg_tensor *x) {
    tg_ext *whole = x->ext, *range = whole->range->ext;
    if (TG_UNLIKELY(x->ctx->capture != NULL)) tg_capture_gradient(x, false), tg_capture_gradient(whole->range, false);
    whole->has_grad = whole->partial = whole->summed = whole->unsure = false;
    range->has_grad = range->partial = whole->divided = true;
}

tg_tensor *tg_gradient_leaf(tg_tensor *x) { return x->ext && x->ext->divided ? x->ext->range : x; }

tg_status tg_gradient_need_drained(const tg_tensor *x, const char *who) {
    char what[160];
    if (TG_LIKELY(!x->ext || !x->ext->deferred)) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(x->ctx, TG_ERR_STATE,
                   "%s: the gradient of %s lacks %s, which tg_wgrads defers; call tg_wgrads_drain after the last "
                   "backward",
                   who, what, tg_count(x->ext->deferred, "product").text);
}

tg_status tg_gradient_need_whole(const tg_tensor *x, const char *who) {
    char what[160];
    if (TG_LIKELY(!x->ext || !x->ext->has_grad || !x->ext->partial)) return TG_OK;
    tg_describe(x, what, sizeof what);
    return tg_fail(
        x->ctx, TG_ERR_STATE,
        "%s: the gradient of %s is one rank's share of a sum; call tg_grads_finalize after the last backward", who,
        what);
}

bool tg_has_grad(const tg_tensor *x) {
    if (!tg_is_alive(x)) return false;
    find_out(x);
    return tg_gradient_of(x);
}

/* Returns the gradient of a caller's leaf, with its placement. NULL after recording the error. */
static tg_tensor *gradient_for(tg_tensor *x, const char *who) {
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx) || tg_check(ctx, x, who) != TG_OK) return NULL;
    find_out(x);
    tg_tensor *g = tg_gradient_of(x);
    if (g) {
        g->flags |= TG_F_GRADIENT;
        g->flags &= (uint16_t)~TG_F_GIVEN; /* g is placed as a gradient, even if the caller has filled main_grad */
        tg_gradient_place(x);
        return g;
    }
    char what[160];
    tg_describe(x, what, sizeof what);
    tg_fail(ctx, TG_ERR_STATE, "%s: %s has no gradient: %s", who, what,
            x->node ? "it is not a leaf (tg_grad gives gradients of results)"
            : x->ext && x->ext->divided ? "it is divided over ranks; read that of its leaf (tg_flat_leaves)"
            : x->ext && x->ext->has_grad ? "its main gradient (tg_set_main_grad) was dropped"
            : x->flags & TG_F_REQUIRES_GRAD ? "no backward has reached it since it was zeroed"
                                            : "it does not need one");
    return NULL;
}

tg_tensor *tg_grad_of(tg_tensor *x) {
    if (!x) return tg_inert(&tg_dead_ctx);
    tg_tensor *g = gradient_for(x, "tg_grad_of");
    return g ? g : tg_inert(x->ctx);
}

static tg_tensor *refuse_summed(const tg_tensor *x) {
    char what[160];
    tg_describe(x, what, sizeof what);
    tg_fail(x->ctx, TG_ERR_STATE,
            "tg_grad_share: tg_grads_finalize has summed the gradient of %s, and the share is gone; call tg_grad_share "
            "before it, or read the sum (tg_grad_of)",
            what);
    return tg_inert(x->ctx);
}

tg_tensor *tg_grad_share(tg_tensor *x) {
    if (!x) return tg_inert(&tg_dead_ctx);
    tg_ctx *ctx = x->ctx;
    tg_tensor *g = gradient_for(x, "tg_grad_share");
    if (!g || tg_gradient_need_drained(x, "tg_grad_share") != TG_OK) return tg_inert(ctx);
    if (x->ext->summed) return refuse_summed(x);
    tg_tensor *share = tg_owned_empty(ctx, (tg_dtype)g->dtype, g->ndim, g->shape, TG_MEM_TEMPORARY);
    if (!share) return tg_inert(ctx);
    share->place = g->place;
    if (tg_storage_need(g->storage, g) == TG_OK && tg_gradient_put(share, g, false) == TG_OK) return share;
    tg_owned_free(share);
    return tg_inert(ctx);
}

static tg_status enter_leaf(tg_tensor *x, const char *who) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, x, who));
    if (x->node) return tg_fail(ctx, TG_ERR_STATE, "%s: the tensor is the result of an op, not a leaf", who);
    return TG_OK;
}

tg_status tg_zero_grad(tg_tensor *x) {
    TG_TRY(enter_leaf(x, "tg_zero_grad"));
    tg_gradient_forget(x);
    return TG_OK;
}

/* Fails unless buf can be the main gradient of x. */
static tg_status check_buffer(const tg_tensor *x, const tg_tensor *buf) {
    char want[160], got[160];
    tg_ctx *ctx = x->ctx;
    TG_TRY(tg_check(ctx, buf, "tg_set_main_grad: the buffer"));
    tg_describe(x, want, sizeof want);
    tg_describe(buf, got, sizeof got);
    bool same = tg_same_shape(buf, x);
    if (!same || buf->dtype != tg_accumulate_dtype(x->dtype))
        return tg_fail(ctx, same ? TG_ERR_DTYPE : TG_ERR_SHAPE,
                       "tg_set_main_grad: the buffer is %s; for %s it must be %s, contiguous and of the same shape",
                       got, want, tg_dtype_name(tg_accumulate_dtype(x->dtype)));
    if (!(buf->flags & TG_F_CONTIGUOUS))
        return tg_fail(ctx, TG_ERR_STATE, "tg_set_main_grad: the buffer %s must be contiguous", got);
    if (buf->tape || tg_shares_bytes(buf, x))
        return tg_fail(ctx, TG_ERR_STATE,
                       "tg_set_main_grad: the buffer must be owned by the context and not share the tensor's bytes");
    return TG_OK;
}

tg_status tg_set_main_grad(tg_tensor *x, tg_tensor *buf) {
    TG_TRY(enter_leaf(x, "tg_set_main_grad"));
    tg_ext *e = tg_ext_of(x);
    if (!e) return x->ctx->run.status;
    if (buf) {
        TG_TRY(check_buffer(x, buf));
        tg_storage_categorize(buf->storage, TG_MEM_GRADIENT);
    }
    e->main_grad = buf;
    e->main_serial = buf ? buf->serial : 0;
    tg_gradient_forget(x);
    return TG_OK;
}
