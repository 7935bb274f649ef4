/* Operations on strings. */
#define _GNU_SOURCE
#include "text/template/values/strings.h"

#include <string.h>

#include "text/template/values/characters.h"

/* Steps are counted for what a search has passed over, not for the whole text: texts are searched again and again, each
 * time from the last occurrence on. */
static int64_t find_first(tpl_run *r, const tpl_text *t, size_t from, size_t to, const tpl_text *what) {
    const char *p = memmem(t->bytes + from, to - from, what->bytes, what->n);
    tg_tpl_pass(r, p ? (size_t)(p - t->bytes) - from + what->n : to - from);
    return p ? p - t->bytes : -1;
}

static int64_t find_last(tpl_run *r, const tpl_text *t, size_t from, size_t to, const tpl_text *what) {
    int64_t found = -1;
    size_t at = to - what->n + 1;
    while (at-- > from && found < 0) {
        if (t->bytes[at] != what->bytes[0]) continue;
        tg_tpl_pass(r, what->n);
        if (!memcmp(t->bytes + at, what->bytes, what->n)) found = (int64_t)at;
    }
    tg_tpl_pass(r, to - (found < 0 ? from : (size_t)found));
    return found;
}

int64_t tg_tpl_find_text(tpl_run *r, const tpl_text *t, size_t from, size_t to, const tpl_text *what, bool last) {
    if (to < from || what->n > to - from) return -1;
    if (!what->n) return (int64_t)(last ? to : from);
    return last ? find_last(r, t, from, to, what) : find_first(r, t, from, to, what);
}

/* ---- Ends ---- */

static bool is_in(const tpl_text *set, const char *c, size_t n) {
    if (!set) {
        size_t k;
        return tg_tpl_is_space(tg_char_at(c, &k));
    }
    for (size_t at = 0, k; at < set->n; at += k) {
        tg_char_at(set->bytes + at, &k);
        if (k == n && !memcmp(set->bytes + at, c, n)) return true;
    }
    return false;
}

tpl_value tg_tpl_strip(tpl_run *r, const tpl_text *t, const tpl_text *set, bool left, bool right) {
    size_t begin = 0, end = t->n, n;
    tg_tpl_pass(r, t->n * (1 + (set ? set->n : 0)));
    while (left && begin < end) {
        tg_char_at(t->bytes + begin, &n);
        if (!is_in(set, t->bytes + begin, n)) break;
        begin += n;
    }
    while (right && end > begin) {
        size_t at = tg_char_before(t->bytes, end);
        if (!is_in(set, t->bytes + at, end - at)) break;
        end = at;
    }
    return tg_tpl_text(r, t->bytes + begin, end - begin);
}

/* ---- Replacing ---- */

/* Replaces an empty text: Python puts `new` before each character and at the end. */
static tpl_value interleave(tpl_run *r, const tpl_text *t, const tpl_text *new, int64_t most) {
    tpl_buffer b = {0};
    for (size_t at = 0, n; at < t->n; at += n) {
        tg_char_at(t->bytes + at, &n);
        if (most) tg_tpl_put(r, &b, new->bytes, new->n), most--;
        tg_tpl_put(r, &b, t->bytes + at, n);
    }
    if (most) tg_tpl_put(r, &b, new->bytes, new->n);
    return tg_tpl_take(r, &b);
}

tpl_value tg_tpl_replace(tpl_run *r, tpl_text *t, const tpl_text *old, const tpl_text *new, int64_t most) {
    tpl_buffer b = {0};
    size_t at = 0;
    if (!old->n) return interleave(r, t, new, most);
    for (; most; most--) {
        int64_t found = tg_tpl_find_text(r, t, at, t->n, old, false);
        if (found < 0) break;
        tg_tpl_put(r, &b, t->bytes + at, (size_t)found - at);
        tg_tpl_put(r, &b, new->bytes, new->n);
        at = (size_t)found + old->n;
    }
    if (!at) return (tpl_value){.kind = TPL_TEXT, .text = t};
    tg_tpl_put(r, &b, t->bytes + at, t->n - at);
    return tg_tpl_take(r, &b);
}

/* ---- Splitting ---- */

tpl_value tg_tpl_lines(tpl_run *r, const tpl_text *t, bool keep_ends) {
    tpl_value list = tg_tpl_list_new(r, TPL_LIST);
    size_t begin = 0;
    tg_tpl_pass(r, t->n);
    for (size_t at = 0, n; at < t->n; at += n) {
        if (!tg_tpl_is_line_end(tg_char_at(t->bytes + at, &n))) continue;
        if (t->bytes[at] == '\r' && at + 1 < t->n && t->bytes[at + 1] == '\n') n = 2;
        tg_tpl_append(r, list.list, tg_tpl_text(r, t->bytes + begin, at - begin + (keep_ends ? n : 0)));
        begin = at + n;
    }
    if (begin < t->n) tg_tpl_append(r, list.list, tg_tpl_text(r, t->bytes + begin, t->n - begin));
    return list;
}

