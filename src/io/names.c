/* Sorted indexes of named items, and lookup by name. */
#include "io/names.h"

#include <stdlib.h>

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
