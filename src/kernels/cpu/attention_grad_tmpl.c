/* The gradient of attention. P is the probabilities, which are computed again from each query's greatest score and sum.
 * K is the dropout factors, D is sum(gout out) of each query, and ' is a transposition. P, K and gout v' are multiplied
 * element by element:
 *     gv = (P K)' gout,  gs = P (K (gout v') - D) scale slope,  gq = gs k,  gk = gs' q.
 * slope is 1, or the derivative 1 - (score / softcap)^2 of a bounded score. The mask's gradient is gs without scale and
 * slope. The sink's gradient is the sum of -P D over all queries of all batch entries, with the sink's own P. Each of
 * these two gradients has a pass of its own, so that one thread computes each sum over batch entries and heads, in a
 * fixed order. The pass for the mask computes the scores again. */
#include "kernels/cpu/scores.h"

/* The operands and memory of a unit of work: its sums for the gk and gv of one group, and its tiles. */
typedef struct unit {
    matrix q, k, v, out, gout;
    real *gk, *gv; /* [sk, ldk], [sk, ldv] */
    int64_t ldk, ldv;
    real *qt, *gt, *s, *gs, *keep, *qbuf, *kbuf, *vbuf, *gbuf, *gq, *mask, *slope;
    block qr, gr; /* the queries of a block and their gout */
    real dot[TG_QUERIES], top[TG_QUERIES], inverse[TG_QUERIES]; /* what row_terms computes for each query */
} unit;

/* Places the tiles of w in the memory at `scratch`. */
static void carve_tiles(const tg_attention_job *job, unit *w, real *scratch) {
    w->qt = carve(&scratch, job->dk * TG_QUERIES);
    w->gt = carve(&scratch, job->dv * TG_QUERIES);
    w->s = carve(&scratch, TG_KEYS * TG_QUERIES);
    w->gs = carve(&scratch, TG_KEYS * TG_QUERIES);
    w->keep = carve(&scratch, TG_KEYS * TG_QUERIES);
    w->qbuf = carve(&scratch, TG_QUERIES * job->pad_k);
    w->kbuf = carve(&scratch, TG_KEYS * job->pad_k);
    w->vbuf = carve(&scratch, TG_KEYS * job->pad_v);
    w->gbuf = carve(&scratch, TG_QUERIES * job->pad_v);
    w->gq = carve(&scratch, TG_QUERIES * job->pad_k);
    w->mask = job->a->mask.data ? carve(&scratch, TG_KEYS * TG_QUERIES) : NULL;
    w->slope = job->a->softcap > 0 ? carve(&scratch, TG_KEYS * TG_QUERIES) : NULL;
}

/* Computes for each query dot, which is D; top, its greatest score; and inverse, 1 / the sum of exp(score - greatest).
 * If the row of the query has no score (tg_attention_args), top and inverse are 0, so that P is 0 and not NaN. Uses
 * vbuf for rows of out. */
static void row_terms(const tg_attention_job *job, const queries *q, unit *w) {
    block g = w->gr;
    real *dot = w->dot, *top = w->top, *inverse = w->inverse;
    for (int64_t i = 0; i < q->n; i++) {
        block o = block_rows(&w->out, q->i + i, 1, w->vbuf);
        real mass = *row_at(&job->a->mass, q, i);
        dot[i] = tile_dot(o.at, g.at + i * g.ld, job->dv);
        top[i] = mass == 0 ? 0 : *row_at(&job->a->top, q, i);
        inverse[i] = mass == 0 ? 0 : 1 / mass;
    }
    fill(dot + q->n, q->lanes - q->n, 0);
    fill(top + q->n, q->lanes - q->n, 0);
    fill(inverse + q->n, q->lanes - q->n, 0);
}

/* Replaces the scores s by P, and gs, which holds gout v', by the gradient of the scores times `scale`. */
static void score_grad(int64_t keys, int64_t lanes, real scale, const real *restrict dot, const real *restrict top,
                       const real *restrict inverse, real *restrict s, real *restrict gs) {
    for (int64_t j = 0; j < keys; j++, s += lanes, gs += lanes)
        for (int64_t i = 0; i < lanes; i++) {
            s[i] = real_exp(s[i] - top[i]) * inverse[i];
            gs[i] = s[i] * (gs[i] - dot[i]) * scale;
        }
}

