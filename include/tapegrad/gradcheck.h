/* Gradient checks: they compare gradients with finite differences. Include it in tests of your own ops and functions.
 *
 * A check takes central differences in float64, for each element or along random directions (Griewank and Walther,
 * Evaluating Derivatives, ch. 3; random projections as in the test_util of HIPS autograd). It extrapolates them
 * (Richardson), chooses a step for each element, and estimates the remaining error.
 *
 * A gradient is wrong if its distance from the differences exceeds the tolerance plus this error. If the error alone
 * exceeds the tolerance, the element is unsure: it is counted and reported, and fails only as `strict` says. An element
 * whose one-sided differences disagree is at a kink: it is counted and not compared.
 */
#ifndef TAPEGRAD_GRADCHECK_H
#define TAPEGRAD_GRADCHECK_H

#include <tapegrad/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_gradcheck_opts {
    size_t size;
    double eps;       /* step in (0, 1], relative to max(1, |x|); 0: chosen for each element by its error estimate */
    double atol;      /* absolute tolerance, >= 0; 0: 1e-5; TG_NONE: zero */
    double rtol;      /* relative tolerance, >= 0; 0: 1e-3; TG_NONE: zero */
    int projections;  /* > 0: this many random directions per input, alternately of signs and Gaussian, in place of
                         every element; 0: every element */
    uint64_t seed;    /* seed of the cotangents and directions */
    bool no_extras;   /* skips these checks: equal runs give equal bits; cotangents that are zero, undefined or strided;
                         backward that adds; backward writes nothing but gradients */
    const char *name; /* name of the function in reports; NULL: "function" */
    bool strict;      /* true: fails if an element is unsure, or if no element could be compared. false: fails if no
                         element could be compared and at least one is unsure */
    /* Also checks derivatives that are recorded as ops (derivatives.h): those of tg_grad with .create_graph and of
     * tg_jvp against backward, and second derivatives against differences. tg_gradcheck_fn refuses it
     * (TG_ERR_ARGUMENT). */
    bool second_order;
} tg_gradcheck_opts;

#define TG_GRADCHECK(...) (&(tg_gradcheck_opts){.size = sizeof(tg_gradcheck_opts), __VA_ARGS__})

typedef struct tg_gradcheck_info {
    size_t size;
    int64_t checked, kinks, unsure; /* numbers of elements or directions; checked includes kinks and unsure */
    double worst; /* largest |analytic - numerical| / (atol + rtol |numerical|) of the compared ones */
    bool failed;
    bool inconclusive; /* the check passed, but every gradient is below atol, so any other as small would pass too */
    /* Class of a failure, a static string; NULL if the check passed. Wrong values: "sign", "factor", "zero",
     * "unwritten", "nan", "transpose", "places", "input", "sum", "scale", "term", "part", "independent", "formula".
     * Wrong behavior of backward: "overwrites", "adds", "writes", "zeros", "undefined", "layout", "unsteady".
     * "recorded": a derivative of .second_order. "unknown": too few elements could be compared, or a sample that must
     * be refused was accepted. */
    const char *cause;
    /* After a failure: input, element, both values, error estimate, likely cause. Otherwise: which elements were left
     * out, and a warning if the check is inconclusive; "" if there is nothing to say. */
    char report[1536];
} tg_gradcheck_info;

#define TG_GRADCHECK_INFO() ((tg_gradcheck_info){.size = sizeof(tg_gradcheck_info)})

/* Checks the gradients of fn with respect to every float64 input that requires one, with random cotangents for every
 * float64 output that depends on them. in[n_in] are leaves of t's context, of any shape; n_in and n_out are 1 to
 * 65535.
 *
 * fn is called many times, and t is reset before each call and at the end. For differences t is in no-grad mode; a
 * fn that takes gradients itself must set the mode. Inputs are moved by a step and restored. Gradients that they
 * have accumulated, the random streams, and t's mode are the same after the call as before.
 *
 * Returns TG_ERR_GRADIENT if the check fails; the context's message is then the report. TG_ERR_STATE: an input
 * belongs to a tape, or no float64 input requires a gradient, or no output depends on one. TG_ERR_DTYPE: no input is
 * float64. TG_ERR_ARGUMENT: invalid options or numbers. info, which TG_GRADCHECK_INFO() initializes, and opts may be
 * NULL; info is filled if the arguments are valid, whatever the result. */
