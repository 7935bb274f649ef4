/* Runs statements. */
#include <string.h>

#include "text/template/evaluate.h"

/* ---- Scopes and captured text ---- */

static tpl_scope *open_scope(tpl_run *r) {
    tpl_scope *s = tg_tpl_alloc(r, sizeof *s);
    *s = (tpl_scope){.parent = r->render->scope};
    r->render->scope = s;
    return s;
}

static void close_scope(tpl_run *r) { r->render->scope = r->render->scope->parent; }

tpl_value tg_tpl_capture(tpl_run *r, const tpl_node *first, tpl_signal *signal) {
    tpl_buffer text = {0}, *before = r->render->out;
    r->render->out = &text;
    open_scope(r);
    *signal = tg_tpl_run_body(r, first);
    close_scope(r);
    r->render->out = before;
    return tg_tpl_take(r, &text);
}

static void put(tpl_run *r, tpl_value v) { tg_tpl_put_value(r, r->render->out, v); }

/* ---- Assignment ---- */

static void assign_attribute(tpl_run *r, const tpl_node *target, tpl_value v) {
    tpl_value of = tg_tpl_name(r, target->left->name);
    r->at = target->at;
    if (of.kind != TPL_NAMESPACE)
        tg_tpl_fail(r, TG_ERR_DATA, "only a namespace takes new attributes, and '%.*s' is a %s",
                    (int)target->left->name->n, target->left->name->bytes, tg_tpl_type_name(of));
    if (target->name->bytes[0] == '_')
        tg_tpl_fail(r, TG_ERR_DATA, "an attribute of a namespace cannot begin with '_': '%.*s'", (int)target->name->n,
                    target->name->bytes);
    tg_tpl_set(r, of.dict, (tpl_value){.kind = TPL_TEXT, .text = target->name}, v);
}

static void assign_items(tpl_run *r, const tpl_node *target, tpl_value v) {
    int64_t want = 0, i = 0;
    r->at = target->at;
    tg_tpl_enter(r);
    tpl_value items = tg_tpl_collect(r, v);
    for (const tpl_node *t = target->first; t; t = t->next) want++;
    if (items.list->n != want)
        tg_tpl_fail(r, TG_ERR_DATA, "%lld items are assigned to %lld names", (long long)items.list->n, (long long)want);
    for (const tpl_node *t = target->first; t; t = t->next) tg_tpl_assign(r, t, items.list->items[i++]);
    tg_tpl_return(r);
}

void tg_tpl_assign(tpl_run *r, const tpl_node *target, tpl_value v) {
    if (target->kind == TPL_N_NAME)
        tg_tpl_set_name(r, r->render->scope, target->name, v);
    else if (target->kind == TPL_N_ATTR)
        assign_attribute(r, target, v);
    else
        assign_items(r, target, v);
}

/* ---- Blocks ---- */

static tpl_value filtered(tpl_run *r, const tpl_node *filters, tpl_value text) {
    if (!filters) return text;
    tpl_value before = r->render->piped;
    r->render->piped = text;
    tpl_value v = tg_tpl_eval(r, filters);
    r->render->piped = before;
    return v;
}

static tpl_signal run_set_block(tpl_run *r, const tpl_node *n) {
    tpl_signal signal;
    tpl_value text = tg_tpl_capture(r, n->first, &signal);
    if (signal == TPL_GO_ON) tg_tpl_assign(r, n->left, filtered(r, n->right, text));
    return signal;
}

static tpl_signal run_filter_block(tpl_run *r, const tpl_node *n) {
    tpl_signal signal;
    tpl_value text = tg_tpl_capture(r, n->first, &signal);
    if (signal == TPL_GO_ON) put(r, filtered(r, n->right, text));
    return signal;
}

