/* Matches paths of modules and parameters with patterns. */
#include "base/pattern.h"

#include <fnmatch.h>
#include <string.h>

bool tg_pattern_take(const char **rest, char pattern[TG_PATTERN_BYTES]) {
    *rest += strspn(*rest, ",");
    size_t n = strcspn(*rest, ","), kept = n < TG_PATTERN_BYTES ? n : TG_PATTERN_BYTES - 1;
    memcpy(pattern, *rest, kept);
    pattern[kept] = 0;
    *rest += n;
    return n > 0;
}

/* Returns whether the pattern matches the path from its start up to the end of one of its components. */
static bool matches_start(const char *pattern, const char *path) {
    char part[2 * TG_PATTERN_BYTES];
    for (size_t n = strcspn(path, "."); n < sizeof part; n += 1 + strcspn(path + n + 1, ".")) {
        memcpy(part, path, n);
        part[n] = 0;
        if (fnmatch(pattern, part, 0) == 0) return true;
        if (!path[n]) break;
    }
    return false;
}

bool tg_pattern_matches(const char *pattern, const char *path) {
    for (; path; path = strchr(path, '.')) {
        path += *path == '.';
        if (matches_start(pattern, path)) return true;
    }
    return false;
}

bool tg_patterns_match(const char *patterns, const char *path) {
    char one[TG_PATTERN_BYTES];
    while (patterns && tg_pattern_take(&patterns, one))
        if (tg_pattern_matches(one, path)) return true;
    return false;
}
