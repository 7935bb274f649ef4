/* Programs over ranks, compared with the same programs on one rank.
 *
 * A program makes its leaves from their global values, and returns a tensor. On one rank mappings are identities, so
 * there the program is its own reference. On several ranks values and gradients must be the same, interpreted by the
 * placements of root and leaves. */
#ifndef TG_TEST_PROGRAMS_H
#define TG_TEST_PROGRAMS_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tapegrad/mappings.h>
#include <tapegrad/optim.h>
#include <tapegrad/backward.h>
#include <tapegrad/data_parallel.h>
#include <tapegrad/megatron.h>
#include <tapegrad/ranks.h>

#include "device_ranks.h"

#include "../check_main.h"
#include "placement/placing.h"

enum { P_LEAVES = 40, P_ELEMENTS = 4096, P_AXES = 3 };
static const tg_axis p_axis[P_AXES] = {TG_TP, TG_DP, TG_CP};

/* Placements of one leaf, in the order of placing: P_AT({TG_TP, TG_SHARD(0)}, ...). An opaque tensor is divided
 * along its dim too, contiguously: together the ranks have what one rank has. */
typedef struct p_places {
    int n;
    tg_place_at at[4];
} p_places;
#define P_AT(...) ((p_places){(int)(sizeof((tg_place_at[]){__VA_ARGS__}) / sizeof(tg_place_at)), {__VA_ARGS__}})
#define P_ALONG(d) ((tg_placement){.kind = TG_VARYING, .layout = TG_OPAQUE, .dim = (d)})

typedef struct p_leaf {
    tg_tensor *x;
    tg_shape whole;
    p_places places;
    bool grad;
} p_leaf;

typedef struct p_world {
    tg_ctx *ctx;
    tg_tape *t;
    tg_parallel *p;
    tg_comm *tp, *dp, *cp;
    int m; /* number of ranks of the compared run; sizes are multiples of it */
    int n_leaves;
    p_leaf leaf[P_LEAVES];
} p_world;

typedef tg_tensor *(*p_program)(p_world *w);

typedef struct p_reference {
    double value;
    int n_leaves;
    double *grad[P_LEAVES];
} p_reference;

typedef struct p_job {
    const char *name;
    p_program program;
    int tp, cp, ranks;
    p_reference *ref;
    bool writes_reference, refused, erased; /* refused: with TG_ERR_PLACEMENT; erased: no placements */
} p_job;

/* ---- Leaves ---- */

static inline int64_t p_chunks(tg_placement p) {
    return p.layout == TG_STRIDED ? p.chunks : p.layout == TG_ZIGZAG ? 2 : 1;
}

/* Returns the index in the whole dim of element i of this rank's part of dim d, of size local: inner axes first. */
static inline int64_t p_place(const p_world *w, const p_places *places, int d, int64_t local, int64_t i) {
    for (int k = places->n - 1; k >= 0; k--) {
        tg_placement p = places->at[k].placement;
        int64_t n = tg_parallel_size(w->p, places->at[k].axis), r = tg_parallel_rank(w->p, places->at[k].axis);
        if (p.kind != TG_VARYING || p.dim != d || n == 1) continue;
        int64_t size = local / p_chunks(p), chunk = i / size, at = chunk * n + r;
        if (p.layout == TG_ZIGZAG) at = chunk ? 2 * n - 1 - r : r;
        i = at * size + i % size;
        local *= n;
    }
    return i;
}

/* Returns the number in the whole tensor of element i of this rank's part. */
static inline int64_t p_index(const p_world *w, const p_leaf *l, const tg_shape *local, int64_t i) {
    int64_t at = 0, step = 1;
    for (int d = (int)local->ndim - 1; d >= 0; d--) {
        at += step * p_place(w, &l->places, d, local->dim[d], i % local->dim[d]);
        step *= l->whole.dim[d];
        i /= local->dim[d];
    }
    return at;
}