static tpl_value split_words(tpl_run *r, const tpl_text *t, int64_t most) {
    tpl_value list = tg_tpl_list_new(r, TPL_LIST);
    size_t at = tg_tpl_skip_space(t->bytes, t->n), n;
    tg_tpl_pass(r, t->n);
    while (at < t->n) {
        size_t end = at;
        while (most && end < t->n && !tg_tpl_is_space(tg_char_at(t->bytes + end, &n))) end += n;
        if (!most--) end = t->n;
        tg_tpl_append(r, list.list, tg_tpl_text(r, t->bytes + at, end - at));
        at = end + tg_tpl_skip_space(t->bytes + end, t->n - end);
    }
    return list;
}

static void reverse(tpl_list *list) {
    for (int64_t i = 0; i < list->n / 2; i++) {
        tpl_value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
}

static tpl_value split_words_from_right(tpl_run *r, const tpl_text *t, int64_t most) {
    tpl_value list = tg_tpl_list_new(r, TPL_LIST);
    size_t end = tg_tpl_strip_end(t->bytes, t->n), n;
    tg_tpl_pass(r, t->n);
    while (end > 0) {
        size_t begin = most ? end : 0;
        while (most && begin > 0) {
            size_t at = tg_char_before(t->bytes, begin);
            if (tg_tpl_is_space(tg_char_at(t->bytes + at, &n))) break;
            begin = at;
        }
        tg_tpl_append(r, list.list, tg_tpl_text(r, t->bytes + begin, end - begin));
        end = most-- ? tg_tpl_strip_end(t->bytes, begin) : 0;
    }
    reverse(list.list);
    return list;
}

static tpl_value split_at(tpl_run *r, const tpl_text *t, const tpl_text *separator, int64_t most, bool from_right) {
    tpl_value list = tg_tpl_list_new(r, TPL_LIST);
    size_t begin = 0, end = t->n;
    int64_t found;
    for (; most; most--) {
        if ((found = tg_tpl_find_text(r, t, begin, end, separator, from_right)) < 0) break;
        size_t at = (size_t)found, after = at + separator->n;
        tg_tpl_append(r, list.list,
                      from_right ? tg_tpl_text(r, t->bytes + after, end - after)
                                 : tg_tpl_text(r, t->bytes + begin, at - begin));
        if (from_right)
            end = at;
        else
            begin = after;
    }
    tg_tpl_append(r, list.list, tg_tpl_text(r, t->bytes + begin, end - begin));
    if (from_right) reverse(list.list);
    return list;
}

tpl_value tg_tpl_split(tpl_run *r, const tpl_text *t, const tpl_text *separator, int64_t most, bool from_right) {
    if (!separator) return from_right ? split_words_from_right(r, t, most) : split_words(r, t, most);
    if (!separator->n) tg_tpl_fail(r, TG_ERR_DATA, "'split': the separator is empty");
    return split_at(r, t, separator, most, from_right);
}

tpl_value tg_tpl_join(tpl_run *r, const tpl_text *separator, tpl_value items, bool any) {
    tpl_buffer b = {0};
    tpl_value v;
    bool first = true;
    for (tpl_iter i = tg_tpl_iterate(r, items); tg_tpl_next(r, &i, &v); first = false) {
        if (!any && v.kind != TPL_TEXT)
            tg_tpl_fail(r, TG_ERR_DATA, "'join' takes strings, but an item is a %s", tg_tpl_type_name(v));
        if (!first) tg_tpl_put(r, &b, separator->bytes, separator->n);
        tg_tpl_put_value(r, &b, v);
    }
    return tg_tpl_take(r, &b);
}

/* ---- Case ---- */

tpl_value tg_tpl_change_case(tpl_run *r, const tpl_text *t, bool upper) {
    tpl_buffer b = {0};
    tg_tpl_put_case(r, &b, t->bytes, t->n, upper);
    return tg_tpl_take(r, &b);
}

tpl_value tg_tpl_capitalize(tpl_run *r, const tpl_text *t) {
    tpl_buffer b = {0};
    size_t n = 0;
    if (!t->n) return tg_tpl_text(r, NULL, 0);
    tg_char_at(t->bytes, &n);
    tg_tpl_put_case(r, &b, t->bytes, n, true);
    tg_tpl_put_case(r, &b, t->bytes + n, t->n - n, false);
    return tg_tpl_take(r, &b);
}

tpl_value tg_tpl_title(tpl_run *r, const tpl_text *t) {
    tpl_buffer b = {0};
    bool in_word = false;
    for (size_t at = 0, n; at < t->n; at += n) {
        uint32_t c = tg_char_at(t->bytes + at, &n);
        bool cased = tg_tpl_is_class(r, c, 'u') || tg_tpl_is_class(r, c, 'l');
        tg_tpl_put_case(r, &b, t->bytes + at, n, !in_word);
        in_word = cased;
    }
    return tg_tpl_take(r, &b);
}

bool tg_tpl_is_cased(tpl_run *r, const tpl_text *t, bool upper) {
    bool any = false;
    tg_tpl_pass(r, t->n);
    for (size_t at = 0, n; at < t->n; at += n) {
        uint32_t c = tg_char_at(t->bytes + at, &n);
        if (tg_tpl_is_class(r, c, upper ? 'l' : 'u')) return false;
        any |= tg_tpl_is_class(r, c, upper ? 'u' : 'l');
    }
    return any;
}
