/* UTF-8, white space, and the characters of bytes. */
#include "text/unicode.h"

uint32_t tg_char_at(const char *s, size_t *n) {
    const unsigned char *u = (const unsigned char *)s;
    *n = tg_char_length(*s);
    switch (*n) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    case 3:
        return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
    }
}

size_t tg_char_write(char s[4], uint32_t c) {
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, c >>= 6) s[i] = (char)(0x80 | (c & 0x3f));
    s[0] = (char)(first[n] | c);
    return n;
}

bool tg_char_is_space(uint32_t c) {
    if (c < 0x85) return (c >= 9 && c <= 13) || c == 32;
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* ---- Bytes as characters ---- */

/* The bytes from 33 to 126, 161 to 172 and 174 to 255 stand for themselves. The others are, in order, 0 to 32, 127 to
 * 160, and 173. */
static bool is_itself(uint32_t c) { return (c >= 33 && c <= 126) || (c >= 161 && c <= 255 && c != 173); }

uint32_t tg_byte_char(unsigned char byte) {
    if (is_itself(byte)) return byte;
    return 256u + (byte <= 32 ? byte : byte <= 160 ? byte - 127u + 33u : 67u);
}

int tg_char_byte(uint32_t c) {
    if (c < 256) return is_itself(c) ? (int)c : -1;
    if (c < 256 + 33) return (int)c - 256;
    if (c < 256 + 67) return (int)c - 256 - 33 + 127;
    return c == 256 + 67 ? 173 : -1;
}

/* ---- UTF-8 that may be broken ---- */

/* Sets the range of the byte after the first one. Returns the length of the character; 0: no character begins so. */
static size_t expect(unsigned char first, unsigned char *lo, unsigned char *hi) {
    *lo = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *hi = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

size_t tg_char_check(const char *s, size_t n, size_t *wrong) {
    const unsigned char *u = (const unsigned char *)s;
    unsigned char lo, hi;
    size_t length = expect(u[0], &lo, &hi), i = 1;
    *wrong = 1;
    if (length < 2) return length;
    for (; i < length && i < n && u[i] >= lo && u[i] <= hi; i++) lo = 0x80, hi = 0xbf;
    *wrong = i == length || i == n ? 0 : i;
    return i == length ? length : 0;
}
