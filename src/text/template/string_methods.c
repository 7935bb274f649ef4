/* The methods of strings. */
#include <string.h>

#include "base/runtime.h"
#include "text/template/values/characters.h"
#include "text/template/evaluate.h"
#include "text/template/values/strings.h"

/* Returns a string argument; NULL if the call does not give it, or gives None. */
static tpl_text *text_or_null(tpl_run *r, tpl_value v, const char *who) {
    if (v.kind == TPL_ABSENT || v.kind == TPL_NONE) return NULL;
    if (v.kind != TPL_TEXT) tg_tpl_fail(r, TG_ERR_DATA, "'%s' takes a string, not a %s", who, tg_tpl_type_name(v));
    return v.text;
}

static tpl_text *text_of(tpl_run *r, tpl_value v, const char *who) {
    tpl_text *t = text_or_null(r, v, who);
    if (!t) tg_tpl_fail(r, TG_ERR_DATA, "'%s' takes a string, not None", who);
    return t;
}

static int64_t int_or(tpl_run *r, tpl_value v, const char *who, int64_t otherwise) {
    return v.kind == TPL_ABSENT || v.kind == TPL_NONE ? otherwise : tg_tpl_to_int(r, v, who);
}

typedef struct args {
    const char *name; /* of the method */
    tpl_text *on;
    tpl_value *a;
} args;

static tpl_value strip(tpl_run *r, const args *x) {
    return tg_tpl_strip(r, x->on, text_or_null(r, x->a[0], x->name), x->name[0] != 'r', x->name[0] != 'l');
}

static tpl_value split(tpl_run *r, const args *x) {
    tpl_text *separator = text_or_null(r, x->a[0], x->name);
    return tg_tpl_split(r, x->on, separator, int_or(r, x->a[1], "maxsplit", -1), x->name[0] == 'r');
}

static tpl_value splitlines(tpl_run *r, const args *x) {
    return tg_tpl_lines(r, x->on, x->a[0].kind != TPL_ABSENT && tg_tpl_truth(r, x->a[0]));
}

static tpl_value change_case(tpl_run *r, const args *x) { return tg_tpl_change_case(r, x->on, x->name[0] == 'u'); }

static tpl_value capitalize(tpl_run *r, const args *x) { return tg_tpl_capitalize(r, x->on); }

static tpl_value title(tpl_run *r, const args *x) { return tg_tpl_title(r, x->on); }

static tpl_value replace(tpl_run *r, const args *x) {
    return tg_tpl_replace(r, x->on, text_of(r, x->a[0], x->name), text_of(r, x->a[1], x->name),
                          int_or(r, x->a[2], "count", -1));
}

static tpl_value join(tpl_run *r, const args *x) { return tg_tpl_join(r, x->on, x->a[0], false); }

/* ---- Searching ---- */

/* Sets the offsets of the part of the string that the arguments start and end select. Returns false if start is after
 * the end of the part. */
static bool part(tpl_run *r, const args *x, size_t *from, size_t *to) {
    int64_t n = tg_tpl_chars(r, x->on), start = int_or(r, x->a[1], "start", 0), end = int_or(r, x->a[2], "end", n);
    if (start < 0) start = start + n < 0 ? 0 : start + n;
    if (end < 0) end = end + n < 0 ? 0 : end + n;
    if (end > n) end = n;
    if (start > end) return false;
    *from = tg_tpl_offset(r, x->on, start);
    *to = tg_tpl_offset(r, x->on, end);
    return true;
}

static tpl_value find(tpl_run *r, const args *x) {
    size_t from = 0, to = 0;
    bool last = x->name[0] == 'r', must = strstr(x->name, "index") != NULL;
    tpl_text *what = text_of(r, x->a[0], x->name);
    int64_t at = part(r, x, &from, &to) ? tg_tpl_find_text(r, x->on, from, to, what, last) : -1;
    if (at < 0 && must) tg_tpl_fail(r, TG_ERR_DATA, "'%s': the string does not have the other one", x->name);
    if (at < 0) return tg_tpl_int(-1);
    tpl_text before = {x->on->bytes, (size_t)at, -1};
    return tg_tpl_int(tg_tpl_chars(r, &before));
}

