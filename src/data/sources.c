/* The sources of samples that the library has: arrays in memory, files of tokens, and safetensors files. */
#include <string.h>

#include <tapegrad/data.h>
#include <tapegrad/parallel.h>

#include "base/memory/host_memory.h"
#include "base/options.h"
#include "data/loader.h"
#include "io/safetensors.h"

/* ---- The context of a source ---- */

tg_ctx *tg_loader_errors_new(tg_ctx *ctx) {
    if (!tg_ok(ctx)) return NULL;
    tg_ctx *errors =
        tg_ctx_new(TG_CONFIG(.device = "meta", .threads = 1, .allocator = ctx->run.allocator, .files = ctx->files));
    if (tg_ok(errors)) return errors;
    tg_loader_pass_error(ctx, errors);
    tg_ctx_free(errors);
    return NULL;
}

tg_status tg_loader_pass_error(tg_ctx *ctx, const tg_ctx *errors) {
    return tg_fail(ctx, errors->run.status, "%s", errors->run.message);
}

/* Copies the options to *o. Returns a new context for a source; NULL after an error. */
static tg_ctx *begin(tg_ctx *ctx, tg_loader_opts *o, const tg_loader_opts *given, const char *who) {
    tg_options(ctx, o, &tg_loader_opts_struct, given, who);
    return tg_loader_errors_new(ctx);
}

/* ---- The caller's source ---- */

tg_loader *tg_loader_new(tg_ctx *ctx, const tg_data_ops *ops, void *state, const tg_data_part *parts, int n,
                         int64_t samples, const tg_loader_opts *given) {
    const char *who = "tg_loader_new";
    tg_loader_opts opts = {0};
    tg_ctx *errors = begin(ctx, &opts, given, who);
    if (tg_ok(ctx) && !ops) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_loader_new: ops is NULL, expected a table");
    if (tg_ok(ctx)) tg_table_check(ctx, ops->size, sizeof *ops, "tg_loader_new: the table");
    if (tg_ok(ctx) && !ops->read) tg_fail(ctx, TG_ERR_ARGUMENT, "tg_loader_new: the table lacks the function read");
    bool valid = ops && ops->size == sizeof *ops;
    return tg_loader_make(ctx, errors, valid ? ops : NULL, state, parts, n, samples, &opts, who);
}

/* ---- Arrays ---- */

/* The bytes of each part of all samples. */
typedef struct arrays {
    tg_ctx *ctx;
    int n;
    const char *data[TG_LOADER_PARTS];
    size_t bytes[TG_LOADER_PARTS]; /* of one sample */
} arrays;

static tg_status read_arrays(void *state, tg_ctx *errors, int64_t sample, void *const *out) {
    const arrays *a = state;
    (void)errors;
    for (int p = 0; p < a->n; p++)
        if (a->bytes[p]) memcpy(out[p], a->data[p] + (size_t)sample * a->bytes[p], a->bytes[p]);
    return TG_OK;
}

static void free_arrays(void *state) {
    arrays *a = state;
    if (a) tg_host_free(a->ctx, a, sizeof *a);
}

static const tg_data_ops array_ops = {.size = sizeof array_ops, .read = read_arrays, .free = free_arrays};

/* Notes the arrays, whose shapes tg_loader_make has checked. */
static void note_arrays(tg_loader *l, arrays *a) {
    *a = (arrays){.ctx = l->ctx, .n = l->n};
    for (int p = 0; p < l->n; p++) {
        a->data[p] = l->part[p].data;
        a->bytes[p] = tg_loader_part_bytes(l, p);
    }
}

tg_loader *tg_loader_new_arrays(tg_ctx *ctx, const tg_data_part *parts, int n, int64_t samples,
                                const tg_loader_opts *given) {
    const char *who = "tg_loader_new_arrays";
    tg_loader_opts opts = {0};
    tg_ctx *errors = begin(ctx, &opts, given, who);
    for (int p = 0; parts && p < n && tg_ok(ctx); p++)
        if (!parts[p].data)
            tg_fail(ctx, TG_ERR_ARGUMENT, "%s: the data of part %d are NULL, expected an array", who, p);
    arrays *a = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *a) : NULL;
    if (a) a->ctx = ctx;
    tg_loader *l = tg_loader_make(ctx, errors, &array_ops, a, parts, n, samples, &opts, who);
    if (tg_ok(ctx)) note_arrays(l, a);
    return l;
}

