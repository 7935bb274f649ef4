/* Runs modules: the mode and the hooks around each run, the public calls, and the calls of children by the forward of
 * their parent. */
#include "nn/module.h"
#include "placement/grid.h"
#include "tape/tape.h"

/* ---- One run ---- */

/* Returns the mode that m runs in: its own or, if it has none, that of the nearest module that contains m and has a
 * mode. */
static tg_mode mode_of(const tg_module *m) {
    while (m && !m->mode) m = m->parent;
    return m ? m->mode : TG_MODE_TAPE;
}

bool tg_module_use_mode(const tg_module *m, tg_tape *t) {
    tg_mode mode = mode_of(m);
    bool training = tg_is_training(t);
    if (mode) tg_tape_set_training(t, mode == TG_MODE_TRAIN);
    return training;
}

tg_status tg_module_enter(tg_module *m, tg_tape *t, tg_tensor **x, int n, bool *training) {
    *training = tg_module_use_mode(m, t);
    m->running++;
    return m->hooks ? tg_call_hooks_run(m, TG_BEFORE, t, x, n) : m->ctx->run.status;
}

tg_status tg_module_leave(tg_module *m, tg_tape *t, tg_tensor **x, int n, bool training) {
    if (m->hooks && tg_ok(m->ctx)) tg_call_hooks_run(m, TG_AFTER, t, x, n);
    m->running--;
    tg_call_hooks_sweep(m);
    tg_tape_set_training(t, training);
    return m->ctx->run.status;
}

/* Fails unless m can be called with these numbers of tensors. */
static tg_status check_counts(const tg_module *m, int n_in, int n_out, const char *who) {
    bool call = TG_MODULE_OP(m, call);
    if (!call && !m->ops->forward)
        return tg_fail(m->ctx, TG_ERR_UNSUPPORTED, "%s: a module of kind \"%s\" has no forward function", who,
                       m->ops->kind);
    int takes = call ? TG_MODULE_OP(m, n_in) : 1, gives = call ? TG_MODULE_OP(m, n_out) : 1;
    if ((!takes || takes == n_in) && (!gives || gives == n_out)) return TG_OK;
    return tg_fail(m->ctx, TG_ERR_SHAPE,
                   "%s: a module of kind \"%s\" takes %s and gives %s, but the call has %d and %d", who, m->ops->kind,
                   tg_count(takes ? takes : n_in, "input").text, tg_count(gives ? gives : n_out, "output").text, n_in,
                   n_out);
}

/* Calls m's `call`, and checks that `call` has set all outputs. */
static tg_status call_own(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    tg_ctx *ctx = m->ctx;
    for (int i = 0; i < n_out; i++) out[i] = NULL;
    tg_status s = m->ops->call(m, t, in, n_in, out, n_out);
    TG_TRY(ctx->run.status);
    if (s != TG_OK)
        return tg_fail(ctx, TG_ERR_CALLBACK, "the call of a \"%s\" failed with %s", m->ops->kind, tg_status_name(s));
    for (int i = 0; i < n_out; i++) TG_TRY(tg_check(ctx, out[i], "an output of a module"));
    return TG_OK;
}

static tg_status run_own(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    bool one = n_in == 1 && n_out == 1 && m->ops->forward;
    if (!one) return call_own(m, t, in, n_in, out, n_out);
    out[0] = m->ops->forward(m, t, in[0]);
    return m->ctx->run.status;
}

/* Runs m with its mode and hooks. Hooks may replace in[]. Outputs are undefined on an error. */
static tg_status run(tg_module *m, tg_tape *t, tg_tensor **in, int n_in, tg_tensor **out, int n_out) {
    bool training;
    if (tg_module_enter(m, t, in, n_in, &training) == TG_OK) run_own(m, t, in, n_in, out, n_out);
    return tg_module_leave(m, t, out, n_out, training);
}

/* Runs m in a scope that is named after m's kind. Hooks may replace in[]. On error every out[i] is an inert tensor. */
static tg_status run_scoped(tg_module *m, tg_tape *t, tg_tensor **in, int n_in, tg_tensor **out, int n_out,
                            const void *site) {
    tg_status s = tg_scope_open_at(t, m->ops->kind, site);
    if (s == TG_OK) s = run(m, t, in, n_in, out, n_out);
    if (tg_scope_close(t, out, s == TG_OK ? n_out : 0) == TG_OK && s == TG_OK) return TG_OK;
    for (int i = 0; i < n_out; i++) out[i] = tg_inert(m->ctx);
    return m->ctx->run.status;
}

/* ---- Calls from outside ---- */

static tg_status check_tape(const tg_module *m, const tg_tape *t, const char *who) {
    if (t && t->ctx == m->ctx) return TG_OK;
    return tg_fail(m->ctx, t ? TG_ERR_HANDLE : TG_ERR_ARGUMENT, "%s: %s", who,
                   t ? "tape and module are of different contexts" : "the tape is NULL");
}

