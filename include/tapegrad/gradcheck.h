/* Gradient checks, which compare gradients with finite differences. Include this header in tests of your own ops and
 * functions.
 *
 * A check draws random cotangents, which are gradients of the outputs, and runs backward from them. It compares the
 * gradients of the inputs with central differences in float64, for each element or along random directions (Griewank
 * and Walther, Evaluating Derivatives, ch. 3; random projections as in the test_util of HIPS autograd). It extrapolates
 * the differences (Richardson), chooses a step for each element, and estimates the error that remains.
 *
 * The tolerance of an element is atol + rtol * |difference|. An element fails if its gradient and the difference are
 * apart by more than the tolerance plus the error. It passes if they are apart by at most the tolerance, and the error
 * is at most the tolerance too. Any other element is unsure: it is counted and reported, and `strict` says when it
 * makes the check fail. If the differences on the two sides of an element disagree, the element is at a kink. It is
 * counted, but not compared.
 */
#ifndef TAPEGRAD_GRADCHECK_H
#define TAPEGRAD_GRADCHECK_H

#include <tapegrad/op.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of a check. */
typedef struct tg_gradcheck_opts {
    size_t size;
    /* Step in (0, 1], relative to max(1, |x|). TG_AUTO, the default, means that the step is chosen for each element by
     * its estimated error. */
    double eps;
    /* Absolute and relative tolerance, finite and 0 or more. TG_AUTO, the default, means 1e-5 for atol and 1e-3 for
     * rtol; for tg_gradcheck_op it means the sample's rtol (1e-6 if it has none), and rtol / 1000 for atol. */
    double atol, rtol;
    /* Number of random directions for each input, along which the check compares instead of element by element. They
     * are vectors of signs and Gaussian vectors in turn. 0, the default, means none: every element is compared. */
    int projections;
    uint64_t seed; /* seed of the cotangents and directions, and of the inputs of tg_gradcheck_op; 0 by default */
    /* Skips the additional checks: equal runs give equal bits; backward accepts cotangents that are zero, absent or
     * strided; backward can add to a gradient; backward writes nothing but gradients. false by default. */
    bool no_extras;
    /* Name of the function in reports. NULL means "function"; for tg_gradcheck_op it means the name of the op and the
     * note of the sample. */
    const char *name;
    /* If true, the check fails if an element is unsure, or if none of one or more elements could be compared. If false,
     * the default, it fails only if no element could be compared and at least one is unsure. */
    bool strict;
    /* If true, also checks the derivatives that are recorded as ops (derivatives.h). Compares the results of tg_grad,
     * with its option create_graph set, and of tg_jvp with those of backward, and second derivatives with differences.
     * tg_gradcheck_fn refuses this option (TG_ERR_ARGUMENT). false by default. */
    bool second_order;
} tg_gradcheck_opts;

#define TG_GRADCHECK_DEFAULTS .size = sizeof(tg_gradcheck_opts), .eps = TG_AUTO, .atol = TG_AUTO, .rtol = TG_AUTO
#define TG_GRADCHECK(...) (&(tg_gradcheck_opts){TG_GRADCHECK_DEFAULTS, __VA_ARGS__})

/* The result of a check. */
typedef struct tg_gradcheck_info {
    size_t size;
    /* checked is the number of elements that were examined, or of directions if projections is set. kinks is how many
     * of them are at a kink, and unsure is how many are unsure. */
    int64_t checked, kinks, unsure;
    /* The largest |gradient - difference| / tolerance of the elements that were compared. */
    double worst;
    bool failed; /* whether the check has found a mistake, or fails because of `strict` */
    /* The check passed, but all gradients and differences are below atol, so that gradients of 0 would pass too. */
    bool inconclusive;
    /* The class of a failure, a static string; NULL if failed is false. docs/gradcheck.md says what each one means.
     * - Wrong values: "sign", "factor", "zero", "unwritten", "nan", "transpose", "places", "input", "sum", "scale",
     *   "term", "part", "independent", "formula".
     * - Wrong behavior of backward: "overwrites", "adds", "writes", "zeros", "undefined", "layout", "unsteady".
     * - "recorded": a derivative of .second_order is wrong.
     * - "unknown": too few elements could be compared, or a sample that the op must refuse was accepted. */
    const char *cause;
    /* After a failure: input, element, both values, error estimate, and the likely cause. Otherwise: which elements
     * were not compared, and a warning if the check is inconclusive; "" if there is neither. */
    char report[1536];
} tg_gradcheck_info;

#define TG_GRADCHECK_INFO() ((tg_gradcheck_info){.size = sizeof(tg_gradcheck_info)})

