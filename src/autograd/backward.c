/* The executor: runs backward from the roots to the leaves, in the reverse of the recorded order.
 *
 * A node runs once, after all nodes that use its outputs, because those were recorded later. Contributions to one
 * gradient are summed in the order in which they arrive; those that a tg_work is still filling are added last. The node
 * that stands for a leaf is recorded right before the first op that uses the leaf. So the leaf's hooks run after the
 * last contribution to its gradient, and before any node that was recorded earlier. */
#include "autograd/backward.h"
#include "base/text.h"

#include "autograd/grad_sink.h"
#include "autograd/gradients.h"
#include "autograd/hooks.h"
#include "autograd/saved_tensors.h"
#include "autograd/targets.h"
#include "base/memory/host_memory.h"
#include "base/os.h"
#include "placement/rule.h"

/* ---- Finding the needed nodes ---- */

tg_node *tg_tape_node_of(const tg_tape *t, const tg_tensor *x) { return x->node ? x->node : tg_tape_find_leaf(t, x); }

void tg_pass_mark(tg_pass *p) {
    for (int i = 0; i < p->o->n_targets; i++)
        if (p->o->targets[i].node) p->o->targets[i].node->pass = p->id;
    for (int i = 0; i < p->o->n_only; i++) {
        tg_node *n = tg_tape_find_leaf(p->t, p->o->only[i]);
        if (n) n->pass = p->id;
    }
    for (tg_node *n = p->t->first; n; n = n->next) {
        bool needed = n->pass == p->id;
        tg_node **src = tg_node_src(n);
        for (int i = 0; i < n->n_in && !needed; i++) needed = src[i] && src[i]->pass == p->id;
        if (needed) n->pass = p->id;
    }
}

bool tg_pass_leads_on(const tg_pass *p, const tg_node *n) {
    if (p->all) return n->n_in; /* a node with inputs was recorded because one of them needs a gradient */
    tg_node **src = tg_node_src(n);
    for (int i = 0; i < n->n_in; i++)
        if (tg_pass_needs(p, src[i])) return true;
    return false;
}

void tg_pass_note_due(const tg_pass *p, tg_node *n) {
    tg_node **src = tg_node_src(n);
    for (int i = 0; i < n->n_in; i++)
        if (tg_pass_needs(p, src[i])) src[i]->flags |= TG_N_DUE;
}

/* ---- Roots ---- */

tg_status tg_seed_check(const tg_tensor *root, const tg_tensor *given, const char *who) {
    char want[160], got[160];
    TG_TRY(tg_check(root->ctx, given, who));
    if (given->dtype == root->dtype && tg_same_shape(given, root)) return TG_OK;
    tg_describe(root, want, sizeof want);
    tg_describe(given, got, sizeof got);
    return tg_fail(root->ctx, TG_ERR_SHAPE, "%s: the seed is %s, expected the root's shape and dtype, %s", who, got,
                   want);
}

/* Returns the gradient with which backward begins at a root: `given`, or, if that is NULL and the root has one element,
 * tg_placement_seed. Returns NULL after recording the error. */
static tg_tensor *seed_of(tg_tensor *root, tg_tensor *given, const char *who) {
    tg_ctx *ctx = root->ctx;
    if (given) {
        if (tg_seed_check(root, given, who) != TG_OK || tg_storage_need(given->storage, given) != TG_OK) return NULL;
        return tg_gradient_share(given);
    }
    if (root->numel != 1) {
        char what[160];
        tg_describe(root, what, sizeof what);
        tg_fail(ctx, TG_ERR_SHAPE,
                "%s: the root is %s, expected one element; a root of any other size needs a seed", who, what);
        return NULL;
    }
    tg_tensor *one = tg_temp_empty(ctx, root->dtype, root->ndim, root->shape, TG_MEM_TEMPORARY);
    if (one && ctx->run.ops->fill(ctx, tg_array_of(one), tg_placement_seed(root)) != TG_OK) {
        tg_temp_free(one);
        return NULL;
    }
    return one;
}

