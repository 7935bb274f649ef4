/* More of gradient checks: errors that the tolerance hides, and recorded derivatives. */
#include "world.h"

#include <math.h>
#include <string.h>

#include <tapegrad/extend.h>
#include <tapegrad/gradcheck.h>

#include "catalog/sample_values.h"
#include "gradcheck/difference.h"

#define ck_in(text, in) ck_assert_msg(strstr((in), (text)), "\"%s\" in: %s", (text), (in))
#define LEN(a) (int)(sizeof(a) / sizeof(*(a)))

/* ---- Gradients that the tolerance covers ---- */

static tg_status tiny(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_in, (void)n_out;
    out[0] = tg_scale(tape, tg_square(tape, in[0]), *(const double *)state);
    return TG_OK;
}

START_TEST(gradients_below_atol_are_reported) {
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(3), (const double[]){1, 2, 3});
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    double by = 1e-9;
    ck_assert(tg_gradcheck(t, tiny, &by, &x, 1, 1, &r, TG_GRADCHECK(.name = "tiny")) == TG_OK);
    ck_assert_msg(r.inconclusive && strstr(r.report, "tiny: no gradient reaches atol, 1e-05"), "%s", r.report);
    ck_assert(tg_gradcheck(t, tiny, &by, &x, 1, 1, &r, TG_GRADCHECK(.atol = 1e-12)) == TG_OK);
    ck_assert_msg(!r.inconclusive && !*r.report, "%s", r.report);
    ck_assert(tg_gradcheck(t, tiny, &by, &x, 1, 1, &r, TG_GRADCHECK(.atol = 0)) == TG_OK && !r.inconclusive);
    by = 1;
    ck_assert(tg_gradcheck(t, tiny, &by, &x, 1, 1, &r, NULL) == TG_OK && !r.inconclusive && !*r.report);
    end();
}
END_TEST

/* ---- Rounding ---- */

static double bf16(double x) { /* rounds to eight bits, ties to even */
    int e;
    double m = frexp(x, &e);
    return ldexp(nearbyint(ldexp(m, 8)), e - 8);
}

/* X(name, f, its derivative, rtol; 0: the default) */
#define HIDDEN(X)                                                       \
    X(exp10, exp(10 * x), 10 * exp(10 * x), 0)                          \
    X(exp20, exp(20 * x), 20 * exp(20 * x), 0)                          \
    X(square, x * x + 1e12, 2 * x, 0)                                   \
    X(sine, 1e13 + sin(x), cos(x), 0)                                   \
    X(huge, 1e30 + x, x - x + 1, 0)                                     \
    X(waves, x * sin(1 / x), sin(1 / x) - cos(1 / x) / x, 0)            \
    X(single, (double)((float)x * (float)x * (float)x), 3 * x * x, 1e-6) \
    X(exp32, (double)expf((float)x), exp(x), 1e-6)                      \
    X(sum32, (double)(float)(x * x + sin(x)), 2 * x + cos(x), 1e-6)     \
    X(half, bf16(bf16(x) * bf16(x)), 2 * x, 0)                          \
    X(half_too, bf16(exp(x)) + x * x, exp(x) + 2 * x, 0)

typedef struct hidden {
    double (*f)(double x), (*df)(double x);
    double by, rtol; /* by: factor by which the gradient is wrong */
    bool sum, both;  /* sum: the only output is the sum; both: the sum and x itself */
    const char *name;
} hidden;

#define X(name, f, df, rtol)                         \
    static double name##_of(double x) { return f; }  \
    static double name##_slope(double x) { return df; }
HIDDEN(X)
#undef X

static void hidden_values(void *state, const double *x, int64_t n, double *y, int64_t m) {
    const hidden *h = state;
    (void)m;
    if (h->sum || h->both) y[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = h->f(x[i]);
        if (h->sum || h->both)
            y[0] += v;
        else
            y[i] = v;
        if (h->both) y[i + 1] = x[i];
    }
}

