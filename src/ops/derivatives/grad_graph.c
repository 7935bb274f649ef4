/* Reverse mode whose results can be differentiated again. It differs from the pass in backward.c in three ways: it
 * calls an op's vjp instead of its backward, slots hold tensors of the tape, and what a node saved is not released. */
#include "ops/derivatives/grad_graph.h"

#include <tapegrad/ops.h>

#include "autograd/hooks.h"
#include "autograd/saved_tensors.h"
#include "autograd/targets.h"
#include "placement/rule.h"

tg_tensor *tg_full_like(tg_tape *t, const tg_tensor *x, double value) {
    tg_tensor *y = tg_full(t, (tg_dtype)x->dtype, tg_shape_kept(x), value);
    if (tg_is_alive(y)) y->place = tg_placement_of_gradient(x, false);
    return y;
}

tg_tensor *tg_zero_tangent(tg_tape *t, const tg_tensor *x) {
    tg_tensor *y = tg_full(t, (tg_dtype)x->dtype, tg_shape_kept(x), 0);
    if (tg_is_alive(y)) y->place = tg_place_of(x);
    return y;
}

tg_tensor *tg_grad_graph_own(tg_tape *t, tg_tensor *g) { return g->tape ? g : tg_scale(t, g, 1); }

tg_status tg_grad_graph_add(tg_tape *t, tg_slot *s, tg_tensor *g) {
    s->g = s->g ? tg_add(t, s->g, g) : g;
    return t->ctx->run.status;
}

tg_status tg_grad_graph_explain(const tg_node *n, tg_status s) {
    char site[160];
    if (s == TG_OK) return TG_OK;
    tg_ctx *ctx = tg_node_out(n)[0]->ctx;
    tg_describe_site(ctx, tg_scope_site(n->scope, n->site), site, sizeof site);
    tg_fail(ctx, s, "%s: its derivative failed with %s", n->op->name, tg_status_name(s));
    return tg_fail_note(ctx, " (in the derivative of op %s, called from %s)", n->op->name, site);
}

tg_status tg_grad_graph_check(const tg_node *n, const tg_tensor *x, const tg_tensor *g, const char *slot, int i) {
    char want[160], got[160];
    TG_TRY(tg_check(x->ctx, g, slot));
    if (g->dtype == x->dtype && tg_same_shape(g, x)) return TG_OK;
    tg_describe(x, want, sizeof want);
    tg_describe(g, got, sizeof got);
    return tg_fail(x->ctx, TG_ERR_SHAPE,
                   "%s: tensor %d of its %s is %s, expected the shape and dtype of %s", n->op->name,
                   i, slot, got, want);
}

/* ---- Roots ---- */

/* Adds the seed of root i, the gradient with which the pass begins at the root, to the slot of the root's node. It is
 * the caller's seed or, if there is none, tg_placement_seed. */
static tg_status seed_root(tg_pass *p, tg_tensor *root, int i, const char *who) {
    tg_tape *t = p->t;
    tg_tensor *given = p->o->seeds ? p->o->seeds[i] : NULL;
    char what[160];
    tg_node *n = tg_root_node(t, root, i, who);
    if (!n) return t->ctx->run.status;
    if (!tg_pass_needs(p, n)) return TG_OK;
    tg_describe(root, what, sizeof what);
    if (!given && root->numel != 1)
        return tg_fail(t->ctx, TG_ERR_SHAPE,
                       "%s: the root is %s, expected one element; a root of any other size needs a seed", who, what);
    if (given) {
        TG_TRY(tg_seed_check(root, given, who));
        TG_TRY(tg_placement_fits(root, given, who));
    }
    TG_TRY(tg_placement_compare_root(root, given, who));
    if (given)
        given = tg_grad_graph_own(t, given);
    else
        given = tg_full_like(t, root, tg_placement_seed(root));
    TG_TRY(tg_grad_graph_place(t, n, &given, tg_placement_of_gradient(root, false), "seed"));
    return tg_grad_graph_add(t, &tg_node_slots(n)[root->out], given);
}

/* ---- One node ---- */

/* Runs the hooks of x. The ops that they record follow the normal placement rule, not the less strict one of
 * derivatives. */
static tg_status run_hooks(tg_tape *t, tg_tensor *x, tg_tensor **g) {
    bool derives = t->derives;
    t->derives = false;
    tg_status s = tg_hooks_run(t, x, g, false);
    t->derives = derives;
    return s;
}

/* Completes the gradients of n's outputs: runs hooks, sets their placements, and stores them in the targets. Sets *any
 * if there is a gradient. If the op is collective and n is marked TG_N_DUE, missing gradients of float outputs become
 * zeros. */
