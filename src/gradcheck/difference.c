/* Numerical derivatives. Central differences with the steps s, 2s and 4s are extrapolated to step 0 (Richardson).
 * The spread of the extrapolation is the error estimate by which the step s is chosen (Ridders; Press et al.,
 * Numerical Recipes, 5.7). */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/options.h"
#include "catalog/sample_values.h"
#include "gradcheck/difference.h"

/* How often the first step h is halved or doubled at most. Steps are h 2^k with k from -HALVINGS to DOUBLINGS + 2. */
enum { HALVINGS = 9, DOUBLINGS = 3, STEPS = HALVINGS + DOUBLINGS + 3 };

double tg_diff_largest(const double *v, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n && !isnan(most); i++)
        if (!(fabs(v[i]) <= most)) most = fabs(v[i]);
    return most;
}

/* ---- Options and memory ---- */

/* Returns an option: `usual` if it is TG_AUTO. */
static double given_or(double given, double usual) { return given == TG_AUTO ? usual : given; }

/* Returns what is wrong with the size at the start of the caller's options, or NULL. The text may be in d. */
static const char *wrong_size(tg_diff *d, size_t size) {
    if (size < sizeof size) {
        snprintf(d->refused, sizeof d->refused,
                 "the options' size is %zu; fill them with TG_GRADCHECK, tg_struct_fill or tg_make", size);
        return d->refused;
    }
    if (size <= sizeof(tg_gradcheck_opts)) return NULL;
    return "the options' size is larger than this library knows; they are of a later version, or their size was not "
           "set";
}

bool tg_diff_options(tg_diff *d, const tg_gradcheck_opts *given, const char **what) {
    tg_gradcheck_opts o;
    *what = given ? wrong_size(d, given->size) : NULL;
    if (*what) return false;
    tg_options_complete(&o, &tg_gradcheck_opts_struct, given);
    d->name = o.name ? o.name : "function";
    d->eps = given_or(o.eps, 0x1p-10);
    d->atol = given_or(o.atol, 1e-5);
    d->rtol = given_or(o.rtol, 1e-3);
    d->projections = o.projections;
    d->extras = !o.no_extras;
    d->seed = o.seed;
    d->tries = o.eps == TG_AUTO ? HALVINGS + 1 : 1;
    d->strict = o.strict;
    d->second_order = o.second_order;
    *what = !(d->eps > 0 && d->eps <= 1) ? "eps: expected a step in (0, 1]"
            : !(d->atol >= 0 && d->rtol >= 0 && isfinite(d->atol + d->rtol))
                ? "atol and rtol: expected finite numbers, 0 or more"
            : o.projections < 0 ? "projections: expected 0 or more"
                                : NULL;
    return !*what;
}

/* Returns how many pairs of gradient and difference the largest part has. */
static int64_t pairs(const tg_diff *d) {
    int64_t most = d->projections;
    for (int i = 0; i < d->n_parts; i++)
        if (d->parts[i].n > most) most = d->parts[i].n;
    return most;
}

int64_t tg_diff_doubles(const tg_diff *d) {
    const int64_t most = INT64_MAX / 128;
    return d->n > most || d->m > most ? -1 : 5 * d->n + 4 * d->m + 2 * pairs(d);
}

void tg_diff_arrays(tg_diff *d, double *memory) {
    double **of_n[] = {&d->x, &d->gx, &d->origin, &d->direction, &d->gx_unmoved};
    double **of_m[] = {&d->gy, &d->y, &d->moved, &d->weight};
    for (size_t i = 0; i < sizeof of_n / sizeof *of_n; i++, memory += d->n) *of_n[i] = memory;
    for (size_t i = 0; i < sizeof of_m / sizeof *of_m; i++, memory += d->m) *of_m[i] = memory;
    d->got = memory;
    d->expected = memory + pairs(d);
}

void tg_diff_cotangent(tg_diff *d) {
    uint64_t state = d->seed;
    for (int64_t j = 0; j < d->m; j++) d->gy[j] = tg_sample_normal(&state);
}

void tg_diff_fail(tg_diff *d, const char *cause, const char *format, ...) {
    tg_gradcheck_info *r = d->result;
    if (r->failed) return;
    r->failed = true;
    r->cause = cause;
    int n = snprintf(r->report, sizeof r->report, "%s: ", d->name);
    if (n < 0 || (size_t)n >= sizeof r->report) return;
    va_list ap;
    va_start(ap, format);
    vsnprintf(r->report + n, sizeof r->report - (size_t)n, format, ap);
    va_end(ap);
}

/* ---- Slopes ---- */

/* Half a unit in the last place of 1: the largest relative change of a result by rounding to nearest. */
#define ROUNDING 0x1p-53

