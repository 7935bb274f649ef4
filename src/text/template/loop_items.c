/* The items of a for loop, and its variable `loop`. Items are taken one by one, and tested when they are taken, because
 * the test of a loop may read what its body has set. */
#include <string.h>

#include "base/runtime.h"
#include "text/template/loop.h"

/* ---- Items ---- */

/* Takes from the source the next item that passes the test. Returns false if there is none. */
static bool take(tpl_run *r, tpl_loop *l, tpl_value *out) {
    while (tg_tpl_next(r, &l->source, out))
        if (!l->passes || l->passes(r, l, *out)) return true;
    return false;
}

/* Takes the next item early, into l->after. Returns false if there is none. */
static bool peek(tpl_run *r, tpl_loop *l) {
    if (l->after.kind == TPL_ABSENT && !take(r, l, &l->after)) l->after = (tpl_value){.kind = TPL_ABSENT};
    return l->after.kind != TPL_ABSENT;
}

bool tg_tpl_loop_advance(tpl_run *r, tpl_loop *l) {
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
    l->length = l->passes ? -1 : tg_tpl_length(r, l->source.of);
    if (l->length >= 0) return l->length;
    /* Only taking all items that are left tells how many pass. The loop goes on with a list of them. */
    tpl_value rest = tg_tpl_list_new(r, TPL_LIST), v;
    while (take(r, l, &v)) tg_tpl_append(r, rest.list, v);
    l->source = tg_tpl_iterate(r, rest);
    l->passes = NULL;
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
