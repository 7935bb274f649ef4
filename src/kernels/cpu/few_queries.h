/* For templates only: attention of a block of few queries, as in generation with a cache. The lanes of a vector are
 * keys, because most lanes would be empty if they were queries. Every number comes from the same operations in the same
 * order as in a block of many queries (attention_tmpl.c), so it has the same bits. */
#ifndef TG_FEW_QUERIES_H
#define TG_FEW_QUERIES_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/scores.h"

/* Returns whether a block has so few queries that lanes are keys. Masks and dropout need lanes that are queries. */
static inline bool is_few(const tg_attention_job *job, const queries *q) {
    return q->n <= TG_FEW_QUERIES && !job->a->mask.data && job->a->dropout == 0;
}

/* Writes columns [d, d + MM_VEC) of rows [r, r + MM_VEC) to t[d, r]. Rows from n on count as zeros. */
static inline void square_transpose(block rows, int64_t n, int64_t r, int64_t d, real *t) {
    vec x[MM_VEC];
    for (int64_t i = 0; i < MM_VEC; i++)
        x[i] = r + i < n ? *(const vec *)(rows.at + (r + i) * rows.ld + d) : (vec){0};
    TG_TRANSPOSE(x)
    for (int64_t i = 0; i < MM_VEC; i++)
        *(vec *)(t + (d + i) * TG_KEYS + r) = x[i];
}

/* Writes the scores of the block's queries with n keys to s, [q->n, TG_KEYS]. rows, [q->n, pad_k], holds the queries
 * times the scale. t is memory for the transposed keys, [pad_k, TG_KEYS]. Returns n rounded up by tg_lanes. */
static int64_t few_scores(const tg_attention_job *job, const queries *q, const real *rows, block keys, int64_t n,
                          real *t, real *s) {
    int64_t lanes = tg_lanes(n);
    for (int64_t r = 0; r < lanes; r += MM_VEC)
        for (int64_t d = 0; d < job->pad_k; d += MM_VEC)
            square_transpose(keys, n, r, d, t);
    mm(q->n, lanes, job->dk, (operand){rows, job->pad_k, 1}, t, TG_KEYS, s, TG_KEYS, false);
    if (job->a->softcap > 0)
        for (int64_t i = 0; i < q->n; i++)
            cap_scores(n, (real)job->a->softcap, s + i * TG_KEYS);
    return lanes;
}

/* Sets the scores of query i with keys that it does not see to -inf, and those of the lanes without a key. */
static void few_hide(const tg_attention_job *job, const queries *q, int64_t i, int64_t key, int64_t n, int64_t lanes,
                     real *s) {
    int64_t from = 0, to = n;
    if (job->rules.more) {
        from = q->from[i] - key;
        to = q->to[i] - key;
    } else if (job->a->causal) {
        to = q->i + i + job->sk - job->sq + 1 - key;
    }
    from = from < 0 ? 0 : from < n ? from : n;
    to = to < from ? from : to < n ? to : n;
    fill(s, from, -(real)INFINITY);
    fill(s + to, lanes - to, -(real)INFINITY);
}

/* Returns the greatest of n values and `max`. n is a multiple of TG_LANES. */
static real greatest(int64_t n, const real *t, real max) {
    real most[TG_LANES];
    fill(most, TG_LANES, max);
    for (int64_t j = 0; j < n; j += TG_LANES)
        for (int64_t i = 0; i < TG_LANES; i++)
            most[i] = t[j + i] > most[i] ? t[j + i] : most[i];
    for (int64_t i = 0; i < TG_LANES; i++)
        max = most[i] > max ? most[i] : max;
    return max;
}

/* Returns sum + t[0] + t[1] + ..., in this order. It is not inlined, because the compiler would fuse the multiplication
 * that gives `sum` with the first addition, and the result would have other bits. */
TILE_REDUCTION tile_sum_after(real sum, int64_t n, const real *t) {
    for (int64_t j = 0; j < n; j++)
        sum += t[j];
    return sum;
}

/* Updates the running maximum and sum of query i with its scores t of a tile, and replaces each score by
 * exp(score - maximum). */
static void few_pass(running *s, int64_t i, int64_t lanes, real *restrict t) {
    real max = greatest(lanes, t, s->max[i]), ref = max == -(real)INFINITY ? 0 : max;
    s->rescale[i] = real_exp(s->max[i] - ref);
    s->max[i] = max;
    for (int64_t j = 0; j < lanes; j++)
        t[j] = real_exp(t[j] - ref);
    s->sum[i] = tile_sum_after(s->sum[i] * s->rescale[i], lanes, t);
}

#endif
