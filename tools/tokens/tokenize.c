/* tapegrad tokenize: encodes documents with a tokenizer, on several threads, and writes their ids to a file. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/tokenizer.h>

#include "common/interrupts.h"
#include "common/program.h"
#include "common/text.h"
#include "data/documents.h"
#include "data/encode_texts.h"
#include "tokens/token_output.h"

typedef struct tokenize_options {
    const char *tokenizer, *data, *to, *field, *end;
    int documents, format;
    bool ends, special, literal;
    int64_t threads;
} tokenize_options;

#define AT(field) offsetof(tokenize_options, field)

static const option rows[] = {
    {"tokenizer", OPTION_TEXT, AT(tokenizer), "DIR", "a tokenizer.json, or the directory of a model; required",
     .fixed = false},
    {"data", OPTION_LIST, AT(data), "FILE..",
     "files, directories or patterns, also compressed (.gz, .zst); - for standard input; required", .fixed = false},
    {"to", OPTION_TEXT, AT(to), "FILE", "the file to write; required", .fixed = false},
    {"format", OPTION_CHOICE, AT(format), OUTPUT_FORMATS, OUTPUT_FORMATS_HELP, .fixed = false},
    {"documents", OPTION_CHOICE, AT(documents), DOCUMENT_KINDS, DOCUMENT_KINDS_HELP, .fixed = false},
    {"field", OPTION_TEXT, AT(field), "KEY", "JSONL: the key of the text", .fixed = false},
    {"ends", OPTION_FLAG, AT(ends), "", "ends each document with the token that ends a text", .fixed = false},
    {"end", OPTION_TEXT, AT(end), "TOKEN", "the token that ends a text; without it, that of the model's files",
     .fixed = false},
    {"special", OPTION_FLAG, AT(special), "", "adds what the tokenizer adds to a text, such as a token that begins it",
     .fixed = false},
    {"literal", OPTION_FLAG, AT(literal), "", "special tokens in the documents are ordinary text", .fixed = false},
    {"threads", OPTION_INT, AT(threads), "N", "threads; 0: as many as cores", 0, MOST_ENCODERS, false},
};

static const command tokenize_command = {
    .name = "tokenize",
    .usage = "--tokenizer DIR --data FILE.. --to FILE [OPTION...]",
    .summary = "Encodes documents as token ids for tapegrad train. The ids are those of the library\n"
               "tokenizers for the same tokenizer.json; see docs/tokenizers.md.",
    .options = rows,
    .n_options = sizeof rows / sizeof rows[0],
};

/* ---- Batches of documents ---- */

enum { MOST_DOCUMENTS = 1 << 14, MOST_BYTES = 1 << 24 };

/* Documents that are encoded together. */
typedef struct batch {
    const tokenize_options *o;
    const tg_tokenizer *tokenizer;
    int64_t end; /* the id after each document; -1: none */
    document *documents;
    tg_ids *ids;
    int n;
    size_t bytes;
} batch;

static encode_text text_of_document(const void *of, int i) {
    const batch *b = of;
    const document *d = &b->documents[i];
    return (encode_text){.text = d->text, .n = d->n, .path = d->path, .line = d->line, .special = b->o->special,
                         .literal = b->o->literal, .ids = &b->ids[i]};
}

/* Writes the ids of the batch. The id b->end is added to documents that do not end with it. */
static bool write_all(const batch *b, token_output *out) {
    for (int i = 0; i < b->n; i++) {
        tg_ids *ids = &b->ids[i];
        bool ended = ids->count && ids->ids[ids->count - 1] == b->end;
        if (b->end >= 0 && !ended) {
            int64_t *more = realloc(ids->ids, (size_t)(ids->count + 1) * sizeof *more);
            if (!more) return fail("no memory for a document of '%s'", b->documents[i].path), false;
            ids->ids = more;
            ids->capacity = ids->count + 1;
            ids->ids[ids->count++] = b->end;
        }
        if (!output_put(out, ids->ids, ids->count)) return check(out->ctx);
    }
    return true;
}

