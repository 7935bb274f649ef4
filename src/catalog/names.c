/* Words in a text, and the name that is nearest to a misspelled one. */
#include "catalog/names.h"

#include <string.h>

const char *tg_word_at(const char *words, int i, int *n) {
    for (const char *w = words; w && *w; w += *n, w += *w == ' ') {
        *n = (int)strcspn(w, " ");
        if (i-- == 0) return w;
    }
    return NULL;
}

int tg_word_find(const char *words, const char *name) {
    int n;
    const char *w;
    for (int i = 0; (w = tg_word_at(words, i, &n)); i++)
        if (strlen(name) == (size_t)n && memcmp(w, name, (size_t)n) == 0) return i;
    return -1;
}

enum { LONGEST = 64 }; /* a longer name is near no other */

static int least(int a, int b, int c) {
    int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Returns the Levenshtein distance between a and b, of at most LONGEST letters each. After step i, row[j] is the
 * distance between the first i letters of a and the first j letters of b (Wagner and Fischer, JACM 21, 1974). */
static int distance(const char *a, int na, const char *b, int nb) {
    int row[LONGEST + 1];
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int cost = least(row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = row[j];
            row[j] = cost;
        }
    }
    return row[nb];
}

void tg_nearest_offer(tg_nearest *near, const char *name, int n) {
    int wanted = (int)strnlen(near->wanted, LONGEST + 1), most = wanted / 3 > 2 ? wanted / 3 : 2;
    if (wanted > LONGEST || n > LONGEST) return;
    int d = distance(near->wanted, wanted, name, n);
    if (d > most || d >= n || (near->best && d >= near->distance)) return;
    *near = (tg_nearest){.wanted = near->wanted, .best = name, .n = n, .distance = d};
}
