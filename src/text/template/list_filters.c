/* Filters of lists: ends, order, choice. */
#include <string.h>

#include "text/template/filters.h"
#include "text/template/values/strings.h"

static tpl_value iterator_of(tpl_run *r) { return tg_tpl_list_new(r, TPL_ITERATOR); }

/* ---- Ends ---- */

TPL_FILTER(first) {
    (void)a, (void)c;
    tpl_value v;
    tpl_iter i = tg_tpl_iterate(r, on);
    return tg_tpl_next(r, &i, &v) ? v : tg_tpl_undefined(TPL_NO_ITEM, NULL);
}

TPL_FILTER(last) {
    (void)a, (void)c;
    if (on.kind == TPL_ITERATOR) tg_tpl_fail(r, TG_ERR_DATA, "'last' needs a list; write '|list' before it");
    tg_tpl_require(r, on);
    const tpl_list *list = tg_tpl_collect(r, on).list;
    return list->n ? list->items[list->n - 1] : tg_tpl_undefined(TPL_NO_ITEM, NULL);
}

TPL_FILTER(list) {
    (void)a, (void)c;
    return tg_tpl_collect(r, on);
}

TPL_FILTER(items) {
    (void)a, (void)c;
    tpl_value v = iterator_of(r);
    if (on.kind == TPL_UNDEFINED) return v;
    if (on.kind != TPL_DICT) tg_tpl_fail(r, TG_ERR_DATA, "'items' takes a dict, not a %s", tg_tpl_type_name(on));
    v.list->items = tg_tpl_view(r, on.dict, 'i').list->items;
    v.list->n = on.dict->n;
    return v;
}

TPL_FILTER(reverse) {
    (void)a, (void)c;
    if (on.kind == TPL_TEXT) return tg_tpl_slice(r, on, tg_tpl_none(), tg_tpl_none(), tg_tpl_int(-1));
    tpl_value list = tg_tpl_collect(r, on), v = iterator_of(r);
    for (int64_t i = list.list->n; i-- > 0;) tg_tpl_append(r, v.list, list.list->items[i]);
    if (on.kind == TPL_ITERATOR) v.kind = TPL_LIST;
    return v;
}

TPL_FILTER(batch) {
    (void)c;
    int64_t most = tg_tpl_to_int(r, a[0], "the size of 'batch'");
    tpl_value all = iterator_of(r), row = tg_tpl_list_new(r, TPL_LIST), v;
    for (tpl_iter i = tg_tpl_iterate(r, on); tg_tpl_next(r, &i, &v);) {
        if (row.list->n == most) { /* also before the first item, if rows have no items */
            tg_tpl_append(r, all.list, row);
            row = tg_tpl_list_new(r, TPL_LIST);
        }
        tg_tpl_append(r, row.list, v);
    }
    if (row.list->n == 0) return all;
    while (tg_tpl_given(a[1]) && a[1].kind != TPL_NONE && row.list->n < most) tg_tpl_append(r, row.list, a[1]);
    tg_tpl_append(r, all.list, row);
    return all;
}

/* ---- Order ---- */

tpl_value tg_tpl_key(tpl_run *r, tpl_value v, bool case_sensitive) {
    return v.kind == TPL_TEXT && !case_sensitive ? tg_tpl_change_case(r, v.text, false) : v;
}

typedef struct entry {
    tpl_value key, item;
} entry;

static void merge(tpl_run *r, entry *from, entry *to, int64_t low, int64_t middle, int64_t high, bool reverse) {
    for (int64_t i = low, j = middle, at = low; at < high; at++) {
        bool second = i >= middle;
        if (!second && j < high) {
            int order = tg_tpl_order(r, from[j].key, from[i].key, "<");
            second = reverse ? order == 1 : order == -1;
        }
        to[at] = second ? from[j++] : from[i++];
    }
}

void tg_tpl_sort(tpl_run *r, tpl_list *list, tpl_value *keys, bool reverse) {
    int64_t n = list->n;
    entry *from = tg_tpl_alloc(r, (size_t)n * sizeof *from), *to = tg_tpl_alloc(r, (size_t)n * sizeof *to);
    for (int64_t i = 0; i < n; i++) from[i] = (entry){keys[i], list->items[i]};
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t low = 0; low < n; low += 2 * width) {
            int64_t middle = low + width < n ? low + width : n, high = low + 2 * width < n ? low + 2 * width : n;
            merge(r, from, to, low, middle, high, reverse);
        }
        entry *swap = from;
        from = to;
        to = swap;
        tg_tpl_spend(r, n);
    }
    for (int64_t i = 0; i < n; i++) list->items[i] = from[i].item;
}

