/* The text of a value: what Python's str() and repr() give. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template/values/characters.h"
#include "text/template/evaluate.h"

/* ---- Numbers ---- */

/* Writes the fewest digits, without a point, that read back as v > 0, and returns the exponent of the first one. */
static int shortest_digits(double v, char digits[24]) {
    char text[40], *e = NULL;
    for (int precision = 0; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, v);
        if (strtod(text, NULL) == v) break;
    }
    size_t n = 0;
    e = strchr(text, 'e');
    for (const char *s = text; s < e; s++)
        if (*s >= '0' && *s <= '9') digits[n++] = *s; /* the point depends on the locale */
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = 0;
    return atoi(e + 1);
}

static void put_scientific(char *out, size_t size, const char *digits, int exponent) {
    snprintf(out, size, "%c%s%se%c%02d", digits[0], digits[1] ? "." : "", digits + 1, exponent < 0 ? '-' : '+',
             abs(exponent));
}

/* Writes digits with the point after the first exponent + 1 of them, and at least one digit on each side of it. */
static void put_fixed(tpl_run *r, tpl_buffer *b, const char *digits, int exponent) {
    int n = (int)strlen(digits);
    if (exponent < 0) tg_tpl_put_string(r, b, "0.");
    for (int i = exponent + 1; i < 0; i++) tg_tpl_put(r, b, "0", 1);
    for (int i = 0; i < n; i++) {
        tg_tpl_put(r, b, digits + i, 1);
        if (i == exponent) tg_tpl_put(r, b, ".", 1);
    }
    for (int i = n; i <= exponent; i++) tg_tpl_put_string(r, b, i == exponent ? "0." : "0");
    if (exponent >= n - 1 && exponent >= 0) tg_tpl_put(r, b, "0", 1);
}

void tg_tpl_put_real(tpl_run *r, tpl_buffer *b, double v) {
    char digits[24], text[48];
    if (isnan(v)) {
        tg_tpl_put_string(r, b, "nan");
        return;
    }
    if (signbit(v)) tg_tpl_put(r, b, "-", 1);
    if (isinf(v)) {
        tg_tpl_put_string(r, b, "inf");
        return;
    }
    int exponent = v == 0 ? (strcpy(digits, "0"), 0) : shortest_digits(fabs(v), digits);
    if (exponent >= -4 && exponent < 16) {
        put_fixed(r, b, digits, exponent);
        return;
    }
    put_scientific(text, sizeof text, digits, exponent);
    tg_tpl_put_string(r, b, text);
}

static void put_int(tpl_run *r, tpl_buffer *b, int64_t v) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)v);
    tg_tpl_put_string(r, b, text);
}

/* ---- Texts ---- */

void tg_tpl_put_escape(tpl_run *r, tpl_buffer *b, uint32_t c) {
    char text[16];
    if (c == '\n' || c == '\r' || c == '\t')
        snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else
        snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
    tg_tpl_put_string(r, b, text);
}

static void put_quoted(tpl_run *r, tpl_buffer *b, const tpl_text *t) {
    bool single = t->n && memchr(t->bytes, '\'', t->n), two = t->n && memchr(t->bytes, '"', t->n);
    char quote = single && !two ? '"' : '\'';
    tg_tpl_put(r, b, &quote, 1);
    for (size_t at = 0, n; at < t->n; at += n) {
        uint32_t c = tg_char_at(t->bytes + at, &n);
        if (c == (unsigned char)quote || c == '\\') tg_tpl_put(r, b, "\\", 1);
        if (tg_tpl_is_class(r, c, 'p'))
            tg_tpl_put(r, b, t->bytes + at, n);
        else
            tg_tpl_put_escape(r, b, c);
    }
    tg_tpl_put(r, b, &quote, 1);
}

/* ---- Lists and dicts ---- */

static void put_items(tpl_run *r, tpl_buffer *b, const tpl_list *list, const char *open, const char *close) {
    tg_tpl_put_string(r, b, open);
    for (int64_t i = 0; i < list->n; i++) {
        if (i) tg_tpl_put(r, b, ", ", 2);
        tg_tpl_put_repr(r, b, list->items[i]);
    }
    tg_tpl_put_string(r, b, close);
}

static void put_range(tpl_run *r, tpl_buffer *b, const tpl_list *list) {
    tg_tpl_put_string(r, b, "range(");
    for (int i = 0; i < (list->range[2] == 1 ? 2 : 3); i++) {
        if (i) tg_tpl_put_string(r, b, ", ");
        put_int(r, b, list->range[i]);
    }
    tg_tpl_put_string(r, b, ")");
}

static void put_pairs(tpl_run *r, tpl_buffer *b, const tpl_dict *d) {
    tg_tpl_put(r, b, "{", 1);
    for (int64_t i = 0; i < d->n; i++) {
        if (i) tg_tpl_put(r, b, ", ", 2);
        tg_tpl_put_repr(r, b, d->pairs[i].key);
        tg_tpl_put(r, b, ": ", 2);
        tg_tpl_put_repr(r, b, d->pairs[i].value);
    }
    tg_tpl_put(r, b, "}", 1);
}

static void put_kind(tpl_run *r, tpl_buffer *b, tpl_value v) {
    switch (v.kind) {
    case TPL_NONE:
        tg_tpl_put_string(r, b, "None");
        break;
    case TPL_BOOL:
        tg_tpl_put_string(r, b, v.truth ? "True" : "False");
        break;
    case TPL_INT:
        put_int(r, b, v.integer);
        break;
    case TPL_REAL:
        tg_tpl_put_real(r, b, v.real);
        break;
    case TPL_TEXT:
        put_quoted(r, b, v.text);
        break;
    case TPL_UNDEFINED:
        tg_tpl_put_string(r, b, "Undefined");
        break;
    case TPL_LIST:
        put_items(r, b, v.list, "[", "]");
        break;
    case TPL_TUPLE:
        put_items(r, b, v.list, "(", v.list->n == 1 ? ",)" : ")");
        break;
    case TPL_RANGE:
        put_range(r, b, v.list);
        break;
    case TPL_VIEW:
        put_items(r, b, v.list, v.of == 'i' ? "dict_items([" : v.of == 'k' ? "dict_keys([" : "dict_values([", "])");
        break;
    case TPL_DICT:
        put_pairs(r, b, v.dict);
        break;
    case TPL_NAMESPACE:
        tg_tpl_put_string(r, b, "<Namespace ");
        put_pairs(r, b, v.dict);
        tg_tpl_put(r, b, ">", 1);
        break;
    default:
        tg_tpl_fail(r, TG_ERR_DATA, "a value of type %s has no text; did you forget '|list'?", tg_tpl_type_name(v));
    }
}

void tg_tpl_put_repr(tpl_run *r, tpl_buffer *b, tpl_value v) {
    tg_tpl_enter(r);
    put_kind(r, b, v);
    tg_tpl_return(r);
}

void tg_tpl_put_value(tpl_run *r, tpl_buffer *b, tpl_value v) {
    if (v.kind == TPL_TEXT)
        tg_tpl_put(r, b, v.text->bytes, v.text->n);
    else if (v.kind != TPL_UNDEFINED)
        tg_tpl_put_repr(r, b, v);
}

tpl_value tg_tpl_to_text(tpl_run *r, tpl_value v) {
    tpl_buffer b = {0};
    if (v.kind == TPL_TEXT) return v;
    tg_tpl_put_value(r, &b, v);
    return tg_tpl_take(r, &b);
}
