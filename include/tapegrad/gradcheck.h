/* Finite differences for anybody's function, ours or yours.
 *
 * Central differences in float64, per element or along random directions (Griewank and Walther, Evaluating
 * Derivatives, ch. 3; the projection as in HIPS autograd's test_util), extrapolated, with a step chosen for each and an
 * estimate of what is left as error. A gradient is wrong where it is further than that error and the tolerance together
 * from the differences. Where the error alone is more than the tolerance nothing can be told: that is counted as unsure
 * and said. A coordinate where the one-sided differences disagree is a kink: it is counted and left out, not failed.
 */
#ifndef TAPEGRAD_GRADCHECK_H
#define TAPEGRAD_GRADCHECK_H

#include <tapegrad/tapegrad.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_gradcheck_opts {
    size_t size;
    double eps;       /* step; 0: chosen for each element by the error that it leaves */
    double atol;      /* 0: 1e-5; TG_NONE: none */
    double rtol;      /* 0: 1e-3; TG_NONE: none */
    int projections;  /* > 0: so many random signed and Gaussian directions instead of every element */
    uint64_t seed;    /* of cotangents and directions */
    bool no_extras;   /* not determinism, zero, undefined and strided cotangents, backward twice, inputs unchanged */
    const char *name; /* in reports; NULL: "function" */
    bool strict;      /* unsure elements fail; without, only where there are no others */
} tg_gradcheck_opts;

#define TG_GRADCHECK(...) (&(tg_gradcheck_opts){.size = sizeof(tg_gradcheck_opts), __VA_ARGS__})

typedef struct tg_gradcheck_result {
    size_t size;
    int64_t checked, kinks, unsure; /* coordinates or directions; the last two are among the first */
    double worst; /* |analytic - numerical| / (atol + rtol |numerical|) of the worst one that can be told */
    bool failed;
    /* Of a failure its class, in a word. Of wrong numbers, as far as these tell: "sign", "factor", "zero", "unwritten",
     * "nan", "transpose", "places", "input", "sum", "scale", "term", "part", "independent", "formula"; of how backward
     * behaves: "overwrites", "adds", "writes", "zeros", "undefined", "layout", "unsteady"; "unknown" where nothing can
     * be told. NULL where nothing failed. */
    const char *cause;
    /* Of a failure: input, coordinate, both values, error estimate, likely cause. Else of what was left out, or "". */
    char report[1536];
} tg_gradcheck_result;

/* Checks fn's gradients for every float64 input that needs one, with random cotangents for every float output. in[] are
 * leaves of t's context; t is reset. TG_ERR_GRADIENT, with the report as the context's message, when one is wrong;
 * result (may be NULL) is filled either way. opts may be NULL. */
TG_API tg_status tg_gradcheck(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, int n_out,
                              const tg_gradcheck_opts *opts, tg_gradcheck_result *result);

/* A plain C function over doubles: writes f(x)'s m outputs to y; and a backward that writes gx[n] for the given
 * gy[m]. No context needed. result must not be NULL. */
typedef void (*tg_plain_fn)(void *state, const double *x, int64_t n, double *y, int64_t m);
typedef void (*tg_plain_grad)(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx);
TG_API tg_status tg_gradcheck_fn(tg_plain_fn fn, tg_plain_grad grad, void *state, const double *x, int64_t n, int64_t m,
                                 const tg_gradcheck_opts *opts, tg_gradcheck_result *result);

/* Runs one sample of an op (extend.h), its own tolerance applied. opts may be NULL. */
TG_API tg_status tg_gradcheck_op(tg_ctx *ctx, const tg_op *op, int sample, const tg_gradcheck_opts *opts,
                                 tg_gradcheck_result *result);

#ifdef __cplusplus
}
#endif

#endif
