/* Names: UTF-8, sorted indices. */
#include "io/names.h"

#include <stdlib.h>

/* Length of the UTF-8 sequence at s, of which n bytes are there; 0: it is none. The ranges of the second byte are
 * those of RFC 3629, table 3-7 of the Unicode standard. */
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

static const char *name_of(const void *item) {
    return *(const char *const *)item;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(name_of(*(const void *const *)a), name_of(*(const void *const *)b));
}

const char *tg_index_names(const void *items, int n, size_t size, const void **index) {
    for (int i = 0; i < n; i++) index[i] = (const char *)items + (size_t)i * size;
    if (n > 1) qsort(index, (size_t)n, sizeof *index, compare_names);
    for (int i = 1; i < n; i++)
        if (compare_names(&index[i - 1], &index[i]) == 0) return name_of(index[i]);
    return NULL;
}

const void *tg_find_name(const void *const *index, int n, const char *name) {
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, order = strcmp(name_of(index[mid]), name);
        if (order == 0) return index[mid];
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}