static tg_status finish_outputs(tg_pass *p, tg_node *n, bool *any) {
    for (int i = 0; i < n->n_out; i++) {
        tg_slot *s = &tg_node_slots(n)[i];
        tg_tensor *x = tg_node_out(n)[i];
        if (!s->g && n->flags & TG_N_DUE && n->op->collective && tg_is_float(x->dtype)) s->g = tg_full_like(p->t, x, 0);
        if (!s->g) continue;
        *any = true;
        if (TG_UNLIKELY(x->ext && x->ext->hooks)) TG_TRY(run_hooks(p->t, x, &s->g));
        /* A sum of REPLICATED contributions is INVARIANT if none of them needs a gradient, so its placement is set. */
        TG_TRY(tg_grad_graph_place(p->t, n, &s->g, tg_placement_of_gradient(x, false), "gradient"));
        tg_target *target = tg_pass_target(p, n, i);
        if (!target) continue;
        target->g = s->g;
        target->reached = true;
    }
    return p->t->ctx->run.status;
}

/* Adds the gradients of n's inputs to the slots of the nodes that made them. */
static tg_status contribute(tg_pass *p, tg_node *n, tg_tensor **gin) {
    tg_node **src = tg_node_src(n);
    for (int i = 0; i < n->n_in; i++) {
        tg_tensor *x = tg_node_in(n)[i];
        if (!tg_pass_needs(p, src[i])) continue;
        if (!gin[i]) { /* the gradient is zero, or tg_vjp_composed has already added it to the slot */
            src[i]->flags |= TG_N_REACHED;
            continue;
        }
        TG_TRY(tg_grad_graph_check(n, x, gin[i], "vjp", i));
        TG_TRY(tg_grad_graph_place(p->t, n, &gin[i], tg_placement_of_gradient(x, false), "gradient"));
        TG_TRY(tg_grad_graph_add(p->t, &tg_node_slots(src[i])[x->out], gin[i]));
    }
    return TG_OK;
}

/* Calls the vjp of n. */
static tg_status derive(tg_pass *p, tg_node *n) {
    tg_tape *t = p->t;
    if (!n->op->vjp)
        return tg_fail(t->ctx, TG_ERR_UNSUPPORTED,
                       "tg_grad: .create_graph needs the vjp slot of every op on the way, and that of op %s is NULL",
                       n->op->name);
    TG_TRY(tg_node_ready(n));
    size_t bytes = ((size_t)n->n_in + n->n_out) * sizeof(tg_tensor *);
    tg_tensor **gin = tg_tape_alloc(t, bytes);
    if (!gin) return t->ctx->run.status;
    tg_tensor **gout = gin + n->n_in;
    for (int i = 0; i < n->n_in; i++) gin[i] = NULL;
    for (int i = 0; i < n->n_out; i++) gout[i] = tg_node_slots(n)[i].g;
    tg_status s = n->op->vjp(t, n, gout, gin);
    if (s == TG_OK) s = t->ctx->run.status;
    if (s == TG_OK) s = contribute(p, n, gin);
    tg_tape_give(t, gin, bytes);
    return s;
}

/* Completes the gradients of n's outputs. If there is one, and a gradient of an input is wanted, calls n's vjp. */
static tg_status run_node(tg_pass *p, tg_node *n) {
    bool any = false;
    if (p->t->collectives) tg_pass_note_due(p, n);
    TG_TRY(finish_outputs(p, n, &any));
    n->flags &= ~TG_N_DUE;
    if (!any || n->flags & TG_N_LEAF || !tg_pass_leads_on(p, n)) return TG_OK;
    return tg_grad_graph_explain(n, derive(p, n));
}

/* Does nothing unless n is marked TG_N_REACHED, which says that its gradient may be a zero that is not stored as a
 * tensor. Marks the targets among the outputs of n as reached. Removes the mark from n and sets it on the nodes that
 * made the inputs of n, whose gradients may then be such zeros too. */
static void pass_zero(const tg_pass *p, tg_node *n) {
    if (!(n->flags & TG_N_REACHED)) return;
    n->flags &= ~TG_N_REACHED;
    for (int i = 0; i < n->n_out; i++) {
        tg_target *target = tg_pass_target(p, n, i);
        if (target) target->reached = true;
    }
    for (int i = 0; i < n->n_in; i++)
        if (tg_pass_needs(p, tg_node_src(n)[i])) tg_node_src(n)[i]->flags |= TG_N_REACHED;
}

static void clear_slots(tg_node *n) {
    for (int i = 0; i < n->n_out; i++) tg_node_slots(n)[i] = (tg_slot){0};
}

/* Runs the nodes from `from` back to `end`, not including `end`. New nodes, which the derivatives record, are appended
 * after `from`, so the loop does not meet them. */
static tg_status run_nodes(tg_pass *p, tg_node *from, const tg_node *end) {
    for (tg_node *n = from; n != end; n = n->prev) {
        if (!tg_pass_needs(p, n)) continue;
        bool reached = n->flags & TG_N_DUE;
        for (int i = 0; i < n->n_out && !reached; i++) reached = tg_node_slots(n)[i].g;
        if (reached) TG_TRY(run_node(p, n));
        pass_zero(p, n);
        clear_slots(n);
    }
    return TG_OK;
}

/* ---- The pass ---- */

/* Finds the targets' nodes, marks the nodes that lead to them, seeds the roots, and runs the nodes that the tape had
 * before the seeds were recorded. */
