/* What the files of tapegrad chat share. */
#ifndef TAPEGRAD_CHAT_H
#define TAPEGRAD_CHAT_H

#include <tapegrad/generate.h>
#include <tapegrad/template.h>
#include <tapegrad/tokenizer.h>

#include "common/model_files.h"

typedef struct chat_options {
    const char *model, *adapter, *tokenizer, *system, *load, *template, *variables, *tools, *device;
    int64_t tokens, top_k, seed, threads;
    double temperature, top_p, min_p, repetition_penalty;
    int precision;
} chat_options;

extern const command chat_command;

/* ---- Lines that the user types (chat_line.c) ---- */

typedef enum line_end {
    LINE_GIVEN,
    LINE_END,         /* the input has ended */
    LINE_INTERRUPTED, /* the user pressed Ctrl-C */
} line_end;

/* Returns whether a person types and reads: standard input and output are terminals. Otherwise each line is a message,
 * and only answers are printed. */
bool chat_is_interactive(void);
void chat_begin_lines(void);     /* call it before the first line; from then on Ctrl-C does not end the program */
bool chat_was_interrupted(void); /* returns whether Ctrl-C was pressed since the last call */
/* Reads a line without its end into *line, which the caller frees; NULL unless LINE_GIVEN is returned. */
line_end chat_read_line(const char *prompt, char **line);

/* ---- The conversation (chat_history.c) ---- */

/* Messages are JSON objects with role and content, as templates get them. Functions that return bool return false after
 * printing an error; that of history_save may be left in the context. */
typedef struct chat_history {
    json_t *messages;
    size_t first; /* number of messages after the system prompt that no longer fit into the context */
} chat_history;

bool history_begin(chat_history *h, const char *system); /* system may be NULL */
void history_end(chat_history *h);
void history_reset(chat_history *h); /* forgets all but the system prompt */
bool history_add(chat_history *h, const char *role, const char *text, size_t n);
void history_drop_last(chat_history *h);
bool history_set_system(chat_history *h, const char *text);
const char *history_system(const chat_history *h); /* NULL: there is none */
/* Leaves out the oldest turn: a message of the user and what follows it. Returns the number of messages, 0 if only the
 * newest turn is left. */
size_t history_leave_out(chat_history *h);
/* Returns what the model gets, as the text of a JSON array, which the caller frees. NULL after printing an error. */
char *history_text(const chat_history *h);
bool history_save(const chat_history *h, tg_ctx *ctx, const char *path);
bool history_load(chat_history *h, const char *path);

/* ---- Answers (chat_answer.c) ---- */

typedef struct chat_model {
    const chat_options *o;
    model_files files;
    tg_ctx *ctx;
    tg_module *lm;
    tg_tokenizer *tokenizer;
    tg_generator *generator;
    tg_template *template;
    bool plain;       /* the model has no template */
    char *tools;      /* text of a JSON array, or NULL */
    int64_t ends[64]; /* the ids that end an answer; n_ends of them */
    int n_ends;
    int64_t turns; /* number of answers begun so far; each draws with a seed of its own */
} chat_model;

/* Opens the model that m->files names, with the options m->o. Returns false after printing what is wrong; chat_close
 * may be called in any case. */
bool chat_open(chat_model *m, tg_ctx *ctx);
void chat_close(chat_model *m);
/* Answers the last message of the history, printing as it goes, and appends the answer. Leaves out old turns if the
 * context is full, and says so. false after printing an error; the conversation can go on if the context has none. */
bool chat_answer(chat_model *m, chat_history *h);

#endif
