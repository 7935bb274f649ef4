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

#include <tapegrad/op.h>

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
    bool strict;      /* unsure elements fail, and kinks where all are; without, unsure ones with no others but kinks */
    bool taped;       /* also the derivatives as taped ops (derivatives.h): tg_grad's with .create_graph and tg_jvp's
                         against backward, and second derivatives against differences. tg_gradcheck and _op alone */
} tg_gradcheck_opts;

#define TG_GRADCHECK(...) (&(tg_gradcheck_opts){.size = sizeof(tg_gradcheck_opts), __VA_ARGS__})

typedef struct tg_gradcheck_info {
    size_t size;
    int64_t checked, kinks, unsure; /* coordinates or directions; the last two are among the first */
    double worst; /* |analytic - numerical| / (atol + rtol |numerical|) of the worst one that can be told */
    bool failed;
    bool faint; /* it passed, and every gradient is below atol: any other as small would have, too */
    /* Of a failure its class, in a word. Of wrong numbers, as far as these tell: "sign", "factor", "zero", "unwritten",
     * "nan", "transpose", "places", "input", "sum", "scale", "term", "part", "independent", "formula"; of how backward
     * behaves: "overwrites", "adds", "writes", "zeros", "undefined", "layout", "unsteady", "taped"; "unknown" where
     * nothing can be told. NULL where nothing failed. */
    const char *cause;
    /* Of a failure: input, coordinate, both values, error estimate, likely cause. Else of what was left out, and that
     * it is faint; or "". */
    char report[1536];
} tg_gradcheck_info;

#define TG_GRADCHECK_INFO() ((tg_gradcheck_info){.size = sizeof(tg_gradcheck_info)})

/* Checks fn's gradients for every float64 input that needs one, with random cotangents for every float output. in[] are
 * leaves of t's context; t is reset. fn is called often, for differences in no-grad mode (where it asks for gradients
 * itself, it sets the mode). TG_ERR_GRADIENT, with the report as the context's message, when one is wrong; info, which
 * TG_GRADCHECK_INFO() initializes and which may be NULL, is filled either way. opts may be NULL. */
TG_API tg_status tg_gradcheck(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, int n_out,
                              tg_gradcheck_info *info, const tg_gradcheck_opts *opts);

/* A plain C function over doubles: writes f(x)'s m outputs to y; and a backward that writes gx[n] for the given
 * gy[m]. No context needed. info must not be NULL. */
typedef void (*tg_plain_fn)(void *state, const double *x, int64_t n, double *y, int64_t m);
typedef void (*tg_plain_grad_fn)(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx);
TG_API tg_status tg_gradcheck_fn(tg_plain_fn fn, tg_plain_grad_fn grad, void *state, const double *x, int64_t n,
                                 int64_t m, tg_gradcheck_info *info, const tg_gradcheck_opts *opts);

/* Runs one sample of an op (extend.h), its own tolerance applied. TG_OK of one that must be refused, and is; accepted,
 * it fails. opts may be NULL. */
TG_API tg_status tg_gradcheck_op(tg_ctx *ctx, const tg_op *op, int sample, tg_gradcheck_info *info,
                                 const tg_gradcheck_opts *opts);

/* ---- Reports ----
 *
 * A failure as a file, from which it can be repeated: JSON with the op and its sample, or the inputs of a function,
 * their values included (2^18 elements at most); the options, the random stream, the device, the library's version,
 * what was found. A tensor given as several inputs is one again, of its dtype and shape; strides are not kept:
 * inputs come back row-major. Written as tg_file_save does, whole or not at all; one that is damaged is refused
 * (TG_ERR_FORMAT). */

/* tg_gradcheck and tg_gradcheck_op, which write a report to path where the check fails; their message names it, or says
 * why there is none. path NULL: none. */
TG_API tg_status tg_gradcheck_report(tg_tape *t, const char *path, tg_fn fn, void *state, tg_tensor *const *in,
                                     int n_in, int n_out, tg_gradcheck_info *info, const tg_gradcheck_opts *opts);
TG_API tg_status tg_gradcheck_report_op(tg_ctx *ctx, const char *path, const tg_op *op, int sample,
                                        tg_gradcheck_info *info, const tg_gradcheck_opts *opts);
/* The same check again, of the same function or op; op NULL: the one of the table that has the report's name. */
TG_API tg_status tg_gradcheck_replay(tg_tape *t, const char *path, tg_fn fn, void *state, tg_gradcheck_info *info);
TG_API tg_status tg_gradcheck_replay_op(tg_ctx *ctx, const char *path, const tg_op *op, tg_gradcheck_info *info);

/* ---- In tests ----
 *
 * TG_GRADCHECK_ASSERT(t, fn, state, in, n_in, n_out, opts) for programs with assert.h: a failure prints its report and
 * asserts. TG_CK_GRADCHECK, with the same arguments, for tests of Check (check.h): the report is the test's message.
 * Both want stdio.h too, for they print what a check that passes has left out. */
#define TG_GRADCHECK_ASSERT(t, ...) TG_GRADCHECK_WITH(TG_GRADCHECK_PLAIN, t, __VA_ARGS__)
#define TG_CK_GRADCHECK(t, ...) TG_GRADCHECK_WITH(TG_GRADCHECK_CK, t, __VA_ARGS__)

#define TG_GRADCHECK_PLAIN(ok, message)                                                             \
    if (!(ok)) fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, message);                         \
    assert((ok) && "the gradient is right")
#define TG_GRADCHECK_CK(ok, message) ck_assert_msg(ok, "%s", message)
#define TG_GRADCHECK_WITH(verdict, t, ...)                                                                     \
    do {                                                                                                       \
        tg_tape *const tg_gradcheck_t_ = (t);                                                                  \
        tg_gradcheck_info tg_gradcheck_r_;                                                                     \
        tg_struct_init(&tg_gradcheck_r_, sizeof tg_gradcheck_r_);                                              \
        bool tg_gradcheck_ok_ = tg_gradcheck_into_(&tg_gradcheck_r_, tg_gradcheck_t_, __VA_ARGS__) == TG_OK;   \
        if (tg_gradcheck_ok_ && *tg_gradcheck_r_.report) fprintf(stderr, "%s\n", tg_gradcheck_r_.report);      \
        verdict(tg_gradcheck_ok_, tg_ctx_message(tg_tape_ctx(tg_gradcheck_t_)));                               \
    } while (0)

/* Calls tg_gradcheck for TG_GRADCHECK_WITH, whose arguments may contain commas, with info first. */
static inline tg_status tg_gradcheck_into_(tg_gradcheck_info *info, tg_tape *t, tg_fn fn, void *state,
                                           tg_tensor *const *in, int n_in, int n_out, const tg_gradcheck_opts *opts) {
    return tg_gradcheck(t, fn, state, in, n_in, n_out, info, opts);
}

#ifdef __cplusplus
}
#endif

#endif
