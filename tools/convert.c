/* tapegrad convert: converts a model between a directory with config.json and saved state of any ranks. */
#include <stdlib.h>
#include <unistd.h>

#include "program.h"

typedef struct convert_options {
    const char *from, *to, *prefix, *config;
} convert_options;

#define AT(field) offsetof(convert_options, field)

static const option rows[] = {
    {"from", OPTION_TEXT, AT(from), "DIR", "a model directory, or saved state; required", .fixed = false},
    {"to", OPTION_TEXT, AT(to), "DIR", "the directory to write; required", .fixed = false},
    {"prefix", OPTION_TEXT, AT(prefix), "NAME", "what the keys of the state begin with, before a dot", .fixed = false},
    {"config", OPTION_TEXT, AT(config), "FILE",
     "from a state: the config.json of the model; without it, that in --from", .fixed = false},
};

static const command convert_command = {
    .name = "convert",
    .usage = "--from DIR --to DIR [OPTION...]",
    .summary = "Converts a model: from a directory with config.json and weights, as published for\n"
               "GPT-2 and Llama, to saved state (index.json) that any ranks can load, or from such\n"
               "state back. One tensor at a time is in memory. Values and dtypes are unchanged.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

static bool has(const char *dir, const char *name) {
    char *path = path_in(dir, name);
    bool found = path && access(path, F_OK) == 0;
    free(path);
    return found;
}

static void convert(tg_ctx *ctx, const convert_options *o) {
    bool state = has(o->from, "index.json") || has(o->from, "state-00000.safetensors");
    if (!state) {
        tg_gpt_to_state(ctx, o->from, o->to, o->prefix);
        return;
    }
    char *own = path_in(o->from, "config.json");
    if (own) tg_gpt_from_state(ctx, o->from, o->prefix, o->config ? o->config : own, o->to);
    free(own);
}

int run_convert(int argc, char **argv) {
    convert_options o = {.prefix = "model"};
    parsed p;
    if (!options_parse(&convert_command, &o, &p, argc, argv)) return p.status;
    if (!o.from) return usage_error(&convert_command, "--from DIR is missing");
    if (!o.to) return usage_error(&convert_command, "--to DIR is missing");
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    convert(ctx, &o);
    int status = check(ctx) ? 0 : 1;
    tg_ctx_free(ctx);
    if (!status) printf("the model is in %s\n", o.to);
    return status;
}
