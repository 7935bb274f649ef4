/* Numerical derivatives: central differences at three step sizes, extrapolated to none (Richardson; Press et al.,
 * Numerical Recipes, section 5.7). The spread of the extrapolation is the error estimate. */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "autograd/difference.h"

/* ---- Random numbers ---- */

uint64_t tg_diff_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double tg_diff_uniform(uint64_t *state) { return ((double)(tg_diff_random(state) >> 11) + 0.5) * 0x1p-53; }

double tg_diff_normal(uint64_t *state) {
    double r = sqrt(-2 * log(tg_diff_uniform(state)));
    return r * cos(6.283185307179586 * tg_diff_uniform(state));
}

double tg_diff_largest(const double *v, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n && !isnan(most); i++)
        if (!(fabs(v[i]) <= most)) most = fabs(v[i]);
    return most;
}

/* ---- Options and memory ---- */

/* 0: the default; TG_NONE: none. */
static double tolerance(double given, double usual) { return given == 0 ? usual : given == TG_NONE ? 0 : given; }

/* What is wrong with the size that the caller's struct begins with, or NULL. */
static const char *wrong_size(size_t size) {
    if (size < sizeof size) return "the options' size is 0; TG_GRADCHECK, or tg_struct_init, sets it";
    if (size <= sizeof(tg_gradcheck_opts)) return NULL;
    return "the options' size is larger than this library knows: a later version's, or never set";
}

bool tg_diff_options(tg_diff *d, const tg_gradcheck_opts *given, const char **what) {
    tg_gradcheck_opts o = {0};
    *what = given ? wrong_size(given->size) : NULL;
    if (*what) return false;
    if (given) memcpy(&o, given, given->size);
    d->name = o.name ? o.name : "function";
    d->eps = o.eps == 0 ? 1e-6 : o.eps;
    d->atol = tolerance(o.atol, 1e-5);
    d->rtol = tolerance(o.rtol, 1e-3);
    d->projections = o.projections;
    d->extras = !o.no_extras;
    d->seed = o.seed;
    d->tries = 1;
    *what = !(d->eps > 0 && d->eps <= 1) ? "eps: expected a step in (0, 1]"
            : !(d->atol >= 0 && d->rtol >= 0 && isfinite(d->atol + d->rtol))
                ? "atol and rtol: expected finite numbers, 0 or more"
            : o.projections < 0 ? "projections: expected 0 or more"
                                : NULL;
    return !*what;
}

static int64_t pairs(const tg_diff *d) {
    int64_t most = d->projections;
    for (int i = 0; i < d->n_parts; i++)
        if (d->parts[i].n > most) most = d->parts[i].n;
    return most;
}

int64_t tg_diff_room(const tg_diff *d) {
    const int64_t most = INT64_MAX / 128;
    return d->n > most || d->m > most ? -1 : 4 * d->n + 3 * d->m + 2 * pairs(d);
}

void tg_diff_arrays(tg_diff *d, double *room) {
    double **of_n[] = {&d->x, &d->gx, &d->origin, &d->direction}, **of_m[] = {&d->gy, &d->y, &d->moved};
    for (size_t i = 0; i < sizeof of_n / sizeof *of_n; i++, room += d->n) *of_n[i] = room;
    for (size_t i = 0; i < sizeof of_m / sizeof *of_m; i++, room += d->m) *of_m[i] = room;
    d->got = room;
    d->expected = room + pairs(d);
}

void tg_diff_cotangent(tg_diff *d) {
    uint64_t state = d->seed;
    for (int64_t j = 0; j < d->m; j++) d->gy[j] = tg_diff_normal(&state);
}

void tg_diff_fail(tg_diff *d, const char *format, ...) {
    tg_gradcheck_result *r = d->result;
    if (r->failed) return;
    r->failed = true;
    int n = snprintf(r->report, sizeof r->report, "%s: ", d->name);
    if (n < 0 || (size_t)n >= sizeof r->report) return;
    va_list ap;
    va_start(ap, format);
    vsnprintf(r->report + n, sizeof r->report - (size_t)n, format, ap);
    va_end(ap);
}

/* ---- Slopes ---- */

/* sum(gy (f(x + s) - f(x))) along the coordinate or direction. */
static tg_status change(tg_diff *d, int part, int64_t i, double s, double *out) {
    const tg_diff_part *p = &d->parts[part];
    if (i >= 0) {
        d->x[p->at + i] = d->origin[p->at + i] + s;
    } else {
        for (int64_t k = p->at; k < p->at + p->n; k++) d->x[k] = d->origin[k] + s * d->direction[k];
    }
    tg_status status = d->value(d, part, d->moved);
    memcpy(d->x + p->at, d->origin + p->at, (size_t)p->n * sizeof *d->x);
    double sum = 0, lost = 0; /* Kahan's: a sum over many outputs must not drown one coordinate's change */
    for (int64_t j = 0; j < d->m; j++) {
        double term = d->gy[j] * (d->moved[j] - d->y[j]) - lost, next = sum + term;
        lost = next - sum - term;
        sum = next;
    }
    *out = sum;
    return status;
}

/* The slope by steps h, 2h and 4h. For a smooth f the jump J(s) between the one-sided differences shrinks as s does, so
 * that 2 J(s) - J(2s) is next to nothing; at a kink it stays. */
static tg_status slope_at(tg_diff *d, int part, int64_t i, double h, tg_slope *out) {
    double central[3], jump[3];
    for (int k = 0; k < 3; k++) {
        double s = ldexp(h, k), up, down;
        tg_status status = change(d, part, i, s, &up);
        if (status == TG_OK) status = change(d, part, i, -s, &down);
        if (status != TG_OK) return status;
        central[k] = (up - down) / (2 * s);
        jump[k] = (up + down) / s;
    }
    double once = (4 * central[0] - central[1]) / 3, coarse = (4 * central[1] - central[2]) / 3;
    double noise = d->noise / h;
    out->value = once + (once - coarse) / 15;
    out->error = fabs(out->value - once) + 2 * noise;
    if (!isfinite(out->error)) out->error = INFINITY;
    double bound = d->atol + d->rtol * fabs(out->value) + 20 * noise;
    out->kink = fabs(2 * jump[0] - jump[1]) > bound || fabs(2 * jump[1] - jump[2]) > bound;
    return TG_OK;
}

tg_status tg_diff_slope(tg_diff *d, int part, int64_t i, tg_slope *out) {
    double scale = i >= 0 ? fabs(d->x[d->parts[part].at + i]) : 1;
    /* A power of two, so that x + h is exact. */
    double h = exp2(round(log2(d->eps * (scale > 1 ? scale : 1))));
    for (int k = 0; k < d->tries; k++, h /= 8) {
        tg_slope s;
        tg_status status = slope_at(d, part, i, h, &s);
        if (status != TG_OK) return status;
        if (k == 0 || (out->kink && !s.kink) || (out->kink == s.kink && s.error < out->error)) *out = s;
        if (!s.kink && s.error <= 0.05 * (d->atol + d->rtol * fabs(s.value))) break;
    }
    return TG_OK;
}
