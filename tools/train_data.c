/* The data of a run: which tokens are for training and which for validation, and the order of the sequences. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data_kind.h"
#include "train.h"

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

/* ---- The shuffle: windows that do not overlap, in an order that depends on the seed and the epoch alone ---- */

static void shuffle(train_data *d, int64_t epoch) {
    uint64_t key = random_at(d->seed, (uint64_t)epoch);
    for (int64_t i = 0; i < d->windows; i++) d->shuffled[i] = i;
    for (int64_t i = d->windows - 1; i > 0; i--) {
        int64_t j = (int64_t)(random_at(key, (uint64_t)i) % (uint64_t)(i + 1));
        int64_t w = d->shuffled[i];
        d->shuffled[i] = d->shuffled[j];
        d->shuffled[j] = w;
    }
    d->epoch = epoch;
}

void data_offsets(train_data *d, int64_t step, int64_t *out) {
    int64_t first = (step - 1) * d->batch;
    for (int64_t i = 0; i < d->batch; i++) {
        if (d->order) {
            out[i] = d->order[first + i];
            continue;
        }
        int64_t epoch = (first + i) / d->windows;
        if (epoch != d->epoch) shuffle(d, epoch);
        out[i] = d->shuffled[(first + i) % d->windows] * d->seq_len;
    }
}

static bool open_shuffle(train_data *d) {
    d->windows = (d->train_count - 1) / d->seq_len;
    d->shuffled = malloc((size_t)d->windows * sizeof *d->shuffled);
    d->epoch = -1;
    return d->shuffled || (fail("no memory to shuffle %lld windows", (long long)d->windows), false);
}

/* ---- Validation: windows at the end of the data, evenly spread ---- */

static bool open_validation(train_data *d, const train_options *o) {
    int64_t tail = d->count - d->train_count, windows = (tail - 1) / d->seq_len;
    if (tail == 0 || o->val_every == 0) return true;
    if (windows < 1)
        return fail("--val-fraction %g of '%s' is %lld tokens, expected at least --seq-len + 1 = %lld; give a larger "
                    "--val-fraction, or --val-fraction 0",
                    o->val_fraction, o->data, (long long)tail, (long long)(d->seq_len + 1)),
               false;
    int64_t wanted = o->val_batches * d->batch;
    d->n_validation = wanted > 0 && wanted < windows ? wanted : windows;
    d->validation = malloc((size_t)d->n_validation * sizeof *d->validation);
    if (!d->validation) return fail("no memory for the windows of the validation"), false;
    for (int64_t i = 0; i < d->n_validation; i++)
        d->validation[i] =
            d->train_count + (int64_t)((double)i * (double)windows / (double)d->n_validation) * d->seq_len;
    return true;
}

/* ---- Open ---- */

bool data_open(train_data *d, tg_ctx *ctx, const train_options *o, const tg_gpt_config *config) {
    *d = (train_data){.batch = o->batch, .seq_len = o->model.seq_len, .seed = (uint64_t)o->seed};
    d->tokens = tg_tokens_open(ctx, o->data, (tg_token_format)o->data_format, config->vocab);
    if (!check(ctx)) return false;
    warn_of_data(o->data, o->data_format);
    d->count = tg_tokens_count(d->tokens);
    d->train_count = d->count - (int64_t)(o->val_fraction * (double)d->count);
    d->hash = tokens_sum(d->tokens);
    if (!check(ctx)) return false;
    if (d->train_count <= d->seq_len)
        return fail("'%s' has %lld tokens to train on, expected at least --seq-len + 1 = %lld; give more data or a "
                    "shorter --seq-len", o->data,
                    (long long)d->train_count, (long long)(d->seq_len + 1)),
               false;
    return (o->order ? open_order(d, o->order, o->steps) : open_shuffle(d)) && open_validation(d, o);
}

void data_close(train_data *d) {
    tg_tokens_close(d->tokens);
    free(d->order);
    free(d->shuffled);
    free(d->validation);
}
