/* The for loop and its variable `loop`. Items are taken one by one, and tested when they are taken, because the test of
 * a loop may read what its body has set. */
#include <string.h>

#include "base/runtime.h"
#include "text/template/evaluate.h"

struct tpl_loop {
    const tpl_node *node;
    tpl_scope *outer; /* the scope around the loop */
    tpl_iter source;
    bool tests;                       /* items that fail the node's test are left out */
    tpl_value before, current, after; /* after: taken early, or ABSENT */
    tpl_value changed;                /* the arguments of the last call of loop.changed, or ABSENT */
    int64_t index0, length;           /* length: -1 until it is asked for */
    int depth0;
    bool completed; /* the body has run to its end, without break or continue */
    tpl_value name; /* "loop" */
};

/* ---- Items ---- */

/* Returns whether an item passes the loop's test. */
static bool passes(tpl_run *r, tpl_loop *l, tpl_value v) {
    tpl_scope *before = r->render->scope, *own = tg_tpl_alloc(r, sizeof *own);
    *own = (tpl_scope){.parent = l->outer};
    r->render->scope = own;
    tg_tpl_assign(r, l->node->left, v);
    bool good = tg_tpl_truth(r, tg_tpl_eval(r, l->node->third));
    r->render->scope = before;
    return good;
}

/* Takes the next item that passes from the source. Returns false if there is none. */
static bool take(tpl_run *r, tpl_loop *l, tpl_value *out) {
    while (tg_tpl_next(r, &l->source, out))
        if (!l->tests || passes(r, l, *out)) return true;
    return false;
}

/* Takes the next item early, into l->after. Returns false if there is none. */
static bool peek(tpl_run *r, tpl_loop *l) {
    if (l->after.kind == TPL_ABSENT && !take(r, l, &l->after)) l->after = (tpl_value){.kind = TPL_ABSENT};
    return l->after.kind != TPL_ABSENT;
}

/* Makes the next item the current one. Returns false if there is none. */
static bool advance(tpl_run *r, tpl_loop *l) {
    tpl_value v = l->after;
    if (v.kind == TPL_ABSENT && !take(r, l, &v)) return false;
    l->after = (tpl_value){.kind = TPL_ABSENT};
    l->index0++;
    l->before = l->current;
    l->current = v;
    return true;
}

int64_t tg_tpl_loop_length(tpl_run *r, tpl_loop *l) {
    if (l->length >= 0) return l->length;
    l->length = l->tests ? -1 : tg_tpl_length(r, l->source.of);
    if (l->length >= 0) return l->length;
    /* Only taking all items that are left tells how many pass. The loop goes on with a list of them. */
    tpl_value rest = tg_tpl_list_new(r, TPL_LIST), v;
    while (take(r, l, &v)) tg_tpl_append(r, rest.list, v);
    l->source = tg_tpl_iterate(r, rest);
    l->tests = false;
    l->length = rest.list->n + l->index0 + 1 + (l->after.kind != TPL_ABSENT);
    return l->length;
}

/* ---- The variable ---- */

tpl_value tg_tpl_loop_attribute(tpl_run *r, tpl_loop *l, tpl_text *name) {
    static const char *const methods[] = {"cycle", "changed"};
    if (tg_tpl_is(name, "index")) return tg_tpl_int(l->index0 + 1);
    if (tg_tpl_is(name, "index0")) return tg_tpl_int(l->index0);
    if (tg_tpl_is(name, "first")) return tg_tpl_bool(l->index0 == 0);
    if (tg_tpl_is(name, "last")) return tg_tpl_bool(!peek(r, l));
    if (tg_tpl_is(name, "length")) return tg_tpl_int(tg_tpl_loop_length(r, l));
    if (tg_tpl_is(name, "revindex")) return tg_tpl_int(tg_tpl_loop_length(r, l) - l->index0);
    if (tg_tpl_is(name, "revindex0")) return tg_tpl_int(tg_tpl_loop_length(r, l) - l->index0 - 1);
    if (tg_tpl_is(name, "depth")) return tg_tpl_int(l->depth0 + 1);
    if (tg_tpl_is(name, "depth0")) return tg_tpl_int(l->depth0);
    if (tg_tpl_is(name, "previtem")) return l->index0 ? l->before : tg_tpl_undefined(TPL_NO_ITEM, NULL);
    if (tg_tpl_is(name, "nextitem")) return peek(r, l) ? l->after : tg_tpl_undefined(TPL_NO_ITEM, NULL);
    for (int i = 0; i < TG_LEN(methods); i++) {
        if (!tg_tpl_is(name, methods[i])) continue;
        tpl_method *m = tg_tpl_alloc(r, sizeof *m);
        *m = (tpl_method){{.kind = TPL_LOOP, .loop = l}, methods[i]};
        return (tpl_value){.kind = TPL_METHOD, .method = m};
    }
    return (tpl_value){.kind = TPL_ABSENT};
}

