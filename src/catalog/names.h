/* Names of ops and of their arguments: words in a text, and the name that a misspelled one was probably meant to be. */
#ifndef TG_NAMES_H
#define TG_NAMES_H

#include <stddef.h>

/* Reads word i of a text of words with a space between them. Returns its start and sets *n to its length; returns NULL
 * if there are fewer words. NULL as text has no words. */
const char *tg_word_at(const char *words, int i, int *n);
/* Returns the position of the word `name`; -1 if it is not there. */
int tg_word_find(const char *words, const char *name);

/* The nearest of the names that have been offered. Before the first offer, `wanted` is set and all else is 0. */
typedef struct tg_nearest {
    const char *wanted;
    const char *best; /* NULL: no name is near */
    int n;            /* length of best */
    int distance;
} tg_nearest;
/* Compares `wanted` with the first n bytes of name by how many letters must be inserted, deleted or replaced
 * (Levenshtein, Soviet Physics Doklady 10, 1966). The name is near if this number is at most 2 or at most a third of
 * the length of `wanted`, and less than n. Replaces near->best if the name is near and nearer than it. */
void tg_nearest_offer(tg_nearest *near, const char *name, int n);

#endif
