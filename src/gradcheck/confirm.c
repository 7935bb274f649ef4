/* A second look at a slope, before a gradient is called wrong by it: whether it is f's at all, or what f's rounding
 * makes of it, or steps that miss what f does between them. */
#include <math.h>

#include "catalog/sample_values.h"
#include "gradcheck/difference.h"

/* By other steps. Where they contradict the slope the estimate of its error was too small. What is far off may be so
 * for steps that are too large, so it gets smaller ones too, down to what rounding leaves: these count where they agree
 * with what was got. */
static tg_status contradict(tg_diff *d, int part, int64_t i, double got, tg_slope *s) {
    const tg_diff_part *p = &d->parts[part];
    double error = s->error, off = fabs(got - s->value);
    double least = 0x1p-40 * (i >= 0 ? fabs(d->x[p->at + i]) : tg_diff_largest(d->x + p->at, p->n));
    const int most = off > 0.1 * fabs(got) ? 60 : 2;
    for (int k = 2; k >= -most && (k >= -2 || ldexp(s->step, k) > least); k -= k > 0 ? 4 : 3) {
        tg_slope other;
        tg_status status = tg_diff_window(d, part, i, ldexp(s->step, k), &other);
        if (status != TG_OK) return status;
        if (k < -2 && other.noise > 0.1 * off) break;
        double apart = fabs(s->value - other.value);
        bool counts = k >= -2 || fabs(got - other.value) <= other.error + d->atol + d->rtol * fabs(got);
        if (!other.kink && counts && apart > error + other.error && s->error < apart + other.error)
            s->error = apart + other.error;
    }
    return TG_OK;
}

/* Of how far f's changes at seven places are from a polynomial of degree five: a divided difference, over what the same
 * noise at each of them makes of it. */
static double ripple(const double *at, const double *f) {
    enum { PLACES = 7 };
    double sum = 0, squares = 0;
    for (int j = 0; j < PLACES; j++) {
        double weight = 1;
        for (int k = 0; k < PLACES; k++) weight /= k == j ? 1 : at[j] - at[k];
        sum += weight * f[j];
        squares += weight * weight;
    }
    return sum / sqrt(squares);
}

/* The noise of f's changes around the point, as far as steps of four times this one: differences of a high order leave
 * of a smooth f next to nothing, and of noise all (Hamming, Numerical Methods for Scientists and Engineers; More and
 * Wild, Estimating Computational Noise). The steps are uneven, for by even ones a staircase may look smooth. */
static tg_status noise_of(tg_diff *d, int part, int64_t i, double step, double *noise) {
    enum { SIDE = 10, POINTS = 2 * SIDE + 1, SETS = POINTS - 6 };
    double at[POINTS], f[POINTS], set[SETS];
    uint64_t state = d->seed ^ (uint64_t)i;
    for (int k = 0; k < POINTS; k++) {
        tg_change c;
        at[k] = 0.38 * (k - SIDE + 0.5 * tg_sample_uniform(&state));
        tg_status status = tg_diff_change(d, part, i, at[k] * step, &c);
        if (status != TG_OK) return status;
        f[k] = c.sum;
    }
    for (int k = 0; k < SETS; k++) set[k] = ripple(at + k, f + k);
    *noise = 30 * tg_diff_largest(set, SETS); /* few differences of what need not be random: a wide margin */
    return TG_OK;
}

/* Where f rounds inside, more coarsely than its results are stored, it has neither a slope nor the noise that these let
 * expect. What this hides larger steps may tell, over which it matters less. */
static tg_status roughness(tg_diff *d, int part, int64_t i, double size, tg_slope *s) {
    double noise, more = 0, first = s->step;
    tg_slope best = {.error = INFINITY};
    tg_status status = noise_of(d, part, i, s->step, &noise);
    if (status != TG_OK || !(noise / s->step > s->error)) return status;
    s->error = noise / s->step;
    for (int k = 1; ldexp(first, k) <= 8 * d->eps * size && status == TG_OK; k++) {
        tg_slope other;
        status = tg_diff_window(d, part, i, ldexp(first, k), &other);
        if (status != TG_OK || other.kink || !(other.error + noise / other.step < best.error)) continue;
        best = other;
        best.error += noise / other.step;
    }
    if (status != TG_OK || !(best.error < s->error)) return status;
    status = noise_of(d, part, i, best.step, &more);
    best.error += more / best.step;
    if (status == TG_OK && best.error < s->error) *s = best;
    return status;
}

/* What f rises between two places beyond what its slopes there add up to, by the rule of Gauss and Legendre of two
 * points. Of the slopes on either side of each the smaller one counts: a step of f would spoil the other. */