/* ---- Tokens ---- */

typedef struct token_source {
    tg_ctx *ctx;
    tg_tokens *tokens;
    int64_t length; /* tokens of a sample, on all ranks of cp together */
    int rank, ranks; /* of cp */
} token_source;

/* Reads n tokens from `first` on, and for each of them the next token. */
static tg_status read_run(const token_source *s, int64_t first, int64_t n, int64_t *ids, int64_t *targets) {
    TG_TRY(tg_tokens_read(s->tokens, first, n, ids));
    memcpy(targets, ids + 1, (size_t)(n - 1) * sizeof *targets);
    return tg_tokens_read(s->tokens, first + n, 1, targets + n - 1);
}

/* Reads a sample: a whole sequence, or the two chunks of it that a rank of cp has (context_parallel.h). */
static tg_status read_tokens(void *state, tg_ctx *errors, int64_t sample, void *const *out) {
    const token_source *s = state;
    int64_t *ids = out[0], *targets = out[1], first = sample * s->length, chunk = s->length / (2 * s->ranks);
    (void)errors; /* tg_tokens_read records its errors there: it is the context of the tokens */
    if (s->ranks == 1) return read_run(s, first, s->length, ids, targets);
    TG_TRY(read_run(s, first + s->rank * chunk, chunk, ids, targets));
    return read_run(s, first + (2 * s->ranks - 1 - s->rank) * chunk, chunk, ids + chunk, targets + chunk);
}

static void free_tokens(void *state) {
    token_source *s = state;
    if (!s) return;
    tg_tokens_close(s->tokens);
    tg_host_free(s->ctx, s, sizeof *s);
}

static const tg_data_ops token_ops = {.size = sizeof token_ops, .read = read_tokens, .free = free_tokens};

/* Opens the tokens. Returns NULL after recording the error. */
static token_source *open_tokens(tg_ctx *ctx, tg_ctx *errors, const char *path, tg_token_format format, int64_t vocab,
                                 int64_t length, const tg_parallel *p) {
    const int64_t longest = INT64_MAX / 16;
    int cp = tg_parallel_size(p, TG_CP);
    if (tg_ok(ctx) && cp > 1 && length % (2 * cp))
        tg_fail(ctx, TG_ERR_SHAPE,
                "tg_loader_open_tokens: seq_len is %lld, expected a multiple of %d: each of %d cp ranks has two chunks",
                (long long)length, 2 * cp, cp);
    if (tg_ok(ctx) && (length < 1 || length > longest))
        tg_fail(ctx, TG_ERR_ARGUMENT, "tg_loader_open_tokens: seq_len is %lld, expected 1 to %lld", (long long)length,
                (long long)longest);
    token_source *s = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *s) : NULL;
    if (!s) return NULL;
    *s = (token_source){ctx, tg_tokens_open(errors, path, format, vocab), length, tg_parallel_rank(p, TG_CP), cp};
    if (!s->tokens)
        tg_loader_pass_error(ctx, errors);
    else if (tg_tokens_count(s->tokens) <= length)
        tg_fail(ctx, TG_ERR_ARGUMENT,
                "tg_loader_open_tokens: seq_len is %lld, but '%s' has %s; expected fewer than that", (long long)length,
                path, tg_count(tg_tokens_count(s->tokens), "token").text);
    return s;
}

tg_loader *tg_loader_open_tokens(tg_ctx *ctx, const char *path, tg_token_format format, int64_t vocab, int64_t seq_len,
                                 const tg_loader_opts *given) {
    const char *who = "tg_loader_open_tokens";
    tg_loader_opts opts = {0};
    tg_ctx *errors = begin(ctx, &opts, given, who);
    token_source *s = open_tokens(ctx, errors, path, format, vocab, seq_len, opts.parallel);
    opts.sequences = true;
    const tg_data_part sequence = {.dtype = TG_I64,
                                   .shape = {.ndim = 1, .dim = {seq_len / tg_parallel_size(opts.parallel, TG_CP)}}},
                       parts[] = {sequence, sequence};
    int64_t samples = tg_ok(ctx) ? (tg_tokens_count(s->tokens) - 1) / seq_len : 0;
    return tg_loader_make(ctx, errors, &token_ops, s, parts, 2, samples, &opts, who);
}

