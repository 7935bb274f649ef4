/* Calls: their arguments, macros, and the functions that templates have. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "base/runtime.h"
#include "text/template/evaluate.h"

/* ---- Arguments ---- */

static void add_argument(tpl_run *r, tpl_call *c, tpl_value v) {
    c->args = tg_tpl_grow(r, c->args, c->n, &c->capacity, sizeof v);
    c->args[c->n++] = v;
}

static void add_named(tpl_run *r, tpl_call *c, tpl_value name, tpl_value v) {
    if (name.kind != TPL_TEXT) tg_tpl_fail(r, TG_ERR_DATA, "the name of an argument is a %s", tg_tpl_type_name(name));
    if (tg_tpl_find(r, &c->named, name))
        tg_tpl_fail(r, TG_ERR_DATA, "the call gives argument '%.*s' twice", (int)name.text->n, name.text->bytes);
    tg_tpl_add_pair(r, &c->named, name, v);
}

/* Adds the items of *list, or the pairs of **dict. */
static void spread(tpl_run *r, tpl_call *c, tpl_value of, bool named) {
    tpl_value v;
    if (named && of.kind != TPL_DICT) tg_tpl_fail(r, TG_ERR_DATA, "'**' takes a dict, not a %s", tg_tpl_type_name(of));
    if (named)
        for (int64_t i = 0; i < of.dict->n; i++) add_named(r, c, of.dict->pairs[i].key, of.dict->pairs[i].value);
    else
        for (tpl_iter i = tg_tpl_iterate(r, of); tg_tpl_next(r, &i, &v);) add_argument(r, c, v);
}

void tg_tpl_arguments(tpl_run *r, const tpl_node *first, tpl_call *out) {
    for (const tpl_node *n = first; n; n = n->next) {
        bool plain = n->kind != TPL_N_KEYWORD && n->kind != TPL_N_SPREAD && n->kind != TPL_N_SPREAD_NAMED;
        tpl_value v = tg_tpl_eval(r, plain ? n : n->left);
        r->at = n->at;
        if (plain)
            add_argument(r, out, v);
        else if (n->kind == TPL_N_KEYWORD)
            add_named(r, out, (tpl_value){.kind = TPL_TEXT, .text = n->name}, v);
        else
            spread(r, out, v, n->kind == TPL_N_SPREAD_NAMED);
    }
}

/* ---- Macros ---- */

/* Removes a named argument and returns it; ABSENT: the call does not give it. */
static tpl_value take_named(tpl_dict *named, const tpl_text *name) {
    for (int64_t i = 0; i < named->n; i++) {
        if (!tg_tpl_same_text(named->pairs[i].key.text, name)) continue;
        tpl_value v = named->pairs[i].value;
        memmove(&named->pairs[i], &named->pairs[i + 1], (size_t)(named->n - i - 1) * sizeof *named->pairs);
        named->n--;
        return v;
    }
    return (tpl_value){.kind = TPL_ABSENT};
}

static void set_word(tpl_run *r, const char *name, tpl_value v) {
    tg_tpl_set_name(r, r->render->scope, tg_tpl_string(r, name).text, v);
}

static void bind_parameters(tpl_run *r, const tpl_macro *m, tpl_call *c, int64_t *taken) {
    for (const tpl_node *p = m->node->second; p; p = p->next) {
        tpl_value v = *taken < c->n ? c->args[(*taken)++] : take_named(&c->named, p->name);
        if (v.kind == TPL_ABSENT && p->left) v = tg_tpl_eval(r, p->left);
        tg_tpl_set_name(r, r->render->scope, p->name,
                        v.kind == TPL_ABSENT ? tg_tpl_undefined(TPL_NO_ARGUMENT, p->name) : v);
    }
}

static bool has_parameter(const tpl_macro *m, const tpl_text *name) {
    for (const tpl_node *p = m->node->second; p; p = p->next)
        if (tg_tpl_same_text(p->name, name)) return true;
    return false;
}

/* Fails for a named argument that is left: the macro has no such parameter, or an argument before has its value. */
_Noreturn static void refuse_named(tpl_run *r, const tpl_macro *m, const tpl_text *name) {
    tg_tpl_fail(r, TG_ERR_DATA,
                has_parameter(m, name) ? "macro '%.*s' is given parameter '%.*s' twice"
                                       : "macro '%.*s' has no parameter '%.*s'",
                (int)m->name->n, m->name->bytes, (int)name->n, name->bytes);
}

