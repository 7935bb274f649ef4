/* Compares a gradient with numerical derivatives, element by element or along random directions, and reports the
 * result. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "catalog/sample_values.h"
#include "gradcheck/difference.h"

void tg_diff_say(char *buf, size_t size, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    vsnprintf(buf, size, format, ap);
    va_end(ap);
}

/* What was found about the pairs (gradient, difference) of one part. */
typedef struct tally {
    int64_t wrong;        /* number of wrong pairs */
    int64_t worst;        /* the wrong pair with the largest excess */
    double excess;        /* of that pair: (|gradient - difference| - error) / tolerance */
    double error;         /* of that pair: the estimated error of the difference */
    bool confirmed;       /* a pair was still wrong after tg_diff_confirm */
} tally;

void tg_diff_place(const tg_diff *d, int part, int64_t k, char *buf, size_t size) {
    const tg_diff_part *p = &d->parts[part];
    size_t at = (size_t)snprintf(buf, size, "%s, element [", p->name);
    int64_t index[TG_MAX_DIMS];
    for (int i = (int)p->shape.ndim - 1; i >= 0; k /= p->shape.dim[i], i--) index[i] = k % p->shape.dim[i];
    for (int i = 0; i < p->shape.ndim && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%lld", i ? ", " : "", (long long)index[i]);
    if (at < size) snprintf(buf + at, size - at, "]");
}

/* Writes the place of pair k, which is an element or a direction. */
static void say_place(const tg_diff *d, int part, int64_t k, char *buf, size_t size) {
    if (!d->projections)
        tg_diff_place(d, part, k, buf, size);
    else
        tg_diff_say(buf, size,
                    "%s, direction %lld (%s)", d->parts[part].name, (long long)k, k % 2 ? "Gaussian" : "signs");
}

/* Records the failure of a part whose tally has wrong pairs. */
static void report(tg_diff *d, int part, int64_t n, const tally *t) {
    char place[320], cause[256];
    double got = d->got[t->worst], expected = d->expected[t->worst];
    say_place(d, part, t->worst, place, sizeof place);
    if (d->result->failed) return; /* the first failure is kept */
    const char *class = tg_diff_cause(d, part, n, t->worst, cause, sizeof cause);
    double tolerance = d->atol + d->rtol * fabs(expected);
    tg_diff_fail(d, class, "%s: backward gives %.12g, differences %.12g +- %.1e (tolerance %.1e); %lld of %lld %s "
                 "wrong. Likely cause: %s", place, got, expected, t->error, tolerance, (long long)t->wrong,
                 (long long)n, d->projections ? "directions" : "elements", cause);
}

/* Adds a pair that could not be compared, and the reason, to the text d->left_out if it fits. */
static void list_left_out(tg_diff *d, int part, int64_t k, const tg_slope *s) {
    size_t at = strlen(d->left_out), size = sizeof d->left_out;
    char place[320], why[96] = "at a kink";
    if (!s->kink && isfinite(s->error))
        snprintf(why, sizeof why, "differences %.6g +- %.1e, tolerance %.1e", s->value, s->error,
                 d->atol + d->rtol * fabs(s->value));
    else if (!s->kink)
        snprintf(why, sizeof why, "not finite around this point");
    say_place(d, part, k, place, sizeof place);
    if (at + strlen(place) + strlen(why) + 8 > size) return;
    snprintf(d->left_out + at, size - at, "%s%s: %s", at ? "; " : "", place, why);
}

/* Counts a pair at a kink. The first one is listed. */
static tg_status count_kink(tg_diff *d, int part, int64_t k, const tg_slope *s) {
    if (!d->result->kinks++) list_left_out(d, part, k, s);
    return TG_OK;
}

/* Judges one pair. A pair at a kink whose gradient is finite is only counted. Of any other pair the gradient is wrong
 * if its distance from the numerical derivative exceeds the derivative's error by more than the tolerance. It is right
 * if they agree within the tolerance and the error is at most the tolerance. Otherwise the pair is unsure. The expected
 * value of a pair that is unsure or at a kink stays NaN, so that no cause is derived from it. */
static tg_status judge(tg_diff *d, int part, int64_t k, double got, tg_slope *s, tally *t) {
    tg_gradcheck_info *r = d->result;
    double tolerance = d->atol + d->rtol * fabs(s->value), off = fabs(got - s->value);
    d->got[k] = got;
    d->expected[k] = NAN;
    r->checked++;
    if (s->kink && isfinite(got)) return count_kink(d, part, k, s);
    bool wrong = isfinite(s->error) && !(off - s->error <= tolerance);
    /* Pairs that seem wrong are verified until one pair of the part is confirmed to be wrong. After that only pairs are
     * verified that differ by less than a tenth of the gradient, because so small a difference may come from an error
     * that was estimated too small. */
    if (wrong && isfinite(got) && (!t->confirmed || off < 0.1 * fabs(got))) {
        tg_status status = tg_diff_confirm(d, part, d->projections ? -1 : k, got, s);
        if (status != TG_OK) return status;
        if (s->kink) return count_kink(d, part, k, s);
        tolerance = d->atol + d->rtol * fabs(s->value);
        off = fabs(got - s->value);
        wrong = off - s->error > tolerance;
        t->confirmed |= wrong;
    }
    if (!wrong && (!isfinite(s->error) || s->error > tolerance || off > tolerance)) {
        if (r->unsure++ < 3) list_left_out(d, part, k, s);
        return TG_OK;
    }
    d->expected[k] = s->value;
    d->n_significant += !(fmax(fabs(got), fabs(s->value)) < d->atol);
    double ratio = off == 0 ? 0 : off <= INFINITY ? off / tolerance : INFINITY;
    double excess = off <= INFINITY ? (off - s->error) / tolerance : INFINITY;
    if (ratio > r->worst) r->worst = ratio;
    if (!wrong) return TG_OK;
    if (!t->wrong++ || excess > t->excess) {
        t->worst = k;
        t->excess = excess;
        t->error = s->error;
    }
    return TG_OK;
}

static tg_status compare_elements(tg_diff *d, int part, tally *t) {
    const tg_diff_part *p = &d->parts[part];
    for (int64_t i = 0; i < p->n; i++) {
        tg_slope s;
        tg_status status = tg_diff_slope(d, part, i, &s);
        if (status == TG_OK) status = judge(d, part, i, d->gx[p->at + i], &s, t);
        if (status != TG_OK) return status;
    }
    return TG_OK;
}

/* Compares along random directions: vectors of signs and Gaussian vectors in turn. */
static tg_status compare_directions(tg_diff *d, int part, tally *t) {
    const tg_diff_part *p = &d->parts[part];
    uint64_t state = d->seed ^ 0xD1B54A32D192ED03u * (uint64_t)(part + 1);
    for (int k = 0; k < d->projections && p->n; k++) {
        double dot = 0;
        for (int64_t i = p->at; i < p->at + p->n; i++) {
            double number = tg_sample_normal(&state);
            d->direction[i] = k % 2 ? number : number < 0 ? -1 : 1;
            dot += d->direction[i] * d->gx[i];
        }
        tg_slope s;
        tg_status status = tg_diff_slope(d, part, -1, &s);
        if (status == TG_OK) status = judge(d, part, k, dot, &s, t);
        if (status != TG_OK) return status;
    }
    return TG_OK;
}

/* Reports how many pairs were left out, and the first of them. The check fails if nothing could be compared and at
 * least one pair is unsure. With d->strict it fails if any pair is unsure, or if there are pairs and none could be
 * compared. */
static void say_left_out(tg_diff *d) {
    tg_gradcheck_info *r = d->result;
    char kinks[160] = "", unsure[160] = "";
    if (r->failed || !(r->kinks + r->unsure)) return;
    const char *things = d->projections ? "directions" : "elements";
    if (r->kinks)
        tg_diff_say(kinks, sizeof kinks,
                    "%lld of %lld %s are at a kink and were left out: the one-sided differences disagree. ",
                    (long long)r->kinks, (long long)r->checked, things);
    if (r->unsure)
        tg_diff_say(unsure, sizeof unsure,
                    "%lld of %lld %s could not be checked: the differences are not precise enough there. ",
                    (long long)r->unsure, (long long)r->checked, things);
    bool all = r->unsure + r->kinks == r->checked;
    r->failed = d->strict ? r->unsure || all : r->unsure && all;
    if (r->failed) r->cause = "unknown";
    tg_diff_say(r->report, sizeof r->report, "%s: %s%sThe first: %s", d->name, unsure, kinks, d->left_out);
}

/* Reports that no compared value reaches the absolute tolerance, so that gradients of 0 would have passed. */
static void say_inconclusive(tg_diff *d) {
    tg_gradcheck_info *r = d->result;
    size_t at = strlen(r->report);
    if (r->failed || d->n_significant || d->atol == 0 || r->kinks + r->unsure == r->checked) return;
    r->inconclusive = true;
    tg_diff_say(r->report + at, sizeof r->report - at,
                "%s%s: no gradient reaches atol, %g, so a gradient of 0 would have passed too. Scale the function, "
                "or use a smaller atol",
                at ? ". " : "", d->name, d->atol);
}

tg_status tg_diff_compare(tg_diff *d) {
    *d->left_out = 0;
    d->n_significant = 0;
    memcpy(d->origin, d->x, (size_t)d->n * sizeof *d->x);
    tg_status status = d->value(d, -1, d->y);
    for (int part = 0; part < d->n_parts && status == TG_OK; part++) {
        tally t = {0};
        status = d->projections ? compare_directions(d, part, &t) : compare_elements(d, part, &t);
        if (status == TG_OK && t.wrong) report(d, part, d->projections ? d->projections : d->parts[part].n, &t);
    }
    if (status == TG_OK) say_left_out(d);
    if (status == TG_OK) say_inconclusive(d);
    return status;
}
