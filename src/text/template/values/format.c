/* Python's formatting of strings with the operator %: flags, width, precision, and the letters of its printf. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/template/values/characters.h"
#include "text/template/evaluate.h"

/* One conversion, such as %-5.2f. */
typedef struct conversion {
    bool left, zero, plus, space, other; /* flags - 0 + space # */
    int64_t width, precision;            /* precision: -1 if it is not given */
    char letter;
} conversion;

typedef struct formatter {
    tpl_run *r;
    const tpl_text *format;
    size_t at;
    tpl_value of;  /* what the format is applied to: a tuple, a dict or one value */
    int64_t taken; /* arguments used so far */
    tpl_buffer out;
} formatter;

enum { WIDEST = 10000 };

static char peek(const formatter *f) { return f->at < f->format->n ? f->format->bytes[f->at] : 0; }

static tpl_value next_argument(formatter *f) {
    int64_t n = f->of.kind == TPL_TUPLE ? f->of.list->n : 1;
    if (f->taken >= n) tg_tpl_fail(f->r, TG_ERR_DATA, "'%%' of strings: there are not enough arguments");
    return f->of.kind == TPL_TUPLE ? f->of.list->items[f->taken++] : (f->taken++, f->of);
}

static tpl_value named_argument(formatter *f) {
    size_t begin = ++f->at;
    while (peek(f) && peek(f) != ')') f->at++;
    if (!peek(f) || f->of.kind != TPL_DICT) tg_tpl_fail(f->r, TG_ERR_DATA, "'%%' of strings: %%(name) needs a dict");
    tpl_value key = tg_tpl_text(f->r, f->format->bytes + begin, f->at++ - begin);
    tpl_pair *p = tg_tpl_find(f->r, f->of.dict, key);
    if (!p) tg_tpl_fail(f->r, TG_ERR_DATA, "'%%' of strings: there is no '%.*s'", (int)key.text->n, key.text->bytes);
    f->taken = 1;
    return p->value;
}

/* Reads a width or a precision, which `what` names. */
static int64_t read_number(formatter *f, const char *what) {
    int64_t v = 0;
    bool given = peek(f) == '*';
    if (given) {
        f->at++;
        v = tg_tpl_to_int(f->r, next_argument(f), what);
    }
    for (; !given && peek(f) >= '0' && peek(f) <= '9' && v <= WIDEST; f->at++) v = v * 10 + (peek(f) - '0');
    if (v > WIDEST || v < -WIDEST) tg_tpl_fail(f->r, TG_ERR_DATA, "'%%' of strings: %s is at most %d", what, WIDEST);
    return v;
}

static conversion read_conversion(formatter *f) {
    conversion k = {.precision = -1};
    for (;; f->at++) {
        char c = peek(f);
        if (c == '-')
            k.left = true;
        else if (c == '0')
            k.zero = true;
        else if (c == '+')
            k.plus = true;
        else if (c == ' ')
            k.space = true;
        else if (c == '#')
            k.other = true;
        else
            break;
    }
    k.width = read_number(f, "the width of a format");
    if (k.width < 0) k.left = true, k.width = -k.width;
    if (peek(f) == '.') {
        f->at++;
        k.precision = read_number(f, "the precision of a format");
        if (k.precision < 0) k.precision = 0;
    }
    while (peek(f) == 'h' || peek(f) == 'l' || peek(f) == 'L') f->at++;
    k.letter = peek(f);
    f->at++;
    return k;
}

static void pad(formatter *f, int64_t n, char with) {
    for (; n > 0; n--) tg_tpl_put(f->r, &f->out, &with, 1);
}

/* Writes text, padded to the width. Its first `sign` characters are a sign and a prefix; zeros go after them. */
static void put_padded(formatter *f, const conversion *k, const char *s, size_t n, size_t sign) {
    tpl_text t = {s, n, -1};
    int64_t missing = k->width - tg_tpl_chars(f->r, &t);
    bool zeros = k->zero && !k->left && sign <= n;
    if (!k->left && !zeros) pad(f, missing, ' ');
    tg_tpl_put(f->r, &f->out, s, zeros ? sign : 0);
    if (zeros) pad(f, missing, '0');
    tg_tpl_put(f->r, &f->out, s + (zeros ? sign : 0), n - (zeros ? sign : 0));
    if (k->left) pad(f, missing, ' ');
}

/* Returns the text with escapes in place of the characters beyond ASCII, as Python's ascii() does. */
static tpl_buffer ascii_of(tpl_run *r, const tpl_buffer *text) {
    tpl_buffer out = {0};
    for (size_t at = 0, n; at < text->n; at += n) {
        uint32_t c = tg_char_at(text->bytes + at, &n);
        if (c < 0x80)
            tg_tpl_put(r, &out, text->bytes + at, n);
        else
            tg_tpl_put_escape(r, &out, c);
    }
    return out;
}

static void put_string(formatter *f, conversion k, tpl_value v) {
    tpl_buffer b = {0};
    if (k.letter == 's')
        tg_tpl_put_value(f->r, &b, v);
    else
        tg_tpl_put_repr(f->r, &b, v);
    if (k.letter == 'a') b = ascii_of(f->r, &b);
    tpl_text t = {b.bytes, b.n, -1};
    k.zero = false;
    if (k.precision >= 0 && tg_tpl_chars(f->r, &t) > k.precision) b.n = tg_tpl_offset(f->r, &t, k.precision);
    put_padded(f, &k, b.n ? b.bytes : "", b.n, 0);
}

