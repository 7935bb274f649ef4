/* The chunks of a model on a rank, and their evaluation in a pipeline. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/companions.h"
#include "common/model_files.h"
#include "common/stage.h"

/* ---- The chunks ---- */

bool stage_open(stage *s, tg_ctx *ctx, const tg_parallel *p, const rank_options *o, const tg_lm_config *config,
                const char *weights, bool map) {
    *s = (stage){.parallel = p, .chunk = calloc((size_t)o->vp, sizeof(tg_module *)), .from = weights};
    if (!s->chunk) return fail("no memory"), false;
    for (; s->n < o->vp; s->n++) {
        tg_lm_config c = *config;
        c.parallel = p;
        c.layout = o->layout;
        c.chunk = s->n;
        c.unfilled = weights != NULL;
        c.cp_kind = (tg_cp_kind)o->cp_kind;
        c.cp_inner = o->cp_inner ? (int)o->cp_inner : TG_AUTO;
        s->chunk[s->n] = tg_lm_new(ctx, &c);
    }
    if (weights) (map ? tg_lm_map : tg_lm_load)(s->chunk, s->n, weights);
    return check(ctx);
}

void stage_close(stage *s) {
    for (int i = 0; i < s->n; i++) tg_module_free(s->chunk[i]);
    free(s->chunk);
}

bool stage_of_pipeline(const stage *s) { return tg_parallel_size(s->parallel, TG_PP) > 1; }
bool stage_is_first(const stage *s) { return tg_parallel_rank(s->parallel, TG_PP) == 0; }
bool stage_is_last(const stage *s) {
    return tg_parallel_rank(s->parallel, TG_PP) == tg_parallel_size(s->parallel, TG_PP) - 1;
}

int64_t stage_numel(const stage *s) {
    int64_t n = 0;
    for (int i = 0; i < s->n; i++) n += tg_module_numel(s->chunk[i]);
    return n;
}

/* Returns the layer that a parameter of m is in, such as module "h.3" for "h.3.ln_1.weight"; NULL if it is in none. */
static tg_module *layer_of(const tg_module *m, const char *path) {
    char name[256];
    for (const char *dot; (dot = strchr(path, '.')) && dot - path < (ptrdiff_t)sizeof name; path = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        tg_module *child = tg_module_child(m, name);
        if (!child || isdigit((unsigned char)*path)) return child;
        m = child;
    }
    return NULL;
}

int stage_list_layers(const stage *s, tg_module **out) {
    const tg_module *before = NULL;
    int n = 0;
    for (int k = 0; k < s->n; k++)
        for (int i = 0, last = tg_module_param_count(s->chunk[k]); i < last; i++) {
            const char *path;
            tg_module_param(s->chunk[k], i, &path);
            tg_module *layer = layer_of(s->chunk[k], path);
            if (!layer || layer == before) continue;
            if (out) out[n] = layer;
            n++;
            before = layer;
        }
    return n;
}

int64_t stage_layers(const stage *s) { return stage_list_layers(s, NULL); }

bool is_embedding(const char *path) { return strstr(path, ".wte.weight") || strstr(path, ".embed_tokens.weight"); }

int64_t stage_copies(const stage *s) {
    int64_t n = 0;
    for (int k = 0; k < s->n && !stage_is_first(s); k++)
        for (int i = 0, all = tg_module_param_count(s->chunk[k]); i < all; i++) {
            const char *path;
            tg_tensor *x = tg_module_param(s->chunk[k], i, &path);
            if (is_embedding(path)) n += tg_numel(x);
        }
    return n;
}

void stage_save(const stage *s, const char *dir) {
    bool first = tg_comm_rank(tg_parallel_world(s->parallel)) == 0;
    tg_ctx *ctx = tg_parallel_ctx(s->parallel);
    if (s->from && first && !copy_companions(ctx, s->from, dir)) return;
    if (s->tokenizer && first && !tokenizer_copy(ctx, s->tokenizer, dir)) return;
    tg_lm_save(s->chunk, s->n, dir, TG_LM_SAVE(.file_bytes = INT64_MAX));
}

/* ---- Edges ---- */

void stage_edge_open(stage_edge *e, const stage *s, int64_t n, int64_t seq_len, bool shard) {
    bool sp = tg_is_sequence_parallel(s->parallel);
    int64_t rows = tokens_of_rank(s->parallel, seq_len) / (sp ? tg_parallel_size(s->parallel, TG_TP) : 1);
    e->at[0] = (tg_place_at){TG_CP, tg_parallel_size(s->parallel, TG_CP) > 1 ? TG_SHARD_ZIGZAG(0) : TG_I};
    e->at[1] = (tg_place_at){TG_TP, sp ? TG_SHARD(0) : TG_I};
    e->at[2] = (tg_place_at){TG_DP, shard ? TG_SHARD(1) : TG_V};
    e->edge = (tg_pipe_edge){.shape = TG_SHAPE(rows, n, tg_lm_config_of(s->chunk[0])->hidden), .at = e->at, .n_at = 3};
}