static void hidden_gradient(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    const hidden *h = state;
    (void)m;
    for (int64_t i = 0; i < n; i++)
        gx[i] = h->by * (h->df(x[i]) * gy[h->sum || h->both ? 0 : i] + (h->both ? gy[i + 1] : 0));
}

/* Returns at how many of the points the check reports a wrong gradient. */
static int count_wrong(hidden h, int points, double spread, tg_gradcheck_info *r) {
    enum { N = 4 };
    uint64_t random = 1;
    int wrong = 0;
    double x[N];
    for (int k = 0; k < points; k++) {
        for (int i = 0; i < N; i++) x[i] = spread * tg_sample_normal(&random);
        tg_gradcheck_fn(hidden_values, hidden_gradient, &h, x, N, h.sum ? 1 : h.both ? N + 1 : N, r,
                        TG_GRADCHECK(.name = h.name, .rtol = h.rtol == 0 ? TG_AUTO : h.rtol, .seed = (uint64_t)k));
        wrong += r->failed && strcmp(r->cause, "unknown");
        if (wrong && h.by == 1) break;
    }
    return wrong;
}

START_TEST(elements_hidden_by_rounding_are_unsure) {
    static const hidden rows[] = {
#define X(name, f, df, rtol) {name##_of, name##_slope, 1, rtol, false, false, #name},
        HIDDEN(X)
#undef X
    };
    const double spreads[] = {1, 0.03, 30};
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    for (int i = 0; i < LEN(rows); i++)
        for (int k = 0; k < 6; k++) {
            hidden h = rows[i];
            h.sum = k % 2;
            if (k >= 4 && (h.f == exp10_of || h.f == exp20_of || h.f == exp32_of || h.f == half_too_of)) continue;
            ck_assert_msg(count_wrong(h, 100, spreads[k / 2], &r) == 0, "%s", r.report);
        }
    hidden both = {exp20_of, exp20_slope, 1, 0, false, true, "the sum, and its terms' exponents"};
    ck_assert_msg(count_wrong(both, 100, 2, &r) == 0, "%s", r.report);
    hidden lost = {exp20_of, exp20_slope, 1, 0, true, false, "lost"};
    const double x[] = {2, 0.1};
    tg_gradcheck_fn(hidden_values, hidden_gradient, &lost, x, 2, 1, &r, TG_GRADCHECK(.name = "lost"));
    ck_assert_msg(!r.failed && r.unsure == 1 && r.checked == 2, "%s", r.report);
    ck_in("x, element [1]: differences 0 +- ", r.report);
}
END_TEST

/* sum(exp(20 x)), and x w. */
static tg_status lost_sum(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_sum(tape, tg_exp(tape, tg_scale(tape, in[0], 20)), TG_ALL_DIMS, false);
    out[1] = tg_mul(tape, in[0], in[1]);
    return tg_ctx_status(tg_tape_ctx(tape));
}

START_TEST(tensor_elements_hidden_by_rounding_are_unsure) {
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(3), (const double[]){4, 0.1, -0.3}), *w = leaf_of(TG_SHAPE(3), (double[]){1, 2, 3});
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    ck_assert_msg(tg_gradcheck(t, lost_sum, NULL, (tg_tensor *[]){x, w}, 2, 2, &r, NULL) == TG_OK, "%s", r.report);
    ck_assert_msg(r.checked == 6 && r.unsure == 2 && r.kinks == 0, "%s", r.report);
    end();
}
END_TEST

static double bend(double x) { return x > 0 ? x : 0; }
static double bend_slope(double x) { return x > 0; }
static double steep(double x) { return exp(20 * x) + sin(50 * x); }
static double steep_slope(double x) { return 20 * exp(20 * x) + 50 * cos(50 * x); }
static double whole(double x) { return round(x); }
static double whole_slope(double x) { return (void)x, 1; }

/* Huge other outputs add no noise to an element's own. Kinks and steps of f, or coarse rounding, excuse no error
 * that is larger than they can explain. */
