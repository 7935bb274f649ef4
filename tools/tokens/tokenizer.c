/* tapegrad tokenizer: trains a byte-level BPE on text, or shows a tokenizer. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/program.h"
#include "common/text.h"
#include "data/documents.h"
#include "tokens/tokenizer.h"

typedef struct tokenizer_options {
    const char *data, *to, *field, *pattern, *special, *text;
    int64_t vocab, min_frequency, max_length;
} tokenizer_options;

#define AT(field) offsetof(tokenizer_options, field)

static const option rows[] = {
    {"data", OPTION_LIST, AT(data), "FILE..",
     "train: files, directories or patterns, also compressed (.gz, .zst), text or JSONL; - for standard input",
     .fixed = false},
    {"to", OPTION_TEXT, AT(to), "DIR", "train: where tokenizer.json is written", .fixed = false},
    {"vocab", OPTION_INT, AT(vocab), "N", "train: number of ids, with the 256 bytes and the special tokens", 257,
     2147483647.0, false},
    {"min-frequency", OPTION_INT, AT(min_frequency), "N", "train: how often a pair must be there to become a token", 0,
     LARGEST, false},
    {"max-length", OPTION_INT, AT(max_length), "N", "train: tokens have fewer bytes than N; 0: no limit", 0, MANY,
     false},
    {"pattern", OPTION_TEXT, AT(pattern), "REGEX",
     "train: matches a word, within which tokens lie: gpt2, llama3 or qwen for theirs, or a regular expression",
     .fixed = false},
    {"special", OPTION_LIST, AT(special), "TOKEN..", "train: special tokens; the first one ends a text",
     .fixed = false},
    {"field", OPTION_TEXT, AT(field), "KEY", "train: the key of the text in JSONL", .fixed = false},
    {"text", OPTION_TEXT, AT(text), "TEXT", "show: a text, whose tokens are printed", .fixed = false},
};

static const command tokenizer_command = {
    .name = "tokenizer",
    .usage = "train|show [DIR] [OPTION...]",
    .summary = "train: makes a byte-level BPE from text. The result is that of BpeTrainer of the library\n"
               "tokenizers. show: prints the special tokens of a tokenizer.json or of the directory of a\n"
               "model, or the tokens of a text.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
    .operands = 2,
};

/* ---- Training ---- */

/* The expressions of published models; NULL: the default of tg_bpe_new. */
static const struct {
    const char *name, *pattern;
} patterns[] = {
    {"gpt2", NULL},
    {"llama3", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
               "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"qwen", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
             "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

static const char *pattern_of(const char *given) {
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (!strcmp(given, patterns[i].name)) return patterns[i].pattern;
    return given;
}

static void say_merges(void *user, int64_t ids, int64_t vocab) {
    if (!is_time_to_say(user)) return;
    say("%lld of %lld ids\n", (long long)ids, (long long)vocab);
    flush_or_go_on();
}

/* Counts the words of all documents. */
static bool count_words(tg_ctx *ctx, tg_bpe *b, documents *from, double *said) {
    document d;
    int status;
    while ((status = documents_next(from, &d)) > 0) {
        bool good = tg_bpe_add(b, d.text, d.n) == TG_OK;
        free(d.text);
        if (!good) return fail("'%s' line %lld: %s", d.path, (long long)d.line, tg_ctx_message(ctx)), false;
        if (!is_time_to_say(said)) continue;
        say("%.1f MB read, %lld different words\n", 1e-6 * (double)documents_bytes(from), (long long)tg_bpe_words(b));
        flush_or_go_on();
    }
    return status == 0;
}

/* Makes a directory if it is missing. Sets *made to whether it was missing. */
static bool make_directory(const char *path, bool *made) {
    *made = mkdir(path, 0777) == 0;
    int why = errno;
    if (*made || is_there(path, ".")) return true;
    return fail("cannot make the directory '%s': %s", path, strerror(why)), false;
}

static bool train(const tokenizer_options *o, tg_ctx *ctx, const names *files) {
    double began = seconds_now(), said = began;
    tg_bpe *b = tg_bpe_new(ctx, TG_BPE(.vocab = o->vocab, .min_frequency = o->min_frequency,
                                       .max_length = o->max_length ? o->max_length : TG_NONE,
                                       .pattern = pattern_of(o->pattern), .special = o->special));
    documents *from = b ? documents_open(files, DOCUMENTS_BROKEN, o->field) : NULL;
    bool made = false, good = check(ctx) && from && make_directory(o->to, &made) && count_words(ctx, b, from, &said);
    if (good && !tg_bpe_words(b)) good = (fail("the files have no text"), false);
    good = good && (tg_bpe_save(b, o->to, say_merges, &said) == TG_OK || check(ctx));
    if (!good && made) rmdir(o->to);
    char to[4096];
    if (good)
        say("%s: a tokenizer from %.1f MB with %lld different words, in %.1f s\n"
            "encode with: %s tokenize --tokenizer %s --data FILE.. --to FILE\n",
            o->to, 1e-6 * (double)documents_bytes(from), (long long)tg_bpe_words(b), seconds_now() - began,
            program_word(), text_shell_word(to, sizeof to, o->to));
    documents_close(from);
    tg_bpe_free(b);
    return good;
}

static int run_training(const tokenizer_options *o, const parsed *p) {
    word_sources sources;
    if (!o->data) return usage_error(&tokenizer_command, "--data FILE is missing");
    if (!o->to) return usage_error(&tokenizer_command, "--to DIR is missing");
    bool good = words_expand(&sources, "data", o->data);
    if (good && sources.n > 1)
        good = (fail("--data has weights, which belong to tapegrad train; give the files alone"), false);
    if (good && option_given(&tokenizer_command, p, "field"))
        good = documents_have_field(&sources.at[0].files, DOCUMENTS_BROKEN) ||
               !fail("--field is for JSONL, and --data has no file named so; leave --field out");
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    good = good && train(o, ctx, &sources.at[0].files);
    tg_ctx_free(ctx);
    words_free(&sources);
    return good ? 0 : 1;
}

/* Returns the name of an option that was given and belongs to the other action; NULL: there is none. */
static const char *foreign_option(const parsed *p, bool shows) {
    for (int i = 0; i < tokenizer_command.n_options; i++)
        if (p->given[i] && (rows[i].at == AT(text)) != shows) return rows[i].name;
    return NULL;
}

int run_tokenizer(int argc, char **argv) {
    tokenizer_options o = {
        .field = "text", .pattern = "gpt2", .special = "<|endoftext|>", .vocab = 32000, .min_frequency = 2};
    parsed p;
    if (!options_parse(&tokenizer_command, &o, &p, argc, argv)) return p.status;
    const char *action = p.operand[0] ? p.operand[0] : "", *path = p.operand[1];
    bool shows = !strcmp(action, "show");
    const char *foreign = foreign_option(&p, shows);
    if (shows ? !path : strcmp(action, "train") != 0 || path)
        return usage_error(&tokenizer_command, "expected 'train', or 'show' and a path");
    if (foreign) return usage_error(&tokenizer_command, "--%s is an option of '%s'", foreign, shows ? "train" : "show");
    return shows ? show_tokenizer(path, o.text) : run_training(&o, &p);
}
