/* Captured modules: graphs for each module instead of one for a whole step, after Megatron-Core's
 * GraphableMegatronModule and PyTorch's make_graphed_callables. A slot holds one graph of a forward and its backward,
 * and serves one micro-batch at a time. */
#include "nn/captured/captured.h"

#include "base/memory/host_memory.h"
#include "base/text.h"
#include "placement/placing.h"
#include "tape/tape.h"

/* MOST_SLOTS is the number of graphs that a context can have. MOST_INPUTS is 31, because bit 31 in the bit masks of
 * tg_op stands for all inputs from number 31 on, and these must all be leaves. */
enum { MOST_SLOTS = 255, MOST_INPUTS = 31 };

static const char *const who = "captured module";

/* ---- Calls ---- */

static tg_status check_input(const tg_captured *s, const tg_tensor *x, int i) {
    const tg_shape *want = &s->shape[i];
    char shape[160], got[160];
    if (!x) return tg_fail(s->ctx, TG_ERR_ARGUMENT, "%s: input %d is NULL, expected a tensor", who, i);
    bool same = x->ndim == want->ndim;
    for (int d = 0; same && d < want->ndim; d++) same = x->shape[d] == want->dim[d];
    if (same && x->dtype == s->dtype[i]) return TG_OK;
    tg_describe(x, got, sizeof got);
    tg_shape_text(want->ndim, want->dim, shape, sizeof shape);
    return tg_fail(s->ctx, same ? TG_ERR_DTYPE : TG_ERR_SHAPE,
                   "%s: input %d is %s, expected %s%s, for which the module was made", who, i, got,
                   tg_dtype_name(s->dtype[i]), shape);
}

static tg_status check_inputs(const tg_captured *s, tg_tensor *const *in, int n_in) {
    if (n_in != s->n_in)
        return tg_fail(s->ctx, TG_ERR_SHAPE, "%s: the call has %d inputs, but tg_captured_new was given %d", who, n_in,
                       s->n_in);
    for (int i = 0; i < n_in; i++) TG_TRY(check_input(s, in[i], i));
    return TG_OK;
}

/* Returns whether a call on t is one that graphs serve: a training run that keeps nodes, outside of a captured step. An
 * observer sees the ops of a module only if they run one by one. */
static bool uses_graphs(const tg_tape *t) {
    return tg_can_record(t->ctx) && !t->ctx->capture && t->grad && t->training && !t->observer.ops;
}

static tg_status check_free(const tg_captured_slot *s, uint64_t micro) {
    if (!s->use) return TG_OK;
    return tg_fail(s->of->ctx, TG_ERR_STATE,
                   "%s: slot %d is in use by micro-batch %llu, whose backward has not run, so micro-batch %llu cannot "
                   "use it; run that backward, reset its tape, or give tg_captured_new more slots than the %d of now",
                   who, (int)(s - s->of->slot), (unsigned long long)s->micro, (unsigned long long)micro,
                   s->of->n_slots);
}

/* Returns whether what was recorded can still run, and is what m computes now: its communicators have not ended, its
 * parameters exist, and m has the settings of the recording. */
static bool is_current(const tg_captured_slot *s, const tg_module *m) {
    bool current = s->graph && !tg_graph_has_ended(s->graph) && s->settings == tg_captured_settings(m);
    for (int i = 0; current && i < s->n_leaves; i++) current = s->leaf[i].tensor->serial == s->leaf[i].serial;
    return current;
}

/* Fails if an input or the number of outputs differs from the recording in what the graph depends on. */
static tg_status check_recorded(const tg_captured_slot *s, tg_tensor *const *in, int n_out) {
    tg_ctx *ctx = s->of->ctx;
    char got[160];
    if (n_out != s->n_out)
        return tg_fail(ctx, TG_ERR_SHAPE, "%s: the call has %d outputs, but the one that was captured had %d", who,
                       n_out, s->n_out);
    for (int i = 0; i < s->of->n_in; i++) {
        bool needs = in[i]->flags & TG_F_REQUIRES_GRAD, needed = s->in[i]->flags & TG_F_REQUIRES_GRAD;
        if ((!needs || needed) && tg_place_of(in[i]) == s->in[i]->place) continue;
        tg_describe(in[i], got, sizeof got);
        if (needs && !needed)
            return tg_fail(ctx, TG_ERR_STATE,
                           "%s: input %d, %s, needs a gradient, but the one that was captured needed none", who, i,
                           got);
        return tg_fail(ctx, TG_ERR_PLACEMENT, "%s: input %d, %s, has another placement than the one that was captured",
                       who, i, got);
    }
    return TG_OK;
}

static tg_status captured_call(tg_module *m, tg_tape *t, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    tg_captured *c = m->state;
    tg_captured_slot *s = &c->slot[t->micro % (uint64_t)c->n_slots];
    const void *site = tg_scope_site(t->scope, TG_SITE);
    tg_module *inner = tg_module_part(m, "");
    if (!inner) return m->ctx->run.status;
    TG_TRY(check_inputs(c, in, n_in));
    if (!uses_graphs(t)) return tg_module_call(inner, t, in, n_in, out, n_out);
    TG_TRY(check_free(s, t->micro));
    if (!is_current(s, inner)) {
        tg_captured_clear(s);
        TG_TRY(tg_captured_record(s, m, t, in, n_out, site));
    }
    TG_TRY(check_recorded(s, in, n_out));
    /* The second run of a recomputation leaves buffers as they are, which a graph that writes them does not. */
    if (t->again && tg_graph_changes_state(s->graph))
        return tg_module_call(inner, t, in, n_in, out, n_out);
    return tg_captured_run(s, t, in, out, site);
}

