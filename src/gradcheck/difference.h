/* Finite differences of a function f of n doubles with m results, and their comparison with a gradient. This part knows
 * no tensors and no tapes; gradcheck.c and gradcheck_fn.c connect it to a function of tensors or of doubles. */
#ifndef TG_DIFFERENCE_H
#define TG_DIFFERENCE_H

#include <string.h>

#include <tapegrad/gradcheck.h>

/* One input of the function: elements x[at] to x[at + n - 1]. */
typedef struct tg_diff_part {
    int64_t at, n;
    tg_shape shape;
    char name[128]; /* "input 0, w f64[3, 4]" */
} tg_diff_part;

typedef struct tg_diff {
    /* Computes y[m] = f(x[n]). The first call passes moved < 0. In later calls only part `moved` of x differs from its
     * values in the first call. */
    tg_status (*value)(struct tg_diff *d, int moved, double *y);
    /* Computes by backward the gradient gx[n] at x for the cotangent gy[m]. May be called between differences. */
    tg_status (*gradient)(struct tg_diff *d, const double *gy, double *gx);
    void *self;
    const char *name;
    double eps, atol, rtol;
    /* 1: a slope is that with the steps eps, 2 eps and 4 eps; else how many such sets of steps are tried at most, each
     * with half the steps of the previous. tg_diff_confirm uses other steps too. */
    int tries;
    int projections;
    bool extras, strict, second_order;
    bool computes_nan; /* true: backward computed the values that are not finite; false: it may not have written them */
    uint64_t seed;
    int64_t n, m;
    int n_parts;
    tg_diff_part *parts;
    double *x, *gx;    /* [n] the point, and the gradient there by backward */
    double *gy, *y;    /* [m] the cotangent, and f(x) */
    double *moved;     /* [m] f at the point of the last step */
    double *origin;    /* [n] copy of x, from which steps start */
    double *direction; /* [n] the direction of steps that go along no coordinate */
    /* [m] |gy| of each output that a step along the current coordinate has moved, or whose change rounding may hide; 0
     * for other outputs */
    double *weight;
    double *gx_unmoved; /* [n] gradient of only the outputs that have not moved */
    /* [pairs of the largest part] Pair k of the current part is the gradient got[k] and the difference expected[k] of
     * an element, or along a direction. expected[k] is NaN if the pair is unsure or at a kink. */
    double *got, *expected;
    int64_t n_significant; /* number of compared pairs in which a value reaches atol */
    char refused[96];      /* what tg_diff_options says of a wrong size */
    char left_out[640];    /* text that names the first elements that were not compared, and why */
    tg_gradcheck_info *result;
} tg_diff;

/* An estimate of the derivative of sum(gy f) along a coordinate or direction. */
typedef struct tg_slope {
    double value, error, step; /* the estimate, its estimated error, and the smallest step of its differences */
    double noise; /* the part of the error that rounding of the results explains */
    bool kink;    /* the one-sided differences on the two sides of the point disagree */
    double jump;  /* if kink: how much they disagree, if that changes with the step (so it may be no kink); else 0 */
} tg_slope;

/* Fills d from the options and their defaults (opts may be NULL). Returns false if one is invalid; *what says why,
 * and is valid as long as d. */
bool tg_diff_options(tg_diff *d, const tg_gradcheck_opts *opts, const char **what);
/* Returns how many doubles all arrays of d need together, or -1 if their bytes would overflow. */
int64_t tg_diff_doubles(const tg_diff *d);
/* Sets the array pointers of d to parts of `memory`, which has tg_diff_doubles doubles. */
void tg_diff_arrays(tg_diff *d, double *memory);
/* Fills gy with normal random numbers from d->seed. */
void tg_diff_cotangent(tg_diff *d);

/* The effect of a step s: the sum of gy (f(x + s) - f(x)) over all outputs, and how much rounding of the outputs that
 * have moved may change this sum. */
typedef struct tg_change {
    double sum, noise;
} tg_change;
/* Takes a step of size s along coordinate i of a part, or along d->direction if i < 0. Sets d->weight of the outputs
 * that it moves. */
tg_status tg_diff_change(tg_diff *d, int part, int64_t i, double s, tg_change *out);
/* Estimates the derivative of sum(gy f) along the coordinate or direction. Chooses the step size itself. */
tg_status tg_diff_slope(tg_diff *d, int part, int64_t i, tg_slope *out);
/* Estimates the same derivative with the steps h, 2h and 4h only. */
tg_status tg_diff_window(tg_diff *d, int part, int64_t i, double h, tg_slope *out);
/* Verifies a slope before the gradient `got` is reported as wrong. Increases s->error if other steps contradict the
 * slope, or if f is not smooth there. If f rounds internally, may replace *s by the slope with larger steps. Sets
 * s->kink if smaller steps find a kink. */
tg_status tg_diff_confirm(tg_diff *d, int part, int64_t i, double got, tg_slope *s);
/* Compares gx with differences for every part, and fills d->result. */
tg_status tg_diff_compare(tg_diff *d);
/* Finds the likely reason why d->got differs from d->expected, which have n pairs. `worst` is the pair that differs
 * most. Returns the class of the cause (tg_gradcheck_info.cause) and writes a description to buf. */
const char *tg_diff_cause(tg_diff *d, int part, int64_t n, int64_t worst, char *buf, size_t size);
/* Records a failure in d->result. Only the first one is kept. */
void tg_diff_fail(tg_diff *d, const char *cause, const char *format, ...) TG_PRINTF(3, 4);
/* Writes the place of element k of a part, such as "input 0, w f64[3, 4], element [2, 1]". */
void tg_diff_place(const tg_diff *d, int part, int64_t k, char *buf, size_t size);
/* Calls vsnprintf and ignores its result: text that does not fit is cut off. */
void tg_diff_say(char *buf, size_t size, const char *format, ...) TG_PRINTF(3, 4);
double tg_diff_largest(const double *v, int64_t n); /* largest magnitude; NaN if an element is NaN */

/* Checks the size of the caller's info, which may be NULL. */
tg_status tg_gradcheck_info_check(tg_ctx *ctx, const tg_gradcheck_info *info, const char *who);
/* Copies what was found to the caller's info, as far as its size goes, and returns s. */
tg_status tg_gradcheck_info_give(tg_gradcheck_info *info, const tg_gradcheck_info *found, tg_status s);

#endif
