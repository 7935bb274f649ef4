/* Characters of UTF-8. Classes and cases beyond ASCII are those of the C library's locale C.UTF-8. */
#define _GNU_SOURCE
#include "text/template/values/characters.h"

#include <string.h>
#include <wctype.h>

int64_t tg_tpl_chars(tpl_run *r, tpl_text *t) {
    if (t->chars >= 0) return t->chars;
    tg_tpl_pass(r, t->n);
    t->chars = 0;
    for (size_t i = 0; i < t->n; i++) t->chars += (t->bytes[i] & 0xc0) != 0x80;
    return t->chars;
}

size_t tg_tpl_offset(tpl_run *r, tpl_text *t, int64_t i) {
    if (tg_tpl_chars(r, t) == (int64_t)t->n) return (size_t)i;
    size_t at = 0, n;
    tg_tpl_pass(r, t->n);
    for (; i > 0; i--, at += n) tg_char_at(t->bytes + at, &n);
    return at;
}

/* ---- Classes ---- */

bool tg_tpl_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool tg_tpl_is_line_end(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

size_t tg_tpl_skip_space(const char *s, size_t n) {
    size_t at = 0, k;
    while (at < n && tg_tpl_is_space(tg_char_at(s + at, &k))) at += k;
    return at;
}

size_t tg_tpl_strip_end(const char *s, size_t n) {
    while (n > 0) {
        size_t at = tg_char_before(s, n), k;
        if (!tg_tpl_is_space(tg_char_at(s + at, &k))) break;
        n = at;
    }
    return n;
}

static locale_t characters(tpl_run *r) {
    if (!r->characters) r->characters = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (!r->characters)
        tg_tpl_fail(r, TG_ERR_UNSUPPORTED, "the C library has no locale C.UTF-8, which cases of characters need");
    return r->characters;
}

static bool is_ascii_class(uint32_t c, char of) {
    bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
    return of == 'a'   ? upper || lower
           : of == 'd' ? c >= '0' && c <= '9'
           : of == 'u' ? upper
           : of == 'l' ? lower
                       : c >= 0x20 && c < 0x7f;
}

bool tg_tpl_is_class(tpl_run *r, uint32_t c, char of) {
    if (c < 0x80) return is_ascii_class(c, of);
    locale_t l = characters(r);
    wint_t w = (wint_t)c;
    switch (of) {
    case 'a':
        return iswalpha_l(w, l) && !iswdigit_l(w, l);
    case 'd':
        return iswctype_l(w, wctype_l("digit", l), l) != 0;
    case 'u':
        return iswupper_l(w, l) != 0;
    case 'l':
        return iswlower_l(w, l) != 0;
    default:
        return iswprint_l(w, l) && !tg_tpl_is_space(c);
    }
}

uint32_t tg_tpl_case(tpl_run *r, uint32_t c, bool upper) {
    if (c < 0x80) return is_ascii_class(c, upper ? 'l' : 'u') ? c ^ 0x20 : c;
    locale_t l = characters(r);
    return (uint32_t)(upper ? towupper_l((wint_t)c, l) : towlower_l((wint_t)c, l));
}

void tg_tpl_put_case(tpl_run *r, tpl_buffer *b, const char *s, size_t n, bool upper) {
    for (size_t at = 0, k; at < n; at += k) {
        uint32_t c = tg_char_at(s + at, &k);
        char out[4];
        if (upper && c == 0xdf)
            tg_tpl_put(r, b, "SS", 2);
        else
            tg_tpl_put(r, b, out, tg_char_write(out, tg_tpl_case(r, c, upper)));
    }
}
