/* Forward mode: tangents pass through the recorded nodes in order. Each op's jvp computes the tangents of its
 * outputs by recording ops. During the pass the slots of a node hold the tangents of its outputs. */
#include <tapegrad/backward.h>

#include "placement/rule.h"
#include "ops/derivatives/grad_graph.h"
#include "autograd/saved_tensors.h"

/* One pass of tangents over a tape. */
typedef struct tangents {
    tg_tape *t;
    uint32_t id; /* number of the pass; `pass` of the nodes that lead to an output is set to it */
} tangents;

/* Gives the nodes that lead to an output the number of the pass. Goes backward, because the users of a node come after
 * it. */
static void mark(const tangents *w, tg_tensor *const *outs, int n_outs) {
    for (int i = 0; i < n_outs; i++) {
        tg_node *n = tg_tape_node_of(w->t, outs[i]);
        if (n) n->pass = w->id;
    }
    for (tg_node *n = w->t->last; n; n = n->prev) {
        if (n->pass != w->id) continue;
        for (int i = 0; i < n->n_in; i++)
            if (tg_node_src(n)[i]) tg_node_src(n)[i]->pass = w->id;
    }
}

/* Does what push does, with memory for the tangents of the inputs and outputs. */
static tg_status push_with(const tangents *w, tg_node *n, tg_tensor **din, tg_tensor **dout) {
    tg_tape *t = w->t;
    bool any = false;
    for (int i = 0; i < n->n_in; i++) {
        const tg_node *src = tg_node_src(n)[i];
        din[i] = src ? tg_node_slots(src)[tg_node_in(n)[i]->out].g : NULL;
        any |= din[i] != NULL;
    }
    for (int i = 0; i < n->n_out; i++) dout[i] = NULL;
    if (!any && !n->op->collective) return TG_OK;
    if (!n->op->jvp)
        return tg_fail(t->ctx, TG_ERR_UNSUPPORTED, "tg_jvp: op %s has no forward derivative (its jvp slot)",
                       n->op->name);
    TG_TRY(tg_node_ready(n));
    tg_status s = n->op->jvp(t, n, din, dout);
    TG_TRY(s == TG_OK ? t->ctx->run.status : s);
    for (int i = 0; i < n->n_out; i++) {
        if (!dout[i]) continue;
        TG_TRY(tg_grad_graph_check(n, tg_node_out(n)[i], dout[i], "jvp", i));
        TG_TRY(tg_grad_graph_place(t, n, &dout[i], tg_place_of(tg_node_out(n)[i]), "tangent"));
        TG_TRY(tg_grad_graph_add(t, &tg_node_slots(n)[i], dout[i]));
    }
    return TG_OK;
}

/* Computes the tangents of n's outputs from those of its inputs. Does nothing if the tangents of all inputs are zero,
 * except for a collective op, which runs on every rank. */
static tg_status push(const tangents *w, tg_node *n) {
    size_t bytes = ((size_t)n->n_in + n->n_out) * sizeof(tg_tensor *);
    tg_tensor **din = tg_tape_alloc(w->t, bytes);
    if (!din) return w->t->ctx->run.status;
    tg_status s = push_with(w, n, din, din + n->n_in);
    tg_tape_give(w->t, din, bytes);
    return s;
}

/* Calls push for the nodes from `from` to `to`, both included, that have the number of the pass and are no leaves. */
static tg_status push_all(const tangents *w, tg_node *from, const tg_node *to) {
    for (tg_node *n = from; n; n = n->next) {
        if (n->pass == w->id && !(n->flags & TG_N_LEAF)) TG_TRY(tg_grad_graph_explain(n, push(w, n)));
        if (n == to) break;
    }
    return TG_OK;
}

static tg_status check_call(tg_tape *t, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                            tg_tensor *const *din, tg_tensor *const *dout, const char *who) {
    tg_ctx *ctx = t->ctx;
    if (n_outs <= 0 || n_in <= 0 || !outs || !inputs || !din || !dout)
        return tg_fail(ctx, TG_ERR_ARGUMENT,
                       "%s: %s, %s, expected one or more of each; outs, inputs, din and dout must not be NULL", who,
                       tg_count(n_outs, "output").text, tg_count(n_in, "input").text);
    if (t->in_backward) return tg_fail(ctx, TG_ERR_STATE, "%s: a backward of this tape is running", who);
    if (t->tangents) return tg_fail(ctx, TG_ERR_STATE, "%s: a tg_jvp of this tape is running", who);
    if (t->collects)
        return tg_fail(ctx, TG_ERR_UNSUPPORTED,
                       "%s: the first run of a recomputed function keeps no nodes that tangents could go through; call "
                       "it outside of tg_recompute",
                       who);
    for (int i = 0; i < n_outs; i++) {
        TG_TRY(tg_check(ctx, outs[i], who));
        if (outs[i]->tape && outs[i]->tape != t)
            return tg_fail(ctx, TG_ERR_HANDLE, "%s: output %d is a result of another tape", who, i);
    }
    TG_TRY(tg_check_inputs(t, inputs, n_in, who));
    for (int i = 0; i < n_in; i++)
        for (int j = 0; j < i; j++)
            if (inputs[j] == inputs[i])
                return tg_fail(ctx, TG_ERR_ARGUMENT, "%s: inputs %d and %d are the same tensor", who, j, i);
    return TG_OK;
}

