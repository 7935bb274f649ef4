/* Numbers and strings as templates write them, and numbers in text. */
#include "text/template/parse/literals.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "io/json.h"
#include "text/template/values/characters.h"

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int digit_value(char c) {
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 99;
}

/* Returns the bytes of digits, between which single underscores may stand. */
static size_t digits(const char *s, size_t n, int base) {
    size_t at = 0;
    while (at < n && (digit_value(s[at]) < base ||
                      (s[at] == '_' && at && at + 1 < n && digit_value(s[at + 1]) < base && s[at - 1] != '_')))
        at++;
    return at;
}

static int64_t digits_value(tpl_run *r, const char *s, size_t n, int base, bool negative) {
    int64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '_') continue;
        int digit = digit_value(s[i]);
        if (__builtin_mul_overflow(v, base, &v) ||
            (negative ? __builtin_sub_overflow(v, digit, &v) : __builtin_add_overflow(v, digit, &v)))
            tg_tpl_fail(r, TG_ERR_DATA, "'%.*s' is an integer of more than 64 bits", n < 40 ? (int)n : 40, s);
    }
    return v;
}

/* ---- Reals ---- */

/* Returns the bytes of a real at s: digits with a fraction, an exponent, or both; 0: there is none. */
static size_t real_length(const char *s, size_t n) {
    size_t at = digits(s, n, 10), whole = at;
    if (at + 1 < n && s[at] == '.' && is_digit(s[at + 1])) at += 1 + digits(s + at + 1, n - at - 1, 10);
    size_t e = at;
    if (e < n && (s[e] == 'e' || s[e] == 'E')) {
        e += 1 + (e + 1 < n && (s[e + 1] == '+' || s[e + 1] == '-'));
        size_t exponent = e < n && is_digit(s[e]) ? digits(s + e, n - e, 10) : 0;
        if (exponent) at = e + exponent;
    }
    return at > whole ? at : 0;
}

/* Converts with jansson, which does not depend on the locale. The text is a number of JSON but for underscores and
 * zeros at the start. */
static double real_value(tpl_run *r, const char *s, size_t n) {
    char *text = tg_tpl_alloc(r, n + 1);
    size_t k = 0;
    json_error_t e;
    for (size_t i = 0; i < n; i++) {
        bool leading = s[i] == '0' && k == 0 && i + 1 < n && (is_digit(s[i + 1]) || s[i + 1] == '_');
        if (s[i] != '_' && !leading) text[k++] = s[i];
    }
    json_t *j = json_loadb(text, k, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &e);
    if (!j && tg_json_lacks_memory(&e)) tg_tpl_fail(r, TG_ERR_MEMORY, "no memory for a number");
    double v = json_is_real(j) ? json_real_value(j) : HUGE_VAL; /* jansson refuses what overflows */
    json_decref(j);
    return v;
}

size_t tg_tpl_number(tpl_run *r, const char *s, size_t n, bool after_dot, tpl_value *out) {
    static const char prefixes[] = "bBoOxX";
    size_t length = after_dot ? 0 : real_length(s, n);
    if (length) {
        *out = tg_tpl_real(real_value(r, s, length));
        return length;
    }
    const char *prefix = n > 2 && s[0] == '0' && s[1] ? strchr(prefixes, s[1]) : NULL;
    int base = !prefix ? 10 : s[1] == 'b' || s[1] == 'B' ? 2 : s[1] == 'o' || s[1] == 'O' ? 8 : 16;
    size_t skip = prefix ? 2 + (s[2] == '_') : 0;
    length = prefix ? digits(s + skip, n - skip, base) : 0;
    if (!length) skip = 0, base = 10, length = digits(s, n, s[0] == '0' ? 1 : 10); /* base 1: zeros */
    *out = tg_tpl_int(digits_value(r, s + skip, length, base, false));
    return skip + length;
}

/* ---- Numbers in text ---- */

static tpl_text stripped(tpl_run *r, const tpl_text *t) {
    tg_tpl_pass(r, t->n);
    size_t begin = tg_tpl_skip_space(t->bytes, t->n);
    return (tpl_text){t->bytes + begin, tg_tpl_strip_end(t->bytes + begin, t->n - begin), -1};
}

