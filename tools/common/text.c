/* Escapes text from files, removes addresses from messages, quotes words of shell commands, and reads numbers of
 * bytes. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"

/* Returns the length of the UTF-8 character with which the n bytes at s begin; 0 if it is none, or byte 0. */
static size_t utf8_length(const unsigned char *s, size_t n) {
    if (s[0] < 0x80) return s[0] != 0;
    size_t k = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    if (!k || k > n) return 0;
    for (size_t i = 1; i < k; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool low = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90); /* longer than necessary */
    bool high = (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90); /* surrogates; above U+10FFFF */
    return low || high ? 0 : k;
}

/* Returns the length of the UTF-8 character at s if it can be printed unchanged; 0 if its first byte must be escaped.
 * Characters of the C1 set (U+0080 to U+009F) control terminals too. */
static size_t printable(const unsigned char *s) {
    size_t n = utf8_length(s, 4); /* reads nothing after the byte 0 that ends the text */
    if (n == 1) return s[0] >= 0x20 && s[0] != 0x7f;
    return n == 2 && s[0] == 0xc2 && s[1] < 0xa0 ? 0 : n;
}

static size_t escape_byte(char out[8], unsigned char c) {
    if (c == '\n' || c == '\t' || c == '\r')
        return (size_t)snprintf(out, 8, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    return (size_t)snprintf(out, 8, "\\x%02x", c);
}

char *text_escape(char *out, size_t n, const char *text) {
    size_t at = 0;
    while (*text) {
        char escaped[8];
        size_t whole = printable((const unsigned char *)text), length = whole;
        const char *from = text;
        if (!whole) length = escape_byte(escaped, (unsigned char)*text), from = escaped;
        if (at + length >= n) break;
        memcpy(out + at, from, length);
        at += length;
        text += whole ? whole : 1;
    }
    out[at] = 0;
    return out;
}

size_t text_mark(const char *text, size_t n) { return n >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; }

void text_make_utf8(char *text, size_t n) {
    for (size_t i = 0, k; i < n; i += k ? k : 1) {
        k = utf8_length((const unsigned char *)text + i, n - i);
        if (!k) text[i] = '?';
    }
}

/* Returns the length of "NAME+0xHEX" at s, where NAME is this program's; 0 if there is something else. */
static size_t address_length(const char *s) {
    static const char ours[] = "tapegrad+0x";
    if (strncmp(s, ours, sizeof ours - 1) != 0) return 0;
    size_t digits = strspn(s + sizeof ours - 1, "0123456789abcdef");
    return digits ? sizeof ours - 1 + digits : 0;
}

void text_drop_sites(char *message) {
    static const char *const before[] = {", called from ", " (called from ", "; called from "};
    char *to = message;
    for (const char *from = message; *from;) {
        size_t dropped = 0;
        for (size_t i = 0; i < sizeof before / sizeof *before && !dropped; i++) {
            size_t n = strlen(before[i]), address = strncmp(from, before[i], n) == 0 ? address_length(from + n) : 0;
            if (address) dropped = n + address + (before[i][1] == '(' && from[n + address] == ')');
        }
        from += dropped;
        if (!dropped) *to++ = *from++;
    }
    *to = 0;
}

/* ---- Words of a shell command ---- */

/* Appends c, unless out, of n bytes, is full. */
static void put_char(char *out, size_t n, size_t *at, char c) {
    if (*at + 1 < n) out[(*at)++] = c;
}

static void put_quoted(char *out, size_t n, size_t *at, const char *text) {
    put_char(out, n, at, '\'');
    for (; *text; text++)
        if (*text == '\'')
            for (const char *c = "'\\''"; *c; c++) put_char(out, n, at, *c);
        else
            put_char(out, n, at, *text);
    put_char(out, n, at, '\'');
}

char *text_shell_word(char *out, size_t n, const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+,:@%-";
    size_t at = 0;
    if (*text && !text[strspn(text, plain)])
        for (; *text; text++) put_char(out, n, &at, *text);
    else
        put_quoted(out, n, &at, text);
    out[at] = 0;
    return out;
}

bool text_ends_with(const char *text, const char *ending) {
    size_t n = strlen(text), m = strlen(ending);
    return n >= m && !memcmp(text + n - m, ending, m);
}

const char *text_last_part(const char *path, size_t *n) {
    size_t end = strlen(path), begin;
    while (end && path[end - 1] == '/') end--;
    for (begin = end; begin && path[begin - 1] != '/';) begin--;
    *n = end - begin;
    return path + begin;
}

int64_t text_read_bytes(const char *text) {
    static const char units[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    const char *unit = end != text && *end ? strchr(units, *end) : NULL;
    if (unit) v = ldexp(v, 10 * (int)(unit - units + 1));
    if (end == text || end[unit ? 1 : 0] || !(v >= 0 && v < 0x1p63)) return -1;
    return (int64_t)v;
}
