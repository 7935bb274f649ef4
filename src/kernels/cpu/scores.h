/* For templates only: the steps that attention's forward and gradient share. They work on a block of queries, and on a
 * tile of scores [keys, lanes], whose lanes are queries. */
#ifndef TG_SCORES_H
#define TG_SCORES_H

#include "kernels/cpu/matrix.h"
#include "kernels/philox.h"

/* A block of queries of head h of batch entry b: queries [i, i + n), padded to `lanes`, a multiple of TG_LANES. */
typedef struct queries {
    int64_t b, h, i, n, lanes;
    int64_t begin, end; /* all keys that a query of the block sees are in this range */
    /* If there are rules besides causal (attention_mask.h): the range of keys that all queries of the block see, and
     * the range of each query. */
    int64_t all_from, all_to;
    int64_t from[TG_QUERIES], to[TG_QUERIES];
} queries;

/* The state of a block's queries in forward. After a tile, the results of the tiles before it must be multiplied by
 * rescale, because the tile may have raised the maximum. */
typedef struct running {
    real max[TG_QUERIES], sum[TG_QUERIES], rescale[TG_QUERIES];
} running;

/* Finds the key ranges of q if there are rules besides causal. */
static void find_ranges(const tg_attention_job *job, queries *q) {
    q->begin = q->all_to = job->sk;
    q->end = q->all_from = 0;
    for (int64_t i = 0; i < q->lanes; i++) {
        tg_key_range s = i < q->n ? tg_mask_keys(&job->rules, q->b, q->i + i) : (tg_key_range){0, 0};
        q->from[i] = s.first;
        q->to[i] = s.end;
        if (i >= q->n) continue;
        q->all_from = s.first > q->all_from ? s.first : q->all_from;
        q->all_to = s.end < q->all_to ? s.end : q->all_to;
        if (s.end <= s.first) continue;
        q->begin = s.first < q->begin ? s.first : q->begin;
        q->end = s.end > q->end ? s.end : q->end;
    }
}

/* Fills q for query block qb of head (b, h). */
static inline void queries_of(const tg_attention_job *job, int64_t b, int64_t h, int64_t qb, queries *q) {
    q->b = b, q->h = h, q->i = qb * TG_QUERIES;
    q->n = job->sq - q->i < TG_QUERIES ? job->sq - q->i : TG_QUERIES;
    q->lanes = tg_lanes(q->n);
    if (job->rules.more) {
        find_ranges(job, q);
        return;
    }
    q->begin = q->all_from = 0;
    q->end = q->all_to = job->sk;
    if (job->a->causal && q->i + q->n + job->sk - job->sq < job->sk)
        q->end = q->i + q->n + job->sk - job->sq;
}

/* Sets hidden scores of a tile to -inf if there are rules besides causal. Query i sees the keys [from[i], to[i]). */
static void hide_by_rules(const queries *q, int64_t key, int64_t keys, real *s) {
    if (key >= q->all_from && key + keys <= q->all_to)
        return;
    int32_t from[TG_QUERIES], to[TG_QUERIES];
    for (int64_t i = 0; i < q->lanes; i++) {
        int64_t f = q->from[i] - key, t = q->to[i] - key;
        from[i] = (int32_t)(f < 0 ? 0 : f > TG_KEYS ? TG_KEYS : f);
        to[i] = (int32_t)(t < 0 ? 0 : t > TG_KEYS ? TG_KEYS : t);
    }
    for (int32_t j = 0; j < (int32_t)keys; j++)
        for (int64_t i = 0; i < q->lanes; i++)
            s[j * q->lanes + i] = j >= from[i] && j < to[i] ? s[j * q->lanes + i] : -(real)INFINITY;
}

/* Sets hidden scores of a tile to -inf. If causal is the only rule, these are the scores of query i with the keys after
 * i + sk - sq. */
static inline void hide_tile(const tg_attention_job *job, const queries *q, int64_t key, int64_t keys, real *s) {
    if (job->rules.more) {
        hide_by_rules(q, key, keys, s);
        return;
    }
    if (!job->a->causal)
        return;
    for (int64_t j = 0; j < keys; j++) {
        int64_t hidden = key + j - (job->sk - job->sq) - q->i; /* number of lanes, from the first, that are hidden */
        fill(s + j * q->lanes, hidden < q->lanes ? hidden : q->lanes, -(real)INFINITY);
    }
}

/* Writes to m[j, i] what the mask adds to the score of key j and query i: 0 or -inf for a bool mask. Returns false if
 * the mask hides all scores of the tile. */
static bool mask_load(const tg_attention_job *job, const queries *q, int64_t key, int64_t keys, real *m) {
    const tg_array *mask = &job->a->mask;
    int64_t size = tg_dtype_bits((tg_dtype)mask->dtype) / 8, step = mask->stride[3];
    real row[TG_KEYS];
    bool any = false; /* NaN counts as visible */
    for (int64_t i = 0; i < q->lanes; i++) {
        const char *from = (const char *)mask->data + (q->b * mask->stride[0] + q->h * mask->stride[1] +
                                                       (q->i + i) * mask->stride[2] + key * step) * size;
        if (i >= q->n)
            fill(row, keys, 0);
        else if (mask->dtype == TG_BOOL)
            for (int64_t j = 0; j < keys; j++)
                row[j] = ((const uint8_t *)from)[j * step] ? 0 : -(real)INFINITY;
        else
            tile_load(row, from, (tg_dtype)mask->dtype, step, keys);
        for (int64_t j = 0; j < keys; j++) {
            m[j * q->lanes + i] = row[j];
            any |= i < q->n && row[j] != -(real)INFINITY;
        }
    }
    return any;
}

/* Adds n values of the mask to the scores. */
static inline void mask_add(int64_t n, const real *restrict m, real *restrict s) {
    for (int64_t i = 0; i < n; i++)
        s[i] += m[i];
}

/* Bounds n scores by cap (tg_attention_args). */
static inline void cap_scores(int64_t n, real cap, real *restrict s) {
    for (int64_t i = 0; i < n; i++)
        s[i] = cap * real_tanh(s[i] / cap);
}

/* Returns sink[h] (tg_attention_args). */
static inline real sink_of(const tg_attention_job *job, int64_t h) {
    const tg_array *x = &job->a->sink;
    real v;
    tile_load(&v, (const char *)x->data + h * x->stride[0] * (tg_dtype_bits((tg_dtype)x->dtype) / 8),
              (tg_dtype)x->dtype, 1, 1);
    return v;
}

/* Writes the dropout factors: keep[j, i] is 1 / (1 - p) if key j of query i is kept, 0 if it is dropped. */
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

/* Returns the address of the element of the block's query i in x, an array [batch, heads, queries]. */
static inline real *row_at(const tg_array *x, const queries *q, int64_t i) {
    return (real *)x->data + q->b * x->stride[0] + q->h * x->stride[1] + (q->i + i) * x->stride[2];
}

#endif
