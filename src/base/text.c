/* Appends formatted and escaped text to a buffer, finds the last component of a path, reads and writes numbers, and
 * checks UTF-8. */
#include "base/text.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tg_text(char *buf, size_t n, size_t *at, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int k = *at < n ? vsnprintf(buf + *at, n - *at, format, ap) : vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (k > 0) *at += (size_t)k;
}

void tg_text_escaped(char *buf, size_t n, size_t *at, tg_format format, const char *s) {
    const char *wrong = s + tg_utf8_check(s, strlen(s));
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (s == wrong) {
            tg_text(buf, n, at, "%s", format == TG_JSON ? "\\ufffd" : "\xEF\xBF\xBD");
            wrong = s + 1 + tg_utf8_check(s + 1, strlen(s + 1));
        } else if (c == '"' || c == '\\') {
            tg_text(buf, n, at, "\\%c", c);
        } else if (c < 32 || c == 127) {
            tg_text(buf, n, at, format == TG_JSON ? "\\u%04x" : "\\\\x%02x", c); /* DOT has no escape for these */
        } else {
            tg_text(buf, n, at, "%c", c);
        }
    }
}

void tg_text_json(char *buf, size_t n, size_t *at, const char *s) {
    tg_text(buf, n, at, "\"");
    tg_text_escaped(buf, n, at, TG_JSON, s);
    tg_text(buf, n, at, "\"");
}

const char *tg_base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Returns the length of the UTF-8 sequence at s, which has n bytes left, or 0 if there is no valid sequence. The
 * ranges of the second byte are those of RFC 3629 and of table 3-7 of the Unicode standard. */
static size_t sequence_length(const unsigned char *s, size_t n) {
    unsigned char c = s[0], low = 0x80, high = 0xBF;
    if (c < 0x80) return 1;
    size_t length = c >= 0xC2 && c <= 0xDF ? 2 : (c & 0xF0) == 0xE0 ? 3 : c >= 0xF0 && c <= 0xF4 ? 4 : 0;
    if (length == 0 || length > n) return 0;
    if (c == 0xE0) low = 0xA0;
    if (c == 0xED) high = 0x9F;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    return length;
}

size_t tg_utf8_check(const char *s, size_t n) {
    size_t at = 0;
    while (at < n) {
        size_t length = sequence_length((const unsigned char *)s + at, n - at);
        if (length == 0) return at;
        at += length;
    }
    return n;
}

void tg_utf8_cut(char *s) {
    size_t n = strlen(s), begin = n;
    while (begin > 0 && n - begin < 3 && ((unsigned char)s[begin - 1] & 0xC0) == 0x80) begin--;
    if (!begin) return;
    const unsigned char *last = (const unsigned char *)s + begin - 1; /* the first byte of the last character */
    if (*last >= 0xC0 && !sequence_length(last, n - begin + 1)) s[begin - 1] = 0;
}

bool tg_text_int(const char *text, int least, int *value) {
    char *end = NULL;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || end == text || *end || v < least || v > INT_MAX) return false;
    *value = (int)v;
    return true;
}

void tg_text_point(char *text) {
    char *point = text + strspn(text, "-0123456789");
    size_t bytes = strcspn(point, "0123456789e");
    if (!bytes) return;
    memmove(point + 1, point + bytes, strlen(point + bytes) + 1);
    *point = '.';
}

tg_decimal tg_decimal_of(char conversion, int precision, double v) {
    tg_decimal d;
    snprintf(d.text, sizeof d.text, conversion == 'f' ? "%.*f" : "%.*g", precision, v);
    if (isfinite(v)) tg_text_point(d.text);
    return d;
}
