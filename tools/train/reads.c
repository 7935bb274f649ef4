/* What a run reads: finds the size of its vocabulary, and prints how many tokens the data have and how often the run
 * reads them. */
#include <inttypes.h>
#include <stdlib.h>

#include <tapegrad/tokenizer.h>

#include "common/model_files.h"
#include "common/text.h"
#include "train/train.h"

corpus_options train_corpus(const train_options *o, const char *cache, int64_t vocab) {
    return (corpus_options){.data = o->data,
                            .val_data = o->val_data,
                            .format = (data_format)o->data_format,
                            .cache = cache,
                            .tokenizer = o->tokenizer ? o->tokenizer : o->init ? corpus_tokenizer_of(o->init) : NULL,
                            .vocab = vocab};
}

/* Returns the number of a tokenizer's ids; -1 after printing what is wrong. */
static int64_t size_of_tokenizer(const char *path) {
    tg_ctx *ctx = tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1));
    tg_tokenizer *k = tg_tokenizer_load(ctx, path);
    int64_t size = check(ctx) ? tg_tokenizer_size(k) : -1;
    tg_tokenizer_free(k);
    tg_ctx_free(ctx);
    return size;
}

int64_t train_vocab(const train_options *o, const char *weights) {
    if (!weights && !o->model.vocab && o->tokenizer) return size_of_tokenizer(o->tokenizer);
    model_files *m = weights ? calloc(1, sizeof *m) : NULL;
    if (!weights) return o->model.vocab;
    bool found = m && model_find(m, weights, false);
    int64_t vocab = found ? m->config.vocab : -1;
    if (!m) fail("no memory");
    if (found) free_model_config(&m->config);
    free(m);
    return vocab;
}

/* Writes a number of bytes with its unit. */
static const char *bytes_text(int64_t n, char *buf, size_t size) {
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    double v = (double)n;
    int unit = 0;
    while (v >= 1000 && unit < 4) v /= 1000, unit++;
    snprintf(buf, size, unit ? "%.1f %s" : "%.0f %s", v, units[unit]);
    return buf;
}

/* Prints the files of --data and --val-data: the word that names a single one, or their number and bytes. */
static void say_files(const train_data *d) {
    int64_t files = 0, bytes = 0;
    char size[32];
    const corpus_source *s = d->corpus.source;
    for (int i = 0; i < d->corpus.n; i++) files += s[i].files, bytes += s[i].bytes;
    if (files == 1)
        say("data: %s", s[0].name);
    else
        say("data: %" PRId64 " files, %s", files, bytes_text(bytes, size, sizeof size));
}

/* Prints what a pool of a blend has, and how often the run reads it. */
static void say_pool(const corpus_source *s, const sequence_pool *p, double sequences) {
    say("  %.3g %% of the sequences from %s: %" PRId64 " tokens, %.2f epochs\n", 100 * p->weight, s->name, p->tokens,
        sequences * p->weight / (double)p->windows);
}

static double tokens_read(const train_data *d, double sequences) {
    double read = 0;
    for (int i = 0; i < d->n_pools; i++)
        read += sequences * d->pool[i].weight * (double)d->pool[i].read / (double)d->pool[i].windows;
    return read;
}

/* Prints how much of the data the run reads. If that is little, also prints the options that change it. */
static void say_reading(const train_data *d, const train_options *o, int64_t parameters) {
    double sequences = (double)o->steps * (double)o->batch, read = tokens_read(d, sequences);
    double epochs = read / (double)d->train_count;
    say("the run reads %.0f tokens: %.*f epochs of them, %.3g for each parameter", read, epochs < 0.1 ? 4 : 2, epochs,
        read / (double)(parameters > 0 ? parameters : 1));
    if (epochs < 0.5 && !o->time)
        say("; it sees %.2g %% of the data: give more --steps, or --time 30m to let the program choose\n",
            100 * epochs);
    else
        say("\n");
}

void data_say(const train_data *d, const train_options *o, int64_t parameters) {
    int64_t documents = tg_tokens_documents(d->tokens), windows = 0, padded = 0;
    say_files(d);
    if (documents > 1) say(", %" PRId64 " documents", documents);
    say(", %" PRId64 " tokens, of which %" PRId64 " %s\n", d->count, d->count - d->train_count,
        o->val_every ? "validate" : "are left out (--val-every 0)");
    for (int i = 0; i < d->n_pools && d->n_pools > 1; i++)
        say_pool(&d->corpus.source[i], &d->pool[i], (double)o->steps * (double)o->batch);
    for (int i = 0; i < d->n_pools; i++) {
        windows += d->pool[i].windows;
        padded += d->pool[i].windows * d->seq_len - d->pool[i].read;
    }
    if (d->windows == TG_WINDOWS_PACKED) say("documents are packed, and attention stays within each\n");
    if (d->windows == TG_WINDOWS_PADDED)
        say("each document begins a sequence: %.1f %% of the places in sequences are padding\n",
            100 * (double)padded / (double)(windows * d->seq_len));
    if (!d->order) say_reading(d, o, parameters);
}
