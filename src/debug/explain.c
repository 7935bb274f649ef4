/* tg_explain_grad: explains in words why a gradient is absent, zero, NaN or infinite. It computes the gradients of all
 * tensors on the path from x to root, and names the op or hook at which they become so. */
#include <tapegrad/explain.h>
#include <tapegrad/backward.h>
#include <tapegrad/ops.h>

#include <math.h>

#include "autograd/hooks.h"
#include "autograd/targets.h"
#include "debug/tensor_stats.h"
#include "base/text.h"
#include "placement/rule.h"

typedef struct text {
    char *buf;
    size_t size, at;
} text;

/* Appends formatted text to text *s. */
#define SAY(s, ...) tg_text((s)->buf, (s)->size, &(s)->at, __VA_ARGS__)

/* Returns how many of the values with range r are NaN or infinite. Such values are called wrong below. */
static int64_t wrong(const tg_range *r) { return r->nan + r->inf; }

/* Returns the name of the kinds of wrong values that r has. r has at least one wrong value. */
static const char *kind(const tg_range *r) { return !r->nan ? "infinite" : !r->inf ? "NaN" : "NaN or infinite"; }

/* Returns the largest magnitude of the values, without the NaNs; NaN if there are only NaNs. */
static double magnitude(const tg_range *r) {
    return r->inf ? INFINITY : r->lo > r->hi && r->nan ? NAN : fmax(0, fmax(-r->lo, r->hi));
}

/* ---- The path ---- */

static const char *named(const tg_tensor *x, char *buf, size_t n) {
    tg_describe(x, buf, n);
    return buf;
}

static void say_op(text *s, const tg_node *n) {
    char site[256];
    tg_node_site(n, site, sizeof site);
    SAY(s, "op %s (%s)", n->op->name, site);
}

/* Marks the nodes on the path: those that root depends on and that depend on `from`. Sets *on_path to a new number, and
 * the field `pass` of these nodes to it. Returns the number of these nodes, not counting `from`. */
static int64_t mark_path(tg_tape *t, const tg_node *from, tg_node *root, uint32_t *on_path) {
    uint32_t below = ++t->pass;
    int64_t count = 0;
    *on_path = ++t->pass;
    root->pass = below;
    for (tg_node *n = t->last; n; n = n->prev)
        for (int i = 0; n->pass == below && i < n->n_in; i++)
            if (tg_node_src(n)[i]) tg_node_src(n)[i]->pass = below;
    for (tg_node *n = t->first; n; n = n->next) {
        bool on = n == from && n->pass == below;
        for (int i = 0; n->pass == below && i < n->n_in && !on; i++)
            on = tg_node_src(n)[i] && tg_node_src(n)[i]->pass == *on_path;
        if (!on) continue;
        n->pass = *on_path;
        count += n != from;
    }
    return count;
}

/* Returns whether an op that recorded no node has used an output of n. */
static bool unrecorded(const tg_node *n) {
    for (int i = 0; i < n->n_out; i++)
        if (tg_node_out(n)[i]->flags & TG_F_UNRECORDED) return true;
    return false;
}

static const char without[] =
    "without recording (no-grad mode, or an op that has no gradient, such as a comparison or tg_detach)";

/* Called if no recorded path leads from node `from` to root. Reports where the recorded paths from `from` end: at nodes
 * that depend on `from` and whose outputs no recorded op has used. */
static void say_ends(text *s, tg_tape *t, const tg_node *from) {
    enum { MAX_LISTED = 3 };
    uint32_t after = ++t->pass, used = ++t->pass;
    int ends = 0;
    bool more = unrecorded(from);
    for (tg_node *n = t->first; n; n = n->next) {
        bool on = n == from;
        for (int i = 0; i < n->n_in && !on; i++)
            on = tg_node_src(n)[i] && (tg_node_src(n)[i]->pass == after || tg_node_src(n)[i]->pass == used);
        if (!on) continue;
        for (int i = 0; i < n->n_in; i++)
            if (tg_node_src(n)[i] && tg_node_src(n)[i]->pass == after) tg_node_src(n)[i]->pass = used;
        n->pass = after;
        more |= unrecorded(n);
    }
    for (tg_node *n = t->first; n; n = n->next) {
        if (n->pass != after || n == from || ++ends > MAX_LISTED) continue;
        SAY(s, "%s", ends == 1 ? "Results that depend on it end at " : ", ");
        say_op(s, n);
    }
    if (ends > MAX_LISTED) SAY(s, " and %d more", ends - MAX_LISTED);
    SAY(s, "%s", ends ? ".\n" : "No op with a gradient has used it on this tape.\n");
    if (more) SAY(s, "An op that ran %s has used %s.\n", without, ends ? "it, or what depends on it" : "it");
}

