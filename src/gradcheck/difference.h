/* Finite differences of a function of n doubles with m results, and their comparison with a gradient. It knows neither
 * tensors nor tapes: gradcheck.c and gradcheck_fn.c give it theirs. */
#ifndef TG_DIFFERENCE_H
#define TG_DIFFERENCE_H

#include <string.h>

#include <tapegrad/gradcheck.h>

/* One input: x[at] to x[at + n - 1]. */
typedef struct tg_diff_part {
    int64_t at, n;
    tg_shape shape;
    char name[128]; /* "input 0, w f64[3, 4]" */
} tg_diff_part;

typedef struct tg_diff {
    /* y[m] = f(x[n]), x as this struct has it; since the last call only part `moved` has changed. */
    tg_status (*value)(struct tg_diff *d, int moved, double *y);
    /* gx[n], the gradient for cotangent gy[m] by backward, at x: for a moment, while differences are taken. */
    tg_status (*gradient)(struct tg_diff *d, const double *gy, double *gx);
    void *self;
    const char *name;
    double eps, atol, rtol;
    int tries; /* step sizes: 1 is eps alone, else each half of the last until one is good enough */
    int projections;
    bool extras, strict, taped;
    bool computes_nan; /* a gradient that is not finite is so wherever it goes */
    uint64_t seed;
    int64_t n, m;
    int n_parts;
    tg_diff_part *parts;
    double *x, *gx;    /* [n]: the point, and the gradient there by backward */
    double *gy, *y;    /* [m]: the cotangent, and f(x) */
    double *moved;     /* [m]: f beside x */
    double *origin;    /* [n]: x, while it moves */
    double *direction; /* [n] */
    double *weight;    /* [m]: |gy| of the outputs that the coordinate at hand has been seen to move; else 0 */
    double *claim;     /* [n]: the gradient of some outputs alone */
    double *got, *expected; /* [pairs of the largest part] */
    int64_t seen; /* pairs of which one is not below atol */
    char left_out[640]; /* the first elements of which nothing can be told, or that are at a kink */
    tg_gradcheck_info *result;
} tg_diff;

/* A derivative along a coordinate or direction. */
typedef struct tg_slope {
    double value, error, step;
    double noise; /* of the error, what rounding of the results explains */
    double torn; /* how far one-sided differences are apart, where not as at a kink */
    bool kink;   /* the one-sided derivatives differ at every step size */
} tg_slope;

/* The options with their defaults in place; false where one makes no sense, and what says why. */
bool tg_diff_options(tg_diff *d, const tg_gradcheck_opts *opts, const char **what);
/* Doubles that the arrays take together, or -1 when the number of bytes overflows; and the arrays cut from so many. */
int64_t tg_diff_room(const tg_diff *d);
void tg_diff_arrays(tg_diff *d, double *room);
void tg_diff_cotangent(tg_diff *d); /* gy, at random */

/* What a step changes: sum(gy (f(x + s) - f(x))), and how far rounding of the outputs that depend on it may move that.
 * Along coordinate i of a part, or the direction in d where i < 0; d->weight learns which outputs it moves. */
typedef struct tg_change {
    double sum, noise;
} tg_change;
tg_status tg_diff_change(tg_diff *d, int part, int64_t i, double s, tg_change *out);
/* The derivative of sum(gy f). */
tg_status tg_diff_slope(tg_diff *d, int part, int64_t i, tg_slope *out);
/* The same by steps h, 2h and 4h alone. */
tg_status tg_diff_window(tg_diff *d, int part, int64_t i, double h, tg_slope *out);
/* Before `got` is called wrong: raises the error where other steps contradict the slope, or f is not smooth there. */
tg_status tg_diff_confirm(tg_diff *d, int part, int64_t i, double got, tg_slope *s);
/* Compares gx with differences for every part; the result says what was found. */
tg_status tg_diff_compare(tg_diff *d);
/* Why `n` pairs of got and expected differ, as far as the numbers tell: the class, and in buf what it is. */
const char *tg_diff_cause(tg_diff *d, int part, int64_t n, int64_t worst, char *buf, size_t size);
/* Records a failure that is no wrong number: the first one is kept. */
void tg_diff_fail(tg_diff *d, const char *cause, const char *format, ...) TG_PRINTF(3, 4);
/* "input 0, w f64[3, 4], element [2, 1]", for element k of a part. */
void tg_diff_place(const tg_diff *d, int part, int64_t k, char *buf, size_t size);
/* As snprintf; what does not fit is cut. */
void tg_diff_say(char *buf, size_t size, const char *format, ...) TG_PRINTF(3, 4);
double tg_diff_largest(const double *v, int64_t n); /* magnitude; NaN where one is */

#endif
