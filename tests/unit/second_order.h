/* What the tests of derivatives of derivatives share. */
#ifndef TG_TEST_SECOND_ORDER_H
#define TG_TEST_SECOND_ORDER_H

#include "world.h"

#include <math.h>

#define ck_near(a, b) ck_assert_double_eq_tol(a, b, 1e-10 * (1 + fabs((double)(b))))

/* Returns the derivative of y by x, recorded as ops. */
static inline tg_tensor *derivative(tg_tensor *y, tg_tensor *x) {
    tg_tensor *g;
    tg_grad(t, &y, 1, &x, 1, &g, TG_GRAD(.create_graph = true));
    return g;
}

#endif
