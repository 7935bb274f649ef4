/* Parses command lines, reports their errors, and prints help from the tables of options. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program.h"

int usage_error(const command *c, const char *format, ...) {
    va_list args;
    if (!is_first_process()) return 2; /* only one process prints: all processes of a job get the same command line */
    va_start(args, format);
    print_error(c->name, format, args);
    va_end(args);
    fprintf(stderr, "Try 'tapegrad %s --help'.\n", c->name);
    return 2;
}

/* ---- Values ---- */

/* Returns word i of "a|b|c", and its length in *length; NULL if there is no word i. */
static const char *word_at(const char *words, int i, size_t *length) {
    for (; i > 0 && words; i--) {
        words = strchr(words, '|');
        if (words) words++;
    }
    if (words) *length = strcspn(words, "|");
    return words;
}

static bool set_choice(const char *words, const char *text, int *out) {
    size_t n = 0;
    const char *word;
    for (int i = 0; (word = word_at(words, i, &n)); i++) {
        if (strlen(text) != n || memcmp(word, text, n) != 0) continue;
        *out = i;
        return true;
    }
    return false;
}

static bool set_int(const option *o, const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (errno || end == text || *end || (double)v < o->lo || (double)v > o->hi) return false;
    *out = v;
    return true;
}

static bool set_real(const option *o, const char *text, double *out) {
    char *end;
    errno = 0;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= o->lo && v <= o->hi)) return false;
    *out = v;
    return true;
}

static const char *number_text(const option *o, double v, char *buf, size_t n) {
    if (o->kind == OPTION_INT && fabs(v) < LARGEST)
        snprintf(buf, n, "%lld", (long long)v);
    else if (o->kind == OPTION_INT)
        snprintf(buf, n, "%lld", (long long)(v < 0 ? INT64_MIN : INT64_MAX));
    else
        snprintf(buf, n, "%.10g", v);
    return buf;
}

static bool is_device(const char *text) {
    size_t n = strncmp(text, "cuda:", 5) == 0 ? strlen(text + 5) : 0;
    if (n) return n <= 4 && strspn(text + 5, "0123456789") == n;
    return strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0;
}

const char *option_set(const option *o, void *into, const char *text) {
    void *field = (char *)into + o->at;
    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)field = strcmp(text, "false") != 0;
        return NULL;
    case OPTION_INT:
        return set_int(o, text, field) ? NULL : "a whole number";
    case OPTION_REAL:
        return set_real(o, text, field) ? NULL : "a number";
    case OPTION_TEXT:
    case OPTION_LIST:
        *(const char **)field = text;
        return *text ? NULL : "a value that is not empty";
    case OPTION_CHOICE:
        return set_choice(o->values, text, field) ? NULL : "one of";
    case OPTION_DEVICE:
        *(const char **)field = text;
        return is_device(text) ? NULL : "one of";
    }
    return "nothing"; /* not reached: there is no other kind */
}

void option_text(const option *o, const void *from, char *buf, size_t n) {
    const void *field = (const char *)from + o->at;
    size_t length = 0;
    const char *word;
    buf[0] = 0;
    switch (o->kind) {
    case OPTION_FLAG:
        snprintf(buf, n, "%s", *(const bool *)field ? "true" : "false");
        break;
    case OPTION_INT:
        snprintf(buf, n, "%lld", (long long)*(const int64_t *)field);
        break;
    case OPTION_REAL:
        snprintf(buf, n, "%.17g", *(const double *)field);
        if (strtod(buf, NULL) != 0) snprintf(buf, n, "%.15g", *(const double *)field);
        if (strtod(buf, NULL) != *(const double *)field) snprintf(buf, n, "%.17g", *(const double *)field);
        break;
    case OPTION_TEXT:
    case OPTION_LIST:
    case OPTION_DEVICE:
        if (*(const char *const *)field) snprintf(buf, n, "%s", *(const char *const *)field);
        break;
    case OPTION_CHOICE:
        word = word_at(o->values, *(const int *)field, &length);
        if (word) snprintf(buf, n, "%.*s", (int)length, word);
        break;
    }
}

/* ---- Near names ---- */

