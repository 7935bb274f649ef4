/* Samples of a training run: continuations of a prompt by the model as it is at a validation. They are printed, and
 * kept in samples.jsonl, which has a line for each. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tapegrad/generate.h>

#include "common/text.h"
#include "data/corpus.h"
#include "train/train.h"

/* ---- The prompt ---- */

/* Returns the path of the tokenizer of the run's model; NULL: it has none. If it has been moved, a run that goes on has
 * a copy. */
static const char *tokenizer_path(const train_options *o) {
    const char *path = o->tokenizer ? o->tokenizer : o->init ? corpus_tokenizer_of(o->init) : NULL;
    bool moved = path ? access(path, F_OK) != 0 : o->init != NULL;
    return moved && corpus_tokenizer_of(o->out) ? o->out : path;
}

/* Loads what turns ids into text. Without a tokenizer, 256 ids are bytes, and others are printed as numbers. */
static bool open_tokenizer(samples *s, tg_ctx *ctx, const train_options *o, int64_t vocab) {
    const char *path = tokenizer_path(o);
    if (path)
        s->tokenizer = tg_tokenizer_load(ctx, path);
    else if (vocab == 256)
        s->tokenizer = tg_tokenizer_new_bytes(ctx);
    if (!check(ctx)) return false;
    if (s->tokenizer || !o->sample_prompt) return true;
    return fail("--sample-prompt is text, but the model's vocabulary of %" PRId64
                " ids is not the 256 bytes, and there is "
                "no --tokenizer; leave it out, and samples begin with tokens of the validation data",
                vocab),
           false;
}

/* Takes the first tokens of the validation data as the prompt. */
static bool take_validation(samples *s, tg_ctx *ctx, const train_options *o, const train_data *d) {
    enum { PROMPT = 16 };
    if (!d->n_validation)
        return fail("--samples %" PRId64 " are made at validations, and this run has none; give a --val-fraction and "
                    "--val-every above 0, or leave --samples out",
                    o->samples),
               false;
    int64_t most = d->count - d->validation[0]; /* a document that is kept apart may be short */
    if (d->seq_len < most) most = d->seq_len;
    s->prompt.count = most < PROMPT ? most : PROMPT;
    s->prompt.ids = calloc(PROMPT, sizeof *s->prompt.ids);
    if (!s->prompt.ids) return fail("no memory for the prompt of samples"), false;
    return tg_tokens_read(d->tokens, d->validation[0], s->prompt.count, s->prompt.ids) == TG_OK || check(ctx);
}

bool samples_open(samples *s, tg_ctx *ctx, const train_options *o, const train_data *d, int64_t vocab) {
    *s = (samples){.text = tokenizer_path(o) || vocab == 256};
    if (!o->samples) return true;
    if (!open_tokenizer(s, ctx, o, vocab)) return false;
    if (!o->sample_prompt) return take_validation(s, ctx, o, d);
    tg_tokenizer_encode(s->tokenizer, o->sample_prompt, strlen(o->sample_prompt), TG_ENCODE(.special = true),
                        &s->prompt);
    if (!check(ctx)) return false;
    if (s->prompt.count) return true;
    return fail("--sample-prompt '%s' has no token; give some text", o->sample_prompt), false;
}

/* ---- The file ---- */

/* Keeps the lines of steps up to `done`. Returns false after printing that they cannot be read. */
static bool keep_lines(samples *s, int64_t done) {
    FILE *from = open_regular(s->path);
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    if (!from) return false;
    while ((n = getline(&line, &capacity, from)) > 0) {
        json_t *of = line[n - 1] == '\n' ? json_loadb(line, (size_t)n, 0, NULL) : NULL;
        if (of && json_integer_value(json_object_get(of, "step")) <= done) fwrite(line, 1, (size_t)n, s->file);
        json_decref(of);
    }
    bool good = !ferror(from) || (fail("cannot read '%s': %s", s->path, strerror(errno)), false);
    free(line);
    fclose(from);
    return good;
}

bool samples_begin_file(samples *s, const char *dir, int64_t done) {
    if (!s->prompt.count) return true;
    s->path = path_in(dir, "samples.jsonl");
    s->file = open_memstream(&s->lines, &s->length);
    if (!s->path || !s->file) return fail("no memory for samples"), false;
    return !done || !is_there(dir, "samples.jsonl") || keep_lines(s, done);
}

