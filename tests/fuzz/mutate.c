/* Mutations of an input's bytes, for targets that have no mutator of their own. */
#include <stdarg.h>

#include "fuzz.h"

_Noreturn void fuzz_fail(const char *file, int line, const char *what, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    fprintf(stderr, "%s:%d: not so: %s: ", file, line, what);
    vfprintf(stderr, format, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

/* Moves n bytes at `at` up by k, if there is room. */
static size_t open_gap(uint8_t *data, size_t size, size_t max, size_t at, size_t k) {
    if (k > max - size) return size;
    memmove(data + at + k, data + at, size - at);
    return size + k;
}

static size_t insert(uint8_t *data, size_t size, size_t max, size_t at, const void *bytes, size_t n) {
    size_t now = open_gap(data, size, max, at, n);
    if (now != size) memcpy(data + at, bytes, n);
    return now;
}

static size_t cut(uint8_t *data, size_t size, size_t at, size_t n) {
    memmove(data + at, data + at + n, size - at - n);
    return size - n;
}

/* Writes a little-endian number of 1 to 8 bytes near the limits of some type. */
static void edge(uint8_t *data, size_t size, uint64_t *state) {
    static const int64_t edges[] = {0,     1,     -1,        2,         7,         8,         9,       16,
                                    127,   128,   255,       256,       4096,      32767,     32768,   65535,
                                    65536, 1 << 20, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, 1LL << 40, UINT32_MAX};
    size_t width = (size_t)1 << fuzz_below(state, 4);
    uint64_t v = (uint64_t)edges[fuzz_below(state, COUNT(edges))] + fuzz_below(state, 3) - 1;
    if (width > size) return;
    memcpy(data + fuzz_below(state, size - width + 1), &v, width);
}

/* Changes a number in text: another digit, or a longer number. */
static size_t digit(uint8_t *data, size_t size, size_t max, uint64_t *state) {
    static const char *const numbers[] = {"0", "1", "-1", "00", "1e3", "0.5", "4294967296", "9223372036854775807",
                                          "9223372036854775808", "18446744073709551616", "1e999"};
    size_t at = fuzz_below(state, size);
    for (size_t i = 0; i < size; i++, at = (at + 1) % size) {
        if (data[at] < '0' || data[at] > '9') continue;
        if (fuzz_below(state, 3)) {
            data[at] = (uint8_t)('0' + fuzz_below(state, 10));
            return size;
        }
        const char *s = numbers[fuzz_below(state, COUNT(numbers))];
        size = cut(data, size, at, 1);
        return insert(data, size, max, at, s, strlen(s));
    }
    return size;
}

static size_t word(uint8_t *data, size_t size, size_t max, uint64_t *state) {
    size_t n = 0, at = fuzz_below(state, size + 1);
    while (fuzz_words[n]) n++;
    if (!n) return size;
    const char *s = fuzz_words[fuzz_below(state, n)];
    size_t length = strlen(s);
    if (fuzz_below(state, 2)) return insert(data, size, max, at, s, length);
    if (at + length <= size) memcpy(data + at, s, length);
    return size;
}

/* Copies a piece of the input to another place. */
static size_t copy(uint8_t *data, size_t size, size_t max, uint64_t *state) {
    uint8_t piece[256];
    size_t from = fuzz_below(state, size), n = 1 + fuzz_below(state, size - from), at = fuzz_below(state, size + 1);
    if (n > sizeof piece) n = sizeof piece;
    memcpy(piece, data + from, n);
    if (fuzz_below(state, 2)) return insert(data, size, max, at, piece, n);
    if (at + n <= size) memcpy(data + at, piece, n);
    return size;
}

size_t fuzz_mutate(uint8_t *data, size_t size, size_t max, uint64_t *state) {
    uint8_t byte = (uint8_t)fuzz_random(state);
    if (!size) return insert(data, size, max, 0, &byte, 1);
    size_t at = fuzz_below(state, size);
    switch (fuzz_below(state, 12)) {
    case 0:
    case 1:
        data[at] ^= (uint8_t)(1 << (byte & 7));
        return size;
    case 2:
        data[at] = byte;
        return size;
    case 3:
        return insert(data, size, max, at, &byte, 1);
    case 4:
        return cut(data, size, at, 1 + fuzz_below(state, size - at < 16 ? size - at : 16));
    case 5:
        return fuzz_below(state, 4) ? size : at; /* the rest is cut off */
    case 6:
        edge(data, size, state);
        return size;
    case 7:
    case 8:
        return digit(data, size, max, state);
    case 9:
    case 10:
        return word(data, size, max, state);
    default:
        return copy(data, size, max, state);
    }
}
