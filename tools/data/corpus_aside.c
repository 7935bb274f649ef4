/* Renames the token files of a run while the run makes others (corpus.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program.h"
#include "data/corpus.h"

/* Returns the name of the directory while it is set aside; the caller frees it. NULL: there is no memory. */
static char *aside_of(const char *cache) {
    size_t n = strlen(cache) + sizeof ".old";
    char *name = malloc(n);
    if (name) snprintf(name, n, "%s.old", cache);
    return name;
}

bool corpus_set_aside(const char *cache) {
    char *aside = is_there(cache, "data.json") ? aside_of(cache) : NULL;
    bool good = !aside || rename(cache, aside) == 0;
    if (!good) fail("cannot rename '%s' to '%s': %s", cache, aside, strerror(errno));
    free(aside);
    return good;
}

void corpus_end_aside(const char *cache, bool goes_on) {
    char *aside = aside_of(cache);
    if (aside && access(aside, F_OK) == 0) {
        corpus_remove_cache(goes_on ? aside : cache);
        if (!goes_on && rename(aside, cache) != 0)
            warn("cannot rename '%s' to '%s': %s", aside, cache, strerror(errno));
    }
    free(aside);
}
