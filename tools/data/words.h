/* The words of --data and --val-data: which files they name, and with which weights. */
#ifndef TAPEGRAD_DATA_WORDS_H
#define TAPEGRAD_DATA_WORDS_H

#include <stdbool.h>

/* A list of paths. All zeros: empty. names_free frees it. */
typedef struct names {
    char **at;
    int n, capacity;
} names;

/* Appends a copy of a path. Returns false after printing that there is no memory. */
bool names_add(names *list, const char *path);
void names_free(names *list);

/* What one word names, or, if the words have no weights, what all of them name together. */
typedef struct word_source {
    char *name;    /* the word, or the words separated by spaces */
    double weight; /* above 0; 0: there are no weights */
    names files;
} word_source;

typedef struct word_sources {
    word_source *at;
    int n;
} word_sources;

/* Reads the value of an option whose words are separated by line breaks, and expands them: a directory stands for all
 * regular files in it, and in the directories in it, whose names do not begin with a dot; a pattern (glob) for the
 * files that match it, and those in the directories that do; "-" for standard input. If the number of words is even,
 * and every other word, from the first on, is a number above 0, these numbers are the weights of the words after them.
 * Returns false after printing what is wrong. words_free frees the result in both cases. option: the option's name, for
 * messages. */
bool words_expand(word_sources *out, const char *option, const char *words);
void words_free(word_sources *s);

#endif
