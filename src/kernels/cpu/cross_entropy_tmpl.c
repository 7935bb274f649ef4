/* Cross-entropy of rows of logits, and its gradient. Of the results of forward, the gradient needs only the greatest
 * logit and the sum of exponentials of each row. */
#include "kernels/cpu/fused.h"
#include "kernels/cpu/lse.h"

/* Returns whether row r contributes to the loss: its target is a class and not ignore_index. (The driver reports
 * targets out of range.) *column receives the position of the class among the columns of logits. If logits has no such
 * column, the class is in another shard. If the row does not contribute, *column is -1. */
static bool contributes(const tg_cross_entropy_job *job, int64_t r, int64_t *column) {
    int64_t t = *(const int64_t *)tg_row_at(&job->target, r, 0);
    bool valid = t != job->ignore_index && t >= 0 && t < job->classes;
    *column = valid ? t - job->first : -1;
    return valid;
}

static bool in_shard(const tg_cross_entropy_job *job, int64_t column) { return column >= 0 && column < job->logits.n; }

static real logit(const tg_rows *x, int64_t r, int64_t j) {
    real v;
    tile_load(&v, tg_row_at(x, r, j), x->dtype, 1, 1);
    return v;
}

/* Returns the sum of x - ref along row r. */
static real sum_logits(const tg_rows *x, int64_t r, real ref) {
    real in[TILE], less[TILE], sum = 0;
    for (int64_t j = 0; j < x->n; j += TILE) {
        int64_t n = tile_len(x->n, j);
        const real *t = tile_in(x, r, j, n, in);
        for (int64_t i = 0; i < n; i++)
            less[i] = t[i] - ref;
        sum += tile_sum(less, n);
    }
    return sum;
}

/* Returns the loss of row r; 0 if the row does not contribute. z holds the greatest logit of the row, and the sum of
 * the exponentials relative to it (lse.h). If the logits are a shard of the vocabulary, returns the shard's part of the
 * loss (tg_cross_entropy_args). In that part, logits are measured from z.ref. The part lacks the logarithm of the sum
 * of exponentials: the caller adds it when it has the sums of all shards. */
static real row_loss(const tg_cross_entropy_job *job, int64_t r, lse z) {
    int64_t t;
    real s = (real)job->smoothing, from = job->shard ? 0 : (real)log(z.sum), loss = 0;
    if (!contributes(job, r, &t))
        return 0;
    if (in_shard(job, t))
        loss = (1 - s) * (from - (logit(&job->logits, r, t) - z.ref));
    return s == 0 ? loss : loss + s * (from - sum_logits(&job->logits, r, z.ref) / (real)job->classes);
}

void TG_K(cross_entropy)(void *arg, int64_t begin, int64_t end) {
    const tg_cross_entropy_job *job = arg;
    int64_t last = tg_unit_end(job->logits.count, job->per_unit, end);
    for (int64_t r = begin * job->per_unit; r < last; r++) {
        lse z = lse_of_row(&job->logits, r);
        row_set(&job->top, r, z.sum == 0 ? -(real)INFINITY : z.ref);
        row_set(&job->mass, r, z.sum);
        row_set(&job->loss, r, row_loss(job, r, z));
    }
}

/* Computes glogits (+)= (softmax - (1 - s) onehot - s / classes) gloss for row r, with smoothing s. glogits may be the
 * memory of logits. */
static void grad_row(const tg_cross_entropy_job *job, int64_t r) {
    int64_t t;
    bool valid = contributes(job, r, &t);
    real in[TILE], out[TILE], g = valid ? row_value(&job->gloss, r) : 0;
    real top = row_value(&job->top, r), scale = 1 / row_value(&job->mass, r);
    real uniform = (real)job->smoothing / (real)job->classes, hit = (1 - (real)job->smoothing) * g;
    for (int64_t j = 0; j < job->logits.n; j += TILE) {
        int64_t n = tile_len(job->logits.n, j);
        real *gx = tile_out(&job->glogits, r, j, job->add, out);
        if (!valid) {
            for (int64_t i = 0; i < n; i++)
                gx[i] = 0;
        } else {
            const real *x = tile_in(&job->logits, r, j, n, in);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                gx[i] = (real_exp(x[i] - top) * scale - uniform) * g;
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