static tpl_value count(tpl_run *r, const args *x) {
    size_t from = 0, to = 0;
    int64_t n = 0, at;
    tpl_text *what = text_of(r, x->a[0], x->name);
    if (!part(r, x, &from, &to)) return tg_tpl_int(0);
    if (!what->n) {
        tpl_text all = {x->on->bytes + from, to - from, -1};
        return tg_tpl_int(tg_tpl_chars(r, &all) + 1);
    }
    for (; (at = tg_tpl_find_text(r, x->on, from, to, what, false)) >= 0; n++) from = (size_t)at + what->n;
    return tg_tpl_int(n);
}

static bool has_end(tpl_run *r, const args *x, size_t from, size_t to, tpl_value end) {
    tpl_text *t = text_of(r, end, x->name);
    if (t->n > to - from) return false;
    tg_tpl_pass(r, t->n);
    return !t->n || !memcmp(x->on->bytes + (x->name[0] == 's' ? from : to - t->n), t->bytes, t->n);
}

static tpl_value has_ends(tpl_run *r, const args *x) {
    size_t from = 0, to = 0;
    if (!part(r, x, &from, &to)) return tg_tpl_bool(false);
    if (x->a[0].kind != TPL_TUPLE) return tg_tpl_bool(has_end(r, x, from, to, x->a[0]));
    tg_tpl_spend(r, x->a[0].list->n);
    for (int64_t i = 0; i < x->a[0].list->n; i++)
        if (has_end(r, x, from, to, x->a[0].list->items[i])) return tg_tpl_bool(true);
    return tg_tpl_bool(false);
}

static tpl_value remove_end(tpl_run *r, const args *x) {
    bool prefix = x->name[6] == 'p';
    tpl_text *t = text_of(r, x->a[0], x->name);
    args y = {prefix ? "startswith" : "endswith", x->on, x->a};
    if (!has_end(r, &y, 0, x->on->n, x->a[0])) return (tpl_value){.kind = TPL_TEXT, .text = x->on};
    return tg_tpl_text(r, x->on->bytes + (prefix ? t->n : 0), x->on->n - t->n);
}

static tpl_value partition(tpl_run *r, const args *x) {
    bool last = x->name[0] == 'r';
    tpl_text *t = text_of(r, x->a[0], x->name);
    if (!t->n) tg_tpl_fail(r, TG_ERR_DATA, "'%s': the separator is empty", x->name);
    int64_t at = tg_tpl_find_text(r, x->on, 0, x->on->n, t, last);
    tpl_value v = tg_tpl_list_new(r, TPL_TUPLE), all = {.kind = TPL_TEXT, .text = x->on}, none = tg_tpl_text(r, "", 0);
    size_t after = (size_t)at + t->n;
    tg_tpl_append(r, v.list, at >= 0 ? tg_tpl_text(r, x->on->bytes, (size_t)at) : last ? none : all);
    tg_tpl_append(r, v.list, at >= 0 ? x->a[0] : none);
    tg_tpl_append(r, v.list, at >= 0 ? tg_tpl_text(r, x->on->bytes + after, x->on->n - after) : last ? all : none);
    return v;
}

/* ---- Classes ---- */

static bool is_of(tpl_run *r, uint32_t c, const char *name) {
    if (!strcmp(name, "isspace")) return tg_tpl_is_space(c);
    if (!strcmp(name, "isalpha")) return tg_tpl_is_class(r, c, 'a');
    if (!strcmp(name, "isdigit")) return tg_tpl_is_class(r, c, 'd');
    return tg_tpl_is_class(r, c, 'a') || tg_tpl_is_class(r, c, 'd');
}

