/* The gradient of attention. With P the probabilities (made again from the saved log-sum-exp), K the dropout's factors
 * and D = sum(gout out) of each query:
 *     gv = (P K)' gout,  gs = P (K (gout v') - D) scale,  gq = gs k,  gk = gs' q. */
#include "kernels/cpu/scores.h"

/* What a unit holds: its sums for one group's gk and gv, and tiles. */
typedef struct unit {
    matrix q, k, v, out, gout;
    real *gk, *gv; /* [sk, ldk], [sk, ldv] */
    int64_t ldk, ldv;
    real *qt, *gt, *s, *gs, *keep, *qbuf, *kbuf, *vbuf, *gbuf, *gq;
} unit;

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
}

/* Per query: D, and the log-sum-exp (0 where no key is seen: every score is -inf there). Uses vbuf for rows of out. */
static void row_terms(const tg_attention_job *job, const queries *q, unit *w, block g, real *dot, real *lse) {
    for (int64_t i = 0; i < q->n; i++) {
        block o = block_rows(&w->out, q->i + i, 1, w->vbuf);
        real z = *lse_at(job, q, i);
        dot[i] = tile_dot(o.at, g.at + i * g.ld, job->dv);
        lse[i] = z == -(real)INFINITY ? 0 : z;
    }
    fill(dot + q->n, q->lanes - q->n, 0);
    fill(lse + q->n, q->lanes - q->n, 0);
}

/* In place: s from scores to P K, gs from gout v' to the gradient of the unscaled scores. */
static void score_grad(int64_t keys, int64_t lanes, real scale, const real *restrict dot, const real *restrict lse,
                       real *restrict s, real *restrict gs) {
    for (int64_t j = 0; j < keys; j++, s += lanes, gs += lanes)
        for (int64_t i = 0; i < lanes; i++) {
            s[i] = real_exp(s[i] - lse[i]);
            gs[i] = s[i] * (gs[i] - dot[i]) * scale;
        }
}

static void score_grad_dropped(int64_t keys, int64_t lanes, real scale, const real *restrict dot,
                               const real *restrict lse, const real *restrict keep, real *restrict s,
                               real *restrict gs) {
    for (int64_t j = 0; j < keys; j++, s += lanes, gs += lanes, keep += lanes)
        for (int64_t i = 0; i < lanes; i++) {
            real p = real_exp(s[i] - lse[i]);
            s[i] = p * keep[i];
            gs[i] = p * (gs[i] * keep[i] - dot[i]) * scale;
        }
}

static void backward_block(const tg_attention_job *job, const queries *q, unit *w) {
    const tg_attention_args *a = job->a;
    int64_t lanes = q->lanes;
    real dot[TG_QUERIES], lse[TG_QUERIES], scale = (real)a->scale;
    block qr = block_rows(&w->q, q->i, q->n, w->qbuf), gr = block_rows(&w->gout, q->i, q->n, w->gbuf);
    block_transpose(qr, q->n, job->dk, lanes, scale, w->qt);
    block_transpose(gr, q->n, job->dv, lanes, 1, w->gt);
    row_terms(job, q, w, gr, dot, lse);
    fill(w->gq, q->n * job->pad_k, 0);
    for (int64_t key = 0; key < q->visible; key += TG_KEYS) {
        int64_t n = q->visible - key < TG_KEYS ? q->visible - key : TG_KEYS;
        block k = block_rows(&w->k, key, n, w->kbuf), v = block_rows(&w->v, key, n, w->vbuf);
        mm(n, lanes, job->dk, (operand){k.at, k.ld, 1}, w->qt, lanes, w->s, lanes, false);
        mm(n, lanes, job->dv, (operand){v.at, v.ld, 1}, w->gt, lanes, w->gs, lanes, false);
        mask_tile(job, q, key, n, w->s);
        if (a->dropout > 0) {
            keep_tile(job, q, key, n, w->keep);
            score_grad_dropped(n, lanes, scale, dot, lse, w->keep, w->s, w->gs);
        } else {
            score_grad(n, lanes, scale, dot, lse, w->s, w->gs);
        }
        if (w->gv)
            mm(n, job->pad_v, q->n, (operand){w->s, lanes, 1}, gr.at, gr.ld, w->gv + key * w->ldv, w->ldv, true);
        if (w->gk)
            mm(n, job->pad_k, q->n, (operand){w->gs, lanes, 1}, qr.at, qr.ld, w->gk + key * w->ldk, w->ldk, true);
        if (a->gq.data)
            mm(q->n, job->pad_k, n, (operand){w->gs, 1, lanes}, k.at, k.ld, w->gq, job->pad_k, true);
    }
    if (!a->gq.data)
        return;
    matrix gq = matrix_of(&a->gq, q->b, q->h);
    for (int64_t i = 0; i < q->n; i++)
        matrix_put(&gq, q->i + i, w->gq + i * job->pad_k, a->add_q);
}

/* Where a unit sums gk or gv: in its part of the partial sums, else in the gradient itself. NULL: not wanted. */
static real *sums_of(const tg_attention_job *job, const tg_array *grad, bool add, real *parts, int64_t part,
                     int64_t head, int64_t pad, int64_t *ld) {
    if (!grad->data)
        return NULL;
    matrix m = matrix_of(grad, head / job->groups, head % job->groups);
    bool own = parts != NULL;
    real *sums = own ? parts + (part * job->batch * job->groups + head) * job->sk * pad : (real *)m.data;
    *ld = own ? pad : m.rs;
    for (int64_t j = 0; (own || !add) && j < job->sk; j++)
        fill(sums + j * *ld, pad, 0);
    return sums;
}

/* Unit u: query blocks c, c + chunks, ... of all query heads of one group. */
static void backward_unit(const tg_attention_job *job, int64_t u, real *scratch) {
    const tg_attention_args *a = job->a;
    int64_t head = u / job->chunks, c = u % job->chunks, b = head / job->groups, g = head % job->groups;
    int64_t per = job->heads / job->groups;
    unit w = {.k = matrix_of(&a->k, b, g), .v = matrix_of(&a->v, b, g)};
    w.gk = sums_of(job, &a->gk, a->add_k, job->gk, c, head, job->pad_k, &w.ldk);
    w.gv = sums_of(job, &a->gv, a->add_v, job->gv, c, head, job->pad_v, &w.ldv);
    carve_tiles(job, &w, scratch);
    for (int64_t t = c; t < per * job->blocks; t += job->chunks) {
        queries q = queries_of(job, b, g * per + t / job->blocks, t % job->blocks);
        w.q = matrix_of(&a->q, b, q.h);
        w.out = matrix_of(&a->out, b, q.h);
        w.gout = matrix_of(&a->gout, b, q.h);
        backward_block(job, &q, &w);
    }
}

void TG_K(attention_grad)(void *arg, int64_t begin, int64_t end) {
    const tg_attention_job *job = arg;
    real *scratch = (real *)job->scratch + begin * job->slice;
    int64_t last = tg_attention_unit(job, end);
    for (int64_t u = tg_attention_unit(job, begin); u < last; u++)
        backward_unit(job, u, scratch);
}
