/* Evaluates expressions. */
#include "text/template/evaluate.h"

#include <string.h>

/* ---- Names ---- */

void tg_tpl_set_name(tpl_run *r, tpl_scope *scope, tpl_text *name, tpl_value v) {
    tg_tpl_set(r, &scope->names, (tpl_value){.kind = TPL_TEXT, .text = name}, v);
}

tpl_value tg_tpl_name(tpl_run *r, tpl_text *name) {
    tpl_value key = {.kind = TPL_TEXT, .text = name};
    tpl_pair *p = NULL;
    for (const tpl_scope *s = r->render->scope; s && !p; s = s->parent) p = tg_tpl_find(r, &s->names, key);
    if (!p) p = tg_tpl_find(r, r->render->variables, key);
    if (p) return p->value;
    const tpl_function *f = tg_tpl_builtin(name);
    return f ? (tpl_value){.kind = TPL_FUNCTION, .function = f} : tg_tpl_undefined(TPL_NO_NAME, name);
}

/* ---- Literals ---- */

static tpl_value make_list(tpl_run *r, const tpl_node *n, tpl_kind kind) {
    tpl_value v = tg_tpl_list_new(r, kind);
    for (const tpl_node *i = n->first; i; i = i->next) tg_tpl_append(r, v.list, tg_tpl_eval(r, i));
    return v;
}

static tpl_value make_dict(tpl_run *r, const tpl_node *n) {
    tpl_value v = tg_tpl_dict_new(r, TPL_DICT);
    for (const tpl_node *p = n->first; p; p = p->next) {
        tpl_value key = tg_tpl_eval(r, p->left), value = tg_tpl_eval(r, p->right);
        r->at = p->at;
        tg_tpl_set(r, v.dict, key, value);
    }
    return v;
}

/* ---- Items, calls, filters, tests ---- */

static tpl_value eval_or_none(tpl_run *r, const tpl_node *n) { return n ? tg_tpl_eval(r, n) : tg_tpl_none(); }

static tpl_value eval_item(tpl_run *r, const tpl_node *n) {
    tpl_value of = tg_tpl_eval(r, n->left);
    const tpl_node *key = n->right;
    if (key->kind != TPL_N_SLICE) {
        tpl_value k = tg_tpl_eval(r, key);
        r->at = n->at;
        return tg_tpl_item(r, of, k);
    }
    tpl_value start = eval_or_none(r, key->left), stop = eval_or_none(r, key->right),
              step = eval_or_none(r, key->third);
    r->at = n->at;
    return tg_tpl_slice(r, of, start, stop, step);
}

static tpl_value eval_attribute(tpl_run *r, const tpl_node *n) {
    tpl_value of = tg_tpl_eval(r, n->left);
    r->at = n->at;
    return tg_tpl_attribute(r, of, n->name);
}

static tpl_value eval_call(tpl_run *r, const tpl_node *n) {
    tpl_call c = {0};
    tpl_value callee = tg_tpl_eval(r, n->left);
    tg_tpl_arguments(r, n->first, &c);
    r->at = n->at;
    return tg_tpl_call(r, callee, &c);
}

static tpl_value eval_filter(tpl_run *r, const tpl_node *n) {
    tpl_call c = {0};
    tpl_value on = n->left ? tg_tpl_eval(r, n->left) : r->render->piped;
    tg_tpl_arguments(r, n->first, &c);
    r->at = n->at;
    return tg_tpl_apply(r, n->filter, on, &c);
}

static tpl_value eval_test(tpl_run *r, const tpl_node *n) {
    tpl_call c = {0};
    tpl_value on = tg_tpl_eval(r, n->left);
    tg_tpl_arguments(r, n->first, &c);
    r->at = n->at;
    return tg_tpl_bool(tg_tpl_holds(r, n->test, on, &c));
}

/* ---- Operators ---- */

static tpl_value eval_arithmetic(tpl_run *r, const tpl_node *n) {
    tpl_value a = tg_tpl_eval(r, n->left), b = tg_tpl_eval(r, n->right);
    r->at = n->at;
    return tg_tpl_arithmetic(r, n->op, a, b);
}

