/* Data: streams of tokens, their windows, Megatron's datasets, loaders with and without a thread, and metrics. */
#include <tapegrad/data.h>
#include <tapegrad/metrics.h>

#include "memory/faults.h"

enum { ROWS = 10, LENGTH = 4, N_TOKENS = 64 };

typedef struct data {
    tg_tokens *tokens;
    tg_loader *loader;
    tg_metric *metric;
    tg_tensor *x[2], *targets;
    double values[ROWS * 3];
    int64_t labels[ROWS], ids[N_TOKENS];
} data;

static void close_data(trial *r) {
    data *d = r->state;
    tg_loader_free(d->loader);
    tg_tokens_close(d->tokens);
    tg_metric_free(d->metric);
    tg_drop(d->targets);
    tg_drop(d->x[0]);
}

/* ---- Tokens ---- */

/* Writes two datasets, and the text of a third stream. */
static void write_tokens(trial *r) {
    int64_t ids[8];
    for (int k = 0; k < 2; k++) {
        tg_token_writer *w = tg_token_writer_open(r->ctx, in_dir(r, k ? "b" : "a"), 300);
        for (int i = 0; i < 6 && w; i++) {
            for (int j = 0; j < 8; j++) ids[j] = (i * 8 + j) * (1 + k);
            tg_token_writer_add(w, ids, 8, i % 2);
            if (i % 3 == 2) tg_token_writer_end_document(w);
        }
        if (w && tg_ctx_status(r->ctx) == TG_OK)
            tg_token_writer_commit(w);
        else
            tg_token_writer_abandon(w);
    }
    tg_file_save(r->ctx, in_dir(r, "text"), "some text, which is long enough", 31);
}

static tg_tokens *open_tokens(trial *r) {
    tg_tokens *part[3] = {tg_tokens_open(r->ctx, in_dir(r, "a"), TG_TOKENS_MEGATRON, 300),
                          tg_tokens_open(r->ctx, in_dir(r, "b"), TG_TOKENS_MEGATRON, 0),
                          tg_tokens_open(r->ctx, in_dir(r, "text"), TG_TOKENS_TEXT, 0)};
    if (part[0] && part[1] && part[2]) return tg_tokens_join(r->ctx, part, 3);
    for (int i = 0; i < 3; i++) tg_tokens_close(part[i]);
    return NULL;
}

static void step_tokens(trial *r) {
    data *d = r->state;
    tg_token_run run;
    write_tokens(r);
    tg_tokens_close(d->tokens);
    d->tokens = open_tokens(r);
    tg_tokens_set_windows(d->tokens, TG_WINDOWS_PACKED);
    tg_tokens_read_window(d->tokens, 40, 24, d->ids, d->ids + 24);
    tg_tokens_read_positions(d->tokens, 40, 8, d->ids + 48);
    tg_tokens_find_run(d->tokens, 60, &run);
    tg_tokens_next_run(d->tokens, &run);
}

static void note_tokens(trial *r) {
    data *d = r->state;
    note_bytes(r, d->ids, sizeof d->ids);
}

/* ---- Loaders ---- */

static const char *const sources[] = {"arrays", "arrays, no thread", "tokens", "safetensors", "own"};

static const char *source_name(int i) { return i < 5 ? sources[i] : NULL; }

static tg_status read_own(void *state, tg_ctx *errors, int64_t sample, void *const *out) {
    (void)state, (void)errors;
    for (int i = 0; i < LENGTH; i++) ((double *)out[0])[i] = (double)(sample * LENGTH + i);
    return TG_OK;
}

static tg_loader *loader_of(trial *r, const tg_loader_opts *o) {
    static const tg_data_ops own = {.size = sizeof own, .read = read_own};
    static const char *const names[] = {"a"};
    data *d = r->state;
    const tg_data_part parts[] = {{TG_F64, TG_SHAPE(3), d->values}, {TG_I64, TG_SHAPE(), d->labels}};
    const tg_data_part row = {TG_F64, TG_SHAPE(LENGTH), NULL};
    const tg_named_tensor named = {"a", d->x[0] = wave(r, TG_F32, TG_SHAPE(ROWS, 3), 0)};
    if (!strcmp(r->name, "own")) return tg_loader_new(r->ctx, &own, NULL, &row, 1, ROWS, o);
    if (!strcmp(r->name, "tokens")) {
        tg_file_save(r->ctx, in_dir(r, "text"), "some text, which is long enough, even for some samples", 54);
        return tg_loader_open_tokens(r->ctx, in_dir(r, "text"), TG_TOKENS_TEXT, 0, LENGTH, o);
    }
    if (!strcmp(r->name, "safetensors")) {
        tg_safetensors_save(r->ctx, in_dir(r, "t"), &named, 1, NULL, 0);
        return tg_loader_open_safetensors(r->ctx, in_dir(r, "t"), names, 1, o);
    }
    return tg_loader_new_arrays(r->ctx, parts, 2, ROWS, o);
}

static void open_loader(trial *r) {
    data *d = r->state;
    for (int i = 0; i < ROWS * 3; i++) d->values[i] = i;
    for (int i = 0; i < ROWS; i++) d->labels[i] = i % 3;
    d->loader = loader_of(r, TG_LOADER(.batch = 4, .shuffle = true, .keep_last = true,
                                       .prefetch = strstr(r->name, "no thread") ? 0 : 2));
}

static void step_loader(trial *r) {
    data *d = r->state;
    tg_tensor *x[2];
    tg_loader_seek(d->loader, 1, 0);
    for (int i = 0; i < 3; i++) tg_loader_next(d->loader, x);
    d->x[1] = x[0];
}

static void note_loader(trial *r) { note(r, ((data *)r->state)->x[1]); }

/* ---- Metrics ---- */

static void open_metric(trial *r) {
    data *d = r->state;
    d->metric = tg_metric_new(r->ctx);
    d->x[0] = wave(r, TG_F32, TG_SHAPE(ROWS, 3), 0);
    d->targets = tg_from_host(r->ctx, TG_I64, TG_SHAPE(ROWS), d->labels);
}

static void step_metric(trial *r) {
    data *d = r->state;
    tg_metric_reset(d->metric);
    tg_metric_add(d->metric, d->x[0], 2);
    tg_metric_add_hits(d->metric, r->t, d->x[0], d->targets, 2, -100);
}

static void note_metric(trial *r) {
    data *d = r->state;
    double sum = tg_metric_sum(d->metric);
    note_bytes(r, &sum, sizeof sum);
}

static const memory_case rows[] = {
    {"tokens", NULL, sizeof(data), false, true, NULL, step_tokens, note_tokens, close_data},
    {"loader", source_name, sizeof(data), false, false, open_loader, step_loader, note_loader, close_data},
    {"metric", NULL, sizeof(data), false, false, open_metric, step_metric, note_metric, close_data},
};
const memory_cases data_cases = {rows, sizeof rows / sizeof *rows};