/* Does the same as score_grad, but with dropout, and replaces s by P K. */
static void score_grad_dropped(int64_t keys, int64_t lanes, real scale, const real *restrict dot,
                               const real *restrict top, const real *restrict inverse, const real *restrict keep,
                               real *restrict s, real *restrict gs) {
    for (int64_t j = 0; j < keys; j++, s += lanes, gs += lanes, keep += lanes)
        for (int64_t i = 0; i < lanes; i++) {
            real p = real_exp(s[i] - top[i]) * inverse[i];
            s[i] = p * keep[i];
            gs[i] = p * (gs[i] * keep[i] - dot[i]) * scale;
        }
}

/* Writes the derivatives of n bounded scores to slope. */
static void cap_slopes(int64_t n, real cap, const real *restrict s, real *restrict slope) {
    for (int64_t i = 0; i < n; i++)
        slope[i] = 1 - (s[i] / cap) * (s[i] / cap);
}

/* Multiplies the gradients of n bounded scores by their derivatives. */
static void apply_slopes(int64_t n, const real *restrict slope, real *restrict gs) {
    for (int64_t i = 0; i < n; i++)
        gs[i] *= slope[i];
}

/* Loads the queries q, their gout and their terms into w. */
static void take_queries(const tg_attention_job *job, const queries *q, unit *w) {
    const tg_attention_args *a = job->a;
    w->q = matrix_of(&a->q, q->b, q->h);
    w->out = matrix_of(&a->out, q->b, q->h);
    w->gout = matrix_of(&a->gout, q->b, q->h);
    w->qr = block_rows(&w->q, q->i, q->n, w->qbuf);
    w->gr = block_rows(&w->gout, q->i, q->n, w->gbuf);
    block_transpose(w->qr, q->n, job->dk, q->lanes, (real)a->scale, w->qt);
    block_transpose(w->gr, q->n, job->dv, q->lanes, 1, w->gt);
    row_terms(job, q, w);
}

/* Computes P K in w->s and the gradient of the scores times `scale` in w->gs, for n keys from `key` on. Scores that
 * are bounded leave their derivatives in w->slope. *k receives the rows of k. If the mask hides all these scores, w->s
 * and w->gs would be 0. In that case computes nothing and returns false. */
static bool take_tile(const tg_attention_job *job, const queries *q, unit *w, int64_t key, int64_t n, real scale,
                      block *k) {
    int64_t lanes = q->lanes;
    if (w->mask && !mask_load(job, q, key, n, w->mask))
        return false;
    *k = block_rows(&w->k, key, n, w->kbuf);
    block v = block_rows(&w->v, key, n, w->vbuf);
    mm(n, lanes, job->dk, (operand){k->at, k->ld, 1}, w->qt, lanes, w->s, lanes, false);
    mm(n, lanes, job->dv, (operand){v.at, v.ld, 1}, w->gt, lanes, w->gs, lanes, false);
    if (w->slope) {
        cap_scores(n * lanes, (real)job->a->softcap, w->s);
        cap_slopes(n * lanes, (real)job->a->softcap, w->s, w->slope);
    }
    if (w->mask)
        mask_add(n * lanes, w->mask, w->s);
    hide_tile(job, q, key, n, w->s);
    if (job->a->dropout > 0) {
        keep_tile(job, q, key, n, w->keep);
        score_grad_dropped(n, lanes, scale, w->dot, w->top, w->inverse, w->keep, w->s, w->gs);
    } else {
        score_grad(n, lanes, scale, w->dot, w->top, w->inverse, w->s, w->gs);
    }
    return true;
}

/* Adds the contributions of a block of queries to w->gk and w->gv, and stores its gq. */
static void backward_block(const tg_attention_job *job, const queries *q, unit *w) {
    const tg_attention_args *a = job->a;
    int64_t lanes = q->lanes;
    take_queries(job, q, w);
    fill(w->gq, q->n * job->pad_k, 0);
    for (int64_t key = q->begin; key < q->end; key += TG_KEYS) {
        int64_t n = q->end - key < TG_KEYS ? q->end - key : TG_KEYS;
        block k;
        if (!take_tile(job, q, w, key, n, (real)a->scale, &k))
            continue;
        if (w->slope)
            apply_slopes(n * lanes, w->slope, w->gs);
        if (w->gv)
            mm(n, job->pad_v, q->n, (operand){w->s, lanes, 1}, w->gr.at, w->gr.ld, w->gv + key * w->ldv, w->ldv,
               true);
        if (w->gk)
            mm(n, job->pad_k, q->n, (operand){w->gs, lanes, 1}, w->qr.at, w->qr.ld, w->gk + key * w->ldk, w->ldk,
               true);
        if (a->gq.data)
            mm(q->n, job->pad_k, n, (operand){w->gs, 1, lanes}, k.at, k.ld, w->gq, job->pad_k, true);
    }
    if (!a->gq.data)
        return;
    matrix gq = matrix_of(&a->gq, q->b, q->h);
    for (int64_t i = 0; i < q->n; i++)
        matrix_put(&gq, q->i + i, w->gq + i * job->pad_k, a->add_q);
}