/* The values are evaluated in the scope around the block. */
static tpl_signal run_with(tpl_run *r, const tpl_node *n) {
    tpl_scope *outer = r->render->scope, *inner = open_scope(r);
    for (const tpl_node *s = n->second; s; s = s->next) {
        r->render->scope = outer;
        tpl_value v = tg_tpl_eval(r, s->right);
        r->render->scope = inner;
        tg_tpl_assign(r, s->left, v);
    }
    tpl_signal signal = tg_tpl_run_body(r, n->first);
    close_scope(r);
    return signal;
}

/* ---- Macros and generation ---- */

static tpl_value macro_of(tpl_run *r, const tpl_node *n, const tpl_text *name) {
    tpl_macro *m = tg_tpl_alloc(r, sizeof *m);
    *m = (tpl_macro){name, n, r->render->scope};
    r->render->captures++;
    return (tpl_value){.kind = TPL_MACRO, .macro = m};
}

static void run_call_block(tpl_run *r, const tpl_node *n) {
    static const tpl_text name = {"caller", 6, 6};
    tpl_call c = {0};
    tpl_value callee = tg_tpl_eval(r, n->left->left);
    tg_tpl_arguments(r, n->left->first, &c);
    r->at = n->at;
    tg_tpl_set(r, &c.named, tg_tpl_string(r, "caller"), macro_of(r, n, &name));
    put(r, tg_tpl_call(r, callee, &c));
}

/* The span begins where the result ends now, as in transformers: also if the block is in a macro or in a set block,
 * whose text comes into the result later or never. */
static void run_generation(tpl_run *r, const tpl_node *n) {
    tpl_render *render = r->render;
    tpl_signal signal;
    tpl_value text = tg_tpl_capture(r, n->first, &signal);
    render->spans = tg_tpl_grow(r, render->spans, render->n_spans, &render->span_capacity, sizeof *render->spans);
    render->spans[render->n_spans++] = (tg_text_span){render->text.n, render->text.n + text.text->n};
    put(r, text);
}

/* ---- All ---- */

static void print(tpl_run *r, const tpl_node *n) {
    for (const tpl_node *e = n->first; e; e = e->next) {
        tpl_value v = tg_tpl_eval(r, e);
        r->at = e->at;
        put(r, v);
    }
}

static tpl_signal run_for(tpl_run *r, const tpl_node *n) {
    tpl_value items = tg_tpl_eval(r, n->right);
    r->at = n->at;
    return tg_tpl_run_loop(r, n, items, 0);
}

static tpl_signal run_one(tpl_run *r, const tpl_node *n) {
    switch (n->kind) {
    case TPL_N_CONST:
        put(r, n->value);
        break;
    case TPL_N_PRINT:
        print(r, n);
        break;
    case TPL_N_IF:
        return tg_tpl_run_body(r, tg_tpl_truth(r, tg_tpl_eval(r, n->left)) ? n->first : n->second);
    case TPL_N_FOR:
        return run_for(r, n);
    case TPL_N_SET:
        tg_tpl_assign(r, n->left, tg_tpl_eval(r, n->right));
        break;
    case TPL_N_SET_BLOCK:
        return run_set_block(r, n);
    case TPL_N_WITH:
        return run_with(r, n);
    case TPL_N_MACRO:
        tg_tpl_set_name(r, r->render->scope, n->name, macro_of(r, n, n->name));
        break;
    case TPL_N_CALL_BLOCK:
        run_call_block(r, n);
        break;
    case TPL_N_FILTER_BLOCK:
        return run_filter_block(r, n);
    case TPL_N_GENERATION:
        run_generation(r, n);
        break;
    case TPL_N_BREAK:
        return TPL_LEAVE;
    default:
        return TPL_NEXT;
    }
    return TPL_GO_ON;
}

tpl_signal tg_tpl_run_body(tpl_run *r, const tpl_node *first) {
    tpl_signal signal = TPL_GO_ON;
    tg_tpl_enter(r);
    for (const tpl_node *n = first; n && signal == TPL_GO_ON; n = n->next) {
        tg_tpl_spend(r, 1);
        signal = run_one(r, n);
    }
    tg_tpl_return(r);
    return signal;
}
