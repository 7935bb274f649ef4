/* Command lines: one table of rows for each subcommand gives its flags, their defaults, ranges and help. */
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
} option_kind;

typedef struct option {
    const char *name;
    option_kind kind;
    size_t at;          /* offset of the field in the subcommand's struct */
    const char *values; /* "N"; of a choice: its words, "gpt2|llama" */
    const char *help;
    double lo, hi; /* of numbers */
    bool fixed;    /* a run keeps its value when it is resumed */
} option;

typedef struct command {
    const char *name, *usage, *summary;
    const option *options;
    int n_options;
    int operands; /* words without dashes that may be given */
} command;

enum { MAX_OPTIONS = 64 };

/* What was given, beside the values themselves. */
typedef struct parsed {
    bool given[MAX_OPTIONS];
    const char *operand[2]; /* NULL: none */
    int status;          /* the exit status, where parsing ended the program */
} parsed;

/* Fills the struct at into, which holds the defaults. False: the program ends with p->status (help, or an error that
 * has been printed). */
bool options_parse(const command *c, void *into, parsed *p, int argc, char **argv);
/* Sets one option as if it had been given so. NULL, or what the value must be. */
const char *option_set(const option *o, void *into, const char *text);
/* The value as text that option_set takes; "" for a text that is NULL. */
void option_text(const option *o, const void *from, char *buf, size_t n);
int option_find(const command *c, const char *name); /* -1: none */
/* Whether the option of that name was given. */
bool option_given(const command *c, const parsed *p, const char *name);
/* Prints "tapegrad NAME: ..." and where help is; 2. */
int usage_error(const command *c, const char *format, ...) TG_PRINTF(2, 3);
/* Of the name that comes nearest to a mistyped one; NULL where none is near. names[i] for i in [0, n). */
const char *nearest_name(const char *typed, const char *(*name)(const void *of, int i), const void *of, int n);

#endif
