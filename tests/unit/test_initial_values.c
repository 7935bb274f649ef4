/* Initial values that depend on the shape: moments and bounds with a fan, orthogonal matrices and their distribution,
 * the identity, how many numbers they draw, and what is refused. checkpoint/test_module_state compares the values of
 * shards with those of one rank. */
#include <math.h>

#include <tapegrad/nn.h>

#include "world.h"

enum { MOST = 4096 };

static double value[MOST];

/* Reads the values of a new tensor with these initial values to value[]. */
static int64_t draw(tg_shape shape, const tg_init *init) {
    tg_tensor *x = tg_zeros(ctx, TG_F64, shape);
    ck_assert_msg(tg_param_init(x, init) == TG_OK, "%s", tg_ctx_message(ctx));
    int64_t n = tg_numel(x);
    tg_read_f64(x, value, n);
    tg_drop(x);
    return n;
}

/* ---- Fans ---- */

typedef struct fan_case {
    const char *what;
    tg_shape shape;
    tg_init init;
    double std; /* expected */
} fan_case;

#define WEIGHT TG_SHAPE(64, 32)
#define WINDOW TG_SHAPE(32, 8, 2, 4) /* fan in 64, fan out 256 */

START_TEST(a_fan_gives_the_standard_deviation) {
    const fan_case cases[] = {
        {"kaiming normal", WEIGHT, *TG_KAIMING_NORMAL(TG_GAIN_RELU), 0.25},
        {"kaiming uniform", WEIGHT, *TG_KAIMING_UNIFORM(TG_GAIN_RELU), 0.25},
        {"kaiming of a window", WINDOW, *TG_KAIMING_NORMAL(1), 0.125},
        {"fan out", WINDOW, *TG_INIT(.b = 2, .fan = TG_FAN_OUT), 0.125},
        {"xavier normal", WEIGHT, *TG_XAVIER_NORMAL(1), sqrt(2.0 / 96)},
        {"xavier uniform", WEIGHT, *TG_XAVIER_UNIFORM(TG_GAIN_TANH), 5.0 / 3 * sqrt(2.0 / 96)},
        {"mean", WEIGHT, *TG_INIT(.kind = TG_INIT_UNIFORM, .a = 3, .b = 1, .fan = TG_FAN_IN), sqrt(1.0 / 32)},
        /* Between -2 and 2 standard deviations the variance is 1 - 4 phi(2) / (2 Phi(2) - 1), 0.774 of the whole. */
        {"truncated", WEIGHT, *TG_INIT(.kind = TG_INIT_TRUNCATED, .b = 1, .fan = TG_FAN_IN), sqrt(0.7737 / 32)},
        {"no gain", WEIGHT, *TG_KAIMING_NORMAL(0), 0},
    };
    begin();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const fan_case *c = &cases[k];
        int64_t n = draw(c->shape, &c->init);
        double sum = 0, squares = 0, largest = 0, root = sqrt((double)n), std = c->std;
        for (int64_t i = 0; i < n; i++) {
            double off = value[i] - c->init.a;
            sum += off, squares += off * off, largest = fmax(largest, fabs(off));
        }
        ck_assert_msg(fabs(sum) / root <= 5 * std, "%s: mean %g", c->what, sum / (double)n);
        ck_assert_msg(fabs(sqrt(squares / (double)n) - std) <= 5 * std / root, "%s: std %g, expected %g", c->what,
                      sqrt(squares / (double)n), std);
        double bound = c->init.kind == TG_INIT_UNIFORM  ? sqrt(3) * std
                       : c->init.kind == TG_INIT_NORMAL ? 6 * std
                                                        : 2 / sqrt(32);
        ck_assert_msg(largest <= bound && largest >= 0.95 * bound * (c->init.kind != TG_INIT_NORMAL), "%s: largest %g",
                      c->what, largest);
    }
    end();
}
END_TEST

/* ---- Orthogonal matrices ---- */

/* Returns the largest |element| of q q^T - gain^2, over the rows of q, or of q^T q if q has more rows than columns. */
static double off_identity(int64_t rows, int64_t columns, double gain) {
    bool tall = rows > columns;
    int64_t vectors = tall ? columns : rows, length = tall ? rows : columns;
    double worst = 0;
    for (int64_t i = 0; i < vectors; i++)
        for (int64_t j = 0; j <= i; j++) {
            double dot = 0;
            for (int64_t k = 0; k < length; k++)
                dot += tall ? value[k * columns + i] * value[k * columns + j]
                            : value[i * columns + k] * value[j * columns + k];
            worst = larger_or_nan(worst, fabs(dot - (i == j ? gain * gain : 0)));
        }
    return worst;
}

START_TEST(columns_or_rows_are_orthonormal) {
    static const struct {
        tg_shape shape;
        int64_t rows, columns;
        double gain;
    } cases[] = {{{2, {32, 32}}, 32, 32, 1}, {{2, {50, 7}}, 50, 7, 1},      {{2, {7, 50}}, 7, 50, 3},
                 {{2, {1, 9}}, 1, 9, 0.5},   {{2, {9, 1}}, 9, 1, 1},        {{4, {6, 2, 3, 4}}, 6, 24, 2},
                 {{2, {64, 60}}, 64, 60, 1}, {{3, {40, 2, 3}}, 40, 6, 0.1}, {{2, {1, 1}}, 1, 1, 1}};
    begin();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        draw(cases[k].shape, TG_ORTHOGONAL(cases[k].gain));
        double off = off_identity(cases[k].rows, cases[k].columns, cases[k].gain);
        ck_assert_msg(off < 1e-14 * cases[k].gain * cases[k].gain * 4, "case %zu: %g", k, off);
    }
    end();
}
END_TEST

