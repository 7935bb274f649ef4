/* Hooks on modules: added, removed, and run before and after each run of a module's forward. */
#include "base/callback.h"
#include "base/memory/host_memory.h"
#include "nn/module.h"
#include "tape/tape.h"

struct tg_call_hook {
    tg_call_hook *next;
    uint64_t id;
    tg_module_when when;
    tg_module_fn fn; /* NULL: the hook was removed, but is kept in the list while the module runs */
    void *user;
};

uint64_t tg_module_hook(tg_module *m, tg_module_when when, tg_module_fn fn, void *user) {
    if (!tg_module_ok(m)) return 0;
    if (!fn || (unsigned)when > TG_AFTER) {
        tg_fail(m->ctx, TG_ERR_ARGUMENT,
                "tg_module_hook: when is %d and fn is %s, expected TG_BEFORE or TG_AFTER and a "
                "function",
                (int)when, fn ? "not NULL" : "NULL");
        return 0;
    }
    tg_call_hook *h = tg_host_alloc(m->ctx, sizeof *h), **end = &m->hooks;
    if (!h) return 0;
    *h = (tg_call_hook){.id = ++m->last_hook, .when = when, .fn = fn, .user = user};
    while (*end) end = &(*end)->next;
    *end = h;
    return h->id;
}

bool tg_call_hook_drop(tg_module *m, uint64_t id) {
    for (tg_call_hook *h = m->hooks; h; h = h->next) {
        if (h->id != id || !h->fn) continue;
        h->fn = NULL;
        tg_call_hooks_sweep(m);
        return true;
    }
    return false;
}

tg_status tg_module_unhook(tg_module *m, uint64_t id) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    if (tg_call_hook_drop(m, id)) return TG_OK;
    return tg_fail(m->ctx, TG_ERR_ARGUMENT, "tg_module_unhook: the \"%s\" has no hook %llu", m->ops->kind,
                   (unsigned long long)id);
}

void tg_call_hooks_sweep(tg_module *m) {
    if (m->running) return;
    for (tg_call_hook **h = &m->hooks; *h;) {
        tg_call_hook *gone = *h;
        if (gone->fn) {
            h = &gone->next;
            continue;
        }
        *h = gone->next;
        tg_host_free(m->ctx, gone, sizeof *gone);
    }
}

void tg_call_hooks_free(tg_module *m) {
    for (tg_call_hook *h = m->hooks, *next; h; h = next) {
        next = h->next;
        tg_host_free(m->ctx, h, sizeof *h);
    }
}

/* ---- Running ---- */

static const char *what(tg_module_when when) { return when == TG_BEFORE ? "input" : "output"; }

/* Fails unless a hook may replace a tensor of shape `was` by x. */
static tg_status check_replaced(const tg_module *m, tg_module_when when, int i, const tg_tensor *x, tg_shape was) {
    char want[96], got[96];
    TG_TRY(tg_check(m->ctx, x, "a module hook's tensor"));
    if (x->ndim == was.ndim && !memcmp(x->shape, was.dim, x->ndim * sizeof *x->shape)) return TG_OK;
    tg_shape_text((int)was.ndim, was.dim, want, sizeof want);
    tg_shape_text(x->ndim, x->shape, got, sizeof got);
    return tg_fail(m->ctx, TG_ERR_SHAPE,
                   "a hook of a \"%s\" has replaced %s %d of shape %s by one of shape %s; a hook must keep the shape",
                   m->ops->kind, what(when), i, want, got);
}

static tg_status run_one(tg_module *m, const tg_call_hook *h, tg_tape *t, tg_tensor **x, const tg_shape *was, int n) {
    t->busy++; /* a hook must not reset the tape */
    tg_status s = h->fn(h->user, m, t, x, n);
    t->busy--;
    TG_TRY(tg_callback_end(m->ctx, s, "a hook of a \"%s\"", m->ops->kind));
    for (int i = 0; i < n; i++)
        if (was[i].ndim >= 0) TG_TRY(check_replaced(m, h->when, i, x[i], was[i]));
    return TG_OK;
}

/* Copies the shapes of x[n] to memory of the tape; an absent tensor gets ndim -1. Returns NULL after recording the
 * error. */
static tg_shape *shapes_of(tg_tape *t, tg_tensor *const *x, int n) {
    tg_shape *s = tg_tape_alloc(t, (size_t)n * sizeof *s + 1);
    for (int i = 0; s && i < n; i++) s[i] = x[i] ? tg_shape_of(x[i]) : (tg_shape){.ndim = -1};
    return s;
}

tg_status tg_call_hooks_run(tg_module *m, tg_module_when when, tg_tape *t, tg_tensor **x, int n) {
    TG_TRY(m->ctx->run.status);
    const tg_shape *was = shapes_of(t, x, n);
    if (!was) return m->ctx->run.status;
    for (const tg_call_hook *h = m->hooks; h; h = h->next)
        if (h->when == when && h->fn) TG_TRY(run_one(m, h, t, x, was, n));
    return TG_OK;
}
