/* Expands the words of --data: weights, directories, patterns. */
#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program.h"
#include "data/kind.h"
#include "data/words.h"

/* ---- Lists of paths ---- */

bool names_add(names *list, const char *path) {
    if (list->n == list->capacity) {
        int capacity = 2 * list->capacity + 8;
        char **more = realloc(list->at, (size_t)capacity * sizeof *more);
        if (!more) return fail("no memory for a list of files"), false;
        list->at = more;
        list->capacity = capacity;
    }
    char *copy = strdup(path);
    if (!copy) return fail("no memory for a list of files"), false;
    list->at[list->n++] = copy;
    return true;
}

void names_free(names *list) {
    for (int i = 0; i < list->n; i++) free(list->at[i]);
    free(list->at);
    *list = (names){0};
}

static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Sorts the paths from number `first` on. */
static void sort(names *list, int first) {
    qsort(list->at + first, (size_t)(list->n - first), sizeof *list->at, compare);
}

/* ---- Directories ---- */

static bool add_directory(names *list, const char *dir, int depth);

/* Adds a file, or the files in a directory. Other things, such as pipes, are left out. */
static bool add_entry(names *list, const char *path, int depth) {
    struct stat st;
    if (stat(path, &st) != 0) return fail("cannot open '%s': %s", path, strerror(errno)), false;
    if (S_ISDIR(st.st_mode)) return add_directory(list, path, depth + 1);
    return !S_ISREG(st.st_mode) || names_add(list, path);
}

static bool add_directory(names *list, const char *dir, int depth) {
    enum { DEEPEST = 64 }; /* a link to a directory above would have no end */
    if (depth > DEEPEST)
        return fail("'%s' is more than %d directories deep; does a link lead back?", dir, DEEPEST), false;
    DIR *entries = opendir(dir);
    if (!entries) return fail("cannot list the directory '%s': %s", dir, strerror(errno)), false;
    bool good = true;
    for (struct dirent *e; good && (e = readdir(entries));) {
        char *path = e->d_name[0] == '.' ? NULL : path_in(dir, e->d_name);
        if (path) good = add_entry(list, path, depth);
        free(path);
    }
    closedir(entries);
    return good;
}

/* ---- Words ---- */

/* The directory that glob could not list. glob gives its callback no argument in which to store it. */
static _Thread_local struct {
    char path[4096];
    int error;
} unlisted;

static int note_unlisted(const char *path, int error) {
    snprintf(unlisted.path, sizeof unlisted.path, "%s", path);
    unlisted.error = error;
    return 1;
}

static bool refuse_pattern(const char *option, const char *word, int error) {
    if (error == GLOB_NOSPACE) return fail("no memory for the files of '%s'", word), false;
    if (error == GLOB_ABORTED)
        return fail("--%s '%s': cannot list the directory '%s': %s", option, word, unlisted.path,
                    strerror(unlisted.error)),
               false;
    return fail("--%s '%s': no file matches this pattern", option, word), false;
}

static bool add_pattern(names *list, const char *option, const char *word) {
    glob_t found = {0};
    int error = glob(word, GLOB_ERR, note_unlisted, &found);
    bool good = !error || refuse_pattern(option, word, error);
    for (size_t i = 0; good && i < found.gl_pathc; i++) good = add_entry(list, found.gl_pathv[i], 0);
    globfree(&found);
    return good;
}

/* Adds the files that a word names, in the order of their names. */
static bool add_word(names *list, const char *option, const char *word) {
    struct stat st;
    int first = list->n;
    bool there = stat(word, &st) == 0;
    if (!strcmp(word, "-") || is_megatron(word) || (there && !S_ISDIR(st.st_mode))) return names_add(list, word);
    if (!there && !strpbrk(word, "*?[")) return fail("cannot open '%s': %s", word, strerror(errno)), false;
    bool good = there ? add_directory(list, word, 0) : add_pattern(list, option, word);
    if (good && list->n == first && !there) return refuse_pattern(option, word, GLOB_NOMATCH);
    if (good && list->n == first) return fail("--%s: the directory '%s' has no files", option, word), false;
    if (good) sort(list, first);
    return good;
}