static tg_status gap(tg_diff *d, int part, int64_t i, double from, double to, double step, double *rise) {
    tg_change start = {0}, end = {0}, down = {0}, up = {0};
    tg_status status = tg_diff_change(d, part, i, from, &start);
    if (status == TG_OK) status = tg_diff_change(d, part, i, to, &end);
    *rise = end.sum - start.sum;
    for (int side = -1; side <= 1 && status == TG_OK; side += 2) {
        tg_change at = {0};
        double s = (from + to) / 2 + side * (to - from) / (2 * sqrt(3));
        status = tg_diff_change(d, part, i, s, &at);
        if (status == TG_OK) status = tg_diff_change(d, part, i, s + step, &up);
        if (status == TG_OK) status = tg_diff_change(d, part, i, s - step, &down);
        up.sum -= at.sum;
        down.sum = at.sum - down.sum;
        *rise -= (to - from) / 2 * (fabs(up.sum) < fabs(down.sum) ? up.sum : down.sum) / step;
    }
    return status;
}

/* The magnitude of the outputs that have moved. */
static double size_of_outputs(const tg_diff *d) {
    double sum = 0;
    for (int64_t j = 0; j < d->m; j++) sum += d->weight[j] * fabs(d->y[j]);
    return sum;
}

/* Between the steps of a staircase f is flat, or smooth but for what they add: there its slopes do not add up to what
 * it rises over a far larger distance, by at least about as much as the slope misses, and it rises so all at once. At a
 * kink, or where f bends too much for so few slopes, what is missed shrinks with the distance. A step as large as f
 * itself, and alone, is no rounding: f has it. */
static tg_status steps_missed(tg_diff *d, int part, int64_t i, double off, double far, tg_slope *s) {
    double step = s->step / 512, from = 0, to = far, all = 0, rise, half[2];
    tg_change there;
    tg_status status = tg_diff_change(d, part, i, far, &there);
    if (status == TG_OK) status = gap(d, part, i, from, to, step, &all);
    double missed = fabs(all / far);
    if (status != TG_OK || !(missed >= off / 2 && isfinite(missed))) return status;
    for (rise = all; fabs(to - from) > s->step / 64;) {
        double middle = (from + to) / 2;
        status = gap(d, part, i, from, middle, step, &half[0]);
        if (status == TG_OK) status = gap(d, part, i, middle, to, step, &half[1]);
        if (status != TG_OK) return status;
        bool second = fabs(half[1]) > fabs(half[0]);
        rise = half[second];
        *(second ? &from : &to) = middle;
    }
    bool at_once = fabs(rise / (to - from)) >= 32 * missed;
    bool rounds = 16 * fabs(rise) <= fmax(size_of_outputs(d), fmax(fabs(there.sum), 4 * fabs(all)));
    if (at_once && rounds) s->error = fmax(s->error, 2 * missed);
    return TG_OK;
}

/* Steps across something near may hide a kink at the point itself, which smaller ones see, and alike. A slope that is
 * known to the tolerance has none. */
static tg_status kink_below(tg_diff *d, int part, int64_t i, tg_slope *s) {
    for (int k = 9; k <= 15; k += 3) {
        tg_slope near;
        tg_status status = tg_diff_window(d, part, i, ldexp(s->step, -k), &near);
        if (status != TG_OK || !near.kink || near.torn != 0) return status;
    }
    s->kink = true;
    return TG_OK;
}

tg_status tg_diff_confirm(tg_diff *d, int part, int64_t i, double got, tg_slope *s) {
    const tg_diff_part *p = &d->parts[part];
    double size = i >= 0 ? fmax(1, fabs(d->x[p->at + i])) : 1; /* of what the steps are to be small beside */
    double reach = i >= 0 ? size : fmax(1, tg_diff_largest(d->x + p->at, p->n));
    tg_status status = contradict(d, part, i, got, s);
    if (status == TG_OK && s->error < fabs(got - s->value)) status = roughness(d, part, i, size, s);
    double off = fabs(got - s->value);
    for (int k = 7; k <= (i >= 0 ? 10 : 16) && status == TG_OK; k += 3) /* from near and far, to both sides */
        for (int side = -1; side <= 1 && status == TG_OK && s->error < off; side += 2)
            status = steps_missed(d, part, i, off, side * fmin(ldexp(s->step, k), reach / 8), s);
    if (status == TG_OK && s->error < off && s->error > d->atol + d->rtol * fabs(s->value))
        status = kink_below(d, part, i, s);
    return status;
}
