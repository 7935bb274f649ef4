/* JSON: values from a tree of jansson, and the filter tojson, which is json.dumps of Python. */
#include "text/template/values/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/template/values/characters.h"

/* ---- Reading ---- */

static tpl_value list_from(tpl_run *r, const json_t *j) {
    tpl_value v = tg_tpl_list_new(r, TPL_LIST);
    size_t i;
    json_t *item;
    json_array_foreach(j, i, item) tg_tpl_append(r, v.list, tg_tpl_from_json(r, item));
    return v;
}

static tpl_value dict_from(tpl_run *r, const json_t *j) {
    tpl_value v = tg_tpl_dict_new(r, TPL_DICT);
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)j, key, item)
        tg_tpl_add_pair(r, v.dict, tg_tpl_text(r, key, strlen(key)), tg_tpl_from_json(r, item));
    return v;
}

static tpl_value value_from(tpl_run *r, const json_t *j) {
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return dict_from(r, j);
    case JSON_ARRAY:
        return list_from(r, j);
    case JSON_STRING:
        return tg_tpl_text(r, json_string_value(j), json_string_length(j));
    case JSON_INTEGER:
        return tg_tpl_int(json_integer_value(j));
    case JSON_REAL:
        return tg_tpl_real(json_real_value(j));
    case JSON_TRUE:
    case JSON_FALSE:
        return tg_tpl_bool(json_is_true(j));
    default:
        return tg_tpl_none();
    }
}

tpl_value tg_tpl_from_json(tpl_run *r, const json_t *j) {
    tg_tpl_enter(r);
    tpl_value v = value_from(r, j);
    tg_tpl_return(r);
    return v;
}

/* ---- Writing ---- */

typedef struct dump {
    tpl_run *r;
    tpl_buffer *b;
    const tpl_json_style *style;
    int level;
} dump;

static void put_value(dump *d, tpl_value v);

static void put_text(dump *d, const tpl_text *t) { tg_tpl_put(d->r, d->b, t->bytes, t->n); }

static void put_unicode(dump *d, uint32_t c) {
    char text[16];
    if (c >= 0x10000) {
        put_unicode(d, 0xd800 + ((c - 0x10000) >> 10));
        c = 0xdc00 + ((c - 0x10000) & 0x3ff);
    }
    snprintf(text, sizeof text, "\\u%04x", (unsigned)c);
    tg_tpl_put_string(d->r, d->b, text);
}

static void put_string(dump *d, const tpl_text *t) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    tg_tpl_put(d->r, d->b, "\"", 1);
    for (size_t at = 0, n; at < t->n; at += n) {
        uint32_t c = tg_char_at(t->bytes + at, &n);
        const char *escape = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (escape)
            tg_tpl_put(d->r, d->b, (char[]){'\\', to[escape - from]}, 2);
        else if (c < 0x20 || (d->style->ascii && c >= 0x7f))
            put_unicode(d, c);
        else
            tg_tpl_put(d->r, d->b, t->bytes + at, n);
    }
    tg_tpl_put(d->r, d->b, "\"", 1);
}

/* Writes what stands before an item or a closing bracket: a separator if `separate` is true, and a line break if the
 * style has an indentation. */
static void put_break(dump *d, bool separate) {
    if (separate) put_text(d, d->style->item);
    if (!d->style->indent) return;
    tg_tpl_put(d->r, d->b, "\n", 1);
    for (int i = 0; i < d->level; i++) put_text(d, d->style->indent);
}

static void put_list(dump *d, const tpl_list *list) {
    if (!list->n) {
        tg_tpl_put_string(d->r, d->b, "[]");
        return;
    }
    tg_tpl_put(d->r, d->b, "[", 1);
    d->level++;
    for (int64_t i = 0; i < list->n; i++) {
        put_break(d, i > 0);
        put_value(d, list->items[i]);
    }
    d->level--;
    put_break(d, false);
    tg_tpl_put(d->r, d->b, "]", 1);
}

