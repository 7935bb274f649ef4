/* Runs one sample of a mapping on thread ranks: inputs drawn by placement, forward, backward. The values of every
 * rank are copied to memory that the test reads after the ranks have ended. */
#ifndef TG_MAPPING_RUN_H
#define TG_MAPPING_RUN_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tapegrad/backward.h>
#include <tapegrad/ops.h>
#include <tapegrad/ranks.h>

#include "catalog/samples.h"
#include "device_ranks.h"
#include "parallel/mappings/mapping.h"

enum { MOST_RANKS = 4, MOST_NUMEL = 512 };

/* A tensor of one rank, as doubles. */
typedef struct seen {
    int64_t n, shape[TG_MAX_DIMS];
    int ndim;
    double v[MOST_NUMEL];
} seen;

typedef struct rank_record {
    seen x, y, u, gx, vjp; /* input, result, its cotangent, the input's gradient, and this gradient by vjp */
    bool changed;          /* backward has changed an input or a cotangent */
} rank_record;

typedef enum seed_layout { SEED_ROWS, SEED_TRANSPOSED } seed_layout;

typedef struct mapping_run {
    const tg_op *op;
    tg_status (*backward)(tg_call *c); /* NULL: the op's own */
    int sample, ranks;
    char from, to; /* placements: I R V P; to 0: as the params say */
    tg_dtype dtype;
    seed_layout layout;
    bool add; /* adds to the contribution of a later op */
    tg_status status;
    char message[512];
    rank_record at[MOST_RANKS];
} mapping_run;

static inline bool differs_by_rank(char placement) { return placement == 'V' || placement == 'P'; }
static inline char dual_of(char placement) { return placement == 'R' ? 'P' : placement == 'P' ? 'R' : placement; }

static inline void see(seen *s, tg_tensor *x) {
    tg_shape shape = tg_shape_of(x);
    s->n = tg_numel(x);
    s->ndim = (int)shape.ndim;
    memcpy(s->shape, shape.dim, sizeof shape.dim);
    if (s->n && s->n <= MOST_NUMEL) tg_read_f64(x, s->v, s->n);
}

static inline bool same_seen(const seen *a, const seen *b) {
    return a->n == b->n && a->ndim == b->ndim && !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) &&
           !memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v);
}

/* Values are sums of few powers of two, which are exact in every dtype. */
static inline double number(int64_t i, int salt) { return (double)(((i + 1) * 37 + salt * 101) % 61 - 30) / 16; }

static inline tg_tensor *make_cotangent(tg_tape *t, const tg_tensor *y, seed_layout layout, int salt) {
    double v[MOST_NUMEL] = {0};
    tg_shape shape = tg_shape_of(y);
    int n = (int)shape.ndim;
    bool swap = layout == SEED_TRANSPOSED && n > 1;
    if (swap) {
        shape.dim[n - 1] = tg_dim(y, n - 2);
        shape.dim[n - 2] = tg_dim(y, n - 1);
    }
    for (int64_t i = 0; i < tg_numel(y); i++) v[i] = number(i, salt);
    tg_tensor *u = tg_zeros(tg_tape_ctx(t), tg_dtype_of(y), shape);
    if (tg_numel(y)) tg_write_f64(u, v, tg_numel(y));
    bool grad = tg_tape_set_grad_mode(t, false);
    if (swap) u = tg_transpose(t, u, n - 1, n - 2);
    tg_tape_set_grad_mode(t, grad);
    return u;
}

/* Prepares the op and sample of this rank: its communicator, its draws, and its own rows if parts are uneven. */
typedef struct own_case {
    tg_op op;
    tg_sample sample;
    tg_mapping_params params;
    tg_case c;
} own_case;

static inline bool joins(const tg_op *op) {
    return op == &tg_op_gather_from || op == &tg_op_all_gather || op == &tg_op_unshard ||
           !strcmp(op->name, "GatherFromSequenceParallelRegion");
}

