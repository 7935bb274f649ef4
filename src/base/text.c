/* Appends formatted text to a buffer, cuts paths, and checks UTF-8. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tg_text(char *buf, size_t n, size_t *at, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int k = *at < n ? vsnprintf(buf + *at, n - *at, format, ap) : vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (k > 0) *at += (size_t)k;
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