static tg_status seed_and_run(tg_pass *p, tg_tensor *const *roots, int n, const char *who) {
    /* A root may be a leaf that no op has used. Its node must exist before nodes are marked. */
    for (int i = 0; i < n; i++) {
        TG_TRY(tg_check(p->t->ctx, roots[i], who));
        if (!tg_root_node(p->t, roots[i], i, who)) return p->t->ctx->run.status;
    }
    TG_TRY(tg_pass_find_targets(p));
    tg_pass_mark(p);
    tg_node *last = p->t->last;
    for (int i = 0; i < n; i++) TG_TRY(seed_root(p, roots[i], i, who));
    return run_nodes(p, last, NULL);
}

/* Runs the pass in grad mode, and restores the tape's state afterward. After an error, empties the slots and removes
 * the marks of all nodes. */
static tg_status run(tg_pass *p, tg_tensor *const *roots, int n, const char *who) {
    tg_tape *t = p->t;
    tg_pass *outer = t->grad_graph;
    bool grad = t->grad, derives = t->derives;
    t->grad_graph = p;
    t->grad = t->derives = true;
    tg_status s = seed_and_run(p, roots, n, who);
    t->grad = grad;
    t->derives = derives;
    t->grad_graph = outer;
    for (tg_node *m = t->last; s != TG_OK && m; m = m->prev) {
        clear_slots(m);
        m->flags &= ~(TG_N_DUE | TG_N_REACHED);
    }
    return s;
}

const tg_pass_ops tg_grad_graph = {run, tg_grad_graph_own};

/* ---- Ops that are compositions of other ops ---- */

/* Inverts the requires_grad flag of each input i of n for which changed[i] is true. If `then` is true, first sets
 * changed[i] to whether the flag differs from its value at the time when n was recorded. */
static void flip_needs(const tg_node *n, bool *changed, bool then) {
    for (int i = 0; i < n->n_in; i++) {
        tg_tensor *x = tg_node_in(n)[i];
        if (then) changed[i] = x && !tg_node_src(n)[i] != !(x->flags & TG_F_REQUIRES_GRAD);
        if (changed[i]) x->flags ^= TG_F_REQUIRES_GRAD;
    }
}

bool *tg_needs_then(tg_tape *t, const tg_node *n) {
    bool *changed = tg_tape_alloc(t, n->n_in * sizeof *changed + 1);
    if (changed) flip_needs(n, changed, true);
    return changed;
}

void tg_needs_now(const tg_node *n, bool *changed) { flip_needs(n, changed, false); }

tg_status tg_compose(tg_tape *t, const tg_node *n, tg_compose_fn f, tg_tensor **out) {
    bool *changed = tg_needs_then(t, n);
    if (!changed) return t->ctx->run.status;
    tg_status s = f(t, n, out);
    tg_needs_now(n, changed);
    tg_tape_give(t, changed, n->n_in * sizeof *changed + 1);
    return s == TG_OK ? t->ctx->run.status : s;
}

/* Composes n, whose outputs out[] receives, and runs the pass over the recorded nodes. */
static tg_status run_composed(tg_pass *p, const tg_node *n, tg_tensor *const *gout, tg_compose_fn f, tg_tensor **out) {
    tg_tape *t = p->t;
    const tg_node *before = t->last;
    for (int i = 0; i < n->n_out; i++) out[i] = NULL;
    TG_TRY(tg_compose(t, n, f, out));
    for (tg_node *m = before ? before->next : t->first; m; m = m->next)
        if (tg_pass_leads_on(p, m)) m->pass = p->id;
    for (int i = 0; i < n->n_out; i++) {
        /* If f has returned a leaf as an output, this is the leaf's node. */
        tg_node *made = gout[i] && tg_is_alive(out[i]) ? tg_tape_node_of(t, out[i]) : NULL;
        if (!tg_pass_needs(p, made)) continue;
        tg_tensor *g = gout[i];
        TG_TRY(tg_grad_graph_check(n, tg_node_out(n)[i], out[i], "composition", i));
        TG_TRY(tg_grad_graph_place(t, n, &g, tg_placement_of_gradient(out[i], false), "gradient"));
        TG_TRY(tg_grad_graph_add(t, &tg_node_slots(made)[out[i]->out], g));
    }
    return run_nodes(p, t->last, before);
}

tg_status tg_vjp_composed(tg_tape *t, const tg_node *n, tg_tensor *const *gout, tg_compose_fn f) {
    if (!t || !n || !gout || !f) return TG_ERR_ARGUMENT;
    tg_pass *p = t->grad_graph;
    if (!p)
        return tg_fail(t->ctx, TG_ERR_STATE, "tg_vjp_composed: outside of a vjp; call it only in the vjp slot of an "
                       "op");
    size_t bytes = (size_t)n->n_out * sizeof(tg_tensor *);
    tg_tensor **out = tg_tape_alloc(t, bytes);
    if (!out) return t->ctx->run.status;
    tg_status s = run_composed(p, n, gout, f, out);
    tg_tape_give(t, out, bytes);
    return s;
}