static tg_tensor *forward(tg_module *m, tg_tape *t, tg_tensor *x, const void *site) {
    tg_tensor *y = NULL;
    if (!tg_module_ok(m) || check_counts(m, 1, 1, "tg_module_forward") != TG_OK ||
        check_tape(m, t, "tg_module_forward") != TG_OK)
        return tg_inert(m->ctx);
    run_scoped(m, t, &x, 1, &y, 1, site);
    return y;
}

tg_tensor *tg_module_forward(tg_module *m, tg_tape *t, tg_tensor *x) {
    if (!m) return tg_inert(&tg_dead_ctx);
    tg_tensor *y = forward(m, t, x, TG_SITE);
    tg_ctx_may_skip(m->ctx);
    return y;
}

static tg_status check_call(const tg_module *m, const tg_tape *t, tg_tensor *const *in, int n_in, int n_out) {
    static const char *const who = "tg_module_call";
    if (!tg_module_ok(m)) return m->ctx->run.status;
    if (n_in < 0 || (n_in && !in) || n_out < 1)
        return tg_fail(m->ctx, TG_ERR_ARGUMENT,
                       "%s: n_in is %d with in %s and n_out is %d, expected an array of n_in tensors, 0 or more, and 1 "
                       "output or more",
                       who, n_in, in ? "not NULL" : "NULL", n_out);
    TG_TRY(check_counts(m, n_in, n_out, who));
    TG_TRY(check_tape(m, t, who));
    for (int i = 0; i < n_in; i++)
        if (in[i]) TG_TRY(tg_check(m->ctx, in[i], who));
    return TG_OK;
}

static tg_status call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out,
                      const void *site) {
    tg_ctx *ctx = m ? m->ctx : (tg_ctx *)&tg_dead_ctx;
    if (!out) return m ? tg_fail(ctx, TG_ERR_ARGUMENT, "tg_module_call: out is NULL") : TG_ERR_ARGUMENT;
    for (int i = 0; i < n_out; i++) out[i] = tg_inert(ctx);
    if (!m) return TG_ERR_ARGUMENT;
    TG_TRY(check_call(m, t, in, n_in, n_out));
    tg_tensor **own = tg_tape_alloc(t, (size_t)n_in * sizeof *own + 1); /* hooks may replace its elements */
    if (!own) return ctx->run.status;
    for (int i = 0; i < n_in; i++) own[i] = in[i];
    uint64_t epoch = t->epoch;
    tg_status s = run_scoped(m, t, own, n_in, out, n_out, site);
    if (t->epoch == epoch) tg_tape_give(t, own, (size_t)n_in * sizeof *own + 1);
    return s;
}

tg_status tg_module_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    tg_status s = call(m, t, in, n_in, out, n_out, TG_SITE);
    if (m) tg_ctx_may_skip(m->ctx);
    return s;
}

tg_status tg_module_set_mode(tg_module *m, tg_mode mode) {
    if (!tg_module_ok(m)) return m ? m->ctx->run.status : TG_ERR_ARGUMENT;
    if ((unsigned)mode > TG_MODE_EVAL)
        return tg_fail(m->ctx, TG_ERR_ARGUMENT,
                       "tg_module_set_mode: mode is %d, expected TG_MODE_TAPE, TG_MODE_TRAIN or TG_MODE_EVAL",
                       (int)mode);
    m->mode = mode;
    return TG_OK;
}

/* ---- Children that a forward needs ---- */

tg_module *tg_module_part(const tg_module *m, const char *name) {
    tg_module *c = tg_module_child(m, name);
    if (c || !m) return c;
    char path[256] = "";
    const tg_module *root = m;
    while (root->parent) root = root->parent;
    if (m != root) tg_module_path(root, m->parent, m->entry, path, sizeof path);
    tg_fail(m->ctx, TG_ERR_STATE, "the %s%s%s%s has no child \"%s\", which its forward needs: that child was freed",
            m->ops->kind, *path ? " \"" : "", path, *path ? "\"" : "", name);
    return NULL;
}

tg_tensor *tg_module_run(const tg_module *m, const char *child, tg_tape *t, tg_tensor *x) {
    tg_module *c = tg_module_part(m, child);
    tg_tensor *y = NULL;
    return c && tg_module_run_call(c, t, &x, 1, &y, 1) == TG_OK && y ? y : tg_inert(t->ctx);
}

tg_status tg_module_run_call(tg_module *m, tg_tape *t, tg_tensor **in, int n_in, tg_tensor **out, int n_out) {
    TG_TRY(check_counts(m, n_in, n_out, n_in == 1 && n_out == 1 ? "tg_module_forward" : "tg_module_call"));
    return run(m, t, in, n_in, out, n_out);
}