tg_node *tg_root_node(tg_tape *t, tg_tensor *root, int i, const char *who) {
    if (tg_check(t->ctx, root, who) != TG_OK) return NULL;
    tg_node *node = tg_tape_node_of(t, root);
    if (root->tape && root->tape != t) {
        tg_fail(t->ctx, TG_ERR_HANDLE, "%s: root %d is a result of another tape", who, i);
        return NULL;
    }
    if (!node && root->flags & TG_F_REQUIRES_GRAD) return tg_tape_leaf(t, root);
    /* a result that takes no gradient, such as integers, has a node only because of other results of its op */
    if (root->node && !(root->flags & TG_F_REQUIRES_GRAD)) node = NULL;
    if (!node)
        tg_fail(t->ctx, TG_ERR_STATE,
                "%s: root %d depends on nothing that needs a gradient; tg_set_requires_grad marks a leaf", who, i);
    return node;
}

static tg_status seed_roots(tg_pass *p, tg_tensor *const *roots, int n, const char *who) {
    tg_tape *t = p->t;
    for (int i = 0; i < n; i++) {
        tg_node *node = tg_root_node(t, roots[i], i, who);
        if (!node) return t->ctx->run.status;
        tg_tensor *given = p->o->seeds ? p->o->seeds[i] : NULL, *seed = seed_of(roots[i], given, who);
        if (!seed) return t->ctx->run.status;
        /* The seeds of an inner pass come from the outer backward, not from the caller, and are not checked. */
        tg_status s = given && !p->o->inner ? tg_placement_fits(roots[i], given, who) : TG_OK;
        if (s == TG_OK && !p->o->inner) s = tg_placement_compare_root(roots[i], given, who);
        if (s != TG_OK) {
            tg_temp_free(seed);
            return s;
        }
        TG_TRY(tg_slot_add(&tg_node_slots(node)[roots[i]->out], seed));
    }
    return TG_OK;
}

/* ---- One node ---- */

static tg_status call_backward(tg_pass *p, tg_node *n, tg_tensor **gout, tg_tensor **gin, uint8_t *mode) {
    tg_ctx *ctx = p->t->ctx;
    tg_call_impl im = {.site = n->site, .node = n, .pass = p};
    tg_call c = {.ctx = ctx, .tape = p->t, .op = n->op, .params = tg_node_params_of(n), .n_in = n->n_in,
                 .n_out = n->n_out, .n_saved = n->n_saved, .input = tg_node_in(n), .out = tg_node_out(n),
                 .saved = tg_node_kept(n), .saves_in = n->saves_in, .saves_out = n->saves_out, .gout = gout,
                 .gin = gin, .gin_mode = mode, .internal = &im};
    if (n->flags & TG_N_STATE) c.state = tg_node_extra_of(n)->state;
    const tg_call *outer = p->t->at_work;
    p->t->at_work = &c;
    const char *outer_running = ctx->run.running;
    const void *outer_site = ctx->run.running_site;
    ctx->run.running = n->op->name;
    ctx->run.running_site = n->site;
    tg_status s = tg_sinks_open(p, &c);
    if (TG_UNLIKELY(p->t->observer.ops) && s == TG_OK) s = p->t->observer.ops->before_backward(&c);
    if (TG_UNLIKELY(n->flags & TG_N_TIMED || p->t->observer.ops)) im.began = tg_system_now();
    if (s == TG_OK && (s = n->op->backward(&c)) != TG_OK)
        tg_fail(ctx, s, "%s: backward failed with %s", n->op->name, tg_status_name(s));
    p->t->at_work = outer;
    if (im.temps) tg_call_temps_free(&c);
    s = tg_sinks_close(p, &c);
    if (TG_UNLIKELY(im.began > 0)) im.ended = tg_system_now();
    if (TG_UNLIKELY(p->t->observer.ops) && s == TG_OK) s = p->t->observer.ops->after_backward(&c);
    ctx->run.running = outer_running;
    ctx->run.running_site = outer_site;
    if (n->flags & TG_N_TIMED) tg_node_extra_of(n)->backward_s = im.ended - im.began;
    if (s == TG_OK) return TG_OK;
    char site[160], path[160];
    tg_describe_site(ctx, tg_scope_site(n->scope, n->site), site, sizeof site);
    tg_scope_path(n->scope, path, sizeof path);
    return tg_fail_note(ctx, " (in the backward of op %s, called from %s%s%s)", n->op->name, path, *path ? ", " : "",
                        site);
}

/* Returns whether the node must run even if it has received no gradient, because all ranks communicate in it. */
static bool must_meet(const tg_node *n) { return n->flags & TG_N_DUE && n->op->collective; }

