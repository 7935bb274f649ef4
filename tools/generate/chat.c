/* tapegrad chat: a conversation with a model. The loop, its commands, and the options. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mapped.h"
#include "common/start.h"
#include "generate/chat.h"
#include "generate/sampling_options.h"

#define AT(field) offsetof(chat_options, field)

static const option rows[] = {
    {"model", OPTION_TEXT, AT(model), "DIR", "a model directory, or that of a training run; required", .fixed = false},
    {"adapter", OPTION_TEXT, AT(adapter), "DIR", ADAPTER_HELP, .fixed = false},
    {"tokenizer", OPTION_TEXT, AT(tokenizer), "PATH", TOKENIZER_HELP, .fixed = false},
    {"system", OPTION_TEXT, AT(system), "TEXT", "the system prompt, which comes before the conversation",
     .fixed = false},
    {"load", OPTION_TEXT, AT(load), "FILE", "go on with the conversation that /save wrote", .fixed = false},
    {"tokens", OPTION_INT, AT(tokens), "N", "most tokens of an answer", 1, MANY, false},
    {"temperature", OPTION_REAL, AT(temperature), "X", "temperature of the draws; 0: always take the likeliest token",
     0, 1e6, false},
    {"top-k", OPTION_INT, AT(top_k), "N", "draw from the N likeliest tokens; 0: from all", 0, MANY, false},
    {"top-p", OPTION_REAL, AT(top_p), "X", "draw from the fewest tokens whose probabilities sum to X", 1e-9, 1, false},
    {"min-p", OPTION_REAL, AT(min_p), "X", "draw from tokens with X times the probability of the likeliest one", 0, 1,
     false},
    {"repetition-penalty", OPTION_REAL, AT(repetition_penalty), "X",
     "divide the logits of tokens that were there by X; 1: do not", 1e-6, 1e6, false},
    {"seed", OPTION_INT, AT(seed), "N", "seed of the draws of the first answer; each next one has the next seed", 0,
     LARGEST, false},
    {"template", OPTION_TEXT, AT(template), "FILE", "a Jinja template instead of the model's", .fixed = false},
    {"variables", OPTION_TEXT, AT(variables), "JSON",
     "variables of the template, such as '{\"enable_thinking\": false}'", .fixed = false},
    {"tools", OPTION_TEXT, AT(tools), "FILE", "a JSON array of tools for the template; calls of them are not run",
     .fixed = false},
    {"device", OPTION_DEVICE, AT(device), DEVICES, "where tensors lie and kernels run", .fixed = false},
    {"threads", OPTION_INT, AT(threads), "N", "threads; 0: the cores", 0, 1024, false},
    {"precision", OPTION_CHOICE, AT(precision), PRECISIONS, "dtype of parameters and arithmetic", .fixed = false},
};

const command chat_command = {
    .name = "chat",
    .usage = "--model DIR [OPTION...]",
    .summary = "Talks with a model. Each line is a message; Ctrl-C stops an answer, and /help lists\n"
               "commands. If standard input is not a terminal, only answers are printed.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

typedef struct chat {
    chat_options o;
    chat_model model;
    chat_history history;
    bool ends;
} chat;

/* ---- Commands ---- */

/* Prints a remark about a command if a person reads the output: a script gets answers and nothing else. Returns
 * true. */
static bool remark(const char *text) {
    if (chat_is_interactive()) say("(%s)\n", text);
    return true;
}

static bool print_help(chat *c, const char *word);

static bool reset(chat *c, const char *word) {
    (void)word;
    history_reset(&c->history);
    return remark("the conversation begins again");
}

static bool set_system(chat *c, const char *word) {
    const char *now = history_system(&c->history);
    if (*word) return history_set_system(&c->history, word);
    say("%s\n", now ? now : "(there is no system prompt)");
    return true;
}

static bool save(chat *c, const char *word) {
    if (!*word) return !fail("/save needs the name of a file");
    return history_save(&c->history, c->model.ctx, word) && remark("the conversation is saved");
}

static bool load(chat *c, const char *word) {
    if (!*word) return !fail("/load needs the name of a file");
    return history_load(&c->history, word) && remark("the conversation goes on");
}

static bool leave(chat *c, const char *word) {
    (void)word;
    return c->ends = true;
}