/* ---- The module ---- */

void tg_captured_unref(tg_captured *c) {
    tg_ctx *ctx = c->ctx;
    if (--c->refs > 0) return;
    for (int i = 0; c->slot && i < c->n_slots; i++) tg_captured_clear(&c->slot[i]);
    tg_host_free(ctx, c->slot, (size_t)c->n_slots * sizeof *c->slot);
    tg_host_free(ctx, c->shape, (size_t)c->n_in * sizeof *c->shape);
    tg_host_free(ctx, c->dtype, (size_t)c->n_in * sizeof *c->dtype);
    tg_host_free(ctx, c, sizeof *c);
}

static void captured_free(void *state) { tg_captured_unref(state); }

static size_t captured_describe(const tg_module *m, char *buf, size_t n) {
    const tg_captured *c = m->state;
    size_t at = 0;
    tg_text(buf, n, &at, "%s", tg_count(c->n_slots, "slot").text);
    return at;
}

static const tg_module_ops captured_ops = {.size = sizeof(tg_module_ops),
                                           .kind = "captured",
                                           .free = captured_free,
                                           .call = captured_call,
                                           .describe = captured_describe};

static tg_dtype dtype_of(const tg_ctx *ctx, tg_dtype given) { return given == TG_DTYPE_DEFAULT ? ctx->dtype : given; }

static tg_status check_new(tg_ctx *ctx, const tg_shape *in, const tg_dtype *dtypes, int n_in, int slots) {
    if (slots < 1 || slots > MOST_SLOTS)
        return tg_fail(ctx, TG_ERR_ARGUMENT, "tg_captured_new: slots is %d, expected 1 to %d", slots, MOST_SLOTS);
    if (n_in < 1 || n_in > MOST_INPUTS || !in || !dtypes)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "tg_captured_new: n_in is %d, in is %s and dtypes is %s; expected 1 to %d inputs with their "
                       "shapes and dtypes",
                       n_in, in ? "not NULL" : "NULL", dtypes ? "not NULL" : "NULL", MOST_INPUTS);
    for (int i = 0; i < n_in; i++) {
        char what[64];
        size_t at = 0;
        tg_text(what, sizeof what, &at, "tg_captured_new: input %d", i);
        TG_TRY(tg_shape_check(ctx, &in[i], dtype_of(ctx, dtypes[i]), what));
    }
    return TG_OK;
}

/* Returns the state of a captured module, or NULL after recording the error. */
static tg_captured *new_state(tg_ctx *ctx, const tg_shape *in, const tg_dtype *dtypes, int n_in, int slots) {
    tg_captured *c = tg_host_alloc(ctx, sizeof *c);
    if (!c) return NULL;
    *c = (tg_captured){.ctx = ctx, .refs = 1, .n_in = n_in, .n_slots = slots};
    c->shape = tg_host_alloc(ctx, (size_t)n_in * sizeof *c->shape);
    c->dtype = tg_host_alloc(ctx, (size_t)n_in * sizeof *c->dtype);
    c->slot = tg_host_alloc(ctx, (size_t)slots * sizeof *c->slot);
    for (int i = 0; c->slot && i < slots; i++) c->slot[i] = (tg_captured_slot){.of = c};
    if (!c->shape || !c->dtype || !c->slot) {
        tg_captured_unref(c);
        return NULL;
    }
    memcpy(c->shape, in, (size_t)n_in * sizeof *in);
    for (int i = 0; i < n_in; i++) c->dtype[i] = dtype_of(ctx, dtypes[i]);
    return c;
}

/* Returns a captured module that holds no module yet, or an inert one after an error. */
static tg_module *wrapper(tg_ctx *ctx, const tg_shape *in, const tg_dtype *dtypes, int n_in, int slots) {
    bool fine = ctx && tg_ok(ctx) && check_new(ctx, in, dtypes, n_in, slots) == TG_OK;
    tg_captured *c = fine ? new_state(ctx, in, dtypes, n_in, slots) : NULL;
    return tg_module_new(c ? ctx : NULL, &captured_ops, c);
}

bool tg_is_captured(const tg_module *m) { return m->ops == &captured_ops; }

tg_module *tg_captured_new(tg_module *m, const tg_shape *in, const tg_dtype *dtypes, int n_in, int slots) {
    tg_module *w = wrapper(tg_module_ok(m) ? m->ctx : NULL, in, dtypes, n_in, slots);
    if (tg_module_ok(w) && tg_module_wrap_in_place(w, m) == TG_OK) return w;
    tg_module_free(w);
    if (m && !m->parent) tg_module_free(m);
    return tg_module_new(NULL, &captured_ops, NULL);
}
