/* What the tests of context parallelism share: a case of attention, its inputs by global index, and a rank's rows of
 * them. */
#ifndef TG_TEST_CONTEXT_CASES_H
#define TG_TEST_CONTEXT_CASES_H

#include <tapegrad/backward.h>
#include <tapegrad/context_parallel.h>

#include "one_rank.h"

enum { CONTEXT_ROWS = 256 }; /* limit on the rows of a rank */

static const tg_cp_kind context_kinds[] = {TG_CP_RING, TG_CP_GATHER, TG_CP_ULYSSES, TG_CP_HIERARCHY};

/* A case of attention. Sizes are global, those that are 0 have defaults (context_sizes). */
typedef struct context_case {
    const char *name;
    int b, h, g, s, dk, dv;
    tg_context_attention_opts o;
    bool sink;
    int64_t starts[6]; /* packed sequences; the last one is s */
    int64_t second[6]; /* those of the second batch entry, if b is 2 */
    int sequences;
} context_case;

#define CASE_OPTS(...)                                                                                                 \
    { TG_CONTEXT_ATTENTION_DEFAULTS, __VA_ARGS__ }

static inline tg_status context_sizes(context_case *c) {
    if (!c->b) c->b = c->sequences ? 1 : 2;
    if (!c->h) c->h = 4;
    if (!c->g) c->g = c->h;
    if (!c->s) c->s = 48;
    if (!c->dk) c->dk = 3;
    if (!c->dv) c->dv = c->dk;
    return TG_OK;
}

/* Returns rows rows[n] of tensor number k, whose global shape is [b, h, s, d], and of these the heads [from, from +
 * heads). */
static inline tg_tensor *context_rows(tg_ctx *ctx, int k, tg_shape shape, const int64_t *rows, int64_t n, int64_t from,
                                      int64_t heads) {
    static _Thread_local double v[1 << 16];
    int64_t d = shape.dim[3], i = 0;
    for (int64_t e = 0; e < shape.dim[0]; e++)
        for (int64_t u = from; u < from + heads; u++)
            for (int64_t r = 0; r < n; r++)
                for (int64_t j = 0; j < d; j++)
                    v[i++] = at(k, ((e * shape.dim[1] + u) * shape.dim[2] + rows[r]) * d + j);
    shape.dim[1] = heads;
    shape.dim[2] = n;
    return tg_from_host(ctx, TG_F64, shape, v);
}

/* Returns the largest difference of x, which has these rows and heads, from the same of `whole`. NaN on an error. */
static inline double context_off(tg_tensor *x, tg_tensor *whole, const int64_t *rows, int64_t n, int64_t from,
                                 int64_t heads) {
    static _Thread_local double a[1 << 16], all[1 << 16];
    double most = 0;
    tg_shape shape = tg_shape_of(whole);
    int64_t d = shape.dim[3], i = 0;
    if (tg_numel(x) != shape.dim[0] * heads * n * d || tg_read_f64(x, a, tg_numel(x)) ||
        tg_read_f64(whole, all, tg_numel(whole)))
        return NAN;
    for (int64_t e = 0; e < shape.dim[0]; e++)
        for (int64_t u = from; u < from + heads; u++)
            for (int64_t r = 0; r < n; r++)
                for (int64_t j = 0; j < d; j++) {
                    int64_t there = ((e * shape.dim[1] + u) * shape.dim[2] + rows[r]) * d + j;
                    most = larger_or_nan(most, fabs(a[i++] - all[there]));
                }
    return most;
}

/* The leaves of a case: q, k, v, sink, and the cotangent. */
typedef struct context_leaves {
    tg_tensor *x[3], *sink, *starts, *seed;
} context_leaves;

static inline void context_place(const tg_parallel *p, tg_tensor *x, bool heads) {
    tg_place(p, x, TG_CP, TG_SHARD_ZIGZAG(2));
    tg_place(p, x, TG_TP, heads ? TG_SHARD(1) : TG_I);
    tg_place(p, x, TG_DP, TG_I);
}

/* Makes the leaves that a rank has. Heads are divided over tp. */
static inline context_leaves context_open(tg_ctx *ctx, const tg_parallel *p, const context_case *c, const int64_t *rows,
                                          int64_t n) {
    int tp = tg_parallel_size(p, TG_TP), r = tg_parallel_rank(p, TG_TP);
    const tg_shape shape[] = {TG_SHAPE(c->b, c->h, c->s, c->dk), TG_SHAPE(c->b, c->g, c->s, c->dk),
                              TG_SHAPE(c->b, c->g, c->s, c->dv), TG_SHAPE(c->b, c->h, c->s, c->dv)};
    context_leaves l = {.sink = NULL};
    for (int i = 0; i < 4; i++) {
        int64_t heads = shape[i].dim[1] / tp;
        tg_tensor *x = context_rows(ctx, i, shape[i], rows, n, r * heads, heads);
        context_place(p, x, true);
        *(i < 3 ? &l.x[i] : &l.seed) = x;
        if (i < 3) tg_set_requires_grad(x, true);
    }
    if (c->sink) {
        l.sink = part(ctx, 9, TG_SHAPE(c->h), 0, r, tp);
        tg_place(p, l.sink, TG_TP, TG_SHARD(0));
        tg_place(p, l.sink, TG_CP, TG_R);
        tg_place(p, l.sink, TG_DP, TG_I);
        tg_set_requires_grad(l.sink, true);
    }
    if (!c->sequences) return l;
    int64_t v[2 * 6], m = c->sequences + 1;
    for (int64_t i = 0; i < c->b * m; i++) v[i] = i < m ? c->starts[i] : c->second[i - m];
    l.starts = tg_from_host(ctx, TG_I64, c->b == 1 ? TG_SHAPE(m) : TG_SHAPE(c->b, m), v);
    for (int a = 0; a < 3; a++) tg_place(p, l.starts, (tg_axis[]){TG_TP, TG_CP, TG_DP}[a], TG_I);
    return l;
}

/* Makes the leaves of a rank of group cp, for a case that is one sequence. *rows: the rows that it has. */
static inline context_leaves context_open_cut(tg_ctx *ctx, const tg_parallel *p, const context_case *c, int64_t *rows) {
    int n = tg_parallel_size(p, TG_CP);
    tg_context_cut((const int64_t[]){0, c->s}, 1, n, tg_parallel_rank(p, TG_CP), rows);
    return context_open(ctx, p, c, rows, c->s / n);
}

/* Runs attention over the ranks of c, and its backward from the cotangent. */
static inline tg_tensor *context_run(tg_tape *t, context_leaves *l, const context_case *c, tg_comm *comm) {
    tg_context_attention_opts o = c->o;
    o.sink = l->sink;
    o.starts = l->starts;
    tg_tensor *y = tg_context_attention(t, l->x[0], l->x[1], l->x[2], comm, &o);
    tg_backward_with(t, &y, 1, TG_BACKWARD(.seeds = &l->seed, .retain = true));
    return y;
}

#endif
