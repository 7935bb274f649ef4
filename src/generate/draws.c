/* Draws from distributions, and the arithmetic of distributions that speculative decoding needs. */
#include <math.h>

#include "generate/sampling.h"
#include "kernels/philox.h"

/* A first block of Philox4x32-10 (Salmon et al., SC 2011) makes the key of the sample from the seed, and a second one
 * makes the draw from that key. */
double tg_draw_uniform(uint64_t seed, int64_t prompt, int64_t sample, int64_t index, tg_draw what) {
    tg_philox_block k = tg_philox(seed, (uint64_t)prompt, (uint64_t)sample);
    tg_philox_block b = tg_philox((uint64_t)k.w[1] << 32 | k.w[0], (uint64_t)index, (uint64_t)what);
    return tg_uniform_of_words(b.w[0], b.w[1]);
}

double tg_sampling_uniform(uint64_t seed, int64_t prompt, int64_t sample, int64_t index) {
    return tg_draw_uniform(seed, prompt, sample, index, TG_DRAW_TOKEN);
}

int64_t tg_distribution_pick(const tg_distribution *d, double u) {
    double at = u * d->sum, sum = 0;
    for (int64_t i = 0; i < d->n; i++)
        if ((sum += d->weight[i]) > at) return d->id[i];
    return d->id[d->n - 1]; /* rounding of the sum */
}

int64_t tg_sampling_pick(const double *p, int64_t vocab, double u) {
    double all = 0, sum = 0;
    int64_t last = -1;
    for (int64_t i = 0; i < vocab; i++) all += p[i];
    for (int64_t i = 0; i < vocab; i++) {
        if (!(p[i] > 0)) continue;
        last = i;
        if ((sum += p[i]) > u * all) return i;
    }
    return last;
}

double tg_distribution_at(const tg_distribution *d, int64_t id) {
    int64_t low = 0, high = d->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (d->id[middle] < id) low = middle + 1;
        else high = middle;
    }
    return low < d->n && d->id[low] == id ? d->weight[low] / d->sum : 0;
}

/* Returns by how much the probability of p's token i is greater in p than in q. *j is the place in q's ids up to which
 * they were compared; ids rise in both, so a loop over i begins with 0. */
static double rest_of(const tg_distribution *p, int64_t i, const tg_distribution *q, int64_t *j) {
    while (*j < q->n && q->id[*j] < p->id[i]) ++*j;
    double other = *j < q->n && q->id[*j] == p->id[i] ? q->weight[*j] / q->sum : 0;
    return p->weight[i] / p->sum - other;
}

void tg_distribution_subtract(tg_distribution *p, const tg_distribution *q) {
    int64_t n = 0, j = 0;
    double sum = 0;
    for (int64_t i = 0; i < p->n; i++) { /* whether anything is left must be known before p changes */
        double rest = rest_of(p, i, q, &j);
        if (rest > 0) sum += rest;
    }
    if (!(sum > 0)) return;
    j = 0;
    for (int64_t i = 0; i < p->n; i++) {
        double rest = rest_of(p, i, q, &j);
        if (rest <= 0) continue;
        p->id[n] = p->id[i];
        p->weight[n++] = rest;
    }
    p->n = n;
    p->sum = sum;
}

double tg_log_sum_exp(const double *x, int64_t n) {
    double top = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int64_t i = 0; i < n; i++) sum += exp(x[i] - top);
    return top + log(sum);
}