/* ---- Weights ---- */

/* Returns the value of a word that is a number above 0; else 0. */
static double number_of(const char *word) {
    char *end;
    double v = strtod(word, &end);
    return *word && !*end && isfinite(v) && v > 0 && strspn(word, "0123456789.") ? v : 0;
}

/* Returns whether the words are pairs of a number, which is a weight, and another word. */
static bool have_weights(const names *words) {
    if (words->n < 2 || words->n % 2) return false;
    for (int i = 0; i < words->n; i += 2)
        if (!number_of(words->at[i])) return false;
    return true;
}

/* Fails if a weight is nothing next to the largest one, so that its files would have no share of the sequences. */
static bool fit_together(const names *words, const char *option) {
    const double least = 1e-300;
    double most = 0;
    for (int i = 0; i < words->n; i += 2) most = fmax(most, number_of(words->at[i]));
    for (int i = 0; i < words->n; i += 2)
        if (number_of(words->at[i]) / most < least)
            return fail("--%s: the weight %s of '%s' is nothing next to %g, the largest; expected at least %g of it",
                        option, words->at[i], words->at[i + 1], most, least),
                   false;
    return true;
}

/* Fails if there are numbers among words without weights, unless files have these names. */
static bool no_numbers(const names *words, const char *option) {
    for (int i = 0; i < words->n; i++)
        if (words->n > 1 && number_of(words->at[i]) && access(words->at[i], F_OK) != 0)
            return fail("--%s: '%s' is no file, and not every word has a weight; give weights as in --%s 0.7 a.txt 0.3 "
                        "b.txt",
                        option, words->at[i], option),
                   false;
    return true;
}

/* ---- Sources ---- */

static bool split(names *out, const char *words) {
    char *copy = strdup(words), *rest = copy;
    bool good = copy || (fail("no memory for a list of files"), false);
    for (char *word; good && (word = strsep(&rest, "\n"));) good = names_add(out, word);
    free(copy);
    return good;
}

/* Adds source number out->n of the words `first` to `end` - 1. */
static bool add_source(word_sources *out, const char *option, const names *words, int first, int end, double weight) {
    word_source *s = &out->at[out->n++];
    size_t n = 1;
    s->weight = weight;
    for (int i = first; i < end; i++) n += strlen(words->at[i]) + 1;
    if (!(s->name = calloc(1, n))) return fail("no memory for a list of files"), false;
    for (int i = first; i < end; i++) {
        if (i > first) strcat(s->name, " ");
        strcat(s->name, words->at[i]);
        if (!add_word(&s->files, option, words->at[i])) return false;
    }
    return true;
}

static bool expand(word_sources *out, const char *option, const names *words) {
    bool weights = have_weights(words);
    out->at = calloc((size_t)words->n, sizeof *out->at);
    if (!out->at) return fail("no memory for a list of files"), false;
    if (!weights) return no_numbers(words, option) && add_source(out, option, words, 0, words->n, 0);
    if (!fit_together(words, option)) return false;
    for (int i = 0; i < words->n; i += 2)
        if (!add_source(out, option, words, i + 1, i + 2, number_of(words->at[i]))) return false;
    return true;
}

bool words_expand(word_sources *out, const char *option, const char *words) {
    names list = {0};
    *out = (word_sources){0};
    bool good = split(&list, words) && expand(out, option, &list);
    names_free(&list);
    return good;
}

void words_free(word_sources *s) {
    for (int i = 0; i < s->n; i++) {
        free(s->at[i].name);
        names_free(&s->at[i].files);
    }
    free(s->at);
    *s = (word_sources){0};
}