/* The elements of a Haar-distributed matrix of size n have mean 0 and variance 1 / n, the products of different ones
 * have mean 0, and half of the matrices are rotations. A QR decomposition without positive diagonal fails this test. */
START_TEST(orthogonal_matrices_are_haar_distributed) {
    enum { SIZE = 3, DRAWS = 4000 };
    double sum[9] = {0}, squares[9] = {0}, product = 0, rotations = 0, bound = 5 / sqrt(DRAWS);
    begin();
    for (int k = 0; k < DRAWS; k++) {
        draw(TG_SHAPE(SIZE, SIZE), TG_ORTHOGONAL(1));
        const double *q = value;
        double det = q[0] * (q[4] * q[8] - q[5] * q[7]) - q[1] * (q[3] * q[8] - q[5] * q[6]) +
                     q[2] * (q[3] * q[7] - q[4] * q[6]);
        rotations += det > 0;
        product += q[0] * q[4];
        for (int i = 0; i < 9; i++) sum[i] += q[i], squares[i] += q[i] * q[i];
    }
    for (int i = 0; i < 9; i++) {
        ck_assert_msg(fabs(sum[i] / DRAWS) < bound, "mean of element %d: %g", i, sum[i] / DRAWS);
        ck_assert_msg(fabs(squares[i] / DRAWS - 1.0 / SIZE) < bound, "variance of element %d: %g", i,
                      squares[i] / DRAWS);
    }
    ck_assert(fabs(product / DRAWS) < bound && fabs(rotations / DRAWS - 0.5) < bound);
    end();
}
END_TEST

START_TEST(an_orthogonal_matrix_takes_a_number_for_each_element) {
    double next[2];
    for (int k = 0; k < 2; k++) {
        begin();
        draw(TG_SHAPE(6, 4), k ? TG_ORTHOGONAL(1) : TG_INIT(.b = 1));
        draw(TG_SHAPE(1), TG_INIT(.b = 1));
        next[k] = value[0];
        end();
    }
    ck_assert(next[0] == next[1]);
}
END_TEST

/* ---- The identity ---- */

START_TEST(an_eye_is_the_identity) {
    begin();
    draw(TG_SHAPE(3, 5), TG_INIT(.kind = TG_INIT_EYE, .a = 2));
    for (int i = 0; i < 15; i++) ck_assert(value[i] == (i / 5 == i % 5 ? 2 : 0));
    draw(TG_SHAPE(5, 3), TG_INIT(.kind = TG_INIT_EYE, .a = 1));
    for (int i = 0; i < 15; i++) ck_assert(value[i] == (i / 3 == i % 3));
    end();
}
END_TEST

/* ---- Refused ---- */

static void refused(tg_tensor *x, const tg_init *init, tg_status status, const char *says) {
    double before[12], after[12];
    tg_read_f64(x, before, tg_numel(x));
    ck_assert_int_eq(tg_param_init(x, init), status);
    ck_says(says);
    tg_ctx_clear(ctx);
    tg_read_f64(x, after, tg_numel(x));
    ck_assert(!memcmp(before, after, (size_t)tg_numel(x) * sizeof *after));
}

START_TEST(other_shapes_and_fans_are_refused) {
    begin();
    const double v[12] = {1, 2, 3};
    tg_tensor *vector = tg_from_host(ctx, TG_F64, TG_SHAPE(3), v),
              *cube = tg_from_host(ctx, TG_F64, TG_SHAPE(3, 2, 2), v);
    refused(vector, TG_KAIMING_NORMAL(1), TG_ERR_SHAPE, "f64[3] has 1 dim, expected a weight of 2 dims or more");
    refused(vector, TG_ORTHOGONAL(1), TG_ERR_SHAPE, "has 1 dim, expected 2 or more, for TG_INIT_ORTHOGONAL");
    refused(cube, TG_INIT(.kind = TG_INIT_EYE), TG_ERR_SHAPE,
            "f64[3, 2, 2] has 3 dims, expected a matrix, for TG_INIT_EYE");
    refused(cube, TG_KAIMING_UNIFORM(-1), TG_ERR_ARGUMENT, "b is -1, expected a gain of 0 or more");
    refused(cube, TG_INIT(.fan = (tg_init_fan)4), TG_ERR_ARGUMENT,
            "the fan of the tg_init is 4, expected TG_FAN_NONE to _MEAN");
    refused(cube, TG_INIT(.kind = TG_INIT_CONSTANT, .fan = TG_FAN_IN), TG_ERR_ARGUMENT,
            "a fan is given, but only TG_INIT_NORMAL");
    refused(cube, TG_INIT(.kind = TG_INIT_ORTHOGONAL, .b = NAN), TG_ERR_ARGUMENT,
            "a is 0 and b nan, expected finite numbers");
    end();
}
END_TEST

int main(void) {
    const TTest *const tests[] = {a_fan_gives_the_standard_deviation,
                                  columns_or_rows_are_orthonormal,
                                  orthogonal_matrices_are_haar_distributed,
                                  an_orthogonal_matrix_takes_a_number_for_each_element,
                                  an_eye_is_the_identity,
                                  other_shapes_and_fans_are_refused};
    return tg_check_main("initial_values", tests, sizeof tests / sizeof *tests);
}
