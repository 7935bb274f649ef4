/* Gradient checks: correct gradients pass, every kind of error is found and named, and kinks are reported. */
#include "world.h"
#include "probe.h"

#include <ctype.h>
#include <string.h>

#include <tapegrad/gradcheck.h>

#include "catalog/sample_values.h"
#include "gradcheck/difference.h"

#define ck_in(text, in) ck_assert_msg(strstr((in), (text)), "\"%s\" in: %s", (text), (in))
#define LEN(a) (int)(sizeof(a) / sizeof(*(a)))

/* ---- Errors of a backward ---- */

typedef struct seeded {
    fault fault;
    const char *says;
} seeded;

static const seeded faults[] = {
    {TWICE, "Likely cause: too large by a factor 2"},
    {NEGATED, "Likely cause: the sign is wrong"},
    {NO_MEAN, "Likely cause: 9 times too large everywhere: a missing 1/n where n is 9"},
    {TRANSPOSED, "Likely cause: the gradient is transposed"},
    {NO_SUM, "Likely cause: a missing broadcast sum"},
    {CUT, "Likely cause: the gradient is zero"},
    {SCALED, "Likely cause: off by the factor 1.0001 everywhere"},
    {ONE_WRONG, "element [0, 1]: backward gives"},
    {OVERWRITES, "Likely cause: it writes where TG_GRAD_ADD asks it to add"},
    {ACCUMULATES, "memory was read that should be overwritten (nan)"},
    {UNFINISHED, "1 of 9 elements wrong. Likely cause: elements were never written"},
    {CONSTANT, "a cotangent of zeros gives 1e-14"},
    {FLAT, "a cotangent of the same values in other strides gives nan"},
    {UNDEFINED, "a backward with undefined cotangents, instead of zeros,"},
    {WRITES_INPUT, "backward wrote into input 1 of op probe"},
    {WRITES_OUTPUT, "backward wrote into output 1 of op probe"},
    {WRITES_SAVED, "backward wrote into saved buffer 0 of op probe"},
    {WRITES_COTANGENT, "backward wrote into the cotangent of output 0"},
    {NOISY, "a second backward gives"},
    {NOISY_FORWARD, "two runs with the same inputs and random stream give different results"},
};

typedef struct run {
    probe_params params;
    int count;
} run;

static tg_status probe(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    run *r = state;
    return tg_apply(tape, &probe_op, &r->params, in, n_in, out, n_out, &r->count, NULL, TG_SITE);
}

/* Includes z: its cotangent would hide that only y's share of ga is wrong. */
static tg_status probe_y(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    tg_tensor *both[2];
    tg_status s = probe(state, tape, in, n_in, both, 2);
    for (int i = 0; i < n_out; i++) out[i] = both[i];
    return s;
}

static bool needs_both(fault f) { return f == UNDEFINED || f == WRITES_OUTPUT; }

static tg_status check_fault(fault f, const tg_gradcheck_opts *opts, tg_gradcheck_info *r) {
    run state = {.params = {.fault = f}};
    tg_tensor *in[] = {tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(3, 3), 1),
                       tg_randn(ctx, TG_DTYPE_DEFAULT, TG_SHAPE(3), 1)};
    for (int i = 0; i < 2; i++) tg_set_requires_grad(in[i], true);
    tg_status s = tg_gradcheck(t, probe_y, &state, in, 2, f == RIGHT || needs_both(f) ? 2 : 1, r, opts);
    for (int i = 0; i < 2; i++) tg_drop(in[i]);
    return s;
}