/* Returns the key by which `sort` compares: the list of the values of attributes "a,b". It is a list for one attribute
 * too, as in Jinja; without an attribute, the list has the value itself. */
static tpl_value keys_of(tpl_run *r, tpl_value v, tpl_value attribute, bool case_sensitive) {
    static const tpl_text comma = {",", 1, 1};
    tpl_value paths = tg_tpl_list_new(r, TPL_LIST), key = tg_tpl_list_new(r, TPL_LIST);
    if (attribute.kind == TPL_TEXT)
        paths = tg_tpl_split(r, attribute.text, &comma, -1, false);
    else
        tg_tpl_append(r, paths.list, tg_tpl_given(attribute) ? attribute : tg_tpl_none());
    for (int64_t i = 0; i < paths.list->n; i++)
        tg_tpl_append(r, key.list, tg_tpl_key(r, tg_tpl_path(r, v, paths.list->items[i]), case_sensitive));
    return key;
}

TPL_FILTER(sort) {
    (void)c;
    tpl_value list = tg_tpl_collect(r, on);
    tpl_value *keys = tg_tpl_alloc(r, (size_t)list.list->n * sizeof *keys);
    for (int64_t i = 0; i < list.list->n; i++) keys[i] = keys_of(r, list.list->items[i], a[2], tg_tpl_flag(r, a[1]));
    tg_tpl_sort(r, list.list, keys, tg_tpl_flag(r, a[0]));
    return list;
}

TPL_FILTER(dictsort) {
    (void)c;
    bool by_value = tg_tpl_given(a[1]) && a[1].kind == TPL_TEXT && tg_tpl_is(a[1].text, "value");
    if (tg_tpl_given(a[1]) && !by_value && !(a[1].kind == TPL_TEXT && tg_tpl_is(a[1].text, "key")))
        tg_tpl_fail(r, TG_ERR_DATA, "'dictsort' sorts by \"key\" or \"value\"");
    tg_tpl_require(r, on);
    if (on.kind != TPL_DICT) tg_tpl_fail(r, TG_ERR_DATA, "'dictsort' takes a dict, not a %s", tg_tpl_type_name(on));
    tpl_value list = tg_tpl_collect(r, tg_tpl_view(r, on.dict, 'i'));
    tpl_value *keys = tg_tpl_alloc(r, (size_t)list.list->n * sizeof *keys);
    for (int64_t i = 0; i < list.list->n; i++)
        keys[i] = tg_tpl_key(r, list.list->items[i].list->items[by_value], tg_tpl_flag(r, a[0]));
    tg_tpl_sort(r, list.list, keys, tg_tpl_flag(r, a[2]));
    return list;
}

static tpl_value key_of(tpl_run *r, tpl_value v, const tpl_value *a) {
    return tg_tpl_key(r, tg_tpl_given(a[1]) ? tg_tpl_path(r, v, a[1]) : v, tg_tpl_flag(r, a[0]));
}

static tpl_value extreme(tpl_run *r, tpl_value on, const tpl_value *a, int want) {
    tpl_value best = {0}, key = {0}, v;
    for (tpl_iter i = tg_tpl_iterate(r, on); tg_tpl_next(r, &i, &v);) {
        tpl_value k = key_of(r, v, a);
        if (best.kind && tg_tpl_order(r, k, key, want < 0 ? "<" : ">") != want) continue;
        best = v;
        key = k;
    }
    return best.kind ? best : tg_tpl_undefined(TPL_NO_ITEM, NULL);
}

TPL_FILTER(min) {
    (void)c;
    return extreme(r, on, a, -1);
}

TPL_FILTER(max) {
    (void)c;
    return extreme(r, on, a, 1);
}

