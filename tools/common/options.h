/* Command lines. Each subcommand has a table with a row for each option: its kind, range and help text. The defaults
 * are the values that the subcommand's struct has before parsing. An option with two names has two rows with the same
 * field, and a command line must not give it two values. */
#ifndef TAPEGRAD_OPTIONS_H
#define TAPEGRAD_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tapegrad/tapegrad.h>

typedef enum option_kind {
    OPTION_FLAG,   /* bool */
    OPTION_INT,    /* int64_t */
    OPTION_REAL,   /* double */
    OPTION_TEXT,   /* const char *, NULL by default */
    OPTION_CHOICE, /* int: the index of one of the words */
    OPTION_LIST,   /* const char *, NULL by default: all words up to the next option, separated by line breaks */
    OPTION_DEVICE, /* const char *: "cpu", "cuda" or "cuda:N"; NULL by default */
} option_kind;

typedef struct option {
    const char *name;
    option_kind kind;
    size_t at;          /* offset of the field in the subcommand's struct */
    const char *values; /* what help shows for the value, such as "N"; for a choice its words, "gpt2|llama" */
    const char *help;
    double lo, hi; /* range of a number, both ends included */
    bool fixed;    /* a resumed run must have the same value as before */
} option;

typedef struct command {
    const char *name, *usage, *summary;
    const option *options;
    int n_options;
    int operands; /* the most words other than options that the command takes, 0 to MAX_OPERANDS */
} command;

enum { MAX_OPTIONS = 100, MAX_OPERANDS = 16 };

/* What options_parse has found, besides the values of options, which it writes into the subcommand's struct. */
typedef struct parsed {
    bool given[MAX_OPTIONS];
    const char *operand[MAX_OPERANDS]; /* the words other than options; NULL: not given */
    int status;             /* the exit status, if options_parse returned false */
} parsed;

/* Parses the command line into the struct `into`, which holds the defaults. Returns false after printing help or an
 * error; the program must then end with p->status. */
bool options_parse(const command *c, void *into, parsed *p, int argc, char **argv);
/* Sets one option in the struct `into` from text, which must live as long as the struct. Returns NULL, or, if the value
 * is invalid, the words that say what it must be ("a whole number"). */
const char *option_set(const option *o, void *into, const char *text);
/* Writes the option's value as text that option_set takes; "" for a string that is NULL. */
void option_text(const option *o, const void *from, char *buf, size_t n);
/* Returns the index of the option of that name; -1: there is none. */
int option_find(const command *c, const char *name);
/* Returns whether the option of that name was given, by this name or by its other name. */
bool option_given(const command *c, const parsed *p, const char *name);
/* Returns the name by which that option was given, which may be its other name; `name` itself if it was not given. For
 * messages, which name what the user has typed. */
const char *option_given_name(const command *c, const parsed *p, const char *name);
/* Returns the name of the first option that was given and is none of the n names; NULL: there is none. For modes of a
 * command that read those options alone. */
const char *option_given_other(const command *c, const parsed *p, const char *const *names, int n);
/* Prints "tapegrad NAME: ..." and how to get help. Returns 2, the exit status for errors of the command line. */
int usage_error(const command *c, const char *format, ...) TG_PRINTF(2, 3);
/* Returns the name, among n, that is most similar to a mistyped one; NULL if none is similar. name(of, i) is name i. */
const char *nearest_name(const char *typed, const char *(*name)(const void *of, int i), const void *of, int n);

#endif