/* ---- Evaluation ---- */

/* The sequences of an evaluation, `batch` of them in each micro-batch but the last. */
typedef struct windows {
    const stage *s;
    tg_ctx *ctx;
    tg_tokens *tokens;
    const int64_t *offsets;
    int64_t n, seq_len, batch;
    int64_t *buffer; /* host memory for a micro-batch */
    tg_tensor *read[3]; /* of each kind, what read_windows returned last; its next call for the kind drops it */
} windows;

/* Returns the number of sequences in a micro-batch. */
static int64_t windows_of(const windows *w, int micro) {
    int64_t left = w->n - micro * w->batch;
    return left < w->batch ? left : w->batch;
}

/* Returns what a model reads of a micro-batch. */
static tg_tensor *read_windows(windows *w, int micro, token_kind kind) {
    int64_t n = windows_of(w, micro), length = tokens_of_rank(w->s->parallel, w->seq_len);
    for (int64_t i = 0; i < n; i++)
        read_tokens_of_rank(w->s->parallel, w->tokens, w->offsets[micro * w->batch + i], w->seq_len, kind,
                            w->buffer + i * length);
    tg_drop(w->read[kind]);
    w->read[kind] = tg_from_host(w->ctx, TG_I64, TG_SHAPE(n, length), w->buffer);
    place_batch(w->s->parallel, w->read[kind], false);
    return w->read[kind];
}

/* Runs a part for a micro-batch. No part needs both ids and targets, because a pipeline has two parts or more. */
static tg_status evaluate_part(void *state, tg_pipe_call *c) {
    windows *w = state;
    bool first = c->part == 0, last = c->part == c->parts - 1;
    bool packed = tg_tokens_windows(w->tokens) == TG_WINDOWS_PACKED;
    tg_tensor *x = first || last ? read_windows(w, c->micro, last ? TOKEN_TARGETS : TOKEN_IDS) : NULL;
    tg_tensor *positions = packed ? read_windows(w, c->micro, TOKEN_POSITIONS) : NULL;
    return tg_lm_part(w->s->chunk[c->chunk], c, first ? &x : NULL, last ? &x : NULL, positions);
}

static tg_status shape_of_windows(void *state, int micro, int i, tg_shape *out) {
    (void)i;
    out->dim[1] = windows_of(state, micro);
    return TG_OK;
}

/* Returns the sum of the losses of n micro-batches. */
static double sum_of_pipe(tg_ctx *ctx, tg_pipe *pipe, int n) {
    double sum = 0, *losses = calloc((size_t)n, sizeof *losses);
    if (!losses) tg_ctx_fail(ctx, TG_ERR_MEMORY, "no memory for %d losses", n);
    if (losses) tg_read_f64(tg_pipe_losses(pipe), losses, n);
    for (int i = 0; losses && i < n; i++) sum += losses[i];
    free(losses);
    return tg_ctx_status(ctx) == TG_OK ? sum : NAN;
}

double stage_sum_of_losses(const stage *s, tg_tokens *tokens, const int64_t *offsets, int64_t n, int64_t seq_len,
                           int64_t batch) {
    if (batch > n) batch = n;
    tg_ctx *ctx = tg_parallel_ctx(s->parallel);
    stage_edge e;
    stage_edge_open(&e, s, batch, seq_len, false);
    int64_t *buffer = calloc((size_t)(batch * seq_len), sizeof *buffer);
    windows w = {s, ctx, tokens, offsets, n, seq_len, batch, buffer, {NULL}};
    int micros = (int)((n + batch - 1) / batch);
    if (!w.buffer)
        tg_ctx_fail(ctx, TG_ERR_MEMORY, "no memory for a batch of %lld tokens", (long long)(batch * seq_len));
    tg_pipe_plan *plan = tg_pipe_plan_new(ctx, TG_PIPE_PLAN(.kind = TG_PIPE_FORWARD, .micros = micros, .chunks = s->n,
                                                            .stages = tg_parallel_size(s->parallel, TG_PP)));
    tg_pipe *pipe = tg_pipe_new(s->parallel, plan, TG_PIPE(.edge = &e.edge, .n_edge = 1, .shape = shape_of_windows));
    tg_pipe_run(pipe, evaluate_part, &w);
    double sum = sum_of_pipe(ctx, pipe, micros);
    tg_pipe_free(pipe);
    tg_pipe_plan_free(plan);
    for (int k = 0; k < 3; k++) tg_drop(w.read[k]);
    free(w.buffer);
    return sum;
}
