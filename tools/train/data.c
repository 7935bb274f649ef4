/* The data of a run: which tokens are for training and which for validation, and the order of the sequences
 * (sequences.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/kind.h"
#include "train/train.h"

/* ---- The order file ---- */

static bool check_order_size(const char *path, FILE *f, int64_t expected) {
    struct stat st;
    if (fstat(fileno(f), &st) != 0) return fail("cannot get the size of '%s': %s", path, strerror(errno)), false;
    if (st.st_size == expected) return true;
    return fail("--order '%s' has %lld bytes, expected %lld: an int64 offset for each sequence of each step", path,
                (long long)st.st_size, (long long)expected),
           false;
}

/* Reads the whole file, which must have the expected number of bytes. The caller frees them. NULL after printing what
 * is wrong. */
static unsigned char *read_order(const char *path, int64_t expected) {
    FILE *f = open_regular(path);
    if (!f) return NULL;
    bool good = check_order_size(path, f, expected);
    unsigned char *bytes = good ? malloc((size_t)expected) : NULL;
    if (good && !bytes) fail("no memory for the offsets in --order '%s'", path);
    if (bytes && fread(bytes, 1, (size_t)expected, f) != (size_t)expected) {
        fail("cannot read '%s': %s", path, ferror(f) ? strerror(errno) : "it became shorter");
        free(bytes);
        bytes = NULL;
    }
    fclose(f);
    return bytes;
}

static int64_t little_endian(const unsigned char *b) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)b[i] << (8 * i);
    return (int64_t)v;
}

uint64_t data_order_sum(const train_data *d, int64_t steps) {
    return tg_checksum(d->order, (size_t)(steps * d->batch) * sizeof *d->order);
}

static bool open_order(train_data *d, const char *path, int64_t steps) {
    int64_t n = steps * d->batch, last = d->count - d->seq_len - 1;
    unsigned char *bytes = read_order(path, 8 * n);
    if (!bytes) return false;
    d->order = malloc((size_t)n * sizeof *d->order);
    for (int64_t i = 0; d->order && i < n; i++) {
        d->order[i] = little_endian(bytes + 8 * i);
        if (d->order[i] >= 0 && d->order[i] <= last) continue;
        fail("--order '%s': offset %lld (sequence %lld of step %lld) is not in the data, expected 0 to %lld", path,
             (long long)d->order[i], (long long)(i % d->batch), (long long)(1 + i / d->batch), (long long)last);
        free(bytes);
        return false;
    }
    free(bytes);
    if (!d->order) fail("no memory for the offsets in --order '%s'", path);
    return d->order != NULL;
}

/* ---- The parts for training and for validation ---- */

/* Returns how many tokens at the end of a source of training are for validation; 0 for one of --val-data. */
static int64_t tail_of(const train_data *d, const corpus_source *s, const train_options *o) {
    return d->corpus.source[d->corpus.n - 1].validation || s->validation
               ? 0
               : (int64_t)(o->val_fraction * (double)s->count);
}

/* Prints why a source has no sequence to train on. Returns false. */
static bool refuse_short(const train_data *d, const corpus_source *s, const sequence_pool *p) {
    if (d->windows == TG_WINDOWS_PADDED)
        return fail("'%s' has no document of two tokens or more to train on", s->name), false;
    return fail("'%s' has %lld tokens to train on, expected at least --seq-len + 1 = %lld; give more data or a "
                "shorter --seq-len",
                s->name, (long long)p->tokens, (long long)(d->seq_len + 1)),
           false;
}

/* The same for the tokens that validate. */
static bool refuse_short_tail(const train_data *d, const corpus_source *s, const sequence_pool *v, double fraction) {
    long long tokens = (long long)v->tokens, least = (long long)(d->seq_len + 1);
    bool padded = d->windows == TG_WINDOWS_PADDED;
    if (s->validation && padded) return fail("--val-data '%s' has no document of two tokens or more", s->name), false;
    if (s->validation)
        return fail("--val-data '%s' has %lld tokens, expected at least --seq-len + 1 = %lld", s->name, tokens, least),
               false;
    if (padded)
        return fail("--val-fraction %g of '%s' is %lld tokens, in which no document of two tokens or more begins; give "
                    "a larger --val-fraction, or --val-fraction 0",
                    fraction, s->name, tokens),
               false;
    return fail("--val-fraction %g of '%s' is %lld tokens, expected at least --seq-len + 1 = %lld; give a larger "
                "--val-fraction, or --val-fraction 0",
                fraction, s->name, tokens, least),
           false;
}

/* Adds the pool of a source of training, and that of the validation tokens at its end. All tokens of a source of
 * --val-data are for validation. */
