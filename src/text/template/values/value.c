/* Making values: texts, lists, dicts; their types, and conversions of numbers. */
#include "text/template/values/value.h"

#include <string.h>

#include "text/template/values/characters.h"

tpl_value tg_tpl_text(tpl_run *r, const char *bytes, size_t n) {
    tpl_text *t = tg_tpl_alloc(r, sizeof *t);
    *t = (tpl_text){bytes ? bytes : "", n, n ? -1 : 0}; /* never NULL, so that offsets may be added */
    return (tpl_value){.kind = TPL_TEXT, .text = t};
}

tpl_value tg_tpl_string(tpl_run *r, const char *s) { return tg_tpl_text(r, s, strlen(s)); }

tpl_value tg_tpl_take(tpl_run *r, const tpl_buffer *b) { return tg_tpl_text(r, b->bytes, b->n); }

bool tg_tpl_same_text(const tpl_text *a, const tpl_text *b) {
    return a == b || (a->n == b->n && (!a->n || !memcmp(a->bytes, b->bytes, a->n)));
}

/* ---- Lists ---- */

tpl_value tg_tpl_list_new(tpl_run *r, tpl_kind kind) {
    tpl_list *list = tg_tpl_alloc(r, sizeof *list);
    *list = (tpl_list){0};
    return (tpl_value){.kind = (uint8_t)kind, .list = list};
}

void tg_tpl_append(tpl_run *r, tpl_list *list, tpl_value v) {
    tg_tpl_spend(r, 1);
    list->items = tg_tpl_grow(r, list->items, list->n, &list->capacity, sizeof v);
    list->items[list->n++] = v;
}

tpl_value tg_tpl_pair_new(tpl_run *r, tpl_value a, tpl_value b) {
    tpl_value v = tg_tpl_list_new(r, TPL_TUPLE);
    tg_tpl_append(r, v.list, a);
    tg_tpl_append(r, v.list, b);
    return v;
}

tpl_value tg_tpl_range_new(tpl_run *r, const int64_t arguments[3], int64_t n) {
    tpl_value v = tg_tpl_list_new(r, TPL_RANGE);
    memcpy(v.list->range, arguments, sizeof v.list->range);
    int64_t number = arguments[0];
    for (int64_t i = 0; i < n; i++) {
        tg_tpl_append(r, v.list, tg_tpl_int(number));
        if (__builtin_add_overflow(number, arguments[2], &number)) break; /* this was the last one */
    }
    return v;
}

/* ---- Dicts ---- */

tpl_value tg_tpl_dict_new(tpl_run *r, tpl_kind kind) {
    tpl_dict *d = tg_tpl_alloc(r, sizeof *d);
    *d = (tpl_dict){0};
    return (tpl_value){.kind = (uint8_t)kind, .dict = d};
}

/* Returns v, or what is in the tuple v, if it cannot be a key of a dict; NULL if v can be a key. */
static const tpl_value *no_key(tpl_run *r, const tpl_value *v) {
    const tpl_value *found = NULL;
    if (v->kind == TPL_LIST || v->kind == TPL_DICT) return v;
    if (v->kind != TPL_TUPLE) return NULL;
    tg_tpl_enter(r); /* tuples may be nested as deep as a loop makes them */
    tg_tpl_spend(r, v->list->n);
    for (int64_t i = 0; i < v->list->n && !found; i++) found = no_key(r, &v->list->items[i]);
    tg_tpl_return(r);
    return found;
}

bool tg_tpl_is_key(tpl_run *r, tpl_value v) { return !no_key(r, &v); }

/* Compares texts, and counts the steps of that. */
static bool same_key(tpl_run *r, const tpl_text *a, const tpl_text *b) {
    if (a->n != b->n) return false;
    tg_tpl_spend(r, (int64_t)(a->n >> 4));
    return tg_tpl_same_text(a, b);
}

tpl_pair *tg_tpl_find(tpl_run *r, const tpl_dict *d, tpl_value key) {
    const tpl_value *wrong = no_key(r, &key);
    if (wrong) tg_tpl_fail(r, TG_ERR_DATA, "a %s cannot be a key", tg_tpl_type_name(*wrong));
    tg_tpl_spend(r, 1 + (d->n >> 3));
    for (int64_t i = 0; i < d->n; i++) {
        tpl_value k = d->pairs[i].key;
        bool same =
            key.kind == TPL_TEXT && k.kind == TPL_TEXT ? same_key(r, key.text, k.text) : tg_tpl_equal(r, k, key);
        if (same) return &d->pairs[i];
    }
    return NULL;
}