static tpl_value eval_logic(tpl_run *r, const tpl_node *n) {
    tpl_value a = tg_tpl_eval(r, n->left);
    return tg_tpl_truth(r, a) == (n->kind == TPL_N_AND) ? tg_tpl_eval(r, n->right) : a;
}

static tpl_value eval_concat(tpl_run *r, const tpl_node *n) {
    tpl_buffer b = {0};
    for (const tpl_node *i = n->first; i; i = i->next) {
        tpl_value v = tg_tpl_eval(r, i);
        r->at = i->at;
        tg_tpl_put_value(r, &b, v);
    }
    return tg_tpl_take(r, &b);
}

static tpl_value eval_compare(tpl_run *r, const tpl_node *n) {
    tpl_value a = tg_tpl_eval(r, n->left);
    for (const tpl_node *o = n->first; o; o = o->next) {
        tpl_value b = tg_tpl_eval(r, o->left);
        r->at = o->at;
        if (!tg_tpl_compare(r, o->op, a, b)) return tg_tpl_bool(false);
        a = b;
    }
    return tg_tpl_bool(true);
}

static tpl_value eval_condition(tpl_run *r, const tpl_node *n) {
    if (tg_tpl_truth(r, tg_tpl_eval(r, n->left))) return tg_tpl_eval(r, n->right);
    return n->third ? tg_tpl_eval(r, n->third) : tg_tpl_undefined(TPL_NO_ELSE, NULL);
}

static tpl_value eval_sign(tpl_run *r, const tpl_node *n) {
    tpl_value v = tg_tpl_eval(r, n->left);
    r->at = n->at;
    if (n->kind == TPL_N_NEGATE) return tg_tpl_negate(r, v);
    tg_tpl_require(r, v);
    if (!tg_tpl_is_number(v)) tg_tpl_fail(r, TG_ERR_DATA, "'+' takes a number, not a %s", tg_tpl_type_name(v));
    return v.kind == TPL_REAL ? v : tg_tpl_int(tg_tpl_to_int(r, v, "the operand"));
}

static tpl_value eval_kind(tpl_run *r, const tpl_node *n) {
    switch (n->kind) {
    case TPL_N_CONST:
        return n->value;
    case TPL_N_NAME:
        return tg_tpl_name(r, n->name);
    case TPL_N_MAKE_LIST:
        return make_list(r, n, TPL_LIST);
    case TPL_N_MAKE_TUPLE:
        return make_list(r, n, TPL_TUPLE);
    case TPL_N_MAKE_DICT:
        return make_dict(r, n);
    case TPL_N_ATTR:
        return eval_attribute(r, n);
    case TPL_N_ITEM:
        return eval_item(r, n);
    case TPL_N_CALL:
        return eval_call(r, n);
    case TPL_N_FILTER:
        return eval_filter(r, n);
    case TPL_N_TEST:
        return eval_test(r, n);
    case TPL_N_NEGATE:
    case TPL_N_PLUS:
        return eval_sign(r, n);
    case TPL_N_NOT:
        return tg_tpl_bool(!tg_tpl_truth(r, tg_tpl_eval(r, n->left)));
    case TPL_N_AND:
    case TPL_N_OR:
        return eval_logic(r, n);
    case TPL_N_ARITHMETIC:
        return eval_arithmetic(r, n);
    case TPL_N_CONCAT:
        return eval_concat(r, n);
    case TPL_N_COMPARE:
        return eval_compare(r, n);
    case TPL_N_CONDITION:
        return eval_condition(r, n);
    default:
        tg_tpl_fail(r, TG_ERR_FORMAT, "a slice is not allowed here");
    }
}

tpl_value tg_tpl_eval(tpl_run *r, const tpl_node *n) {
    r->at = n->at;
    tg_tpl_enter(r);
    tpl_value v = eval_kind(r, n);
    tg_tpl_return(r);
    return v;
}