tg_status tg_diff_change(tg_diff *d, int part, int64_t i, double s, tg_change *out) {
    const tg_diff_part *p = &d->parts[part];
    if (i >= 0) {
        d->x[p->at + i] = d->origin[p->at + i] + s;
    } else {
        for (int64_t k = p->at; k < p->at + p->n; k++) d->x[k] = d->origin[k] + s * d->direction[k];
    }
    tg_status status = d->value(d, part, d->moved);
    memcpy(d->x + p->at, d->origin + p->at, (size_t)p->n * sizeof *d->x);
    double sum = 0, lost = 0; /* Kahan summation, so that many outputs do not hide the change of one */
    out->noise = 0;
    for (int64_t j = 0; j < d->m; j++) {
        double term = d->gy[j] * (d->moved[j] - d->y[j]) - lost, next = sum + term;
        if (d->moved[j] != d->y[j]) d->weight[j] = fabs(d->gy[j]);
        out->noise += ROUNDING * d->weight[j] * (fabs(d->moved[j]) + fabs(d->y[j])) / 2;
        lost = next - sum - term;
        sum = next;
    }
    out->sum = sum;
    return status;
}

/* The differences with steps h 2^k along one coordinate or direction. A difference is computed when it is first needed.
 * A window consists of three differences, with the steps s, 2s and 4s. */
typedef struct step_table {
    tg_diff *d;
    int part;
    int64_t i;
    double h;
    struct {
        bool computed;
        double central, jump, noise; /* jump: difference of the one-sided differences */
    } entry[STEPS];                  /* entry[k + HALVINGS]: step h 2^k */
} step_table;

/* Computes the differences with the step h 2^k, unless they are computed already. */
static tg_status need_step(step_table *t, int k) {
    double s = ldexp(t->h, k);
    tg_change up, down;
    if (t->entry[k + HALVINGS].computed) return TG_OK;
    tg_status status = tg_diff_change(t->d, t->part, t->i, s, &up);
    if (status == TG_OK) status = tg_diff_change(t->d, t->part, t->i, -s, &down);
    if (status != TG_OK) return status;
    t->entry[k + HALVINGS].computed = true;
    t->entry[k + HALVINGS].central = (up.sum - down.sum) / (2 * s);
    t->entry[k + HALVINGS].jump = (up.sum + down.sum) / s;
    t->entry[k + HALVINGS].noise = (up.noise + down.noise) / (2 * s);
    return TG_OK;
}

static double tolerance_at(const tg_diff *d, double value) { return d->atol + d->rtol * fabs(value); }

/* Estimates the slope with the steps s, 2s and 4s, where s = h 2^k. The jump J(s) is the difference of the two
 * one-sided differences with step s. For a smooth f it is proportional to s, so 2 J(s) - J(2s) is almost 0. At a kink
 * J(s) does not shrink with s, and is the same for s and 2s. */
static tg_status window(step_table *t, int k, tg_slope *out) {
    for (int j = k + 2; j >= k; j--) { /* largest step first: the outputs that it moves count in the noise of all */
        tg_status status = need_step(t, j);
        if (status != TG_OK) return status;
    }
    const double c[3] = {t->entry[k + HALVINGS].central, t->entry[k + 1 + HALVINGS].central,
                         t->entry[k + 2 + HALVINGS].central};
    const double jump[3] = {t->entry[k + HALVINGS].jump, t->entry[k + 1 + HALVINGS].jump,
                            t->entry[k + 2 + HALVINGS].jump};
    double once = (4 * c[0] - c[1]) / 3, coarse = (4 * c[1] - c[2]) / 3, noise = t->entry[k + HALVINGS].noise;
    /* J also measures noise: J(s) = s f2 + s^3 f4 / 12 + .., with even derivatives of f. This combination leaves
     * only terms of order s^5 and noise. */
    double even = (2 * jump[0] - jump[1]) - (2 * jump[1] - jump[2]) / 8;
    out->step = ldexp(t->h, k);
    out->value = once + (once - coarse) / 15;
    out->noise = 2 * noise;
    out->error = fabs(out->value - once) + fabs(even) + out->noise;
    if (!isfinite(out->error)) out->error = INFINITY;
    double bound = tolerance_at(t->d, out->value) + 20 * noise;
    double stays = fabs(2 * jump[0] - jump[1]), stayed = fabs(2 * jump[1] - jump[2]);
    out->kink = stays > bound || stayed > bound;
    /* A jump that changes with the step is no kink. It is noise, or comes from something near the point that the steps
     * reach across. */
    double most = fmax(stays, stayed), changes = fabs(2 * jump[0] - 3 * jump[1] + jump[2]);
    out->jump = out->kink && !(changes <= bound + 0.25 * most) ? most : 0;
    return TG_OK;
}

/* Returns whether the estimate is much better than the tolerance, so that no other steps are needed. */
static bool good(const tg_diff *d, const tg_slope *s) {
    return !s->kink && s->error <= 0.05 * tolerance_at(d, s->value);
}

/* Sets *last to the slope of the window at k, and copies it to *out if it is better than the slope there. */
static tg_status try_window(step_table *t, int k, tg_slope *out, tg_slope *last) {
    tg_status status = window(t, k, last);
    if (status == TG_OK && ((out->kink && !last->kink) || (out->kink == last->kink && last->error < out->error)))
        *out = *last;
    return status;
}

