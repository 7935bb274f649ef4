/* Samples of a training run: continuations of a prompt by the model as it is at a validation. They are printed, and
 * kept in samples.jsonl, which has a line for each. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/corpus.h"
#include "common/text.h"
#include "train/train.h"

/* ---- Drawing ---- */

/* Draws an id from the softmax of the logits at temperature 0.8, as `tapegrad generate` does by default. u: uniform in
 * [0, 1). Overwrites the logits. */
static int64_t draw(double *logits, int64_t vocab, double u) {
    double top = -INFINITY, sum = 0;
    for (int64_t i = 0; i < vocab; i++) top = fmax(top, logits[i]);
    for (int64_t i = 0; i < vocab; i++) sum += logits[i] = exp((logits[i] - top) / 0.8);
    double left = u * sum;
    for (int64_t i = 0; i < vocab; i++)
        if ((left -= logits[i]) < 0) return i;
    return vocab - 1;
}

/* Appends ids to the n of the prompt until there are `end`. logits: memory for a row. */
static void continue_ids(trainer *r, int64_t *ids, int64_t n, int64_t end, double *logits, uint64_t key) {
    tg_module *gpt = r->stage.chunk[0];
    int64_t vocab = tg_lm_config_of(gpt)->vocab;
    tg_gpt_cache *cache = tg_gpt_cache_new(gpt, 1, end);
    for (int64_t fed = 0; n < end && tg_ctx_status(r->ctx) == TG_OK; fed = n - 1) {
        tg_tensor *x = tg_from_host(r->ctx, TG_I64, TG_SHAPE(1, n - fed), ids + fed);
        place_batch(r->parallel, x, false);
        tg_status s = tg_read_f64(tg_gpt_next(gpt, r->tape, cache, x), logits, vocab);
        tg_tape_reset(r->tape);
        tg_drop(x);
        if (s == TG_OK) ids[n] = draw(logits, vocab, (double)(random_at(key, (uint64_t)n) >> 11) * 0x1p-53);
        n++;
    }
    tg_gpt_cache_free(cache);
}

void samples_make(trainer *r, const train_options *o, const int64_t *prompt, int64_t n, sample_fn show, void *user) {
    const tg_lm_config *c = tg_lm_config_of(r->stage.chunk[0]);
    int64_t most = (c->positions + 1) / 2; /* of the prompt, so that there is room to continue it */
    if (n > most) prompt += n - most, n = most;
    int64_t end = n + o->sample_tokens < c->positions ? n + o->sample_tokens : c->positions;
    int64_t *ids = calloc((size_t)end, sizeof *ids);
    double *logits = calloc((size_t)c->vocab, sizeof *logits);
    if (!ids || !logits) tg_ctx_fail(r->ctx, TG_ERR_MEMORY, "no memory for a sample");
    trainer_set_whole(r, true);
    for (int64_t i = 0; i < o->samples && tg_ctx_status(r->ctx) == TG_OK; i++) {
        memcpy(ids, prompt, (size_t)n * sizeof *ids);
        continue_ids(r, ids, n, end, logits, random_at((uint64_t)o->seed, (uint64_t)i));
        if (tg_ctx_status(r->ctx) == TG_OK) show(user, i, ids, end);
    }
    trainer_set_whole(r, false);
    free(logits);
    free(ids);
}

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
    tg_tokenizer_encode(s->tokenizer, o->sample_prompt, strlen(o->sample_prompt), NULL, &s->prompt);
    if (!check(ctx)) return false;
    if (s->prompt.count) return true;
    return fail("--sample-prompt '%s' has no token; give some text", o->sample_prompt), false;
}

/* ---- The file ---- */

/* Keeps the lines of steps up to `done`. */
static void keep_lines(samples *s, char *text, size_t n, int64_t done) {
    for (char *line = text, *end; (end = memchr(line, '\n', (size_t)(text + n - line))); line = end + 1) {
        json_t *of = json_loadb(line, (size_t)(end - line), 0, NULL);
        bool keep = of && json_integer_value(json_object_get(of, "step")) <= done;
        json_decref(of);
        if (keep) fwrite(line, 1, (size_t)(end + 1 - line), s->file);
    }
}

bool samples_begin_file(samples *s, const char *dir, int64_t done) {
    size_t n = 0;
    if (!s->prompt.count) return true;
    s->path = path_in(dir, "samples.jsonl");
    s->file = open_memstream(&s->lines, &s->length);
    if (!s->path || !s->file) return fail("no memory for samples"), false;
    char *old = done && is_there(dir, "samples.jsonl") ? read_whole(s->path, &n) : NULL;
    if (old) keep_lines(s, old, n, done);
    free(old);
    return true;
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

void samples_show(void *user, int64_t number, const int64_t *ids, int64_t n) {
    samples *s = user;
    char *text = s->file ? text_of(s, ids, n) : NULL;
    if (!text) return;
    json_t *line = json_pack("{s:I, s:I, s:I, s:s}", "step", (json_int_t)s->step, "number", (json_int_t)number,
                             "prompt_tokens", (json_int_t)s->prompt.count, "text", text);
    json_dumpf(line, s->file, JSON_COMPACT);
    putc('\n', s->file);
    json_decref(line);
    size_t most = 4 * strlen(text) + 1;
    char *shown = malloc(most);
    if (shown) say("  sample: %s\n", text_escape(shown, most, text));
    free(shown);
    free(text);
}

void samples_save(samples *s, tg_ctx *ctx) {
    if (s->file && fflush(s->file) == 0) tg_file_save(ctx, s->path, s->lines, s->length);
}

void samples_close(samples *s) {
    if (s->file) fclose(s->file);
    free(s->lines);
    free(s->path);
    tg_ids_free(&s->prompt);
    tg_tokenizer_free(s->tokenizer);
}