/* Writes the ids as text to f. */
static void put_text(const samples *s, const int64_t *ids, int64_t n, FILE *f) {
    tg_decoder *d = tg_decoder_new(s->tokenizer, false);
    size_t size;
    const char *text;
    for (int64_t i = 0; i < n; i++) {
        text = tg_decoder_push(d, ids[i], &size);
        if (text) fwrite(text, 1, size, f);
    }
    text = tg_decoder_finish(d, &size);
    if (text) fwrite(text, 1, size, f);
    tg_decoder_free(d);
}

/* Returns the ids as text in UTF-8, or as numbers separated by commas; the caller frees it. */
static char *text_of(const samples *s, const int64_t *ids, int64_t n) {
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    if (f && s->tokenizer) put_text(s, ids, n, f);
    for (int64_t i = 0; f && !s->tokenizer && i < n; i++) fprintf(f, "%s%" PRId64, i ? "," : "", ids[i]);
    if (f) fclose(f);
    if (text) text_make_utf8(text, length);
    return text;
}

/* If this rank writes the file, prints a sample on one line, and adds it to the file. */
static void show(samples *s, int64_t number, const tg_generated *sample) {
    int64_t n = s->prompt.count;
    int64_t *ids = s->file ? malloc((size_t)(n + sample->count) * sizeof *ids) : NULL;
    if (ids) memcpy(ids, s->prompt.ids, (size_t)n * sizeof *ids);
    if (ids && sample->count) memcpy(ids + n, sample->ids, (size_t)sample->count * sizeof *ids);
    char *text = ids ? text_of(s, ids, n + sample->count) : NULL;
    free(ids);
    if (!text) {
        s->failed = true;
        return;
    }
    json_t *line = json_pack("{s:I, s:I, s:I, s:s}", "step", (json_int_t)s->step, "number", (json_int_t)number,
                             "prompt_tokens", (json_int_t)n, "text", text);
    char *row = json_text(line, JSON_COMPACT);
    json_decref(line);
    if (row) fprintf(s->file, "%s\n", row);
    else s->failed = true;
    free(row);
    size_t most = 4 * strlen(text) + 1;
    char *shown = malloc(most);
    if (shown) say("  sample: %s\n", text_escape(shown, most, text));
    free(shown);
    free(text);
}

void samples_save(samples *s, tg_ctx *ctx) {
    if (s->file && s->failed) tg_ctx_fail(ctx, TG_ERR_MEMORY, "no memory for a sample of '%s'", s->path);
    if (s->file && fflush(s->file) == 0) tg_file_save(ctx, s->path, s->lines, s->length);
}

/* ---- Generation ---- */

/* Continues the prompt as `tapegrad generate` does with the seed of the run: the same model gives the same samples. */
static tg_status generate(tg_generator *g, const train_options *o, const samples *s) {
    int64_t ends[64];
    int n = tg_tokenizer_ends(s->tokenizer, ends, 64);
    const tg_prompt prompt = {s->prompt.ids, s->prompt.count};
    return tg_generator_run(g, &prompt, 1,
                            TG_GENERATE(.tokens = o->sample_tokens, .samples = o->samples, .stop_ids = ends,
                                        .n_stop_ids = n < 64 ? n : 64, .slide = true,
                                        .sampling = TG_SAMPLING(.temperature = 0.8, .seed = (uint64_t)o->seed)));
}

/* If the logits of a sample were not finite, as those of a model that diverges, prints that and clears the error: the
 * run goes on, and has its own limit for such steps. All ranks have the same logits. */
static void report(trainer *r) {
    if (tg_ctx_status(r->ctx) != TG_ERR_DATA) return;
    say("  samples are not possible: %s\n", tg_ctx_message(r->ctx));
    tg_ctx_clear(r->ctx);
}

void samples_make(trainer *r, const train_options *o, samples *s) {
    enum { AT_ONCE = 12 }; /* more would let rounding depend on the number */
    int64_t positions = tg_lm_config_of(r->stage.chunk[0])->positions, length = s->prompt.count + o->sample_tokens;
    trainer_set_whole(r, true);
    tg_generator *g = tg_generator_new(r->stage.chunk[0],
                                       TG_GENERATOR(.rows = o->samples < AT_ONCE ? o->samples : AT_ONCE,
                                                    .positions = length < positions ? length : positions));
    if (g && generate(g, o, s) != TG_OK) report(r);
    else
        for (int64_t i = 0; g && i < o->samples; i++) show(s, i, tg_generator_result(g, 0, i));
    tg_generator_free(g);
    trainer_set_whole(r, false);
}

void samples_close(samples *s) {
    if (s->file) fclose(s->file);
    free(s->lines);
    free(s->path);
    tg_ids_free(&s->prompt);
    tg_tokenizer_free(s->tokenizer);
}
