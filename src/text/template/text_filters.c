/* Filters whose result is a string. */
#include <string.h>

#include "text/template/values/characters.h"
#include "text/template/filters.h"
#include "text/template/values/strings.h"

TPL_FILTER(upper) {
    (void)a, (void)c;
    return tg_tpl_change_case(r, tg_tpl_to_text(r, on).text, true);
}

TPL_FILTER(lower) {
    (void)a, (void)c;
    return tg_tpl_change_case(r, tg_tpl_to_text(r, on).text, false);
}

TPL_FILTER(capitalize) {
    (void)a, (void)c;
    return tg_tpl_capitalize(r, tg_tpl_to_text(r, on).text);
}

/* Jinja's own rule: words begin after white space and after one of -({[<. */
TPL_FILTER(title) {
    (void)a, (void)c;
    const tpl_text *t = tg_tpl_to_text(r, on).text;
    tpl_buffer b = {0};
    bool begins = true;
    for (size_t at = 0, n; at < t->n; at += n) {
        uint32_t x = tg_char_at(t->bytes + at, &n);
        bool separates = tg_tpl_is_space(x) || (x < 0x80 && x && strchr("-({[<", (int)x));
        tg_tpl_put_case(r, &b, t->bytes + at, n, begins);
        begins = separates;
    }
    return tg_tpl_take(r, &b);
}

TPL_FILTER(trim) {
    (void)c;
    const tpl_text *set = NULL;
    if (tg_tpl_given(a[0]) && a[0].kind != TPL_NONE) {
        if (a[0].kind != TPL_TEXT) tg_tpl_fail(r, TG_ERR_DATA, "'trim' takes a string");
        set = a[0].text;
    }
    return tg_tpl_strip(r, tg_tpl_to_text(r, on).text, set, true, true);
}

TPL_FILTER(replace) {
    (void)c;
    int64_t most = tg_tpl_given(a[2]) && a[2].kind != TPL_NONE ? tg_tpl_to_int(r, a[2], "the count of 'replace'") : -1;
    return tg_tpl_replace(r, tg_tpl_to_text(r, on).text, tg_tpl_to_text(r, a[0]).text, tg_tpl_to_text(r, a[1]).text,
                          most);
}

TPL_FILTER(escape) {
    (void)a, (void)c;
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    const tpl_text *t = tg_tpl_to_text(r, on).text;
    tpl_buffer b = {0};
    for (size_t i = 0; i < t->n; i++) {
        const char *p = t->bytes[i] ? strchr(from, t->bytes[i]) : NULL;
        if (p)
            tg_tpl_put_string(r, &b, to[p - from]);
        else
            tg_tpl_put(r, &b, t->bytes + i, 1);
    }
    return tg_tpl_take(r, &b);
}

static const tpl_text *indentation(tpl_run *r, tpl_value width) {
    tpl_buffer b = {0};
    if (width.kind == TPL_TEXT) return width.text;
    for (int64_t n = tg_tpl_given(width) ? tg_tpl_to_int(r, width, "the width of 'indent'") : 4; n > 0; n--)
        tg_tpl_put(r, &b, " ", 1);
    return tg_tpl_take(r, &b).text;
}

TPL_FILTER(indent) {
    (void)c;
    const tpl_text *by = indentation(r, a[0]);
    bool first = tg_tpl_flag(r, a[1]), blank = tg_tpl_flag(r, a[2]);
    tpl_buffer whole = {0}, b = {0};
    if (on.kind != TPL_TEXT) tg_tpl_fail(r, TG_ERR_DATA, "'indent' takes a string, not a %s", tg_tpl_type_name(on));
    tg_tpl_put_value(r, &whole, on);
    tg_tpl_put(r, &whole, "\n", 1);
    const tpl_list *lines = tg_tpl_lines(r, tg_tpl_take(r, &whole).text, false).list;
    if (first) tg_tpl_put(r, &b, by->bytes, by->n);
    for (int64_t i = 0; i < lines->n; i++) {
        const tpl_text *line = lines->items[i].text;
        if (i) tg_tpl_put(r, &b, "\n", 1);
        if (i && (blank || line->n)) tg_tpl_put(r, &b, by->bytes, by->n);
        tg_tpl_put(r, &b, line->bytes, line->n);
    }
    return tg_tpl_take(r, &b);
}

TPL_FILTER(join) {
    (void)c;
    static const tpl_text nothing = {"", 0, 0};
    const tpl_text *separator = tg_tpl_given(a[0]) ? tg_tpl_to_text(r, a[0]).text : &nothing;
    if (!tg_tpl_given(a[1]) || a[1].kind == TPL_NONE) return tg_tpl_join(r, separator, on, true);
    tpl_value list = tg_tpl_collect(r, on);
    for (int64_t i = 0; i < list.list->n; i++) list.list->items[i] = tg_tpl_path(r, list.list->items[i], a[1]);
    return tg_tpl_join(r, separator, list, true);
}

TPL_FILTER(wordcount) {
    (void)a, (void)c;
    const tpl_text *t = tg_tpl_to_text(r, on).text;
    int64_t words = 0;
    bool in_word = false;
    tg_tpl_pass(r, t->n);
    for (size_t at = 0, n; at < t->n; at += n) {
        uint32_t x = tg_char_at(t->bytes + at, &n);
        bool word = x == '_' || tg_tpl_is_class(r, x, 'a') || tg_tpl_is_class(r, x, 'd');
        words += word && !in_word;
        in_word = word;
    }
    return tg_tpl_int(words);
}

TPL_FILTER(format) {
    (void)a;
    tpl_value args = tg_tpl_list_new(r, TPL_TUPLE), named = tg_tpl_dict_new(r, TPL_DICT);
    if (c->n && c->named.n) tg_tpl_fail(r, TG_ERR_DATA, "'format' takes arguments with names or without, not both");
    for (int64_t i = 0; i < c->n; i++) tg_tpl_append(r, args.list, c->args[i]);
    *named.dict = c->named;
    return tg_tpl_format(r, tg_tpl_to_text(r, on).text, c->named.n ? named : args);
}
