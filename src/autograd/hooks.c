/* Hooks on gradients (tg_on_grad, tg_on_accumulated): adds and removes them, and runs them for backward. */
#include "autograd/hooks.h"

#include <tapegrad/backward.h>

#include "autograd/backward.h"
#include "base/callback.h"
#include "autograd/gradients.h"
#include "placement/rule.h"

/* Returns why x accepts no hook, or NULL if it accepts one. A hook that a recomputed function sets on a tensor of its
 * own ends with the first run, and the second run sets it again. A tensor that existed before the call would keep the
 * first hook and get a second one, so it accepts none. */
static const char *hook_refused(const tg_tensor *x, bool accumulated) {
    bool first = x->tape && x->tape->collects, again = x->tape && x->tape->again;
    const tg_tapes *tapes = tg_tapes_of(x->ctx);
    if (tapes && tapes->recomputing >= x->serial && !first && !again)
        return "the tensor was not made by the recomputed function, which would set the hook again in backward; set it "
               "outside of the function";
    if (accumulated && first) return "a recomputed function accumulates no gradient; set the hook outside of it";
    if (accumulated && x->node) return "the tensor is not a leaf";
    /* The first run is in no-grad mode. There TG_F_DIFFERENTIABLE says that the tensor will need a gradient in the
     * second run. */
    bool needs = x->flags & (TG_F_REQUIRES_GRAD | (first ? TG_F_DIFFERENTIABLE : 0));
    return needs ? NULL : "the tensor needs no gradient";
}

static uint64_t add_hook(tg_tensor *x, tg_hook_fn fn, void *user, bool accumulated, const char *who) {
    if (!x || !tg_ok(x->ctx) || tg_check(x->ctx, x, who) != TG_OK) return 0;
    tg_ctx *ctx = x->ctx;
    const char *refused = hook_refused(x, accumulated);
    if (!fn || refused) {
        tg_fail(ctx, fn ? TG_ERR_STATE : TG_ERR_ARGUMENT, "%s: %s", who, fn ? refused : "the hook is NULL");
        return 0;
    }
    tg_ext *e = tg_ext_of(x);
    tg_hook *h = e ? tg_hook_new(ctx) : NULL;
    if (!h) return 0;
    *h = (tg_hook){.id = ++ctx->serial, .fn = fn, .user = user, .accumulated = accumulated};
    tg_hook **end = &e->hooks;
    while (*end) end = &(*end)->next;
    *end = h;
    return h->id;
}

uint64_t tg_hook_first(tg_tensor *x, tg_hook_fn fn, void *user) {
    tg_hook *h = tg_hook_new(x->ctx);
    if (!h) return 0;
    *h = (tg_hook){.id = ++x->ctx->serial, .fn = fn, .user = user, .next = x->ext->hooks};
    x->ext->hooks = h;
    return h->id;
}

uint64_t tg_on_grad(tg_tensor *x, tg_hook_fn fn, void *user) { return add_hook(x, fn, user, false, "tg_on_grad"); }

uint64_t tg_on_accumulated(tg_tensor *x, tg_hook_fn fn, void *user) {
    return add_hook(x, fn, user, true, "tg_on_accumulated");
}

/* Frees the hooks that were removed, unless a hook of the list is running. */
static void sweep_hooks(tg_tensor *x) {
    if (x->ext->hooks_running) return;
    for (tg_hook **h = &x->ext->hooks; *h;) {
        tg_hook *gone = *h;
        if (gone->fn) {
            h = &gone->next;
            continue;
        }
        *h = gone->next;
        tg_hook_free(x->ctx, gone);
    }
}

bool tg_hook_drop(tg_tensor *x, uint64_t id) {
    for (tg_hook *h = x->ext ? x->ext->hooks : NULL; h; h = h->next) {
        if (h->id != id || !h->fn) continue;
        h->fn = NULL;
        sweep_hooks(x);
        return true;
    }
    return false;
}

tg_status tg_remove_hook(tg_tensor *x, uint64_t id) {
    if (!x) return TG_ERR_ARGUMENT;
    tg_ctx *ctx = x->ctx;
    if (!tg_ok(ctx)) return tg_ctx_status(ctx);
    TG_TRY(tg_check(ctx, x, "tg_remove_hook"));
    if (tg_hook_drop(x, id)) return TG_OK;
    return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_remove_hook: the tensor has no hook %llu", (unsigned long long)id);
}

bool tg_hooks_any(const tg_tensor *x, bool accumulated) {
    for (const tg_hook *h = x->ext ? x->ext->hooks : NULL; h; h = h->next)
        if (h->accumulated == accumulated) return true;
    return false;
}

/* Replaces the gradient by the hook's result. */
static tg_status replace(tg_tape *t, tg_tensor *x, tg_tensor **g, tg_tensor *by) {
    tg_ctx *ctx = x->ctx;
    TG_TRY(tg_check(ctx, by, "a gradient hook's result"));
    TG_TRY(tg_storage_need(by->storage, by));
    if (by->dtype != (*g)->dtype || !tg_same_shape(by, *g)) {
        char want[160], got[160];
        tg_describe(*g, want, sizeof want);
        tg_describe(by, got, sizeof got);
        return tg_fail(ctx, TG_ERR_SHAPE, "a gradient hook returned %s, expected %s", got, want);
    }
    TG_TRY(tg_placement_fits(x, by, "a gradient hook's result"));
    TG_TRY(tg_placement_compare_hooked(x, by));
    /* The result is copied, because the hook may reuse its tensor for another gradient. `own` copies only tensors of
     * the context. */
    if (t->grad_graph) {
        *g = t->grad_graph->o->graph->own(t, by);
        return ctx->run.status;
    }
    tg_tensor *temp = tg_gradient_copy(by);
    if (!temp) return ctx->run.status;
    temp->place = (*g)->place;
    tg_temp_free(*g);
    *g = temp;
    return TG_OK;
}

static tg_status hook_failed(const tg_tensor *x, tg_status s) {
    char what[160];
    tg_describe(x, what, sizeof what);
    return tg_callback_end(x->ctx, s, "a gradient hook of %s", what);
}

tg_status tg_hooks_run(tg_tape *t, tg_tensor *x, tg_tensor **g, bool accumulated) {
    if (!x->ext) return TG_OK;
    bool grad = tg_tape_set_grad_mode(t, t->grad_graph != NULL);
    tg_status s = TG_OK;
    const bool placed = tg_grid_axes(t->ctx);
    if (TG_UNLIKELY(placed) && !accumulated && !t->grad_graph) (*g)->place = tg_placement_of_gradient(x, false);
    if (TG_UNLIKELY(placed) && accumulated) tg_gradient_place(x);
    x->ext->hooks_running++;
    if (!x->tape) x->uses++; /* a hook may drop x, which has no node if tg_wgrads delays its gradient */
    t->busy++; /* a hook must not reset the tape; in_backward is false for a gradient that tg_wgrads delays */
    for (tg_hook *h = x->ext->hooks; h && s == TG_OK; h = h->next) {
        if (h->accumulated != accumulated || !h->fn) continue;
        tg_tensor *given = *g;
        s = h->fn(h->user, t, x, &given);
        if (s == TG_OK) s = t->ctx->run.status;
        if (s != TG_OK)
            s = hook_failed(x, s);
        else if (given != *g && !accumulated)
            s = replace(t, x, g, given);
    }
    t->busy--;
    x->ext->hooks_running--;
    sweep_hooks(x);
    tg_owned_unuse(x);
    tg_tape_set_grad_mode(t, grad);
    return s;
}
