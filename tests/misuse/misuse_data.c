/* Data loaders and metrics. */
#include <tapegrad/data.h>
#include <tapegrad/metrics.h>
#include <tapegrad/ops.h>

#include "misuse/misuse.h"

/* ---- Loaders ---- */

static bool no_loader(tg_loader *l) {
    tg_tensor *x[1];
    bool good = l && tg_loader_batches(l) == 0 && tg_loader_samples(l) == 0 && tg_loader_next(l, x) != TG_OK;
    tg_loader_free(l);
    return good;
}

#define NONE(symbol, code, says, call) GIVES(symbol, code, says, no_loader(call))

static tg_status read_none(void *state, tg_ctx *errors, int64_t sample, void *const *out) {
    (void)state, (void)errors, (void)sample, (void)out;
    return TG_OK;
}

static const float values[8];
static const tg_data_part part = {TG_F32, {1, {2}}, values};

#define OPTIONS(says, ...)                                                                                             \
    NONE(tg_loader_new_arrays, ARGUMENT, says, tg_loader_new_arrays(b->ctx, &part, 1, 4, TG_LOADER(__VA_ARGS__)))

static void arrays(misuse_world *b) {
    const tg_loader_opts *good = TG_LOADER(.batch = 2);
    const tg_data_part no_data = {TG_F32, {0}, NULL}, no_dtype = {(tg_dtype)99, {0}, values};
    const tg_data_part deep = {TG_F32, {8, {1, 1, 1, 1, 1, 1, 1, 1}}, values};
    tg_loader_opts opts0 = {0};
    QUIET(tg_loader_new_arrays, no_loader(tg_loader_new_arrays(NULL, &part, 1, 4, good)));
    NONE(tg_loader_new_arrays, ARGUMENT, "size is 0", tg_loader_new_arrays(b->ctx, &part, 1, 4, &opts0));
    NONE(tg_loader_new_arrays, ARGUMENT, "n 0", tg_loader_new_arrays(b->ctx, &part, 0, 4, good));
    NONE(tg_loader_new_arrays, ARGUMENT, "samples 0", tg_loader_new_arrays(b->ctx, &part, 1, 0, good));
    NONE(tg_loader_new_arrays, ARGUMENT, "expected 1 to 64 parts", tg_loader_new_arrays(b->ctx, NULL, 1, 4, good));
    NONE(tg_loader_new_arrays, ARGUMENT, "the data of part 0 are NULL",
         tg_loader_new_arrays(b->ctx, &no_data, 1, 4, good));
    NONE(tg_loader_new_arrays, DTYPE, "part 0", tg_loader_new_arrays(b->ctx, &no_dtype, 1, 4, good));
    NONE(tg_loader_new_arrays, SHAPE, "8 dims, expected at most 7", tg_loader_new_arrays(b->ctx, &deep, 1, 4, good));
    OPTIONS("batch is 0", .batch = 0);
    OPTIONS("batch is 5 and there are 4 samples", .batch = 5);
    OPTIONS("batch is -1", .batch = -1, .keep_last = true);
    OPTIONS("prefetch is -1", .batch = 1, .prefetch = -1);
    OPTIONS("prefetch is 1025", .batch = 1, .prefetch = 1025);
    OPTIONS("rank is 2 and ranks 2", .batch = 2, .rank = 2, .ranks = 2);
    OPTIONS("ranks 0", .batch = 2, .ranks = 0);
    OPTIONS("expected a multiple of the 2 ranks", .batch = 3, .ranks = 2);
}