/* Returns where a unit sums gk or gv: in its part of the partial sums, or, if `parts` is NULL, directly in the
 * gradient. Sets this memory to 0, unless it is a gradient to which the sums are added. Returns NULL if the gradient is
 * not wanted. */
static real *sums_of(const tg_attention_job *job, const tg_array *grad, bool add, real *parts, int64_t part,
                     int64_t head, int64_t pad, int64_t *ld) {
    if (!grad->data)
        return NULL;
    matrix m = matrix_of(grad, head / job->groups, head % job->groups);
    bool partial = parts != NULL;
    real *sums = partial ? parts + (part * job->batch * job->groups + head) * job->sk * pad : (real *)m.data;
    *ld = partial ? pad : m.rs;
    for (int64_t j = 0; (partial || !add) && j < job->sk; j++)
        fill(sums + j * *ld, pad, 0);
    return sums;
}

/* Computes unit u: chunk c of a group, which is the query blocks c, c + chunks, ... of the group's heads. */
static void backward_unit(const tg_attention_job *job, int64_t u, real *scratch) {
    const tg_attention_args *a = job->a;
    int64_t head = u / job->chunks, c = u % job->chunks, b = head / job->groups, g = head % job->groups;
    int64_t per = job->heads / job->groups;
    unit w = {.k = matrix_of(&a->k, b, g), .v = matrix_of(&a->v, b, g)};
    w.gk = sums_of(job, &a->gk, a->add_k, job->gk, c, head, job->pad_k, &w.ldk);
    w.gv = sums_of(job, &a->gv, a->add_v, job->gv, c, head, job->pad_v, &w.ldv);
    carve_tiles(job, &w, scratch);
    for (int64_t t = c; t < per * job->blocks; t += job->chunks) {
        queries q;
        queries_of(job, b, g * per + t / job->blocks, t % job->blocks, &q);
        backward_block(job, &q, &w);
    }
}

/* Units are divided into numbered ranges (tg_attention_unit). Runs the units of the ranges from begin to end - 1. */
void TG_K(attention_grad)(void *arg, int64_t begin, int64_t end) {
    const tg_attention_job *job = arg;
    real *scratch = (real *)job->scratch + begin * job->slice;
    int64_t last = tg_attention_unit(job, end);
    for (int64_t u = tg_attention_unit(job, begin); u < last; u++)
        backward_unit(job, u, scratch);
}

/* ---- The mask's gradient ---- */

/* Adds to sum the gradients of the scores of a tile: a block of queries by the keys from `key` on. sum[j, i] is for key
 * `key` + j and query i of the block. */
static void add_mask_tile(const tg_attention_job *job, const queries *q, unit *w, int64_t key, real *sum) {
    int64_t from = key > q->begin ? key : q->begin, to = key + TG_KEYS < q->end ? key + TG_KEYS : q->end;
    block k;
    if (from >= to || !take_tile(job, q, w, from, to - from, 1, &k))
        return;
    for (int64_t j = from; j < to; j++)
        for (int64_t i = 0; i < q->n; i++)
            sum[(j - key) * TG_QUERIES + i] += w->gs[(j - from) * q->lanes + i];
}

/* Stores the sums of a block of queries and a tile of keys. If the mask was broadcast along queries or keys, first adds
 * up the sums along that dim. */