static bool open_source(train_data *d, const corpus_source *s, const train_options *o) {
    int64_t tail = tail_of(d, s, o), train = s->validation ? 0 : s->count - tail, rest = s->count - train;
    sequence_pool *p = &d->pool[d->n_pools], *v = &d->tail[d->n_tails];
    d->train_count += train;
    if (!s->validation) {
        d->n_pools++;
        if (!pool_open(p, d->tokens, s->first, train, d->seq_len, d->windows)) return false;
        p->weight = s->weight;
        if (p->windows < 1) return refuse_short(d, s, p);
        /* The first source is shuffled as if it were the only one. */
        if (!pool_shuffle(p, d->n_pools > 1 ? random_at(d->seed, UINT64_MAX - (uint64_t)d->n_pools) : d->seed))
            return false;
    }
    if (!rest || !o->val_every) return true;
    d->n_tails++;
    if (!pool_open(v, d->tokens, s->first + train, rest, d->seq_len, d->windows)) return false;
    return v->windows > 0 || refuse_short_tail(d, s, v, o->val_fraction);
}

static bool open_pools(train_data *d, const train_options *o) {
    d->pool = calloc((size_t)d->corpus.n, sizeof *d->pool);
    d->tail = calloc((size_t)d->corpus.n, sizeof *d->tail);
    if (!d->pool || !d->tail) return fail("no memory for the data"), false;
    for (int i = 0; i < d->corpus.n; i++)
        if (!open_source(d, &d->corpus.source[i], o)) return check(d->ctx), false;
    return true;
}

/* ---- The order of the sequences ---- */

void data_offsets(train_data *d, int64_t step, int64_t *out) {
    int64_t first = (step - 1) * d->batch;
    if (!d->order) pools_seek(d->pool, d->n_pools, &d->at, first);
    for (int64_t i = 0; i < d->batch; i++)
        out[i] = d->order ? d->order[first + i] : pools_next(d->pool, d->n_pools, &d->at);
}

/* ---- Validation: windows that are evenly spread ---- */

static int64_t window_of(const train_data *d, int64_t i) {
    int k = 0;
    while (i >= d->tail[k].windows) i -= d->tail[k++].windows;
    return pool_at(&d->tail[k], i);
}

static bool open_validation(train_data *d, const train_options *o) {
    int64_t windows = 0, wanted = o->val_batches * d->batch;
    for (int i = 0; i < d->n_tails; i++) windows += d->tail[i].windows;
    if (!windows) return true;
    d->n_validation = wanted > 0 && wanted < windows ? wanted : windows;
    d->validation = malloc((size_t)d->n_validation * sizeof *d->validation);
    if (!d->validation) return fail("no memory for the windows of the validation"), false;
    for (int64_t i = 0; i < d->n_validation; i++) {
        d->validation[i] = window_of(d, (int64_t)((double)i * (double)windows / (double)d->n_validation));
        d->val_targets += d->masked ? tg_tokens_count_targets(d->tokens, d->validation[i], d->seq_len) : d->seq_len;
    }
    return d->val_targets > 0 || (fail("no token of the validation data is predicted: all are context"), false);
}

/* ---- Open ---- */

/* Returns what identifies the data: its tokens, and how several sources are blended. */
static uint64_t sum_of(const train_data *d) {
    uint64_t h = tokens_sum(d->tokens);
    for (int i = 0; d->corpus.n > 1 && i < d->corpus.n; i++) {
        const corpus_source *s = &d->corpus.source[i];
        const struct {
            int64_t count;
            double weight;
        } mixed = {s->count, s->weight};
        h = (h ^ tg_checksum(&mixed, sizeof mixed)) * 0x100000001b3u;
    }
    return h;
}

bool data_open(train_data *d, tg_ctx *ctx, const train_options *o, const corpus_options *from, const json_t *plan) {
    *d = (train_data){.batch = o->batch, .seq_len = o->model.seq_len, .seed = (uint64_t)o->seed};
    d->ctx = ctx;
    d->windows = train_windows(o);
    if (!corpus_open(&d->corpus, ctx, from, plan)) return false;
    d->tokens = d->corpus.tokens;
    d->count = tg_tokens_count(d->tokens);
    d->masked = d->windows != TG_WINDOWS_ACROSS || tg_tokens_has_context(d->tokens);
    tg_tokens_set_windows(d->tokens, d->windows);
    d->hash = sum_of(d);
    if (!check(ctx) || !open_pools(d, o)) return false;
    return (!o->order || open_order(d, o->order, o->steps)) && open_validation(d, o);
}

void data_close(train_data *d) {
    for (int i = 0; i < d->n_pools; i++) pool_close(&d->pool[i]);
    for (int i = 0; i < d->n_tails; i++) pool_close(&d->tail[i]);
    free(d->pool);
    free(d->tail);
    free(d->order);
    free(d->validation);
    corpus_close(&d->corpus);
}