static void put_int(formatter *f, const conversion *k, tpl_value v) {
    char digits[80], text[WIDEST + 80];
    if (v.kind == TPL_REAL && strchr("diu", k->letter)) {
        if (!isfinite(v.real) || fabs(v.real) >= 0x1p63)
            tg_tpl_fail(f->r, TG_ERR_DATA, "'%%%c': the result is an integer of more than 64 bits", k->letter);
        v = tg_tpl_int((int64_t)v.real);
    }
    int64_t i = tg_tpl_to_int(f->r, v, "the argument of a format of integers");
    uint64_t size = i < 0 ? -(uint64_t)i : (uint64_t)i;
    const char *sign = i < 0 ? "-" : k->plus ? "+" : k->space ? " " : "";
    const char *prefix = !k->other          ? ""
                         : k->letter == 'x' ? "0x"
                         : k->letter == 'X' ? "0X"
                         : k->letter == 'o' ? "0o"
                                            : "";
    snprintf(digits, sizeof digits,
             k->letter == 'x'   ? "%llx"
             : k->letter == 'X' ? "%llX"
             : k->letter == 'o' ? "%llo"
                                : "%llu",
             (unsigned long long)size);
    int zeros = k->precision > (int64_t)strlen(digits) ? (int)(k->precision - (int64_t)strlen(digits)) : 0;
    int n = snprintf(text, sizeof text, "%s%s%0*d", sign, prefix, zeros, 0);
    if (!zeros) n--;
    n += snprintf(text + n, sizeof text - (size_t)n, "%s", digits);
    put_padded(f, k, text, (size_t)n, strlen(sign) + strlen(prefix));
}

static void put_real(formatter *f, const conversion *k, tpl_value v) {
    char text[WIDEST + 400], how[] = "%+#.*f";
    double x = tg_tpl_to_real(f->r, v, "the argument of a format of reals");
    size_t sign = signbit(x) || k->plus || k->space;
    snprintf(how, sizeof how, "%%%s%s.*%c", k->plus ? "+" : k->space ? " " : "", k->other ? "#" : "", k->letter);
    int n = snprintf(text, sizeof text, how, k->precision < 0 ? 6 : (int)k->precision, isnan(x) ? fabs(x) : x);
    if (isnan(x)) sign = k->plus || k->space;
    for (int i = 0; i < n; i++)
        if (text[i] == ',') text[i] = '.'; /* the point of another locale */
    put_padded(f, k, text, (size_t)n, sign);
}

static void put_character(formatter *f, conversion k, tpl_value v) {
    char out[4];
    size_t n = 0;
    k.zero = false;
    if (v.kind == TPL_TEXT && tg_tpl_chars(f->r, v.text) == 1) {
        put_padded(f, &k, v.text->bytes, v.text->n, 0);
        return;
    }
    int64_t c = v.kind == TPL_TEXT ? -1 : tg_tpl_to_int(f->r, v, "the argument of %c");
    if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        tg_tpl_fail(f->r, TG_ERR_DATA, "'%%c' takes one character");
    n = tg_char_write(out, (uint32_t)c);
    put_padded(f, &k, out, n, 0);
}

static void put_one(formatter *f) {
    bool named = peek(f) == '(';
    tpl_value v = named ? named_argument(f) : (tpl_value){.kind = TPL_ABSENT};
    conversion k = read_conversion(f);
    if (k.letter == '%') {
        tg_tpl_put(f->r, &f->out, "%", 1);
        return;
    }
    if (!k.letter || !strchr("sradiuxXofFeEgGc", k.letter))
        tg_tpl_fail(f->r, TG_ERR_DATA, "'%%' of strings: a format has an unknown letter or ends too early");
    if (!named) v = next_argument(f);
    if (strchr("sra", k.letter)) {
        put_string(f, k, v);
        return;
    }
    if (k.letter == 'c') {
        put_character(f, k, v);
        return;
    }
    if (strchr("diuxXo", k.letter)) {
        put_int(f, &k, v);
        return;
    }
    put_real(f, &k, v);
}

tpl_value tg_tpl_format(tpl_run *r, const tpl_text *format, tpl_value of) {
    formatter f = {.r = r, .format = format, .of = of};
    tg_tpl_pass(r, format->n);
    while (f.at < format->n) {
        const char *s = format->bytes + f.at, *percent = memchr(s, '%', format->n - f.at);
        size_t n = percent ? (size_t)(percent - s) : format->n - f.at;
        tg_tpl_put(r, &f.out, s, n);
        f.at += n + (percent != NULL);
        if (percent) put_one(&f);
    }
    /* As in Python, these need not be used: %(name) might take items of them. */
    bool many = of.kind == TPL_DICT || of.kind == TPL_LIST || of.kind == TPL_RANGE || of.kind == TPL_UNDEFINED;
    bool left = of.kind == TPL_TUPLE ? f.taken < of.list->n : !many && !f.taken;
    if (left) tg_tpl_fail(r, TG_ERR_DATA, "'%%' of strings: not all arguments are used");
    return tg_tpl_take(r, &f.out);
}