/* Checks the gradients of fn with respect to every float64 input that requires one. Draws cotangents for every float64
 * output that depends on such an input. in[n_in] are leaves of t's context, of any shape. fn must set all n_out
 * results. n_in and n_out are 1 to 65535. info and opts may be NULL. Initialize *info with TG_GRADCHECK_INFO(). If the
 * arguments are valid, the call fills *info whatever the result is.
 *
 * fn is called many times, and t is reset before each call and at the end. When differences are taken, t is in no-grad
 * mode; a fn that takes gradients itself must therefore turn grad mode on (tg_tape_set_grad_mode). The check changes
 * the values of inputs, and restores their bits. After the check, the gradients that inputs have accumulated, the
 * random streams, and the modes of t are the same as before.
 *
 * Fails with
 * - TG_ERR_GRADIENT if the check fails (`failed` in *info); the context's message is then the report;
 * - TG_ERR_STATE if an input belongs to a tape, if no float64 input requires a gradient, if no float64 output depends
 *   on one that does, or if a callback of t runs;
 * - TG_ERR_DTYPE if no input is float64;
 * - TG_ERR_SHAPE if the checked outputs do not have the same number of elements in every call of fn;
 * - TG_ERR_ARGUMENT if options or numbers are invalid, or if fn leaves a result NULL;
 * - the status of fn if fn fails. */
TG_API tg_status tg_gradcheck(tg_tape *t, tg_fn fn, void *state, tg_tensor *const *in, int n_in, int n_out,
                              tg_gradcheck_info *info, const tg_gradcheck_opts *opts);

/* A plain function, and its backward. The function computes y[m] from x[n]. The backward computes gx[n], the gradient
 * of x, from gy[m], the gradient of y. It must write every element of gx. */
typedef void (*tg_plain_fn)(void *state, const double *x, int64_t n, double *y, int64_t m);
typedef void (*tg_plain_grad_fn)(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx);
/* Checks the backward `grad` of the plain function fn at x[n], with n, m >= 0. Needs no context. x may be NULL if n is
 * 0, and opts may be NULL. info must not be NULL, because its report also has the message of an invalid argument
 * (TG_ERR_ARGUMENT) or of missing memory (TG_ERR_MEMORY). Returns TG_ERR_GRADIENT if the check fails. */
TG_API tg_status tg_gradcheck_fn(tg_plain_fn fn, tg_plain_grad_fn grad, void *state, const double *x, int64_t n,
                                 int64_t m, tg_gradcheck_info *info, const tg_gradcheck_opts *opts);

/* Checks an op (op.h) on one of its samples, with float64 inputs. sample is 0 to op->n_samples - 1 (TG_ERR_ARGUMENT).
 * info and opts may be NULL. A sample that the op must refuse passes if the call of the op fails with the status that
 * the sample names. If the sample has no input or no output with a gradient, returns TG_OK without a check. Fails with
 * TG_ERR_GRADIENT if the check fails, and with TG_ERR_UNSUPPORTED if the sample needs several ranks. */
TG_API tg_status tg_gradcheck_op(tg_ctx *ctx, const tg_op *op, int sample, tg_gradcheck_info *info,
                                 const tg_gradcheck_opts *opts);

/* ---- Reports ----
 *
 * A report is a JSON file from which a failed check can be repeated. It has the op and its sample, or the inputs of the
 * function with their values (at most 1,024 inputs, with 2^18 elements in total). It also has the options, the default
 * random stream, the device, the version of the library, and the result. When the check is repeated, inputs have their
 * dtype and shape, in row-major order; their strides are not kept. If one tensor was given as several inputs, it is one
 * tensor again. The file is written completely or not at all, as tg_file_save does. A damaged report fails with
 * TG_ERR_FORMAT when it is read. */

/* Run tg_gradcheck or tg_gradcheck_op, and write a report to path if it fails with TG_ERR_GRADIENT. The context's
 * message then names the report, or says why the report could not be written; the status is the same in both cases. If
 * path is NULL, no report is written. */
TG_API tg_status tg_gradcheck_report(tg_tape *t, const char *path, tg_fn fn, void *state, tg_tensor *const *in,
                                     int n_in, int n_out, tg_gradcheck_info *info, const tg_gradcheck_opts *opts);
TG_API tg_status tg_gradcheck_report_op(tg_ctx *ctx, const char *path, const tg_op *op, int sample,
                                        tg_gradcheck_info *info, const tg_gradcheck_opts *opts);
/* Repeat the check of a report, and return what tg_gradcheck or tg_gradcheck_op returns. tg_gradcheck_replay takes a
 * report of tg_gradcheck_report; fn and state must be those of the first check. tg_gradcheck_replay_op takes a report
 * of tg_gradcheck_report_op; op NULL means the op of the library that has the name in the report. info may be NULL.
 * Both fail with TG_ERR_ARGUMENT if the report is of the other kind, if the library has no such op, or if op has
 * another name or number of samples than the report. */
TG_API tg_status tg_gradcheck_replay(tg_tape *t, const char *path, tg_fn fn, void *state, tg_gradcheck_info *info);
TG_API tg_status tg_gradcheck_replay_op(tg_ctx *ctx, const char *path, const tg_op *op, tg_gradcheck_info *info);

/* ---- In tests ----
 *
 * TG_GRADCHECK_ASSERT(t, fn, state, in, n_in, n_out, opts) is for programs that use assert.h. If tg_gradcheck fails,
 * the macro prints the context's message to stderr and calls assert. TG_CK_GRADCHECK takes the same arguments and is
 * for tests that use the library Check (check.h). If tg_gradcheck fails, the context's message is the message of the
 * test. If a check passes but has a report, both macros print the report to stderr. Include stdio.h before you use
 * them. */
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