/* Returns whether tangent d has the placement of x. INVARIANT and REPLICATED count as equal, because a tangent has the
 * same bytes on every rank with either. */
static bool placed_alike(const tg_tensor *d, const tg_tensor *x) {
    for (int a = 0; tg_place_of(d) != tg_place_of(x) && a < TG_MAX_AXES; a++) {
        tg_placement is = tg_place_on(d, (tg_axis)a), want = tg_place_on(x, (tg_axis)a);
        bool same = is.kind == TG_INVARIANT || is.kind == TG_REPLICATED;
        if (same ? want.kind != TG_INVARIANT && want.kind != TG_REPLICATED
                 : is.kind != want.kind || is.layout != want.layout || is.dim != want.dim || is.chunks != want.chunks)
            return false;
    }
    return true;
}

/* Checks the caller's tangents and puts them into the slots of the inputs' nodes. An input that this tape has not used
 * has no node; its tangent is not checked and has no effect. */
static tg_status put_tangents(const tangents *w, tg_tensor *const *inputs, int n, tg_tensor *const *din,
                              const char *who) {
    for (int i = 0; i < n; i++) {
        tg_node *node = tg_tape_node_of(w->t, inputs[i]);
        if (!din[i] || !node) continue;
        char want[160], got[160];
        TG_TRY(tg_check(w->t->ctx, din[i], who));
        tg_describe(inputs[i], want, sizeof want);
        tg_describe(din[i], got, sizeof got);
        if (din[i]->dtype != inputs[i]->dtype || !tg_same_shape(din[i], inputs[i]))
            return tg_fail(w->t->ctx, TG_ERR_SHAPE, "%s: tangent %d is %s, expected the input's shape and dtype, %s",
                           who, i, got, want);
        if (!placed_alike(din[i], inputs[i]))
            return tg_fail(w->t->ctx, TG_ERR_PLACEMENT,
                           "%s: tangent %d is %s, but its input is placed as %s; place the tangent like its input",
                           who, i, got, want);
        tg_tensor *own = tg_grad_graph_own(w->t, din[i]);
        TG_TRY(tg_grad_graph_place(w->t, node, &own, tg_place_of(inputs[i]), "tangent"));
        TG_TRY(tg_grad_graph_add(w->t, &tg_node_slots(node)[inputs[i]->out], own));
    }
    return TG_OK;
}

static tg_status run(const tangents *w, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                     tg_tensor *const *din, tg_tensor **dout, const char *who) {
    mark(w, outs, n_outs);
    TG_TRY(put_tangents(w, inputs, n_in, din, who));
    TG_TRY(push_all(w, w->t->first, w->t->last));
    for (int i = 0; i < n_outs; i++) {
        const tg_node *n = tg_tape_node_of(w->t, outs[i]);
        tg_tensor *d = n ? tg_node_slots(n)[outs[i]->out].g : NULL;
        /* A sum of REPLICATED tangents may have become INVARIANT, so its placement is set. */
        if (d) TG_TRY(tg_grad_graph_place(w->t, n, &d, tg_place_of(outs[i]), "tangent"));
        /* The caller gets a handle of its own, because d may be a tensor that the caller already has. */
        dout[i] = d ? tg_grad_graph_view(w->t, d) : tg_zero_tangent(w->t, outs[i]);
    }
    return w->t->ctx->run.status;
}

static void clear(tg_tape *t) {
    for (tg_node *n = t->first; n; n = n->next)
        for (int i = 0; i < n->n_out; i++) tg_node_slots(n)[i] = (tg_slot){0};
}

/* Sets the tape's state for a pass of tangents, and restores it afterward. tg_jvp_composed reads the number of the pass
 * from t->tangents. */
static tg_status jvp(tg_tape *t, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                     tg_tensor *const *din, tg_tensor **dout, const char *who) {
    TG_TRY(tg_tape_check_with(t, outs, n_outs, who));
    TG_TRY(check_call(t, outs, n_outs, inputs, n_in, din, dout, who));
    tangents w = {t, ++t->pass};
    bool derives = t->derives;
    t->tangents = w.id;
    t->derives = true;
    t->busy++;
    tg_status s = run(&w, outs, n_outs, inputs, n_in, din, dout, who);
    t->busy--;
    t->derives = derives;
    t->tangents = 0;
    clear(t);
    return s;
}

