/* Cross-entropy of rows of logits. The log-sum-exp of forward is all that the gradient needs. */
#include "kernels/cpu/fused.h"
#include "kernels/cpu/lse.h"

/* The class of row r; -1 where the row counts for nothing (ignored, or out of range, which the driver reports). */
static int64_t class_of(const tg_cross_entropy_job *job, int64_t r) {
    int64_t t = *(const int64_t *)tg_row_at(&job->target, r, 0);
    return t == job->ignore_index || t < 0 || t >= job->logits.n ? -1 : t;
}

static real logit(const tg_rows *x, int64_t r, int64_t j) {
    real v;
    tile_load(&v, tg_row_at(x, r, j), x->dtype, 1, 1);
    return v;
}

static real mean_logit(const tg_rows *x, int64_t r) {
    real buf[TILE], sum = 0;
    for (int64_t j = 0; j < x->n; j += TILE) {
        int64_t n = tile_len(x->n, j);
        sum += tile_sum(tile_in(x, r, j, n, buf), n);
    }
    return sum / (real)x->n;
}

void TG_K(cross_entropy)(void *arg, int64_t begin, int64_t end) {
    const tg_cross_entropy_job *job = arg;
    int64_t last = tg_unit_end(job->logits.count, job->per_unit, end);
    real s = (real)job->smoothing;
    for (int64_t r = begin * job->per_unit; r < last; r++) {
        int64_t t = class_of(job, r);
        real z = lse_value(lse_of_row(&job->logits, r)), loss = 0;
        if (t >= 0)
            loss = (1 - s) * (z - logit(&job->logits, r, t));
        if (t >= 0 && s != 0)
            loss += s * (z - mean_logit(&job->logits, r));
        row_set(&job->lse, r, z);
        row_set(&job->loss, r, loss);
    }
}

/* glogits (+)= (softmax - (1 - s) onehot - s / classes) gloss. The tiles of glogits may be those of the logits. */
static void grad_row(const tg_cross_entropy_job *job, int64_t r) {
    int64_t t = class_of(job, r);
    real in[TILE], out[TILE], g = t < 0 ? 0 : row_value(&job->gloss, r), z = row_value(&job->lse, r);
    real uniform = (real)job->smoothing / (real)job->logits.n, hit = (1 - (real)job->smoothing) * g;
    for (int64_t j = 0; j < job->logits.n; j += TILE) {
        int64_t n = tile_len(job->logits.n, j);
        real *gx = tile_out(&job->glogits, r, j, job->add, out);
        if (t < 0) {
            for (int64_t i = 0; i < n; i++)
                gx[i] = 0;
        } else {
            const real *x = tile_in(&job->logits, r, j, n, in);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                gx[i] = (real_exp(x[i] - z) - uniform) * g;
        }
        if (t >= j && t < j + n)
            gx[t - j] -= hit;
        tile_put(&job->glogits, r, j, n, job->add, gx);
    }
}

void TG_K(cross_entropy_grad)(void *arg, int64_t begin, int64_t end) {
    const tg_cross_entropy_job *job = arg;
    int64_t last = tg_unit_end(job->logits.count, job->per_unit, end);
    for (int64_t r = begin * job->per_unit; r < last; r++)
        grad_row(job, r);
}