static inline tg_shape p_local(const p_world *w, const p_leaf *l) {
    tg_shape s = l->whole;
    for (int k = 0; k < l->places.n; k++) {
        tg_placement p = l->places.at[k].placement;
        if (p.kind == TG_VARYING) s.dim[p.dim] /= tg_parallel_size(w->p, l->places.at[k].axis);
    }
    return s;
}

/* Returns this rank's share of an addend; shares differ and sum to 1. */
static inline double p_share(const p_world *w, const p_places *places) {
    double share = 1;
    for (int k = 0; k < places->n; k++) {
        int n = tg_parallel_size(w->p, places->at[k].axis), r = tg_parallel_rank(w->p, places->at[k].axis);
        if (places->at[k].placement.kind == TG_PARTIAL) share *= 2.0 * (r + 1) / (n * (n + 1));
    }
    return share;
}

static inline int64_t p_numel(const tg_shape *s) {
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++) n *= s->dim[d];
    return n;
}

typedef double (*p_value)(int k, int64_t i, double arg);
static inline double p_number(int k, int64_t i, double arg) {
    (void)arg;
    return sin((double)(i + 1) * (0.7 + 0.13 * k) + k);
}
static inline double p_id(int k, int64_t i, double below) { return (double)((i * 7 + k * 3 + i / 3) % (int64_t)below); }
static inline double p_bit(int k, int64_t i, double arg) {
    (void)arg;
    return (i * 5 + k) % 3 == 0;
}

static inline tg_tensor *p_make(p_world *w, tg_dtype dtype, tg_shape whole, p_places places, bool grad, p_value value,
                                double arg) {
    p_leaf *l = &w->leaf[w->n_leaves < P_LEAVES ? w->n_leaves++ : 0];
    *l = (p_leaf){.whole = whole, .places = places, .grad = grad};
    tg_shape local = p_local(w, l);
    double v[P_ELEMENTS], share = p_share(w, &places);
    int k = w->n_leaves;
    int64_t n = p_numel(&local);
    for (int64_t i = 0; i < n && i < P_ELEMENTS; i++) v[i] = share * value(k, p_index(w, l, &local, i), arg);
    l->x = tg_zeros(w->ctx, dtype, local);
    tg_write_f64(l->x, v, n);
    for (int i = 0; i < places.n; i++) tg_place(w->p, l->x, places.at[i].axis, places.at[i].placement);
    for (int i = 0; i < P_AXES; i++) { /* axes that are not named are I */
        bool named = false;
        for (int j = 0; j < places.n; j++) named |= places.at[j].axis == p_axis[i];
        if (!named) tg_place(w->p, l->x, p_axis[i], TG_I);
    }
    if (grad) tg_set_requires_grad(l->x, true);
    return l->x;
}

/* Leaves on tp only: a leaf with gradient, a constant, ids below a number, a mask. */
static inline tg_tensor *leaf(p_world *w, tg_placement at, tg_shape whole) {
    return p_make(w, TG_F64, whole, P_AT({TG_TP, at}), true, p_number, 0);
}
static inline tg_tensor *constant(p_world *w, tg_placement at, tg_shape whole) {
    return p_make(w, TG_F64, whole, P_AT({TG_TP, at}), false, p_number, 0);
}
static inline tg_tensor *ids(p_world *w, tg_placement at, tg_shape whole, int64_t below) {
    return p_make(w, TG_I64, whole, P_AT({TG_TP, at}), false, p_id, (double)below);
}
static inline tg_tensor *mask(p_world *w, tg_placement at, tg_shape whole) {
    return p_make(w, TG_BOOL, whole, P_AT({TG_TP, at}), false, p_bit, 0);
}
/* Leaves on several axes. */
static inline tg_tensor *leaf_at(p_world *w, tg_shape whole, p_places places) {
    return p_make(w, TG_F64, whole, places, true, p_number, 0);
}
static inline tg_tensor *constant_at(p_world *w, tg_shape whole, p_places places) {
    return p_make(w, TG_F64, whole, places, false, p_number, 0);
}
static inline tg_tensor *ids_at(p_world *w, tg_shape whole, p_places places, int64_t below) {
    return p_make(w, TG_I64, whole, places, false, p_id, (double)below);
}