static tg_status zero_outputs(tg_node *n) {
    for (int i = 0; i < n->n_out; i++) {
        tg_slot *s = &tg_node_slots(n)[i];
        const tg_tensor *x = tg_node_out(n)[i];
        if (s->g || !tg_is_float(x->dtype)) continue;
        s->g = tg_temp_empty(x->ctx, x->dtype, x->ndim, x->shape, TG_MEM_TEMPORARY);
        if (!s->g) return x->ctx->run.status;
        TG_TRY(x->ctx->run.ops->fill(x->ctx, tg_array_of(s->g), 0));
    }
    return TG_OK;
}

/* Runs the backward of an op. The arrays of n_in and n_out entries are on the stack if they are short, else in the
 * tape's scratch. */
static tg_status run_op(tg_pass *p, tg_node *n) {
    enum { FEW = 8 };
    if (!n->op->backward)
        return tg_fail(p->t->ctx, TG_ERR_UNSUPPORTED,
                       "op %s has no backward function; tg_detach its inputs, or give it one", n->op->name);
    if (TG_UNLIKELY(must_meet(n))) TG_TRY(zero_outputs(n));
    tg_tensor *few[2 * FEW];
    tg_grad_sink few_sinks[FEW];
    uint8_t few_modes[FEW];
    tg_tensor **gin = few, **gout = few + FEW;
    uint8_t *mode = few_modes;
    p->sinks = few_sinks;
    if (TG_UNLIKELY(n->n_in > FEW || n->n_out > FEW)) {
        size_t bytes = n->n_in * (sizeof(tg_grad_sink) + sizeof(void *) + 1) + n->n_out * sizeof(void *);
        if (p->t->scratch_bytes < bytes) {
            void *more = tg_host_alloc(p->t->ctx, 2 * bytes);
            if (!more) return p->t->ctx->run.status;
            tg_host_free(p->t->ctx, p->t->scratch, p->t->scratch_bytes);
            p->t->scratch = more;
            p->t->scratch_bytes = 2 * bytes;
        }
        p->sinks = p->t->scratch;
        gin = (tg_tensor **)(p->sinks + n->n_in);
        gout = gin + n->n_in;
        mode = (uint8_t *)(gout + n->n_out);
    }
    for (int i = 0; i < n->n_out; i++) gout[i] = tg_node_slots(n)[i].g;
    return call_backward(p, n, gout, gin, mode);
}

/* Completes the gradients of a node's outputs: waits, sums, runs hooks, and hands targets their gradients. */
static tg_status finish_outputs(tg_pass *p, tg_node *n, bool *any) {
    for (int i = 0; i < n->n_out; i++) {
        tg_slot *s = &tg_node_slots(n)[i];
        if (s->pending) TG_TRY(tg_slot_finish(s));
        if (!s->g) continue;
        tg_tensor *x = tg_node_out(n)[i];
        *any = true;
        if (TG_UNLIKELY(x->ext && x->ext->hooks) && tg_pass_hooks(p, x))
            TG_TRY(tg_hooks_run(p->t, x, &s->g, false));
        TG_TRY(tg_storage_need(s->g->storage, s->g)); /* fails if s->g is a seed whose bytes were discarded */
        if (n->flags & TG_N_LEAF || !p->o->n_targets) continue;
        tg_target *target = tg_pass_target(p, n, i);
        if (!target) continue;
        target->g = tg_gradient_alias(s->g);
        if (!target->g) return x->ctx->run.status;
        target->reached = true;
    }
    return TG_OK;
}

/* Hands the gradient of a leaf to its target if the pass has targets. Otherwise adds it to the leaf's buffer, and runs
 * the hooks of tg_on_accumulated. */