tpl_pair *tg_tpl_find_name(const tpl_dict *d, const char *name) {
    for (int64_t i = 0; i < d->n; i++)
        if (d->pairs[i].key.kind == TPL_TEXT && tg_tpl_is(d->pairs[i].key.text, name)) return &d->pairs[i];
    return NULL;
}

void tg_tpl_add_pair(tpl_run *r, tpl_dict *d, tpl_value key, tpl_value v) {
    tg_tpl_spend(r, 1);
    d->pairs = tg_tpl_grow(r, d->pairs, d->n, &d->capacity, sizeof *d->pairs);
    d->pairs[d->n++] = (tpl_pair){key, v};
}

void tg_tpl_set(tpl_run *r, tpl_dict *d, tpl_value key, tpl_value v) {
    tpl_pair *p = tg_tpl_find(r, d, key);
    if (p)
        p->value = v;
    else
        tg_tpl_add_pair(r, d, key, v);
}

tpl_value tg_tpl_view(tpl_run *r, const tpl_dict *d, char of) {
    tpl_value v = tg_tpl_list_new(r, TPL_VIEW);
    v.of = (uint8_t)of;
    for (int64_t i = 0; i < d->n; i++) {
        tpl_pair p = d->pairs[i];
        tg_tpl_append(r, v.list, of == 'k' ? p.key : of == 'v' ? p.value : tg_tpl_pair_new(r, p.key, p.value));
    }
    return v;
}

/* ---- Types ---- */

const char *tg_tpl_type_name(tpl_value v) {
    static const char *const names[] = {
        [TPL_ABSENT] = "missing", [TPL_UNDEFINED] = "Undefined", [TPL_NONE] = "NoneType",  [TPL_BOOL] = "bool",
        [TPL_INT] = "int",        [TPL_REAL] = "float",          [TPL_TEXT] = "str",       [TPL_LIST] = "list",
        [TPL_TUPLE] = "tuple",    [TPL_RANGE] = "range",         [TPL_VIEW] = "dict view", [TPL_ITERATOR] = "generator",
        [TPL_DICT] = "dict",      [TPL_NAMESPACE] = "namespace", [TPL_LOOP] = "loop",      [TPL_MACRO] = "macro",
        [TPL_METHOD] = "method",  [TPL_FUNCTION] = "function",
    };
    return names[v.kind];
}

void tg_tpl_require(tpl_run *r, tpl_value v) {
    if (v.kind != TPL_UNDEFINED) return;
    const char *what = v.text ? v.text->bytes : "";
    int n = v.text ? (int)(v.text->n < 200 ? v.text->n : 200) : 0;
    switch (v.of) {
    case TPL_NO_NAME:
        tg_tpl_fail(r, TG_ERR_DATA, "'%.*s' is undefined", n, what);
    case TPL_NO_ARGUMENT:
        tg_tpl_fail(r, TG_ERR_DATA, "parameter '%.*s' was not provided", n, what);
    case TPL_NO_ELSE:
        tg_tpl_fail(r, TG_ERR_DATA, "the condition of an inline 'if' without 'else' is false");
    case TPL_NO_ITEM:
        tg_tpl_fail(r, TG_ERR_DATA, "there is no such item");
    case TPL_UNSAFE:
        tg_tpl_fail(r, TG_ERR_DATA, "a template may not use '%.*s', which changes its object", n, what);
    default:
        tg_tpl_fail(r, TG_ERR_DATA, "a value of type %s has no attribute or element '%.*s'",
                    tg_tpl_type_name((tpl_value){.kind = v.of}), n, what);
    }
}

bool tg_tpl_is_number(tpl_value v) { return v.kind == TPL_BOOL || v.kind == TPL_INT || v.kind == TPL_REAL; }

bool tg_tpl_has_items(tpl_value v) { return v.kind >= TPL_LIST && v.kind <= TPL_ITERATOR; }

int64_t tg_tpl_to_int(tpl_run *r, tpl_value v, const char *what) {
    if (v.kind == TPL_INT) return v.integer;
    if (v.kind == TPL_BOOL) return v.truth;
    tg_tpl_require(r, v);
    tg_tpl_fail(r, TG_ERR_DATA, "%s is a %s, expected an integer", what, tg_tpl_type_name(v));
}

double tg_tpl_to_real(tpl_run *r, tpl_value v, const char *what) {
    if (v.kind == TPL_REAL) return v.real;
    if (tg_tpl_is_number(v)) return (double)tg_tpl_to_int(r, v, what);
    tg_tpl_require(r, v);
    tg_tpl_fail(r, TG_ERR_DATA, "%s is a %s, expected a number", what, tg_tpl_type_name(v));
}
