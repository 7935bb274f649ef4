/* Attributes, items and slices of values. As in Jinja: x.name tries an attribute first, x['name'] an item first. */
#include <string.h>

#include "text/template/values/characters.h"
#include "text/template/evaluate.h"

static tpl_value missing(tpl_run *r, tpl_value of, tpl_value key) {
    tpl_text *name = key.kind == TPL_TEXT ? key.text : NULL;
    if (key.kind == TPL_INT) name = tg_tpl_to_text(r, key).text;
    return tg_tpl_undefined(of.kind, name);
}

/* ---- Items ---- */

static bool is_sequence(tpl_value v) { return v.kind == TPL_LIST || v.kind == TPL_TUPLE || v.kind == TPL_RANGE; }

static bool item_at(tpl_run *r, tpl_value of, int64_t i, tpl_value *out) {
    int64_t n = of.kind == TPL_TEXT ? tg_tpl_chars(r, of.text) : of.list->n;
    if (i < 0) i += n;
    if (i < 0 || i >= n) return false;
    if (of.kind != TPL_TEXT) {
        *out = of.list->items[i];
        return true;
    }
    size_t at = tg_tpl_offset(r, of.text, i), bytes;
    tg_char_at(of.text->bytes + at, &bytes);
    *out = tg_tpl_text(r, of.text->bytes + at, bytes);
    return true;
}

/* Sets *out to of[key]. Returns false if there is no such item in Python. */
static bool find_item(tpl_run *r, tpl_value of, tpl_value key, tpl_value *out) {
    if (of.kind == TPL_DICT) {
        tpl_pair *p = tg_tpl_is_key(r, key) ? tg_tpl_find(r, of.dict, key) : NULL;
        if (p) *out = p->value;
        return p != NULL;
    }
    if (!is_sequence(of) && of.kind != TPL_TEXT) return false;
    if (key.kind != TPL_INT && key.kind != TPL_BOOL) return false;
    return item_at(r, of, tg_tpl_to_int(r, key, ""), out);
}

/* ---- Attributes ---- */

/* Returns the attribute of an object that is none of its items; ABSENT: there is none. */
static tpl_value own_attribute(tpl_run *r, tpl_value of, tpl_text *name) {
    if (of.kind == TPL_NAMESPACE) {
        tpl_pair *p = tg_tpl_find(r, of.dict, (tpl_value){.kind = TPL_TEXT, .text = name});
        return p ? p->value : (tpl_value){.kind = TPL_ABSENT};
    }
    if (of.kind == TPL_LOOP) return tg_tpl_loop_attribute(r, of.loop, name);
    if (of.kind == TPL_MACRO && tg_tpl_is(name, "name"))
        return tg_tpl_text(r, of.macro->name->bytes, of.macro->name->n);
    return tg_tpl_method(r, of, name);
}

tpl_value tg_tpl_attribute(tpl_run *r, tpl_value of, tpl_text *name) {
    tpl_value key = {.kind = TPL_TEXT, .text = name}, v;
    tg_tpl_require(r, of);
    v = own_attribute(r, of, name);
    return v.kind != TPL_ABSENT || find_item(r, of, key, &v) ? v : missing(r, of, key);
}

tpl_value tg_tpl_item(tpl_run *r, tpl_value of, tpl_value key) {
    tpl_value v;
    tg_tpl_require(r, of);
    if (find_item(r, of, key, &v)) return v;
    v = key.kind == TPL_TEXT ? own_attribute(r, of, key.text) : (tpl_value){.kind = TPL_ABSENT};
    return v.kind != TPL_ABSENT ? v : missing(r, of, key);
}

static bool is_digits(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9') return false;
    return n > 0 && n < 18;
}

static tpl_value part_of_path(tpl_run *r, const char *s, size_t n) {
    int64_t v = 0;
    if (!is_digits(s, n)) return tg_tpl_text(r, s, n);
    for (size_t i = 0; i < n; i++) v = v * 10 + (s[i] - '0');
    return tg_tpl_int(v);
}

static tpl_value item_or(tpl_run *r, tpl_value of, tpl_value key, tpl_value otherwise) {
    tpl_value v = tg_tpl_item(r, of, key);
    return v.kind == TPL_UNDEFINED && otherwise.kind != TPL_NONE ? otherwise : v;
}

