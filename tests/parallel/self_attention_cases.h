/* What the tests of tg_nn_self_attention share: its cases, the grid and inputs of a rank, and the same layer of one
 * rank in plain ops. */
#ifndef TG_TEST_SELF_ATTENTION_CASES_H
#define TG_TEST_SELF_ATTENTION_CASES_H

#include <tapegrad/attention.h>
#include <tapegrad/backward.h>

#include "one_rank.h"

enum { HEADS = 4, HIDDEN = 8, DK = HIDDEN / HEADS, WIDE = 6, MEMORY = 4, WINDOW = 3 };
static const double CAP = 0.4, BASE = 100, FACTOR = 0.9, DROPOUT = 0.3;

/* A layer. Every flag sets an option, or calls the layer in another way. */
typedef struct attention_case {
    int kv;
    int wide, causal, window, norm, rope, bias, out_bias, sink, cap, dropout, scale, packed, cross;
} attention_case;

/* Who computes it, and how. */
typedef struct attention_grid {
    int tp, cp;
    bool sp;
    tg_cp_kind kind;
    bool chunks, deferred; /* rows travel in two messages; weight gradients wait for tg_wgrads_drain */
} attention_grid;

static inline tg_module *attention_new(const tg_parallel *p, const attention_case *c, const attention_grid *g) {
    bool sp = tg_is_sequence_parallel(p) && tg_parallel_size(p, TG_TP) > 1;
    const tg_parallel_linear_opts *linear = TG_PARALLEL_LINEAR(.std = 0.5, .chunks = sp && g->chunks ? 2 : 1,
                                                               .deferred_wgrads = g->deferred ? TG_NONE : 0);
    tg_self_attention_opts o = {TG_SELF_ATTENTION_DEFAULTS,
                                .heads = HEADS,
                                .kv_heads = c->kv,
                                .cross = c->cross,
                                .causal = c->causal,
                                .qk_norm = c->norm,
                                .bias = c->bias,
                                .out_bias = c->out_bias,
                                .sink = c->sink,
                                .dropout = c->dropout ? DROPOUT : 0,
                                .cp_kind = g->kind,
                                .linear = linear,
                                .out_linear = linear};
    if (c->wide) o.v_dim = WIDE;
    if (c->window) o.left = WINDOW;
    if (c->rope) o.rope_base = BASE;
    if (c->cap) o.softcap = CAP;
    if (c->scale) o.scale = FACTOR;
    return tg_nn_self_attention(p, HIDDEN, &o);
}

/* Sets the vectors among the parameters, which begin as 0 or 1: that would hide their effect. */
static inline void attention_fill(const tg_parallel *p, tg_module *m) {
    for (int i = 0; i < tg_module_param_count(m); i++) {
        double v[64];
        tg_tensor *x = tg_module_param(m, i, NULL);
        if (tg_ndim(x) != 1) continue;
        int64_t n = tg_numel(x), first = n == tg_global_shape(x).dim[0] ? 0 : n * tg_parallel_rank(p, TG_TP);
        for (int64_t k = 0; k < n; k++) v[k] = at(40 + i, first + k);
        tg_write_f64(x, v, n);
    }
}

/* ---- One rank, in plain ops ---- */

static inline tg_tensor *attention_param(tg_module *m, const char *of, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "%s.%s", of, name);
    return tg_module_find(m, path);
}

/* Returns rows [first, first + n) of a projection of x [s, b, HIDDEN], as [b, s, n]. */
static inline tg_tensor *plain_rows(tg_tape *t, tg_module *m, const char *of, tg_tensor *x, int64_t first, int64_t n) {
    tg_tensor *w = tg_slice(t, attention_param(m, of, "weight"), 0, first, first + n, 1);
    tg_tensor *b = attention_param(m, of, "bias"), *y = tg_matmul(t, x, tg_transpose(t, w, 0, 1));
    if (b) y = tg_add(t, y, tg_slice(t, b, 0, first, first + n, 1));
    return tg_transpose(t, y, 0, 1);
}

static inline tg_tensor *plain_norm(tg_tape *t, tg_tensor *x, tg_tensor *w) {
    tg_tensor *mean = tg_mean(t, tg_square(t, x), TG_DIMS(-1), true);
    return tg_mul(t, tg_mul(t, x, tg_rsqrt(t, tg_add_scalar(t, mean, 1e-6))), w);
}

/* Returns where keys are hidden: bool [sq, sk]. */
static inline tg_tensor *plain_hidden(tg_ctx *ctx, const attention_case *c) {
    uint8_t hides[S * S];
    int sk = c->cross ? MEMORY : S;
    for (int i = 0; i < S; i++)
        for (int j = 0; j < sk; j++) {
            int p = i + sk - S;
            hides[i * sk + j] = (c->causal && j > p) || (c->window && j < p - WINDOW) || (c->packed && i / 4 != j / 4);
        }
    return tg_from_host(ctx, TG_BOOL, TG_SHAPE(S, sk), hides);
}

/* The queries, keys and values of head h, [b, s, d] each. */
static inline void plain_head(const attention_case *c, tg_tape *t, tg_module *m, tg_tensor *x, tg_tensor *memory, int h,
                              tg_tensor *qkv[3]) {
    int r = HEADS / c->kv, g = h / r, dv = c->wide ? WIDE : DK, block = (c->cross ? 0 : r * DK) + DK + dv;
    int key = g * block + (c->cross ? 0 : r * DK), query = c->cross ? h * DK : g * block + h % r * DK;
    qkv[0] = plain_rows(t, m, c->cross ? "q" : "qkv", x, query, DK);
    qkv[1] = plain_rows(t, m, c->cross ? "kv" : "qkv", c->cross ? memory : x, key, DK);
    qkv[2] = plain_rows(t, m, c->cross ? "kv" : "qkv", c->cross ? memory : x, key + DK, dv);
    for (int i = 0; i < 2; i++) {
        if (c->norm) qkv[i] = plain_norm(t, qkv[i], attention_param(m, i ? "k_norm" : "q_norm", "weight"));
        if (c->rope) qkv[i] = tg_rope(t, qkv[i], BASE, 0);
    }
}

