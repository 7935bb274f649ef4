/* tg_gradcheck_fn: checks a plain C function over doubles and its gradient. There is no context, so memory comes
 * from the C library. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradcheck/difference.h"

typedef struct plain {
    tg_diff d;
    tg_plain_fn fn;
    tg_plain_grad_fn grad;
    void *state;
    tg_diff_part part;
} plain;

static tg_status value(tg_diff *d, int moved, double *y) {
    const plain *p = d->self;
    (void)moved;
    p->fn(p->state, d->x, d->n, y, d->m);
    return TG_OK;
}

static tg_status gradient_for(tg_diff *d, const double *gy, double *gx) {
    const plain *p = d->self;
    for (int64_t i = 0; i < d->n; i++) gx[i] = NAN;
    p->grad(p->state, d->x, d->n, gy, d->m, gx);
    return TG_OK;
}

/* Returns the gradient for gy. It is in d.direction, which is unused before differences are taken. Elements that the
 * caller's backward does not write are NaN. */
static double *gradient(plain *p, const double *gy) {
    gradient_for(&p->d, gy, p->d.direction);
    return p->d.direction;
}

static bool same_bits(const double *a, const double *b, int64_t n) {
    return n == 0 || !memcmp(a, b, (size_t)n * sizeof *a);
}

/* Checks that equal calls give equal bits, and that a cotangent of zeros gives zeros. */
static void check_extras(plain *p) {
    tg_diff *d = &p->d;
    value(d, -1, d->y);
    value(d, -1, d->moved);
    if (!same_bits(d->y, d->moved, d->m))
        tg_diff_fail(d, "unsteady", "two calls with the same x give different results");
    if (!same_bits(gradient(p, d->gy), d->gx, d->n))
        tg_diff_fail(d, "unsteady", "a second backward gives a different gradient");
    if (!isfinite(tg_diff_largest(d->gx, d->n))) return; /* the comparison with differences reports it */
    memset(d->moved, 0, (size_t)d->m * sizeof *d->moved);
    const double *zero = gradient(p, d->moved);
    for (int64_t i = 0; i < d->n; i++)
        if (zero[i] != 0) {
            tg_diff_fail(d, "zeros", "x, element [%lld]: a cotangent of zeros gives the gradient %g, expected 0",
                         (long long)i, zero[i]);
            return;
        }
}

/* Returns whether x has not changed; if it has, records a failure. */
static bool kept(plain *p, const double *x) {
    if (same_bits(p->d.x, x, p->d.n)) return true;
    tg_diff_fail(&p->d, "writes", "the function or its backward writes into x");
    return false;
}

static void check(plain *p, const double *x) {
    tg_diff *d = &p->d;
    if (d->n) memcpy(d->x, x, (size_t)d->n * sizeof *x); /* x may be NULL if n is 0 */
    tg_diff_cotangent(d);
    memcpy(d->gx, gradient(p, d->gy), (size_t)d->n * sizeof *x);
    if (!kept(p, x)) return;
    if (d->extras) check_extras(p);
    if (kept(p, x)) tg_diff_compare(d);
}

/* Returns what is wrong with the arguments, or NULL. */
static const char *refused(plain *p, const double *x, int64_t n, int64_t m, const tg_gradcheck_opts *opts) {
    const char *what;
    if (!p->fn || !p->grad) return "the function or its gradient is NULL";
    if (n < 0 || m < 0 || (n && !x)) return "expected n and m of 0 or more, and x that is not NULL";
    if (!tg_diff_options(&p->d, opts, &what)) return what;
    return p->d.second_order ? "second_order: a plain function records no ops; use tg_gradcheck" : NULL;
}

static tg_status check_plain(tg_plain_fn fn, tg_plain_grad_fn grad, void *state, const double *x, int64_t n, int64_t m,
                             tg_gradcheck_info *found, const tg_gradcheck_opts *opts) {
    plain p = {
        .d = {.value = value, .gradient = gradient_for, .n = n, .m = m, .n_parts = 1, .result = found},
        .fn = fn, .grad = grad, .state = state};
    p.part = (tg_diff_part){.n = n, .shape = {.ndim = 1, .dim = {n}}, .name = "x"};
    p.d.parts = &p.part;
    p.d.self = &p;
    const char *what = refused(&p, x, n, m, opts);
    if (what) {
        snprintf(found->report, sizeof found->report, "tg_gradcheck_fn: %s", what);
        return TG_ERR_ARGUMENT;
    }
    int64_t n_doubles = tg_diff_doubles(&p.d);
    double *arrays = n_doubles < 0 ? NULL : calloc((size_t)n_doubles + 1, sizeof *arrays);
    if (!arrays) {
        snprintf(found->report, sizeof found->report,
                 "tg_gradcheck_fn: out of memory for %lld inputs and %lld outputs", (long long)n, (long long)m);
        return TG_ERR_MEMORY;
    }
    tg_diff_arrays(&p.d, arrays);
    check(&p, x);
    free(arrays);
    return found->failed ? TG_ERR_GRADIENT : TG_OK;
}

tg_status tg_gradcheck_fn(tg_plain_fn fn, tg_plain_grad_fn grad, void *state, const double *x, int64_t n, int64_t m,
                          tg_gradcheck_info *info, const tg_gradcheck_opts *opts) {
    tg_gradcheck_info found = TG_GRADCHECK_INFO();
    if (!info || tg_gradcheck_info_check(NULL, info, "tg_gradcheck_fn") != TG_OK) return TG_ERR_ARGUMENT;
    return tg_gradcheck_info_give(info, &found, check_plain(fn, grad, state, x, n, m, &found, opts));
}