START_TEST(wrong_gradients_are_found_next_to_noise) {
    const struct {
        hidden h;
        int most; /* number of points at which an error cannot be found */
    } rows[] = {
        {{exp20_of, exp20_slope, 1.01, 0, false, false, "exp 20 x"}, 0},
        {{steep, steep_slope, 1.001, 1e-6, false, false, "steep"}, 0},
        {{bend, bend_slope, 1.001, 1e-6, false, false, "relu"}, 20}, /* all are below 0, or nearly all */
        {{single_of, single_slope, 1.1, 1e-6, false, false, "float32 inside"}, 2},
        {{whole, whole_slope, 1.5, 0, false, false, "round"}, 0},
    };
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    for (int i = 0; i < LEN(rows); i++) {
        int wrong = count_wrong(rows[i].h, 100, 1, &r);
        ck_assert_msg(wrong >= 100 - rows[i].most, "%s: found at %d points of 100", rows[i].h.name, wrong);
    }
}
END_TEST

/* ---- Causes next to uncertain elements ---- */

static double corner(double x) { return fabs(x - 0.3); }
static double corner_slope(double x) { return x < 0.3 ? -1 : 1; }

START_TEST(kinks_do_not_change_the_class) {
    const double x[] = {0.1, 0.5, 0.3, 0.9, 0.3, 0.3, 0.3};
    hidden h = {corner, corner_slope, -1, 0, false, false, "corner"};
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    for (int n = 1; n <= LEN(x); n++) {
        tg_gradcheck_fn(hidden_values, hidden_gradient, &h, x, n, n, &r, NULL);
        ck_assert_msg(r.failed && !strcmp(r.cause, "sign"), "%d: %s, %s", n, r.cause, r.report);
        ck_assert(r.kinks == (n > 2) + (n > 4) + (n > 5) + (n > 6));
    }
    hidden lost = {exp20_of, exp20_slope, -1, 0, true, false, "lost"};
    const double at[] = {2, 0.1, 1.9};
    tg_gradcheck_fn(hidden_values, hidden_gradient, &lost, at, 3, 1, &r, NULL);
    ck_assert_msg(r.failed && !strcmp(r.cause, "sign") && r.unsure == 1, "%s, %s", r.cause, r.report);
}
END_TEST

/* A kink at 0, and one nearby that large steps reach across and that hides both. */
static double two_corners(double x) { return x + 0.313455 * fabs(x) - 0.405867 * fabs(x - 9.83254e-5) + 0.9 * x * x; }
static double two_slopes(double x) {
    return 1 + 0.313455 * (x < 0 ? -1 : 1) - 0.405867 * (x < 9.83254e-5 ? -1 : 1) + 1.8 * x;
}

START_TEST(a_kink_near_another_is_found) {
    hidden h = {.f = two_corners, .df = two_slopes, .by = 1};
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    tg_status s = tg_gradcheck_fn(hidden_values, hidden_gradient, &h, &(double){0}, 1, 1, &r,
                                  TG_GRADCHECK(.projections = 1, .no_extras = true));
    ck_assert_msg(s == TG_OK && r.kinks == 1, "%s", r.report);
}
END_TEST

/* One element, any of many, is 1 % too large. */
static void one_is_more(void *state, const double *x, int64_t n, const double *gy, int64_t m, double *gx) {
    hidden_gradient(&(hidden){.df = sine_slope, .by = 1, .sum = true}, x, n, gy, m, gx);
    gx[*(int64_t *)state] *= 1.01;
}
static void sum_of_sines(void *state, const double *x, int64_t n, double *y, int64_t m) {
    (void)state;
    hidden_values(&(hidden){.f = sin, .sum = true}, x, n, y, m);
}