/* ---- A scalar from a program's result ---- */

static inline tg_tensor *p_root(p_world *w, tg_tensor *y) {
    for (int i = 0; i < P_AXES; i++)
        if (tg_placement_of(y, p_axis[i]).kind == TG_PARTIAL && tg_ndim(y) > 0)
            y = tg_reduce_from_tp(w->t, y, tg_parallel_comm(w->p, p_axis[i]));
    if (tg_ndim(y) == 0) return y;
    return tg_sum(w->t, tg_square(w->t, y), TG_ALL_DIMS, false);
}

/* Returns the value that the root denotes. */
static inline double p_value_of(p_world *w, tg_tensor *root) {
    tg_tensor *x = tg_zeros(w->ctx, TG_F64, TG_SHAPE());
    double v = tg_item(root);
    tg_write_f64(x, &v, 1);
    for (int i = 0; i < P_AXES; i++) {
        tg_placement p = tg_placement_of(root, p_axis[i]);
        if (p.kind == TG_PARTIAL || p.kind == TG_VARYING)
            tg_comm_all_reduce(tg_parallel_comm(w->p, p_axis[i]), x, x, TG_REDUCE_SUM);
    }
    v = tg_item(x);
    tg_drop(x);
    return v;
}

/* ---- Running ---- */

static inline bool p_near(double a, double b) { return fabs(a - b) <= 1e-9 * (1 + fabs(b)); }

static inline tg_status p_compare_leaf(p_world *w, const p_job *job, int k, tg_placement root) {
    const p_leaf *l = &w->leaf[k];
    tg_shape local = p_local(w, l);
    double g[P_ELEMENTS] = {0}, *ref = job->ref->grad[k];
    int64_t n = p_numel(&local);
    (void)root;
    if (tg_has_grad(l->x)) tg_read_f64(tg_grad_of(l->x), g, n);
    if (!tg_ok(w->ctx)) return w->ctx->run.status;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = p_index(w, l, &local, i);
        if (job->writes_reference)
            ref[at] = g[i];
        else if (!p_near(g[i], ref[at]))
            return tg_ctx_fail(w->ctx, TG_ERR_INTERNAL, "%s: leaf %d, element %lld: gradient %.15g, one rank has %.15g",
                               job->name, k, (long long)at, g[i], ref[at]);
    }
    return TG_OK;
}

static inline tg_status p_check(p_world *w, const p_job *job, tg_tensor *y) {
    tg_tensor *all[P_LEAVES], *root = p_root(w, y);
    int n = 0;
    double v = p_value_of(w, root);
    if (!tg_ok(w->ctx)) return w->ctx->run.status;
    if (job->writes_reference)
        job->ref->value = v, job->ref->n_leaves = w->n_leaves;
    else if (!p_near(v, job->ref->value) || w->n_leaves != job->ref->n_leaves)
        return tg_ctx_fail(w->ctx, TG_ERR_INTERNAL, "%s: value %.15g of %d leaves, one rank has %.15g of %d", job->name,
                           v, w->n_leaves, job->ref->value, job->ref->n_leaves);
    for (int i = 0; i < w->n_leaves; i++)
        if (w->leaf[i].grad) all[n++] = w->leaf[i].x;
    tg_backward(w->t, root);
    tg_grads_finalize(w->p, all, n, NULL);
    for (int i = 0; i < w->n_leaves && tg_ok(w->ctx); i++)
        if (w->leaf[i].grad) p_compare_leaf(w, job, i, tg_placement_of(root, TG_TP));
    return w->ctx->run.status;
}