static void sources(misuse_world *b) {
    const tg_data_ops *ops = TG_DATA_OPS(.read = read_none), later = {.size = sizeof later + 8, .read = read_none};
    const tg_loader_opts *good = TG_LOADER(.batch = 2);
    char path[512];
    snprintf(path, sizeof path, "%s/tokens", b->dir);
    tg_file_save(b->ctx, path, "abcdef", 6);
    QUIET(tg_loader_new, no_loader(tg_loader_new(NULL, ops, NULL, &part, 1, 4, good)));
    NONE(tg_loader_new, ARGUMENT, "ops is NULL", tg_loader_new(b->ctx, NULL, NULL, &part, 1, 4, good));
    NONE(tg_loader_new, ARGUMENT, "lacks the function read",
         tg_loader_new(b->ctx, TG_DATA_OPS(), NULL, &part, 1, 4, good));
    NONE(tg_loader_new, ARGUMENT, "the table", tg_loader_new(b->ctx, &later, NULL, &part, 1, 4, good));
    NONE(tg_loader_new, ARGUMENT, "batch is 0", tg_loader_new(b->ctx, ops, NULL, &part, 1, 4, NULL));
    QUIET(tg_loader_open_tokens, no_loader(tg_loader_open_tokens(NULL, path, TG_TOKENS_TEXT, 0, 2, good)));
    NONE(tg_loader_open_tokens, ARGUMENT, "seq_len is 0",
         tg_loader_open_tokens(b->ctx, path, TG_TOKENS_TEXT, 0, 0, good));
    NONE(tg_loader_open_tokens, ARGUMENT, "seq_len is 9223372036854775807, expected 1 to 576460752303423487",
         tg_loader_open_tokens(b->ctx, path, TG_TOKENS_TEXT, 0, INT64_MAX, good));
    NONE(tg_loader_open_tokens, ARGUMENT, "seq_len is 6, but",
         tg_loader_open_tokens(b->ctx, path, TG_TOKENS_TEXT, 0, 6, good));
    NONE(tg_loader_open_tokens, ARGUMENT, "path NULL", tg_loader_open_tokens(b->ctx, NULL, TG_TOKENS_TEXT, 0, 2, good));
    NONE(tg_loader_open_tokens, DATA, "expected less than 98",
         tg_loader_open_tokens(b->ctx, path, TG_TOKENS_TEXT, 98, 2, good));
    const char *names[] = {"x"};
    QUIET(tg_loader_open_safetensors, no_loader(tg_loader_open_safetensors(NULL, path, names, 1, good)));
    NONE(tg_loader_open_safetensors, ARGUMENT, "n 0", tg_loader_open_safetensors(b->ctx, path, names, 0, good));
    NONE(tg_loader_open_safetensors, ARGUMENT, "expected 1 to 64 names",
         tg_loader_open_safetensors(b->ctx, path, NULL, 1, good));
    NONE(tg_loader_open_safetensors, FORMAT, "6 bytes", tg_loader_open_safetensors(b->ctx, path, names, 1, good));
    snprintf(path, sizeof path, "%s/scalar", b->dir);
    tg_tensor *scalar = tg_zeros(b->ctx, TG_F32, TG_SHAPE());
    tg_safetensors_save(b->ctx, path, (tg_named_tensor[]){{"x", scalar}}, 1, NULL, 0);
    NONE(tg_loader_open_safetensors, SHAPE, "'x' has 0 in dim 0",
         tg_loader_open_safetensors(b->ctx, path, names, 1, good));
    tg_drop(scalar);
}

static void loaders(misuse_world *b) {
    tg_loader *l = tg_loader_new_arrays(b->ctx, &part, 1, 4, TG_LOADER(.batch = 2));
    tg_tensor *x[1];
    QUIET(tg_loader_free, (tg_loader_free(NULL), true));
    QUIET(tg_loader_next, tg_loader_next(NULL, x) == TG_ERR_ARGUMENT);
    FAILS(tg_loader_next, ARGUMENT, "out is NULL", tg_loader_next(l, NULL));
    QUIET(tg_loader_samples, tg_loader_samples(NULL) == 0 && tg_loader_samples(l) == 4);
    QUIET(tg_loader_batches, tg_loader_batches(NULL) == 0 && tg_loader_batches(l) == 2);
    QUIET(tg_loader_epoch, tg_loader_epoch(NULL) == 0 && tg_loader_epoch(l) == 0);
    QUIET(tg_loader_step, tg_loader_step(NULL) == 0 && tg_loader_step(l) == 0);
    QUIET(tg_loader_seek, tg_loader_seek(NULL, 0, 0) == TG_ERR_ARGUMENT);
    FAILS(tg_loader_seek, ARGUMENT, "epoch is -1", tg_loader_seek(l, -1, 0));
    FAILS(tg_loader_seek, ARGUMENT, "step -1, expected an epoch of 0 to 4611686018427387904 and a step of 0 to 2",
          tg_loader_seek(l, 0, -1));
    FAILS(tg_loader_seek, ARGUMENT, "epoch is 9223372036854775807", tg_loader_seek(l, INT64_MAX, 2));
    FAILS(tg_loader_seek, ARGUMENT, "step 3", tg_loader_seek(l, 0, 3));
    tg_loader_free(l);
}