START_TEST(one_wrong_among_many_is_no_factor) {
    enum { MANY = 1000 };
    double x[MANY];
    for (int i = 0; i < MANY; i++) x[i] = 0.1 + 1.3 * i / MANY;
    for (int64_t i = 0; i < MANY; i += 199) {
        tg_gradcheck_info r = TG_GRADCHECK_INFO();
        tg_gradcheck_fn(sum_of_sines, one_is_more, &i, x, MANY, 1, &r, NULL);
        ck_assert_msg(r.failed && strcmp(r.cause, "factor"), "%d: %s, %s", (int)i, r.cause, r.report);
    }
}
END_TEST

/* ---- Recorded derivatives ---- */

/* x^2, computed by the host. */
typedef enum recorded_fault { RECORDED_RIGHT, VJP_FACTOR, VJP_CUT, JVP_SIGN, JVP_NAN, JVP_INF, NO_JVP } recorded_fault;

static tg_status own_infer(tg_call *c) {
    tg_shape s = tg_shape_of(c->input[0]);
    return tg_call_out(c, 0, TG_F64, (int)s.ndim, s.dim);
}

static tg_status own_forward(tg_call *c) {
    reached r = {.ctx = c->ctx};
    const double *x = reach(&r, c->input[0]);
    double *y = reach(&r, c->out[0]);
    for (int64_t i = 0; i < tg_numel(c->input[0]); i++) y[i] = x[i] * x[i];
    return release(&r);
}

static tg_status own_backward(tg_call *c) {
    reached r = {.ctx = c->ctx};
    const double *x = reach(&r, c->input[0]), *g = reach(&r, c->gout[0]);
    double *to = reach(&r, c->gin[0]);
    int64_t step = tg_ndim(c->gout[0]) ? tg_stride(c->gout[0], 0) : 0;
    for (int64_t i = 0; i < tg_numel(c->input[0]); i++)
        to[i] = 2 * x[i] * g[i * step] + (c->gin_mode[0] == TG_GRAD_ADD ? to[i] : 0);
    return release(&r);
}

static recorded_fault fault_of(const tg_node *n) { return *(const recorded_fault *)tg_node_params(n); }

/* If the graph is cut, the first derivative is right and the second is wrong. */
static tg_status own_vjp(tg_tape *tape, const tg_node *n, tg_tensor *const *gout, tg_tensor **gin) {
    tg_tensor *x = tg_node_input(n, 0);
    if (fault_of(n) == VJP_CUT) x = tg_detach(tape, x);
    gin[0] = tg_scale(tape, tg_mul(tape, gout[0], x), fault_of(n) == VJP_FACTOR ? 2.01 : 2);
    return TG_OK;
}

static tg_status own_jvp(tg_tape *tape, const tg_node *n, tg_tensor *const *din, tg_tensor **dout) {
    const double factor[] = {[JVP_SIGN] = -2, [JVP_NAN] = NAN, [JVP_INF] = INFINITY, [NO_JVP] = 0};
    recorded_fault fault = fault_of(n);
    dout[0] = tg_scale(tape, tg_mul(tape, din[0], tg_node_input(n, 0)), factor[fault] != 0 ? factor[fault] : 2);
    return TG_OK;
}

static tg_status own(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    static const tg_op op = {.size = sizeof op, .name = "own", .n_in = 1, .n_out = 1, .saves_in = 1,
                             .params_size = sizeof(recorded_fault), .infer = own_infer, .forward = own_forward,
                             .backward = own_backward, .vjp = own_vjp, .jvp = own_jvp};
    static const tg_op without = {.size = sizeof op, .name = "own", .n_in = 1, .n_out = 1, .saves_in = 1,
                                  .params_size = sizeof(recorded_fault), .infer = own_infer, .forward = own_forward,
                                  .backward = own_backward, .vjp = own_vjp};
    return tg_apply(tape, *(recorded_fault *)state == NO_JVP ? &without : &op, state, in, n_in, out, n_out, NULL, NULL,
                    TG_SITE);
}