static inline tg_status open_own(own_case *o, const mapping_run *m, tg_ctx *ctx, tg_comm *comm) {
    int me = tg_comm_rank(comm);
    o->op = *m->op;
    o->sample = *tg_sample_at(m->op, m->sample);
    o->params = *(const tg_mapping_params *)o->sample.params;
    o->params.comm = comm;
    o->sample.params = &o->params;
    if (o->params.splits && joins(m->op) && !o->sample.refused) o->sample.input[0].shape.dim[0] = o->params.splits[me];
    o->op.samples = &o->sample;
    o->op.n_samples = 1;
    o->op.sample_size = sizeof o->sample;
    if (m->backward) o->op.backward = m->backward;
    uint64_t seed = 5 + (differs_by_rank(m->from) ? 31 * (uint64_t)me : 0);
    return tg_case_open(&o->c, ctx, &o->op, 0, &(tg_case_opts){.dtype = m->dtype, .grid = TG_BF16, .seed = seed});
}

static inline tg_status run_backward(mapping_run *m, tg_tape *t, own_case *o, tg_tensor *x, tg_tensor *y, int me) {
    rank_record *r = &m->at[me];
    tg_ctx *ctx = tg_tape_ctx(t);
    tg_tensor *roots[2] = {y}, *seeds[2];
    int n = 1;
    if (!tg_requires_grad(y)) return TG_OK;
    seeds[0] = make_cotangent(t, y, m->layout, differs_by_rank(dual_of(m->to)) ? 1 + me : 0);
    see(&r->u, seeds[0]);
    if (m->add) {
        roots[n] = tg_scale(t, x, 3);
        seeds[n] = make_cotangent(t, x, SEED_ROWS, 7);
        n++;
    }
    if (m->op->vjp && !m->backward) {
        tg_tensor *g = NULL, *u = seeds[0];
        bool grad = tg_tape_set_grad_mode(t, false);
        if (m->op->vjp(t, tg_node_of(y), &u, &g) == TG_OK) see(&r->vjp, g);
        tg_tape_set_grad_mode(t, grad);
    }
    tg_backward_with(t, roots, n, TG_BACKWARD(.seeds = seeds));
    if (tg_ctx_status(ctx) != TG_OK) return tg_ctx_status(ctx);
    see(&r->gx, tg_grad_of(o->c.input[0]));
    seen u = {0}, before = {0};
    see(&u, seeds[0]);
    see(&before, o->c.input[0]);
    r->changed = !same_seen(&u, &r->u) || !same_seen(&before, &r->x);
    return tg_ctx_status(ctx);
}

static inline tg_status mapping_rank(void *arg, tg_ctx *ctx, tg_comm *comm) {
    mapping_run *m = arg;
    int me = tg_comm_rank(comm);
    own_case o;
    if (open_own(&o, m, ctx, comm) != TG_OK) return tg_ctx_status(ctx);
    tg_tape *t = tg_tape_new(ctx);
    tg_full(t, TG_F64, TG_SHAPE(1 << 14), NAN); /* later memory holds NaN: finds unwritten elements */
    tg_tape_reset(t);
    tg_tensor *x = m->add ? tg_scale(t, o.c.input[0], 1) : o.c.input[0], *y = NULL;
    see(&m->at[me].x, o.c.input[0]);
    if (tg_case_run(&o.c, t, &x, 1, &y, 1) == TG_OK) {
        see(&m->at[me].y, y);
        run_backward(m, t, &o, x, y, me);
    }
    tg_tape_free(t);
    tg_case_close(&o.c);
    return tg_ctx_status(ctx);
}

/* to: taken from the params of the sample if the table does not say it. */
static inline char result_of(const tg_op *op, int sample) {
    const tg_mapping_params *p = tg_sample_at(op, sample)->params;
    return p->invariant ? 'I' : 'R';
}

static inline void run_mapping(mapping_run *m) {
    const tg_sample *s = tg_sample_at(m->op, m->sample);
    m->ranks = s->ranks > 1 ? s->ranks : 2;
    if (!m->to) m->to = result_of(m->op, m->sample);
    memset(m->at, 0, sizeof m->at);
    m->status = run_ranks(m->ranks, mapping_rank, m,
                             TG_RANKS(.config = TG_CONFIG(.threads = 1, .check = true), .message = m->message,
                                      .message_size = sizeof m->message));
}

#endif
