/* Methods of dicts, lists and tuples, and which methods values have. Those that change a value are refused, as in
 * Jinja's sandbox. */
#include <string.h>

#include "base/runtime.h"
#include "text/template/evaluate.h"

static bool is_one_of(const tpl_text *name, const char *const *names, int n, const char **found) {
    for (int i = 0; i < n; i++) {
        if (!tg_tpl_is(name, names[i])) continue;
        *found = names[i];
        return true;
    }
    return false;
}

static tpl_value method_of(tpl_run *r, tpl_value of, const char *name) {
    tpl_method *m = tg_tpl_alloc(r, sizeof *m);
    *m = (tpl_method){of, name};
    return (tpl_value){.kind = TPL_METHOD, .method = m};
}

tpl_value tg_tpl_method(tpl_run *r, tpl_value of, const tpl_text *name) {
    static const char *const dict[] = {"get", "items", "keys", "values", "copy", "fromkeys"};
    static const char *const list[] = {"index", "count", "copy"};
    static const char *const change_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const change_list[] = {"append", "clear", "pop",    "reverse",
                                              "insert", "sort",  "extend", "remove"};
    const char *found;
    bool is_list = of.kind == TPL_LIST, is_tuple = of.kind == TPL_TUPLE || of.kind == TPL_RANGE;
    if (of.kind == TPL_TEXT && tg_tpl_has_text_method(name, &found)) return method_of(r, of, found);
    if (of.kind == TPL_DICT && is_one_of(name, dict, TG_LEN(dict), &found)) return method_of(r, of, found);
    if ((is_list || is_tuple) && is_one_of(name, list, is_list ? 3 : 2, &found)) return method_of(r, of, found);
    if ((of.kind == TPL_DICT && is_one_of(name, change_dict, TG_LEN(change_dict), &found)) ||
        (is_list && is_one_of(name, change_list, TG_LEN(change_list), &found)))
        return tg_tpl_undefined(TPL_UNSAFE, tg_tpl_string(r, found).text);
    return (tpl_value){.kind = TPL_ABSENT};
}

/* ---- Dicts ---- */

static tpl_value get(tpl_run *r, const tpl_dict *d, const tpl_call *c) {
    tpl_value a[TPL_PARAMETERS];
    if (c->named.n) tg_tpl_fail(r, TG_ERR_DATA, "'get' takes no named arguments");
    tg_tpl_bind(r, "get", "key default", 1, c, a);
    tpl_pair *p = tg_tpl_find(r, d, a[0]);
    return p ? p->value : a[1].kind == TPL_ABSENT ? tg_tpl_none() : a[1];
}

static tpl_value copy_dict(tpl_run *r, const tpl_dict *d) {
    tpl_value v = tg_tpl_dict_new(r, TPL_DICT);
    for (int64_t i = 0; i < d->n; i++) tg_tpl_add_pair(r, v.dict, d->pairs[i].key, d->pairs[i].value);
    return v;
}

static tpl_value call_of_dict(tpl_run *r, const tpl_method *m, const tpl_call *c) {
    if (!strcmp(m->name, "get")) return get(r, m->of.dict, c);
    if (!strcmp(m->name, "fromkeys")) tg_tpl_fail(r, TG_ERR_UNSUPPORTED, "the method 'fromkeys' is not supported");
    if (c->n || c->named.n) tg_tpl_fail(r, TG_ERR_DATA, "'%s' takes no arguments", m->name);
    if (!strcmp(m->name, "copy")) return copy_dict(r, m->of.dict);
    return tg_tpl_view(r, m->of.dict, m->name[0]);
}

/* ---- Lists ---- */

static tpl_value call_of_list(tpl_run *r, const tpl_method *m, const tpl_call *c) {
    tpl_value a[TPL_PARAMETERS];
    const tpl_list *list = m->of.list;
    int64_t count = 0;
    if (!strcmp(m->name, "copy")) {
        tg_tpl_bind(r, m->name, "", 0, c, a);
        return tg_tpl_collect(r, m->of);
    }
    tg_tpl_bind(r, m->name, "value", 1, c, a);
    for (int64_t i = 0; i < list->n; i++) {
        if (!tg_tpl_equal(r, list->items[i], a[0])) continue;
        if (m->name[0] == 'i') return tg_tpl_int(i);
        count++;
    }
    if (m->name[0] == 'i') tg_tpl_fail(r, TG_ERR_DATA, "'index': the value is not in the %s", tg_tpl_type_name(m->of));
    return tg_tpl_int(count);
}

tpl_value tg_tpl_call_method(tpl_run *r, const tpl_method *m, const tpl_call *c) {
    switch (m->of.kind) {
    case TPL_TEXT:
        return tg_tpl_call_text_method(r, m, c);
    case TPL_DICT:
        return call_of_dict(r, m, c);
    case TPL_LOOP:
        return tg_tpl_call_loop_method(r, m, c);
    default:
        return call_of_list(r, m, c);
    }
}
