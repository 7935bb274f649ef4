/* tapegrad convert: the command line. Converts a model between a directory with config.json and saved state of any
 * ranks, and from such a directory to a GGUF file (gguf.h). adapter.h has --adapter. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "convert/adapter.h"
#include "convert/gguf.h"
#include "common/companions.h"
#include "common/interrupts.h"

enum { KIND_AUTO, KIND_MODEL, KIND_STATE };

typedef struct convert_options {
    const char *from, *to, *prefix, *config, *adapter;
    bool bare, no_tokenizer;
    int kind;
} convert_options;

#define AT(field) offsetof(convert_options, field)

static const option rows[] = {
    {"from", OPTION_TEXT, AT(from), "DIR", "a model directory, or saved state; required without --adapter",
     .fixed = false},
    {"to", OPTION_TEXT, AT(to), "DIR", "the directory to write, or a file NAME.gguf; required", .fixed = false},
    {"adapter", OPTION_TEXT, AT(adapter), "DIR",
     "low-rank adapters (train --lora, PEFT) to add to the weights of --from, or of the model that they name; --to is "
     "then a model",
     .fixed = false},
    {"kind", OPTION_CHOICE, AT(kind), "auto|model|state",
     "what --from is; needed if it has both a model and saved state", .fixed = false},
    {"prefix", OPTION_TEXT, AT(prefix), "NAME", "what the keys of the state begin with, before a dot", .fixed = false},
    {"bare", OPTION_FLAG, AT(bare), "", "the keys of the state have no prefix", .fixed = false},
    {"config", OPTION_TEXT, AT(config), "FILE",
     "from a state: the config.json of the model; without it, that in --from", .fixed = false},
    {"no-tokenizer", OPTION_FLAG, AT(no_tokenizer), "", "a GGUF file has no tokenizer", .fixed = false},
};

static const command convert_command = {
    .name = "convert",
    .usage = "--from DIR --to DIR|FILE.gguf [OPTION...]",
    .summary = "Converts a model: from a directory with config.json and weights, as published for\n"
               "many families, to saved state (index.json) that any ranks can load, or from such\n"
               "state back. One tensor at a time is in memory. Values and dtypes are unchanged.\n"
               "The files of the tokenizer are copied. With --adapter it adds low-rank adapters to\n"
               "the weights of their model. To FILE.gguf it writes a model with its tokenizer for\n"
               "llama.cpp.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

/* ---- Interrupts ---- */

/* Returns whether there was no interrupt, and sets errno for the case that there was one. After an interrupt every read
 * and write fails, so that the library removes the file that it has begun. */
static bool goes_on(void) {
    errno = ECANCELED;
    return !interrupted_by();
}

static int64_t read_bytes(void *user, int fd, void *to, size_t n, int64_t offset) {
    (void)user;
    return goes_on() ? pread(fd, to, n, offset) : -1;
}

static int64_t write_bytes(void *user, int fd, const void *from, size_t n, int64_t offset) {
    (void)user;
    return goes_on() ? pwrite(fd, from, n, offset) : -1;
}

/* ---- What is converted ---- */

/* Returns what --from is, KIND_MODEL or KIND_STATE; -1 after printing why that is unknown. */
static int kind_of(const convert_options *o) {
    bool state = is_there(o->from, "index.json") || is_there(o->from, "state-00000.safetensors");
    bool model = is_there(o->from, "model.safetensors") || is_there(o->from, "model.safetensors.index.json");
    if (!check_directory(o->from)) return -1;
    if (o->kind != KIND_AUTO) return o->kind;
    if (state && model)
        fail("'%s' has both a model and saved state; add --kind model or --kind state", o->from);
    else if (!state && !model)
        fail("'%s' has neither a model (model.safetensors) nor saved state (index.json)", o->from);
    else
        return state ? KIND_STATE : KIND_MODEL;
    return -1;
}

/* Returns the path of the config.json for a state, which the caller frees; NULL after printing that there is none. */
static char *config_of(const convert_options *o) {
    if (o->config) return strdup(o->config);
    if (is_there(o->from, "config.json")) return path_in(o->from, "config.json");
    fail("'%s' has no config.json; give that of the model with --config FILE", o->from);
    return NULL;
}

/* Converts, and returns the exit status. */
static int convert(const convert_options *o, int kind) {
    static const tg_file_ops files = {TG_FILE_OPS_DEFAULTS, .pread = read_bytes, .pwrite = write_bytes};
    const char *prefix = o->bare ? NULL : o->prefix;
    char *config = kind == KIND_STATE ? config_of(o) : NULL;
    bool there = access(o->to, F_OK) == 0;
    if (kind == KIND_STATE && !config) return 1;
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .files = &files));
    interrupts_catch(0, NULL);
    if (is_gguf(o->to))
        convert_gguf(ctx, o->from, o->to, !o->no_tokenizer);
    else if (kind == KIND_STATE)
        tg_gpt_from_state(ctx, o->from, prefix, config, o->to);
    else
        tg_gpt_to_state(ctx, o->from, o->to, prefix);
    if (tg_ok(ctx) && !is_gguf(o->to)) copy_companions(ctx, o->from, o->to);
    bool good = interrupted_by() && !tg_ok(ctx) ? fail("interrupted"), false : check(ctx);
    if (!good && !there) rmdir(o->to); /* fails if it has a file */
    tg_ctx_free(ctx);
    free(config);
    return good ? 0 : 1;
}

int run_convert(int argc, char **argv) {
    convert_options o = {.prefix = "model"};
    parsed p;
    if (!options_parse(&convert_command, &o, &p, argc, argv)) return p.status;
    if (!o.from && !o.adapter) return usage_error(&convert_command, "--from DIR is missing");
    if (!o.to) return usage_error(&convert_command, "--to DIR is missing");
    if (o.adapter && (o.config || o.bare || o.kind || option_given(&convert_command, &p, "prefix")))
        return usage_error(&convert_command,
                           "--kind, --prefix, --bare and --config are for saved state; leave them out "
                           "with --adapter");
    if (o.no_tokenizer && !is_gguf(o.to)) return usage_error(&convert_command, "--no-tokenizer is for --to FILE.gguf");
    if (is_gguf(o.to) && (o.adapter || o.bare || option_given(&convert_command, &p, "prefix")))
        return usage_error(&convert_command,
                           "--adapter, --prefix and --bare do not go with --to FILE.gguf; write a model "
                           "first, and convert that");
    if (o.adapter && same_file(o.from ? o.from : o.adapter, o.to))
        return fail("--to is the directory '%s' itself; give another one", o.to);
    if (o.adapter) return convert_adapter(o.from, o.adapter, o.to);
    if (o.bare && option_given(&convert_command, &p, "prefix"))
        return usage_error(&convert_command, "--prefix and --bare exclude each other");
    int kind = kind_of(&o);
    if (kind < 0) return 1;
    if (kind == KIND_MODEL && o.config)
        return fail("--config is only for a state; '%s' has its own config.json", o.from);
    if (kind == KIND_STATE && is_gguf(o.to))
        return fail("'%s' is saved state; convert it to a model first, and that to '%s'", o.from, o.to);
    if (same_file(o.from, o.to)) return fail("--to is the directory '%s' itself; give another one", o.from);
    int status = convert(&o, kind);
    if (!status) printf("the %s is in %s\n", kind == KIND_STATE || is_gguf(o.to) ? "model" : "state", o.to);
    if (status && interrupted_by()) raise(interrupted_by());
    return status;
}
