/* Verification of a slope before a gradient is reported as wrong: the difference may come from rounding inside f, or
 * from steps that miss what f does between them. */
#include <math.h>

#include "catalog/sample_values.h"
#include "gradcheck/difference.h"

/* Tries other steps. If their slopes contradict *s, the error estimate of *s was too small and is increased. If *s is
 * far from the gradient `got`, its steps may have been too large. Then smaller steps follow, down to where rounding
 * dominates; the slope of such a step counts only if it agrees with the gradient. */
static tg_status try_other_steps(tg_diff *d, int part, int64_t i, double got, tg_slope *s) {
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

/* Returns the divided difference of order six of the values f at seven points, relative to what noise of size one at
 * each point contributes to it. The result is 0 if f is a polynomial of degree five. */
static double sixth_difference(const double *at, const double *f) {
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

/* Estimates the noise of f's changes in a neighborhood of about four steps. Differences of high order of a smooth f
 * are almost 0, while those of noise are not (Hamming, Numerical Methods for Scientists and Engineers; More and
 * Wild, Estimating Computational Noise). The points are uneven, because a staircase may look smooth at evenly spaced
 * ones. */
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
    for (int k = 0; k < SETS; k++) set[k] = sixth_difference(at + k, f + k);
    *noise = 30 * tg_diff_largest(set, SETS); /* a wide margin: few differences, and noise need not be random */
    return TG_OK;
}

/* Detects that f rounds internally, more coarsely than its results are stored: then the noise of f is larger than the
 * rounding of the results explains, and s->error is increased. Larger steps, on which such noise has less effect, may
 * give a better slope; if so, that slope replaces *s. */
static tg_status check_rounding(tg_diff *d, int part, int64_t i, double size, tg_slope *s) {
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

/* Computes how much f rises between two points in excess of the integral of its slopes, which is taken by the
 * Gauss-Legendre rule with two points. Of the two one-sided slopes at each point the smaller one counts, because the
 * larger one may reach across a stair of f. */
static tg_status excess_rise(tg_diff *d, int part, int64_t i, double from, double to, double step, double *rise) {
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

/* Returns the magnitude of the outputs that have moved. */
static double size_of_outputs(const tg_diff *d) {
    double sum = 0;
    for (int64_t j = 0; j < d->m; j++) sum += d->weight[j] * fabs(d->y[j]);
    return sum;
}

/* Detects that f is a staircase, for example because it rounds internally, and that the small steps of the differences
 * have missed the stairs. Then s->error is increased. Between its stairs f is flat or smooth, so over the large
 * distance `far` it rises by more than the integral of its slopes (excess_rise). Two conditions are required:
 * - the excess per unit of distance is at least half of `off`, the difference between slope and gradient;
 * - bisection shows that the excess occurs at one point. At a kink, or where f bends too much for two slopes, the
 *   excess would shrink with the interval.
 *
 * A single stair about as large as f itself is not taken as rounding, but as a property of f. */
static tg_status check_staircase(tg_diff *d, int part, int64_t i, double off, double far, tg_slope *s) {
    double step = s->step / 512, from = 0, to = far, all = 0, rise, half[2];
    tg_change there;
    tg_status status = tg_diff_change(d, part, i, far, &there);
    if (status == TG_OK) status = excess_rise(d, part, i, from, to, step, &all);
    double missed = fabs(all / far);
    if (status != TG_OK || !(missed >= off / 2 && isfinite(missed))) return status;
    for (rise = all; fabs(to - from) > s->step / 64;) {
        double middle = (from + to) / 2;
        status = excess_rise(d, part, i, from, middle, step, &half[0]);
        if (status == TG_OK) status = excess_rise(d, part, i, middle, to, step, &half[1]);
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

/* Detects a kink at the point itself that the steps of the slope do not show, because they reach across something
 * nearby. Several smaller steps must all show the kink. Called only if the error of the slope exceeds the tolerance. */
static tg_status check_hidden_kink(tg_diff *d, int part, int64_t i, tg_slope *s) {
    for (int k = 9; k <= 15; k += 3) {
        tg_slope near;
        tg_status status = tg_diff_window(d, part, i, ldexp(s->step, -k), &near);
        if (status != TG_OK || !near.kink || near.jump != 0) return status;
    }
    s->kink = true;
    return TG_OK;
}

tg_status tg_diff_confirm(tg_diff *d, int part, int64_t i, double got, tg_slope *s) {
    const tg_diff_part *p = &d->parts[part];
    double size = i >= 0 ? fmax(1, fabs(d->x[p->at + i])) : 1; /* steps must be small relative to this size */
    double reach = i >= 0 ? size : fmax(1, tg_diff_largest(d->x + p->at, p->n));
    tg_status status = try_other_steps(d, part, i, got, s);
    if (status == TG_OK && s->error < fabs(got - s->value)) status = check_rounding(d, part, i, size, s);
    double off = fabs(got - s->value);
    for (int k = 7; k <= (i >= 0 ? 10 : 16) && status == TG_OK; k += 3) /* near to far, on both sides */
        for (int side = -1; side <= 1 && status == TG_OK && s->error < off; side += 2)
            status = check_staircase(d, part, i, off, side * fmin(ldexp(s->step, k), reach / 8), s);
    if (status == TG_OK && s->error < off && s->error > d->atol + d->rtol * fabs(s->value))
        status = check_hidden_kink(d, part, i, s);
    return status;
}