TG_API tg_status tg_gradcheck(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, int n_out,
                              tg_gradcheck_info *info, const tg_gradcheck_opts *opts);

/* A function of n doubles that writes its m results to y, and its backward, which writes gx[n] for the cotangent
 * gy[m]. */
typedef void (*tg_plain_fn)(void *state, const double *x, int64_t n, double *y, int64_t m);
typedef void (*tg_plain_grad_fn)(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx);
/* Checks such a pair of functions at x[n] (n, m >= 0). It needs no context. info must not be NULL: its report also
 * holds the message of an invalid argument (TG_ERR_ARGUMENT) or of missing memory (TG_ERR_MEMORY). Returns
 * TG_ERR_GRADIENT if the check fails. */
TG_API tg_status tg_gradcheck_fn(tg_plain_fn fn, tg_plain_grad_fn grad, void *state, const double *x, int64_t n,
                                 int64_t m, tg_gradcheck_info *info, const tg_gradcheck_opts *opts);

/* Checks sample 0 <= sample < op->n_samples of an op (extend.h) with float64 inputs. Unless opts says otherwise,
 * rtol is the sample's own (1e-6 if it has none), and atol is a thousandth of rtol. A sample that the op must refuse
 * passes if the call is refused with the sample's status. Returns TG_OK without a check if nothing is
 * differentiable, and TG_ERR_UNSUPPORTED for a sample of several ranks. info and opts may be NULL. */
TG_API tg_status tg_gradcheck_op(tg_ctx *ctx, const tg_op *op, int sample, tg_gradcheck_info *info,
                                 const tg_gradcheck_opts *opts);

/* ---- Reports ----
 *
 * A report is a JSON file from which a failed check can be repeated. It has the op and its sample, or the inputs of a
 * function with their values (at most 2^18 elements in 1,024 inputs); the options, the default random stream, the
 * device, the library's version, and the result. Inputs are restored with their dtype and shape in row-major order;
 * strides are not kept. One tensor that was given as several inputs is one tensor again. The file is written completely
 * or not at all, like those of tg_file_save. A damaged report fails with TG_ERR_FORMAT. */

/* Run tg_gradcheck or tg_gradcheck_op, and write a report to path if the check fails. The context's message then names
 * the report, or says why it could not be written. NULL as path: no report. */
TG_API tg_status tg_gradcheck_report(tg_tape *t, const char *path, tg_fn fn, void *state, tg_tensor *const *in,
                                     int n_in, int n_out, tg_gradcheck_info *info, const tg_gradcheck_opts *opts);
TG_API tg_status tg_gradcheck_report_op(tg_ctx *ctx, const char *path, const tg_op *op, int sample,
                                        tg_gradcheck_info *info, const tg_gradcheck_opts *opts);
/* Repeat the check of a report, and return what tg_gradcheck or tg_gradcheck_op returns. fn and state must be those of
 * the first run. NULL as op: the op of the library's table that has the report's name. TG_ERR_ARGUMENT: the report
 * is of the other kind, the op does not exist, or it has another name or number of samples. info may be NULL. */
TG_API tg_status tg_gradcheck_replay(tg_tape *t, const char *path, tg_fn fn, void *state, tg_gradcheck_info *info);
TG_API tg_status tg_gradcheck_replay_op(tg_ctx *ctx, const char *path, const tg_op *op, tg_gradcheck_info *info);

/* ---- In tests ----
 *
 * TG_GRADCHECK_ASSERT(t, fn, state, in, n_in, n_out, opts) is for programs that use assert.h: if the check fails, it
 * prints the report to stderr and asserts. TG_CK_GRADCHECK takes the same arguments and is for tests that use the
 * library Check (check.h): the report is the test's message. Both print the report of a check that passes, if it has
 * one, to stderr. Include stdio.h for them. */
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
