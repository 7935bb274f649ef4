/* tg_explain_grad: the gradients of everything on the way from x to root, and the first op that tells why. */
#include <tapegrad/explain.h>

#include <math.h>

#include "autograd/backward.h"

typedef struct text {
    char *buf;
    size_t size, at;
} text;

#define SAY(s, ...) tg_text((s)->buf, (s)->size, &(s)->at, __VA_ARGS__)

/* Of no numbers. */
static int64_t wrong(const tg_range *r) { return r->nan + r->inf; }

/* ---- The way ---- */

static const char *named(const tg_tensor *x, char *buf, size_t n) {
    tg_describe(x, buf, n);
    return buf;
}

static void say_op(text *s, const tg_node *n) {
    char site[256];
    tg_node_site(n, site, sizeof site);
    SAY(s, "op %s (%s)", n->op->name, site);
}

/* Marks the nodes that root depends on, and of them those that depend on from. How many these are, from not counted. */
static int64_t mark_way(tg_tape *t, const tg_node *from, tg_node *root, uint32_t *on_way) {
    uint32_t below = ++t->pass;
    int64_t count = 0;
    *on_way = ++t->pass;
    root->pass = below;
    for (tg_node *n = t->last; n; n = n->prev)
        for (int i = 0; n->pass == below && i < n->n_in; i++)
            if (tg_node_src(n)[i]) tg_node_src(n)[i]->pass = below;
    for (tg_node *n = t->first; n; n = n->next) {
        bool on = n == from && n->pass == below;
        for (int i = 0; n->pass == below && i < n->n_in && !on; i++)
            on = tg_node_src(n)[i] && tg_node_src(n)[i]->pass == *on_way;
        if (!on) continue;
        n->pass = *on_way;
        count += n != from;
    }
    return count;
}

/* Where the ways from a node end that do not lead to root: nodes that depend on it and that nobody uses. */
static void say_ends(text *s, tg_tape *t, const tg_node *from) {
    enum { MOST = 3 };
    uint32_t after = ++t->pass, used = ++t->pass;
    int ends = 0;
    for (tg_node *n = t->first; n; n = n->next) {
        bool on = n == from;
        for (int i = 0; i < n->n_in && !on; i++)
            on = tg_node_src(n)[i] && (tg_node_src(n)[i]->pass == after || tg_node_src(n)[i]->pass == used);
        if (!on) continue;
        for (int i = 0; i < n->n_in; i++)
            if (tg_node_src(n)[i] && tg_node_src(n)[i]->pass == after) tg_node_src(n)[i]->pass = used;
        n->pass = after;
    }
    for (tg_node *n = t->first; n; n = n->next) {
        if (n->pass != after || n == from || ++ends > MOST) continue;
        SAY(s, "%s", ends == 1 ? "The ways from it end at " : ", ");
        say_op(s, n);
    }
    if (ends > MOST) SAY(s, " and %d more", ends - MOST);
    SAY(s, "%s", ends ? ".\n" : "No op with a gradient has used it on this tape.\n");
}

/* ---- Gradients along it ---- */

typedef struct step {
    const tg_node *node;
    tg_tensor *x, *g;
    tg_range r;
} step;

static int64_t list_way(tg_tape *t, const tg_node *from, const tg_tensor *x, uint32_t on_way, step *steps) {
    int64_t n_steps = 0;
    steps[n_steps++] = (step){.node = from, .x = (tg_tensor *)x};
    for (tg_node *n = t->first; n; n = n->next)
        for (int i = 0; n != from && n->pass == on_way && i < n->n_out; i++)
            if (tg_is_float(tg_node_out(n)[i]->dtype) && tg_alive(tg_node_out(n)[i]))
                steps[n_steps++] = (step){.node = n, .x = tg_node_out(n)[i]};
    return n_steps;
}

static tg_status measure(tg_tape *t, tg_tensor *root, step *steps, int64_t n) {
    tg_tensor **in = tg_tape_alloc(t, 2 * (size_t)n * sizeof *in);
    if (!in) return t->ctx->status;
    tg_tensor **g = in + n, *ones = tg_full(t, (tg_dtype)root->dtype, tg_shape_of(root), 1);
    for (int64_t i = 0; i < n; i++) in[i] = steps[i].x;
    TG_TRY(tg_grad(t, &root, 1, in, (int)n, g, TG_GRAD(.seeds = &ones, .retain = true, .allow_unused = true)));
    for (int64_t i = 0; i < n; i++) {
        steps[i].g = g[i];
        TG_TRY(tg_range_of(g[i], &steps[i].r));
    }
    return TG_OK;
}

static bool is_zero(const step *s) { return s->r.zero == s->x->numel; }

static const step *step_of(const step *steps, int64_t n, const tg_tensor *x) {
    for (int64_t i = 0; i < n; i++)
        if (steps[i].x == x) return &steps[i];
    return NULL;
}

/* Of the nodes with a good gradient those nearest to x whose input on the way has a bad one: the first that is found
 * going down from root. */
static const step *turning_point(const step *steps, int64_t n, bool (*bad)(const step *), int *input) {
    for (int64_t i = n - 1; i > 0; i--) {
        if (bad(&steps[i])) continue;
        for (int k = 0; k < steps[i].node->n_in; k++) {
            const step *s = step_of(steps, n, tg_node_in(steps[i].node)[k]);
            if (!s || !bad(s)) continue;
            *input = k;
            return &steps[i];
        }
    }
    return NULL;
}