/* Reads documents until the batch is full. Returns 1, 0 if there were none, or -1 after printing what is wrong. */
static int fill(batch *b, documents *from) {
    int status = 1;
    b->n = 0;
    b->bytes = 0;
    while (b->n < MOST_DOCUMENTS && b->bytes < MOST_BYTES && (status = documents_next(from, &b->documents[b->n])) > 0)
        b->bytes += b->documents[b->n++].n;
    return status < 0 ? -1 : b->n > 0;
}

static void clear(batch *b) {
    for (int i = 0; i < b->n; i++) {
        free(b->documents[i].text);
        encode_trim(&b->ids[i]);
    }
    b->n = 0;
}

/* ---- The run ---- */

/* Prints how much has been read and written, at most once every few seconds. */
static void say_progress(const documents *from, const token_output *out, double *said) {
    if (!is_time_to_say(said)) return;
    say("%.1f MB read, %lld documents, %lld tokens\n", 1e-6 * (double)documents_bytes(from), (long long)out->documents,
        (long long)out->count);
    flush_or_go_on();
}

/* Encodes and writes all documents. Sets *bytes to the length of their texts. */
static bool run_batches(batch *b, documents *from, token_output *out, int threads, int64_t *bytes) {
    double said = seconds_now();
    int status = 1;
    bool good = true;
    for (*bytes = 0; good && !interrupted_by() && (status = fill(b, from)) > 0; clear(b)) {
        good = encode_texts(b->tokenizer, out->ctx, threads, b->n, text_of_document, b) && write_all(b, out);
        *bytes += (int64_t)b->bytes;
        say_progress(from, out, &said);
    }
    clear(b);
    if (interrupted_by()) return fail("interrupted"), false;
    return good && status == 0;
}

static void say_result(const tokenize_options *o, const tg_tokenizer *k, const token_output *out, int64_t bytes,
                       double seconds) {
    static const char *const formats[] = {"megatron", "u16", "u32"};
    say("%s: %lld document%s, %lld tokens, %.2f bytes a token; %.1f MB in %.1f s\n", o->to, (long long)out->documents,
        plural(out->documents), (long long)out->count, (double)bytes / (double)(out->count ? out->count : 1),
        1e-6 * (double)bytes, seconds);
    size_t n = strlen(o->to);
    bool ends = n > 4 && (!strcmp(o->to + n - 4, ".bin") || !strcmp(o->to + n - 4, ".idx"));
    char file[4096], word[4096];
    snprintf(file, sizeof file, "%s%s", o->to, o->format == OUTPUT_MEGATRON && !ends ? ".bin" : "");
    say("train with: %s train --data %s --data-format %s --vocab %lld\n", program_word(),
        text_shell_word(word, sizeof word, file), formats[o->format], (long long)tg_tokenizer_size(k));
}

static bool tokenize_files(const tokenize_options *o, tg_ctx *ctx, batch *b, const names *files) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int threads = o->threads ? (int)o->threads : cores < 1 ? 1 : cores > MOST_ENCODERS ? MOST_ENCODERS : (int)cores;
    int64_t bytes = 0;
    double began = seconds_now();
    token_output out = {0};
    documents *from = documents_open(files, (document_kind)o->documents, o->field);
    bool good = from && (output_open(&out, ctx, o->to, (output_format)o->format, tg_tokenizer_size(b->tokenizer)) ||
                         check(ctx));
    good = good && run_batches(b, from, &out, threads, &bytes);
    if (good && !out.count) good = (fail("the files have no text"), false);
    if (good) good = output_commit(&out) || check(ctx);
    if (good) say_result(o, b->tokenizer, &out, bytes, seconds_now() - began);
    output_abandon(&out);
    documents_close(from);
    return good;
}

/* Returns the id to end documents with; -1 for --no-ends; -2 after printing that the tokenizer has no such token. */
static int64_t end_id(const tokenize_options *o, const tg_tokenizer *k) {
    int64_t id = -1;
    if (!o->ends) return -1;
    if (o->end)
        id = tg_tokenizer_id(k, o->end);
    else
        tg_tokenizer_ends(k, &id, 1);
    if (id >= 0) return id;
    if (o->end)
        fail("the tokenizer '%s' has no token '%s'", o->tokenizer, o->end);
    else
        fail("no file of '%s' says which token ends a text: give --end TOKEN, or --no-ends", o->tokenizer);
    return -2;
}