TPL_FILTER(unique) {
    (void)c;
    tpl_value seen = tg_tpl_dict_new(r, TPL_DICT), all = iterator_of(r), v;
    for (tpl_iter i = tg_tpl_iterate(r, on); tg_tpl_next(r, &i, &v);) {
        tpl_value key = key_of(r, v, a);
        if (tg_tpl_find(r, seen.dict, key)) continue;
        tg_tpl_add_pair(r, seen.dict, key, v);
        tg_tpl_append(r, all.list, v);
    }
    return all;
}

TPL_FILTER(sum) {
    (void)c;
    tpl_value total = tg_tpl_given(a[1]) ? a[1] : tg_tpl_int(0), v;
    bool path = tg_tpl_given(a[0]) && a[0].kind != TPL_NONE;
    if (total.kind == TPL_TEXT) tg_tpl_fail(r, TG_ERR_DATA, "'sum' does not add strings; use 'join'");
    for (tpl_iter i = tg_tpl_iterate(r, on); tg_tpl_next(r, &i, &v);)
        total = tg_tpl_arithmetic(r, '+', total, path ? tg_tpl_path(r, v, a[0]) : v);
    return total;
}

/* ---- Choice ---- */

/* Returns the call without its first n arguments. */
static tpl_call rest_of(const tpl_call *c, int64_t n) {
    return (tpl_call){.args = c->args + n, .n = c->n - n, .named = c->named};
}

static tpl_text *name_at(tpl_run *r, const tpl_call *c, int64_t i, const char *who) {
    if (c->args[i].kind != TPL_TEXT)
        tg_tpl_fail(r, TG_ERR_DATA, "'%s': the name is a %s", who, tg_tpl_type_name(c->args[i]));
    return c->args[i].text;
}

static tpl_value choose(tpl_run *r, tpl_value on, const tpl_call *c, bool attribute, bool keep, const char *who) {
    tpl_value all = iterator_of(r), v;
    int64_t skip = attribute;
    if (!tg_tpl_truth(r, on)) return all;
    if (c->n < skip) tg_tpl_fail(r, TG_ERR_DATA, "'%s' needs the name of an attribute", who);
    const tpl_test *test = c->n > skip ? tg_tpl_find_test(r, name_at(r, c, skip, who)) : NULL;
    tpl_call rest = test ? rest_of(c, skip + 1) : (tpl_call){0};
    for (tpl_iter i = tg_tpl_iterate(r, on); tg_tpl_next(r, &i, &v);) {
        tpl_value of = attribute ? tg_tpl_path(r, v, c->args[0]) : v;
        if ((test ? tg_tpl_holds(r, test, of, &rest) : tg_tpl_truth(r, of)) == keep) tg_tpl_append(r, all.list, v);
    }
    return all;
}

TPL_FILTER(select) { return (void)a, choose(r, on, c, false, true, "select"); }
TPL_FILTER(reject) { return (void)a, choose(r, on, c, false, false, "reject"); }
TPL_FILTER(selectattr) { return (void)a, choose(r, on, c, true, true, "selectattr"); }
TPL_FILTER(rejectattr) { return (void)a, choose(r, on, c, true, false, "rejectattr"); }

static tpl_value map_attribute(tpl_run *r, tpl_value on, const tpl_call *c) {
    tpl_value all = iterator_of(r), a[TPL_PARAMETERS], v;
    tg_tpl_bind(r, "map", "attribute default", 1, c, a);
    tpl_value otherwise = tg_tpl_given(a[1]) ? a[1] : tg_tpl_none();
    for (tpl_iter i = tg_tpl_iterate(r, on); tg_tpl_next(r, &i, &v);)
        tg_tpl_append(r, all.list, tg_tpl_path_or(r, v, a[0], otherwise));
    return all;
}

TPL_FILTER(map) {
    (void)a;
    tpl_value all = iterator_of(r), v;
    if (!tg_tpl_truth(r, on)) return all;
    if (!c->n && tg_tpl_find_name(&c->named, "attribute")) return map_attribute(r, on, c);
    if (!c->n) tg_tpl_fail(r, TG_ERR_DATA, "'map' needs the name of a filter, or attribute=");
    const tpl_filter *f = tg_tpl_find_filter(r, name_at(r, c, 0, "map"));
    tpl_call rest = rest_of(c, 1);
    for (tpl_iter i = tg_tpl_iterate(r, on); tg_tpl_next(r, &i, &v);)
        tg_tpl_append(r, all.list, tg_tpl_apply(r, f, v, &rest));
    return all;
}