static bool is_wrong(const step *s) { return wrong(&s->r) > 0; }

static tg_status say_turn(text *s, const step *steps, int64_t n, bool (*bad)(const step *), const char *became) {
    char what[160];
    int input = 0;
    tg_range r;
    const step *at = turning_point(steps, n, bad, &input);
    if (!at) return TG_OK;
    tg_tensor *in = tg_node_in(at->node)[input];
    SAY(s, "It became %s in ", became);
    say_op(s, at->node);
    SAY(s, ": the gradient of its result reaches %g, that of its input %d, %s, is %s", fmax(-at->r.lo, at->r.hi), input,
        named(in, what, sizeof what), became);
    if (tg_alive(in) && in->storage->state == TG_PRESENT) {
        TG_TRY(tg_range_of(in, &r));
        SAY(s, "; that input lies in [%g, %g]", r.lo, r.hi);
        if (wrong(&r)) SAY(s, " and has %lld values that are no numbers", (long long)wrong(&r));
    }
    SAY(s, ".\n");
    return TG_OK;
}

static void say_uses(text *s, const step *steps, int64_t n) {
    enum { MOST = 4 };
    int uses = 0;
    for (int64_t i = 1; i < n; i++)
        for (int k = 0; k < steps[i].node->n_in; k++) {
            if (tg_node_in(steps[i].node)[k] != steps[0].x || ++uses > MOST) continue;
            SAY(s, "%s", uses == 1 ? "It comes through " : ", ");
            say_op(s, steps[i].node);
        }
    if (uses > MOST) SAY(s, " and %d more", uses - MOST);
    if (uses) SAY(s, ".\n");
}

static tg_status say_gradient(text *s, tg_tape *t, tg_tensor *root, tg_tensor *x, const tg_node *from, uint32_t on_way,
                              int64_t nodes) {
    char what[160];
    int64_t room = 1;
    for (tg_node *n = t->first; n && nodes; n = n->next)
        if (n->pass == on_way) room += n->n_out;
    step *steps = tg_tape_alloc(t, (size_t)room * sizeof *steps);
    if (!steps) return t->ctx->status;
    int64_t n = list_way(t, from, x, on_way, steps);
    TG_TRY(measure(t, root, steps, n));
    const tg_range *r = &steps[0].r;
    named(x, what, sizeof what);
    if (is_wrong(&steps[0])) {
        SAY(s, "%lld of the %lld elements of the gradient of %s are no numbers.\n", (long long)wrong(r),
            (long long)x->numel, what);
        return say_turn(s, steps, n, is_wrong, "NaN or infinite");
    }
    if (is_zero(&steps[0])) {
        SAY(s, "The gradient of %s is 0 in every element.\n", what);
        return say_turn(s, steps, n, is_zero, "0");
    }
    SAY(s, "The gradient of %s lies in [%g, %g], and is 0 in %lld of %lld elements.\n", what, r->lo, r->hi,
        (long long)r->zero, (long long)x->numel);
    say_uses(s, steps, n);
    return TG_OK;
}

/* ---- The public side ---- */

static tg_status explain(text *s, tg_tape *t, tg_tensor *root, tg_tensor *x) {
    char what[160];
    uint32_t on_way;
    tg_tensor *const given[] = {root, x};
    TG_TRY(tg_tape_check_with(t, given, 2, "tg_explain_grad"));
    TG_TRY(tg_check(t->ctx, root, "tg_explain_grad: the root"));
    TG_TRY(tg_check(t->ctx, x, "tg_explain_grad: the tensor"));
    if ((root->tape && root->tape != t) || (x->tape && x->tape != t))
        return tg_fail(t->ctx, TG_ERR_HANDLE, "tg_explain_grad: a tensor is a result of another tape");
    if (t->in_backward) return tg_fail(t->ctx, TG_ERR_STATE, "tg_explain_grad: a backward of this tape is running");
    tg_node *to = tg_tape_node_of(t, root), *from = tg_tape_node_of(t, x);
    named(x, what, sizeof what);
    if (!tg_is_float(x->dtype)) {
        SAY(s, "%s has no gradient: only floats do.\n", what);
    } else if (!(x->flags & TG_F_REQUIRES_GRAD)) {
        SAY(s, "%s needs no gradient: %s.\n", what,
            !x->tape || x->flags & TG_F_LEAF
                ? "it is a leaf for which tg_set_requires_grad was not called"
                : "it was recorded without grad, its op is not differentiable, or none of the op's inputs needs one");
    } else if (!to) {
        SAY(s, "%s gets no gradient: the root depends on nothing that needs one.\n", what);
    } else if (!from || (!mark_way(t, from, to, &on_way) && from != to)) {
        SAY(s, "The root does not depend on %s.\n", what);
        if (from)
            say_ends(s, t, from);
        else
            SAY(s, "No op has used it on this tape.\n");
    } else {
        return say_gradient(s, t, root, x, from, on_way, mark_way(t, from, to, &on_way));
    }
    return t->ctx->status;
}

size_t tg_explain_grad(tg_tape *t, tg_tensor *root, tg_tensor *x, char *buf, size_t n) {
    text s = {buf, buf ? n : 0, 0};
    if (s.size) buf[0] = 0;
    if (explain(&s, t, root, x) == TG_OK) return s.at;
    if (s.size) buf[0] = 0;
    return 0;
}