START_TEST(recorded_derivatives_are_checked) {
    static const struct {
        recorded_fault fault;
        tg_status status;
        const char *cause, *says;
    } rows[] = {
        {RECORDED_RIGHT, TG_OK, "", ""},
        {VJP_FACTOR, TG_ERR_GRADIENT, "recorded",
         "input 0, f64[3], element [0]: tg_grad with .create_graph (vjp) gives"},
        {VJP_CUT, TG_ERR_GRADIENT, "zero", "own: its gradient"},
        {JVP_SIGN, TG_ERR_GRADIENT, "recorded", "tg_jvp along a random direction gives"},
        {JVP_NAN, TG_ERR_GRADIENT, "recorded", "tg_jvp along a random direction gives"},
        {JVP_INF, TG_ERR_GRADIENT, "recorded", "tg_jvp along a random direction gives"},
        {NO_JVP, TG_ERR_UNSUPPORTED, "", "has no forward derivative"},
    };
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(3), (const double[]){1, -2, 3});
    tg_gradcheck_info r = TG_GRADCHECK_INFO();
    for (int i = 0; i < LEN(rows); i++) {
        recorded_fault fault = rows[i].fault;
        ck_assert_msg(tg_gradcheck(t, own, &fault, &x, 1, 1, &r, TG_GRADCHECK(.name = "own")) == TG_OK, "%s", r.report);
        tg_status s = tg_gradcheck(t, own, &fault, &x, 1, 1, &r, TG_GRADCHECK(.name = "own", .second_order = true));
        ck_assert_msg(s == rows[i].status && r.failed == (s == TG_ERR_GRADIENT), "%d: %s, %s", i, tg_status_name(s),
                      tg_ctx_message(ctx));
        ck_in(rows[i].says, tg_ctx_message(ctx));
        ck_assert_msg(!r.failed || !strcmp(r.cause, rows[i].cause), "%d: %s, %s", i, r.cause, r.report);
        tg_ctx_clear(ctx);
    }
    for (int i = 0; i < tg_op_count(); i++) { /* ops of the table, one sample each */
        const tg_op *op = tg_op_at(i);
        if (strcmp(op->name, "matmul") && strcmp(op->name, "softmax") && strcmp(op->name, "sum") &&
            strcmp(op->name, "layer_norm") && strcmp(op->name, "dropout") && strcmp(op->name, "mul"))
            continue;
        ck_assert_msg(tg_gradcheck_op(ctx, op, 0, &r, TG_GRADCHECK(.second_order = true)) == TG_OK, "%s: %s", op->name,
                      tg_ctx_message(ctx));
    }
    end();
}
END_TEST

/* ---- Bytes that backward restores ---- */

static tg_status squared(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)state, (void)n_in, (void)n_out;
    out[0] = tg_square(tape, in[0]);
    return TG_OK;
}

static tg_status replayed(void *state, tg_tape *tape, tg_tensor *const *in, int n_in, tg_tensor **out, int n_out) {
    (void)n_out;
    tg_replay *r = tg_replay_open(tape);
    tg_tensor *y, *z;
    tg_status s = tg_replay_run(r, squared, state, in, n_in, &y, 1, NULL);
    if (s != TG_OK) return s;
    z = tg_sin(tape, y);
    out[0] = tg_square(tape, z);
    return tg_replay_close(r, z);
}

START_TEST(restored_bytes_are_not_taken_for_written_ones) {
    begin();
    tg_tensor *x = leaf_of(TG_SHAPE(3), (const double[]){0.3, 0.5, 0.7});
    ck_assert_msg(tg_gradcheck(t, replayed, NULL, &x, 1, 1, NULL, NULL) == TG_OK, "%s", tg_ctx_message(ctx));
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {gradients_below_atol_are_reported,
                            elements_hidden_by_rounding_are_unsure,
                            tensor_elements_hidden_by_rounding_are_unsure,
                            wrong_gradients_are_found_next_to_noise,
                            kinks_do_not_change_the_class,
                            a_kink_near_another_is_found,
                            one_wrong_among_many_is_no_factor,
                            recorded_derivatives_are_checked,
                            restored_bytes_are_not_taken_for_written_ones};
    return tg_check_main("gradcheck_more", tests, sizeof tests / sizeof *tests);
}