/* Sets caller, kwargs and varargs if the macro uses them, and refuses arguments that are left. */
static void bind_rest(tpl_run *r, const tpl_macro *m, tpl_call *c, int64_t taken) {
    int uses = m->node->op;
    tpl_text *word = tg_tpl_string(r, "caller").text;
    if (uses & TPL_USES_CALLER && !has_parameter(m, word)) {
        tpl_value caller = take_named(&c->named, word);
        set_word(r, "caller", caller.kind == TPL_ABSENT ? tg_tpl_undefined(TPL_NO_NAME, word) : caller);
    }
    tpl_value named = tg_tpl_dict_new(r, TPL_DICT), rest = tg_tpl_list_new(r, TPL_TUPLE);
    *named.dict = c->named;
    for (int64_t i = taken; i < c->n; i++) tg_tpl_append(r, rest.list, c->args[i]);
    if (uses & TPL_USES_KWARGS)
        set_word(r, "kwargs", named);
    else if (c->named.n)
        refuse_named(r, m, c->named.pairs[0].key.text);
    if (uses & TPL_USES_VARARGS)
        set_word(r, "varargs", rest);
    else if (rest.list->n)
        tg_tpl_fail(r, TG_ERR_DATA, "macro '%.*s' takes at most %s, not %lld", (int)m->name->n, m->name->bytes,
                    tg_count(taken, "argument").text, (long long)c->n);
}

tpl_value tg_tpl_call_macro(tpl_run *r, const tpl_macro *m, const tpl_call *c) {
    tpl_render *render = r->render;
    tpl_scope *before = render->scope, *scope = tg_tpl_alloc(r, sizeof *scope);
    tpl_call rest = *c;
    tpl_signal signal;
    int64_t taken = 0;
    tg_tpl_enter(r);
    rest.named.pairs = tg_tpl_alloc(r, (size_t)c->named.n * sizeof *rest.named.pairs);
    if (c->named.n) memcpy(rest.named.pairs, c->named.pairs, (size_t)c->named.n * sizeof *rest.named.pairs);
    rest.named.capacity = c->named.n;
    *scope = (tpl_scope){.parent = m->scope};
    render->scope = scope;
    bind_parameters(r, m, &rest, &taken);
    bind_rest(r, m, &rest, taken);
    tpl_value text = tg_tpl_capture(r, m->node->first, &signal);
    render->scope = before;
    tg_tpl_return(r);
    return text;
}

/* ---- Functions ---- */

static tpl_value raise_exception(tpl_run *r, const tpl_call *c) {
    tpl_value a[TPL_PARAMETERS];
    tg_tpl_bind(r, "raise_exception", "message", 1, c, a);
    const tpl_text *t = tg_tpl_to_text(r, a[0]).text;
    tg_tpl_fail(r, TG_ERR_DATA, "the template refuses the conversation: %.*s", t->n < 300 ? (int)t->n : 300,
                t->n ? t->bytes : "");
}

static tpl_value strftime_now(tpl_run *r, const tpl_call *c) {
    tpl_value a[TPL_PARAMETERS];
    struct tm parts;
    time_t now = (time_t)r->render->now;
    tg_tpl_bind(r, "strftime_now", "format", 1, c, a);
    if (a[0].kind != TPL_TEXT) tg_tpl_fail(r, TG_ERR_DATA, "'strftime_now' takes a string");
    if (a[0].text->n && memchr(a[0].text->bytes, 0, a[0].text->n))
        tg_tpl_fail(r, TG_ERR_DATA, "'strftime_now': the format has a zero byte");
    if (!localtime_r(&now, &parts)) tg_tpl_fail(r, TG_ERR_DATA, "'strftime_now' cannot tell the time");
    /* With a space at the end the result is never empty, so strftime returns 0 only if the memory is too small. */
    tpl_buffer format = {0};
    tg_tpl_put(r, &format, a[0].text->bytes, a[0].text->n);
    tg_tpl_put(r, &format, " ", 2);
    for (size_t room = 256;; room *= 2) {
        char *text = tg_tpl_alloc(r, room);
        size_t n = strftime(text, room, format.bytes, &parts);
        if (n) return tg_tpl_text(r, text, n - 1);
    }
}