/* Reports a tensor that this tape has not used. A leaf of the context may have been used on another tape. */
static void say_unused(text *s, const tg_tensor *x) {
    if (!(x->flags & TG_F_UNRECORDED))
        SAY(s, "No op has used it on this tape.\n");
    else
        SAY(s, "No recorded op has used it on this tape. An op that ran %s has used it%s.\n", without,
            x->tape ? "" : ", on this tape or another");
}

/* ---- Gradients along the path ---- */

/* A tensor on the path. */
typedef struct step {
    const tg_node *node; /* the node that made it */
    tg_tensor *x, *g;    /* the tensor and its gradient */
    tg_range r;          /* range of the gradient */
    tg_range delivered;  /* if hooked: the range before the tensor's own hooks ran */
    uint64_t probe;      /* the hook that measures `delivered`; 0 if there is none */
    bool hooked;         /* the probe has run */
} step;

typedef struct path {
    step *steps; /* x first, then the results of the nodes on the path, in order */
    int64_t n;
    tg_keyed *index; /* finds the step of a tensor */
} path;

static int64_t list_steps(tg_tape *t, const tg_node *from, const tg_tensor *x, uint32_t on_path, step *steps) {
    int64_t n_steps = 0;
    steps[n_steps++] = (step){.node = from, .x = (tg_tensor *)x};
    for (tg_node *n = t->first; n; n = n->next)
        for (int i = 0; n != from && n->pass == on_path && i < n->n_out; i++)
            if (tg_is_alive(tg_node_out(n)[i]) && tg_node_out(n)[i]->flags & TG_F_REQUIRES_GRAD)
                steps[n_steps++] = (step){.node = n, .x = tg_node_out(n)[i]};
    return n_steps;
}

/* A hook that runs before the tensor's own hooks, and measures the gradient that backward delivers to them. */
static tg_status probe(void *user, tg_tape *t, tg_tensor *x, tg_tensor **grad) {
    step *s = user;
    (void)t, (void)x;
    s->hooked = true;
    return tg_range_measure(*grad, &s->delivered);
}

static tg_status add_probes(path *p) {
    for (int64_t i = 0; i < p->n; i++) {
        step *s = &p->steps[i];
        if (TG_LIKELY(!tg_hooks_any(s->x, false))) continue;
        if (!(s->probe = tg_hook_first(s->x, probe, s))) return s->x->ctx->run.status;
    }
    return TG_OK;
}

static void remove_probes(path *p) {
    for (int64_t i = 0; i < p->n; i++)
        if (p->steps[i].probe) tg_hook_drop(p->steps[i].x, p->steps[i].probe);
}

/* Computes the gradients of all steps, and their ranges. */
static tg_status measure(tg_tape *t, tg_tensor *root, path *p) {
    int64_t n = p->n;
    tg_tensor **in = tg_tape_alloc(t, 2 * (size_t)n * sizeof *in);
    p->index = tg_tape_alloc(t, (size_t)n * sizeof *p->index);
    if (!in || !p->index) return t->ctx->run.status;
    tg_tensor **g = in + n, *ones = tg_full(t, (tg_dtype)root->dtype, tg_shape_of(root), tg_placement_seed(root));
    TG_TRY(t->ctx->run.status);
    ones->place = tg_placement_of_gradient(root, false);
    for (int64_t i = 0; i < n; i++) {
        in[i] = p->steps[i].x;
        p->index[i] = (tg_keyed){in[i], i};
    }
    tg_keyed_sort(p->index, n);
    tg_status s = add_probes(p);
    if (s == TG_OK)
        s = tg_grad(t, &root, 1, in, (int)n, g, TG_GRAD(.seeds = &ones, .retain = true, .allow_unused = true));
    remove_probes(p);
    for (int64_t i = 0; i < n && s == TG_OK; i++) {
        p->steps[i].g = g[i];
        s = tg_range_measure(g[i], &p->steps[i].r);
    }
    return s;
}