static const struct {
    const char *name;
    bool (*run)(chat *c, const char *word);
    const char *help;
} commands[] = {
    {"/reset", reset, "begin again, with the same system prompt"},
    {"/system", set_system, "TEXT: set the system prompt; without TEXT: print it"},
    {"/save", save, "FILE: write the conversation as JSON"},
    {"/load", load, "FILE: go on with a conversation that was saved"},
    {"/exit", leave, "end the program, as the end of the input does"},
    {"/help", print_help, "print this"},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static bool print_help(chat *c, const char *word) {
    (void)c, (void)word;
    for (int i = 0; i < COMMANDS; i++) say("%-8s %s\n", commands[i].name, commands[i].help);
    say("A message that begins with / is sent with // in its place. Ctrl-C stops an answer.\n");
    return true;
}

static bool run_command(chat *c, const char *line) {
    size_t n = strcspn(line, " \t");
    const char *word = line + n + strspn(line + n, " \t");
    for (int i = 0; i < COMMANDS; i++)
        if (strlen(commands[i].name) == n && strncmp(line, commands[i].name, n) == 0) return commands[i].run(c, word);
    return !fail("there is no command '%.*s'; /help lists them, and a message that begins with / is sent with //",
                 (int)n, line);
}

/* ---- The conversation ---- */

static bool send(chat *c, const char *text) {
    if (!history_add(&c->history, "user", text, strlen(text))) return false;
    bool good = chat_answer(&c->model, &c->history);
    if (!good) history_drop_last(&c->history);
    return good;
}

/* Runs a line: a command, or a message. Prints an error of the context and clears it, so that the conversation can go
 * on. Returns whether the line succeeded. */
static bool take_line(chat *c, const char *line) {
    if (!line[strspn(line, " \t\r")]) return true;
    bool good = line[0] == '/' && line[1] != '/' ? run_command(c, line) : send(c, line + (line[0] == '/'));
    if (!check(c->model.ctx)) tg_ctx_clear(c->model.ctx), good = false;
    fflush(stdout);
    return good;
}

/* Returns whether all lines succeeded, which scripts want to know. */
static bool converse(chat *c) {
    bool good = true;
    while (!c->ends) {
        char *line;
        line_end end = chat_read_line("> ", &line);
        if (end == LINE_END) break;
        if (end == LINE_INTERRUPTED) say("\n(/exit or Ctrl-D ends the program)\n");
        if (end == LINE_GIVEN) good &= take_line(c, line);
        free(line);
    }
    return good;
}

static void greet(const chat *c) {
    if (c->model.plain)
        warn("'%s' has no chat template: the model gets the conversation as text, \"User: ...\" and \"Assistant: ...\"",
             c->model.files.dir);
    if (chat_is_interactive()) say("(%s; /help lists commands)\n", c->model.files.dir);
}

static bool begin_history(chat *c) {
    const chat_options *o = &c->o;
    if (!history_begin(&c->history, o->system)) return false;
    if (!o->load) return true;
    return history_load(&c->history, o->load) && (!o->system || history_set_system(&c->history, o->system));
}

static int chat_on(chat *c, tg_ctx *ctx) {
    bool good = check(ctx) && begin_history(c) && chat_open(&c->model, ctx);
    if (good) {
        greet(c);
        chat_begin_lines();
        good = converse(c);
    }
    history_end(&c->history);
    chat_close(&c->model);
    return good ? 0 : 1;
}

/* Returns 0, or the exit status after printing that --variables is no JSON object. A template would say it too, but
 * after the model has been loaded. */
static int check_variables(const chat_options *o) {
    json_error_t e;
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL; /* as a template reads it */
    json_t *object = o->variables ? json_loads(o->variables, flags, &e) : json_object();
    bool good = json_is_object(object);
    const char *why = object ? "it is another value" : e.text;
    if (!good) usage_error(&chat_command, "--variables '%s' is not a JSON object: %s", o->variables, why);
    json_decref(object);
    return good ? 0 : 2;
}

int run_chat(int argc, char **argv) {
    chat c = {.o = {.tokens = 512, .temperature = 0.7, .top_p = 0.95, .repetition_penalty = 1, .seed = 1}};
    parsed p;
    c.model.o = &c.o;
    if (!options_parse(&chat_command, &c.o, &p, argc, argv)) return p.status;
    if (!c.o.model) return usage_error(&chat_command, "--model DIR, the model, is missing");
    if (check_variables(&c.o) || sampling_options_check(&chat_command, &p, c.o.temperature)) return 2;
    if (!model_find(&c.model.files, c.o.model, true) || !model_find_adapter(&c.model.files, c.o.adapter)) return 1;
    model_find_tokenizer(&c.model.files, c.o.tokenizer, c.o.model);
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = c.o.device, .threads = (int)auto_if_zero(c.o.threads),
                                       .dtype = dtype_of_precision(c.o.precision)));
    mapped_watch(ctx);
    int status = chat_on(&c, ctx);
    mapped_unwatch(ctx);
    tg_ctx_free(ctx);
    free_model_config(&c.model.files.config);
    return status;
}
