/* Truth, equality and order of values, and passing over their items: as in Python. */
#include <math.h>
#include <string.h>

#include "text/template/values/characters.h"
#include "text/template/evaluate.h"

int64_t tg_tpl_length(tpl_run *r, tpl_value v) {
    switch (v.kind) {
    case TPL_UNDEFINED:
        return 0;
    case TPL_TEXT:
        return tg_tpl_chars(r, v.text);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW:
        return v.list->n;
    case TPL_DICT:
        return v.dict->n;
    case TPL_LOOP:
        return tg_tpl_loop_length(r, v.loop);
    default:
        return -1;
    }
}

bool tg_tpl_truth(tpl_run *r, tpl_value v) {
    switch (v.kind) {
    case TPL_NONE:
        return false;
    case TPL_BOOL:
        return v.truth;
    case TPL_INT:
        return v.integer != 0;
    case TPL_REAL:
        return v.real != 0;
    case TPL_TEXT:
        return v.text->n > 0;
    default:
        return tg_tpl_length(r, v) != 0;
    }
}

/* ---- Equality and order ---- */

static long double number_of(tpl_value v) { /* exact: 64 bits of mantissa or more */
    return v.kind == TPL_REAL ? (long double)v.real : (long double)(v.kind == TPL_BOOL ? v.truth : v.integer);
}

static bool same_items(tpl_run *r, const tpl_list *a, const tpl_list *b) {
    if (a->n != b->n) return false;
    for (int64_t i = 0; i < a->n; i++)
        if (!tg_tpl_equal(r, a->items[i], b->items[i])) return false;
    return true;
}

static bool same_pairs(tpl_run *r, const tpl_dict *a, const tpl_dict *b) {
    if (a->n != b->n) return false;
    for (int64_t i = 0; i < a->n; i++) {
        tpl_pair *p = tg_tpl_find(r, b, a->pairs[i].key);
        if (!p || !tg_tpl_equal(r, a->pairs[i].value, p->value)) return false;
    }
    return true;
}

static bool same_of_kind(tpl_run *r, tpl_value a, tpl_value b) {
    switch (a.kind) {
    case TPL_UNDEFINED:
    case TPL_NONE:
        return true;
    case TPL_TEXT:
        tg_tpl_pass(r, a.text->n);
        return tg_tpl_same_text(a.text, b.text);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
        return same_items(r, a.list, b.list);
    case TPL_VIEW:
        return a.of != 'v' && a.of == b.of && same_items(r, a.list, b.list);
    case TPL_DICT:
        return same_pairs(r, a.dict, b.dict);
    case TPL_METHOD:
        return false;
    default:
        return a.list == b.list;
    }
}

bool tg_tpl_equal(tpl_run *r, tpl_value a, tpl_value b) {
    tg_tpl_spend(r, 1);
    if (tg_tpl_is_number(a) && tg_tpl_is_number(b)) return number_of(a) == number_of(b);
    if (a.kind != b.kind) return false;
    tg_tpl_enter(r);
    bool same = same_of_kind(r, a, b);
    tg_tpl_return(r);
    return same;
}

static int order_bytes(tpl_run *r, const tpl_text *a, const tpl_text *b) {
    size_t n = a->n < b->n ? a->n : b->n;
    tg_tpl_pass(r, n);
    int order = n ? memcmp(a->bytes, b->bytes, n) : 0;
    return order ? order : (a->n > b->n) - (a->n < b->n);
}

static int order_items(tpl_run *r, const tpl_list *a, const tpl_list *b, const char *op) {
    for (int64_t i = 0; i < a->n && i < b->n; i++)
        if (!tg_tpl_equal(r, a->items[i], b->items[i])) return tg_tpl_order(r, a->items[i], b->items[i], op);
    return (a->n > b->n) - (a->n < b->n);
}

int tg_tpl_order(tpl_run *r, tpl_value a, tpl_value b, const char *op) {
    tg_tpl_require(r, a);
    tg_tpl_require(r, b);
    if (tg_tpl_is_number(a) && tg_tpl_is_number(b)) {
        long double x = number_of(a), y = number_of(b);
        return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
    }
    if (a.kind == TPL_TEXT && b.kind == TPL_TEXT) {
        int order = order_bytes(r, a.text, b.text);
        return (order > 0) - (order < 0);
    }
    if (a.kind != b.kind || (a.kind != TPL_LIST && a.kind != TPL_TUPLE))
        tg_tpl_fail(r, TG_ERR_DATA, "'%s' cannot compare a %s with a %s", op, tg_tpl_type_name(a), tg_tpl_type_name(b));
    tg_tpl_enter(r);
    int order = order_items(r, a.list, b.list, op);
    tg_tpl_return(r);
    return order;
}

/* ---- Passing over items ---- */

bool tg_tpl_can_iterate(tpl_value v) {
    return v.kind == TPL_UNDEFINED || v.kind == TPL_TEXT || tg_tpl_has_items(v) || v.kind == TPL_DICT ||
           v.kind == TPL_LOOP;
}

tpl_iter tg_tpl_iterate(tpl_run *r, tpl_value of) {
    if (!tg_tpl_can_iterate(of))
        tg_tpl_fail(r, TG_ERR_DATA, "a value of type %s cannot be iterated", tg_tpl_type_name(of));
    if (of.kind == TPL_LOOP) tg_tpl_fail(r, TG_ERR_UNSUPPORTED, "'loop' cannot be iterated");
    return (tpl_iter){.of = of};
}

static bool next_character(tpl_run *r, tpl_iter *i, tpl_value *out) {
    size_t n, at = (size_t)i->at;
    if (at >= i->of.text->n) return false;
    tg_char_at(i->of.text->bytes + at, &n);
    *out = tg_tpl_text(r, i->of.text->bytes + at, n);
    i->at += (int64_t)n;
    return true;
}

bool tg_tpl_next(tpl_run *r, tpl_iter *i, tpl_value *out) {
    tg_tpl_spend(r, 1);
    if (i->of.kind == TPL_UNDEFINED) return false;
    if (i->of.kind == TPL_TEXT) return next_character(r, i, out);
    if (i->of.kind == TPL_DICT) {
        if (i->at >= i->of.dict->n) return false;
        *out = i->of.dict->pairs[i->at++].key;
        return true;
    }
    int64_t *at = i->of.kind == TPL_ITERATOR ? &i->of.list->at : &i->at;
    if (*at >= i->of.list->n) return false;
    *out = i->of.list->items[(*at)++];
    return true;
}

tpl_value tg_tpl_collect(tpl_run *r, tpl_value of) {
    tpl_value list = tg_tpl_list_new(r, TPL_LIST), v;
    for (tpl_iter i = tg_tpl_iterate(r, of); tg_tpl_next(r, &i, &v);) tg_tpl_append(r, list.list, v);
    return list;
}