/* A wrong program fails for its placements, and for no other reason. */
static inline tg_status p_refused(p_world *w, const p_job *job) {
    char text[600];
    tg_status got = w->ctx->run.status;
    snprintf(text, sizeof text, "%s", tg_ctx_message(w->ctx));
    tg_ctx_clear(w->ctx);
    if (job->erased && got != TG_OK)
        return tg_ctx_fail(w->ctx, TG_ERR_INTERNAL, "%s: without placements: %s", job->name, text);
    if (!job->erased && (got != TG_ERR_PLACEMENT || strlen(text) < 60))
        return tg_ctx_fail(w->ctx, TG_ERR_INTERNAL, "%s: %s \"%s\", expected TG_ERR_PLACEMENT", job->name,
                           tg_status_name(got), text);
    return TG_OK;
}

static inline tg_status p_rank(void *arg, tg_ctx *ctx, tg_comm *world) {
    const p_job *job = arg;
    bool one = tg_comm_size(world) == 1;
    p_world *w = calloc(1, sizeof *w);
    *w = (p_world){.ctx = ctx, .m = job->ranks, .t = tg_tape_new(ctx)};
    w->p = tg_parallel_new(world, TG_PARALLEL(.tp = one ? 1 : job->tp, .cp = one ? 1 : job->cp));
    w->tp = tg_parallel_comm(w->p, TG_TP);
    w->dp = tg_parallel_comm(w->p, TG_DP);
    w->cp = tg_parallel_comm(w->p, TG_CP);
    uint32_t axes = tg_grid_axes(ctx);
    if (job->erased) tg_grid_own(ctx)->axes = 0;
    tg_tensor *y = job->program(w);
    tg_status s = job->refused ? p_refused(w, job) : ctx->run.status == TG_OK ? p_check(w, job, y) : ctx->run.status;
    tg_grid_own(ctx)->axes = axes;
    for (int i = 0; i < w->n_leaves; i++) tg_drop(w->leaf[i].x);
    tg_tape_free(w->t);
    tg_parallel_free(w->p);
    free(w);
    return s;
}

static inline tg_status p_try(p_job job, char *message, size_t n) {
    const tg_config *config = TG_CONFIG(.threads = 1, .dtype = TG_F64, .seed = 7, .deadline = 60, .check = true);
    return run_ranks(job.writes_reference ? 1 : job.ranks, p_rank, &job,
                        TG_RANKS(.config = config, .message = message, .message_size = n));
}

static inline void p_run(p_job job) {
    char message[1200];
    tg_status s = p_try(job, message, sizeof message);
    ck_assert_msg(s == TG_OK, "%s, %d ranks: %s", job.name, job.writes_reference ? 1 : job.ranks, message);
}

/* Compares the program on a grid tp x cp x dp (the rest of the ranks) with itself on one rank. */
static inline tg_status p_against(const char *name, p_program program, int tp, int cp, int ranks, char *message,
                                  size_t n) {
    p_reference ref = {0};
    double *room = calloc((size_t)P_LEAVES * P_ELEMENTS, sizeof *room);
    for (int i = 0; i < P_LEAVES; i++) ref.grad[i] = room + i * P_ELEMENTS;
    p_run((p_job){.name = name, .program = program, .ranks = ranks, .ref = &ref, .writes_reference = true});
    tg_status s = p_try((p_job){.name = name, .program = program, .tp = tp, .cp = cp, .ranks = ranks, .ref = &ref},
                        message, n);
    free(room);
    return s;
}

static inline void p_compare(const char *name, p_program program, int tp, int cp, int ranks) {
    char message[1200];
    tg_status s = p_against(name, program, tp, cp, ranks, message, sizeof message);
    ck_assert_msg(s == TG_OK, "%s, %d ranks: %s", name, ranks, message);
}

/* Also runs without placements; it would be refused on one rank too. */
static inline void p_refuse(const char *name, p_program program, int tp, int cp, int ranks, bool also) {
    p_job job = {.name = name, .program = program, .tp = tp, .cp = cp, .ranks = ranks, .refused = true};
    p_run(job);
    job.erased = true;
    if (!also) p_run(job);
}

#endif
