/* What tg_explain_grad says, for every kind of answer. */
#include "world.h"

#include <stdlib.h>

#include <tapegrad/explain.h>

static char said[2048];

static void ck_explains(tg_tensor *root, tg_tensor *x, const char *first, const char *then) {
    size_t n = tg_explain_grad(t, root, x, said, sizeof said);
    ck_status(TG_OK);
    ck_assert_msg(n == strlen(said) && strstr(said, first) && strstr(said, then), "\"%s\", then \"%s\", in: %s", first,
                  then, said);
}

START_TEST(gradients_that_are_there) {
    begin();
    tg_tensor *x = leaf(3), *y = tg_mul(t, tg_square(t, x), tg_exp(t, x));
    ck_explains(y, x, "lies in [301.28", "It comes through op ");
    ck_assert(strstr(said, "op exp") && strstr(said, "op square"));
    ck_explains(y, y, "lies in [1, 1]", "");
    ck_assert(!tg_has_grad(x));
    ck_assert(tg_backward(t, y) == TG_OK); /* nothing was consumed */
    end();
}
END_TEST

START_TEST(zeros_and_their_cause) {
    begin();
    const double v[] = {-1, -2, -3};
    tg_tensor *w = leaf_of(TG_SHAPE(3), v), *h = tg_relu(t, tg_scale(t, w, 2));
    tg_tensor *y = tg_sum(t, tg_add_scalar(t, h, 1), TG_ALL_DIMS, false);
    ck_explains(y, w, "is 0 in every element", "It became 0 in op relu");
    ck_assert_msg(strstr(said, "reaches 1") && strstr(said, "lies in [-6, -2]"), "%s", said);
    end();
}
END_TEST

START_TEST(numbers_that_are_none) {
    begin();
    tg_tensor *x = leaf(0), *y = tg_scale(t, tg_sqrt(t, x), 3);
    ck_explains(y, x, "1 of the 1 elements", "It became NaN or infinite in op sqrt");
    ck_assert_msg(strstr(said, "lies in [0, 0]"), "%s", said);
    end();
}
END_TEST

START_TEST(none_at_all) {
    begin();
    tg_tensor *x = leaf(1), *other = leaf(2), *unused = leaf(3), *y = tg_square(t, x);
    tg_tensor *data = tg_zeros(ctx, TG_F64, TG_SHAPE(2)), *ids = tg_zeros(ctx, TG_I64, TG_SHAPE(2));
    tg_exp(t, tg_scale(t, other, 2));
    ck_explains(y, other, "does not depend on f64[]", "The ways from it end at op exp");
    ck_explains(y, unused, "does not depend on f64[]", "No op has used it");
    ck_explains(y, data, "needs no gradient: it is a leaf", "tg_set_requires_grad");
    ck_explains(y, ids, "only floats do", "");
    ck_explains(y, tg_detach(t, x), "needs no gradient: it was recorded", "not differentiable");
    ck_explains(tg_square(t, data), x, "the root depends on nothing", "");
    size_t n = tg_explain_grad(t, y, x, NULL, 0);
    char few[8];
    ck_assert(n > 8 && tg_explain_grad(t, y, x, few, sizeof few) == n && strlen(few) == 7);
    end();
}
END_TEST

int main(void) {
    const TTest *tests[] = {gradients_that_are_there, zeros_and_their_cause, numbers_that_are_none, none_at_all};
    return tg_check_main("explain", tests, sizeof tests / sizeof *tests);
}
