/* The table of filters, and the filters of numbers and of any value. */
#include "text/template/filters.h"

#include <math.h>
#include <string.h>

#include "base/runtime.h"
#include "text/template/values/json.h"
#include "text/template/parse/literals.h"

#define TPL_ROW(name, function, parameters, required) {name, parameters, required, tg_tpl_filter_##function},
static const tpl_filter filters[] = {TPL_FILTER_LIST(TPL_ROW)};
#undef TPL_ROW

static const tpl_filter *find(const tpl_text *name) {
    for (int i = 0; i < TG_LEN(filters); i++)
        if (tg_tpl_is(name, filters[i].name)) return &filters[i];
    return NULL;
}

bool tg_tpl_is_filter(const tpl_text *name) { return find(name) != NULL; }

const tpl_filter *tg_tpl_find_filter(tpl_run *r, const tpl_text *name) {
    static const char *const known[] = {"center", "filesizeformat", "forceescape", "groupby",  "pprint",
                                        "random", "slice",          "striptags",   "truncate", "urlencode",
                                        "urlize", "wordwrap",       "xmlattr"};
    const tpl_filter *f = find(name);
    if (f) return f;
    for (int i = 0; i < TG_LEN(known); i++)
        if (tg_tpl_is(name, known[i]))
            tg_tpl_fail(r, TG_ERR_UNSUPPORTED, "the filter '%s' is not supported in chat templates", known[i]);
    tg_tpl_fail(r, TG_ERR_FORMAT, "there is no filter '%.*s'", name->n < 40 ? (int)name->n : 40, name->bytes);
}

tpl_value tg_tpl_apply(tpl_run *r, const tpl_filter *f, tpl_value on, const tpl_call *c) {
    tpl_value a[TPL_PARAMETERS] = {{0}};
    tg_tpl_enter(r);
    if (f->parameters) tg_tpl_bind(r, f->name, f->parameters, f->required, c, a);
    tpl_value v = f->apply(r, on, a, c);
    tg_tpl_return(r);
    return v;
}

/* ---- Any value ---- */

TPL_FILTER(attr) {
    (void)c;
    tpl_value name = tg_tpl_to_text(r, a[0]);
    if (on.kind == TPL_DICT) {
        tpl_value m = tg_tpl_method(r, on, name.text);
        return m.kind == TPL_ABSENT ? tg_tpl_undefined(on.kind, name.text) : m;
    }
    return tg_tpl_attribute(r, on, name.text);
}

TPL_FILTER(default) {
    (void)c;
    bool missing = on.kind == TPL_UNDEFINED || (tg_tpl_flag(r, a[1]) && !tg_tpl_truth(r, on));
    return !missing ? on : tg_tpl_given(a[0]) ? a[0] : tg_tpl_text(r, NULL, 0);
}

TPL_FILTER(string) {
    (void)a, (void)c;
    return tg_tpl_to_text(r, on);
}

TPL_FILTER(length) {
    (void)a, (void)c;
    int64_t n = tg_tpl_length(r, on);
    if (n < 0) tg_tpl_fail(r, TG_ERR_DATA, "a value of type %s has no length", tg_tpl_type_name(on));
    return tg_tpl_int(n);
}

static const tpl_text *separator_at(tpl_run *r, tpl_value of, int64_t i, const tpl_text *otherwise) {
    if (!tg_tpl_given(of) || of.kind == TPL_NONE) return otherwise;
    tpl_value items = tg_tpl_collect(r, of);
    if (items.list->n != 2 || items.list->items[i].kind != TPL_TEXT)
        tg_tpl_fail(r, TG_ERR_DATA, "'tojson': separators are two strings");
    return items.list->items[i].text;
}

static const tpl_text *indent_of(tpl_run *r, tpl_value v) {
    tpl_buffer b = {0};
    if (!tg_tpl_given(v) || v.kind == TPL_NONE) return NULL;
    if (v.kind == TPL_TEXT) return v.text;
    for (int64_t n = tg_tpl_to_int(r, v, "the indent of 'tojson'"); n > 0; n--) tg_tpl_put(r, &b, " ", 1);
    return tg_tpl_take(r, &b).text;
}

TPL_FILTER(tojson) {
    (void)c;
    static const tpl_text wide = {", ", 2, 2}, narrow = {",", 1, 1}, colon = {": ", 2, 2};
    tpl_json_style style = {.ascii = tg_tpl_flag(r, a[0]), .indent = indent_of(r, a[1]), .sort = tg_tpl_flag(r, a[3])};
    style.item = separator_at(r, a[2], 0, style.indent ? &narrow : &wide);
    style.key = separator_at(r, a[2], 1, &colon);
    return tg_tpl_to_json(r, on, &style);
}

/* ---- Numbers ---- */