bool tg_tpl_parse_int(tpl_run *r, const tpl_text *text, int base, int64_t *out) {
    tpl_text t = stripped(r, text);
    bool negative = t.n && t.bytes[0] == '-', sign = t.n && (negative || t.bytes[0] == '+');
    const char *s = t.bytes + sign;
    size_t n = t.n - sign;
    char letter = n > 2 && s[0] == '0' ? (char)(s[1] | 0x20) : 0;
    int named = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    if (named && (base == 0 || base == named)) s += 2 + (s[2] == '_'), n = t.n - (size_t)(s - t.bytes), base = named;
    if (base == 0) base = 10;
    if (!n || digits(s, n, base) != n) return false;
    *out = digits_value(r, s, n, base, negative);
    return true;
}

static bool is_word(const char *s, size_t n, const char *word) { return n == strlen(word) && !strncasecmp(s, word, n); }

bool tg_tpl_parse_real(tpl_run *r, const tpl_text *text, double *out) {
    tpl_text t = stripped(r, text);
    bool negative = t.n && t.bytes[0] == '-', sign = t.n && (negative || t.bytes[0] == '+');
    const char *s = t.bytes + sign;
    size_t n = t.n - sign;
    double v = 0;
    if (is_word(s, n, "inf") || is_word(s, n, "infinity"))
        v = HUGE_VAL;
    else if (is_word(s, n, "nan"))
        v = NAN;
    else {
        /* Python also takes ".5", "5." and "5.e1": the missing digits are zeros. */
        tpl_buffer b = {0};
        const char *dot = n ? memchr(s, '.', n) : NULL;
        size_t head = dot ? (size_t)(dot - s) : 0;
        char after = dot && head + 1 < n ? dot[1] : 'e';
        if (dot && head == 0 && !is_digit(after)) return false;
        if (dot && head == 0) tg_tpl_put(r, &b, "0", 1);
        tg_tpl_put(r, &b, s, dot ? head + 1 : n);
        if (dot && (after | 32) == 'e') tg_tpl_put(r, &b, "0", 1);
        if (dot) tg_tpl_put(r, &b, dot + 1, n - head - 1);
        bool whole = b.n && digits(b.bytes, b.n, 10) == b.n;
        if (!b.n || (!whole && real_length(b.bytes, b.n) != b.n) || !is_digit(b.bytes[0])) return false;
        v = real_value(r, b.bytes, b.n);
    }
    *out = negative ? -v : v;
    return true;
}

/* ---- Strings ---- */

static int64_t code_of(tpl_run *r, const char *s, size_t n, size_t want) {
    if (n < want || digits(s, want, 16) != want || memchr(s, '_', want))
        tg_tpl_fail(r, TG_ERR_FORMAT, "an escape of the string needs %zu hexadecimal digits", want);
    return digits_value(r, s, want, 16, false);
}

static void put_code(tpl_run *r, tpl_buffer *b, int64_t c) {
    char out[4];
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        tg_tpl_fail(r, TG_ERR_FORMAT, "an escape of the string is no character: U+%04llX", (long long)c);
    tg_tpl_put(r, b, out, tg_char_write(out, (uint32_t)c));
}

/* Appends what the escape after a backslash stands for; returns the bytes of it. */
static size_t put_escape(tpl_run *r, tpl_buffer *b, const char *s, size_t n) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = *s ? strchr(from, *s) : NULL;
    size_t want = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0, octal = 0;
    int64_t code = 0;
    if (simple) return tg_tpl_put(r, b, &to[simple - from], 1), 1;
    if (*s == '\n') return 1;
    if (*s == 'N') tg_tpl_fail(r, TG_ERR_UNSUPPORTED, "\\N{...} in a string is not supported; write \\uXXXX");
    if (want) return put_code(r, b, code_of(r, s + 1, n - 1, want)), 1 + want;
    for (; octal < 3 && octal < n && s[octal] >= '0' && s[octal] < '8'; octal++) code = code * 8 + s[octal] - '0';
    if (octal) return put_code(r, b, code), octal;
    tg_tpl_put(r, b, "\\", 1); /* Python keeps the backslash of an unknown escape */
    return 0;
}

tpl_value tg_tpl_unescape(tpl_run *r, const char *s, size_t n) {
    if (!n || !memchr(s, '\\', n)) return tg_tpl_text(r, s, n);
    tpl_buffer b = {0};
    for (size_t at = 0; at < n;) {
        if (s[at] != '\\')
            tg_tpl_put(r, &b, s + at++, 1);
        else
            at += 1 + put_escape(r, &b, s + at + 1, n - at - 1);
    }
    return tg_tpl_take(r, &b);
}