tpl_value tg_tpl_call_loop_method(tpl_run *r, const tpl_method *m, const tpl_call *c) {
    tpl_loop *l = m->of.loop;
    if (!strcmp(m->name, "cycle")) {
        if (!c->n || c->named.n) tg_tpl_fail(r, TG_ERR_DATA, "'loop.cycle' takes the values to cycle through");
        return c->args[l->index0 % c->n];
    }
    tpl_value now = tg_tpl_list_new(r, TPL_TUPLE);
    for (int64_t i = 0; i < c->n; i++) tg_tpl_append(r, now.list, c->args[i]);
    bool same = l->changed.kind != TPL_ABSENT && tg_tpl_equal(r, l->changed, now);
    l->changed = now;
    return tg_tpl_bool(!same);
}

tpl_value tg_tpl_call_loop(tpl_run *r, tpl_loop *l, const tpl_call *c) {
    if (!l->node->op) tg_tpl_fail(r, TG_ERR_DATA, "only a loop that is marked 'recursive' can be called");
    if (c->n != 1 || c->named.n) tg_tpl_fail(r, TG_ERR_DATA, "'loop' takes the items of the inner loop");
    tpl_render *render = r->render;
    tpl_buffer text = {0}, *out = render->out;
    tpl_scope *scope = render->scope;
    render->out = &text;
    render->scope = l->outer;
    tg_tpl_run_loop(r, l->node, c->args[0], l->depth0 + 1);
    render->out = out;
    render->scope = scope;
    return tg_tpl_take(r, &text);
}

/* ---- The statement ---- */

/* Runs the body for the current item. Its scope is used again for the next item unless a macro keeps it. */
static tpl_signal run_item(tpl_run *r, tpl_loop *l, tpl_scope **scope) {
    tpl_render *render = r->render;
    int64_t captures = render->captures;
    if (!*scope) *scope = tg_tpl_alloc(r, sizeof **scope);
    (*scope)->parent = l->outer;
    (*scope)->names.n = 0;
    render->scope = *scope;
    tg_tpl_add_pair(r, &(*scope)->names, l->name, (tpl_value){.kind = TPL_LOOP, .loop = l});
    tg_tpl_assign(r, l->node->left, l->current);
    tpl_signal signal = tg_tpl_run_body(r, l->node->first);
    render->scope = l->outer;
    if (render->captures != captures) *scope = NULL;
    if (signal == TPL_GO_ON) l->completed = true;
    return signal;
}

static tpl_signal run_else(tpl_run *r, const tpl_node *n) {
    tpl_scope *outer = r->render->scope, *scope = tg_tpl_alloc(r, sizeof *scope);
    *scope = (tpl_scope){.parent = outer};
    r->render->scope = scope;
    tpl_signal signal = tg_tpl_run_body(r, n->second);
    r->render->scope = outer;
    return signal;
}

tpl_signal tg_tpl_run_loop(tpl_run *r, const tpl_node *n, tpl_value items, int depth) {
    tpl_loop *l = tg_tpl_alloc(r, sizeof *l);
    tpl_scope *scope = NULL;
    tg_tpl_enter(r);
    *l = (tpl_loop){.node = n,
                    .outer = r->render->scope,
                    .source = tg_tpl_iterate(r, items),
                    .tests = n->third != NULL,
                    .index0 = -1,
                    .length = -1,
                    .depth0 = depth,
                    .name = tg_tpl_string(r, "loop")};
    while (advance(r, l))
        if (run_item(r, l, &scope) == TPL_LEAVE) break;
    /* As in Jinja, whose generated code notes at the end of the body that there was an item. */
    tpl_signal signal = l->completed ? TPL_GO_ON : run_else(r, n);
    tg_tpl_return(r);
    return signal;
}
