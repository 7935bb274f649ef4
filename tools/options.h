/* Command lines: a table of rows for each subcommand gives its options with their defaults, ranges and help. */
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
    OPTION_DEVICE, /* const char *: "cpu", "cuda" or "cuda:N"; NULL by default */
} option_kind;

typedef struct option {
    const char *name;
    option_kind kind;
    size_t at;          /* offset of the field in the subcommand's struct */
    const char *values; /* what help shows for the value: "N"; of a choice its words, "gpt2|llama" */
    const char *help;
    double lo, hi; /* range of numbers, ends included */
    bool fixed;    /* a resumed run keeps its value */
} option;

typedef struct command {
    const char *name, *usage, *summary;
    const option *options;
    int n_options;
    int operands; /* how many words without dashes may be given */
} command;

enum { MAX_OPTIONS = 64 };

/* What a command line gave, apart from the values. */
typedef struct parsed {
    bool given[MAX_OPTIONS];
    const char *operand[2]; /* NULL: none */
    int status;             /* the exit status, if parsing ended the program */
} parsed;

/* Parses the command line into the struct `into`, which holds the defaults. Returns false if the program is to end
 * with p->status, after printing help or an error. */
bool options_parse(const command *c, void *into, parsed *p, int argc, char **argv);
/* Sets one option from text. Returns NULL, or what the value must be. */
const char *option_set(const option *o, void *into, const char *text);
/* Writes the value as text that option_set takes; "" for a text that is NULL. */
void option_text(const option *o, const void *from, char *buf, size_t n);
/* Returns the index of the option of that name; -1: there is none. */
int option_find(const command *c, const char *name);
/* Returns whether the option of that name was given. */
bool option_given(const command *c, const parsed *p, const char *name);
/* Prints "tapegrad NAME: ..." and how to get help. Returns 2. */
int usage_error(const command *c, const char *format, ...) TG_PRINTF(2, 3);
/* Returns the one of n names that is nearest to a mistyped one; NULL if none is near. name(of, i) is name i. */
const char *nearest_name(const char *typed, const char *(*name)(const void *of, int i), const void *of, int n);

#endif
