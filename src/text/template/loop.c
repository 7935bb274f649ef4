/* The for statement, and the call of a recursive loop. */
#include "text/template/loop.h"

/* Returns whether an item passes the test of the loop, which is evaluated in a scope of its own. */
static bool passes(tpl_run *r, tpl_loop *l, tpl_value v) {
    tpl_scope *before = r->render->scope, *own = tg_tpl_alloc(r, sizeof *own);
    *own = (tpl_scope){.parent = l->outer};
    r->render->scope = own;
    tg_tpl_assign(r, l->node->left, v);
    bool good = tg_tpl_truth(r, tg_tpl_eval(r, l->node->third));
    r->render->scope = before;
    return good;
}

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
                    .passes = n->third ? passes : NULL,
                    .index0 = -1,
                    .length = -1,
                    .depth0 = depth,
                    .name = tg_tpl_string(r, "loop")};
    while (tg_tpl_loop_advance(r, l))
        if (run_item(r, l, &scope) == TPL_LEAVE) break;
    /* As in Jinja, whose generated code notes at the end of the body that there was an item. */
    tpl_signal signal = l->completed ? TPL_GO_ON : run_else(r, n);
    tg_tpl_return(r);
    return signal;
}

/* ---- Recursion ---- */

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