/* Returns the attention weights of all heads, [b, heads, sq, sk]. values[h] receives the values of head h. */
static inline tg_tensor *plain_weights(const attention_case *c, tg_tape *t, tg_module *m, tg_tensor *x,
                                       tg_tensor *memory, tg_tensor *values[HEADS]) {
    tg_tensor *scores[HEADS], *qkv[3], *hidden = plain_hidden(tg_ctx_of(x), c);
    int64_t b = tg_dim(x, 1), sk = c->cross ? MEMORY : S;
    for (int h = 0; h < HEADS; h++) {
        plain_head(c, t, m, x, memory, h, qkv);
        tg_tensor *s = tg_matmul(t, qkv[0], tg_transpose(t, qkv[1], 1, 2));
        s = tg_scale(t, s, c->scale ? FACTOR : 1 / sqrt(DK));
        if (c->cap) s = tg_scale(t, tg_tanh(t, tg_scale(t, s, 1 / CAP)), CAP);
        s = tg_masked_fill(t, s, hidden, -1e30);
        tg_tensor *sink = c->sink ? tg_slice(t, tg_module_find(m, "sink"), 0, h, h + 1, 1) : NULL;
        if (sink) sink = tg_expand(t, tg_reshape(t, sink, TG_SHAPE(1, 1, 1)), TG_SHAPE(b, S, 1));
        if (sink) s = tg_concat(t, (tg_tensor *[]){s, sink}, 2, 2);
        scores[h] = tg_unsqueeze(t, s, 1);
        values[h] = qkv[2];
    }
    tg_tensor *w = tg_softmax(t, tg_concat(t, scores, HEADS, 1), -1);
    w = tg_masked_fill(t, tg_slice(t, w, 3, 0, sk, 1), hidden, 0);
    return c->dropout ? tg_dropout(t, w, DROPOUT) : w;
}

static inline tg_tensor *plain_attention(const attention_case *c, tg_tape *t, tg_module *m, tg_tensor *x,
                                         tg_tensor *memory) {
    tg_tensor *values[HEADS], *out[HEADS], *w = plain_weights(c, t, m, x, memory, values);
    for (int h = 0; h < HEADS; h++) out[h] = tg_matmul(t, tg_select(t, w, 1, h), values[h]);
    tg_tensor *y = tg_transpose(t, tg_concat(t, out, HEADS, 2), 0, 1), *b = attention_param(m, "out", "bias");
    y = tg_matmul(t, y, tg_transpose(t, attention_param(m, "out", "weight"), 0, 1));
    return b ? tg_add(t, y, b) : y;
}

/* ---- Inputs ---- */

/* The rows of the sequence that a rank has. */
typedef struct attention_rows {
    int64_t row[S];
    int n;
} attention_rows;

static const int64_t attention_starts[] = {0, S / 2, S};

static inline attention_rows attention_rows_of(const tg_parallel *p, const attention_case *c) {
    int cp = tg_parallel_size(p, TG_CP), parts = tg_is_sequence_parallel(p) ? tg_parallel_size(p, TG_TP) : 1;
    int64_t mine[S];
    const int64_t one[] = {0, S};
    tg_context_cut(c->packed ? attention_starts : one, c->packed ? 2 : 1, cp, tg_parallel_rank(p, TG_CP), mine);
    attention_rows r = {.n = S / cp / parts};
    int first = parts > 1 ? tg_parallel_rank(p, TG_TP) * r.n : 0;
    memcpy(r.row, mine + first, (size_t)r.n * sizeof *mine);
    return r;
}

/* Returns these rows of tensor number k, [.., b, HIDDEN] over all rows. */
static inline tg_tensor *attention_input(tg_ctx *ctx, int k, int64_t b, const int64_t *rows, int n) {
    double v[S * B * HIDDEN];
    int64_t width = b * HIDDEN;
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++) v[i * width + j] = at(k, rows[i] * width + j);
    return tg_from_host(ctx, TG_F64, TG_SHAPE(n, b, HIDDEN), v);
}

/* Returns the largest difference of x from these rows of `whole`; NaN on an error. */
static inline double attention_off(tg_tensor *x, tg_tensor *whole, const int64_t *rows, int n) {
    double a[S * B * HIDDEN], all[S * B * HIDDEN], most = 0;
    int64_t width = tg_dim(whole, 1) * tg_dim(whole, 2);
    if (tg_numel(x) != n * width || tg_read_f64(x, a, n * width) || tg_read_f64(whole, all, tg_numel(whole)))
        return NAN;
    for (int i = 0; i < n; i++)
        for (int64_t j = 0; j < width; j++)
            most = larger_or_nan(most, fabs(a[i * width + j] - all[rows[i] * width + j]));
    return most;
}

/* Places x [s, b, HIDDEN]: its rows are divided over cp if `divided`, and over tp under sequence parallelism. */
static inline tg_tensor *attention_place(const tg_parallel *p, tg_tensor *x, bool divided) {
    tg_place(p, x, TG_CP, tg_parallel_size(p, TG_CP) == 1 ? TG_I : divided ? TG_SHARD_ZIGZAG(0) : TG_R);
    tg_place(p, x, TG_TP, tg_is_sequence_parallel(p) ? TG_SHARD(0) : TG_I);
    tg_place(p, x, TG_DP, TG_I);
    return x;
}

#endif