TPL_FILTER(abs) {
    (void)a, (void)c;
    if (on.kind == TPL_REAL) return tg_tpl_real(fabs(on.real));
    int64_t v = tg_tpl_to_int(r, on, "the operand of 'abs'");
    return v < 0 ? tg_tpl_negate(r, tg_tpl_int(v)) : tg_tpl_int(v);
}

static bool whole_of_real(tpl_run *r, double v, int64_t *out) {
    if (!isfinite(v)) return false;
    if (fabs(v) >= 0x1p63) tg_tpl_fail(r, TG_ERR_DATA, "the result is an integer of more than 64 bits");
    *out = (int64_t)v;
    return true;
}

TPL_FILTER(int) {
    (void)c;
    int64_t v = 0, base = tg_tpl_given(a[1]) ? tg_tpl_to_int(r, a[1], "the base of 'int'") : 10;
    double real = 0;
    bool good = false;
    if (base != 0 && (base < 2 || base > 36)) tg_tpl_fail(r, TG_ERR_DATA, "'int': the base is 0 or 2 to 36");
    tg_tpl_require(r, on);
    if (on.kind == TPL_TEXT)
        good = tg_tpl_parse_int(r, on.text, (int)base, &v) ||
               (tg_tpl_parse_real(r, on.text, &real) && whole_of_real(r, real, &v));
    else if (on.kind == TPL_REAL)
        good = whole_of_real(r, on.real, &v);
    else if (tg_tpl_is_number(on))
        v = tg_tpl_to_int(r, on, ""), good = true;
    return good ? tg_tpl_int(v) : tg_tpl_given(a[0]) ? a[0] : tg_tpl_int(0);
}

TPL_FILTER(float) {
    (void)c;
    double v = 0;
    tg_tpl_require(r, on);
    bool good = tg_tpl_is_number(on) || (on.kind == TPL_TEXT && tg_tpl_parse_real(r, on.text, &v));
    if (tg_tpl_is_number(on)) v = tg_tpl_to_real(r, on, "");
    return good ? tg_tpl_real(v) : tg_tpl_given(a[0]) ? a[0] : tg_tpl_real(0);
}

/* Rounds to the nearest number of so many decimals, halves to even as Python does. The decimal text of a number is
 * exact. For a negative number of decimals the number is divided by a power of 10. */
static double round_decimals(double v, int64_t precision) {
    char text[400];
    if (!isfinite(v) || precision > 300) return v;
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)precision, v);
        return strtod(text, NULL);
    }
    if (precision < -308) return copysign(0, v);
    double unit = pow(10, (double)-precision);
    return nearbyint(v / unit) * unit;
}

/* Rounds a whole number to a multiple of 10^digits, halves to the even multiple, as Python does. */
static tpl_value round_whole(tpl_run *r, int64_t v, int64_t digits) {
    enum { MOST = 19 }; /* zeros of the largest power of 10 in 64 bits */
    uint64_t size = v < 0 ? -(uint64_t)v : (uint64_t)v, unit = 1;
    if (digits > MOST) return tg_tpl_int(0);
    for (int64_t i = 0; i < digits; i++) unit *= 10;
    uint64_t rest = size % unit, left = unit - rest;
    size -= rest;
    if (rest > left || (rest == left && size / unit % 2)) size += unit;
    if (size > INT64_MAX) tg_tpl_fail(r, TG_ERR_DATA, "the result is an integer of more than 64 bits");
    return tg_tpl_int(v < 0 ? -(int64_t)size : (int64_t)size);
}

TPL_FILTER(round) {
    (void)c;
    int64_t precision = tg_tpl_given(a[0]) ? tg_tpl_to_int(r, a[0], "the precision of 'round'") : 0;
    tpl_value method = tg_tpl_given(a[1]) ? a[1] : tg_tpl_string(r, "common");
    bool common = method.kind == TPL_TEXT && tg_tpl_is(method.text, "common");
    bool up = method.kind == TPL_TEXT && tg_tpl_is(method.text, "ceil");
    if (!common && !up && !(method.kind == TPL_TEXT && tg_tpl_is(method.text, "floor")))
        tg_tpl_fail(r, TG_ERR_DATA, "'round': the method is common, ceil or floor");
    double v = tg_tpl_to_real(r, on, "the operand of 'round'");
    if (common && on.kind != TPL_REAL)
        return round_whole(r, tg_tpl_to_int(r, on, ""), precision >= 0 ? 0 : precision > -20 ? -precision : 20);
    if (common) return tg_tpl_real(round_decimals(v, precision));
    double unit = pow(10, (double)precision), scaled = v * unit;
    if (!isfinite(scaled) || unit == 0)
        tg_tpl_fail(r, TG_ERR_DATA, "'round': the number or the precision is too large");
    double whole = up ? ceil(scaled) : floor(scaled);
    return tg_tpl_real(whole == 0 ? 0 : whole / unit); /* 0, never -0: Python's ceil and floor are integers */
}