/* Returns s. After an error, sets each out[i] to an inert tensor (tapegrad.h), and notifies the other ranks if this
 * rank may have skipped a call in which they wait. */
static tg_status ended(tg_tape *t, tg_tensor *const *given, tg_status s, tg_tensor **out, int n) {
    if (s == TG_OK) return s;
    if (t && t->collectives) tg_ctx_skip(t->ctx);
    for (int i = 0; out && i < n; i++) out[i] = tg_tape_inert(t, given, 1);
    return s;
}

tg_status tg_jvp(tg_tape *t, tg_tensor *const *outs, int n_outs, tg_tensor *const *inputs, int n_in,
                 tg_tensor *const *din, tg_tensor **dout) {
    return ended(t, outs, jvp(t, outs, n_outs, inputs, n_in, din, dout, "tg_jvp"), dout, n_outs);
}

/* Computes the gradient in reverse mode, then its tangent in forward mode (Pearlmutter, Fast Exact Multiplication by
 * the Hessian, 1994). Between the two, hv[] holds the gradients. */
static tg_status hvp(tg_tape *t, tg_tensor *root, tg_tensor *const *inputs, int n, tg_tensor *const *v,
                     tg_tensor **hv) {
    TG_TRY(tg_tape_check_with(t, &root, 1, "tg_hvp"));
    if (n <= 0 || !inputs || !v || !hv)
        return tg_fail(t->ctx, TG_ERR_ARGUMENT, "tg_hvp: %s, expected one or more; inputs, v and hv must not be NULL",
                       tg_count(n, "input").text);
    TG_TRY(tg_check(t->ctx, root, "tg_hvp"));
    if (root->numel != 1) {
        char what[160];
        tg_describe(root, what, sizeof what);
        return tg_fail(t->ctx, TG_ERR_SHAPE, "tg_hvp: the root is %s, expected one element", what);
    }
    TG_TRY(tg_grad(t, &root, 1, inputs, n, hv, TG_GRAD(.create_graph = true, .allow_unused = true)));
    tg_tensor **g = tg_tape_alloc(t, (size_t)n * sizeof *g);
    if (!g) return t->ctx->run.status;
    memcpy(g, hv, (size_t)n * sizeof *g);
    tg_status s = jvp(t, g, n, inputs, n, v, hv, "tg_hvp");
    tg_tape_give(t, g, (size_t)n * sizeof *g);
    return s;
}

tg_status tg_hvp(tg_tape *t, tg_tensor *root, tg_tensor *const *inputs, int n, tg_tensor *const *v, tg_tensor **hv) {
    return ended(t, &root, hvp(t, root, inputs, n, v, hv), hv, n);
}

/* ---- Ops that are compositions of other ops ---- */

/* Composes n, whose outputs out[] receives, and pushes the tangents through the recorded nodes. */
static tg_status push_composed(tg_tape *t, const tg_node *n, tg_tensor **dout, tg_compose_fn f, tg_tensor **out) {
    tangents w = {t, t->tangents};
    tg_node *before = t->last;
    for (int i = 0; i < n->n_out; i++) out[i] = NULL;
    bool grad = tg_tape_set_grad_mode(t, true); /* nodes are recorded only with grad on */
    tg_status s = tg_compose(t, n, f, out);
    tg_tape_set_grad_mode(t, grad);
    TG_TRY(s);
    tg_node *first = before ? before->next : t->first;
    for (tg_node *m = first; m; m = m->next) m->pass = w.id;
    if (first) TG_TRY(push_all(&w, first, t->last));
    for (int i = 0; i < n->n_out; i++) {
        /* If f has returned a leaf as an output, this is the leaf's node. */
        const tg_node *made = tg_is_alive(out[i]) ? tg_tape_node_of(t, out[i]) : NULL;
        if (made) dout[i] = tg_node_slots(made)[out[i]->out].g;
    }
    return TG_OK;
}

tg_status tg_jvp_composed(tg_tape *t, const tg_node *n, tg_tensor **dout, tg_compose_fn f) {
    if (!t || !n || !dout || !f) return TG_ERR_ARGUMENT;
    if (!t->tangents)
        return tg_fail(t->ctx, TG_ERR_STATE, "tg_jvp_composed: outside of a jvp; call it only in the jvp slot of an "
                       "op");
    size_t bytes = (size_t)n->n_out * sizeof(tg_tensor *);
    tg_tensor **out = tg_tape_alloc(t, bytes);
    if (!out) return t->ctx->run.status;
    tg_status s = push_composed(t, n, dout, f, out);
    tg_tape_give(t, out, bytes);
    return s;
}