/* Returns the Levenshtein distance of two names. If the second is longer than 31 characters, returns its length. */
static int distance(const char *a, const char *b) {
    enum { LONGEST = 31 };
    int row[LONGEST + 1], n = (int)strlen(b);
    if (n > LONGEST) return n;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

const char *nearest_name(const char *typed, const char *(*name)(const void *of, int i), const void *of, int n) {
    const char *nearest = NULL;
    int least = (int)strlen(typed) / 2 + 1; /* names at this distance or more are not similar */
    for (int i = 0; i < n; i++) {
        int d = distance(typed, name(of, i));
        if (d >= least) continue;
        least = d;
        nearest = name(of, i);
    }
    return nearest;
}

static const char *name_of_option(const void *of, int i) {
    return ((const command *)of)->options[i].name;
}

/* ---- Help ---- */

enum { COLUMN = 30, WIDTH = 80 };

/* Prints text in lines of less than WIDTH columns that begin at `column`. The cursor is in column `at`. */
static void print_wrapped(const char *text, int at, int column) {
    bool first = true;
    while (*text) {
        int n = (int)strcspn(text, " \n");
        if (!first && at + 1 + n >= WIDTH) {
            printf("\n");
            at = 0;
            first = true;
        }
        if (first)
            at += printf("%*s%.*s", column - at, "", n, text);
        else
            at += printf(" %.*s", n, text);
        first = false;
        text += n;
        text += strspn(text, " \n");
    }
    printf("\n");
}

/* Writes the choices of an option, separated by commas and after a colon, to buf, if they are too long for one line;
 * otherwise "". Returns whether they are. */
static bool list_choices(const option *o, char *buf, size_t n) {
    size_t at = 0;
    *buf = 0;
    if (o->kind != OPTION_CHOICE || strlen("  -- ") + strlen(o->name) + strlen(o->values) < WIDTH) return false;
    for (const char *c = o->values; c && at < n; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL)
        at += (size_t)snprintf(buf + at, n - at, "%s%.*s", at ? ", " : ": ", (int)strcspn(c, "|"), c);
    return true;
}

static void print_option(const option *o, const void *defaults) {
    char value[256], choices[256], text[1024];
    const char *values = o->kind == OPTION_FLAG ? "" : list_choices(o, choices, sizeof choices) ? "NAME" : o->values;
    int at = printf("  --%s%s%s%s", o->kind == OPTION_FLAG ? "[no-]" : "", o->name, *values ? " " : "", values);
    if (at >= COLUMN) {
        printf("\n");
        at = 0;
    }
    option_text(o, defaults, value, sizeof value);
    bool shown = o->kind != OPTION_FLAG && *value;
    snprintf(text, sizeof text, "%s%s%s%s%s", o->help, o->kind == OPTION_FLAG ? "" : choices, shown ? " [" : "",
             shown ? value : "", shown ? "]" : "");
    print_wrapped(text, at, COLUMN);
}

static void print_help(const command *c, const void *defaults) {
    printf("usage: tapegrad %s %s\n\n", c->name, c->usage);
    print_wrapped(c->summary, 0, 0);
    printf("\n");
    for (int i = 0; i < c->n_options; i++) print_option(&c->options[i], defaults);
    printf("  --help                      print this text; defaults are in brackets\n");
}

/* ---- Parsing ---- */

int option_find(const command *c, const char *name) {
    for (int i = 0; i < c->n_options; i++)
        if (strcmp(c->options[i].name, name) == 0) return i;
    return -1;
}

/* Returns the option that is another name of option k, if it was given; NULL otherwise. */
static const option *other_name(const command *c, const parsed *p, int k) {
    for (int i = 0; i < c->n_options; i++)
        if (i != k && p->given[i] && c->options[i].at == c->options[k].at) return &c->options[i];
    return NULL;
}

bool option_given(const command *c, const parsed *p, const char *name) {
    int i = option_find(c, name);
    return i >= 0 && (p->given[i] || other_name(c, p, i));
}

const char *option_given_name(const command *c, const parsed *p, const char *name) {
    int i = option_find(c, name);
    const option *other = i >= 0 && !p->given[i] ? other_name(c, p, i) : NULL;
    return other ? other->name : name;
}

const char *option_given_other(const command *c, const parsed *p, const char *const *names, int n) {
    for (int i = 0; i < c->n_options; i++) {
        bool named = false;
        for (int k = 0; k < n; k++) named |= strcmp(c->options[i].name, names[k]) == 0;
        if (p->given[i] && !named) return c->options[i].name;
    }
    return NULL;
}

static int refuse_unknown(const command *c, const char *name) {
    const char *near = nearest_name(name, name_of_option, c, c->n_options);
    if (near) return usage_error(c, "there is no option --%s; did you mean --%s?", name, near);
    return usage_error(c, "there is no option --%s", name);
}

static int refuse_value(const command *c, const option *o, const char *text, const char *expected) {
    char lo[32], hi[32];
    if (o->kind == OPTION_CHOICE || o->kind == OPTION_DEVICE)
        return usage_error(c, "--%s is '%s', expected one of %s", o->name, text, o->values);
    if (o->kind == OPTION_TEXT || o->kind == OPTION_LIST)
        return usage_error(c, "--%s is empty, expected %s", o->name, expected);
    return usage_error(c, "--%s is '%s', expected %s from %s to %s", o->name, text, expected,
                       number_text(o, o->lo, lo, sizeof lo), number_text(o, o->hi, hi, sizeof hi));
}

static bool is_flag(const command *c, int i) {
    return i >= 0 && c->options[i].kind == OPTION_FLAG;
}

/* Returns whether argv[i] is one more word of a list: anything but an option. "-" is standard input. */
static bool is_word(int argc, char **argv, int i) { return i < argc && (argv[i][0] != '-' || !argv[i][1]); }

/* A list of several words as one text. It is kept until the program ends, because the option's field points to it. */
typedef struct list_text {
    struct list_text *next;
    char words[];
} list_text;

static list_text *list_texts;

/* Returns false after printing that a word of a list has a line break, which would end the word. */
static bool fits_list(const command *c, const option *o, const char *word) {
    if (!strchr(word, '\n')) return true;
    return usage_error(c, "--%s: a word has a line break; expected words without one", o->name), false;
}

/* Returns the words from argv[*i] on as one text, and sets *i to the index of the last one. NULL after printing what is
 * wrong. */
static const char *parse_list(const command *c, const option *o, int argc, char **argv, int *i) {
    size_t n = 1;
    int end = *i + 1;
    while (is_word(argc, argv, end)) end++;
    for (int k = *i; k < end; k++) {
        n += strlen(argv[k]) + 1;
        if (!fits_list(c, o, argv[k])) return NULL;
    }
    if (end == *i + 1) return argv[*i];
    list_text *text = calloc(1, sizeof *text + n);
    if (!text) return usage_error(c, "no memory for the words of --%s", o->name), NULL;
    text->next = list_texts;
    list_texts = text;
    for (int k = *i; k < end; k++) {
        if (k > *i) strcat(text->words, "\n");
        strcat(text->words, argv[k]);
    }
    *i = end - 1;
    return text->words;
}

/* Parses one "--name value", "--name=value", "--flag" or "--no-flag" that begins at argv[*i]. Sets *i to the index of
 * its last word. Returns 0, or the exit status after printing an error. */
static int parse_one(const command *c, void *into, parsed *p, int argc, char **argv, int *i) {
    char name[64];
    const char *text = argv[*i] + 2, *equals = strchr(text, '=');
    snprintf(name, sizeof name, "%.*s", (int)(equals ? equals - text : (int)strlen(text)), text);
    int k = option_find(c, name);
    bool off = k < 0 && strncmp(name, "no-", 3) == 0 && is_flag(c, option_find(c, name + 3));
    if (off) k = option_find(c, name + 3);
    if (k < 0 && equals && !strcmp(name, "help")) return usage_error(c, "--help takes no value");
    if (k < 0) return refuse_unknown(c, name);
    const option *o = &c->options[k];
    const char *value = off ? "false" : equals ? equals + 1 : "true";
    if (o->kind == OPTION_FLAG && equals)
        return usage_error(c, "--%s takes no value; give --%s or --no-%s", name, o->name, o->name);
    if (o->kind != OPTION_FLAG && !equals) {
        if (*i + 1 >= argc) return usage_error(c, "--%s needs a value: %s", name, o->values);
        value = argv[++*i];
        if (strncmp(value, "--", 2) == 0 && option_find(c, value + 2) >= 0)
            return usage_error(c, "--%s needs a value: %s; but '%s' follows", name, o->values, value);
        if (o->kind == OPTION_LIST && !(value = parse_list(c, o, argc, argv, i))) return 2;
    }
    if (o->kind == OPTION_LIST && equals && !fits_list(c, o, value)) return 2;
    char before[64] = "", now[64] = "";
    const option *other = other_name(c, p, k);
    if (other) option_text(other, into, before, sizeof before);
    const char *expected = option_set(o, into, value);
    if (expected) return refuse_value(c, o, value, expected);
    if (other) option_text(o, into, now, sizeof now);
    if (strcmp(before, now) != 0)
        return usage_error(c, "--%s %s and --%s %s: the two are names of one option; give one of them", other->name,
                           before, o->name, now);
    p->given[k] = true;
    return 0;
}

/* Returns whether `word` is an option whose value is the next word. */
static bool takes_next(const command *c, const char *word) {
    int k = strncmp(word, "--", 2) == 0 ? option_find(c, word + 2) : -1;
    return k >= 0 && !is_flag(c, k);
}

/* Returns whether --help or -h is given anywhere. After an option that takes a value, "-h" is that value, but "--help"
 * is not: an option's name can be a value only after "=". */
static bool asks_for_help(const command *c, int argc, char **argv) {
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--help") || (!strcmp(argv[i], "-h") && !(i && takes_next(c, argv[i - 1])))) return true;
    return false;
}

static int refuse_word(const command *c, const char *word) {
    if (c->operands && word[0] != '-') return usage_error(c, "'%s' is one word too many; expected %s", word, c->usage);
    return usage_error(c, "'%s' is not an option; options begin with --", word);
}

bool options_parse(const command *c, void *into, parsed *p, int argc, char **argv) {
    int operands = 0;
    memset(p, 0, sizeof *p);
    if (asks_for_help(c, argc, argv)) {
        print_help(c, into);
        return false;
    }
    for (int i = 0; i < argc && p->status == 0; i++) {
        if (strncmp(argv[i], "--", 2) == 0 && argv[i][2])
            p->status = parse_one(c, into, p, argc, argv, &i);
        else if (operands < c->operands && argv[i][0] != '-')
            p->operand[operands++] = argv[i];
        else
            p->status = refuse_word(c, argv[i]);
    }
    return p->status == 0;
}