static bool is_zero(const step *s, const tg_range *r) { return r->zero == s->x->numel; }
static bool is_wrong(const step *s, const tg_range *r) { return (void)s, wrong(r) > 0; }

/* is_zero or is_wrong: returns whether a gradient of step s that has range r is bad. */
typedef bool (*bad_fn)(const step *s, const tg_range *r);

/* Returns whether the gradient was already bad when backward delivered it, before the tensor's own hooks. */
static bool delivered_bad(const step *s, bad_fn bad) { return bad(s, s->hooked ? &s->delivered : &s->r); }

static const step *step_of(const path *p, const tg_tensor *x) {
    const tg_keyed *k = x ? tg_keyed_find(p->index, p->n, x) : NULL;
    return k ? &p->steps[k->at] : NULL;
}

/* Returns the step at which the gradient turns bad, or NULL if there is none. It is the first one on the way from root
 * to x for which one of these is true:
 * - Its gradient is good, but its op has delivered a bad gradient to an input on the path. Sets *input to the index of
 *   this input.
 * - A bad gradient came out of its own hooks, and a good one had been delivered to them. Sets *input to -1. */
static const step *turning_point(const path *p, bad_fn bad, int *input) {
    for (int64_t i = p->n - 1; i >= 0; i--) {
        const step *at = &p->steps[i];
        *input = -1;
        if (bad(at, &at->r)) {
            if (!delivered_bad(at, bad)) return at;
            continue;
        }
        for (int k = 0; i > 0 && k < at->node->n_in; k++) {
            const step *s = step_of(p, tg_node_in(at->node)[k]);
            if (!s || !delivered_bad(s, bad)) continue;
            *input = k;
            return at;
        }
    }
    return NULL;
}

/* Reports where the gradient turns bad. `became` is the word for a bad gradient. */
static tg_status say_turn(text *s, const path *p, bad_fn bad, const char *became) {
    char what[160];
    int input = 0;
    tg_range r;
    const step *at = turning_point(p, bad, &input);
    if (!at) return TG_OK;
    if (input < 0) {
        SAY(s, "It became %s in a hook (tg_on_grad) of %s: before its hooks the gradient reaches %g.\n", became,
            named(at->x, what, sizeof what), magnitude(&at->delivered));
        return TG_OK;
    }
    tg_tensor *in = tg_node_in(at->node)[input];
    SAY(s, "It became %s in ", became);
    say_op(s, at->node);
    SAY(s, ": the gradient of its result reaches %g, that of its input %d, %s, is %s", magnitude(&at->r), input,
        named(in, what, sizeof what), became);
    if (tg_is_alive(in) && in->storage->state == TG_PRESENT) {
        TG_TRY(tg_range_measure(in, &r));
        bool finite = r.lo <= r.hi; /* some value is */
        if (finite) SAY(s, "; that input lies in [%g, %g]", r.lo, r.hi);
        if (wrong(&r))
            SAY(s, "%s has %s that %s %s", finite ? " and" : "; that input", tg_count(wrong(&r), "value").text,
                wrong(&r) == 1 ? "is" : "are", kind(&r));
    }
    SAY(s, ".\n");
    return TG_OK;
}

static bool uses_tensor(const tg_node *n, const tg_tensor *x) {
    for (int k = 0; k < n->n_in; k++)
        if (tg_node_in(n)[k] == x) return true;
    return false;
}

/* Lists the ops on the path that use x, each once, although it may have a step for each of its results. */
static void say_uses(text *s, const path *p) {
    enum { MAX_LISTED = 4 };
    int uses = 0;
    for (int64_t i = 1; i < p->n; i++) {
        const tg_node *n = p->steps[i].node;
        if (n == p->steps[i - 1].node || !uses_tensor(n, p->steps[0].x) || ++uses > MAX_LISTED) continue;
        SAY(s, "%s", uses == 1 ? "It comes through " : ", ");
        say_op(s, n);
    }
    if (uses > MAX_LISTED) SAY(s, " and %d more", uses - MAX_LISTED);
    if (uses) SAY(s, ".\n");
}