/* ---- Metrics ---- */

static bool no_metric(tg_metric *m) {
    bool good = m && tg_metric_reset(m) != TG_OK && tg_metric_count(m) == 0 && isnan(tg_metric_mean(m));
    tg_metric_free(m);
    return good;
}

static void metrics(misuse_world *b) {
    tg_metric *m = tg_metric_new(b->ctx);
    QUIET(tg_metric_new, no_metric(tg_metric_new(NULL)));
    QUIET(tg_metric_free, (tg_metric_free(NULL), true));
    QUIET(tg_metric_reset, tg_metric_reset(NULL) == TG_ERR_ARGUMENT);
    QUIET(tg_metric_add, tg_metric_add(NULL, b->x, 1) == TG_ERR_ARGUMENT);
    FAILS(tg_metric_add, ARGUMENT, "weight is 0", tg_metric_add(m, b->x, 0));
    FAILS(tg_metric_add, ARGUMENT, "the tensor is NULL", tg_metric_add(m, NULL, 1));
    FAILS(tg_metric_add, HANDLE, "another context", tg_metric_add(m, b->foreign, 1));
    DEAD_STATUS(tg_metric_add, tg_metric_add(m, x, 1));
    QUIET(tg_metric_add_hits, tg_metric_add_hits(NULL, b->t, b->x, b->ids, 1, -1) == TG_ERR_ARGUMENT);
    FAILS(tg_metric_add_hits, SHAPE, "expected [..., classes] and [...]",
          tg_metric_add_hits(m, b->t, b->v, b->ids, 1, -1));
    FAILS(tg_metric_add_hits, DTYPE, "expected floats and int64", tg_metric_add_hits(m, b->t, b->cube, b->x, 1, -1));
    FAILS(tg_metric_add_hits, ARGUMENT, "k is 0, expected 1 to 3", tg_metric_add_hits(m, b->t, b->x, b->ids, 0, -1));
    FAILS(tg_metric_add_hits, ARGUMENT, "k is 4", tg_metric_add_hits(m, b->t, b->x, b->ids, 4, -1));
    FAILS(tg_metric_add_hits, HANDLE, "another context than the metric",
          tg_metric_add_hits(m, b->far_t, b->x, b->ids, 1, -1));
    FAILS(tg_metric_add_hits, ARGUMENT, "the tape is NULL", tg_metric_add_hits(m, NULL, b->x, b->ids, 1, -1));
    DEAD_STATUS(tg_metric_add_hits, tg_metric_add_hits(m, b->t, x, b->ids, 1, -1));
    QUIET(tg_metric_reduce, tg_metric_reduce(NULL, NULL) == TG_ERR_ARGUMENT && tg_metric_reduce(m, NULL) == TG_OK);
    QUIET(tg_metric_count, tg_metric_count(NULL) == 0 && tg_metric_count(m) == 0);
    QUIET(tg_metric_sum, isnan(tg_metric_sum(NULL)) && tg_metric_sum(m) == 0);
    QUIET(tg_metric_mean, isnan(tg_metric_mean(NULL)) && isnan(tg_metric_mean(m)));
    QUIET(tg_metric_perplexity, isnan(tg_metric_perplexity(NULL)));
    tg_metric_free(m);
}

void misuse_data(misuse_world *b) {
    arrays(b);
    sources(b);
    loaders(b);
    metrics(b);
}
