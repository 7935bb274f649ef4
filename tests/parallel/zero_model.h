/* A small model that trains on data-parallel ranks with any zero of a tg_flat, and a comparison of two runs of it. */
#ifndef TG_ZERO_MODEL_H
#define TG_ZERO_MODEL_H

#include <tapegrad/average.h>
#include <tapegrad/backward.h>
#include <tapegrad/flat.h>
#include <tapegrad/optim.h>

#include "on_ranks.h"

enum { ROWS = 6, IN = 13, HIDDEN = 20, OUT = 5, EXTRA = 70, PARAMS = 5, STEPS = 4, RANKS = 4 };
static const int64_t numel[PARAMS] = {HIDDEN * IN, HIDDEN, OUT *HIDDEN, OUT, EXTRA};
enum { MOST = 3 }; /* the highest zero */
enum { ALL = HIDDEN * IN + HIDDEN + OUT * HIDDEN + OUT + EXTRA };

typedef enum method { ADAMW, SGD, RMSPROP, ADAGRAD, LION, METHODS } method;
/* Which ranks use the extra parameter: none; all; only rank 0; one rank in each step, another each time; or one rank in
 * each micro-batch, and none in the last. */
typedef enum uses { NO_RANK, ALL_RANKS, ONE_RANK, ALTERNATING, BY_MICRO } uses;

typedef struct setting {
    int zero, micros, cp; /* cp 0: one */
    tg_dtype dtype, wire;
    method method;
    uses uses;
    double clip;
    int64_t bucket;
    bool average; /* parameters are replaced by averages between steps, and restored */
    bool rounds;  /* gradients are summed in each micro-batch */
} setting;

/* Parameters after each step, in float64, and their norms, on each rank. */
typedef struct outcome {
    setting s;
    double x[RANKS][STEPS][ALL], norm[STEPS];
} outcome;

/* ---- A model ---- */

typedef struct model {
    tg_tensor *x[PARAMS], *const *leaf;
    tg_flat *flat;
    tg_optim *optim;
} model;

static inline tg_optim *optimizer(tg_ctx *ctx, const setting *s, tg_tensor *const *x) {
    switch (s->method) {
    case ADAMW:
        return tg_adamw_new(ctx, x, PARAMS, TG_ADAMW(.lr = 0.01, .weight_decay = 0.1));
    case SGD:
        return tg_sgd_new(ctx, x, PARAMS, TG_SGD(.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1));
    case RMSPROP:
        return tg_rmsprop_new(ctx, x, PARAMS, TG_RMSPROP(.lr = 0.01, .momentum = 0.5, .centered = true));
    case ADAGRAD:
        return tg_adagrad_new(ctx, x, PARAMS, TG_ADAGRAD(.lr = 0.01, .weight_decay = 0.1));
    default:
        return tg_lion_new(ctx, x, PARAMS, TG_LION(.lr = 0.01, .weight_decay = 0.1));
    }
}

/* Makes the buckets and the optimizer of the model's parameters. */
static inline void model_divide(tg_ctx *ctx, const tg_parallel *p, const setting *s, model *m) {
    m->flat = tg_flat_new(p, m->x, PARAMS, TG_FLAT(.bucket = s->bucket, .zero = s->zero, .wire = s->wire));
    tg_flat_leaves(m->flat, &m->leaf);
    m->optim = optimizer(ctx, s, m->leaf);
    tg_optim_no_decay_1d(m->optim);
    if (s->clip > 0) tg_optim_set_clip(m->optim, s->clip);
}

static inline model model_open(tg_ctx *ctx, const tg_parallel *p, const setting *s) {
    static const char *const name[PARAMS] = {"w1", "b1", "w2", "b2", "extra"};
    const tg_shape shape[PARAMS] = {TG_SHAPE(HIDDEN, IN), TG_SHAPE(HIDDEN), TG_SHAPE(OUT, HIDDEN), TG_SHAPE(OUT),
                                    TG_SHAPE(EXTRA)};
    model m;
    for (int i = 0; i < PARAMS; i++) {
        m.x[i] = tg_param_new(ctx, name[i], s->dtype, shape[i], 0.5);
        tg_place(p, m.x[i], TG_DP, TG_R);
        tg_place(p, m.x[i], TG_CP, TG_R);
    }
    model_divide(ctx, p, s, &m);
    return m;
}

static inline void model_close(model *m) {
    tg_optim_free(m->optim);
    tg_flat_free(m->flat);
}

static inline bool extra_is_used(const setting *s, int step, int micro, int rank, int ranks) {
    if (s->uses == BY_MICRO) return micro + 1 < s->micros && micro % ranks == rank;
    if (s->uses == ALTERNATING) return step % ranks == rank;
    return s->uses == ALL_RANKS || (s->uses == ONE_RANK && rank == 0);
}

static inline tg_tensor *data(tg_ctx *ctx, tg_tape *t, const tg_parallel *p, int k, tg_shape shape, tg_dtype dtype) {
    tg_tensor *x = made(ctx, k, shape);
    tg_place(p, x, TG_DP, TG_V);
    tg_place(p, x, TG_CP, TG_V);
    tg_tensor *y = tg_cast(t, x, dtype);
    tg_drop(x);
    return y;
}