/* Computes and reports the gradient of x. `nodes` is the number of nodes on the path, not counting `from`. */
static tg_status say_gradient(text *s, tg_tape *t, tg_tensor *root, tg_tensor *x, const tg_node *from, uint32_t on_path,
                              int64_t nodes) {
    char what[160];
    int64_t most_steps = 1;
    for (tg_node *n = t->first; n && nodes; n = n->next)
        if (n->pass == on_path) most_steps += n->n_out;
    path p = {.steps = tg_tape_alloc(t, (size_t)most_steps * sizeof *p.steps)};
    if (!p.steps) return t->ctx->run.status;
    p.n = list_steps(t, from, x, on_path, p.steps);
    TG_TRY(measure(t, root, &p));
    const tg_range *r = &p.steps[0].r;
    named(x, what, sizeof what);
    if (is_wrong(&p.steps[0], r)) {
        SAY(s, "%lld of the %lld elements of the gradient of %s are %s.\n", (long long)wrong(r),
            (long long)x->numel, what, kind(r));
        return say_turn(s, &p, is_wrong, "NaN or infinite");
    }
    if (is_zero(&p.steps[0], r)) {
        SAY(s, "The gradient of %s is 0 in every element.\n", what);
        return say_turn(s, &p, is_zero, "0");
    }
    SAY(s, "The gradient of %s lies in [%g, %g], and is 0 in %lld of %lld elements.\n", what, r->lo, r->hi,
        (long long)r->zero, (long long)x->numel);
    say_uses(s, &p);
    return TG_OK;
}

/* ---- Public functions ---- */

static tg_status explain(text *s, tg_tape *t, tg_tensor *root, tg_tensor *x) {
    char what[160];
    uint32_t on_path = 0;
    int64_t nodes = 0;
    tg_tensor *const given[] = {root, x};
    TG_TRY(tg_tape_check_with(t, given, 2, "tg_explain_grad"));
    TG_TRY(tg_check(t->ctx, root, "tg_explain_grad: the root"));
    TG_TRY(tg_check(t->ctx, x, "tg_explain_grad: the tensor"));
    if ((root->tape && root->tape != t) || (x->tape && x->tape != t))
        return tg_fail(t->ctx, TG_ERR_HANDLE,
                       "tg_explain_grad: the %s is a result of another tape; pass the tape that recorded it",
                       root->tape && root->tape != t ? "root" : "tensor");
    if (t->in_backward) return tg_fail(t->ctx, TG_ERR_STATE, "tg_explain_grad: %s", tg_tape_held(t));
    tg_node *to = tg_tape_node_of(t, root), *from = tg_tape_node_of(t, x);
    named(x, what, sizeof what);
    if (!tg_is_float(x->dtype)) {
        SAY(s, "%s has no gradient: only floats do.\n", what);
    } else if (!(x->flags & TG_F_REQUIRES_GRAD)) {
        SAY(s, "%s needs no gradient: %s.\n", what,
            !x->tape || x->flags & TG_F_LEAF
                ? "it is a leaf for which tg_set_requires_grad was not called"
                : "it was recorded in no-grad mode, its op is not differentiable, or none of the op's inputs needs "
                  "one");
    } else if (!to || !(root->flags & TG_F_REQUIRES_GRAD)) {
        SAY(s, "%s gets no gradient: the root depends on nothing that needs one%s.\n", what,
            root->tape && !(root->flags & TG_F_LEAF)
                ? ", or was recorded in no-grad mode, or its op is not differentiable"
                : "");
    } else if (!from || (!(nodes = mark_path(t, from, to, &on_path)) && from != to)) {
        SAY(s, "On this tape, the root does not depend on %s.\n", what);
        if (from)
            say_ends(s, t, from);
        else
            say_unused(s, x);
    } else {
        return say_gradient(s, t, root, x, from, on_path, nodes);
    }
    return t->ctx->run.status;
}

size_t tg_explain_grad(tg_tape *t, tg_tensor *root, tg_tensor *x, char *buf, size_t n) {
    text s = {buf, buf ? n : 0, 0};
    if (s.size) buf[0] = 0;
    if (explain(&s, t, root, x) == TG_OK) return s.at;
    if (s.size) buf[0] = 0;
    return 0;
}
