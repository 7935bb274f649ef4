/* For templates only: what attention's forward and backward do alike to a tile of scores, [keys, lanes]. */
#ifndef TG_SCORES_H
#define TG_SCORES_H

#include "kernels/cpu/matrix.h"
#include "kernels/philox.h"

/* A block of queries of one head: queries [i, i + n), padded to whole lanes. */
typedef struct queries {
    int64_t b, h, i, n, lanes;
    int64_t visible; /* keys that the last of them sees: those before */
} queries;

static inline queries queries_of(const tg_attention_job *job, int64_t b, int64_t h, int64_t qb) {
    queries q = {.b = b, .h = h, .i = qb * TG_QUERIES, .visible = job->sk};
    q.n = job->sq - q.i < TG_QUERIES ? job->sq - q.i : TG_QUERIES;
    q.lanes = tg_lanes(q.n);
    if (job->a->causal && q.i + q.n + job->sk - job->sq < job->sk)
        q.visible = q.i + q.n + job->sk - job->sq;
    return q;
}

/* Scores that causal attention must not see become -inf: those of query i with keys after i + sk - sq. */
static inline void mask_tile(const tg_attention_job *job, const queries *q, int64_t key, int64_t keys, real *s) {
    if (!job->a->causal)
        return;
    for (int64_t j = 0; j < keys; j++) {
        int64_t hidden = key + j - (job->sk - job->sq) - q->i; /* of the first lanes */
        fill(s + j * q->lanes, hidden < q->lanes ? hidden : q->lanes, -(real)INFINITY);
    }
}

/* keep[j, i]: 1 / (1 - p) where key j of query i stays, 0 where it is dropped. */
static inline void keep_tile(const tg_attention_job *job, const queries *q, int64_t key, int64_t keys, real *keep) {
    float u[TG_KEYS], p = (float)job->a->dropout;
    real scale = p < 1 ? (real)(1 / (1 - job->a->dropout)) : 0;
    int64_t row = ((q->b * job->heads + q->h) * job->sq + q->i) * job->sk + key;
    for (int64_t i = 0; i < q->n; i++, row += job->sk) {
        tg_draws_uniform_row(&job->a->draws, row, keys, u);
        for (int64_t j = 0; j < keys; j++)
            keep[j * q->lanes + i] = u[j] >= p ? scale : 0;
    }
    for (int64_t i = q->n; i < q->lanes; i++)
        for (int64_t j = 0; j < keys; j++)
            keep[j * q->lanes + i] = 0;
}

static inline real *lse_at(const tg_attention_job *job, const queries *q, int64_t i) {
    const tg_array *z = &job->a->lse;
    return (real *)z->data + q->b * z->stride[0] + q->h * z->stride[1] + (q->i + i) * z->stride[2];
}

#endif