static void mask_put(const tg_attention_job *job, int64_t b, int64_t h, int64_t i, int64_t key, const real *sum) {
    matrix to = matrix_of(&job->a->gmask, b, h);
    int64_t n = job->summed[2] ? 1 : job->sq - i < TG_QUERIES ? job->sq - i : TG_QUERIES;
    int64_t keys = job->summed[3] ? 1 : job->sk - key < TG_KEYS ? job->sk - key : TG_KEYS;
    to.data += key * to.cs * to.size;
    to.cols = keys;
    for (int64_t r = 0; r < n; r++) {
        real row[TG_KEYS] = {0};
        for (int64_t j = 0; j < TG_KEYS; j++)
            for (int64_t c = r; c < (job->summed[2] ? TG_QUERIES : r + 1); c++)
                row[job->summed[3] ? 0 : j] += sum[j * TG_QUERIES + c];
        matrix_put(&to, i + r, row, job->a->add_mask);
    }
}

/* Computes unit u: one tile of the mask's gradient, from all tiles of scores that are summed into it. */
static void mask_unit(const tg_attention_job *job, int64_t u, real *scratch) {
    int64_t first[4], last[4], all[4] = {job->batch, job->heads, job->blocks, tg_units(job->sk, TG_KEYS)};
    for (int d = 3; d >= 0; u /= job->parts[d], d--) {
        first[d] = job->summed[d] ? 0 : u % job->parts[d];
        last[d] = job->summed[d] ? all[d] : first[d] + 1;
    }
    real *sum = carve(&scratch, TG_KEYS * TG_QUERIES);
    unit w;
    carve_tiles(job, &w, scratch);
    fill(sum, TG_KEYS * TG_QUERIES, 0);
    for (int64_t b = first[0]; b < last[0]; b++)
        for (int64_t h = first[1]; h < last[1]; h++) {
            int64_t g = h / (job->heads / job->groups);
            w.k = matrix_of(&job->a->k, b, g);
            w.v = matrix_of(&job->a->v, b, g);
            for (int64_t t = first[2]; t < last[2]; t++) {
                queries q;
                queries_of(job, b, h, t, &q);
                take_queries(job, &q, &w);
                for (int64_t tile = first[3]; tile < last[3]; tile++)
                    add_mask_tile(job, &q, &w, tile * TG_KEYS, sum);
            }
        }
    mask_put(job, first[0], first[1], first[2] * TG_QUERIES, first[3] * TG_KEYS, sum);
}

void TG_K(attention_grad_mask)(void *arg, int64_t begin, int64_t end) {
    const tg_attention_job *job = arg;
    real *scratch = (real *)job->scratch + begin * job->slice;
    int64_t last = tg_attention_unit(job, end);
    for (int64_t u = tg_attention_unit(job, begin); u < last; u++)
        mask_unit(job, u, scratch);
}

/* ---- The sink's gradient ---- */

/* Computes unit h: the gradient of the sink of one head, over all batch entries and queries. */
static void sink_unit(const tg_attention_job *job, int64_t h, real *scratch) {
    const tg_array *g = &job->a->gsink;
    double sink = (double)sink_of(job, h), sum = 0;
    unit w;
    carve_tiles(job, &w, scratch);
    for (int64_t b = 0; b < job->batch; b++)
        for (int64_t t = 0; t < job->blocks; t++) {
            queries q = {.b = b, .h = h, .i = t * TG_QUERIES};
            q.n = job->sq - q.i < TG_QUERIES ? job->sq - q.i : TG_QUERIES;
            q.lanes = tg_lanes(q.n);
            w.out = matrix_of(&job->a->out, b, h);
            w.gout = matrix_of(&job->a->gout, b, h);
            w.gr = block_rows(&w.gout, q.i, q.n, w.gbuf);
            row_terms(job, &q, &w);
            for (int64_t i = 0; i < q.n; i++)
                sum -= exp(sink - (double)w.top[i]) * (double)w.inverse[i] * (double)w.dot[i];
        }
    char *to = (char *)g->data + h * g->stride[0] * (tg_dtype_bits((tg_dtype)g->dtype) / 8);
    real v = (real)sum;
    if (job->a->add_sink)
        tile_add(to, (tg_dtype)g->dtype, 1, 1, &v);
    else
        tile_store(to, (tg_dtype)g->dtype, 1, 1, &v);
}

void TG_K(attention_grad_sink)(void *arg, int64_t begin, int64_t end) {
    const tg_attention_job *job = arg;
    real *scratch = (real *)job->scratch + begin * job->slice;
    int64_t last = tg_attention_unit(job, end);
    for (int64_t u = tg_attention_unit(job, begin); u < last; u++)
        sink_unit(job, u, scratch);
}