/* Chooses the window with the smallest error estimate. Large steps give the most digits of a smooth function, and small
 * steps do not reach across kinks near the point. So the steps are halved until the estimate is good or becomes much
 * worse. If it is not good then, because of noise and not of a kink, larger steps are tried. */
static tg_status best_window(step_table *t, tg_slope *out) {
    tg_slope last = {0};
    tg_status status = window(t, 0, out);
    for (int k = -1; k > -t->d->tries && status == TG_OK && !good(t->d, out); k--) {
        status = try_window(t, k, out, &last);
        if (!last.kink && !out->kink && last.error > 16 * out->error) break;
    }
    for (int k = 1; t->d->tries > 1 && k <= DOUBLINGS && status == TG_OK && !out->kink && !good(t->d, out); k++)
        status = try_window(t, k, out, &last);
    return status;
}

/* Returns the nearest power of two, so that adding the step to x is exact. */
static double power_of_two(double h) { return exp2(round(log2(h))); }

tg_status tg_diff_window(tg_diff *d, int part, int64_t i, double h, tg_slope *out) {
    step_table t = {.d = d, .part = part, .i = i, .h = h};
    return window(&t, 0, out);
}

/* Estimates the slope with the best window. Noise is counted for the outputs that have a weight already or get one
 * during this call. size: magnitude of x, to which the steps are relative. */
static tg_status measure(tg_diff *d, int part, int64_t i, double size, tg_slope *out) {
    step_table t = {.d = d, .part = part, .i = i, .h = power_of_two(d->eps * (size > 1 ? size : 1))};
    tg_status status = best_window(&t, out);
    /* f may end or have a kink at 0. If x is close to 0, then only a step that is small relative to x can help. */
    if (status == TG_OK && d->tries > 1 && size > 0 && size < 0x1p-6 && !good(d, out)) {
        double near = power_of_two(d->eps * size);
        tg_slope s;
        if (near > 0) status = tg_diff_window(d, part, i, near, &s);
        if (near > 0 && status == TG_OK && !s.kink && s.error <= tolerance_at(d, s.value)) *out = s;
    }
    if (status == TG_OK && out->kink && out->jump != 0) {
        out->kink = false;
        out->error = isfinite(out->jump) ? out->error + out->jump : INFINITY;
    }
    return status;
}

/* ---- Changes that rounding hides ---- */

/* Returns how much rounding may change the weighted sum of the outputs that have not moved. */
static double hidden(const tg_diff *d) {
    double sum = 0;
    for (int64_t j = 0; j < d->m; j++)
        if (d->weight[j] == 0) sum += 2 * ROUNDING * fabs(d->gy[j] * d->y[j]);
    return sum;
}

/* Runs backward to find whether, according to it, outputs that have not moved depend on the coordinate or direction. */
static tg_status backward_depends(tg_diff *d, int part, int64_t i, bool *depends) {
    const tg_diff_part *p = &d->parts[part];
    double sum = 0;
    for (int64_t j = 0; j < d->m; j++) d->moved[j] = d->weight[j] == 0 ? d->gy[j] : 0;
    tg_status status = d->gradient(d, d->moved, d->gx_unmoved);
    for (int64_t k = 0; k < p->n && i < 0; k++) sum += fabs(d->direction[k + p->at] * d->gx_unmoved[k + p->at]);
    *depends = i >= 0 ? d->gx_unmoved[p->at + i] != 0 : sum != 0;
    return status;
}

/* Finds outputs whose change rounding may hide, and gives them a weight, so that their noise counts. Sets *found to
 * whether there are such outputs.
 *
 * An output that no step has moved usually does not depend on the coordinate, and then its rounding adds no noise.
 * But if it is so large that rounding could hide a change, a larger step is taken: an output that moves then depends
 * on the coordinate. If backward says that an output depends on it although nothing moved, that can be neither
 * confirmed nor refuted, so its noise counts too. */
static tg_status find_hidden(tg_diff *d, int part, int64_t i, double size, bool *found) {
    double before = hidden(d);
    tg_change c;
    tg_status status = tg_diff_change(d, part, i, size, &c);
    if (status == TG_OK) status = tg_diff_change(d, part, i, -size, &c);
    bool depends = false;
    if (status == TG_OK && hidden(d) > 0) status = backward_depends(d, part, i, &depends);
    for (int64_t j = 0; j < d->m && depends; j++) d->weight[j] = fabs(d->gy[j]);
    *found = hidden(d) < before;
    return status;
}

tg_status tg_diff_slope(tg_diff *d, int part, int64_t i, tg_slope *out) {
    double size = i >= 0 ? fabs(d->x[d->parts[part].at + i]) : 1;
    bool found = false;
    memset(d->weight, 0, (size_t)d->m * sizeof *d->weight);
    tg_status status = measure(d, part, i, size, out);
    if (status != TG_OK || !(hidden(d) / out->step > 0.05 * tolerance_at(d, out->value))) return status;
    status = find_hidden(d, part, i, size > 1 ? size : 1, &found);
    return status == TG_OK && found ? measure(d, part, i, size, out) : status;
}