static inline tg_status backward(tg_ctx *ctx, tg_tape *t, const tg_parallel *p, const model *m, const setting *s,
                                 int step, int micro) {
    tg_comm *group = tg_parallel_dp_cp(p);
    int rank = tg_comm_rank(group), k = 100 * step + 10 * micro + rank;
    tg_tensor *in = data(ctx, t, p, k, TG_SHAPE(ROWS, IN), s->dtype);
    tg_tensor *to = data(ctx, t, p, k + 1, TG_SHAPE(ROWS, OUT), s->dtype);
    tg_tensor *h = tg_linear(t, tg_tanh(t, tg_linear(t, in, m->x[0], m->x[1])), m->x[2], m->x[3]);
    tg_tensor *loss = tg_sum(t, tg_square(t, tg_sub(t, h, to)), TG_ALL_DIMS, false);
    if (extra_is_used(s, step, micro, rank, tg_comm_size(group)))
        loss = tg_add(t, loss, tg_sum(t, tg_square(t, m->x[4]), TG_ALL_DIMS, false));
    tg_backward(t, loss);
    return tg_tape_reset(t), tg_ctx_status(ctx);
}

/* Runs a step: all but the last micro-batch only accumulate. */
static inline tg_status run_step(tg_ctx *ctx, tg_tape *t, const tg_parallel *p, model *m, const setting *s, int step) {
    for (int i = 0; i < s->micros; i++) {
        bool last = i + 1 == s->micros;
        tg_flat_set_reduce(m->flat, last || s->rounds);
        RUN(backward(ctx, t, p, m, s, step, i));
        if (!last && s->rounds) RUN(tg_grads_reduce(p));
    }
    RUN(tg_grads_finalize(p, m->x, PARAMS, NULL));
    RUN(tg_optim_step(m->optim));
    RUN(tg_flat_gather(m->flat));
    return tg_optim_zero_grad(m->optim);
}

static inline tg_status read_all(const model *m, double *out) {
    for (int i = 0; i < PARAMS; out += numel[i++]) RUN(tg_read_f64(m->x[i], out, numel[i]));
    return TG_OK;
}

static inline tg_status train(void *arg, tg_ctx *ctx, tg_comm *world) {
    outcome *o = arg;
    const setting *s = &o->s;
    tg_parallel *p = tg_parallel_new(world, TG_PARALLEL(.cp = s->cp ? s->cp : 1));
    tg_tape *t = tg_tape_new(ctx);
    model m = model_open(ctx, p, s);
    tg_average *a = s->average ? tg_ema_new(ctx, m.x, PARAMS, 0.5) : NULL;
    for (int step = 0; step < STEPS; step++) {
        RUN(run_step(ctx, t, p, &m, s, step));
        RUN(read_all(&m, o->x[tg_comm_rank(world)][step]));
        if (s->zero == MOST) RUN(tg_flat_gather(m.flat)); /* discards what was read */
        if (s->clip > 0 && tg_comm_rank(world) == 0) o->norm[step] = tg_optim_norm(m.optim);
        if (!a) continue;
        RUN(tg_average_update(a));
        RUN(tg_average_apply(a));
        RUN(tg_average_restore(a));
    }
    tg_average_free(a);
    model_close(&m);
    tg_tape_free(t);
    tg_parallel_free(p);
    return tg_ctx_status(ctx);
}

/* ---- Comparison ---- */

static inline void run(outcome *o, const setting *s, int ranks, int zero) {
    memset(o, 0, sizeof *o);
    o->s = *s;
    o->s.zero = zero;
    on_ranks(ranks, train, o);
    for (int r = 1; r < ranks; r++) ck_assert(!memcmp(o->x[0], o->x[r], sizeof o->x[0]));
}

static outcome without, with;

/* Trains with this zero and with zero 0. Returns the greatest difference, relative to 1. */
static inline double compare(const setting *s, int ranks, int zero) {
    setting plain = *s;
    double most = 0;
    plain.rounds = false;
    run(&without, &plain, ranks, 0);
    run(&with, s, ranks, zero);
    for (int k = 0; k < STEPS; k++) {
        for (int i = 0; i < ALL; i++) most = larger_or_nan(most, fabs(with.x[0][k][i] - without.x[0][k][i]));
        most = larger_or_nan(most, fabs(with.norm[k] - without.norm[k]) / fmax(1, without.norm[k]));
    }
    return most;
}

/* Returns the highest zero that s goes with. All ranks must use all parameters of zero 3, and the test writes whole
 * parameters if it replaces them by averages. */
static inline int most_of(const setting *s) {
    return s->average || (s->uses != NO_RANK && s->uses != ALL_RANKS) ? MOST - 1 : MOST;
}

static const setting usual = {.micros = 1, .dtype = TG_F32, .uses = ALL_RANKS, .bucket = 100};

#endif