static tg_status deliver_leaf(tg_pass *p, tg_node *n) {
    tg_tensor *x = tg_node_out(n)[0], *g = tg_node_slots(n)[0].g;
    tg_target *target = p->o->n_targets ? tg_pass_target(p, n, 0) : NULL;
    if (p->o->targets) {
        if (!target || !g) return TG_OK;
        if (!target->g) {
            target->g = g;
            tg_node_slots(n)[0].g = NULL;
        } else {
            TG_TRY(tg_gradient_put(target->g, g, target->reached || target->mode == TG_GRAD_ADD));
        }
        target->reached = true;
        return TG_OK;
    }
    if (g) {
        tg_tensor *buffer = tg_gradient_buffer(x);
        if (!buffer) return x->ctx->run.status;
        TG_TRY(tg_gradient_put(buffer, g, x->ext->has_grad));
        tg_gradient_reached(x);
    }
    bool reached = g || n->flags & TG_N_REACHED;
    n->flags &= ~TG_N_REACHED;
    tg_tensor *sum = tg_gradient_of(x);
    if (x->ext && x->ext->deferred) return TG_OK; /* products are still to be added (tg_wgrads); then the hooks run */
    return reached && sum && tg_hooks_any(x, true) ? tg_hooks_run(p->t, x, &sum, true) : TG_OK;
}

/* ---- The pass ---- */

/* Returns whether there may be something to do at a node: a gradient, the hooks of a leaf, or communication. */
static bool is_reached(const tg_node *n) {
    if (n->flags & (TG_N_LEAF | TG_N_DUE)) return true;
    for (int i = 0; i < n->n_out; i++)
        if (tg_node_slots(n)[i].g || tg_node_slots(n)[i].pending) return true;
    return false;
}

static void drop_slots(tg_node *n) {
    n->flags &= ~TG_N_DUE;
    for (int i = 0; i < n->n_out; i++) tg_slot_drop(&tg_node_slots(n)[i]);
}

static void release_saved(const tg_pass *p, tg_node *n) {
    if (!p->o->retain)
        tg_node_release(p->t, n);
    else if (TG_UNLIKELY(p->t->listeners != NULL)) /* without listeners, no saved tensor can be packed */
        tg_saved_repack(p->t, n);
}

static tg_status run_nodes(tg_pass *p) {
    for (tg_node *n = p->t->last; n; n = n->prev) {
        bool any = false, runs = false;
        if (!tg_pass_needs(p, n) || !is_reached(n)) {
            drop_slots(n);
            continue;
        }
        if (TG_UNLIKELY(p->t->collectives)) tg_pass_note_due(p, n);
        TG_TRY(finish_outputs(p, n, &any));
        if (n->flags & TG_N_LEAF) {
            TG_TRY(deliver_leaf(p, n));
        } else if ((runs = (any || must_meet(n)) && tg_pass_leads_on(p, n))) {
            TG_TRY(tg_node_ready(n));
            TG_TRY(run_op(p, n));
        }
        drop_slots(n);
        if (runs) release_saved(p, n);
    }
    return TG_OK;
}

/* Called after an error: clears everything of the pass, so that the next one starts clean. */
static void forget_pass(tg_tape *t) {
    for (tg_node *n = t->last; n; n = n->prev) {
        drop_slots(n);
        n->flags &= ~TG_N_REACHED;
    }
}

static tg_status run_pass(tg_pass *p, tg_tensor *const *roots, int n, const char *who) {
    /* Seeding comes first, because it creates the node of a root that is a leaf and that no op has used. */
    tg_status s = seed_roots(p, roots, n, who);
    if (s == TG_OK) s = tg_pass_find_targets(p);
    if (!p->all) tg_pass_mark(p);
    if (s == TG_OK) s = run_nodes(p);
    if (!p->o->targets) tg_tapes_of(p->t->ctx)->backwards++;
    if (s != TG_OK) forget_pass(p->t);
    return s;
}

tg_status tg_backward_run(tg_tape *t, tg_tensor *const *roots, int n, const tg_pass_opts *o, const char *who) {
    if (t->in_backward) return tg_fail(t->ctx, TG_ERR_STATE, "%s: a backward of this tape is running", who);
    if (t->tangents) return tg_fail(t->ctx, TG_ERR_STATE, "%s: a tg_jvp of this tape is running", who);
    tg_pass p = {.t = t, .o = o, .id = ++t->pass, .all = !o->targets && !o->only};
    t->in_backward = true;
    tg_status s = o->graph ? o->graph->run(&p, roots, n, who) : run_pass(&p, roots, n, who);
    tg_pass_free_targets(&p);
    t->in_backward = false;
    return s;
}

bool tg_call_retains(const tg_call *c) { return ((const tg_call_impl *)c->internal)->pass->o->retain; }

tg_status tg_backward_ended(const tg_tape *t, tg_status s) {
    if (s != TG_OK && t && t->collectives) tg_ctx_skip(t->ctx);
    return s;
}