/* Python turns keys that are numbers, booleans or None into strings. */
static void put_key(dump *d, tpl_value key) {
    tpl_buffer b = {0};
    if (key.kind == TPL_TEXT) {
        put_string(d, key.text);
        return;
    }
    if (!tg_tpl_is_number(key) && key.kind != TPL_NONE)
        tg_tpl_fail(d->r, TG_ERR_DATA, "tojson: a %s cannot be a key of JSON", tg_tpl_type_name(key));
    put_value(&(dump){.r = d->r, .b = &b, .style = d->style}, key);
    tpl_text text = {b.bytes, b.n, -1};
    put_string(d, &text);
}

static int by_key(tpl_run *r, const tpl_pair *a, const tpl_pair *b) {
    return tg_tpl_order(r, a->key, b->key, "sort_keys");
}

/* Returns a copy of the pairs, sorted by key. Insertion sort is stable, and dicts are small. */
static tpl_pair *sorted_pairs(dump *d, const tpl_dict *of) {
    tpl_pair *pairs = tg_tpl_alloc(d->r, (size_t)of->n * sizeof *pairs);
    for (int64_t i = 0; i < of->n; i++) {
        int64_t at = i;
        tg_tpl_spend(d->r, 1 + i / 8);
        for (; at > 0 && by_key(d->r, &pairs[at - 1], &of->pairs[i]) > 0; at--) pairs[at] = pairs[at - 1];
        pairs[at] = of->pairs[i];
    }
    return pairs;
}

static void put_dict(dump *d, const tpl_dict *of) {
    if (!of->n) {
        tg_tpl_put_string(d->r, d->b, "{}");
        return;
    }
    const tpl_pair *pairs = d->style->sort ? sorted_pairs(d, of) : of->pairs;
    tg_tpl_put(d->r, d->b, "{", 1);
    d->level++;
    for (int64_t i = 0; i < of->n; i++) {
        put_break(d, i > 0);
        put_key(d, pairs[i].key);
        put_text(d, d->style->key);
        put_value(d, pairs[i].value);
    }
    d->level--;
    put_break(d, false);
    tg_tpl_put(d->r, d->b, "}", 1);
}

static void put_real(dump *d, double v) {
    if (isnan(v)) {
        tg_tpl_put_string(d->r, d->b, "NaN");
        return;
    }
    if (isinf(v)) {
        tg_tpl_put_string(d->r, d->b, v < 0 ? "-Infinity" : "Infinity");
        return;
    }
    tg_tpl_put_real(d->r, d->b, v);
}

static void put_kind(dump *d, tpl_value v) {
    switch (v.kind) {
    case TPL_NONE:
        tg_tpl_put_string(d->r, d->b, "null");
        break;
    case TPL_BOOL:
        tg_tpl_put_string(d->r, d->b, v.truth ? "true" : "false");
        break;
    case TPL_INT:
        tg_tpl_put_value(d->r, d->b, v);
        break;
    case TPL_REAL:
        put_real(d, v.real);
        break;
    case TPL_TEXT:
        put_string(d, v.text);
        break;
    case TPL_LIST:
    case TPL_TUPLE:
        put_list(d, v.list);
        break;
    case TPL_DICT:
        put_dict(d, v.dict);
        break;
    default:
        tg_tpl_require(d->r, v);
        tg_tpl_fail(d->r, TG_ERR_DATA, "tojson: a value of type %s has no JSON", tg_tpl_type_name(v));
    }
}

static void put_value(dump *d, tpl_value v) {
    tg_tpl_enter(d->r);
    put_kind(d, v);
    tg_tpl_return(d->r);
}

tpl_value tg_tpl_to_json(tpl_run *r, tpl_value v, const tpl_json_style *style) {
    tpl_buffer b = {0};
    put_value(&(dump){.r = r, .b = &b, .style = style}, v);
    return tg_tpl_take(r, &b);
}