/* ---- Safetensors ---- */

/* A tensor of the file. Its dim 0 counts the samples. */
typedef struct column {
    tg_safetensors *file; /* the file itself, or one of the files of an index */
    const tg_safetensors_entry *entry;
    int64_t row; /* bytes of one sample */
} column;

typedef struct table {
    tg_ctx *ctx;
    tg_safetensors *file;
    int n;
    column column[TG_LOADER_PARTS];
} table;

static tg_status read_table(void *state, tg_ctx *errors, int64_t sample, void *const *out) {
    const table *t = state;
    tg_summing unused = tg_summing_begin();
    (void)errors;
    for (int p = 0; p < t->n; p++) {
        const column *c = &t->column[p];
        int64_t at = c->entry->begin + sample * c->row;
        TG_TRY(tg_safetensors_read_bytes(c->file, c->entry, at, out[p], (size_t)c->row, &unused));
    }
    return TG_OK;
}

static void free_table(void *state) {
    table *t = state;
    if (!t) return;
    tg_safetensors_close(t->file);
    tg_host_free(t->ctx, t, sizeof *t);
}

static const tg_data_ops table_ops = {.size = sizeof table_ops, .read = read_table, .free = free_table};

/* Finds a tensor of the file, and describes it in *part. *samples is the size of dim 0 of all tensors; 0 if this is the
 * first, which sets it. */
static tg_status find_column(tg_ctx *errors, table *t, const char *name, tg_data_part *part, int64_t *samples) {
    column *c = &t->column[t->n];
    c->file = t->file;
    c->entry = tg_safetensors_require(&c->file, name, "tg_loader_open_safetensors");
    if (!c->entry) return errors->run.status;
    const tg_shape *s = &c->entry->shape;
    if (s->ndim < 1 || s->dim[0] < 1 || (*samples && s->dim[0] != *samples))
        return tg_fail(errors, TG_ERR_SHAPE,
                       "tg_loader_open_safetensors: '%.128s' has %lld in dim 0, expected the number of samples, %s",
                       name, (long long)(s->ndim ? s->dim[0] : 0), *samples ? "as in the tensors before" : "1 or more");
    *samples = s->dim[0];
    c->row = (c->entry->stop - c->entry->begin) / *samples;
    *part = (tg_data_part){.dtype = c->entry->dtype, .shape = {.ndim = s->ndim - 1}};
    for (int d = 1; d < s->ndim; d++) part->shape.dim[d - 1] = s->dim[d];
    t->n++;
    return TG_OK;
}

static tg_status open_table(tg_ctx *errors, table *t, const char *path, const char *const *names, int n,
                            tg_data_part *parts, int64_t *samples) {
    if (!names || n < 1 || n > TG_LOADER_PARTS)
        return tg_fail(errors, TG_ERR_ARGUMENT,
                       "tg_loader_open_safetensors: names is %p and n %d, expected 1 to %d names", (const void *)names,
                       n, TG_LOADER_PARTS);
    if (!(t->file = tg_safetensors_open(errors, path))) return errors->run.status;
    for (int p = 0; p < n; p++) TG_TRY(find_column(errors, t, names[p], &parts[p], samples));
    return TG_OK;
}

tg_loader *tg_loader_open_safetensors(tg_ctx *ctx, const char *path, const char *const *names, int n,
                                      const tg_loader_opts *given) {
    const char *who = "tg_loader_open_safetensors";
    tg_loader_opts opts = {0};
    tg_data_part parts[TG_LOADER_PARTS] = {0};
    int64_t samples = 0;
    tg_ctx *errors = begin(ctx, &opts, given, who);
    table *t = tg_ok(ctx) ? tg_host_alloc(ctx, sizeof *t) : NULL;
    if (t) t->ctx = ctx;
    if (t && open_table(errors, t, path, names, n, parts, &samples) != TG_OK) tg_loader_pass_error(ctx, errors);
    return tg_loader_make(ctx, errors, &table_ops, t, parts, n, samples, &opts, who);
}