tpl_value tg_tpl_path_or(tpl_run *r, tpl_value of, tpl_value path, tpl_value otherwise) {
    if (path.kind == TPL_NONE) return of;
    if (path.kind != TPL_TEXT) return item_or(r, of, path, otherwise);
    const char *s = path.text->bytes;
    tg_tpl_pass(r, path.text->n);
    for (size_t left = path.text->n;;) {
        const char *dot = left ? memchr(s, '.', left) : NULL;
        size_t n = dot ? (size_t)(dot - s) : left;
        of = item_or(r, of, part_of_path(r, s, n), otherwise);
        if (!dot) return of;
        s += n + 1;
        left -= n + 1;
    }
}

/* ---- Slices ---- */

/* Cuts an index of a slice to the range that Python's slice.indices gives. */
static int64_t cut(tpl_run *r, tpl_value v, int64_t n, int64_t low, int64_t high, int64_t otherwise) {
    if (v.kind == TPL_NONE) return otherwise;
    int64_t i = tg_tpl_to_int(r, v, "an index of the slice");
    if (i < 0) i += n;
    return i < low ? low : i > high ? high : i;
}

static tpl_value slice_of_text(tpl_run *r, tpl_text *t, int64_t start, int64_t step, int64_t n) {
    tpl_buffer b = {0};
    if (!n) return tg_tpl_text(r, NULL, 0);
    if (step == 1) {
        size_t from = tg_tpl_offset(r, t, start), to = tg_tpl_offset(r, t, start + n);
        return tg_tpl_text(r, t->bytes + from, to - from);
    }
    tpl_value all = tg_tpl_collect(r, (tpl_value){.kind = TPL_TEXT, .text = t});
    for (int64_t i = 0; i < n; i++) tg_tpl_put_value(r, &b, all.list->items[start + i * step]);
    return tg_tpl_take(r, &b);
}

static tpl_value slice_of_range(tpl_run *r, const int64_t of[3], int64_t start, int64_t stop, int64_t step, int64_t n) {
    int64_t made[3];
    bool over = __builtin_mul_overflow(start, of[2], &made[0]) || __builtin_add_overflow(of[0], made[0], &made[0]) ||
                __builtin_mul_overflow(stop, of[2], &made[1]) || __builtin_add_overflow(of[0], made[1], &made[1]) ||
                __builtin_mul_overflow(step, of[2], &made[2]);
    if (over) tg_tpl_fail(r, TG_ERR_DATA, "the slice of a range has an integer of more than 64 bits");
    return tg_tpl_range_new(r, made, n);
}

static tpl_value slice_of_list(tpl_run *r, tpl_value of, int64_t start, int64_t step, int64_t n) {
    tpl_value v = tg_tpl_list_new(r, (tpl_kind)of.kind);
    for (int64_t i = 0; i < n; i++) tg_tpl_append(r, v.list, of.list->items[start + i * step]);
    return v;
}

tpl_value tg_tpl_slice(tpl_run *r, tpl_value of, tpl_value start, tpl_value stop, tpl_value step) {
    tg_tpl_require(r, of);
    if (of.kind != TPL_TEXT && !is_sequence(of))
        tg_tpl_fail(r, TG_ERR_DATA, "a value of type %s cannot be sliced", tg_tpl_type_name(of));
    int64_t by = step.kind == TPL_NONE ? 1 : tg_tpl_to_int(r, step, "the step of the slice");
    int64_t n = tg_tpl_length(r, of), given = by;
    if (!by) tg_tpl_fail(r, TG_ERR_DATA, "the step of the slice is 0");
    if (by > n + 1) by = n + 1; /* further steps leave the value as well */
    if (by < -n - 1) by = -n - 1;
    int64_t from, to, count = 0;
    if (by > 0) {
        from = cut(r, start, n, 0, n, 0);
        to = cut(r, stop, n, 0, n, n);
        if (to > from) count = (to - from - 1) / by + 1;
    } else {
        from = cut(r, start, n, -1, n - 1, n - 1);
        to = cut(r, stop, n, -1, n - 1, -1);
        if (from > to) count = (from - to - 1) / -by + 1;
    }
    if (of.kind == TPL_RANGE) return slice_of_range(r, of.list->range, from, to, given, count);
    return of.kind == TPL_TEXT ? slice_of_text(r, of.text, from, by, count) : slice_of_list(r, of, from, by, count);
}