static void add_pairs_of(tpl_run *r, tpl_dict *d, tpl_value of) {
    tpl_value item;
    if (of.kind == TPL_DICT) { /* values are not looked up by key: the key NaN is not equal to itself */
        for (int64_t i = 0; i < of.dict->n; i++) tg_tpl_set(r, d, of.dict->pairs[i].key, of.dict->pairs[i].value);
        return;
    }
    for (tpl_iter i = tg_tpl_iterate(r, of); tg_tpl_next(r, &i, &item);) {
        tpl_value pair = tg_tpl_collect(r, item);
        if (pair.list->n != 2)
            tg_tpl_fail(r, TG_ERR_DATA, "'dict' takes pairs, but one has %lld items", (long long)pair.list->n);
        tg_tpl_set(r, d, pair.list->items[0], pair.list->items[1]);
    }
}

static tpl_value make_dict(tpl_run *r, const tpl_call *c, tpl_kind kind) {
    tpl_value v = tg_tpl_dict_new(r, kind);
    if (c->n > 1) tg_tpl_fail(r, TG_ERR_DATA, "'dict' and 'namespace' take at most 1 argument without a name");
    if (c->n) add_pairs_of(r, v.dict, c->args[0]);
    for (int64_t i = 0; i < c->named.n; i++) tg_tpl_set(r, v.dict, c->named.pairs[i].key, c->named.pairs[i].value);
    return v;
}

static tpl_value dict(tpl_run *r, const tpl_call *c) { return make_dict(r, c, TPL_DICT); }

static tpl_value namespace(tpl_run *r, const tpl_call *c) {
    tpl_value v = make_dict(r, c, TPL_NAMESPACE);
    for (int64_t i = 0; i < v.dict->n; i++) {
        tpl_value key = v.dict->pairs[i].key;
        if (key.kind == TPL_TEXT && key.text->n && key.text->bytes[0] == '_')
            tg_tpl_fail(r, TG_ERR_DATA, "an attribute of a namespace cannot begin with '_': '%.*s'", (int)key.text->n,
                        key.text->bytes);
    }
    return v;
}

static tpl_value range(tpl_run *r, const tpl_call *c) {
    enum { MOST = 100000 }; /* as in Jinja's sandbox */
    int64_t a[3] = {0, 0, 1};
    if (c->named.n || c->n < 1 || c->n > 3) tg_tpl_fail(r, TG_ERR_DATA, "'range' takes 1 to 3 integers");
    for (int64_t i = 0; i < c->n; i++) a[c->n == 1 ? 1 : i] = tg_tpl_to_int(r, c->args[i], "an argument of 'range'");
    if (!a[2]) tg_tpl_fail(r, TG_ERR_DATA, "the step of 'range' is 0");
    long double n = ((long double)a[1] - a[0]) / a[2];
    if (n > MOST) tg_tpl_fail(r, TG_ERR_DATA, "'range' has at most %d numbers", MOST);
    int64_t count = 0;
    for (int64_t v = a[0]; n > 0 && (a[2] > 0 ? v < a[1] : v > a[1]);) {
        count++;
        if (__builtin_add_overflow(v, a[2], &v)) break;
    }
    if (count > MOST) tg_tpl_fail(r, TG_ERR_DATA, "'range' has at most %d numbers", MOST);
    return tg_tpl_range_new(r, a, count);
}

static tpl_value refused(tpl_run *r, const tpl_call *c) {
    (void)c;
    tg_tpl_fail(r, TG_ERR_UNSUPPORTED,
                "the functions 'cycler', 'joiner' and 'lipsum' are not supported in chat templates");
}

static const tpl_function functions[] = {
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
    {"dict", dict},
    {"namespace", namespace},
    {"range", range},
    {"cycler", refused},
    {"joiner", refused},
    {"lipsum", refused},
};

const tpl_function *tg_tpl_builtin(const tpl_text *name) {
    for (int i = 0; i < TG_LEN(functions); i++)
        if (tg_tpl_is(name, functions[i].name)) return &functions[i];
    return NULL;
}

tpl_value tg_tpl_call(tpl_run *r, tpl_value callee, const tpl_call *c) {
    tg_tpl_require(r, callee);
    switch (callee.kind) {
    case TPL_FUNCTION:
        return callee.function->call(r, c);
    case TPL_METHOD:
        return tg_tpl_call_method(r, callee.method, c);
    case TPL_MACRO:
        return tg_tpl_call_macro(r, callee.macro, c);
    case TPL_LOOP:
        return tg_tpl_call_loop(r, callee.loop, c);
    default:
        tg_tpl_fail(r, TG_ERR_DATA, "a value of type %s cannot be called", tg_tpl_type_name(callee));
    }
}