static tpl_value is_all(tpl_run *r, const args *x) {
    tg_tpl_pass(r, x->on->n);
    for (size_t at = 0, n; at < x->on->n; at += n)
        if (!is_of(r, tg_char_at(x->on->bytes + at, &n), x->name)) return tg_tpl_bool(false);
    return tg_tpl_bool(x->on->n > 0);
}

static tpl_value is_cased(tpl_run *r, const args *x) {
    return tg_tpl_bool(tg_tpl_is_cased(r, x->on, x->name[2] == 'u'));
}

static const struct {
    const char *name, *parameters;
    int required;
    tpl_value (*call)(tpl_run *r, const args *x);
} methods[] = {
    {"strip", "chars", 0, strip},
    {"lstrip", "chars", 0, strip},
    {"rstrip", "chars", 0, strip},
    {"split", "sep maxsplit", 0, split},
    {"rsplit", "sep maxsplit", 0, split},
    {"splitlines", "keepends", 0, splitlines},
    {"upper", "", 0, change_case},
    {"lower", "", 0, change_case},
    {"capitalize", "", 0, capitalize},
    {"title", "", 0, title},
    {"replace", "old new count", 2, replace},
    {"join", "iterable", 1, join},
    {"find", "sub start end", 1, find},
    {"rfind", "sub start end", 1, find},
    {"index", "sub start end", 1, find},
    {"rindex", "sub start end", 1, find},
    {"count", "sub start end", 1, count},
    {"startswith", "prefix start end", 1, has_ends},
    {"endswith", "suffix start end", 1, has_ends},
    {"removeprefix", "prefix", 1, remove_end},
    {"removesuffix", "suffix", 1, remove_end},
    {"partition", "sep", 1, partition},
    {"rpartition", "sep", 1, partition},
    {"isspace", "", 0, is_all},
    {"isalpha", "", 0, is_all},
    {"isdigit", "", 0, is_all},
    {"isalnum", "", 0, is_all},
    {"isupper", "", 0, is_cased},
    {"islower", "", 0, is_cased},
    /* Methods of Python that templates of chats do not need: they exist, and calling them is refused by name. */
    {"casefold", NULL, 0, NULL},
    {"center", NULL, 0, NULL},
    {"encode", NULL, 0, NULL},
    {"expandtabs", NULL, 0, NULL},
    {"format", NULL, 0, NULL},
    {"format_map", NULL, 0, NULL},
    {"isascii", NULL, 0, NULL},
    {"isdecimal", NULL, 0, NULL},
    {"isidentifier", NULL, 0, NULL},
    {"isnumeric", NULL, 0, NULL},
    {"isprintable", NULL, 0, NULL},
    {"istitle", NULL, 0, NULL},
    {"ljust", NULL, 0, NULL},
    {"maketrans", NULL, 0, NULL},
    {"rjust", NULL, 0, NULL},
    {"swapcase", NULL, 0, NULL},
    {"translate", NULL, 0, NULL},
    {"zfill", NULL, 0, NULL},
};

bool tg_tpl_has_text_method(const tpl_text *name, const char **found) {
    for (int i = 0; i < TG_LEN(methods); i++) {
        if (!tg_tpl_is(name, methods[i].name)) continue;
        *found = methods[i].name;
        return true;
    }
    return false;
}

tpl_value tg_tpl_call_text_method(tpl_run *r, const tpl_method *m, const tpl_call *c) {
    tpl_value a[TPL_PARAMETERS];
    int i = 0;
    while (strcmp(methods[i].name, m->name) != 0) i++;
    if (!methods[i].call)
        tg_tpl_fail(r, TG_ERR_UNSUPPORTED, "the method '%s' of strings is not supported in chat templates", m->name);
    tg_tpl_bind(r, m->name, methods[i].parameters, methods[i].required, c, a);
    return methods[i].call(r, &(args){m->name, m->of.text, a});
}