START_TEST(every_error_is_found_and_named) {
    begin();
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    ck_assert_msg(check_fault(RIGHT, TG_GRADCHECK(.rtol = 1e-5), &r) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert(!r.failed && r.checked == 12 && r.kinks == 0 && r.worst < 1 && !*r.report);
    for (int i = 0; i < LEN(faults); i++) {
        tg_status s = check_fault(faults[i].fault, TG_GRADCHECK(.rtol = 1e-5, .atol = 1e-8), &r);
        ck_assert_msg(s == TG_ERR_GRADIENT && r.failed, "not found: %s", faults[i].says);
        ck_in(faults[i].says, r.report);
        ck_assert_str_eq(tg_ctx_message(ctx), r.report);
        tg_ctx_clear(ctx);
    }
    end();
}
END_TEST

START_TEST(without_extras_only_numbers_count) {
    begin();
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    const fault numbers[] = {TWICE, NO_SUM, ACCUMULATES}, others[] = {OVERWRITES, UNDEFINED, WRITES_OUTPUT, NOISY};
    for (int i = 0; i < LEN(numbers); i++, tg_ctx_clear(ctx))
        ck_assert(check_fault(numbers[i], TG_GRADCHECK(.no_extras = true), &r) == TG_ERR_GRADIENT);
    for (int i = 0; i < LEN(others); i++)
        ck_assert(check_fault(others[i], TG_GRADCHECK(.no_extras = true), &r) == TG_OK);
    end();
}
END_TEST

/* Replaces numbers with #, so that the words can be compared. */
static void blank_numbers(const char *text, char *out) {
    for (const char *at = text; *at;) {
        size_t n = strspn(at, "0123456789.");
        if (isdigit(*at) && strcspn(at, ".") < n) {
            at += n;
            if (*at == 'e') at += 1 + strspn(at + 1, "+-0123456789");
            if (out[-1] == '-') out--;
            *out++ = '#';
        } else {
            *out++ = *at++;
        }
    }
    *out = 0;
}

START_TEST(a_report_reads_well) {
    begin();
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    char text[sizeof r.report + 1] = " ";
    check_fault(NEGATED, TG_GRADCHECK(.name = "my op", .seed = 3), &r);
    tg_ctx_clear(ctx);
    blank_numbers(r.report, text + 1);
    ck_assert_str_eq(text + 1,
                     "my op: input 0, f64[3, 3], element [0, 1]: backward gives #, differences # +- # (tolerance #); "
                     "9 of 9 elements wrong. Likely cause: the sign is wrong");
    check_fault(NO_SUM, NULL, &r);
    tg_ctx_clear(ctx);
    blank_numbers(r.report, text + 1);
    ck_assert_str_eq(text + 1,
                     "function: input 1, f64[3], element [1]: backward gives #, differences # +- # (tolerance #); "
                     "3 of 3 elements wrong. Likely cause: a missing broadcast sum: one term of the sum over the "
                     "outputs that this element feeds");
    end();
}
END_TEST

/* ---- Ops of the table and user-defined ops ---- */

START_TEST(samples_of_a_users_op) {
    begin();
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    ck_assert_msg(tg_gradcheck_op(ctx, &probe_op, 0, &r, NULL) == TG_OK && r.checked == 12, "%s", tg_ctx_message(ctx));
    ck_assert_msg(tg_gradcheck_op(ctx, &probe_op, 1, &r, NULL) == TG_OK && r.checked == 12, "%s", tg_ctx_message(ctx));
    ck_assert(r.worst < 1e-2); /* of the table's 1e-6: differences give ten digits */
    ck_assert(tg_gradcheck_op(ctx, &probe_op, 2, &r, NULL) == TG_OK && !r.failed && !r.checked); /* the op refuses it */
    const probe_params wrong = {.fault = SCALED};
    tg_sample sample = probe_samples[2];
    tg_op op = probe_op;
    op.samples = &sample;
    sample.refused = TG_ERR_DTYPE;
    ck_assert(tg_gradcheck_op(ctx, &op, 0, &r, NULL) == TG_ERR_SHAPE);
    ck_in("probe: expected a matrix and a row of it", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    sample.n_in = 99;
    ck_assert(tg_gradcheck_op(ctx, &op, 0, &r, NULL) == TG_ERR_ARGUMENT);
    ck_in("has 99 inputs, expected 0 to", tg_ctx_message(ctx));
    tg_ctx_clear(ctx);
    sample = probe_samples[0];
    sample.refused = TG_ERR_SHAPE;
    ck_assert(tg_gradcheck_op(ctx, &op, 0, &r, NULL) == TG_ERR_GRADIENT && r.failed);
    ck_in("probe (square): the call was accepted; it must be refused with TG_ERR_SHAPE", r.report);
    tg_ctx_clear(ctx);
    sample.refused = TG_OK;
    sample.params = &wrong;
    ck_assert(tg_gradcheck_op(ctx, &op, 0, &r, NULL) == TG_ERR_GRADIENT);
    ck_in("probe (square): input 0, f64[3, 3]", r.report);
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- Kinks ---- */

static tg_status sharp(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_relu(tape, in[0]);
    out[1] = tg_abs(tape, in[0]);
    out[2] = tg_max(tape, in[1], TG_ALL_DIMS, false);
    return tg_ctx_status(tg_tape_ctx(tape));
}

START_TEST(kinks_are_said_and_do_not_fail) {
    begin();
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    /* 1e-7 is not at the kink, as a small enough step shows; 3 and 3 are both the maximum. */
    tg_tensor *in[] = {leaf_of(TG_SHAPE(2, 2), (double[]){1, 0, 1e-7, -2}), leaf_of(TG_SHAPE(3), (double[]){3, 1, 3})};
    ck_assert_msg(tg_gradcheck(t, sharp, NULL, in, 2, 3, &r, NULL) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert(!r.failed && r.checked == 7 && r.kinks == 3 && r.unsure == 0);
    ck_assert_str_eq(r.report, "function: 3 of 7 elements are at a kink and were left out: the one-sided differences "
                               "disagree. The first: input "
                               "0, f64[2, 2], element [0, 1]: at a kink");
    tg_gradcheck(t, sharp, NULL, in, 2, 3, &r, TG_GRADCHECK(.projections = 1));
    /* The direction through 0 and 1e-7 crosses two kinks that are closer to each other than any step, so nothing can
     * be compared, which fails. */
    ck_assert_msg(r.failed && r.checked == 2 && r.kinks == 1 && r.unsure == 1, "%s", r.report);
    tg_ctx_clear(ctx);
    ck_in("1 of 2 directions are at a kink", r.report);
    ck_in("1 of 2 directions could not be checked", r.report);
    tg_tensor *kinks[] = {leaf_of(TG_SHAPE(2), (double[]){0, 0}), leaf_of(TG_SHAPE(2), (double[]){3, 3})};
    ck_assert(tg_gradcheck(t, sharp, NULL, kinks, 2, 3, &r, NULL) == TG_OK && r.kinks == 4 && r.checked == 4);
    ck_assert(tg_gradcheck(t, sharp, NULL, kinks, 2, 3, &r, TG_GRADCHECK(.strict = true)) == TG_ERR_GRADIENT);
    ck_assert_str_eq(r.cause, "unknown");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

static void steep(void *state, const double *x, int64_t n, double *y, int64_t m) {
    (void)state, (void)m;
    for (int64_t i = 0; i < n; i++) y[i] = fabs(x[i]) + exp(20 * x[i]) + sin(50 * x[i]);
}

static void steep_grad(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    (void)state, (void)m;
    for (int64_t i = 0; i < n; i++) gx[i] = gy[i] * ((x[i] < 0 ? -1 : 1) + 20 * exp(20 * x[i]) + 50 * cos(50 * x[i]));
}

START_TEST(a_steep_slope_is_no_kink) {
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    const double x[] = {0.3, -0.7, 1, 1e-3, -0.5};
    ck_assert_msg(tg_gradcheck_fn(steep, steep_grad, NULL, x, 5, 5, &r, TG_GRADCHECK(.rtol = 1e-5)) == TG_OK, "%s",
                  r.report);
    ck_assert(r.checked == 5 && r.kinks == 0);
}
END_TEST

/* ---- Uncertain differences ---- */

/* x^2 in so few digits that its slope is known to 1e-3 at best; and 1 / x, whose differences must not reach 0. */
static void coarse(void *state, const double *x, int64_t n, double *y, int64_t m) {
    (void)m;
    for (int64_t i = 0; i < n; i++) y[i] = round(*(double *)state * x[i] * x[i]) / *(double *)state;
}

static void coarse_grad(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    (void)state, (void)m;
    for (int64_t i = 0; i < n; i++) gx[i] = gy[i] * 2 * x[i] * (i == 0 ? 1.5 : 1);
}

static void ends(void *state, const double *x, int64_t n, double *y, int64_t m) {
    (void)state, (void)m;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] < 0 ? NAN : sqrt(x[i]);
}

static void ends_grad(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    (void)state, (void)m;
    for (int64_t i = 0; i < n; i++) gx[i] = gy[i] * 0.5 / sqrt(x[i]);
}

START_TEST(unsure_is_neither_right_nor_wrong) {
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    double digits = 1e5;
    const double x[] = {1.7, 0.83, -0.61};
    /* An error of one half is wrong whatever the noise; the others are as right as can be determined. */
    ck_assert(tg_gradcheck_fn(coarse, coarse_grad, &digits, x, 3, 3, &r, TG_GRADCHECK(.rtol = 1e-6)) ==
              TG_ERR_GRADIENT);
    ck_in("x, element [0]: backward gives", r.report);
    ck_in("1 of 3 elements wrong", r.report);
    ck_assert(r.unsure == 2 && r.kinks == 0);
    /* With only the others nothing can be compared, which fails; a tolerance as wide as the noise passes. */
    ck_assert(tg_gradcheck_fn(coarse, coarse_grad, &digits, x, 3, 3, &r, TG_GRADCHECK(.rtol = 1, .atol = 1)) == TG_OK);
    digits = 1e14;
    ck_assert(tg_gradcheck_fn(coarse, coarse_grad, &digits, x, 3, 3, &r, TG_GRADCHECK(.rtol = 1e-5)) ==
                  TG_ERR_GRADIENT &&
              r.unsure == 0);
    const double at[] = {4, 0, 1e-7};
    ck_assert_msg(tg_gradcheck_fn(ends, ends_grad, NULL, at, 3, 3, &r, NULL) == TG_OK, "%s", r.report);
    ck_assert(r.checked == 3 && r.unsure == 1 && r.kinks == 0 && r.worst < 1);
    ck_assert_str_eq(r.report, "function: 1 of 3 elements could not be checked: the differences are not precise enough "
                               "there. The first: x, element [1]: not finite around this point");
    ck_assert(tg_gradcheck_fn(ends, ends_grad, NULL, at, 3, 3, &r, TG_GRADCHECK(.strict = true)) == TG_ERR_GRADIENT);
    ck_in("1 of 3 elements could not be checked", r.report);
    ck_assert(tg_gradcheck_fn(ends, ends_grad, NULL, at + 1, 1, 1, &r, NULL) == TG_ERR_GRADIENT);
    ck_in("1 of 1 elements could not be checked", r.report);
}
END_TEST

/* ---- Plain C functions ---- */

typedef struct plain {
    fault fault;
    int calls;
} plain;

/* The mean of squares. */
static void mean_square(void *state, const double *x, int64_t n, double *y, int64_t m) {
    plain *p = state;
    (void)m;
    y[0] = 0;
    for (int64_t i = 0; i < n; i++) y[0] += x[i] * x[i] / (double)n;
    if (p->fault == NOISY_FORWARD) y[0] += 1e-9 * ++p->calls;
}

static void mean_square_grad(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    plain *p = state;
    (void)m;
    for (int64_t i = 0; i < n - (p->fault == UNFINISHED); i++) {
        double g = gy[0] * 2 * x[i] / (double)n;
        gx[i] = p->fault == TWICE         ? 2 * g
                : p->fault == NEGATED     ? -g
                : p->fault == NO_MEAN     ? (double)n * g
                : p->fault == CUT         ? 0
                : p->fault == SCALED      ? 1.1 * g
                : p->fault == CONSTANT    ? g + 1e-14
                : p->fault == ACCUMULATES ? gx[i] + g
                : p->fault == NOISY       ? g + 1e-14 * ++p->calls
                                          : g;
    }
    if (p->fault == WRITES_INPUT) ((double *)x)[0] = 1;
}

START_TEST(plain_functions_and_their_errors) {
    static const seeded plain_faults[] = {
        {TWICE, "x, element [2]: backward gives"},
        {TWICE, "too large by a factor 2"},
        {NEGATED, "the sign is wrong"},
        {NO_MEAN, "a missing 1/n where n is 3"},
        {CUT, "the gradient is zero"},
        {SCALED, "off by the factor 1.1 everywhere"},
        {UNFINISHED, "element [2]: backward gives nan"},
        {ACCUMULATES, "memory was read that should be overwritten"},
        {CONSTANT, "a cotangent of zeros gives the gradient 1e-14"},
        {WRITES_INPUT, "writes into x"},
        {NOISY, "a second backward gives a different gradient"},
        {NOISY_FORWARD, "two calls with the same x give different results"},
    };
    const double x[] = {0.5, -1, 2};
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    ck_assert(tg_gradcheck_fn(mean_square, mean_square_grad, &(plain){0}, x, 3, 1, &r, NULL) == TG_OK &&
              r.checked == 3);
    for (int i = 0; i < LEN(plain_faults); i++) {
        plain p = {.fault = plain_faults[i].fault};
        tg_status s =
            tg_gradcheck_fn(mean_square, mean_square_grad, &p, x, 3, 1, &r, TG_GRADCHECK(.name = "mean square"));
        ck_assert_msg(s == TG_ERR_GRADIENT && r.failed, "not found: %s", plain_faults[i].says);
        ck_in("mean square: ", r.report);
        ck_in(plain_faults[i].says, r.report);
    }
    plain p = {.fault = SCALED}; /* a single number always has a factor, so none is reported */
    tg_gradcheck_fn(mean_square, mean_square_grad, &p, x, 1, 1, &r, NULL);
    ck_in("no simple pattern", r.report);
    ck_assert_str_eq(r.cause, "formula");
}
END_TEST

/* ---- Options ---- */

START_TEST(tolerances_have_documented_defaults) {
    begin();
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    ck_assert(check_fault(SCALED, NULL, &r) == TG_OK); /* an error of 1e-4 with a tolerance of 1e-3 */
    ck_assert(r.worst > 0.05 && r.worst < 1);
    ck_assert(check_fault(SCALED, TG_GRADCHECK(.rtol = 1e-5, .atol = 1e-7), &r) == TG_ERR_GRADIENT);
    tg_ctx_clear(ctx);
    ck_assert(check_fault(SCALED, TG_GRADCHECK(.rtol = 0), &r) == TG_ERR_GRADIENT);
    tg_ctx_clear(ctx);
    ck_assert(check_fault(NEGATED, TG_GRADCHECK(.atol = 100), &r) == TG_OK);
    end();
}
END_TEST

START_TEST(random_directions_find_errors) {
    begin();
    tg_gradcheck_info r = TG_GRADCHECK_INFO(), other = TG_GRADCHECK_INFO();
    ck_assert(check_fault(RIGHT, TG_GRADCHECK(.projections = 5), &r) == TG_OK && r.checked == 10);
    ck_assert(check_fault(ONE_WRONG, TG_GRADCHECK(.projections = 1), &r) == TG_ERR_GRADIENT);
    ck_in("direction 0 (signs)", r.report);
    tg_ctx_clear(ctx);
    ck_assert(check_fault(NEGATED, TG_GRADCHECK(.projections = 4), &r) == TG_ERR_GRADIENT);
    ck_in("4 of 4 directions wrong. Likely cause: the sign is wrong", r.report);
    tg_ctx_clear(ctx);
    end();
    const double x[] = {0.5, -1, 2};
    plain p = {.fault = ONE_WRONG};
    for (uint64_t seed = 0; seed < 2; seed++) {
        tg_gradcheck_fn(mean_square, mean_square_grad, &p, x, 3, 1, &r, TG_GRADCHECK(.projections = 2, .seed = seed));
        tg_gradcheck_fn(mean_square, mean_square_grad, &p, x, 3, 1,
                        &other, TG_GRADCHECK(.projections = 2, .seed = seed));
        ck_assert(r.worst == other.worst && r.checked == 2);
    }
    double first = r.worst;
    tg_gradcheck_fn(mean_square, mean_square_grad, &p, x, 3, 1, &r, TG_GRADCHECK(.projections = 2, .seed = 7));
    ck_assert(r.worst != first);
}
END_TEST

static tg_status refuse(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    if (state) return TG_ERR_DATA;
    out[0] = tg_add(tape, in[0], tg_zeros(tg_tape_ctx(tape), TG_F64, TG_SHAPE(7)));
    return TG_OK;
}

static tg_status cut(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_detach(tape, in[0]);
    return TG_OK;
}

/* Its result has 1 row in the first call, and 1000 rows more in each later call. */
static tg_status grow(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    int64_t rows = 1 + 1000 * (*(int *)state)++;
    out[0] = tg_add(tape, in[0], tg_zeros(tg_tape_ctx(tape), TG_F64, TG_SHAPE(rows, 3)));
    return TG_OK;
}

START_TEST(uncheckable_functions_are_refused) {
    begin();
    int calls = 0, more_calls = 0;
    tg_tensor *x = leaf_of(TG_SHAPE(3), (double[]){1, 2, 3}), *y = tg_neg(t, x);
    tg_tensor *single = tg_zeros(ctx, TG_F32, TG_SHAPE(3)), *frozen = tg_zeros(ctx, TG_F64, TG_SHAPE(3));
    tg_set_requires_grad(single, true);
    const struct {
        tg_fn fn;
        void *state;
        tg_tensor *input;
        const tg_gradcheck_opts *opts;
        tg_status status;
        const char *says;
    } rows[] = {
        {cut, NULL, x, TG_GRADCHECK(.eps = -1e-6), TG_ERR_ARGUMENT, "eps"},
        {cut, NULL, x, TG_GRADCHECK(.eps = NAN), TG_ERR_ARGUMENT, "eps"},
        {cut, NULL, x, TG_GRADCHECK(.eps = 2), TG_ERR_ARGUMENT, "eps"},
        {cut, NULL, x, TG_GRADCHECK(.atol = -2), TG_ERR_ARGUMENT, "atol"},
        {cut, NULL, x, TG_GRADCHECK(.rtol = INFINITY), TG_ERR_ARGUMENT, "rtol"},
        {cut, NULL, x, TG_GRADCHECK(.projections = -1), TG_ERR_ARGUMENT, "projections"},
        {NULL, NULL, x, NULL, TG_ERR_ARGUMENT, "expected a function"},
        {cut, NULL, y, NULL, TG_ERR_STATE, "input 0 belongs to the tape"},
        {cut, NULL, single, NULL, TG_ERR_DTYPE, "no input is float64"},
        {cut, NULL, frozen, NULL, TG_ERR_STATE, "no float64 input needs a gradient"},
        {cut, NULL, x, NULL, TG_ERR_STATE, "no float64 output depends on an input"},
        {refuse, NULL, x, NULL, TG_ERR_SHAPE, "add"},
        {refuse, &x, x, NULL, TG_ERR_DATA, "the function returned TG_ERR_DATA"},
        {grow, &calls, x, NULL, TG_ERR_SHAPE, "3003 elements in this run and had 3 in the first one"},
        {grow, &more_calls, x, TG_GRADCHECK(.no_extras = true), TG_ERR_SHAPE, "the same shapes in every run"},
    };
    for (int i = 0; i < LEN(rows); i++) {
        tg_status s = tg_gradcheck(t, rows[i].fn, rows[i].state, &rows[i].input, 1, 1, NULL, rows[i].opts);
        ck_assert_msg(s == rows[i].status, "row %d: %s", i, tg_ctx_message(ctx));
        ck_in(rows[i].says, tg_ctx_message(ctx));
        tg_ctx_clear(ctx);
    }
    end();
}
END_TEST

/* ---- State that a check leaves unchanged ---- */

static tg_status noise(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    tg_tensor *h = tg_matmul(tape, tg_dropout(tape, in[0], 0.5), in[1]);
    out[0] = tg_softmax(tape, h, -1);
    out[1] = tg_sum(tape, tg_mul(tape, h, h), TG_ALL_DIMS, false);
    return tg_ctx_status(tg_tape_ctx(tape));
}

static tg_status hand_through(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = in[0];
    out[1] = tg_contiguous(tape, in[1]);
    return tg_ctx_status(tg_tape_ctx(tape));
}

/* A tensor that no op uses is recorded when backward begins. */
START_TEST(inputs_that_are_results) {
    begin();
    tg_tensor *in[] = {tg_param_new(ctx, "a", TG_DTYPE_DEFAULT, TG_SHAPE(3, 4), 1),
                       tg_param_new(ctx, "b", TG_DTYPE_DEFAULT, TG_SHAPE(4), 1)};
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    ck_assert_msg(tg_gradcheck(t, hand_through, NULL, in, 2, 2, &r, NULL) == TG_OK, "%s", tg_ctx_message(ctx));
    ck_assert_int_eq(r.checked, 16);
    end();
}
END_TEST

START_TEST(nothing_of_the_callers_changes) {
    begin();
    tg_tensor *in[] = {tg_param_new(ctx, "a", TG_DTYPE_DEFAULT, TG_SHAPE(3, 4), 1),
                       tg_param_new(ctx, "b", TG_DTYPE_DEFAULT, TG_SHAPE(4, 2), 1)};
    double before[2][12], after[12];
    tg_rng rng, rng_after;
    tg_backward(t, tg_sum(t, tg_matmul(t, in[0], in[1]), TG_ALL_DIMS, false));
    tg_read_f64(in[0], before[0], 12);
    tg_read_f64(tg_grad_of(in[0]), before[1], 12);
    tg_rng_get(ctx, NULL, &rng);
    tg_tape_set_grad_mode(t, false);
    ck_assert_msg(tg_gradcheck(t, noise, NULL, in, 2, 2, NULL, TG_GRADCHECK(.rtol = 1e-6)) == TG_OK, "%s",
                  tg_ctx_message(ctx));
    ck_assert(!tg_tape_set_grad_mode(t, true) && tg_tape_nodes(t) == 0);
    tg_rng_get(ctx, NULL, &rng_after);
    ck_assert_mem_eq(&rng, &rng_after, sizeof rng);
    tg_read_f64(in[0], after, 12);
    ck_assert_mem_eq(before[0], after, sizeof after);
    tg_read_f64(tg_grad_of(in[0]), after, 12);
    ck_assert_mem_eq(before[1], after, sizeof after);
    end();
}
END_TEST

static tg_status product(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_mul(tape, tg_exp(tape, in[0]), in[1]);
    return tg_ctx_status(tg_tape_ctx(tape));
}

/* One tensor for two inputs is one input; rows that share memory cannot be moved separately. */
START_TEST(inputs_that_share_memory) {
    begin();
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    tg_tensor *x = leaf_of(TG_SHAPE(2, 3), (double[]){1, -2, 0.5, 0.25, 3, -1});
    ck_assert_msg(tg_gradcheck(t, product, NULL, (tg_tensor *[]){x, x}, 2, 1, &r, NULL) == TG_OK, "%s",
                  tg_ctx_message(ctx));
    ck_assert(r.checked == 6);
    double row[3] = {1, 2, 3};
    tg_tensor *rows = tg_wrap(ctx, TG_F64, TG_SHAPE(2, 3), (int64_t[]){0, 1}, row, NULL, NULL);
    tg_set_requires_grad(rows, true);
    tg_status s = tg_gradcheck(t, product, NULL, (tg_tensor *[]){x, rows}, 2, 1, &r, NULL);
    ck_assert_msg(s != TG_OK && s != TG_ERR_GRADIENT, "%s", r.report);
    ck_assert_msg(row[0] == 1 && row[1] == 2 && row[2] == 3, "the caller's memory was written");
    tg_ctx_clear(ctx);
    end();
}
END_TEST

/* ---- The differences ---- */

static tg_status point(tg_diff *d, int moved, double *y) {
    (void)moved;
    double x = d->x[0];
    const double f[] = {sin(3 * x), exp(x), x * x * x, 1 / (2 + x * x), log1p(x * x), tanh(5 * x)};
    y[0] = f[*(int *)d->self];
    return TG_OK;
}

static double slope_of(int f, double x) {
    const double df[] = {3 * cos(3 * x),         exp(x), 3 * x * x, -2 * x / pow(2 + x * x, 2), 2 * x / (1 + x * x),
                         5 / pow(cosh(5 * x), 2)};
    return df[f];
}

/* The error estimate is reliable: over many functions, points and steps it holds with rare exceptions. */
START_TEST(error_estimates_hold) {
    int trials = 0, exceeded = 0;
    uint64_t state = 1;
    for (int f = 0; f < 6; f++)
        for (int k = 0; k < 400; k++, trials++) {
            double x = 2 * tg_sample_normal(&state), at = x, gy = 1, y, moved, weight;
            tg_diff_part part = {.n = 1};
            tg_diff d = {.value = point,
                         .self = &f,
                         .eps = ldexp(1, -5 - k % 16),
                         .atol = 1e-9,
                         .rtol = 1e-6,
                         .tries = 1,
                         .n = 1,
                         .m = 1,
                         .n_parts = 1,
                         .parts = &part,
                         .x = &x,
                         .gy = &gy,
                         .y = &y,
                         .moved = &moved,
                         .weight = &weight,
                         .origin = &at};
            tg_slope s;
            point(&d, -1, &y);
            tg_diff_slope(&d, 0, 0, &s);
            exceeded += fabs(s.value - slope_of(f, at)) > s.error + 1e-14;
        }
    ck_assert_msg(exceeded * 100 < trials, "%d of %d estimates too small", exceeded, trials);
}
END_TEST

int main(void) {
    const TTest *tests[] = {every_error_is_found_and_named,
                            without_extras_only_numbers_count,
                            a_report_reads_well,
                            samples_of_a_users_op,
                            kinks_are_said_and_do_not_fail,
                            a_steep_slope_is_no_kink,
                            unsure_is_neither_right_nor_wrong,
                            plain_functions_and_their_errors,
                            tolerances_have_documented_defaults,
                            random_directions_find_errors,
                            uncheckable_functions_are_refused,
                            inputs_that_are_results,
                            nothing_of_the_callers_changes,
                            inputs_that_share_memory,
                            error_estimates_hold};
    return tg_check_main("gradcheck", tests, sizeof tests / sizeof *tests);
}
