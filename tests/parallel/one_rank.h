/* What the tests of parallel layers share: a world of one rank to compare with, and the part of a whole tensor that a
 * rank holds. Include it in a test program of layers on several ranks. */
#ifndef TG_TEST_ONE_RANK_H
#define TG_TEST_ONE_RANK_H

#include <tapegrad/extend.h>
#include <tapegrad/optim.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/megatron.h>

#include "on_ranks.h"

enum { S = 8, B = 2, H = 12, F = 24, V = 16, X = 1 };

/* A world of one rank, in which the same calls make the same parameters. */
typedef struct alone {
    tg_ctx *ctx;
    tg_comm *self;
    tg_parallel *p;
    tg_tape *t;
} alone;

static inline alone alone_open(void) {
    alone a = {.ctx = tg_ctx_new(TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7))};
    a.self = tg_comm_self_new(a.ctx);
    a.p = tg_parallel_new(a.self, NULL);
    a.t = tg_tape_new(a.ctx);
    return a;
}

static inline tg_status alone_close(tg_ctx *ctx, alone *a) {
    if (tg_ctx_status(a->ctx) != TG_OK) tg_ctx_fail(ctx, TG_ERR_INTERNAL, "the one rank: %s", tg_ctx_message(a->ctx));
    tg_tape_free(a->t);
    tg_parallel_free(a->p);
    tg_comm_free(a->self);
    tg_ctx_free(a->ctx);
    return tg_ctx_status(ctx);
}

/* ---- Parameters ---- */

/* Checks that mine is the part of whole that its placement on an axis says. Strided parts are joined chunk by chunk. */
static inline bool is_part(tg_tensor *mine, tg_tensor *whole, tg_axis axis, int r, int n, double within) {
    tg_placement at = tg_placement_of(mine, axis);
    if (n == 1 || at.kind != TG_VARYING) return off(mine, whole, -1, 0, 1) <= within;
    if (at.layout != TG_STRIDED) return off(mine, whole, at.dim, r, n) <= within;
    double a[8192], b[8192];
    int64_t inner = 1, rows = tg_dim(mine, at.dim) / at.chunks;
    for (int d = at.dim + 1; d < tg_ndim(whole); d++) inner *= tg_dim(whole, d);
    if (at.dim || tg_read_f64(mine, a, tg_numel(mine)) || tg_read_f64(whole, b, tg_numel(whole))) return false;
    for (int64_t i = 0; i < tg_numel(mine); i++) {
        int64_t row = i / inner, chunk = row / rows, there = (chunk * n + r) * rows + row % rows;
        if (!(fabs(a[i] - b[there * inner + i % inner]) <= within)) return false;
    }
    return true;
}

typedef struct layout {
    int tp;
    bool sp;
} layout;

#endif