static int tokenize(const tokenize_options *o, const names *files) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.threads = 1));
    tg_tokenizer *k = tg_tokenizer_load(ctx, o->tokenizer);
    batch b = {.o = o, .tokenizer = k, .end = k ? end_id(o, k) : -2};
    b.documents = calloc(MOST_DOCUMENTS, sizeof *b.documents);
    b.ids = calloc(MOST_DOCUMENTS, sizeof *b.ids);
    bool good = check(ctx) && b.end != -2;
    if (good && (!b.documents || !b.ids)) good = (fail("no memory for documents"), false);
    if (good && o->format == OUTPUT_U16 && tg_tokenizer_size(k) > 65536)
        good = (fail("the tokenizer has %lld ids, more than u16 can hold: give --format megatron or u32",
                     (long long)tg_tokenizer_size(k)),
                false);
    good = good && tokenize_files(o, ctx, &b, files);
    for (int i = 0; b.ids && i < MOST_DOCUMENTS; i++) tg_ids_free(&b.ids[i]);
    free(b.ids);
    free(b.documents);
    tg_tokenizer_free(k);
    tg_ctx_free(ctx);
    return good ? 0 : 1;
}

/* The files that --to names; both are one if the ids are raw. */
typedef struct outputs {
    char path[2][4096];
} outputs;

/* Fails if --to would write over the file `in`, which is read. */
static bool keeps(const tokenize_options *o, const outputs *to, const char *in) {
    if (!same_file(to->path[0], in) && !same_file(to->path[1], in)) return true;
    return fail("--to '%s' would write over '%s', which is read; give another name", o->to, in), false;
}

/* Fails if --to would write over the tokenizer or the texts. */
static bool keeps_input(const tokenize_options *o, const names *files) {
    outputs to;
    size_t n = strlen(o->to);
    bool dataset = o->format == OUTPUT_MEGATRON;
    bool ends = dataset && n > 4 && (!strcmp(o->to + n - 4, ".bin") || !strcmp(o->to + n - 4, ".idx"));
    for (int k = 0; k < 2; k++) {
        const char *ending = !dataset ? "" : k ? ".idx" : ".bin";
        snprintf(to.path[k], sizeof to.path[k], "%.*s%s", (int)(ends ? n - 4 : n), o->to, ending);
    }
    char *inside = path_in(o->tokenizer, "tokenizer.json"); /* if --tokenizer is a directory */
    bool good = inside && keeps(o, &to, inside) && keeps(o, &to, o->tokenizer);
    for (int i = 0; good && i < files->n; i++) good = keeps(o, &to, files->at[i]);
    free(inside);
    return good;
}

int run_tokenize(int argc, char **argv) {
    tokenize_options o = {.field = "text", .ends = true};
    parsed p;
    word_sources sources;
    if (!options_parse(&tokenize_command, &o, &p, argc, argv)) return p.status;
    if (!o.tokenizer) return usage_error(&tokenize_command, "--tokenizer DIR is missing");
    if (!o.data) return usage_error(&tokenize_command, "--data FILE is missing");
    if (!o.to) return usage_error(&tokenize_command, "--to FILE is missing");
    if (o.end && !o.ends) return usage_error(&tokenize_command, "--end and --no-ends exclude each other");
    bool good = words_expand(&sources, "data", o.data);
    if (good && sources.n > 1)
        good = (fail("--data has weights, which belong to tapegrad train; give the files alone"), false);
    if (good && option_given(&tokenize_command, &p, "field"))
        good = documents_have_field(&sources.at[0].files, (document_kind)o.documents) ||
               !fail("--field is for JSONL, and --data has none; leave --field out, or add --documents jsonl");
    good = good && keeps_input(&o, &sources.at[0].files);
    interrupts_catch(0, NULL);
    int status = good ? tokenize(&o, &sources.at[0].files) : 1;
    words_free(&sources);
    if (status && interrupted_by()) raise(interrupted_by());
    return status;
}
